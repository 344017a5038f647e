"""Progress in a file and on a terminal, comparisons, charts, and reports that fit any width."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from samples.kernel_runs import case, h200_run, measured, run_of

from microbench import fmt
from microbench.errors import UserError
from microbench.report.charts import SUFFIXES, check_chart_path, write_chart
from microbench.report.comparison import report
from microbench.report.live import LiveProgress
from microbench.report.parts import Column, Part, Row, value
from microbench.report.report import report_of
from microbench.report.screen import make_console, print_part, print_report
from microbench.report.writers import to_markdown
from microbench.results.comparison import RUINED, CompareRow, Comparison
from microbench.results.types import Ratio, Result, Run
from microbench.sweep import Group

SHEET = Path(__file__).parents[1] / "samples" / "comparisons.txt"
ARMS = (("fp32", "cublas"), ("fp16", "cublas"), ("fp16", "triton"))
GROUPS = [Group(tuple(case(n, *arm) for arm in ARMS)) for n in (256, 512, 1024)]


def results(group: Group) -> list[Result]:
    return [measured(what, 10.0) for what in group.cases]


def followed(console: dict[str, Any], **how: bool) -> str:
    """What is written of three groups."""
    file = io.StringIO()
    with LiveProgress(Console(file=file, width=100, **console), GROUPS, **how) as progress:
        progress.stage("copy", "measuring memory bandwidth")
        for i, group in enumerate(GROUPS):
            progress.stage(group.cases[-1].key, "checking")
            progress.stage(group.cases[0].key, "timing, round 3")
            progress.done(group, results(group), 10.0 - i, 1.0)
    return file.getvalue()


def test_a_file_gets_plain_lines_and_a_terminal_one_that_is_taken_away() -> None:
    text = followed({})
    assert "256: fp32 10.0, fp16 10.0, fp16 triton 10.0 TFLOP/s" in text.splitlines()[0]
    assert re.findall(r"^\[(.*?)\]", text, re.M) == ["1/3", "2/3", "3/3"]
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text
    text = followed({"force_terminal": True})
    assert "\x1b[?25h" in text.split("TFLOP/s")[-1]  # the cursor is back
    assert "[3/3] 1024" in text
    dumb = {"force_terminal": True, "no_color": True, "_environ": {"TERM": "dumb"}}
    assert "\x1b[?25" not in followed(dumb)
    assert followed({"force_terminal": True}, quiet=True) == ""
    file = io.StringIO()
    progress = LiveProgress(Console(file=file, force_terminal=True), GROUPS)
    with pytest.raises(KeyboardInterrupt), progress:
        raise KeyboardInterrupt
    assert file.getvalue().rstrip().rfind("\x1b[?25h") > file.getvalue().rfind("\x1b[?25l")


def test_time_left_counts_what_each_group_costs_beside_sampling() -> None:
    now_s = 0.0
    progress = LiveProgress(Console(file=io.StringIO()), GROUPS, clock=lambda: now_s)
    assert progress.left_s() is None
    now_s = 60.0  # learning the ceilings: no group's cost
    for group, left_s in zip(GROUPS[:2], (20.0, 10.0), strict=True):
        progress.stage(group.cases[0].key, "preparing")
        now_s += 13.0  # 10 s of sampling, 3 s of the rest
        progress.done(group, results(group), left_s, 10.0)
    assert progress.left_s() == 13.0
    now_s += 5.0
    assert progress.left_s() == 8.0
    now_s += 500.0
    assert progress.left_s() == 0.0
    # What the first group alone waits for is not what the others cost.
    now_s, groups = 0.0, (GROUPS * 5)[:9]
    progress = LiveProgress(Console(file=io.StringIO()), groups, clock=lambda: now_s)
    for number, group in enumerate(groups):
        progress.stage(group.cases[0].key, "preparing")
        now_s += 2.5 if number else 8.0
        progress.done(group, results(group), 1.5 * (8 - number), 1.5)
        if 1 <= number < 8:
            assert progress.left_s() == pytest.approx(2.5 * (8 - number))
    assert progress.left_s() is None, "the ceilings go on"
    # The line says how long from the first result on.
    now_s, file = 0.0, io.StringIO()
    progress = LiveProgress(Console(file=file, width=100), GROUPS, clock=lambda: now_s)
    for group in GROUPS:
        progress.stage(group.cases[0].key, "preparing")
        now_s += 5.0
        progress.done(group, results(group), 20.0 if group is GROUPS[0] else 0.0, 5.0)
    first, second, last = file.getvalue().splitlines()
    assert first.endswith("TFLOP/s; about 20 s left")
    assert second.endswith("TFLOP/s; longer than expected")
    assert last.endswith("TFLOP/s")


# ---------------------------------------------------------------- report comparison


REASONS = {
    "faster": "interval is beyond it", "slower": "interval is beyond it",
    "same": "interval is within 3 %", "cannot tell": "interval reaches beyond 3 %",
}  # fmt: skip


def row(n: int, verdict: str, ratio: float, note: str = "") -> CompareRow:
    what = case(n, "fp16", "cublas")
    spread = (ratio * 0.99, ratio * 1.01)
    return CompareRow(
        what.key, what, verdict, ratio, spread, ratio * 1e-3, 1e-3, note, REASONS[verdict], 3.0
    )


def shown(*comparisons: Comparison, width: int = 100, details: bool = False) -> str:
    file = io.StringIO()
    found = {f"run {i}": comparison for i, comparison in enumerate(comparisons)}
    console = Console(file=file, width=width, highlight=False)
    print_report(report(found, "a.json"), console, verbose=details)
    return file.getvalue()


SAME = [row(n, "same", 1 + n / 1e5) for n in range(64, 640, 64)]
CLOCKS = "the clocks differ (1410 and 1980 MHz): 1.01x in cycles " * 3
COMPARED = Comparison(
    ["driver: 580 | 590"],
    [*SAME, row(4096, "faster", 1.2), row(8192, "slower", 0.8), row(1, "cannot tell", 1.4, CLOCKS)],
    [case(64, "tf32", "cublas")],
    [case(size, "fp16", "cupy") for size in range(1, 10)],
)


SEVERAL = (
    Comparison(["driver: 580 | 590"], [*SAME, row(1, "slower", 0.8)], [], []),
    Comparison([], [row(2, "cannot tell", 1.1), row(3, "faster", 1.5)], [], []),
)


def comparisons() -> Iterator[str]:
    """What is said of made-up comparisons, on the screen and as Markdown."""
    what = case(64, "int8", "triton")
    blank = CompareRow(what.key, what, "same", None, None, None, None, "skipped | skipped")
    short = replace(row(64, "cannot tell", 1.05), threshold_pct=21.3)
    ruined = replace(row(100, "cannot tell", 5.28), ci95=(1.73, 1330.0), reason=RUINED)
    yield shown(COMPARED)
    for found in (COMPARED, Comparison([], [blank], [], []), Comparison([], [short], [], []),
                  Comparison([], [row(200, "faster", 1.2), ruined], [], [])):  # fmt: skip
        yield shown(found, details=True)
        yield to_markdown(report({"b": found}, "a"))
    yield shown(*SEVERAL)
    yield to_markdown(report(dict(zip(("b", "c"), SEVERAL, strict=True)), "a"))


def test_comparisons_are_as_committed() -> None:
    """To renew: PYTHONPATH=.:tests python tests/microbench/test_report_forms.py"""
    assert "=====\n".join(comparisons()) == SHEET.read_text(encoding="utf-8")


# ---------------------------------------------------------------- report drawing


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_renders_without_a_browser(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"chart{suffix}"
    write_chart(report_of(h200_run()).chart(), path)
    content = path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if suffix == ".png":
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert 20_000 < len(content) < 2_000_000
    elif suffix == ".svg":
        text = "".join(ElementTree.fromstring(content).itertext())
        assert all(name in text for name in ("fp16", "fp32", "tf32"))
    else:
        assert content.startswith(b"%PDF" if suffix == ".pdf" else b"<!doctype html>")


def drawn(run: Run) -> list[dict[str, Any]]:
    """Every row of the data in a run's chart."""
    datasets = report_of(run).chart().to_dict()["datasets"]
    return [row for rows in datasets.values() for row in rows]


