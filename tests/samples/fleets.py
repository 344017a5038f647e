"""Simulated GPUs: rows of a fleet, and measuring processes that need no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.case import Target
from microbench.conditions import Conditions
from microbench.device.nvml import GpuState
from microbench.fleet_verdict import COPY, Fleet, GpuRow, Reading
from microbench.results.types import Ceiling, Result
from microbench.sweep import Group
from microbench.worker import Greeting

from .measuring import result_of

CASE = "fp16 8192 cublas"
HEALTHY = GpuState(
    power_limit_w=700.0, ecc=True, ecc_corrected=0, ecc_uncorrected=0, rows_failed=False,
    rows_pending=False, pcie_width=16, pcie_width_max=16, nvlinks=18, processes=((7, 1),),
)  # fmt: skip


def gpu_row(
    gpu: int, seconds: float = 1e-3, half: float = 0.002, state: GpuState = HEALTHY, **sensors: Any
) -> GpuRow:
    """A GPU on which the case takes so long, with an interval of ± `half` of it."""
    read = {"sm_clock_mhz": 1500.0, "power_w": 690.0, "temperature_c": 60.0} | sensors
    ends = (seconds * (1 - half), seconds * (1 + half))
    readings = (Reading(COPY, 1e9, 2.5e-4), Reading(CASE, 1e12, seconds, ends, **read))
    return GpuRow(gpu, "NVIDIA H200", None, None, readings, state)


def fleet_of(*rows: GpuRow, pct: float = 5.0, expected: int | None = None) -> Fleet:
    return Fleet(rows, pct, expected)


def changed(row: GpuRow, **state: Any) -> GpuRow:
    """The row with other answers of NVML."""
    assert row.state
    return replace(row, state=replace(row.state, **state))


@dataclass
class SimulatedGpu:
    """A measuring process of a GPU that is not there.

    `seconds` of its kernels by device; `trouble` may raise before a stage of a device: "greet",
    "calibrate", "measure" or "state".
    """

    settings: Conditions
    hang_s: float
    seconds: Mapping[str, float]
    trouble: Callable[[str, str], None]
    closed: list[str]

    def greet(self) -> Greeting:
        self.trouble(self.settings.device, "greet")
        target = Target("cuda", "NVIDIA H200", (9, 0), 132)
        facts = {"name": "NVIDIA H200", "kind": "cuda", "capability": "9.0", "card": "abc"}
        return Greeting(facts, {}, target, None)

    def ask(self, request: tuple[object, ...], _on_stage: object, _patience_s: float) -> Any:
        self.trouble(self.settings.device, str(request[0]))
        if request[0] == "state":
            return HEALTHY
        return [Ceiling("memory", "measured", byte_per_s=4e12)]

    def measure(self, group: Group, _budget_s: float, _on_stage: object) -> list[Result]:
        self.trouble(self.settings.device, "measure")
        took = self.seconds.get(self.settings.device, 1e-3)
        return [result_of(case, took) for case in group.cases]

    def close(self) -> None:
        self.closed.append(self.settings.device)
