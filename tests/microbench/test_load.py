"""Load of the machine: what is counted, and when a report warns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples.kernel_runs import h200_run, shown

from microbench.device.load import LOAD, LoadMeter, at_start, others_now, reading
from microbench.device.nvml import GpuState
from microbench.report.notes import load_warnings


def test_the_largest_share_of_a_resumed_run_is_kept() -> None:
    readings = iter([(0.0, 0.0), (1e9, 0.0)])
    held = LoadMeter(lambda: next(readings)).noted({LOAD: {"load_average_per_core": 0.1}})
    assert held[LOAD] == {"load_average_per_core": 0.1, "cpu_share_of_others": 1.0}
    idle = iter([(0.0, 0.0), (0.0, 0.0)])
    assert LoadMeter(lambda: next(idle)).noted(held) == held
    assert LoadMeter(lambda: None).noted({"l2": "cold"}) == {"l2": "cold"}
    own = iter([(100.0, 10.0), (100.0 + 3e9, 10.0 + 3e9)])
    assert LoadMeter(lambda: next(own)).share() == 0.0, "its own time is no load of others"


def test_a_reading_of_this_machine_holds_its_own_part() -> None:
    found = reading()
    if found is None:
        pytest.skip("no /proc")
    busy_s, own_s = found
    assert 0 < own_s <= busy_s


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({}, []),
        ({"cpu_share_of_others": 0.4, "load_average_per_core": 0.4, "gpu_processes": 0}, []),
        ({"cpu_share_of_others": 0.63}, ["other programs used 63 % of the CPU during the run"]),
        ({"load_average_per_core": 0.8}, ["the load average was 0.80 per core before the run"]),
        ({"gpu_processes": 2, "gpu_bytes": 3e9}, ["2 other processes held 3.0 GB on the GPU"]),
    ],
)
def test_a_loaded_machine_is_a_warning(load: dict[str, Any], said: list[str]) -> None:
    found = load_warnings({LOAD: load})
    assert len(found) == len(said)
    assert all(text in w.symptom for text, w in zip(said, found, strict=True))
    text = shown(replace(h200_run(), settings={LOAD: load}))
    assert ("The machine was busy" in text) == bool(said)


def test_other_programs_on_the_gpu_are_counted_and_said() -> None:
    """At the end one of the processes is this one, under whatever id."""
    gpu = GpuState(utilization_pct=97, processes=((1, 10**9), (2, 2 * 10**9)))
    assert others_now(gpu) == 1
    assert others_now(GpuState()) == others_now(None) == 0
    settings = LoadMeter(lambda: None).noted({LOAD: at_start(replace(gpu, processes=()))}, 1)
    said = " ".join(warning.symptom for warning in load_warnings(settings))
    assert "computed on the GPU before the run (97 % of the time)" in said
    assert "1 other process was on the GPU at the end of the run" in said
