"""Formats numbers and cases for reports. SI units are scaled here only."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kernels.case import Case
from kernels.conv import Conv
from microbench.results.types import Interval, Ratio, Timed
from microbench.streams import clean
from microbench.timing.stats import half_width_pct

NO_DIFFERENCE = "~1"
UNCERTAIN = "?"  # after a figure whose interval is too wide for a verdict
WIDE_END_PCT = 10.0  # half of an interval: beyond it a range shows it
MAX_SKEW = 1.5  # longer side of an interval over the shorter one: beyond it both ends are written
_MOST_ROUNDED = 9999  # of a number rounded up in digits
_LONGEST = 1e8  # of a number written out in digits; larger ones have an exponent
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def number(value: float) -> str:
    """Three significant digits, at most seven characters."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0 or 0.01 <= size < 99_999.5:
        decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
        return f"{value:.{decimals}f}"
    return f"{value:.1e}"


def duration(seconds: float) -> str:
    """Seconds as "6.05 us", "1.66 ms"."""
    for unit, name in _TIME_UNITS:
        if seconds >= 0.9995 * unit:
            return f"{number(seconds / unit)} {name}"
    return f"{number(seconds / 1e-9)} ns"


def as_ms(ms: float) -> str:
    """Milliseconds as "2,302", "42.1", "0.31"."""
    if abs(ms) >= 999.5:
        return f"{ms:,.0f}"
    return f"{ms:.1f}" if abs(ms) >= 9.95 else f"{ms:.2f}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, "42.6", without the unit; "" for None."""
    return "" if seconds is None else number(1e3 * seconds)


def hundredths(value: float) -> str:
    """As `number`, to a hundredth at most."""
    return f"{value:.2f}" if 0.01 <= value < 9.995 else number(value)


