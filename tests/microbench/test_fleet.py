"""A fleet check: which GPU is slow, what its file holds, and GPUs that die."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples.measuring import result_of

from kernels.case import Target
from microbench import fleet as command
from microbench.__main__ import main
from microbench.report.fleet import COPY, FAILED, SLOW, GpuResult, figures, judged, report, to_json
from microbench.requests import Conditions
from microbench.results.types import Ceiling, Json, Result
from microbench.sweep import Group
from microbench.worker import Greeting, Worker

CASE = "fp16 8192 cublas"
NOISE = st.floats(0.99, 1.01)


def gpu_row(gpu: int, seconds: float = 1e-3, half: float = 0.002) -> GpuResult:
    """A GPU on which the case takes so long, with an interval of ± `half` of it."""
    ends = (seconds * (1 - half), seconds * (1 + half))
    return GpuResult(gpu, "NVIDIA H200", CASE, 1e12, seconds, ends, sm_clock_mhz=1500.0)


def found_in(*rows: GpuResult) -> dict[int, str]:
    return {row.gpu: row.finding for row in judged(rows, 5.0) if row.finding}


@given(st.lists(NOISE, min_size=2, max_size=16), st.floats(1.1, 5.0), st.data())
def test_the_one_slow_gpu_is_named_and_no_other(
    factors: list[float], slower: float, data: st.DataObject
) -> None:
    rows = [gpu_row(i, 1e-3 * factor) for i, factor in enumerate(factors)]
    assert found_in(*rows) == {}
    one = data.draw(st.integers(0, len(factors) - 1))
    rows[one] = gpu_row(one, 1e-3 * factors[one] * slower)
    assert found_in(*rows) == {one: SLOW}
    data = json.loads(json.dumps(to_json({"threshold_pct": 5.0}, rows)))
    assert report(data).finding.startswith(f"GPU {one} is slow")


def test_what_the_figures_do_not_bear_out_is_no_finding_and_what_is_lost_is_a_failure() -> None:
    assert found_in(gpu_row(0, 1e-3, 0.1), gpu_row(1, 1.1e-3, 0.1)) == {}, "wide intervals"
    assert found_in(gpu_row(0), replace(gpu_row(1, 3e-3), name="NVIDIA A100")) == {}
    assert found_in(*map(gpu_row, range(5)), gpu_row(5, 1e-2, 0.5)) == {5: "unclear"}
    copies = [GpuResult(i, "NVIDIA H200", COPY, 1e9, 2.5e-4 * (1 + (i == 2))) for i in range(3)]
    assert found_in(*map(gpu_row, range(3)), *copies) == {2: SLOW}, "its memory"
    wrong = GpuResult(0, "NVIDIA H200", CASE, 1.0, status="failed", reason="wrong")
    assert found_in(wrong, GpuResult(1, status="failed", reason="lost")) == {0: FAILED, 1: FAILED}


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=4))
def test_the_file_holds_all_of_it_and_older_ones_are_read(times: list[float]) -> None:
    rows = judged([gpu_row(i, seconds) for i, seconds in enumerate(times)], 5.0)
    data = json.loads(json.dumps(to_json({"threshold_pct": 5.0}, rows)))
    assert [row.item for row in report(data).parts[0].rows] == rows
    older = [
        {"gpu": row.gpu, "name": row.name, "rank": None, "reason": None, "others": 0,
         "readings": [{name: value for name, value in vars(row).items()
                       if name not in ("gpu", "name", "vs_others_pct", "finding")}]}
        for row in rows
    ]  # fmt: skip
    older[0]["reason"] = "hung"
    found = report(json.loads(json.dumps({"threshold_pct": 5.0, "rows": older})))
    *shown, died = sorted((r.item for r in found.parts[0].rows), key=lambda row: row.case == "")
    assert shown == rows
    assert (died.gpu, died.finding, died.rate) == (0, FAILED, "hung")
    data["rows"][0]["median_s"] = 0.0
    with pytest.raises(ValueError, match="rows"):
        report(data)


@pytest.mark.parametrize(
    ("data", "finding"),
    [
        ({"workers": 2, "images_per_s": [3269.53, 81.25]}, "3,270; 81.2 img/s with 2 workers"),
        ({"check": "x", "right": 5, "counted": 6}, "5 of 6 planted bottlenecks are named right"),
        ({"check": "{right}", "right": "{x}", "rows": [1]}, "check {right}, right {x}, rows 1"),
    ],
)
def test_other_documents_say_what_was_found(data: Json, finding: str) -> None:
    found = figures(data)
    assert found.finding == finding
    assert [row["value"] for row in found.raw[0][1]][-1] in ("3269.53, 81.25", "6", "1"), "whole"


# ---------------------------------------------------------------- the command


@dataclass
class Machine:
    """Simulated GPUs in place of real ones; `trouble` may raise before a stage of a device."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)
    trouble: Callable[[str, str], None] = lambda _device, _stage: None
    closed: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def check(self, *words: str) -> tuple[int, dict[str, Any]]:
        code = main(["fleet", "--json", str(self.path), *words])
        return code, json.loads(self.path.read_text())


