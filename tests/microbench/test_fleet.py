"""A fleet check: who is an outlier and why, what its file holds, and GPUs that die."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples.fleets import CASE, HEALTHY, SimulatedGpu, changed, fleet_of, gpu_row

from microbench import fleet as command
from microbench.__main__ import main
from microbench.errors import UserError
from microbench.fleet_verdict import (
    COPY,
    FAILED,
    FAULT,
    SLOW,
    GpuRow,
    Reading,
    findings,
    fleet_from_json,
    fleet_to_json,
)
from microbench.report.fleet import fleet_sheet
from microbench.report.table import markdown
from microbench.worker import Worker, WorkerDied

NOISE = st.floats(0.99, 1.01)


@given(st.lists(NOISE, min_size=2, max_size=16))
def test_gpus_that_differ_by_noise_have_no_finding(factors: list[float]) -> None:
    rows = [gpu_row(i, 1e-3 * factor) for i, factor in enumerate(factors)]
    assert findings(fleet_of(*rows)) == []


@given(st.lists(NOISE, min_size=2, max_size=16), st.floats(1.1, 5.0), st.data())
def test_the_one_slow_gpu_is_named_and_no_other(
    factors: list[float], slower: float, data: st.DataObject
) -> None:
    one = data.draw(st.integers(0, len(factors) - 1))
    rows = [
        gpu_row(i, 1e-3 * factor * (slower if i == one else 1)) for i, factor in enumerate(factors)
    ]
    found = findings(fleet_of(*rows))
    assert [(f.where, f.kind) for f in found] == [(f"GPU {one}", SLOW)]


@pytest.mark.parametrize("half", [0.001, 0.1])
def test_a_difference_within_the_interval_is_none(half: float) -> None:
    found = findings(fleet_of(gpu_row(0, 1e-3, half), gpu_row(1, 1.1e-3, half)))
    assert bool(found) == (half < 0.01)


def test_in_a_scattered_fleet_the_slowest_is_no_outlier() -> None:
    times = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert findings(fleet_of(*(gpu_row(i, 1e-3 * t) for i, t in enumerate(times)))) == []


def test_other_models_are_not_compared() -> None:
    other = replace(gpu_row(1, 3e-3), name="NVIDIA A100")
    assert findings(fleet_of(gpu_row(0), other)) == []


def test_memory_is_judged_too() -> None:
    slow = gpu_row(2)
    slow = replace(slow, readings=(Reading(COPY, 1e9, 5e-4), *slow.readings[1:]))
    (found,) = findings(fleet_of(gpu_row(0), gpu_row(1), slow))
    assert (found.where, found.kind) == ("GPU 2", SLOW)
    assert COPY in found.what


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (gpu_row(2, 2e-3, sm_clock_mhz=900.0), "SM clock 900 MHz (others 1500)"),
        (gpu_row(2, 2e-3, throttle=("power cap",)), "power cap"),
        (changed(gpu_row(2, 2e-3), power_limit_w=400.0), "power limit 400 W (others 700)"),
        (gpu_row(2, 2e-3, temperature_c=85.0), "85 °C (others 60)"),
        (changed(gpu_row(2, 2e-3), ecc_corrected=12), "12 corrected ECC errors"),
        (replace(gpu_row(2, 2e-3), others=1), "1 other process on it"),
        (gpu_row(2, 2e-3), "no cause"),
    ],
)
def test_the_cause_of_a_slow_gpu_is_read_from_nvml(row: GpuRow, cause: str) -> None:
    slow = [f for f in findings(fleet_of(gpu_row(0), gpu_row(1), row)) if f.kind == SLOW]
    assert [f.where for f in slow] == ["GPU 2"]
    assert cause in slow[0].what


def test_a_cap_that_all_have_is_no_cause() -> None:
    rows = [gpu_row(i, 1e-3 * (1 + (i == 2)), throttle=("power cap",)) for i in range(3)]
    (found,) = findings(fleet_of(*rows))
    assert "power cap" not in found.what


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ({"ecc_uncorrected": 2}, "2 uncorrected ECC errors"),
        ({"rows_failed": True}, "replace the GPU"),
        ({"rows_pending": True}, "reset the GPU"),
        ({"pcie_width": 4}, "PCIe x4 of x16"),
        ({"nvlinks": 12}, "12 NVLinks active (others 18)"),
        ({"nvlinks": None}, "0 NVLinks active (others 18)"),
        ({"ecc": False}, "ECC is off"),
        ({"power_limit_w": 500.0}, "power limit 500 W"),
    ],
)
def test_a_fault_is_found_in_a_gpu_that_is_as_fast(state: dict[str, Any], fault: str) -> None:
    (found,) = findings(fleet_of(gpu_row(0), changed(gpu_row(1), **state), gpu_row(2)))
    assert (found.where, found.kind) == ("GPU 1", FAULT)
    assert fault in found.what


def test_heat_is_a_fault_also_where_all_are_hot() -> None:
    rows = [gpu_row(i, throttle=("thermal",)) for i in range(2)]
    assert [f.kind for f in findings(fleet_of(*rows))] == [FAULT, FAULT]


def test_one_gpu_is_judged_by_itself() -> None:
    assert findings(fleet_of(gpu_row(0))) == []
    (found,) = findings(fleet_of(changed(gpu_row(0), pcie_width=8)))
    assert found.kind == FAULT


def test_wrong_results_lost_gpus_and_silent_ranks_are_failures() -> None:
    wrong = replace(gpu_row(0), readings=(Reading(CASE, 1.0, status="failed", reason="wrong"),))
    fleet = replace(fleet_of(wrong, GpuRow(1, reason="lost"), expected=3), missing=(4,))
    assert {(f.where, f.kind) for f in findings(fleet)} == {
        ("GPU 0", FAILED), ("GPU 1", FAILED), ("rank 4", FAILED), ("fleet", FAILED)
    }  # fmt: skip


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=4))
def test_the_file_holds_all_but_process_ids(times: list[float]) -> None:
    fleet = fleet_of(*(gpu_row(i, seconds) for i, seconds in enumerate(times)), expected=2)
    known = replace(HEALTHY, processes=None)
    rows = tuple(replace(row, state=known) for row in fleet.rows)
    data = json.loads(json.dumps(fleet_to_json(fleet, {})))
    assert fleet_from_json(data) == replace(fleet, rows=rows)


def test_a_damaged_file_is_refused() -> None:
    data = json.loads(json.dumps(fleet_to_json(fleet_of(gpu_row(0)), {})))
    data["rows"][0]["readings"][0]["median_s"] = 0.0
    with pytest.raises(ValueError, match="rows"):
        fleet_from_json(data)


def test_the_table_has_a_row_a_gpu_and_a_lost_one_its_reason() -> None:
    fleet = fleet_of(gpu_row(0), gpu_row(1, 1.25e-3), GpuRow(2, "NVIDIA H200", reason="hung"))
    lines = markdown(fleet_sheet(fleet).table).splitlines()
    assert len(lines) == 2 + 3
    assert "-20.0 %" in lines[3]
    assert "hung" in lines[4]


# ---------------------------------------------------------------- the command


@dataclass
class Machine:
    """Simulated GPUs in place of real ones."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)
    trouble: Callable[[str, str], None] = lambda _device, _stage: None
    closed: list[str] = field(default_factory=list)

    def check(self, *words: str) -> tuple[int, dict[str, Any]]:
        code = main(["fleet", "--json", str(self.path), *words])
        return code, json.loads(self.path.read_text())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "fleet.json")
    monkeypatch.setattr(command, "devices_of", lambda _: [f"cuda:{i}" for i in range(4)])
    monkeypatch.setattr(
        command, "Worker",
        lambda settings, hang_s: SimulatedGpu(
            settings, hang_s, made.seconds, made.trouble, made.closed
        ),
    )  # fmt: skip
    return made


