"""Medians, intervals and ratios of repeated timings, and what a case's time varies by from one
process to the next.

Samples come in blocks: variants of a comparison are interleaved, one block each per round. Samples
of one block share the clock, the temperature and the state of the machine, so the block is the
sample: intervals are of the mean of the logarithms of block medians, by Student's t.

Rounds of one variant may be correlated, which intervals of medians allow for (CORRELATED). Ratios
of a round need none of it: the order of variants in a round is random, so a ratio is as likely up
as down whatever the card does. Simulated coverage: docs/notes/method.md.

A process places its matrices in memory, lets cuDNN choose an algorithm and meets the card in some
state; all of its samples share that. So the same case in fresh processes differs by more than the
interval of one process says. Where a case was measured in several processes, the process is the
sample: its median is one value, and intervals are of the mean of their logarithms.

Three processes say little of how much one case varies, and one process says nothing, but many cases
together say much: `VariancePrior`, a scaled inverse chi-square distribution of variances, fitted to
all cases, with which each case's own variance is combined (G. K. Smyth, "Linear Models and
Empirical Bayes Methods for Assessing Differential Expression in Microarray Experiments", 2004,
sections 4 and 6.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple, Self

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


def is_settled(times_s: Sequence[Sequence[float]], resolution_s: float) -> bool:
    """Whether the median of these blocks is known to MAX_INTERVAL_PCT per cent, or to one tick.

    `resolution_s` is that tick, in seconds. False for fewer than two blocks.
    """
    ends = median_interval(times_s, resolution_s)
    if ends is None:
        return False
    half_pct = half_width_pct(median([t for block in times_s for t in block]), ends)
    return half_pct <= MAX_INTERVAL_PCT or ends[1] - ends[0] <= 2 * resolution_s


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


def excludes_one(interval: Interval) -> bool:
    """Whether a ratio's interval shows a difference: it does not contain 1."""
    return interval[0] > 1 or interval[1] < 1


# ---------------------------------------------------------------- between processes


FEWEST_CASES = 8  # to fit a prior to; fewer are judged by DEFAULT_PRIOR
STEP = 1e-3  # of the numerical derivatives of log gamma: right to 1e-6 from 0.5 up
MOST_DEGREES = 1e4


class Variance(NamedTuple):
    """A variance of logarithms between processes, and its degrees of freedom."""

    value: float
    degrees: float


class VariancePrior(NamedTuple):
    """What variances of cases are like: `value` and how many `degrees` of freedom it is worth."""

    value: float
    degrees: float

    def posterior(self, own: Variance) -> Variance:
        """A case's own variance, combined with the prior, each by its degrees of freedom."""
        return pooled([Variance(*self), own])

    @classmethod
    def fit(cls, variances: Sequence[Variance]) -> Self:
        """The prior of the variances of many cases; DEFAULT_PRIOR's where they are too few.

        The logarithm of a sample variance has a known mean and spread where all cases vary alike;
        the degrees of freedom are those that explain the spread seen beyond it.
        """
        known = [v for v in variances if v.value > 0]
        if len(known) < FEWEST_CASES:
            return cls(*DEFAULT_PRIOR)
        halves = np.array([v.degrees / 2 for v in known])
        centred = np.log([v.value for v in known]) - [digamma(h) - math.log(h) for h in halves]
        mean = float(centred.mean())
        beyond = float(centred.var(ddof=1)) - float(np.mean([trigamma(h) for h in halves]))
        if beyond <= trigamma(MOST_DEGREES / 2):
            return cls(math.exp(mean), MOST_DEGREES)
        half = _trigamma_inverse(beyond)
        return cls(math.exp(mean + digamma(half) - math.log(half)), 2 * half)


# Measured over the cases of results/nvidia-h200/processes-gemm.json and processes-conv.json: all of
# them, and by op and time, which is below so many seconds.
DEFAULT_PRIOR = VariancePrior(0.017**2, 2.1)
PRIORS = {
    "gemm": {5e-6: VariancePrior(0.029**2, 6.4), math.inf: VariancePrior(0.0135**2, 3.9)},
    "conv": {20e-6: VariancePrior(0.043**2, 1.6), math.inf: VariancePrior(0.029**2, 5.6)},
}


def prior_of(op: str, seconds: float) -> VariancePrior:
    """How cases of this op and time vary between processes; DEFAULT_PRIOR for another op."""
    by_time = PRIORS.get(op, {math.inf: DEFAULT_PRIOR})
    return next(prior for below_s, prior in by_time.items() if seconds < below_s)


def over_processes(centre_s: float, interval: Interval, prior: VariancePrior) -> Interval:
    """The 95 % interval of what other processes would measure, from one process's own: wider by
    what processes differ by.
    """
    between = t_quantile(CONFIDENCE, prior.degrees) * math.sqrt(prior.value)
    below, above = (math.hypot(math.log(end / centre_s), between) for end in interval)
    return centre_s * math.exp(-below), centre_s * math.exp(above)


def variance_between(medians_s: Sequence[float], tick_s: float = 0.0) -> Variance:
    """The variance of the logarithm of one case's time between processes.

    `medians_s` holds one median a process, at least two. `tick_s` is one tick of the timer: equal
    readings may differ by as much as rounding hides.
    """
    logs = np.log(np.asarray(medians_s))
    rounding = (tick_s / math.exp(float(logs.mean()))) ** 2 / 12
    return Variance(max(float(logs.var(ddof=1)), rounding), len(logs) - 1)


def pooled(parts: Sequence[Variance]) -> Variance:
    """Variances of one case in several runs as one."""
    degrees = sum(part.degrees for part in parts)
    return Variance(sum(part.value * part.degrees for part in parts) / degrees, degrees)


def mean_interval(medians_s: Sequence[float], tick_s: float = 0.0) -> tuple[float, Interval | None]:
    """(geometric mean, its 95 % interval) in seconds of one case's medians, one a process.

    From this case alone, by Student's t. None for one process.
    """
    logs = np.log(np.asarray(medians_s))
    centre = float(logs.mean())
    if len(logs) < 2:
        return math.exp(centre), None
    value, degrees = variance_between(medians_s, tick_s)
    half = t_quantile(CONFIDENCE, degrees) * math.sqrt(value / len(logs))
    return math.exp(centre), (math.exp(centre - half), math.exp(centre + half))


def ratio_over(
    a_s: Sequence[float], b_s: Sequence[float], variance: Variance
) -> tuple[float, Interval]:
    """(time in A over time in B, its 95 % interval) from the medians of two runs' processes."""
    log = float(np.log(a_s).mean() - np.log(b_s).mean())
    spread = math.sqrt(variance.value * (1 / len(a_s) + 1 / len(b_s)))
    half = t_quantile(CONFIDENCE, variance.degrees) * spread
    return math.exp(log), (math.exp(log - half), math.exp(log + half))


def digamma(x: float) -> float:
    """The derivative of log gamma at x, from 0.5 up."""
    return (math.lgamma(x + STEP) - math.lgamma(x - STEP)) / (2 * STEP)


def trigamma(x: float) -> float:
    """The second derivative of log gamma; for large x by its series, where differences cancel."""
    if x > 20:
        return 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3)
    return (math.lgamma(x + STEP) - 2 * math.lgamma(x) + math.lgamma(x - STEP)) / STEP**2


def _trigamma_inverse(value: float) -> float:
    """The x at which trigamma is `value`: by bisection, since it falls everywhere."""
    low, high = 0.01, MOST_DEGREES
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > value else (low, middle)
    return math.sqrt(low * high)
