"""Numbers of a training as text, where they differ from those of kernels."""

from __future__ import annotations

from e2e.results.types import BORDER
from microbench import fmt
from microbench.results.types import Ratio

BOTTLENECKS = {
    "gpu": "GPU", "host": "CPU launch", "data": "data loading", BORDER: "GPU or CPU launch",
}  # fmt: skip
NEAR_PCT = 5.0  # ratios this near to 1 have another digit, or are in per cent
_LARGE = 1e8  # of a deviation: beyond it all digits say less than an exponent


def spread(pair: tuple[float, float] | None, several: bool, scale: float = 1.0) -> str:
    """Such as "92.1 ±0.3": mean and deviation times `scale`; the deviation if `several`.

    "" if unknown.
    """
    if pair is None:
        return ""
    mean, deviation = (scale * value for value in pair)
    text = fmt.number(mean)
    if not several:
        return text
    decimals = len(text.partition(".")[2])
    same = "e" not in text and deviation < _LARGE
    return f"{text} ±{f'{deviation:.{decimals}f}' if same else fmt.number(deviation)}"


def bottleneck(limit: str | None) -> str:
    """The name of a run file's value: "GPU" for "gpu"; "" if unknown."""
    return BOTTLENECKS.get(limit, limit) if limit else ""


def ratio(value: Ratio) -> str:
    """As `fmt.ratio`, "~1 ±0.02" when no difference was measured; else as `interval`."""
    return fmt.ratio(value) if value.ruined_pct or value.no_difference else interval(value)


def interval(value: Ratio) -> str:
    """As `fmt.interval`; with a third decimal near 1: "0.995 ±0.004"; the ends where the half would
    reach 1, though the interval does not: "1.012 [1.000, 1.030]".
    """
    if value.ci95 is None or abs(value.ratio - 1) >= NEAR_PCT / 100:
        return fmt.interval(value)
    if not value.no_difference and not is_clear(value):
        return f"{value.ratio:.3f} [{value.ci95[0]:.3f}, {value.ci95[1]:.3f}]"
    return fmt.interval(value, 3)


def is_clear(value: Ratio) -> bool:
    """Whether it differs from 1 by more than the longer half of its interval, which is narrow
    enough for a verdict. False without an interval.
    """
    if value.ci95 is None or value.ruined_pct:
        return False
    low, high = value.ci95
    return abs(value.ratio - 1) > max(high - value.ratio, value.ratio - low)


def times(value: Ratio) -> str:
    """Such as "5.80 ±0.02"; "about 5.80" without an interval."""
    return fmt.interval(value) if value.ci95 else f"about {fmt.short_ratio(value)}"
