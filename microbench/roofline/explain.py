"""Explains each result of a run: its bottleneck with the number that shows it, and its warnings.

A pure function of the run: measured peaks, launch latency, bytes, strides, tiles, clocks, and the
other cases of the run that differ in one thing only. Of the causes the first that applies counts. A
share of the time must be that large over its whole interval, and a difference between two cases
beyond both intervals; a share of what the SMs can do is at the clock of the case, with which its
time varies. `tests.validation.plants` checks it on cases whose bottleneck is known by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from kernels import OPS
from kernels.case import Case
from kernels.conv import Conv
from kernels.op import SEPARATE, TUNED
from kernels.problem import ALIGNMENT_BYTES
from microbench.device.profiler import fewer_operations, is_conversion
from microbench.results.types import Interval, Measurement, Result, Run, Warning
from microbench.roofline.limits import Limits, limits_for, most_per_sm, tensor_core, waves
from microbench.timing import SUSTAINED
from microbench.timing.stats import excludes_one, half_width_pct

CLOCK_DROP = 0.9
WIDE_INTERVAL_PCT = 2.0
OVER_PEAK_PCT = 105.0


def annotate(run: Run, keys: Collection[str] | None = None) -> Run:
    """The run with efficiencies in per cent, bottleneck, reason and warnings in its results.

    In every result, or in those of the cases with these keys.
    """
    return replace(
        run,
        results=tuple(
            _annotate(result, run) if keys is None or result.case.key in keys else result
            for result in run.results
        ),
    )


def _annotate(result: Result, run: Run) -> Result:
    if result.measurement is None:
        return result
    limits = limits_for(result, run)
    rate = result.flop_per_s
    efficiency = {
        name: 100 * rate / limit
        for name, limit in (
            ("datasheet", limits.datasheet_flop_per_s),
            ("at_clock", limits.clock_flop_per_s),
            ("measured", limits.measured_flop_per_s),
        )
        if limit and rate
    }
    known = OPS[result.case.op].explained and result.case.backend != SEPARATE  # of one kernel
    bound, why = explain(result, limits, run) if known else (None, None)
    explained = replace(
        result,
        efficiency_pct=efficiency,
        ceiling_pct=efficiency.get("datasheet", efficiency.get("measured")),
        tensor_core=tensor_core(result, limits),
        bound=bound,
        why=why,
    )
    return replace(explained, warnings=tuple(warnings_of(explained, result.measurement, run)))


def warnings_of(result: Result, measurement: Measurement, run: Run) -> Iterator[Warning]:
    """What makes its numbers unreliable: what is seen, its cause, what to do."""
    case, clock, on_gpu = result.case, measurement.sm_clock_mhz, run.device.get("kind") == "cuda"
    top, capped = run.device.get("sm_clock_max_mhz"), "power cap" in measurement.throttle
    if top and clock and clock < CLOCK_DROP * float(top) and measurement.throttle:
        drop_pct = 100 * (1 - clock / float(top))
        yield Warning(
            f"SM clock {clock:.0f} MHz, {drop_pct:.0f} % below its maximum",
            ", ".join(measurement.throttle),
            "none needed: long runs get this clock; --regime burst measures a cool card"
            if measurement.regime == SUSTAINED
            else "let the card cool, then run halfway doctor",
        )
    interval = measurement.ci95_s
    width_pct = half_width_pct(measurement.median_s, interval) if interval else None
    if width_pct is None:
        yield Warning(
            "no confidence interval", "the budget allowed only one round", "raise --budget"
        )
    elif width_pct > WIDE_INTERVAL_PCT:
        several = "the processes differ, or are too few for a narrow interval"
        varying = "the power limit varies the clock"
        noisy = "other work on the machine, or too few rounds"
        yield Warning(
            f"95 % confidence interval is ±{width_pct:.1f} %",
            several if measurement.processes else varying if capped else noisy,
            "raise --processes" if measurement.processes else "raise --budget",
        )
    at_clock = result.efficiency_pct.get("at_clock", 0.0)
    if at_clock > OVER_PEAK_PCT and not fewer_operations(result.kernels):
        yield Warning(
            f"{at_clock:.0f} % of what the hardware can do at this clock",
            "the clock was misread, or the kernel did not do its work",
            "do not use this number; report it with the run file",
        )
    if case.data == "zeros" and on_gpu:
        yield Warning(
            "the inputs are zeros",
            "zeros switch fewer transistors, so the card draws less power and clocks higher",
            "use --data normal for published numbers",
        )
    error = result.rel_error
    random = case.data in ("normal", "uniform")
    tf32 = case.precision.multiply == "tf32"
    if tf32 and random and error is not None and error < case.precision.least_error:
        yield Warning(
            f"{case.precision_name} was enabled, but the result has full precision ({error:.0e})",
            case.problem.may_run_exactly(case.precision, case.backend) or "another arithmetic ran",
            "none needed: a user who enables it gets the same at this size",
        )


# ---------------------------------------------------------------- the bottlenecks


FLOOR_SHARE = 0.5  # of the time: from here on launch latency is the bottleneck
# A launch may run two kernels (split K, a reduction) and take twice the latency. Where arithmetic
# and bytes together are under BUSY_SHARE of the time, a lower share is enough.
IDLE_FLOOR_SHARE = 0.4
BUSY_SHARE = 0.1
MEMORY_SHARE = 0.5
NEAR_ROOF = 0.85
ABOVE_ROOF = 1.05
HELD_ROOF = 0.8  # where power or heat hold the clock: below this, they are not the only cause
UNALIGNED_RATE = 0.4  # of the roof: below this, rows off 16 bytes are the likely cause
# Where the padded twin was measured, it decides, whatever the rate: the strides are the cause if it
# is this many times faster with no less to do.
PADDING_GAINS = 1.1
NEAR_SIZE = 0.1  # of the logarithm of the operations: sizes that are compared by their rates
CONVERSION_SHARE = 0.2  # of the kernels' time
FULL_WAVES = 0.85
CLOCK_HELD = 0.97  # of the maximum clock: below this, and with a throttle reason, it is power
OF_A_KERNEL = ("alignment", "waves")  # another kernel may not have these bottlenecks
OURS_GAINS = 1.05  # times faster: from here on our own kernel shows that the card can do more
WIDE_PCT = 10.0  # of an interval: from here on shares of the time are said to be as uncertain
SLOW_HARDWARE = 0.2  # of the fp32 peak: a low precision this slow has no hardware here

Cause = tuple[str, str] | None  # bottleneck, reason


def explain(result: Result, limits: Limits, run: Run) -> tuple[str, str]:
    """(bottleneck, reason) of a measured result: the first cause that the numbers show.

    `run` provides the device, the ceilings' cases and the cases to compare with. The bottleneck is
    "no hardware", "launch", "layout", "memory", "alignment", "power", "compute", "waves" or
    "mixed".
    """
    for cause in CAUSES:
        if bottleneck := cause(result, limits, run):
            name, why = bottleneck
            return name, why + (_ours(result, run) if name in OF_A_KERNEL else "")
    return "mixed", _shares(result, limits, run)


def _interval(result: Result) -> Interval:
    """The ends of its time; the median where there is no interval."""
    median_s = result.median_s or 0.0
    return (result.measurement and result.measurement.ci95_s) or (median_s, median_s)


def _gain(result: Result, other: Result, *, rates: bool = False) -> tuple[float, Interval]:
    """How many times faster another case is, or how many times its rate, by the medians and at most
    and at least by both intervals.
    """
    (low, high), (low_other, high_other) = _interval(result), _interval(other)
    times = other.flops / result.flops if rates else 1.0
    gain = times * (result.median_s or 0.0) / (other.median_s or 1.0)
    return gain, (times * low / high_other, times * high / low_other)


def _same_but(result: Result, case: Case, run: Run) -> Result | None:
    """The measured result of a case that differs from this one in one thing."""
    found = run.by_key.get(case.key) if case.key != result.case.key else None
    return found if found and found.measurement else None


def _ours(result: Result, run: Run) -> str:
    """What our own kernel reaches on that very shape: is the library the limit, or the card?"""
    ours = _same_but(result, replace(result.case, backend=TUNED), run)
    if result.case.backend not in OPS[result.case.op].libraries or not ours:
        return ""
    gain, interval = _gain(result, ours)
    if interval[1] < OURS_GAINS:
        return "; our own kernel is no faster on this shape"
    if gain < OURS_GAINS or not excludes_one(interval):
        return ""
    return (
        f"; our own kernel is {gain:.2f} times faster on this shape: the library's kernel is the "
        "limit, not the card"
    )


def _no_hardware(result: Result, limits: Limits, run: Run) -> Cause:
    own, fp32 = limits.measured_flop_per_s, limits.fp32_flop_per_s
    case = result.case
    if not own or not fp32 or case.precision.bytes_per_element >= 4 or own > SLOW_HARDWARE * fp32:
        return None
    return "no hardware", (
        f"this device has no fast {case.precision_name} arithmetic: at most "
        f"{own / 1e9:.3g} GFLOP/s, against {fp32 / 1e9:.3g} in fp32"
    )


def _launch(result: Result, limits: Limits, run: Run) -> Cause:
    time_s, longest_s = result.median_s, _interval(result)[1]
    if not time_s or not limits.floor_s:
        return None
    busy_share = ((limits.compute_s or time_s) + (limits.memory_s or time_s)) / time_s
    share, idle = limits.floor_s / longest_s, busy_share < BUSY_SHARE
    if share < (IDLE_FLOOR_SHARE if idle else FLOOR_SHARE):
        return None
    also = f"; arithmetic and memory traffic need {100 * busy_share:.0f} %"
    return "launch", (
        f"launch latency is {_us(min(limits.floor_s, time_s))} of {_us(time_s)} "
        f"(a 64x64x64 GEMM takes as long){'' if share >= FLOOR_SHARE else also}"
    )


def _layout(result: Result, limits: Limits, run: Run) -> Cause:
    share = conversion_share(result)
    if share < CONVERSION_SHARE or not result.median_s:
        return None
    compared = ""
    problem = result.case.problem
    other = replace(problem, layout="nhwc") if isinstance(problem, Conv) else problem
    if twin := _same_but(result, replace(result.case, problem=other), run):
        gain, interval = _gain(result, twin)
        times = f"{gain:.1f} times faster" if gain >= 1 else f"{1 / gain:.1f} times slower"
        compared = f"; {times} in nhwc (measured)" if excludes_one(interval) else ""
    return "layout", (
        f"{100 * share:.0f} % of the kernel time converts {problem.layout} to the layout "
        f"that Tensor Cores need, and back{compared}"
    )


def conversion_share(result: Result) -> float:
    """Fraction of a profiled launch's kernel time that only changes the layout of tensors."""
    total = sum(result.kernels_s)
    pairs = zip(result.kernels, result.kernels_s, strict=False)
    return sum(t for name, t in pairs if is_conversion(name)) / total if total else 0.0


