"""Kernels that turn wrong after their check, or take their process along: they alone fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from samples import bad_kernels
from samples.commands import Ran, run_here, warm_children

from kernels.case import Candidate, Case, Target
from kernels.gemm import torch_blas
from kernels.gemm.operands import Operands
from microbench import measure, worker
from microbench.__main__ import main
from microbench.device.device import describe, open_telemetry
from microbench.measure import Measurer
from microbench.results.runfile import read_run
from microbench.results.types import Result
from microbench.sweep import Group
from microbench.timing.timers import CpuClock

FATAL = {
    "leaves": "exit code 7", "crashes": "SIGSEGV", "sleeps": "hung",
    "has_no_memory": "out of memory",
}  # fmt: skip
GEMMS = ("wrong_later", "nan_later", "stale_later", "kept_later", "input_later")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with warm_children():
        yield


def measured(
    folder: Path, *words: object, backends: tuple[str, ...], code: int, **environment: str
) -> tuple[Ran, dict[str, Result]]:
    """A command with these back ends of `bad_kernels`: how it ended, and its results by name."""
    file = folder / "run.json"
    named = ",".join(f"samples.bad_kernels:{name}" for name in backends)
    ran = run_here(
        main, "microbench", *words, "--device", "cpu", "--dtype", "fp32", "--vs", "none",
        "--backend", named, "--json", file, "--verbose", **environment,
    )  # fmt: skip
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    return ran, {r.case.backend.rpartition(":")[2]: r for r in read_run(file).results}


def assert_failed(result: Result) -> None:
    assert result.turned_wrong, result.reason
    assert result.measurement is None
    assert not result.speedup
    assert not result.vs_backend


def test_a_gemm_that_turns_wrong_fails_and_the_right_one_beside_it_is_timed(tmp_path: Path) -> None:
    ran, found = measured(
        tmp_path, "gemm", "--sizes", "64", "--budget", "1", backends=("good", *GEMMS), code=0
    )
    for name in GEMMS:
        assert_failed(found[name])
    assert found["good"].measurement is not None
    assert list(found["good"].vs_backend) == ["cpu"]
    assert "right at first, later a wrong result" in " ".join(ran.stdout.split())


def test_a_convolution_that_turns_wrong_fails_and_as_nothing_else_ran_so_does_the_command(
    tmp_path: Path,
) -> None:
    _, found = measured(
        tmp_path, "conv", "--channels", "8", "--image", "8", "--batch", "2", "--layout", "nhwc",
        "--budget", "1", backends=("conv_later",), code=1,
    )  # fmt: skip
    assert_failed(found["conv_later"])


def test_a_kernel_that_turns_wrong_in_a_later_process_fails_too(tmp_path: Path) -> None:
    _, found = measured(
        tmp_path, "gemm", "--sizes", "64", "--budget", "2", "--processes", "2",
        backends=("good", "wrong_in_another"), code=0,
        **{bad_kernels.STARTS: str(tmp_path / "starts")},
    )  # fmt: skip
    assert_failed(found["wrong_in_another"])
    good = found["good"].measurement
    assert good is not None
    assert len(good.processes) == 2
    assert list(found["good"].vs_backend) == ["cpu"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_kernel_that_takes_the_process_along_fails_alone(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HANG_S", 6.0)
    ran, found = measured(
        tmp_path, "gemm", "--sizes", "32", "--budget", "0.5", "--processes", processes,
        backends=(*FATAL, "good"), code=0,
    )  # fmt: skip
    assert "device" not in ran.stderr
    assert read_run(tmp_path / "run.json").finished_at
    assert {name for name, result in found.items() if result.status == "ok"} == {"good", "cpu"}
    for name, said in FATAL.items():
        assert found[name].status == "failed"
        assert said in (found[name].reason or "")
    assert found["good"].measurement is not None


def test_a_kernel_that_is_wrong_for_some_rounds_only_is_seen_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right at first and at the end: which round is looked at, it cannot know."""
    stages = [""]

    def candidates(case: Case, operands: Operands, target: Target) -> list[Candidate]:
        def call() -> None:
            torch.mm(operands.a, operands.b, out=operands.c)
            rounds = [stage for stage in stages if stage.startswith("timing, round")]
            if 2 <= len(rounds) <= 7:  # of which the first is the warm-up
                operands.c.zero_()

        return [Candidate("wavers", call)]

    monkeypatch.setattr(torch_blas, "candidates", candidates)
    monkeypatch.setattr(measure, "QUICK_S", 10.0)  # on a busy machine too
    info = describe("cpu")
    measurer = Measurer(
        info.target(), CpuClock(1 << 16, "warm"), open_telemetry(info), "sustained", 0
    )
    group = Group((Case("gemm", {"m": 24, "n": 32, "k": 40}, "fp32", "cpu"),))
    (result,) = measurer.measure(group, 1.0, lambda _, stage: stages.append(stage))
    assert_failed(result)