@dataclass
class SimulatedGpu:
    """A measuring process of a GPU that is not there."""

    machine: Machine
    settings: Conditions

    def greet(self) -> Greeting:
        self.machine.trouble(self.settings.device, "greet")
        name = self.machine.names.get(self.settings.device, "NVIDIA H200")
        target = Target("cuda", name, (9, 0), 132)
        facts = {"name": name, "kind": "cuda", "capability": "9.0", "card": "abc"}
        return Greeting(facts, {}, target, None)

    def calibrate(
        self, names: Sequence[str], large: Sequence[str], on_stage: object
    ) -> list[Ceiling]:
        self.machine.trouble(self.settings.device, "calibrate")
        return [Ceiling("memory", "measured", byte_per_s=4e12)]

    def measure(self, group: Group, _budget_s: float, _on_stage: object) -> list[Result]:
        self.machine.trouble(self.settings.device, "measure")
        took = self.machine.seconds.get(self.settings.device, 1e-3)
        return [result_of(case, took) for case in group.cases]

    def close(self) -> None:
        self.machine.closed.append(self.settings.device)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "fleet.json")
    monkeypatch.setattr(command, "devices_here", lambda: [f"cuda:{i}" for i in range(4)])
    monkeypatch.setattr(command, "Worker", lambda settings, hang_s: SimulatedGpu(made, settings))
    return made


def test_equal_gpus_pass_show_prints_the_same_and_a_slow_one_fails_beyond_the_threshold(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = machine.check()
    printed = capsys.readouterr().out
    assert main(["show", str(machine.path)]) == 0
    assert capsys.readouterr().out.strip() in printed
    assert code == 0
    assert [row["gpu"] for row in data["rows"]] == [i for i in range(4) for _ in (COPY, CASE)]
    assert sorted(machine.closed) == [f"cuda:{i}" for i in range(4)]
    assert data["device"]["card"] is None
    assert (data["kind"], data["schema_version"]) == ("fleet", 1)
    assert socket.gethostname() not in machine.path.read_text()
    machine.seconds = {"cuda:2": 1.2e-3}
    for words, code in (((), 1), (("--threshold", "30%"), 0)):
        machine.path.unlink()
        assert machine.check(*words)[0] == code


def test_the_file_s_device_is_the_first_gpu_whichever_is_done_first(machine: Machine) -> None:
    machine.names = {"cuda:0": "NVIDIA A100"}
    measured = threading.Event()

    def trouble(device: str, stage: str) -> None:
        if (device, stage) == ("cuda:0", "greet"):
            assert measured.wait(180)
        if (device, stage) == ("cuda:3", "measure"):
            measured.set()

    machine.trouble = trouble
    _, data = machine.check()
    assert data["device"]["name"] == "NVIDIA A100"
    assert [row["name"] for row in data["rows"][::2]] == ["NVIDIA A100", *["NVIDIA H200"] * 3]


def test_an_unforeseen_error_of_one_gpu_costs_its_own_rows_alone(machine: Machine) -> None:
    def trouble(device: str, stage: str) -> None:
        if (device, stage) == ("cuda:1", "calibrate"):
            raise KeyError

    machine.trouble = trouble
    code, data = machine.check()
    assert code == 1
    assert {row["gpu"] for row in data["rows"] if row["finding"] == FAILED} == {1}
    assert [row["gpu"] for row in data["rows"] if row["case"] == CASE] == [0, 2, 3]


def test_a_killed_process_and_a_missing_device_are_rows_with_reasons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Real processes, on the CPU."""

    class Killing(Worker):
        def measure(self, *words: Any, **more: Any) -> Any:
            pid = min(child.pid or 0 for child in multiprocessing.active_children())  # GPU 0's
            assert pid
            os.kill(pid, signal.SIGKILL)
            return super().measure(*words, **more)

    monkeypatch.setattr(command, "Worker", Killing)
    monkeypatch.setattr(command, "devices_here", lambda: ["cpu", "cuda:99"])
    path = tmp_path / "f.json"
    monkeypatch.setattr("microbench.__main__.FLEET_BACKEND", "cpu")
    assert main(["fleet", "--dtype=fp32", "--sizes=64", "--budget=0.5", f"--json={path}"]) == 1
    copied, killed, missing = json.loads(path.read_text())["rows"]
    assert (copied["case"], copied["status"]) == (COPY, "ok"), "before it died"
    assert "SIGKILL" in killed["reason"]
    assert "no CUDA device" in missing["reason"]
