"""Medians, intervals and ratios of repeated timings.

Samples come in blocks: variants of a comparison are interleaved, one block each per round. Samples
of one block share the clock, the temperature and the state of the machine, so the block is the
sample: intervals are of the mean of the logarithms of block medians, by Student's t.

Rounds of one variant may be correlated, which intervals of medians allow for (CORRELATED). Ratios
of a round need none of it: the order of variants in a round is random, so a ratio is as likely up
as down whatever the card does. Simulated coverage: docs/notes/method.md, tests/samples/coverage.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
MAX_INTERVAL_PCT = 0.5  # stop sampling when the median's interval is within this
NORMAL_FROM = 1000.0  # degrees of freedom: Student's t is within 0.2 % of the normal quantile
ANGLES = 40_001
CORRELATION = 0.12  # of a round with the next one, the most that was measured
# By so much the mean of many rounds errs more than their spread alone says.
CORRELATED = math.sqrt((1 + CORRELATION) / (1 - CORRELATION))
WIDEST = 100.0  # half an interval in logarithms, of times that are far below a tick
TWO_ROUNDINGS = 1.1  # holds 95 % of the sum of two uniform errors, times the root of their squares

Blocks = Sequence[Sequence[float]]
Interval = tuple[float, float]
Floats = NDArray[np.float64]


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


def _noise(values: Floats) -> float:
    """Half the interval of the mean of two or more values, by Student's t."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return t_quantile(CONFIDENCE, len(values) - 1) * error


def _rounding(medians: Floats, resolution_s: float) -> float:
    """What rounding to ticks may move the mean of these medians by, as a fraction of it.

    Half a tick where all sit on one, less where noise spreads them over several: rounding then
    averages out, the faster the wider (B. Widrow, I. Kollar, "Quantization Noise", 2008, section
    4.2). The spread is taken before rounding (Sheppard's correction).
    """
    if resolution_s <= 0:
        return 0.0
    ticks2 = max(0.0, float(medians.var(ddof=1)) / resolution_s**2 - 1 / 12)
    return resolution_s / 2 * math.exp(-2 * math.pi**2 * ticks2) / float(medians.mean())


def median_interval(blocks: Blocks, resolution_s: float = 0.0) -> Interval | None:
    """95 % confidence interval of the median time in seconds, from the logarithms of block medians.

    `blocks` hold seconds, one sequence per round in order; `resolution_s` is one tick of the timer.
    None for fewer than two blocks, or where a median is not positive.
    """
    if len(blocks) < 2:
        return None
    medians = np.array([median(block) for block in blocks])
    centre = median([sample for block in blocks for sample in block])
    if centre <= 0 or medians.min() <= 0:
        return None
    noise = CORRELATED * _noise(np.log(medians))
    half = min(WIDEST, math.hypot(noise, _rounding(medians, resolution_s)))
    return centre * math.exp(-half), centre * math.exp(half)


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
    centre = float(logs.mean())
    if len(logs) < 2:
        return math.exp(centre), None
    roundings = [_rounding(medians, resolution_s) for medians in (upper, lower)]
    half = min(WIDEST, math.hypot(_noise(logs), TWO_ROUNDINGS * math.hypot(*roundings)))
    return math.exp(centre), (math.exp(centre - half), math.exp(centre + half))


def share_interval(hits: int, tries: int) -> Interval:
    """95 % interval of a share, between 0 and 1 (E. B. Wilson, 1927); `tries` is above 0."""
    z = t_quantile(CONFIDENCE, math.inf)
    share = hits / tries
    middle = (share + z**2 / (2 * tries)) / (1 + z**2 / tries)
    spread = math.sqrt(share * (1 - share) / tries + z**2 / (4 * tries**2))
    half = z * spread / (1 + z**2 / tries)
    return max(0.0, middle - half), min(1.0, middle + half)


def excludes_one(interval: Interval) -> bool:
    """Whether a ratio's interval shows a difference: it does not contain 1."""
    return interval[0] > 1 or interval[1] < 1
