"""The screen of a run: what it says, and that it always fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from samples.kernel_runs import SIZES, case, h200_run, measured, run_of, shown
from samples.kernel_runs import with_speedups as timed

from microbench import fmt
from microbench.report.run_table import run_table
from microbench.report.table import screen
from microbench.results.runfile import read_run, write_run
from microbench.results.types import Measurement, Ratio, Result, Warning

LONG = "fp8-e4m3 needs compute capability 8.9, this GPU has 8.0, " * 4
ARMS = {("fp32", "cublas"): 51.0, ("tf32", "cublas"): 360.0, ("fp16", "cublas"): 659.0}


def group(size: int | tuple[int, int, int], half_pct: float | None = 0.3) -> list[Result]:
    results = [measured(case(size, *arm), rate, half_pct=half_pct) for arm, rate in ARMS.items()]
    return timed(results, half_pct)


def widest(text: str) -> int:
    return max(cell_len(line) for line in text.splitlines())


def row(text: str, *words_in_it: str) -> str:
    return next(line for line in text.splitlines() if all(word in line for word in words_in_it))


def test_every_line_fits_and_holds_no_control_codes() -> None:
    text = shown(h200_run())
    assert widest(text) <= 100
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("width", [40, 60, 80, 99, 100, 200])
def test_narrow_terminals_get_fewer_columns(width: int) -> None:
    text = shown(h200_run(), width)
    assert widest(text) <= width
    if width == 80:
        assert "left out to fit 80 columns: " in text
        assert "than tf32" in text


def test_speedup_with_its_interval_and_what_is_no_difference() -> None:
    results = group(4096)
    near = replace(
        results[2], speedup={"fp32": Ratio(1.01, (0.98, 1.03)), "tf32": Ratio(0.5, None)}
    )
    text = shown(run_of([*results[:2], near]))
    assert "~1 ±0.03" in row(text, "fp16", "cublas", "us")
    assert "0.50 ±?" in row(text, "fp16", "cublas", "us")
    assert "±?: too few rounds" in text
    assert "base" in row(text, "fp32", "ms")


def test_without_intervals_and_without_speedups() -> None:
    bare = [replace(result, speedup={}) for result in group(4096, half_pct=None)]
    text = shown(run_of(bare))
    assert "than fp32" not in text
    assert " ± " not in text
    assert "659" in text


@pytest.mark.parametrize(
    ("result", "unit", "text_in_row"),
    [
        (measured(case(4096, "int8", "cublaslt"), 842), "TOP/s", "exact"),
        (measured(case(256, "fp32", "cpu"), 0.0234), "GFLOP/s", "23.4"),
    ],
)
def test_the_unit_of_rates_suits_the_device(result: Result, unit: str, text_in_row: str) -> None:
    text = shown(run_of([result]))
    assert unit in text
    assert "TFLOP/s" not in text
    assert text_in_row in text


def test_skipped_and_failed_rows_give_the_reason_in_words() -> None:
    skipped = Result(case(4096, "int8", "triton"), "skipped", "triton has no int8")
    failed = Result(case(4096, "fp16", "cupy"), "failed", LONG)
    text = shown(run_of([*group(4096), skipped, failed]))
    assert "FAILED: fp8-e4m3" in text
    assert "Full reasons\n  fp16 4096 cupy: fp8-e4m3 needs" in text
    assert text.count("skipped: triton has no int8") == 1
    assert widest(text) <= 100


def test_all_skipped_and_empty() -> None:
    results = [Result(case(n, "int8", "triton"), "skipped", "no int8 here") for n in SIZES]
    text = shown(run_of(results))
    assert text.count("skipped: no int8 here") == len(SIZES)
    assert "±" not in text
    assert "Nothing was measured." in shown(run_of([]))


def test_huge_and_rectangular_sizes_stand_over_their_rows() -> None:
    shapes = ((32768, 32768, 32768), (4096, 11008, 4096), (131072, 131072, 131072))
    text = shown(run_of([result for shape in shapes for result in group(shape)]))
    assert "M=4096 N=11008 K=4096\n" in text
    assert "No chart: a chart needs sizes that are a single number." in text
    assert widest(text) <= 100


def test_layout_and_data_only_where_they_vary() -> None:
    text = shown(run_of(group(4096)))
    assert "layout nt, normal data" in text
    mixed = [measured(case(4096, "fp16", "cublas", layout=name), 600) for name in ("nn", "tt")]
    text = shown(run_of(mixed))
    assert "4096 nn" in text
    assert "4096 tt" in text
    assert "layout nn" not in text


def test_escape_codes_in_a_run_file_are_not_printed() -> None:
    evil = Result(case(64, "fp16", "x\x1b[2J"), "failed", "a\x1b]0;title\x07\nb")
    text = shown(run_of([evil], device={"name": "GPU\x1b[31m"}))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_warnings_of_one_cause_are_told_once() -> None:
    many = [
        replace(result, warnings=(Warning(f"known to {i} % only", "noise", "raise --budget"),))
        for i, result in enumerate(group(4096))
    ]
    text = shown(run_of(many))
    assert text.count("cause: noise") == 1
    assert (
        "known to 0 % only (and 2 similar) [fp32 4096 cublas, tf32 4096 cublas and 1 more]" in text
    )


def test_details_explain_every_result_and_show_the_command() -> None:
    brief, full = shown(h200_run()), shown(h200_run(), details=True)
    assert "fp32 256 cublas: " not in brief
    assert "fp32 256 cublas: " in full
    assert "$ microbench gemm --dtype fp16" in full


def test_ceilings_name_their_source() -> None:
    text = shown(run_of(group(8192), ceilings=()))
    assert "ceiling:" not in text
    run = run_of(group(8192))
    measured_only = tuple(c for c in run.ceilings if c.source == "measured")
    assert "no datasheet value known" in shown(replace(run, ceilings=measured_only))
    assert "https://resources.nvidia.com" in shown(run)


def test_an_unfinished_run_says_so() -> None:
    assert "unfinished run" in shown(run_of(group(64), finished_at=None))


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
    what = draw(st.sampled_from([what, replace(what, dims={"m": 64, "n": 64, "k": 64})]))
    measurement = None
    if draw(st.booleans()):
        measurement = Measurement(
            (1.0,), (1,), draw(positive), draw(intervals), "events", "cold", "x"
        )
    ratios = st.builds(Ratio, positive, intervals)
    return Result(
        what,
        draw(st.sampled_from(["ok", "skipped", "failed"])),
        draw(st.none() | text_of),
        measurement,
        flops=draw(st.integers(1, 10**20)),
        total_error=draw(st.none() | st.floats(0, 1e9)),
        ceiling_pct=draw(st.none() | st.floats(0, 1e5)),
        speedup=draw(st.dictionaries(st.sampled_from(["fp32", "tf32"]), ratios)),
        bound=draw(st.none() | text_of),
        why=draw(st.none() | text_of),
        warnings=tuple(draw(st.lists(st.builds(Warning, text_of, text_of, text_of), max_size=2))),
    )


@settings(max_examples=60)
@given(st.lists(results(), max_size=8), st.sampled_from([40, 80, 100]))
def test_nothing_ever_runs_over(found: list[Result], width: int) -> None:
    run = run_of(found)
    assert all(line.cell_len <= width for line in screen(run_table(run), width).lines)
    assert not found or widest(shown(run, width)) <= width


def test_numbers_in_words() -> None:
    assert [fmt.number(x) for x in (0.0123, 2.799, 9.996, 51.04, 688.4, 1359, 2e-4, 123456)] == [
        "0.012", "2.80", "10.0", "51.0", "688", "1359", "2.0e-04", "1.2e+05",
    ]  # fmt: skip
    assert [fmt.duration(s) for s in (6.052e-6, 1.66e-3, 0.9999e-3, 2.0, 4e-9)] == [
        "6.05 us", "1.66 ms", "1.00 ms", "2.00 s", "4.00 ns",
    ]  # fmt: skip
    assert fmt.ratio(Ratio(12.94, (12.91, 12.98))) == "12.9 ±0.1"
    assert fmt.ratio(Ratio(1.944, (1.943, 1.946))) == "1.94 ±0.01"
    assert fmt.ratio(Ratio(0.002, (0.0019, 0.0021))) == "0.002 ±0.001"
    assert fmt.half_interval(1.0, (0.99, 1.02)) == "2.0%"
    assert fmt.listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_a_run_read_from_its_file_shows_the_same(tmp_path: Path) -> None:
    run = h200_run()
    write_run(run, tmp_path / "run.json")
    assert shown(read_run(tmp_path / "run.json")) == shown(run)
