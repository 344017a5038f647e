"""The break-even map: what it measures, and that it finds the boundary a full sweep would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import OPS
from microbench.break_even import gain, payoffs
from microbench.break_even_map import Refine, Search
from microbench.conditions import Conditions
from microbench.plans import plan_conv
from microbench.report.map_table import is_map, map_tables, map_verdict
from microbench.results.types import Measurement, Ratio, Result, Run
from microbench.sweep import Group

PLAIN = dict(
    passes="fprop", layouts="nhwc", kernel="3", stride=1, padding="same", dilation=1, groups="1",
)  # fmt: skip
WIDTHS = [8 * 2**i for i in range(7)]


def cells(image: str = "7,14", batch: str = "8,16") -> list[Group]:
    groups = plan_conv(Conditions(), "cuda", channels="8..512", image=image, batch=batch, **PLAIN)
    return [group for group in groups if len(group.cases) > 1]


def result_of(group: Group, gains: Mapping[str, float]) -> list[Result]:
    """Made-up results: fp16 is `gains[baseline]` times faster, known to 1 %."""
    found: list[Result] = []
    for case in group.cases:
        measurement = Measurement((1e-5,), (1,), 1e-5, (1e-5, 1e-5), "events", "cold", "sustained")
        result = Result(case, "ok", measurement=measurement, flops=OPS["conv"].flops(case))
        if case.precision_name == "fp16":
            ratios = {b: Ratio(r, (0.99 * r, 1.01 * r)) for b, r in gains.items()}
            result = replace(result, speedup=ratios, bound="launch")
        found.append(result)
    return found


def measure(groups: list[Group], truth) -> tuple[Run, int]:
    """Follow the schedule to its end; (run, cells measured)."""
    run = Run(("payoff",), "now", {"name": "x", "kind": "cuda"}, {})
    schedule, count = Refine(groups, ["fp16"]), 0
    while (following := schedule.next(run)) is not None:
        group, seconds = following
        assert seconds > 0
        assert not any(run.result(case.key) for case in group.cases)
        run = run.with_results(result_of(group, truth(group)))
        count += 1
        assert schedule.left_s() >= 0
    return run, count


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))
def test_a_search_finds_every_boundary(boundary: int, guess: int, count: int) -> None:
    boundary = min(boundary, count)
    search, looked = Search(count, guess), 0
    while (step := search.next()) is not None:
        assert 0 <= step < count
        search.learn(step, pays=step >= boundary)
        looked += 1
        assert looked <= count
    assert search.high == boundary


@pytest.mark.parametrize("from_width", [0, 8, 32, 512, 10**9])
def test_the_map_finds_the_boundary_with_fewer_cells_than_the_grid(from_width: int) -> None:
    groups = cells()

    def truth(group: Group) -> dict[str, float]:
        pays = group.cases[0].dim("c") >= from_width
        return {"fp32": 3.0 if pays else 0.7, "tf32": 1.5 if pays else 0.9}

    run, count = measure(groups, truth)
    assert count < len(groups)
    for column in payoffs(run, "fp16"):
        if column.start < len(column.rows):
            assert column.rows[column.start][0].case.dim("c") == max(8, from_width)
        else:
            assert from_width > 512
    said = " ".join(map_verdict(run))
    assert ("no width for 4" in said) == (from_width > 512)
    if 8 <= from_width <= 512:
        assert f"from {from_width} channels up for 4 of 4" in said


def test_each_baseline_and_each_column_has_its_own_boundary() -> None:
    starts = {("7", "8"): 64, ("7", "16"): 32, ("14", "8"): 16, ("14", "16"): 16}

    def truth(group: Group) -> dict[str, float]:
        case = group.cases[0]
        start = starts[str(case.dim("h")), str(case.dim("n"))]
        return {"fp32": 2.0 if case.dim("c") >= start else 0.8,
                "tf32": 1.2 if case.dim("c") >= 2 * start else 1.0}  # fmt: skip

    run, _ = measure(cells(), truth)
    for column in payoffs(run, "fp16"):
        case = column.rows[0][0].case
        start = starts[str(case.dim("h")), str(case.dim("n"))]
        wanted = start if column.baseline == "fp32" else 2 * start
        assert column.rows[column.start][0].case.dim("c") == wanted


def test_a_resumed_map_measures_nothing_twice() -> None:
    groups = cells()
    run, count = measure(groups, lambda _: {"fp32": 2.0, "tf32": 1.5})
    assert count
    assert Refine(groups, ["fp16"]).next(run) is None


def test_the_map_is_drawn_in_a_hundred_columns_and_names_causes() -> None:
    run, _ = measure(cells("7..56", "8..256"), lambda g: {"fp32": 2.0, "tf32": 0.5 + g.cases[0].dim(
        "c") / 64})  # fmt: skip
    assert is_map(run)
    lines = [line.plain for line in map_tables(run, 100)]
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert "fp16 against tf32" in text
    assert "l launch" in text
    assert "2/l" in text


def test_gain_needs_the_whole_interval() -> None:
    assert gain(Ratio(1.5, (1.4, 1.6))) == "faster"
    assert gain(Ratio(1.5, (0.9, 1.6))) == "same"
    assert gain(Ratio(0.5, (0.4, 0.6))) == "slower"
    assert gain(Ratio(1.5, None)) == "unknown"
    assert gain(None) == "unknown"


def test_the_map_takes_fp32_and_tf32_as_baselines_only() -> None:
    from microbench.errors import UserError
    from microbench.requests import PayoffRequest

    request = PayoffRequest(Conditions(dtype="fp32", vs="fp64"), channels="8", image="7", batch="1")
    with pytest.raises(UserError, match="--vs fp64: the map compares with fp32"):
        request.plan("cuda")
