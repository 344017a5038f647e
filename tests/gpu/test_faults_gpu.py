"""On a GPU: kernels that fault or do not end fail by name, and the others are measured.

Endless kernels make it slow: about a minute. Nothing here changes a setting of the card.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples.commands import run_here, warm_children

from microbench import worker
from microbench.__main__ import main
from microbench.results.runfile import read_run

HANG_S = 15.0  # in place of two minutes
# What each fault is called in its reason.
AT_ONCE = {
    "illegal_address": "illegal memory access",
    "assertion": "device-side assert",
    "too_much": "out of memory",
    "endless": "hung: no response for",
}
LATER = {f"{name}_later": said for name, said in AT_ONCE.items()}


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "HANG_S", HANG_S)
    with warm_children():
        yield


@pytest.mark.parametrize("faults", [AT_ONCE, LATER], ids=["at once", "later"])
def test_a_fault_costs_its_own_case_alone(tmp_path: Path, faults: dict[str, str]) -> None:
    file = tmp_path / "run.json"
    named = ",".join(f"samples.bad_gpu_kernels:{name}" for name in (*faults, "good"))
    began_s = time.monotonic()
    ran = run_here(
        main, "microbench", "gemm", "--sizes", "256,512", "--dtype", "fp16", "--vs", "none",
        "--backend", named, "--budget", "2", "--processes", "1", "--json", file,
    )  # fmt: skip
    # At each size an endless kernel is waited for once; each fault costs a process.
    assert time.monotonic() - began_s < 2 * (1.5 * HANG_S + 15 * len(faults))
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    run = read_run(file)
    assert run.finished_at
    found = {(r.case.dim("m"), r.case.backend.rpartition(":")[2]): r for r in run.results}
    for size in (256, 512):
        for name, said in faults.items():
            result = found[size, name]
            assert result.status == "failed", (name, result)
            assert said in (result.reason or ""), (name, result.reason)
            assert result.measurement is None
        good = found[size, "good"]
        assert good.status == "ok", good.reason
        assert good.measurement is not None
        assert min(good.measurement.times_s) > 0


def test_a_kernel_that_turns_wrong_on_the_gpu_fails(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    names = ("wrong_later", "nan_later", "stale_later", "kept_later", "good")
    named = ",".join(f"samples.bad_kernels:{name}" for name in names)
    ran = run_here(
        main, "microbench", "gemm", "--sizes", "512", "--dtype", "fp16", "--vs", "none",
        "--backend", named, "--budget", "2", "--processes", "2", "--json", file,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    for result in read_run(file).results:
        name = result.case.backend.rpartition(":")[2]
        assert result.turned_wrong == name.endswith("_later"), (name, result.reason)
        assert (result.measurement is None) == name.endswith("_later")
