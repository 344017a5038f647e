"""On a GPU: networks whose kernels fault or do not end fail by name, in training and prediction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples.commands import Ran, run_here, warm_children

from e2e.__main__ import main
from e2e.results.types import Training
from microbench import worker
from microbench.results.runfile import read_run

HANG_S = 15.0  # in place of two minutes
FAULTS = {
    "illegal_address": "illegal memory access",
    "assertion": "device-side assert",
    "endless": "hung: no response for",
    "too_much": "out of memory",
}


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "HANG_S", HANG_S)
    with warm_children():
        yield


def e2e(command: str, name: str, file: Path, *words: object, recipes: str = "fp32,amp") -> Ran:
    began_s = time.monotonic()
    ran = run_here(
        main, "e2e", command, f"samples.bad_gpu_networks:{name}", "--batch", "8", "--recipe",
        recipes, "--json", file, *words,
    )  # fmt: skip
    assert time.monotonic() - began_s < 120
    assert "Traceback" not in ran.stderr
    return ran


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_under_amp_costs_that_arm_alone(tmp_path: Path, name: str) -> None:
    file = tmp_path / "run.json"
    ran = e2e("train", f"{name}_in_amp", file, "--budget", "2")
    assert ran.returncode == 0, ran.stderr
    fp32, amp = read_run(file).of(Training)
    assert fp32.status == "ok", fp32.reason
    assert fp32.steps is not None
    assert amp.status == "failed"
    assert FAULTS[name] in (amp.reason or ""), amp.reason
    assert read_run(file).finished_at


@pytest.mark.parametrize(
    ("command", "name"),
    [("train", "assertion"), ("train", "endless"), *(("predict", name) for name in FAULTS)],
)
def test_a_network_that_faults_when_it_is_tried_is_named(
    tmp_path: Path, command: str, name: str
) -> None:
    ran = e2e(command, f"{name}_at_once", tmp_path / "run.json")
    assert ran.returncode == 2
    assert f"samples.bad_gpu_networks:{name}_at_once" in ran.stderr
    assert FAULTS[name] in ran.stderr
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["illegal_address", "endless"])
def test_a_fault_while_its_step_is_predicted_is_its_arms_reason(tmp_path: Path, name: str) -> None:
    """Tracing has fake tensors, but a kernel that torch knows nothing of runs all the same."""
    file = tmp_path / "run.json"
    ran = e2e("predict", f"{name}_traced", file, recipes="fp32")
    assert ran.returncode == 1, ran.stderr
    (arm,) = read_run(file).of(Training)
    assert arm.status == "failed"
    assert FAULTS[name] in (arm.reason or ""), arm.reason


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_middle_of_a_training_keeps_the_times(tmp_path: Path, name: str) -> None:
    file = tmp_path / "run.json"
    words = ("--budget", "1", "--iterations", "60000")
    e2e("train", f"{name}_in_training", file, *words, recipes="fp32")
    (training,) = read_run(file).of(Training)
    assert training.status == "failed"
    assert "training from seed" in (training.reason or "")
    assert FAULTS[name] in (training.reason or "")
    assert training.steps is not None