def _memory(result: Result, limits: Limits, run: Run) -> Cause:
    time_s, memory_s = result.median_s, limits.memory_s
    if not time_s or not memory_s or memory_s / _interval(result)[1] < MEMORY_SHARE:
        return None
    if limits.compute_s and limits.compute_s > memory_s:
        return None
    intensity = result.flops / result.min_bytes
    decimals = 1 if intensity < 0.95 else 0
    return "memory", (
        f"{intensity:.{decimals}f} FLOP/byte: moving {result.min_bytes / 1e6:.1f} MB takes "
        + (
            f"at least {_us(memory_s)} of {_us(time_s)}"
            if memory_s <= time_s
            else f"{_us(memory_s)} as fast as a copy; it took {_us(time_s)}"
        )
    )


def _alignment(result: Result, limits: Limits, run: Run) -> Cause:
    case = result.case
    off, share = case.problem.misaligned(case.precision), _share(result, limits)
    if run.device.get("kind") != "cuda" or not off or share is None:
        return None
    size, stride = off
    rows = f"{size} gives rows of {stride} bytes, not a multiple of {ALIGNMENT_BYTES}"
    padded = case.aligned
    if twin := _same_but(result, padded, run):
        gain, interval = _gain(result, twin)
        if gain < PADDING_GAINS or not excludes_one(interval):
            return None
        return "alignment", (
            f"{rows}; padded to {padded.problem.size} it is {gain:.1f} times faster (measured)"
        )
    if share > UNALIGNED_RATE:
        return None
    compared = _aligned_neighbour(result, run)
    return "alignment", f"{rows}: {100 * share:.0f} % of {limits.roof}{compared}"


