"""The chart: where points lie, what is written, and when there is none."""

from __future__ import annotations

from dataclasses import replace

from rich.cells import cell_len
from samples.kernel_runs import case, h200_run, measured, run_of

from microbench.report.canvas import Canvas, log_ticks
from microbench.report.chart import HEIGHT, chart
from microbench.results.types import Result, Run


def text_of(run: Run, width: int = 100) -> list[str]:
    return [line.plain for line in chart(run, width)]


def test_points_lie_where_their_values_say() -> None:
    canvas = Canvas(101, 11, (1, 1024), (1, 1000), margin=0)
    assert [canvas.column(x) for x in (1, 32, 1024)] == [0, 50, 100]
    assert [canvas.row(y) for y in (1, 10**1.5, 1000)] == [10, 5, 0]
    canvas.points([(1, 1), (1024, 1000)], "A", "")
    lines = [line.plain for line in canvas.lines([(1000, "1000"), (1, "1")])]
    assert lines[0].startswith("  1000 ┤")
    assert lines[0].endswith("A")
    assert lines[10] == "     1 ┤A"


def test_a_marker_under_another_moves_right_or_is_counted() -> None:
    canvas = Canvas(20, 5, (1, 2), (1, 2), dodge=1)
    assert [canvas.points([(1, 1)], marker, "") for marker in "ABC"] == [0, 0, 1]
    assert canvas.lines([])[4].plain.endswith("AB")


def test_ticks() -> None:
    assert log_ticks(4.8, 110) == [5, 10, 20, 50, 100]
    assert log_ticks(0.001, 1000) == [0.001, 0.01, 0.1, 1, 10, 100, 1000]


def test_chart_of_a_sweep() -> None:
    lines = text_of(h200_run())
    assert max(cell_len(line) for line in lines) <= 100
    whole = "\n".join(lines)
    assert "fp16: dense peak of the datasheet 989" in lines[1]
    assert "fp16: largest GEMM measured 688" in whole
    sizes, fp32, tf32 = lines[HEIGHT + 2 : HEIGHT + 5]
    assert sizes.split() == ["size", "256", "512", "1024", "2048", "4096", "8192"]
    assert fp32.split() == ["x", "fp32", "1.86", "2.47", "6.76", "12.0", "13.5", "12.9"]
    assert tf32.split() == ["x", "tf32", "1.30", "1.42", "1.73", "1.78", "1.95", "1.83"]
    assert "○ fp32 cublas   △ tf32 cublas   ● fp16 cublas   ▲ fp16 triton" in whole
    assert [whole.count(marker) for marker in "○△●▲"] == [7] * 4  # six sizes and the legend


def test_an_axis_without_round_numbers_has_its_ends() -> None:
    rates = {256: 29.7, 512: 37.4, 1024: 45.0}
    run = run_of([measured(case(n, "fp16", "cublas"), rate) for n, rate in rates.items()])
    marked = [line.split()[0] for line in text_of(replace(run, ceilings=())) if "┤" in line]
    assert marked == ["45", "29.7"]


def test_every_series_has_its_own_marker() -> None:
    names = [(f"p{i}", "cublas") for i in range(8)]
    results = [measured(case(n, *arm), n) for arm in names for n in (64, 128, 256)]
    legend = next(line for line in text_of(run_of(results)) if "p0 cublas" in line)
    assert len({part.split()[0] for part in legend.split("   ")}) == len(legend.split("   "))
    more = [measured(case(n, "p8", "cublas"), n) for n in (64, 128, 256)]
    assert "too many curves" in text_of(run_of([*results, *more]))[0]


def test_no_chart_for_few_sizes_or_a_narrow_screen_or_other_shapes() -> None:
    few = [measured(case(n, "fp16", "cublas"), n) for n in (64, 128)]
    assert text_of(run_of(few)) == []
    assert text_of(run_of([])) == []
    assert text_of(h200_run(), 45) == []
    skipped = [Result(case(n, "int8", "triton"), "skipped", "no") for n in (64, 128, 256)]
    assert text_of(run_of(skipped)) == []
    shapes = [measured(case((n, 64, 64), "fp16", "cublas"), n) for n in (64, 128, 256)]
    assert text_of(run_of(shapes)) == ["No chart: a chart needs sizes that are a single number."]


def test_equal_rates_and_dense_sweeps_are_drawn() -> None:
    level = [measured(case(n, "fp16", "cublas"), 5.0) for n in (64, 128, 256)]
    assert "\n".join(text_of(run_of(level, ceilings=()))).count("●") == 4
    dense = [
        measured(case(n, p, "cublas"), n) for n in range(64, 2049, 16) for p in ("fp16", "bf16")
    ]
    lines = text_of(run_of(dense))
    assert "where markers overlap, only the first is drawn" in lines
    assert max(cell_len(line) for line in lines) <= 100


def test_several_layouts_are_several_curves() -> None:
    both = [
        replace(case(n, "fp16", "cublas"), layout=x) for n in (64, 128, 256) for x in ("nn", "nt")
    ]
    whole = "\n".join(text_of(run_of([measured(what, 5.0) for what in both])))
    assert "● fp16 cublas nn   ▲ fp16 cublas nt" in whole