def rough_duration(seconds: float) -> str:
    """Seconds left to wait, as "45 s" or, from 120 s, "3 min"."""
    whole = max(0, math.ceil(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{round(whole / 60)} min"


@dataclass(frozen=True)
class Unit:
    """The unit that rates are shown in: 1 of it is `per_s` operations per second."""

    name: str
    per_s: float

    def text(self, rate_per_s: float) -> str:
        """The rate in this unit, without its name."""
        return number(rate_per_s / self.per_s)


def rate_unit(rates_per_s: Iterable[float], *, integers: bool) -> Unit:
    """TFLOP/s, or GFLOP/s if all rates are below 1e12; OP/s where integers are multiplied."""
    operation = "OP/s" if integers else "FLOP/s"
    small = 0 < max(rates_per_s, default=0) < 1e12
    return Unit(f"G{operation}", 1e9) if small else Unit(f"T{operation}", 1e12)


def throughput(per_s: float) -> str:
    """Images per second as "812", "6,015": at least three digits, and all before the point."""
    return f"{per_s:,.0f}" if 999.5 <= per_s < _LONGEST else number(per_s)


def gigabytes(size_bytes: float) -> str:
    """Bytes as gigabytes (1e9), "21.4", without the unit."""
    return number(size_bytes / 1e9)


def bandwidth(byte_per_s: float) -> str:
    """Bytes/s as "4.30 TB/s", "12.0 GB/s"."""
    if byte_per_s >= 1e12:
        return f"{number(byte_per_s / 1e12)} TB/s"
    return f"{number(byte_per_s / 1e9)} GB/s"


def half_interval(median_s: float, ci95_s: Interval | None) -> str:
    """Half of the interval in per cent of the median, as "1.2%"; "" where it is unknown."""
    if ci95_s is None or median_s <= 0:
        return ""
    pct = half_width_pct(median_s, ci95_s)
    return f"{pct:.1f}%" if pct < 9.95 else f"{min(pct, 999):.0f}%"


def too_wide(half_pct: float) -> str:
    """ "intervals of up to ±88.7 % are too wide"."""
    most = f"of up to ±{number(half_pct)} %" if half_pct < 999 else "beyond ±999 %"
    return f"intervals {most} are too wide"


def half_of(timed: Timed) -> str:
    """As `half_interval`, of what was timed."""
    return half_interval(timed.median_s, timed.ci95_s)


def whole(value: float) -> str:
    """Without decimals, as "1755"; "" for 0."""
    return f"{value:.0f}" if value else ""


def per_cent(value: float) -> str:
    """Per cent as "67%", "0.4%"."""
    return f"{value:.0f}%" if value >= 9.95 else f"{value:.1f}%"


def signed_pct(value: float) -> str:
    """Per cent with a sign: "+1.9 %", "-0.4 %"."""
    signed = f"{value:+.1f}" if abs(value) < 999.5 else f"{'+' * (value > 0)}{number(value)}"
    return f"{signed} %"


def error(value: float) -> str:
    """A relative error as "2.1e-04", "exact" for 0."""
    return "exact" if value == 0 else f"{value:.1e}"


def ratio(value: Ratio) -> str:
    """ "12.9 ±0.1", "~1 ±0.02" if the interval contains 1, "12.9 ±?" if there is no interval.

    "5.28 [1.73, 1330]?" where it is too wide for a verdict.
    """
    if value.ruined_pct:
        return interval(value) + UNCERTAIN
    if value.no_difference:
        return f"{NO_DIFFERENCE} {ends(1.0, value.ci95, 2)}"
    return interval(value)


def interval(value: Ratio, decimals: int | None = None) -> str:
    """ "12.9 ±0.1", or "0.88 [0.75, 1.00]" where the interval is skewed, also where it contains 1.

    "12.9 ±?" if there is no interval. Without `decimals`, the ratio has three digits.
    """
    if decimals is None:
        decimals = _decimals(value.ratio)
    return f"{_fixed(value.ratio, decimals)} {ends(value.ratio, value.ci95, decimals)}"


def ends(centre: float, ci95: Interval | None, decimals: int) -> str:
    """How an interval is written beside its centre: "±0.1", "[0.75, 1.00]" or "±?" for None.

    The one rule for kernels and trainings: an interval is skewed where its longer side is over
    MAX_SKEW times the shorter one, and by more than one unit of the last digit. Halves are
    rounded up and ends outwards, so that the text never claims more than was measured.
    """
    if ci95 is None:
        return "±?"
    low, high = ci95
    unit = 10.0**-decimals
    shorter, longer = sorted((max(0.0, high - centre), max(0.0, centre - low)))
    if longer <= MAX_SKEW * shorter or longer - shorter <= 1.001 * unit or longer > _MOST_ROUNDED:
        return f"±{_rounded_up(longer, decimals)}"
    down = math.floor(low / unit + 1e-9) * unit
    return f"[{_fixed(down, decimals)}, {_rounded_up(high, decimals)}]"


def short_ratio(value: Ratio) -> str:
    """The ratio without its interval; "~1" if no difference was seen, "5.28?" if too uncertain."""
    if value.ruined_pct:
        return times(value.ratio) + UNCERTAIN
    return NO_DIFFERENCE if value.no_difference else times(value.ratio)


def times(value: float) -> str:
    """A ratio whose interval stands elsewhere, or of several: "1.90", "13.0"."""
    return _fixed(value, _decimals(value))


def span(values: Collection[float]) -> str:
    """The least and the largest of ratios: "1.41 to 1.90"."""
    return " to ".join(dict.fromkeys(map(times, (min(values), max(values)))))


def ratios(values: Collection[Ratio]) -> str:
    """As `span`, an end with its interval where that is beyond WIDE_END_PCT: "1.5 to 1.9 ±0.3"."""
    ends = (of(values, key=lambda value: value.ratio) for of in (min, max))
    texts = (
        times(end.ratio)
        if end.ci95 and half_width_pct(end.ratio, end.ci95) <= WIDE_END_PCT
        else interval(end)
        for end in ends
    )
    return " to ".join(dict.fromkeys(texts))


def _decimals(value: float) -> int:
    return 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.0995 else 3


def _fixed(value: float, decimals: int) -> str:
    if 0 < value < 0.00095 or value > 99_999:
        return f"{value:.0e}"
    return f"{value:.{decimals}f}"


def _rounded_up(value: float, decimals: int) -> str:
    if value > _MOST_ROUNDED:
        return f"{value:.0e}"
    unit = 10**decimals
    return f"{max(1, math.ceil(value * unit - 1e-9)) / unit:.{decimals}f}"


def size(case: Case) -> str:
    """ "4096" for a cubic GEMM, "64x256" for channels in and out."""
    return clean(case.problem.size)


def problem(case: Case) -> str:
    """The problem without precision and back end: "8192", "fprop nhwc 3x3/2 64 @28 b32"."""
    described = case.problem
    if not isinstance(described, Conv):
        return clean(described.title)
    conv = described.shape
    taps = f"{conv.r}x{conv.s}" + f"/{conv.stride}" * (conv.stride != 1)
    more = [f"{letter}{value}" for letter, value in (("d", conv.dilation), ("g", conv.groups))
            if value != 1]  # fmt: skip
    image = f"@{described.setting['image']}"
    parts = [described.which, described.layout, taps, size(case), image, f"b{conv.n}", *more]
    return clean(" ".join(parts))


def name(case: Case) -> str:
    """A case in a sentence: "fp16 8192 cublas"."""
    return clean(f"{case.precision_name} {problem(case)} {case.backend}")


def count(number_of: int, noun: str, plural: str = "") -> str:
    """ "1 size", "3 sizes"."""
    return f"{number_of} {noun if number_of == 1 else plural or noun + 's'}"


def listed(names: list[str], most: int = 3) -> str:
    """The first `most` names, and the number of the others."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def joined(parts: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
