"""Searches that measure few cells: the boundary of a payoff map, and the highest rate of `peak`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.kernel_runs import measured, run_of

from kernels import OPS
from kernels.case import Case
from microbench.break_even import RUINED, gain, payoffs
from microbench.break_even_map import Refine
from microbench.conditions import Conditions
from microbench.errors import UserError
from microbench.peak import DIMENSIONS, Climb, peak_of, plan_peak, sides_of
from microbench.plans import plan_conv
from microbench.report.map_table import map_tables, map_verdict
from microbench.requests import PayoffRequest
from microbench.results.types import Measurement, Ratio, Result, Run
from microbench.sweep import Group


def cells() -> list[Group]:
    """Seven widths, two images, two batches."""
    groups = plan_conv(
        Conditions(), "cuda", channels="8..512", image="7,14", batch="8,16", passes="fprop",
        layouts="nhwc", kernel="3", stride=1, padding="same", dilation=1, groups="1",
    )  # fmt: skip
    return [group for group in groups if len(group.cases) > 1]


def result_of(case: Case, gains: Mapping[str, float]) -> Result:
    """A made-up result: fp16 is `gains[baseline]` times faster, known to 1 %."""
    measurement = Measurement((1e-5,), (1,), 1e-5, (1e-5, 1e-5), "events", "cold", "sustained")
    result = Result(case, "ok", measurement=measurement, flops=OPS["conv"].flops(case))
    if case.precision_name != "fp16":
        return result
    ratios = {name: Ratio(r, (0.99 * r, 1.01 * r)) for name, r in gains.items()}
    return replace(result, speedup=ratios, bound="launch")


def mapped(groups: list[Group], truth: Callable[[Case], dict[str, float]]) -> tuple[Run, int]:
    """Follow the schedule to its end; (run, cells measured)."""
    run, count = Run(("payoff",), "now", {"name": "x", "kind": "cuda"}, {}), 0
    schedule = Refine(groups, ["fp16"])
    while (following := schedule.next(run)) is not None:
        group, seconds = following
        assert seconds > 0
        assert not any(run.result(case.key) for case in group.cases)
        run = run.with_results([result_of(case, truth(group.cases[0])) for case in group.cases])
        count += 1
    return run, count


@given(st.lists(st.integers(3, 10), min_size=4, max_size=4))
@settings(max_examples=25)
def test_the_map_finds_every_column_s_boundary_with_fewer_cells_than_the_grid(
    powers: list[int],
) -> None:
    """From 2**power channels on it pays against fp32, from twice as many against tf32."""
    columns = [(image, batch) for image in (7, 14) for batch in (8, 16)]
    starts = {column: 2**power for column, power in zip(columns, powers, strict=True)}

    def truth(case: Case) -> dict[str, float]:
        start = starts[case.dim("h"), case.dim("n")]
        return {"fp32": 2.0 if case.dim("c") >= start else 0.8,
                "tf32": 1.2 if case.dim("c") >= 2 * start else 1.0}  # fmt: skip

    groups = cells()
    run, count = mapped(groups, truth)
    assert count <= len(groups)
    for column in payoffs(run, "fp16"):
        case = column.rows[0][0].case
        start = starts[case.dim("h"), case.dim("n")] * (2 if column.baseline == "tf32" else 1)
        found = [row.case.dim("c") for row, *_ in column.rows[column.start :]]
        assert found[:1] == ([start] if start <= 512 else [])
    assert Refine(groups, ["fp16"]).next(run) is None, "a resumed map measures nothing twice"


def test_a_boundary_takes_fewer_cells_and_the_map_says_it() -> None:
    run, count = mapped(cells(), lambda case: {"fp32": 2.0, "tf32": 0.5 + case.dim("c") / 64})
    assert count < len(cells())
    assert "from 64 channels up for 4 of 4" in " ".join(map_verdict(run))
    lines = [line.plain for line in map_tables(run, 100)]
    assert max(map(len, lines)) <= 100


def test_gain_needs_the_whole_interval() -> None:
    row = result_of(cells()[0].cases[0], {})
    assert gain(row, Ratio(1.5, (1.4, 1.6))) == "faster"
    assert gain(row, Ratio(1.1, (0.9, 1.3))) == "same"
    assert gain(row, Ratio(0.88, (0.755, 0.991))) == "same", "not by 2 %"
    assert gain(row, Ratio(0.5, (0.4, 0.6))) == "slower"
    assert gain(row, Ratio(1.5, None)) == gain(row, None) == "unknown"


def test_an_interval_beyond_30_per_cent_shows_nothing_either_way() -> None:
    row, known = result_of(cells()[0].cases[0], {}), Ratio(4.0, (3.9, 4.1))
    assert gain(row, known) == "faster"
    assert gain(row, Ratio(4.0, (3.0, 5.33))) == gain(row, Ratio(0.25, (0.19, 0.33))) == RUINED
    measured = row.measurement
    assert measured
    own = replace(row, measurement=replace(measured, ci95_s=(1e-9, 2 * measured.median_s)))
    assert gain(own, known) == RUINED, "its own time is as uncertain as that"


def test_the_map_takes_fp32_and_tf32_as_baselines_only() -> None:
    request = PayoffRequest(Conditions(dtype="fp32", vs="fp64"), channels="8", image="7", batch="1")
    with pytest.raises(UserError, match="--vs fp64: the map compares with fp32"):
        request.plan("cuda")


def test_peak_finds_the_only_summit() -> None:
    groups = plan_peak(Conditions(dtype="fp16", vs="none"), "cuda", "1024..16384")
    summit, run, now_s = {"m": 4096, "n": 8192, "k": 2048}, run_of([]), 0.0
    climb = Climb(groups, sides_of("1024..16384"), 1e6, lambda: now_s)
    while (following := climb.next(run)) is not None:
        now_s += 1.0
        assert now_s < 500
        steps = [
            sum(abs(math.log2(case.dim(d) / summit[d])) for d in DIMENSIONS)
            for case in following[0].cases
        ]
        run = run.with_results(
            measured(case, 800 - 20 * far)
            for case, far in zip(following[0].cases, steps, strict=True)
        )
    best = peak_of(run.results)
    assert best
    assert best.case.dims == summit
