"""Markdown and CSV of a run: all that the screen has, under names that do not change."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

import pytest
from samples.kernel_runs import case, h200_run, run_of, shown

from microbench import fmt
from microbench.report import run_table
from microbench.report.export import to_csv, to_markdown
from microbench.report.run_table import CSV_ORDER, run_columns
from microbench.report.table import Column, one_line
from microbench.results.types import Result, Run


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_columns_keep_their_names() -> None:
    header = to_csv(run_of([])).splitlines()[0].split(",")
    assert tuple(header[: len(CSV_ORDER)]) == CSV_ORDER
    assert len(set(header)) == len(header)


def test_values() -> None:
    run = h200_run()
    table = rows(to_csv(run))
    assert len(table) == len(run.results)
    fp16 = next(
        r for r in table if (r["n"], r["precision"], r["backend"]) == ("4096", "fp16", "cublas")
    )
    assert float(fp16["tflops"]) == pytest.approx(688)
    assert float(fp16["speedup_fp32_low"]) < float(fp16["speedup_fp32"]) == pytest.approx(688 / 51)
    assert float(fp16["median_s"]) == pytest.approx(2 * 4096**3 / 688e12)
    assert fp16["throttle"] == "power cap"
    assert fp16["tensor_core"] == ""
    fp32 = next(r for r in table if r["precision"] == "fp32")
    assert fp32["speedup_fp32"] == ""


def test_reasons_with_commas_and_lines_survive() -> None:
    reason = 'no, "really"\nno'
    table = rows(to_csv(run_of([Result(case(64, "int8", "triton"), "skipped", reason)])))
    assert table[0]["reason"] == reason
    assert table[0]["median_s"] == ""
    assert table[0]["status"] == "skipped"


def test_markdown_and_csv_have_every_column_of_the_screen() -> None:
    run = h200_run()
    header = to_markdown(run).splitlines()[0]
    for column in run_columns(run, {0: ""}):
        if column.cell:
            title = column.title if column.markdown_title is None else column.markdown_title
            assert f"| {one_line(title)} |" in header
            assert column.csv


def test_a_report_column_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    known = run_columns

    def with_clock(run: Run, sizes: Mapping[int, str]) -> list[Column[Result]]:
        clock = Column[Result](
            "clock\nMHz",
            lambda r: fmt.number(r.measurement.sm_clock_mhz or 0) if r.measurement else "",
            right=True,
            csv={"clock_hz": lambda r: 1e6},
        )
        return [*known(run, sizes), clock]

    monkeypatch.setattr(run_table, "run_columns", with_clock)
    run = h200_run()
    assert "MHz\n" in shown(run)
    assert "| clock MHz |" in to_markdown(run).splitlines()[0]
    assert to_csv(run).splitlines()[0].endswith(",clock_hz")