def _aligned_neighbour(result: Result, run: Run) -> str:
    """What the nearest aligned size of the same variant reaches, when the run has one."""
    case = result.case
    near = [
        (abs(math.log(other.flops / result.flops)), other)
        for other in run.results
        if case.op == "gemm"
        and replace(other.case, problem=case.problem) == case
        and other.case.problem.layout == case.problem.layout
        and other.flop_per_s
        and not other.case.problem.misaligned(other.case.precision)
    ]
    distance, other = min(near, key=lambda pair: pair[0], default=(math.inf, result))
    gain, interval = _gain(result, other, rates=True)
    if distance >= NEAR_SIZE or not excludes_one(interval):
        return ""
    return f"; {other.case.problem.size} runs at {gain:.1f} times the rate (measured)"


def _roof(result: Result, limits: Limits, run: Run) -> Cause:
    share, held = _share(result, limits), _held(result, run)
    if share is None:
        return None
    reached = f"{100 * share:.0f} % of {limits.roof}"
    if trick := fewer_operations(result.kernels):
        if share <= ABOVE_ROOF:
            return None  # how much was done is not known
        return "compute", f"{reached}, using {trick}, which needs fewer operations than are counted"
    if held and share >= HELD_ROOF:
        return "power", f"{reached}; {held}"
    return ("compute", reached) if share >= NEAR_ROOF else None


