"""Networks that raise, crash, hang or take all memory: named as the cause, and the run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import bad_networks
from samples.commands import Ran, run_here, warm_children

from e2e.__main__ import main
from e2e.commands import worker
from e2e.results.types import Training
from microbench.results.runfile import read_run

FATAL = {
    "raises": "ValueError: the third layer takes 7 channels",
    "crashes": "SIGSEGV",
    "leaves": "exit code 7",
    "sleeps": "hung",
    "has_no_memory": "MemoryError",
}
AT_ONCE = {
    "raises_at_once": "its forward raised ValueError: the third layer takes 7 channels",
    "crashes_at_once": "ended (SIGSEGV) while running samples.bad_networks:crashes_at_once once",
    "sleeps_at_once": "while running samples.bad_networks:sleeps_at_once once",
}


@pytest.fixture(autouse=True)
def _warm() -> Iterator[None]:
    with warm_children():
        yield


def train(file: Path, name: str, *words: object) -> Ran:
    with pytest.MonkeyPatch.context() as patch:
        if "sleeps" in name:  # others may be slow, on a busy machine
            patch.setattr(worker, "SET_UP_S", 15.0)
            patch.setattr(worker, "HANG_S", 5.0)
        ran = run_here(
            main, "e2e", "train", f"samples.bad_networks:{name}", "--device", "cpu", "--batch", "4",
            "--recipe", "fp32", "--budget", "0.1", "--json", file, *words,
        )  # fmt: skip
    assert "Traceback" not in ran.stderr
    assert "device" not in ran.stderr
    return ran


@pytest.mark.parametrize("name", FATAL)
def test_what_a_network_does_while_it_is_timed_is_its_arms_reason(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / "run.json"
    ran = train(file, name)
    assert ran.returncode == 1
    (training,) = read_run(file).of(Training)
    assert training.status == "failed"
    assert FATAL[name] in (training.reason or "")
    assert read_run(file).finished_at


@pytest.mark.parametrize("name", AT_ONCE)
def test_what_it_does_when_it_is_tried_is_one_line(tmp_path: Path, name: str) -> None:
    ran = train(tmp_path / "run.json", name)
    assert ran.returncode == 2
    assert AT_ONCE[name] in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_loss_that_raises_is_the_arms_reason(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert train(file, "good", "--loss", "samples.bad_networks:bad_loss").returncode == 1
    assert read_run(file).of(Training)[0].reason == "KeyError: 'weights of class 11'"


@pytest.mark.parametrize("name", ["crashes_in_training", "raises_in_training"])
def test_a_training_that_breaks_off_keeps_the_times(tmp_path: Path, name: str) -> None:
    """It fails long after it was timed; what was measured before stays."""
    file = tmp_path / "run.json"
    train(file, name, "--iterations", "8000")
    (training,) = read_run(file).of(Training)
    assert training.status == "failed"
    assert "training from seed" in (training.reason or "")
    assert training.steps is not None


def test_a_process_that_dies_costs_the_times_of_that_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(bad_networks.STARTS, str(tmp_path / "starts"))
    file = tmp_path / "run.json"
    assert train(file, "crashes_in_another", "--processes", "2").returncode == 0
    (training,) = read_run(file).of(Training)
    assert training.status == "ok"
    assert len(training.steps.processes) < 2
    assert len(set((tmp_path / "starts").read_text().split())) > 1
