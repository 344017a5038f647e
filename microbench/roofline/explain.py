"""Explains each result of a run: its bottleneck with the number that shows it, and its warnings.

A pure function of the run: measured peaks, launch latency, bytes, strides, tiles, clocks, and the
other cases of the run that differ in one thing only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from microbench.device.profiler import fewer_operations
from microbench.results.types import Measurement, Result, Run, Warning
from microbench.roofline.causes import explain
from microbench.roofline.limits import limits_for, tensor_core
from microbench.timing import SUSTAINED
from microbench.timing.stats import half_width_pct

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
    bound, why = explain(result, limits, run)
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
            else "let the card cool, then run python -m microbench doctor",
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
    if random and error is not None and error < case.precision.least_error:
        yield Warning(
            f"{case.precision_name} was enabled, but the result has full precision ({error:.0e})",
            "the library chose a kernel without Tensor Cores because it was faster",
            "none needed: a user who enables it gets the same at this size",
        )