def _held(result: Result, run: Run) -> str | None:
    """A sentence about the clock where power or heat hold it; None where they do not."""
    measurement, top = result.measurement, run.device.get("sm_clock_max_mhz")
    if not measurement or not top:
        return None
    clock, limit = measurement.sm_clock_mhz, run.device.get("power_limit_w")
    held = [reason for reason in measurement.throttle if reason in ("power cap", "thermal")]
    if not clock or not held or clock >= CLOCK_HELD * float(top):
        return None
    watts = f" of {float(limit):.0f} W" if limit and held[0] == "power cap" else ""
    return f"the {held[0]}{watts} limits the clock to {clock:.0f} of {float(top):.0f} MHz"


def _waves(result: Result, limits: Limits, run: Run) -> Cause:
    shape, share = waves(result, run), _share(result, limits)
    if shape is None or share is None or shape.efficiency >= FULL_WAVES:
        return None
    if shape.tiles >= shape.sm_count and most_per_sm(result, run) > 1:
        return None  # several such tiles may share an SM: the waves cannot be counted
    assert result.tile
    tile, several = "x".join(map(str, result.tile[:2])), "s" if shape.waves > 1 else ""
    return "waves", (
        f"{shape.tiles} tiles of {tile} on {shape.sm_count} SMs: {shape.waves} wave{several}, "
        f"{100 * shape.efficiency:.0f} % full; {100 * share:.0f} % of {limits.roof}"
    )


CAUSES: tuple[Callable[[Result, Limits, Run], Cause], ...] = (
    _no_hardware, _launch, _layout, _memory, _alignment, _roof, _waves
)  # fmt: skip


def _shares(result: Result, limits: Limits, run: Run) -> str:
    """What each of the peaks takes, where none is the bottleneck."""
    share, time_s = _share(result, limits), result.median_s
    assert time_s is not None
    parts: list[str] = []
    if trick := fewer_operations(result.kernels):
        parts.append(f"{trick} needs fewer operations than are counted")
    elif share:
        parts.append(f"{100 * share:.0f} % of {limits.roof}")
    elif limits.measured_flop_per_s:
        parts.append("no large GEMM was faster")
    if limits.floor_s:
        parts.append(f"{100 * limits.floor_s / time_s:.0f} % of the time is launch latency")
    if limits.memory_s:
        parts.append(f"memory traffic needs at least {100 * limits.memory_s / time_s:.0f} %")
    elif limits.in_l2:
        parts.append("its data stay in the L2, whose bandwidth was not measured")
    if held := _held(result, run):
        parts.append(held)
    elif (half_pct := half_width_pct(time_s, _interval(result))) > WIDE_PCT:
        parts.append(f"its time is known to ±{half_pct:.0f} % only")
    if not parts:
        return "no measured peaks to compare with"
    return f"no single bottleneck: {', '.join(parts)}"


def _share(result: Result, limits: Limits) -> float | None:
    if not limits.roof_flop_per_s or not result.flop_per_s:
        return None
    return result.flop_per_s / limits.roof_flop_per_s


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"
