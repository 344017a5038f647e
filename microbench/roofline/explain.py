"""What bounds a case, with the number that says so.

A pure function of the run: measured ceilings, latency floor, bytes, strides, tiles, clocks, and the
other cases of the run that are the same but for one thing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from microbench.results.types import Result, Run
from microbench.roofline.causes import explain
from microbench.roofline.checks import warnings_for
from microbench.roofline.limits import limits_for, tensor_core


def annotate(run: Run, keys: Collection[str] | None = None) -> Run:
    """The run with efficiencies, Tensor Core proof, bound, reason and warnings in its results.

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
    return replace(explained, warnings=warnings_for(explained, run))
