"""Screens, Markdown and CSV of runs: they fit, hold no control codes, and have every number."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text
from samples.kernel_runs import case, h200_run, measured, run_of, shown, with_speedups

from kernels.gemm import Gemm
from microbench import fmt
from microbench.report.cases import PATHS
from microbench.report.report import report_of
from microbench.report.screen import WIDTH, is_live, make_console, print_report
from microbench.report.writers import to_csv, to_markdown
from microbench.results.types import Measurement, Ratio, Result, Warning

ARMS = {("fp32", "cublas"): 51.0, ("tf32", "cublas"): 360.0, ("fp16", "cublas"): 659.0}


def group(size: int | tuple[int, int, int]) -> list[Result]:
    return with_speedups([measured(case(size, *arm), rate) for arm, rate in ARMS.items()], 0.3)


def widest(text: str) -> int:
    return max(cell_len(line) for line in text.splitlines())


text_of = st.text(max_size=60)
positive = st.floats(1e-9, 1e6)
intervals = st.none() | st.tuples(positive, positive).map(lambda pair: (min(pair), max(pair)))


@st.composite
def results(draw: st.DrawFn) -> Result:
    size = st.integers(1, 10**7)
    precision = draw(
        st.sampled_from(["fp32", "tf32", "fp16", "fp8-e4m3-precise", "int8"]) | text_of
    )
    what = case((draw(size), draw(size), draw(size)), precision, draw(text_of))
    what = draw(st.sampled_from([what, replace(what, problem=Gemm(64, 64, 64))]))
    timed = st.builds(Measurement, st.just((1.0,)), st.just((1,)), positive, intervals,
                      *map(st.just, ("events", "cold", "x")))  # fmt: skip
    ratios = st.builds(Ratio, positive, intervals)
    return Result(
        what,
        draw(st.sampled_from(["ok", "skipped", "failed"])),
        draw(st.none() | text_of),
        draw(st.none() | timed),
        flops=draw(st.integers(1, 10**20)),
        total_error=draw(st.none() | st.floats(0, 1e9)),
        ceiling_pct=draw(st.none() | st.floats(0, 1e5)),
        speedup=draw(st.dictionaries(st.sampled_from(["fp32", "tf32"]), ratios)),
        bound=draw(st.none() | text_of),
        why=draw(st.none() | text_of),
        warnings=tuple(draw(st.lists(st.builds(Warning, text_of, text_of, text_of), max_size=2))),
    )


@settings(max_examples=40)
@given(st.lists(results(), max_size=8), st.sampled_from([40, 80, 100]), st.booleans())
def test_nothing_ever_runs_over(found: list[Result], width: int, details: bool) -> None:
    assert widest(shown(run_of(found), width, details=details)) <= width


def test_units_suit_the_device_ratios_are_marked_and_a_failed_kernel_comes_first() -> None:
    for result, unit in (
        (measured(case(4096, "int8", "cublaslt"), 842), "TOP/s"),
        (measured(case(256, "fp32", "cpu"), 0.0234), "GFLOP/s"),
    ):
        assert re.findall(r"\b[TG](?:FL)?OP/s", shown(run_of([result])))[0] == unit
    *bases, last = group(4096)
    near = replace(last, speedup={"fp32": Ratio(1.01, (0.98, 1.03)), "tf32": Ratio(0.5, None)})
    line = next(line for line in shown(run_of([*bases, near])).splitlines() if "~1 ±0.03" in line)
    assert "0.50 ±?" in line
    good, bad = (measured(case(n, "fp16", "my:own"), 300) for n in (4096, 8192))
    beside = replace(good, vs_backend={"cublas": Ratio(0.5, (0.4, 0.6))})
    failed = Result(bad.case, "failed", "ValueError: no such tile")
    first = shown(run_of([*group(4096), beside, failed])).splitlines()[0]
    assert first.startswith("my:own FAILED in 1 of 2 cases: ValueError: no such tile")


def test_reasons_and_warnings_are_told_once_and_numbers_in_words() -> None:
    long = "fp8-e4m3 needs compute capability 8.9, this GPU has 8.0, " * 4
    warned = [
        replace(result, warnings=(Warning(f"known to {i} % only", "noise", "raise --budget"),))
        for i, result in enumerate(group(4096))
    ]
    skipped = Result(case(4096, "int8", "triton"), "skipped", "triton has no int8")
    failed = Result(case(4096, "fp16", "cupy"), "failed", long)
    run = run_of([*warned, skipped, failed], finished_at=None)
    brief, text = (" ".join(shown(run, details=details).split()) for details in (False, True))
    assert brief.count("triton has no int8") == brief.count("known to") == 1
    assert text.count("noise") == 1
    assert f"fp16 4096 cupy: FAILED: {long.strip()}" in text
    assert "not finished" in brief
    text = shown(run_of([]))
    assert "No case was measured" in text
    assert "measured: memory 4.30 TB/s" in text
    assert [fmt.number(x) for x in (0.0123, 2.799, 9.996, 51.04, 688.4, 1359, 2e-4, 123456)] == [
        "0.012", "2.80", "10.0", "51.0", "688", "1359", "2.0e-04", "1.2e+05",
    ]  # fmt: skip
    assert [fmt.duration(s) for s in (6.052e-6, 1.66e-3, 0.9999e-3, 2.0, 4e-9)] == [
        "6.05 us", "1.66 ms", "1.00 ms", "2.00 s", "4.00 ns",
    ]  # fmt: skip
    assert fmt.ratio(Ratio(12.94, (12.91, 12.98))) == "12.9 ±0.1"
    assert fmt.ratio(Ratio(0.002, (0.0019, 0.0021))) == "0.002 ±0.001"
    assert fmt.half_interval(1.0, (0.99, 1.02)) == "2.0%"
    assert fmt.listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"


# ---------------------------------------------------------------- Markdown and CSV


def test_columns_keep_their_names_and_values_are_those_of_the_run() -> None:
    header = to_csv(report_of(run_of([]))).splitlines()[0].split(",")
    assert header[: len(PATHS)] == list(PATHS)
    assert len(set(header)) == len(header)
    titles = [
        line
        for line in to_markdown(report_of(h200_run())).splitlines()
        if line.startswith("| size ")
    ]
    for title in ("precision", "back end", "time", "TFLOP/s", "% of peak", "x fp32", "bottleneck"):
        assert f"| {title} |" in titles[-1]
    run = h200_run()
    reason = 'no, "really"\nno'
    lost = Result(case(64, "int8", "triton"), "skipped", reason)
    text = to_csv(report_of(replace(run, results=(*run.results, lost))))
    *table, skipped = csv.DictReader(io.StringIO(text))
    for row, result in zip(table, run.results, strict=True):
        assert result.median_s
        assert float(row["median_s"]) == pytest.approx(result.median_s)
        assert float(row["tflops"]) == pytest.approx((result.flop_per_s or 0) / 1e12)
        ratio = result.speedup.get("fp32")
        assert row["speedup_fp32"] == "" or float(row["speedup_fp32"]) == pytest.approx(
            ratio.ratio if ratio else 0
        )
        assert (row["throttle"] == "power cap") == (result.case.problem.dims["m"] > 2048)
    assert (skipped["reason"], skipped["median_s"]) == (reason, "")


# ---------------------------------------------------------------- consoles


@pytest.mark.parametrize(
    ("asked", "width"), [(None, WIDTH), ("40", 40), ("160", 160), ("0", WIDTH), ("wide", WIDTH)]
)
def test_a_file_is_plain_and_as_wide_as_asked_else_100(
    asked: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if asked is not None:
        monkeypatch.setenv("COLUMNS", asked)
    file = io.StringIO()
    console = make_console(file=file)
    assert console.width == width
    assert not is_live(console)
    console.print(Text("hello", "bold red"))
    console.print("[bold]brackets stay[/bold] 1 2 3")
    assert file.getvalue() == "hello\n[bold]brackets stay[/bold] 1 2 3\n"
    silent = io.StringIO()
    make_console(file=silent, quiet=True).print("hello")
    assert silent.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_only_an_addition(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_terminal() -> str:
        file = Terminal()
        print_report(report_of(h200_run()), make_console(file=file), verbose=True)
        return file.getvalue()

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    coloured = on_a_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = on_a_terminal()
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert WIDTH < widest(plain) <= 120, "tables may be wider than prose"


def test_a_terminal_without_unicode_keeps_columns_aligned() -> None:
    raw = io.BytesIO()
    console = make_console(file=io.TextIOWrapper(raw, encoding="ascii"))
    print_report(report_of(h200_run()), console)
    console.file.flush()
    ours, plain = raw.getvalue().decode("ascii").splitlines(), shown(h200_run()).splitlines()
    assert [len(line) for line in ours] == [cell_len(line) for line in plain]
    assert "?" not in "".join(ours)
