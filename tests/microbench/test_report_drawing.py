"""Charts as files: every format, the numbers in them, and what happens when there is nothing."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from samples.kernel_runs import case, h200_run, measured, run_of

from microbench.errors import UserError
from microbench.report.drawing import SUFFIXES, check_chart_path, draw
from microbench.report.drawing_lines import drawable, line_chart, line_rows
from microbench.report.payoff_map import payoff_chart
from microbench.results.types import Result


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_renders_without_a_browser(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"chart{suffix}"
    draw(h200_run(), path)
    content = path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if suffix == ".png":
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert 20_000 < len(content) < 2_000_000
    elif suffix == ".svg":
        text = "".join(ElementTree.fromstring(content).itertext())
        assert all(name in text for name in ("fp16", "fp32", "tf32"))
    else:
        text = content.decode()
        assert "<html" in text[:200].lower()
        assert not re.search(r"<script[^>]*\bsrc=", text)
        assert not re.search(r"<link[^>]*\bhref=[\"']?http", text)


def test_points_are_the_numbers_of_the_run() -> None:
    run = h200_run()
    lines = line_rows(run, drawable(run))
    (panel,) = lines.panels.values()
    found = {(p["precision"], p["backend"], p["size"]): p["rate"] for p in panel.points}
    expected = {
        (r.case.precision_name, r.case.backend, r.case.dim("m")): (r.flop_per_s or 0) / 1e12
        for r in run.results
        if r.flop_per_s
    }
    assert found == pytest.approx(expected)
    assert lines.unit == "TFLOP/s"
    assert all(p["low"] < p["rate"] < p["high"] for p in panel.points)
    point, result = panel.points[0], drawable(run)[0]
    assert result.measurement
    assert result.measurement.ci95_s
    fast, slow = result.measurement.ci95_s
    assert point["high"] == pytest.approx(result.flops / fast / 1e12)
    assert point["low"] == pytest.approx(result.flops / slow / 1e12)
    ceilings = {row["text"]: row["rate"] for row in lines.ceilings}
    assert ceilings == pytest.approx({"peak 989: fp16": 989.4, "largest 688: fp16": 688})


def test_a_line_is_broken_where_a_case_failed() -> None:
    run = h200_run()
    failed = [
        replace(r, status="failed", measurement=None) if r.case.key == hole else r
        for hole in [case(1024, "tf32", "cublas").key]
        for r in run.results
    ]
    holed = replace(run, results=tuple(failed))
    (panel,) = line_rows(holed, drawable(holed)).panels.values()
    assert panel.missing == 1
    segments = [p["segment"] for p in panel.points if p["precision"] == "tf32"]
    assert sorted(segments) == ["tf32 cublas 0"] * 2 + ["tf32 cublas 1"] * 3


@pytest.mark.parametrize(
    "results",
    [
        [],
        [Result(case(256, "fp16", "cublas"), "skipped", "no such hardware")],
        [measured(case((64, 128, 256), "fp16", "cublas"), 5)],
    ],
)
def test_nothing_to_draw(results: list[Result], tmp_path: Path) -> None:
    run = run_of(results)
    for kind in ("gemm", "payoff"):
        with pytest.raises(UserError, match="nothing to draw"):
            draw(replace(run, kind=kind), tmp_path / "chart.png")
    with pytest.raises(UserError, match="nothing to draw"):
        payoff_chart(run)
    assert not list(tmp_path.iterdir())


def test_what_is_missing_does_not_crash(tmp_path: Path) -> None:
    lone = measured(case(256, "fp16", "cublas"), 5, half_pct=None)
    assert line_chart(replace(run_of([lone]), ceilings=(), device={})).to_dict()


def test_paths_are_checked_before_measuring(tmp_path: Path) -> None:
    for suffix in (*SUFFIXES, ".SVG"):
        check_chart_path(tmp_path / f"chart{suffix}")
    for name in ("chart.pdf", "chart"):
        with pytest.raises(UserError, match=r"end in \.png, \.svg, \.html"):
            check_chart_path(tmp_path / name)
        with pytest.raises(UserError, match=r"end in \.png"):
            draw(h200_run(), tmp_path / name)
    with pytest.raises(UserError, match="--chart"):
        check_chart_path(tmp_path / "no such folder" / "chart.png")
    with pytest.raises(UserError, match="cannot write the file"):
        draw(run_of([measured(case(256, "fp16", "cublas"), 5)]), tmp_path / "none" / "chart.svg")


@pytest.mark.parametrize("name", ["altair", "vl_convert"])
def test_missing_library(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    for action in (check_chart_path, lambda path: draw(h200_run(), path)):
        with pytest.raises(UserError, match=r"pip install -e '\.\[charts\]'"):
            action(tmp_path / "chart.png")
