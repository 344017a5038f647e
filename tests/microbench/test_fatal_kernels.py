"""Back ends that take their process along: their cases fail, the others are measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from samples.commands import run_here, warm_children

from microbench import worker
from microbench.__main__ import main
from microbench.results.runfile import read_run

FATAL = {
    "leaves": "exit code 7", "crashes": "SIGSEGV", "sleeps": "hung",
    "has_no_memory": "out of memory",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "HANG_S", 6.0)
    with warm_children():
        yield


@pytest.mark.parametrize("processes", [1, 2])
def test_a_kernel_that_takes_the_process_along_fails_alone(tmp_path: Path, processes: int) -> None:
    file = tmp_path / "run.json"
    named = ",".join(f"samples.bad_kernels:{name}" for name in (*FATAL, "good"))
    ran = run_here(
        main, "microbench", "gemm", "--sizes", "32", "--dtype", "fp32", "--vs", "none",
        "--backend", named, "--device", "cpu", "--budget", "0.5", "--processes", processes,
        "--json", file,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "device" not in ran.stderr
    run = read_run(file)
    assert run.finished_at
    assert len(run.results) == len(FATAL) + 2
    for result in run.results:
        name = result.case.backend.rpartition(":")[2]
        if name in FATAL:
            assert result.status == "failed"
            assert FATAL[name] in (result.reason or "")
        else:
            assert result.status == "ok", result.reason
            assert result.measurement is not None
