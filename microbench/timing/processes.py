"""What a case's time varies by from one process to the next.

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
from typing import NamedTuple, Self

import numpy as np

from microbench.timing.stats import CONFIDENCE, Interval, t_quantile

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
DEFAULT_PRIOR = VariancePrior(0.012**2, 1.8)
PRIORS = {
    "gemm": {5e-6: VariancePrior(0.019**2, 4.4), math.inf: VariancePrior(0.0095**2, 3.9)},
    "conv": {20e-6: VariancePrior(0.032**2, 1.4), math.inf: VariancePrior(0.016**2, 3.3)},
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