def test_points_are_the_numbers_of_the_run_and_a_line_is_broken_where_a_case_failed() -> None:
    run = h200_run()
    rows = drawn(run)
    points = {(row["series"], row["x"]): row for row in rows if "x" in row}
    for result in run.results:
        series = f"{result.case.precision_name} {result.case.backend}"
        point = points[series, result.case.problem.axis]
        fast, slow = result.measurement.ci95_s
        assert point["y"] == pytest.approx(result.flop_per_s / 1e12)
        assert point["high"] == pytest.approx(result.flops / fast / 1e12)
        assert point["low"] == pytest.approx(result.flops / slow / 1e12)
    ceilings = {row["text"]: row["y"] for row in rows if "text" in row}
    assert ceilings == pytest.approx({"peak: fp16 989": 989.4, "largest: fp16 688": 688})
    run = h200_run()
    hole = Result(case(1024, "tf32", "cublas"), "failed")
    holed = replace(run, results=tuple(hole if r.case == hole.case else r for r in run.results))
    points = {(row["series"], row["x"]): row["segment"] for row in drawn(holed) if "x" in row}
    segments = [segment for (series, _), segment in points.items() if series.startswith("tf32")]
    assert sorted(segments) == ["tf32 cublas 0"] * 2 + ["tf32 cublas 1"] * 3
    lone = measured(case(256, "fp16", "cublas"), 5, half_pct=None)
    assert drawn(replace(run_of([lone]), ceilings=(), device={}))


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
            write_chart(report_of(replace(run, kind=kind)).chart(), tmp_path / "chart.png")
    assert not list(tmp_path.iterdir())


