"""A report fits any width, hides nothing in silence, and has no text that is more than text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from microbench import fmt
from microbench.report.parts import VERBOSE, Column, Line, Part, Report, Row, value
from microbench.report.screen import make_console, print_part, print_report
from microbench.report.writers import to_csv, to_html, to_markdown
from microbench.results.types import Ratio

EVIL = "[bold]\x1b[31m<script>a</script>](b)|`\r\n\u202e=1+1"
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


def row(**more: Any) -> Row:
    return Row({"name": "triton", "size": 256, "s": 2e-3, "ratio": Ratio(1.5, (1.4, 1.6)), **more})


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4), st.integers(40, 200))
@settings(deadline=None, max_examples=60)
def test_a_part_fits_any_width(texts: list[tuple[str, str]], width: int) -> None:
    part = Part("A title", COLUMNS, [row(name=a, why=b) for a, b in texts], ["below " * 40])
    assert all(cell_len(line) <= width for line in screen(part, width))


def test_the_least_important_column_goes_first_and_is_named() -> None:
    part = Part("", COLUMNS, [row(why="launch latency")])
    assert "left out" not in "".join(screen(part, 80))
    assert screen(part, 44)[-1] == "left out to fit: why"
    assert screen(part, 30)[-1] == "left out to fit: x fp32, why"


def test_what_is_alike_stands_once_and_what_is_missing_is_said() -> None:
    failed = Row({"name": "cublas", "size": 256}, "failed")
    lines = screen(Part("", COLUMNS, [row(), row(size=512), failed]), 80)
    assert [line.split()[:3] for line in lines if line][-3:] == [
        ["triton", "256", "2.00"], ["512", "2.00", "ms"], ["cublas", "256", "failed"]
    ]  # fmt: skip


def test_text_of_a_file_stays_text() -> None:
    part = Part(EVIL, [Column(EVIL, "why")], [Row({"why": EVIL})], [EVIL], VERBOSE)
    report = Report(EVIL, [Line("", EVIL), Line("Why", EVIL)], [part], [EVIL])
    console = make_console(file=io.StringIO())
    print_report(report, console, verbose=True)
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]" in printed
    assert printed.replace("\n", "").isprintable()
    assert "<script" not in to_html(report) + to_markdown(report)
    assert "](" not in to_markdown(report).replace("]\\(", "")


def test_csv_has_published_names_first_and_an_empty_cell_for_what_is_unknown() -> None:
    kernels = (["op", "s"], [{"op": "gemm", "s": 1 / 3}])
    loaders = (["op", "workers"], [{"op": "loader", "workers": 2}])
    text = to_csv(Report(raw=[kernels, loaders]))
    assert text == "op,s,workers\ngemm,0.333333333,\nloader,,2\n"


@pytest.mark.parametrize(
    ("path", "found"),
    [("a.b", 1), ("a.x.y", None), ("pair.1", 3), ("pair.2", None), ("m:f.g", 4), ("", None)],
)
def test_a_path_ends_at_its_value_or_at_none(path: str, found: object) -> None:
    whole = {"a": {"b": 1}, "pair": (2, 3), "m:f.g": 4}
    assert value(whole, path) == (found if path else whole)