def test_equal_gpus_pass_and_show_prints_the_same(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = machine.check()
    printed = capsys.readouterr().out
    assert main(["show", str(machine.path)]) == 0
    assert capsys.readouterr().out.strip() in printed
    assert code == 0
    assert [row["gpu"] for row in data["rows"]] == [0, 1, 2, 3]
    assert all(row["reason"] is None and row["state"] for row in data["rows"])
    assert sorted(machine.closed) == [f"cuda:{i}" for i in range(4)]


def test_a_slow_gpu_fails_the_check_unless_that_is_not_asked(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.seconds = {"cuda:2": 1.2e-3}
    assert machine.check()[0] == 1
    assert "GPU 2: slow" in capsys.readouterr().out
    for words in (("--fail-on", "failed,fault"), ("--fail-on", "none"), ("--threshold", "30%")):
        machine.path.unlink()
        assert machine.check(*words)[0] == 0


@pytest.mark.parametrize("stage", ["greet", "calibrate", "measure", "state"])
@pytest.mark.parametrize(
    "error", [WorkerDied("", "hung: no response"), UserError("lost"), KeyError]
)
def test_a_gpu_that_dies_costs_its_own_row_alone(
    machine: Machine, stage: str, error: Exception | type[Exception]
) -> None:
    def trouble(device: str, at: str) -> None:
        if (device, at) == ("cuda:1", stage):
            raise error

    machine.trouble = trouble
    code, data = machine.check()
    assert code == 1
    assert [bool(row["reason"]) for row in data["rows"]] == [False, True, False, False]
    assert all(len(data["rows"][i]["readings"]) == 2 for i in (0, 2, 3))


def test_fewer_gpus_than_expected_is_a_failure(machine: Machine) -> None:
    assert machine.check("--expect", "8")[0] == 1


def test_the_file_names_no_card_and_no_host(machine: Machine) -> None:
    _, data = machine.check()
    assert data["device"]["card"] is None
    assert socket.gethostname() not in machine.path.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("fleet", "--fail-on", "fast"),
        ("fleet", "--threshold", "0"),
        ("fleet", "--sizes", "none"),
        ("gemm", "--device", "all", "--processes", "3"),
        ("gemm", "--device", "all", "--resume", "x.json"),
        ("gemm", "--device", "all", "--autotune"),
    ],
)
def test_what_means_nothing_is_one_line(
    machine: Machine, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(list(words)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not machine.closed


@pytest.mark.parametrize("rank", ["x", ""])
def test_half_a_place_is_refused(rank: str) -> None:
    with pytest.raises(UserError):
        command.place_of({"RANK": rank, "WORLD_SIZE": "2"})


def test_places_of_torchrun() -> None:
    ranks = {"RANK": "9", "WORLD_SIZE": "16"}
    assert command.place_of({}) is None
    assert command.place_of(ranks) == command.Place(9, 16, None)
    own = ranks | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    assert command.place_of(own) == command.Place(9, 16, 1)


# ---------------------------------------------------------------- real processes, on the CPU


SMALL = ("--backend", "cpu", "--dtype", "fp32", "--sizes", "64", "--budget", "0.5")


def test_processes_measure_and_a_device_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "devices_of", lambda _: ["cpu", "cuda:99"])
    path = tmp_path / "f.json"
    words = ["gemm", "--device", "all", *SMALL, "--vs", "none", "--json", str(path)]
    assert main([*words, "--csv", str(tmp_path / "f.csv"), "--html", str(tmp_path / "f.html")]) == 1
    good, bad = json.loads(path.read_text())["rows"]
    assert good["reason"] is None
    assert [reading["status"] for reading in good["readings"]] == ["ok", "ok"]
    assert bad["reason"]
    assert len((tmp_path / "f.csv").read_text().splitlines()) == 3
    assert (tmp_path / "f.html").stat().st_size


def test_a_killed_process_loses_its_gpu_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed: list[int] = []

    class Killing(Worker):
        def measure(self, *words: Any, **more: Any) -> Any:
            if not killed:
                pid = multiprocessing.active_children()[0].pid
                assert pid
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)
            return super().measure(*words, **more)

    monkeypatch.setattr(command, "Worker", Killing)
    monkeypatch.setattr(command, "devices_of", lambda _: ["cpu", "cpu"])
    path = tmp_path / "f.json"
    assert main(["fleet", *SMALL, "--json", str(path)]) == 1
    reasons = [row["reason"] for row in json.loads(path.read_text())["rows"]]
    assert sorted(map(bool, reasons)) == [False, True]
