"""The screen of two runs compared."""

from __future__ import annotations

import io
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console
from samples.kernel_runs import case

from microbench.report.comparison import (
    in_markdown,
    print_comparison,
    print_comparisons,
    summary,
    threshold,
)
from microbench.report.export import junit
from microbench.results.comparison import CompareRow, Comparison

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


def shown(comparison: Comparison, width: int = 100, *, details: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False)
    print_comparison(comparison, console, details=details)
    return file.getvalue()


SAME = [row(n, "same", 1 + n / 1e5) for n in range(64, 640, 64)]


def test_what_differs_what_changed_and_the_counts() -> None:
    clocks = "the clocks differ (1410 and 1980 MHz): 1.01x in cycles " * 3
    rows = [
        *SAME,
        row(4096, "faster", 1.2),
        row(8192, "slower", 0.8),
        row(1, "cannot tell", 1.4, clocks),
    ]
    text = shown(
        Comparison(
            ["driver: 580 | 590"],
            rows,
            [case(64, "tf32", "cublas")],
            [case(size, "fp16", "cupy") for size in range(1, 10)],
        )
    )
    assert "The runs differ (A | B):\n  driver: 580 | 590\n" in text
    assert text.index("- slower") < text.index("+ faster") < text.index("? cannot tell")
    assert "0.80 ±0.01" in text
    assert "1.20 ±0.02" in text
    assert "= same: 9 cases, A / B from 1.001 to 1.006" in text
    assert "only in A: tf32 64 cublas\n" in text
    assert "only in B: 9 cases (fp16 1 cupy, fp16 2 cupy and 7 more)\n" in text
    assert text.endswith("B against A, 12 cases: 1 slower, 1 faster, 1 cannot tell, 9 same.\n")
    assert max(cell_len(line) for line in text.splitlines()) <= 100
    assert "\x1b" not in text


def test_all_is_shown_when_asked_for() -> None:
    text = shown(
        Comparison([], SAME, [], [case(size, "fp16", "cupy") for size in range(1, 10)]),
        details=True,
    )
    assert text.count("= same") == len(SAME)
    assert [line for line in text.splitlines() if line.startswith("only in")] == [
        f"only in B: fp16 {size} cupy" for size in range(1, 10)
    ]


def test_the_table_is_as_wide_as_the_console() -> None:
    row_of = row(4096, "faster", 1.2)
    for width, times in ((70, False), (140, True)):
        text = shown(Comparison([], [row_of], [], []), width)
        assert ("time A" in text) == times
        assert max(cell_len(line) for line in text.splitlines()) <= width


def test_few_same_rows_are_shown() -> None:
    text = shown(Comparison([], SAME[:3], [], []))
    assert text.count("= same") == 3
    assert "differ" not in text


def test_rows_without_times() -> None:
    what = case(64, "int8", "triton")
    blank = CompareRow(what.key, what, "same", None, None, None, None, "skipped | skipped")
    text = shown(Comparison([], [blank] * 8, [], []))
    assert "= same: 8 cases\n" in text
    assert "nan" not in shown(Comparison([], [blank], [], []))
    assert "skipped | skipped" in shown(Comparison([], [blank], [], []))


def test_narrow_and_empty() -> None:
    text = shown(Comparison([], SAME[:3], [], []), 60)
    assert max(cell_len(line) for line in text.splitlines()) <= 60
    assert summary(Comparison([], [], [], [])) == "B against A, 0 cases: nothing to compare."


def test_every_verdict_has_threshold_and_reason_whatever_the_width() -> None:
    rows = [row(4096, "faster", 1.2), row(8192, "slower", 0.8), row(1, "cannot tell", 1.4)]
    wide = shown(Comparison([], rows, [], []))
    for one in rows:
        (line,) = [text for text in wide.splitlines() if one.reason in text and one.verdict in text]
        assert "3.0 %" in line
    narrow = shown(Comparison([], rows, [], []), 70)
    assert "fp16 8192 cublas, fp16 4096 cublas: interval is beyond it" in narrow
    assert "1.3 us" not in wide
    assert "= same: 9 cases, A / B from 1.001 to 1.006: interval is within 3 %" in shown(
        Comparison([], SAME, [], [])
    )


def test_a_threshold_in_seconds_is_said_with_its_share() -> None:
    short = replace(row(64, "cannot tell", 1.05), threshold_pct=21.3, threshold_s=1.3e-6)
    assert "21 % (1.3 us)" in shown(Comparison([], [short], [], []))
    assert threshold(None, 1.3e-6) == ""


@pytest.mark.parametrize("card", ["same card", "another card", None])
def test_the_card_is_said_where_it_is_known(card: str | None) -> None:
    text = shown(Comparison([], SAME[:1], [], [], card))
    assert ("same card" in text, "another card" in text) == (
        card == "same card", card == "another card",
    )  # fmt: skip


def test_the_threshold_asked_for_is_said_with_the_floor_that_stays() -> None:
    text = shown(Comparison([], SAME[:1], [], [], None, 5.0))
    assert "Threshold: 5 %; kernels must also differ by 1.3 us." in text


def several() -> dict[str, Comparison]:
    return {
        "b.json": Comparison(["driver: 580 | 590"], [*SAME, row(1, "slower", 0.8)], [], []),
        "c.json": Comparison([], [row(2, "cannot tell", 1.1), row(3, "faster", 1.5)], [], []),
    }


def test_several_runs_have_a_part_each_and_counts() -> None:
    file = io.StringIO()
    print_comparisons(several(), "a.json", Console(file=file, width=100, highlight=False))
    text = file.getvalue()
    assert "B = b.json, A = a.json" in text
    assert text.splitlines()[-1].split() == ["c.json", "2", "0", "1", "1", "0"]
    assert text.splitlines()[-2].split() == ["b.json", "10", "1", "0", "0", "9"]


def test_markdown_has_every_row() -> None:
    text = in_markdown(several(), "a.json")
    assert text.count("| = same |") == 9
    assert "| - slower | fp16 | 1 | cublas | 800 us | 1.00 ms |" in text
    assert "- driver: 580 \\| 590" in text or "- driver: 580 | 590" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {7, 10}
    alone = in_markdown({"c.json": several()["c.json"]}, "a.json")
    assert alone.count("---:") == 5  # no table of counts
    assert alone.endswith("B against A, 2 cases: 1 faster, 1 cannot tell.\n")


def test_junit_has_a_suite_a_run_and_a_testcase_a_case() -> None:
    root = ElementTree.fromstring(junit(several(), "a.json", ["slower"]))
    b, c = root.findall("testsuite")
    assert (b.attrib["tests"], b.attrib["failures"], b.attrib["skipped"]) == ("10", "1", "0")
    assert (c.attrib["tests"], c.attrib["failures"], c.attrib["skipped"]) == ("2", "0", "1")
    (failure,) = root.iter("failure")
    assert failure.attrib["message"] == (
        "slower: A / B 0.800, threshold 3.0 %, interval is beyond it"
    )
    names = [case.attrib["name"] for case in b.iter("testcase")]
    assert len(set(names)) == len(names) == 10


def test_junit_fails_on_what_is_asked_for() -> None:
    none = ElementTree.fromstring(junit(several(), "a.json", []))
    assert list(none.iter("failure")) == []
    unsure = ElementTree.fromstring(junit(several(), "a.json", ["cannot tell"]))
    assert len(list(unsure.iter("failure"))) == 1
    assert list(unsure.iter("skipped")) == []
    odd = junit({"\x00<&>\ud800.json": several()["c.json"]}, '"', ["faster"])
    assert len(ElementTree.fromstring(odd)) == 1
