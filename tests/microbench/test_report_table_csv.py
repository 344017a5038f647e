"""CSV: stable names, one row a result, what a spreadsheet reads back."""

from __future__ import annotations

import csv
import io

import pytest
from samples.kernel_runs import case, h200_run, run_of

from microbench.report.table_csv import COLUMNS, to_csv
from microbench.results.types import Result


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_columns_keep_their_names() -> None:
    assert ",".join(COLUMNS) == (
        "op,m,n,k,c,h,w,r,s,stride,padding,dilation,groups,pass,layout,data,precision,backend,"
        "status,reason,median_s,ci95_low_s,ci95_high_s,"
        "samples,flops,min_bytes,tflops,gb_per_s,ceiling_pct,rel_error,bound,why,sm_clock_mhz,power_w,energy_j,"
        "temperature_c,throttle,tensor_core,variant,kernels,timer,l2,regime,"
        "speedup_fp32,speedup_fp32_low,speedup_fp32_high,"
        "speedup_tf32,speedup_tf32_low,speedup_tf32_high"
    )
    assert to_csv(run_of([])) == ",".join(COLUMNS) + "\n"


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
