"""The screen of two runs compared."""

from __future__ import annotations

import io

from rich.cells import cell_len
from rich.console import Console
from samples.kernel_runs import case

from microbench.report.comparison import print_comparison, summary
from microbench.results.comparison import CompareRow, Comparison


def row(n: int, verdict: str, ratio: float, note: str = "") -> CompareRow:
    what = case(n, "fp16", "cublas")
    spread = (ratio * 0.99, ratio * 1.01)
    return CompareRow(what.key, what, verdict, ratio, spread, ratio * 1e-3, 1e-3, note)


def shown(comparison: Comparison, width: int = 100) -> str:
    file = io.StringIO()
    print_comparison(comparison, Console(file=file, width=width, highlight=False))
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
    assert "only in B: fp16 5 cupy\nonly in B: 4 more\n" in text
    assert text.endswith("B against A, 12 cases: 1 slower, 1 faster, 1 cannot tell, 9 same.\n")
    assert max(cell_len(line) for line in text.splitlines()) <= 100
    assert "\x1b" not in text


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
