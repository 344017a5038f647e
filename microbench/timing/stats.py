"""Medians, intervals and ratios of repeated timings.

Samples come in blocks: variants of a comparison are interleaved, one block each per round. Samples
of one block share the clock, the temperature and the state of the machine, so intervals resample
blocks, not samples. Intervals are percentile bootstraps widened for few blocks ("expanded
percentile", T. Hesterberg, "What Teachers Should Know About the Bootstrap", 2015). Under
MIN_BOOTSTRAP blocks there are too few distinct resamples, and replicates come from Student's t.
Every replicate moves each reading by up to half a tick: a timer of 32 ns steps cannot tell 6.00
from 6.02 us. How often intervals of a true ratio of 1 contain 1: results/nvidia-h200/aa.json.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

REPLICATES = 2000
SEED = 20260101  # the same samples always give the same interval
CONFIDENCE = 0.95
MAX_INTERVAL_PCT = 0.5  # stop sampling when the median's interval is within this
MIN_BOOTSTRAP = 5
NORMAL_FROM = 1000.0  # degrees of freedom: Student's t is within 0.2 % of the normal quantile
ANGLES = 40_001

Blocks = Sequence[Sequence[float]]
Interval = tuple[float, float]


@cache
def t_quantile(confidence: float, degrees: float) -> float:
    """Student's t that holds `confidence` of the distribution between -t and t.

    `degrees` of freedom are above 0 and need not be whole; from NORMAL_FROM on the normal
    distribution stands for it. With t = sqrt(degrees) tan(angle), the density is
    cos(angle)**(degrees - 1).
    """
    if degrees >= NORMAL_FROM:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    angles = np.linspace(0, math.pi / 2, ANGLES)
    middles = (angles[1:] + angles[:-1]) / 2
    held = np.concatenate([[0.0], np.cumsum(np.cos(middles) ** (degrees - 1))])
    angle = np.interp(np.array([confidence * held[-1]]), held, angles)
    return math.sqrt(degrees) * math.tan(float(angle[0]))


def median(samples: Sequence[float]) -> float:
    """The median, in the unit of the samples. ValueError for no samples."""
    if not samples:
        raise ValueError("no samples")
    return float(np.median(np.asarray(samples)))


def _expanded_quantiles(blocks: int) -> tuple[float, float]:
    """Quantile levels that make a percentile bootstrap of `blocks` blocks cover 95 %."""
    normal = NormalDist()
    degrees = blocks - 1
    low = normal.cdf(-t_quantile(CONFIDENCE, degrees) * math.sqrt(blocks / degrees))
    return low, 1 - low


def _interval_of_mean(
    values: NDArray[np.float64], jitter: NDArray[np.float64], rng: np.random.Generator
) -> Interval:
    """95 % interval of the mean of block values; `jitter` is added to the replicates."""
    count = len(values)
    if count < MIN_BOOTSTRAP:
        error = values.std(ddof=1) / math.sqrt(count)
        replicates = values.mean() + error * rng.standard_t(count - 1, REPLICATES) + jitter
        low, high = np.quantile(replicates, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    else:
        picks = rng.integers(0, count, (REPLICATES, count))
        replicates = values[picks].mean(axis=1) + jitter
        low, high = np.quantile(replicates, _expanded_quantiles(count))
    return float(low), float(high)


def median_interval(blocks: Blocks, resolution_s: float = 0.0) -> Interval | None:
    """95 % confidence interval of the median time in seconds, from the logarithms of block medians.

    `blocks` hold seconds, one sequence per round; `resolution_s` is one tick of the timer. None for
    fewer than two blocks, or where a median is not positive.
    """
    if len(blocks) < 2:
        return None
    medians = np.array([median(block) for block in blocks])
    centre = median([sample for block in blocks for sample in block])
    if centre <= 0 or medians.min() <= 0:
        return None
    logs = np.log(medians)
    rng = np.random.default_rng(SEED)
    jitter = np.log1p(rng.uniform(-0.5, 0.5, REPLICATES) * min(resolution_s / centre, 1.0))
    low, high = _interval_of_mean(logs - logs.mean(), jitter, rng)
    return min(centre, centre * math.exp(low)), max(centre, centre * math.exp(high))


def half_width_pct(centre: float, interval: Interval) -> float:
    """The larger half of the interval, in per cent of the centre, which must not be 0."""
    return 100 * max(interval[1] - centre, centre - interval[0]) / centre


def ratio_interval(
    numerator: Blocks, denominator: Blocks, resolution_s: float = 0.0
) -> tuple[float, Interval | None]:
    """(ratio, 95 % confidence interval) of the times of two interleaved variants.

    Blocks hold seconds and pair up by round. The ratio is the geometric mean of the rounds' ratios
    of medians, numerator over denominator; the interval is None for one round. `resolution_s` is
    one tick of the timer. ValueError where they have different numbers of rounds, or none.
    """
    if len(numerator) != len(denominator) or not numerator:
        raise ValueError(f"rounds do not pair up: {len(numerator)} and {len(denominator)}")
    upper = np.array([median(block) for block in numerator])
    lower = np.array([median(block) for block in denominator])
    logs = np.log(upper / lower)
    ratio = math.exp(float(logs.mean()))
    if len(logs) < 2:
        return ratio, None
    rng = np.random.default_rng(SEED)
    ticks = rng.uniform(-resolution_s / 2, resolution_s / 2, (2, REPLICATES))
    # The tick is common to all rounds: readings that sit on one tick stay on it in every round.
    jitter = np.log1p(ticks[0] / upper.mean()) - np.log1p(ticks[1] / lower.mean())
    low, high = _interval_of_mean(logs, jitter, rng)
    return ratio, (min(ratio, math.exp(low)), max(ratio, math.exp(high)))


def excludes_one(interval: Interval) -> bool:
    """Whether a ratio's interval shows a difference: it does not contain 1."""
    return interval[0] > 1 or interval[1] < 1
