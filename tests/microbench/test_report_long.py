"""Long runs have a summary on the screen; a network's layers have a chart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pytest
from samples.kernel_runs import shown

from microbench.break_even import gain
from microbench.report.drawing import chart_of
from microbench.report.drawing_rows import layer_rows
from microbench.report.layers_table import Pass, layers_of, total_ratio
from microbench.report.summary_table import backends_table
from microbench.results.runfile import read_run
from microbench.results.types import Ratio, Run
from microbench.verdict import _below

H200 = Path(__file__).parents[2] / "results" / "nvidia-h200"


def published(name: str) -> Run:
    return read_run(H200 / f"{name}.json")


def test_a_long_run_is_a_summary_until_all_is_asked_for() -> None:
    for name, count, most in (("conv-fine", "432 sizes", 100), ("gemm-all", "280 results", 130)):
        run = published(name)
        brief = shown(run)
        assert len(brief.splitlines()) < most
        assert count in brief
        assert len(shown(run, details=True).splitlines()) > len(run.results) / 3
        assert count not in shown(run, details=True)


def test_the_summary_sets_back_ends_beside_the_library_in_each_precision() -> None:
    run = published("gemm-all")
    _, table = shown(run).split("Times faster than cublas")
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()[1:11]}
    ratios = [r.vs_backend["cublas"].ratio for r in run.results
              if (r.case.precision_name, r.case.backend) == ("int8", "cupy")]  # fmt: skip
    assert rows["int8"][1] == f"{geometric_mean(ratios):.2f}"
    assert rows["fp8-e4m3"][1] == "-", "cupy has none"
    assert all(len(cells) == 2 for cells in rows.values()), "triton has a table of its own"
    alone = replace(run, results=tuple(r for r in run.results if r.case.backend == "cublas"))
    assert backends_table(alone).rows == []


def test_a_total_s_interval_comes_from_its_parts() -> None:
    assert total_ratio([]) is None
    one = Pass(1.0, 2.0, 0.0, (0.1, 0.2))
    alone = total_ratio([one])
    assert alone
    assert alone.ratio == 2.0
    assert alone.ci95 == pytest.approx((1.8, 2.4))
    four = total_ratio([one] * 4)
    assert four
    assert four.ci95 == pytest.approx((1.9, 2.2)), "independent errors"
    unknown = total_ratio([one, Pass(1.0, 2.0)])
    assert unknown
    assert unknown.ci95 is None


def test_the_chart_has_a_bar_for_every_layer_longest_first() -> None:
    run = published("layers-resnet50")
    assert run.network
    rows = layer_rows(layers_of(run, run.network), "fp16", "tf32")
    assert len({row["layer"] for row in rows}) == len(rows) == 24
    assert [row["ms"] for row in rows] == sorted((row["ms"] for row in rows), reverse=True)
    chart = pytest.importorskip("altair") and chart_of(run).to_dict()
    assert chart["width"] <= 900
    assert chart["height"] <= 900


def test_an_interval_near_one_is_written_out_not_called_no_difference() -> None:
    below = Ratio(0.88, (0.755, 0.991))
    assert gain(below) == "same", "not by 2 %"
    assert _below(below, "same") == "1.14 times slower, 95 % interval [0.755, 0.991]"
    assert _below(Ratio(0.99, (0.9, 1.1)), "same") == "no difference seen"
