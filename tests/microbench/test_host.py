"""Facts of the computer: this one's for real, other ones' from planted /proc and /sys files."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from samples.kernel_runs import h200_run, shown

from microbench.device import host
from microbench.device.host import LOAD, LoadMeter, at_start, cpu_seconds, others_now
from microbench.device.telemetry import GpuState
from microbench.verdict import load_warnings

MIB = 2**20


@pytest.fixture
def plant(tmp_path):
    """Writes files under a made-up root; returns the root."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_nothing_to_read_gives_none_and_a_cpu_has_some_name(tmp_path, plant):
    readers = (host.memory_bytes, host.available_memory_bytes, host.cpu_quota_cores,
               host.cpu_governor, host.last_level_cache_bytes)  # fmt: skip
    assert [read(tmp_path) for read in readers] == [None] * len(readers)
    assert host.cpu_name(tmp_path)
    root = plant({"proc/cpuinfo": "model name\t: Fast CPU @ 3 GHz\nflags\t: fpu hypervisor sse\n"})
    assert host.cpu_name(root) == "Fast CPU @ 3 GHz"


MEMINFO = "MemTotal:  8192 kB\nMemAvailable:  4096 kB\n"
V2 = {"proc/self/cgroup": "0::/\n"}


@pytest.mark.parametrize(
    ("read", "files", "expected"),
    [
        (host.available_memory_bytes, {}, 4 * MIB),
        (
            host.available_memory_bytes,
            {  # v2, limit in the parent
                "proc/self/cgroup": "0::/box/inner\n",
                "sys/fs/cgroup/box/memory.max": str(3 * MIB),
                "sys/fs/cgroup/box/memory.current": str(2 * MIB),
                "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {MIB // 2}\n",
                "sys/fs/cgroup/box/inner/memory.max": "max",
            },
            3 * MIB // 2,
        ),
        (
            host.available_memory_bytes,
            {  # v1, root unlimited
                "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/box\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(2 * MIB),
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes": str(MIB),
            },
            MIB,
        ),
        (host.cpu_quota_cores, V2 | {"sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5),
        (host.cpu_quota_cores, V2 | {"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (
            host.cpu_quota_cores,
            {  # v1
                "proc/self/cgroup": "3:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "150000",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            1.5,
        ),
    ],
)
def test_control_groups_limit_memory_and_cores(plant, read, files, expected):
    assert read(plant({"proc/meminfo": MEMINFO, **files})) == expected


def test_this_computer_and_a_shared_cache_that_counts_once(plant, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    files = {}
    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        for index, level, size, kind in ((0, 1, "32K", "Instruction"), (3, 3, "16M", "Unified")):
            folder = f"sys/devices/system/cpu/cpu{core}/cache/index{index}"
            sharers = shared if level == 3 else str(core)
            files |= {f"{folder}/level": f"{level}\n", f"{folder}/size": f"{size}\n"}
            files |= {f"{folder}/type": kind, f"{folder}/shared_cpu_list": sharers}
    assert host.last_level_cache_bytes(plant(files)) == 32 * MIB
    assert host.cpu_name()
    assert host.usable_cores() == len(os.sched_getaffinity(0))
    assert 0 < (host.available_memory_bytes() or 0) <= (host.memory_bytes() or 0)
    versions = host.software()
    keys = ["project", "python", "torch", "triton", "cupy", "cuda", "cudnn", "cublas"]
    assert list(versions) == keys
    assert versions["python"] == "{}.{}.{}".format(*sys.version_info)
    assert versions["torch"]
    assert all(value is None or re.match(r"unknown$|\d+\.", value) for value in versions.values())
    numbers = (92600, 91002, 8907, 8500)
    assert [host.cudnn_version(n) for n in numbers] == ["9.26.0", "9.10.2", "8.9.7", "8.5.0"]
    if found := cpu_seconds():  # None without /proc
        busy_s, own_s = found
        assert 0 < own_s <= busy_s


def test_a_family_is_this_process_and_all_below_it_whatever_their_names(plant):
    def stat(pid, parent):
        return f"{pid} (a) b (c)) S {parent} " + " ".join(map(str, range(2, 40)))

    own = os.getpid()
    parents = {own: 1, own + 1: own, own + 2: own + 1, own + 3: 1}
    root = plant({f"proc/{pid}/stat": stat(pid, parent) for pid, parent in parents.items()}
                 | {f"proc/{own + 4}/stat": "", "proc/self/stat": stat(own, 1)})  # fmt: skip
    found = host.family(root)
    assert list(found) == [own, own + 1, own + 2]
    assert found[own][host.CPU_TICKS] == ["11", "12", "13", "14"]


# ---------------------------------------------------------------- load


def test_the_largest_share_of_a_resumed_run_is_kept() -> None:
    readings = iter([(0.0, 0.0), (1e9, 0.0)])
    held = LoadMeter(lambda: next(readings)).noted({LOAD: {"load_average_per_core": 0.1}})
    assert held[LOAD] == {"load_average_per_core": 0.1, "cpu_share_of_others": 1.0}
    idle = iter([(0.0, 0.0), (0.0, 0.0)])
    assert LoadMeter(lambda: next(idle)).noted(held) == held
    assert LoadMeter(lambda: None).noted({"l2": "cold"}) == {"l2": "cold"}
    own = iter([(100.0, 10.0), (100.0 + 3e9, 10.0 + 3e9)])
    assert LoadMeter(lambda: next(own)).share() == 0.0, "its own time is no load of others"


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
    text = " ".join(shown(replace(h200_run(), settings={LOAD: load})).split())
    assert all(one in text for one in said)


def test_other_programs_on_the_gpu_are_counted_and_said() -> None:
    """At the end one of the processes is this one, under whatever id."""
    gpu = GpuState(utilization_pct=97, processes=((1, 10**9), (2, 2 * 10**9)))
    assert others_now(gpu) == 1
    assert others_now(GpuState()) == others_now(None) == 0
    settings = LoadMeter(lambda: None).noted({LOAD: at_start(replace(gpu, processes=()))}, 1)
    said = " ".join(warning.symptom for warning in load_warnings(settings))
    assert "computed on the GPU before the run (97 % of the time)" in said
    assert "1 other process was on the GPU at the end of the run" in said
