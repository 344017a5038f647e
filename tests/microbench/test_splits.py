"""`validate compare` and `validate power` on runs whose differences are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.case import Case
from microbench.__main__ import main
from microbench.errors import UserError
from microbench.results.runfile import write_run
from microbench.results.types import Measurement, ProcessTime, Result, Run
from microbench.selftest.splits import SCALES, false_verdicts, power

SIZES = [64 * i for i in range(1, 13)]
DEVICE = {"name": "NVIDIA H200", "kind": "cuda"}


def result(
    rng: np.random.Generator, size: int, backend: str, seconds: float, count: int, sd: float
) -> Result:
    medians = seconds * np.exp(sd * rng.standard_normal(count))
    parts = tuple(ProcessTime(i, 1, float(s), 1900.0) for i, s in enumerate(medians))
    measurement = Measurement(
        tuple(map(float, medians)), (1,) * count, float(np.exp(np.log(medians).mean())), None,
        "events", "cold", "sustained", processes=parts,
    )  # fmt: skip
    case = Case("gemm", dict.fromkeys("mnk", size), "fp16", backend)
    return Result(case, "ok", measurement=measurement, flops=1, min_bytes=1)


def run_of(count: int = 8, sd: float = 0.004, more: float = 1.06) -> Run:
    """GEMMs of cuBLAS, and a kernel of which another back end does `more` work."""
    rng = np.random.default_rng(5)
    results = [
        result(rng, size, backend, seconds, count, sd)
        for size in SIZES
        for backend, seconds in (("cublas", 1e-5), ("own:base", 3e-5), ("own:more", more * 3e-5))
    ]
    return Run(("x",), "2026-01-01T00:00:00+00:00", DEVICE, {}, results=tuple(results))


def test_each_case_is_judged_against_itself_and_counted() -> None:
    found = false_verdicts([run_of()], 3, 20)
    assert len(found.rows) == 3 * len(SIZES)
    assert {row.pairs for row in found.rows} == {20}
    assert found.pairs == 20 * len(found.rows)
    assert found.faster + found.slower + found.same + found.cannot_tell == found.pairs
    assert found.faster + found.slower <= 0.01 * found.pairs
    assert found.same >= 0.9 * found.pairs
    assert np.median([row.sd_pct for row in found.rows]) == pytest.approx(0.4, rel=0.2)
    assert false_verdicts([run_of()], 3, 20) == found


def test_a_case_whose_processes_are_two_kinds_is_called_different() -> None:
    """So the count can rise: processes 0 to 2 take a tenth longer than 3 to 5."""
    run = run_of(count=6, sd=0.0005)
    slow = run.results[0]
    assert slow.measurement is not None
    parts = tuple(
        replace(p, median_s=1.1 * p.median_s) if p.number < 3 else p
        for p in slow.measurement.processes
    )
    split = replace(slow, measurement=replace(slow.measurement, processes=parts))
    found = false_verdicts([replace(run, results=(split, *run.results[1:]))], 3, 100)
    row = found.rows[0]
    assert row.faster > 0
    assert row.slower > 0
    assert all(other.faster + other.slower <= 1 for other in found.rows[1:])


def test_more_work_is_seen_against_the_base_of_its_module_and_its_size_is_measured() -> None:
    found = power([run_of()], 3, 20)
    planted = [row for row in found.rows if not row.scaled]
    assert [row.change for row in planted] == ["more"] * len(SIZES)
    assert all(row.case.endswith("own:base") for row in planted)
    for row in planted:
        assert row.ci95_pct is not None
        assert row.ci95_pct[0] < row.slower_by_pct < row.ci95_pct[1]
    assert np.median([row.slower_by_pct for row in planted]) == pytest.approx(6.0, abs=0.5)
    assert sum(row.slower for row in planted) >= 0.95 * sum(row.pairs for row in planted)
    assert all(row.faster == 0 for row in planted)


def test_ordinary_cases_are_scaled_by_each_scale() -> None:
    found = power([run_of(sd=0.012)], 3, 20)
    scaled = [row for row in found.rows if row.scaled]
    assert {row.case.rsplit("/", 1)[1] for row in scaled} == {"cublas"}
    seen = [
        sum(row.slower for row in scaled if row.slower_by_pct == pytest.approx(100 * (scale - 1)))
        for scale in SCALES
    ]
    assert seen == sorted(seen)
    assert seen[0] < seen[-1] == 20 * len(SIZES)


def test_no_slow_down_is_not_called_one() -> None:
    planted = [row for row in power([run_of(more=1.0)], 3, 20).rows if not row.scaled]
    assert sum(row.slower + row.faster for row in planted) <= 0.01 * 20 * len(planted) + 1


def test_cases_of_too_few_processes_are_left_out() -> None:
    run = run_of(count=8)
    short = run_of(count=5).results[:2]
    mixed = replace(run, results=(*short, *run.results[2:]))
    assert len(false_verdicts([mixed], 3, 2).rows) == len(run.results) - 2
    with pytest.raises(UserError, match="--processes 6"):
        false_verdicts([replace(run, results=short)], 3, 2)


def test_a_process_that_a_case_lacks_leaves_its_splits_out() -> None:
    run = run_of(count=7)
    first = run.results[0]
    assert first.measurement is not None
    lacking = replace(
        first, measurement=replace(first.measurement, processes=first.measurement.processes[:6])
    )
    rows = false_verdicts([replace(run, results=(lacking, *run.results[1:]))], 3, 40).rows
    assert 0 < rows[0].pairs < 40
    assert {row.pairs for row in rows[1:]} == {40}


# ---------------------------------------------------------------- the command


def written(path: Path, run: Run) -> str:
    write_run(run, path)
    return str(path)


def test_the_command_writes_what_show_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(tmp_path / "run.json", run_of())
    for what in ("compare", "power"):
        path = tmp_path / f"{what}.json"
        words = ["validate", what, run, "--tries", "3", "--json", str(path)]
        assert main([*words, "--processes", "4"]) == 0
        said = capsys.readouterr().out
        data: dict[str, Any] = json.loads(path.read_text())
        assert (data["check"], data["processes"], data["tries"]) == (what, 4, 3)
        assert data["runs"][0]["file"] == "run.json"
        assert data["device"] == DEVICE
        assert str(tmp_path) not in path.read_text()
        assert main(["show", str(path)]) == 0
        assert said.removesuffix(f"File: {path}\n") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare"], "takes run files"),
        (["aa", "RUN"], "takes no run file"),
        (["power", "RUN", "--processes", "1"], "--processes"),
        (["power", "RUN", "--processes", "5"], "--processes 10"),
        (["compare", "RUN", "--tries", "0"], "--tries"),
        (["compare", "RUN", "OTHER"], "another device"),
        (["compare", "NEWER"], "method"),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of()
    files = {
        "RUN": written(tmp_path / "run.json", run),
        "OTHER": written(tmp_path / "other.json", replace(run, device={"name": "x"})),
        "NEWER": written(tmp_path / "new.json", replace(run, method_version=99)),
    }
    named = [files.get(word, word) for word in words]
    if "NEWER" in words:
        named.insert(1, files["RUN"])
    assert main(["validate", *named, "--json", str(tmp_path / "out.json")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
