"""Explains each result of a run: its bottleneck with the number that shows it, and its warnings.

A pure function of the run: measured peaks, launch latency, bytes, strides, tiles, clocks, and the
other cases of the run that differ in one thing only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from microbench.device.profiler import fewer_operations
from microbench.results.types import Result, Run, Warning
from microbench.roofline.causes import explain
from microbench.roofline.limits import limits_for, tensor_core
from microbench.timing import SUSTAINED
from microbench.timing.stats import half_width_pct


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
    bound, why = explain(result, limits, run)
    explained = replace(
        result,
        efficiency_pct=efficiency,
        ceiling_pct=efficiency.get("datasheet", efficiency.get("measured")),
        tensor_core=tensor_core(result, limits),
        bound=bound,
        why=why,
    )
    found = (check(explained, run) for check in CHECKS)
    return replace(explained, warnings=tuple(warning for warning in found if warning))


# ---------------------------------------------------------------- warnings

CLOCK_DROP = 0.9
WIDE_INTERVAL_PCT = 2.0
OVER_PEAK_PCT = 105.0

Check = Callable[[Result, Run], Warning | None]


def _clock_fell(result: Result, run: Run) -> Warning | None:
    measurement, top = result.measurement, run.device.get("sm_clock_max_mhz")
    if measurement is None or not measurement.sm_clock_mhz or not top:
        return None
    share = measurement.sm_clock_mhz / float(top)
    if share >= CLOCK_DROP or not measurement.throttle:
        return None
    remedy = (
        "none needed: long runs get this clock; --regime burst measures a cool card"
        if measurement.regime == SUSTAINED
        else "let the card cool, then run python -m microbench doctor"
    )
    return Warning(
        f"SM clock {measurement.sm_clock_mhz:.0f} MHz, {100 * (1 - share):.0f} % below its maximum",
        ", ".join(measurement.throttle),
        remedy,
    )


def _wide_interval(result: Result, run: Run) -> Warning | None:
    measurement = result.measurement
    if measurement is None:
        return None
    if measurement.ci95_s is None:
        return Warning(
            "no confidence interval", "the budget allowed only one round", "raise --budget"
        )
    width = half_width_pct(measurement.median_s, measurement.ci95_s)
    if width <= WIDE_INTERVAL_PCT:
        return None
    said = f"95 % confidence interval is ±{width:.1f} %"
    if measurement.processes:
        cause = "the processes differ, or are too few for a narrow interval"
        return Warning(said, cause, "raise --processes")
    cause = (
        "the power limit varies the clock"
        if "power cap" in measurement.throttle
        else "other work on the machine, or too few rounds"
    )
    return Warning(said, cause, "raise --budget")


def _impossible(result: Result, run: Run) -> Warning | None:
    at_clock = result.efficiency_pct.get("at_clock")
    if at_clock is None or at_clock <= OVER_PEAK_PCT or fewer_operations(result.kernels):
        return None
    return Warning(
        f"{at_clock:.0f} % of what the hardware can do at this clock",
        "the clock was misread, or the kernel did not do its work",
        "do not use this number; report it with the run file",
    )


def _zeros(result: Result, run: Run) -> Warning | None:
    if result.case.data != "zeros" or run.device.get("kind") != "cuda":
        return None
    return Warning(
        "the inputs are zeros",
        "zeros switch fewer transistors, so the card draws less power and clocks higher",
        "use --data normal for published numbers",
    )


def _exact_arithmetic(result: Result, run: Run) -> Warning | None:
    case, error = result.case, result.rel_error
    if case.data not in ("normal", "uniform") or error is None:
        return None
    if error >= case.precision.least_error:
        return None
    return Warning(
        f"{case.precision_name} was enabled, but the result has full precision ({error:.0e})",
        "the library chose a kernel without Tensor Cores because it was faster",
        "none needed: a user who enables it gets the same at this size",
    )


CHECKS: Sequence[Check] = (_clock_fell, _wide_interval, _impossible, _zeros, _exact_arithmetic)