def test_libraries_are_checked_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in (*SUFFIXES, ".SVG"):
        check_chart_path(tmp_path / f"chart{suffix}")
    for check in (check_chart_path, lambda path: write_chart(report_of(h200_run()).chart(), path)):
        for library in ("altair", "vl_convert"):
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, library, None)
                with pytest.raises(UserError, match=r"pip install -e '\.\[charts\]'"):
                    check(tmp_path / "chart.png")


# ---------------------------------------------------------------- parts


COLUMNS = [
    Column("back end", "name", once=True), Column("size", "size"),
    Column("time", "s", fmt.duration),
    Column("x\nfp32", "ratio", fmt.ratio, drop=1), Column("why", "why", drop=2),
]  # fmt: skip
WORDS = st.text("ab ± \u3042\u0301", max_size=60)


def screen(part: Part, width: int) -> list[str]:
    console = make_console(file=io.StringIO())
    console.width = width
    print_part(part, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def part_row(**more: Any) -> Row:
    return Row({"name": "triton", "size": 256, "s": 2e-3, "ratio": Ratio(1.5, (1.4, 1.6)), **more})


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4), st.integers(40, 200))
@settings(deadline=None, max_examples=60)
def test_a_part_fits_any_width(texts: list[tuple[str, str]], width: int) -> None:
    part = Part("A title", COLUMNS, [part_row(name=a, why=b) for a, b in texts], ["below " * 40])
    assert all(cell_len(line) <= width for line in screen(part, width))


def test_what_is_left_out_is_named_and_what_is_alike_stands_once() -> None:
    part = Part("", COLUMNS, [part_row(why="launch latency")])
    assert "left out" not in "".join(screen(part, 80))
    assert screen(part, 44)[-1] == "left out to fit: why"
    assert screen(part, 30)[-1] == "left out to fit: x fp32, why"
    failed = Row({"name": "cublas", "size": 256}, "failed")
    lines = screen(Part("", COLUMNS, [part_row(), part_row(size=512), failed]), 80)
    assert [line.split()[:3] for line in lines if line][-3:] == [
        ["triton", "256", "2.00"], ["512", "2.00", "ms"], ["cublas", "256", "failed"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "found"),
    [("a.b", 1), ("a.x.y", None), ("pair.1", 3), ("pair.2", None), ("m:f.g", 4), ("", None)],
)
def test_a_path_ends_at_its_value_or_at_none(path: str, found: object) -> None:
    whole = {"a": {"b": 1}, "pair": (2, 3), "m:f.g": 4}
    assert value(whole, path) == (found if path else whole)


if __name__ == "__main__":
    SHEET.write_text("=====\n".join(comparisons()), encoding="utf-8")
