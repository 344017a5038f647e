"""What a gain is, and the map of where a precision is faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kernels import OPS
from kernels.case import Case
from microbench.break_even import RUINED, gain
from microbench.conditions import Conditions
from microbench.errors import UserError
from microbench.plans import plan_conv
from microbench.report.payoff_map import map_tables, map_verdict
from microbench.requests import PayoffRequest
from microbench.results.types import Measurement, Ratio, Result, Run
from microbench.sweep import Group


def cells() -> list[Group]:
    """Seven widths, two images, two batches."""
    groups = plan_conv(
        Conditions(), "cuda", channels="8..512", image="7,14", batch="8,16", passes="fprop",
        layouts="nhwc", kernel="3", stride="1", padding="same", dilation="1", groups="1",
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


def test_the_map_says_from_which_width_it_is_faster() -> None:
    results: list[Result] = []
    for case in (case for group in cells() for case in group.cases):
        starts = 64 if case.dim("h") == 7 else 256
        gains = {"fp32": 2.0, "tf32": 1.2 if case.dim("c") >= starts else 0.9}
        results.append(result_of(case, gains))
    run = Run((), "now", {"name": "x", "kind": "cuda"}, {}, "payoff", results=tuple(results))
    first, second = map_verdict(run)
    assert first == "fp16 is faster than fp32 from 8 channels up for 4 of 4 image and batch sizes."
    assert "from 64 channels up for 2 of 4" in second
    assert "from 256 channels up for 2" in second
    lines = [line.plain for line in map_tables(run, 100)]
    assert max(map(len, lines)) <= 100
    ruined = [
        replace(r, speedup={"tf32": Ratio(9.0, (1.0, 81.0))})
        if r.case.dim("h") == 7 and r.case.dim("c") == 512 and r.speedup else r
        for r in results
    ]  # fmt: skip
    said = map_verdict(replace(run, results=tuple(ruined)))
    assert "from 256 channels up for 2 of 2 image and batch sizes" in said[1]
    assert said[2].startswith("No verdict on fp16 against tf32")


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
