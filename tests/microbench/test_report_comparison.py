"""The screen of two runs compared: counts, thresholds and reasons at every width."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from samples.kernel_runs import case

from microbench.report.comparison import in_markdown, print_comparison, print_comparisons
from microbench.results.comparison import CompareRow, Comparison
from microbench.results.judging import RUINED

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
CLOCKS = "the clocks differ (1410 and 1980 MHz): 1.01x in cycles " * 3
COMPARED = Comparison(
    ["driver: 580 | 590"],
    [*SAME, row(4096, "faster", 1.2), row(8192, "slower", 0.8), row(1, "cannot tell", 1.4, CLOCKS)],
    [case(64, "tf32", "cublas")],
    [case(size, "fp16", "cupy") for size in range(1, 10)],
)


@pytest.mark.parametrize("width", [60, 70, 100, 140])
@pytest.mark.parametrize("details", [False, True])
def test_it_fits_and_every_verdict_has_its_reason_whatever_the_width(
    width: int, details: bool
) -> None:
    text = shown(COMPARED, width, details=details)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    words = " ".join(text.split())
    assert all(reason in words for reason in REASONS.values())
    assert words.endswith("B against A, 12 cases: 1 slower, 1 faster, 1 cannot tell, 9 same.")


def test_the_worst_comes_first_and_the_same_are_one_line_unless_all_are_asked_for() -> None:
    text = shown(COMPARED)
    assert text.index("- slower") < text.index("+ faster") < text.index("? cannot tell")
    assert "0.80 ±0.01" in text
    assert "= same: 9 cases, A / B from 1.001 to 1.006" in text
    assert "only in A: tf32 64 cublas\n" in text
    assert "only in B: 9 cases (fp16 1 cupy, fp16 2 cupy and 7 more)\n" in text
    whole = shown(COMPARED, details=True)
    assert whole.count("= same") == len(SAME)
    assert whole.count("only in B: ") == 9
    assert shown(replace(COMPARED, rows=SAME[:3])).count("= same") == 3, "few are shown"


def test_a_row_without_times_or_with_a_threshold_in_seconds() -> None:
    what = case(64, "int8", "triton")
    blank = CompareRow(what.key, what, "same", None, None, None, None, "skipped | skipped")
    text = shown(Comparison([], [blank], [], []))
    assert "skipped | skipped" in text
    assert "nan" not in text
    short = replace(row(64, "cannot tell", 1.05), threshold_pct=21.3)
    assert "21 %" in shown(Comparison([], [short], [], []))


SEVERAL = {
    "b.json": Comparison(["driver: 580 | 590"], [*SAME, row(1, "slower", 0.8)], [], []),
    "c.json": Comparison([], [row(2, "cannot tell", 1.1), row(3, "faster", 1.5)], [], []),
}


def test_several_runs_have_a_part_each_and_counts() -> None:
    file = io.StringIO()
    print_comparisons(SEVERAL, "a.json", Console(file=file, width=100, highlight=False))
    text = file.getvalue()
    assert "B = b.json, A = a.json" in text
    assert text.splitlines()[-1].split() == ["c.json", "2", "0", "1", "1", "0"]
    assert text.splitlines()[-2].split() == ["b.json", "10", "1", "0", "0", "9"]
    markdown = in_markdown(SEVERAL, "a.json")
    assert markdown.count("| = same |") == 9
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {7, 10}


def test_a_ruined_interval_is_said_below_the_counts_in_every_form() -> None:
    ruined = replace(row(100, "cannot tell", 5.28), ci95=(1.73, 1330.0), reason=RUINED)
    comparison = Comparison([], [row(200, "faster", 1.2), ruined], [], [])
    for text in (shown(comparison), in_markdown({"b": comparison}, "a")):
        said = " ".join(text.split())
        assert "5.28 [1.73, 1330" in said, "the figure stays"
        assert "No verdict on fp16 100 cublas: too uncertain." in said
        assert "beyond ±999 %" in said
        assert "Likely reason" in said
        assert "Try: repeat" in said
    assert "No verdict" not in shown(replace(comparison, rows=[row(200, "faster", 1.2)]))
