"""The device and NVML behind a fake one, facts of the computer, and what doctor finds."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from samples.commands import wait_for
from samples.kernel_runs import h200_run, shown

from kernels.case import Target
from microbench.commands import report_of_findings
from microbench.device import device, doctor, host
from microbench.device.device import DeviceInfo, describe
from microbench.device.doctor import GIB, VARIABLES, Finding, examine
from microbench.device.host import LOAD, LoadMeter, at_start, cpu_seconds, others_now
from microbench.device.telemetry import (
    GpuState,
    NvmlGpu,
    Telemetry,
    TelemetrySummary,
)
from microbench.errors import UserError
from microbench.report.screen import print_report
from microbench.verdict import load_warnings

SCHEMA = [
    "name", "kind", "capability", "sm_count", "memory_bytes", "l2_bytes", "driver",
    "power_limit_w", "sm_clock_max_mhz", "card",
]  # fmt: skip
H200 = DeviceInfo("NVIDIA H200", "cuda", (9, 0), 132, 150 << 30, 60 << 20, "580.1", 700.0, 1980, 3)


UUID = "GPU-11111111-2222-3333-4444-555555555555"
CARD = hashlib.sha256(f"halfway {UUID}".encode()).hexdigest()[:12]


class NvmlError(Exception):
    """Stands for pynvml.NVMLError."""


class FakeNvml:
    """A pynvml that answers what it was given and refuses the rest."""

    NVMLError = NvmlError

    def __init__(self, **answers):
        self.answers = answers
        self.calls = []

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*args):
            self.calls.append((name, args))
            if name not in self.answers:
                raise NvmlError(name)
            answer = self.answers[name]
            return answer(*args) if callable(answer) else answer

        return call


def gpu(**answers):
    return NvmlGpu(FakeNvml(**answers), "handle")


def power_field(milliwatts, status=0):
    return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=milliwatts))]


# --- description


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_auto_without_a_gpu_is_this_cpu():
    info = describe("auto")
    assert info == describe("cpu")
    assert info.kind == "cpu"
    assert info.sm_count == len(os.sched_getaffinity(0))
    assert info.l2_bytes > 0
    assert info.target() == Target("cpu", info.name, None, info.sm_count, 0)
    assert device.free_memory_bytes(info)
    assert device.gpu_state(info) is None
    assert device.open_sensors(info) is None
    assert info.card is None
    with pytest.raises(UserError, match=r"^no CUDA device here: .*; use --device cpu$"):
        describe("cuda:0")


@pytest.mark.parametrize(
    "name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "cpu:0", "cuda:²"]
)
def test_unknown_device_lists_the_choices(name):
    with pytest.raises(UserError, match="choose from auto, cuda, cuda:N, cpu") as error:
        describe(name)
    assert repr(name) in str(error.value)


@pytest.fixture
def two_gpus(monkeypatch):
    """Torch sees two GPUs, at PCI addresses that NVML knows under other indices."""
    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150 << 30,
        L2_cache_size=60 << 20, pci_domain_id=1, pci_bus_id=0x1B, pci_device_id=0,
    )  # fmt: skip
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def test_cuda_meets_nvml_at_the_pci_address(two_gpus, monkeypatch):
    limits = {"00000001:1B:00.0": 650_000}
    nvml = FakeNvml(
        nvmlDeviceGetHandleByPciBusId=lambda address: address,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: limits[handle],
        nvmlDeviceGetMaxClockInfo=1980,
        nvmlSystemGetDriverVersion="580.95",
        nvmlDeviceGetUUID=UUID,
    )
    monkeypatch.setattr(device, "load_nvml", lambda: nvml)
    info = describe("cuda:1")
    assert info.card == CARD
    assert UUID not in json.dumps(info.as_dict())
    assert (info.driver, info.power_limit_w, info.sm_clock_max_mhz) == ("580.95", 650.0, 1980)
    assert info.target() == Target("cuda", "NVIDIA H200", (9, 0), 132, 1)
    assert describe("auto").index == describe("cuda").index == 0
    with pytest.raises(UserError, match=r"no device cuda:2 here; choose from cuda:0, cuda:1, cpu"):
        describe("cuda:2")


@pytest.mark.parametrize("nvml", [None, FakeNvml()], ids=["no NVML", "NVML refuses all"])
def test_cuda_without_nvml_still_describes(two_gpus, monkeypatch, nvml):
    monkeypatch.setattr(device, "load_nvml", lambda: nvml)
    info = describe("cuda")
    assert (info.sm_count, info.driver, info.power_limit_w) == (132, None, None)
    assert info.card is None
    assert device.open_sensors(info) is None


@pytest.mark.parametrize(
    ("cuda", "visible", "reason"),
    [(None, None, "without CUDA"), ("13.2", "", "hides"), ("13.2", "-1", "hides"),
     ("13.2", "0", "driver")],
)  # fmt: skip
def test_why_no_cuda(monkeypatch, cuda, visible, reason):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert reason in (device.why_no_cuda() or "")


def test_a_device_names_no_computer_its_card_is_a_hash_and_it_needs_a_driver(monkeypatch) -> None:
    facts = H200.as_dict()
    assert list(facts) == SCHEMA
    assert facts["capability"] == "9.0"
    here = describe("cpu").as_dict()
    assert here["capability"] is None
    machine_id = Path("/etc/machine-id")
    for secret in (platform.node(), machine_id.read_text().strip() if machine_id.exists() else ""):
        assert not secret or secret not in json.dumps(here)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    device.load_nvml.cache_clear()
    assert device.load_nvml() is None
    device.load_nvml.cache_clear()
    assert gpu(nvmlDeviceGetUUID=UUID).card() == gpu(nvmlDeviceGetUUID=UUID.encode()).card() == CARD
    assert gpu(nvmlDeviceGetUUID=UUID.replace("1", "9")).card() != CARD
    assert gpu().card() is None


# --- NVML


@pytest.mark.parametrize(
    ("reading", "answers", "expected"),
    [
        ("power_w", {"FieldValues": power_field(612_500)}, 612.5),
        ("power_w", {"FieldValues": power_field(9, 3), "PowerUsage": 70_000}, 70.0),
        ("power_w", {"PowerUsage": 71_000}, 71.0),
        ("power_w", {}, None),
        ("event_reasons", {"CurrentClocksThrottleReasons": 4}, 4),
        ("event_reasons", {f"CurrentClocks{name}Reasons": mask
                           for name, mask in (("Event", 0), ("Throttle", 4))}, 0),
    ],
)  # fmt: skip
def test_a_reading_falls_back_to_an_older_call(reading, answers, expected):
    card = gpu(**{f"nvmlDeviceGet{name}": answer for name, answer in answers.items()})
    assert getattr(card.readings(), reading) == expected


def test_state_in_our_units_and_none_of_a_card_that_refuses_all():
    assert gpu().state() == GpuState()
    state = gpu(
        nvmlSystemGetCudaDriverVersion=13020,
        nvmlDeviceGetEnforcedPowerLimit=500_000,
        nvmlDeviceGetPowerManagementDefaultLimit=700_000,
        nvmlDeviceGetTemperature=80,
        nvmlDeviceGetTemperatureThreshold=92,
        nvmlDeviceGetMigMode=[0, 1],
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=0, memory=3),
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=7, usedGpuMemory=None, x=1)],
    ).state()
    assert state.driver_cuda == (13, 2)
    assert (state.power_limit_w, state.power_limit_default_w) == (500.0, 700.0)
    assert state.temperature_margin_c == 12
    assert state.mig is False
    assert state.utilization_pct == 0
    assert state.processes == ((7, None),)
    card = gpu(nvmlDeviceGetMarginTemperature=40, nvmlDeviceGetTemperature=80,
               nvmlDeviceGetTemperatureThreshold=92)  # fmt: skip
    assert card.state().temperature_margin_c == 40, "the card's own is preferred"


def test_the_real_binding_has_every_call_we_make():
    pynvml = pytest.importorskip("pynvml")
    fake = FakeNvml()
    card = NvmlGpu(fake, "handle")
    card.state(), card.driver()
    asked = {name for name, _ in fake.calls} | {"nvmlDeviceGetHandleByPciBusId", "nvmlInit"}
    assert not [name for name in asked if not hasattr(pynvml, name)]
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == 186
    assert pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN == 1
    assert pynvml.NVML_CLOCK_SM == 1
    assert (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC) == (0, 0)
    assert pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED == 1
    assert pynvml.NVML_NVLINK_MAX_LINKS >= 18
    assert not [name for name in asked if "Set" in name or "Reset" in name]


# ---------------------------------------------------------------- telemetry


def sensors(**values: list):
    """Each reading gives the next value of its list, and its last value from then on."""

    def readings():
        return GpuState(
            **{name: left.pop(0) if len(left) > 1 else left[0] for name, left in values.items()}
        )

    return SimpleNamespace(readings=readings)


def test_means_are_of_what_was_read_and_kept_apart_while_arms_alternate():
    power = [100, 500, None, None, 200, 700]
    telemetry = Telemetry(sensors(power_w=power, sm_clock_mhz=[1980, 1500, 1980, 1400, None]))
    for arm in ("fp32", "fp16") * 3:
        with telemetry.during(arm):
            telemetry.poll()
    assert telemetry.summary("fp32") == TelemetrySummary(150, 1980, None, (), 3)
    assert telemetry.summary("fp16") == TelemetrySummary(600, 1450, None, (), 3)
    # Throttle is the union over samples, and utilization keeps every reading.
    reasons = [0x4, 0x1, 0x20 | 0x4, 0x40, 0x8 | 0x80]
    telemetry = Telemetry(sensors(event_reasons=reasons, utilization_pct=[10, 90, None, 50, 60]))
    with telemetry.during("a"):
        for _ in range(5):
            telemetry.poll()
    found = telemetry.summary("a")
    assert found.throttle == ("power cap", "thermal", "power brake", "hw slowdown")
    assert found.utilization_pct == (10, 90, 50, 60)


@pytest.mark.parametrize("polls", [0, 1])
def test_a_segment_has_a_sample_at_its_end_where_it_got_none_before(polls):
    telemetry = Telemetry(sensors(power_w=[1.0, 99.0]))
    telemetry.poll()  # between segments a sample belongs to none
    assert telemetry.summary("a") == TelemetrySummary()
    with telemetry.during("a"):
        for _ in range(polls):
            telemetry.poll()
    assert telemetry.summary("a") == TelemetrySummary(power_w=1.0, samples=1)
    with pytest.raises(KeyError), telemetry.during("broken"):
        raise KeyError
    with telemetry.during("next"):
        pass
    assert telemetry.summary("next").samples == 1


def test_sample_that_outlives_its_segment_is_dropped():
    reading, ended = threading.Event(), threading.Event()
    sampler = threading.Thread(target=lambda: telemetry.poll())

    def readings():
        if threading.current_thread() is not sampler:
            return GpuState(power_w=10.0)
        reading.set()
        ended.wait(180)
        return GpuState(power_w=999.0)

    telemetry = Telemetry(SimpleNamespace(readings=readings))
    with telemetry.during("first"):
        sampler.start()
        reading.wait(180)
    with telemetry.during("second"):
        ended.set()
        sampler.join()
    assert telemetry.summary("first") == TelemetrySummary(power_w=10.0, samples=1)
    assert telemetry.summary("second") == TelemetrySummary(power_w=10.0, samples=1)


def test_a_thread_polls_and_ends_and_there_is_none_without_sensors():
    before = threading.active_count()
    with Telemetry(sensors(power_w=[7.0]), interval_s=0.001) as telemetry, telemetry.during("a"):
        wait_for(lambda: telemetry.summary("a").samples >= 3)
    assert telemetry.summary("a").power_w == 7.0
    assert threading.active_count() == before
    with Telemetry(None) as telemetry, telemetry.during("a"):
        assert threading.active_count() == before
        telemetry.poll()
    assert telemetry.summary("a") == TelemetrySummary()


# ---------------------------------------------------------------- the computer


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


# ---------------------------------------------------------------- doctor


GPU = GpuState(
    driver_cuda=(13, 2), power_w=75.0, power_limit_w=700.0, power_limit_default_w=700.0,
    sm_clock_mhz=345, application_clock_mhz=1980,
    application_clock_default_mhz=1980, event_reasons=0x1, temperature_c=35,
    temperature_margin_c=52, utilization_pct=0, mig=False, pcie_width=16, pcie_width_max=16,
    processes=((os.getpid(), GIB // 2),),
)  # fmt: skip
INFO = DeviceInfo("NVIDIA H200", "cuda", (9, 0), 132, 140 * GIB, 60 << 20, "595.10", 700.0, 1980)
CPU = DeviceInfo("A CPU", "cpu", None, 16, 128 * GIB, 32 << 20)
NO_GPU = "torch finds no NVIDIA driver or no GPU"
Judge = Callable[..., list[Finding]]


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Examine a machine that is clean but for what is planted."""

    def examined(
        *, info: DeviceInfo = INFO, gpu: GpuState | None = GPU, no_cuda: str | None = NO_GPU,
        driver: bool = False, built: tuple[str, ...] = ("sm_80", "sm_90", "compute_120"),
        usable: int = 16, quota: float | None = None, load: float = 0.4,
        governor: str | None = "performance", broken: str = "",
        variables: dict[str, str] | None = None,
    ) -> list[Finding]:  # fmt: skip
        for name in (*VARIABLES, "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (variables or {}).items():
            monkeypatch.setenv(name, value)
        for place, name, answer in (
            (doctor, "gpu_state", lambda _: gpu if info.kind == "cuda" else None),
            (doctor, "why_no_cuda", lambda: no_cuda),
            (host, "has_driver", lambda: driver),
            (doctor, "OPTIONAL_LIBRARIES", (broken,) if broken else ("json",)),
            (host, "software", lambda: {"torch": "2.15.0", "cuda": "13.2"}),
            (host, "usable_cores", lambda: usable),
            (host, "cpu_quota_cores", lambda: quota),
            (host, "cpu_governor", lambda: governor),
            (os, "cpu_count", lambda: 16),
            (os, "getloadavg", lambda: (load, load, load)),
            (torch.cuda, "get_arch_list", lambda: list(built)),
        ):
            monkeypatch.setattr(place, name, answer)
        return examine(info)

    return examined


def on_gpu(**state: Any) -> dict[str, Any]:
    return {"gpu": replace(GPU, **state)}


@pytest.mark.parametrize(
    ("planted", "notes"),
    [({}, {}), ({"info": CPU}, {"device": "note"}), ({"gpu": GpuState()}, {"sensors": "note"})],
    ids=["a clean GPU", "a clean CPU", "a GPU that answers nothing"],
)
def test_a_clean_machine_brings_nothing_above_a_note(
    judge: Judge, planted: dict[str, Any], notes: dict[str, str]
) -> None:
    findings = judge(**planted)
    levels = {finding.name: finding.level for finding in findings}
    assert len(levels) == len(findings)
    assert {name: level for name, level in levels.items() if level != "ok"} == notes
    assert notes or not any(finding.remedy for finding in findings)


PLANTED: list[tuple[str, str, dict[str, Any], str]] = [
    ("device", "note", {"info": CPU, "no_cuda": None}, "also a GPU"),
    ("device", "warning", {"info": CPU, "driver": __file__}, "driver is installed, but torch"),
    ("not_there", "problem", {"broken": "not_there"}, "cannot be imported (ModuleNotFoundError"),
    ("not_there", "note", {"info": CPU, "broken": "not_there"}, "No module named"),
    ("driver", "problem", on_gpu(driver_cuda=(12, 8)), "supports CUDA 12.8, torch has 13.2"),
    ("driver", "note", on_gpu(driver_cuda=(13, 0)), "supports CUDA 13.0"),
    ("torch kernels", "problem", {"built": ("sm_70",)}, "only for sm_70"),
    ("sensors", "warning", {"gpu": None}, "NVML is missing"),
    ("sensors", "note", on_gpu(power_w=None, sm_clock_mhz=None), "power, SM clock"),
    ("power limit", "warning", on_gpu(power_limit_w=500.0), "500 W of 700 W"),
    ("clocks", "warning", on_gpu(application_clock_mhz=1200), "1200 MHz of 1980 MHz"),
    ("throttling", "warning", on_gpu(event_reasons=0x4 | 0x40), "power cap, thermal"),
    ("temperature", "warning", on_gpu(temperature_c=85, temperature_margin_c=3), "85 °C, 3 °C"),
    ("mig", "warning", on_gpu(mig=True), "132 SMs"),
    ("pcie", "warning", on_gpu(pcie_width=8), "x8 of x16"),
    ("other processes", "warning", on_gpu(processes=((os.getpid(), 1), (7, 3 * GIB), (8, None))),
     "2 other process(es) on the GPU hold 3.0 GiB"),
    ("busy", "warning", on_gpu(utilization_pct=97), "97 %"),
    ("cores", "note", {"usable": 4}, "4 of 16"),
    ("cores", "warning", {"quota": 2.5}, "quota of 2.5"),
    ("load", "warning", {"load": 12.0}, "12.0 on 16"),
    ("cpu governor", "warning", {"info": CPU, "governor": "powersave"}, "powersave"),
    ("CUDA_LAUNCH_BLOCKING", "problem", {"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}, "=1: every"),
    ("NVIDIA_TF32_OVERRIDE", "problem", {"variables": {"NVIDIA_TF32_OVERRIDE": "0"}}, "=0: silent"),
    ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "warning",
     {"variables": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}}, "=1: float32 GEMMs"),
    ("CUBLAS_WORKSPACE_CONFIG", "warning", {"variables": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}},
     "=:16:8: limits"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "warning",
     {"variables": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}}, "=0: every allocation"),
    ("TRITON_INTERPRET", "problem", {"variables": {"TRITON_INTERPRET": "1"}}, "=1: Triton kernels"),
    ("OMP_NUM_THREADS", "note", {"variables": {"OMP_NUM_THREADS": "4"}}, "=4: fewer"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "level", "planted", "words"), PLANTED)
def test_a_planted_condition_is_found_and_no_other(
    judge: Judge, name: str, level: str, planted: dict[str, Any], words: str
) -> None:
    findings = judge(**planted)
    (found,) = [finding for finding in findings if finding.name == name]
    assert (found.level, bool(found.remedy)) == (level, True)
    assert words in found.what
    assert [f for f in findings if f is not found and f.level in ("warning", "problem")] == []


def test_every_variable_that_is_watched_is_judged_and_planted() -> None:
    names = {name for name, *_ in PLANTED}
    assert set(VARIABLES) <= names


@pytest.mark.parametrize(
    "planted",
    [
        *({"variables": {name: value}}
          for name, value in (("CUDA_LAUNCH_BLOCKING", "0"), ("TRITON_INTERPRET", ""),
                              ("NVIDIA_TF32_OVERRIDE", ""), ("OMP_NUM_THREADS", "16"),
                              ("OMP_NUM_THREADS", "many"))),
        {"variables": {"TRITON_INTERPRET": "1", "NVIDIA_TF32_OVERRIDE": "0"}, "info": CPU},
        on_gpu(power_limit_default_w=None), on_gpu(power_limit_w=699.9), on_gpu(processes=()),
        {"quota": 64.0}, {"built": ("sm_75", "compute_80")}, {"built": ("sm_90a",)},
        {"governor": "powersave"},
    ],
)  # fmt: skip
def test_harmless_variants_bring_nothing(judge: Judge, planted: dict[str, Any]) -> None:
    assert {finding.level for finding in judge(**planted) if finding.name != "device"} == {"ok"}


def test_this_computer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush")
    (tmp_path / "cupy.py").write_text("raise OSError('libcuda.so.1 is missing\\nmore')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    text = repr(examine(describe("cpu")))
    assert "cupy cannot be imported (OSError: libcuda.so.1 is missing)" in text
    assert "hush-hush" not in text
    assert not platform.node() or platform.node() not in text.replace("localhost", "")


# ---------------------------------------------------------------- the screen

FINDINGS = [
    Finding("device", "ok", "NVIDIA H200, 132 SMs"),
    Finding("power limit", "warning", "600 W, 14 % under " + "the default " * 20, "-pl 700"),
    Finding("driver", "problem", "driver 470 is too old for CUDA 13.0", "install a driver\x1b[31m"),
]


@pytest.mark.parametrize("width", [60, 100])
def test_problems_come_first_and_have_their_remedies(width: int) -> None:
    file = io.StringIO()
    print_report(report_of_findings(FINDINGS), Console(file=file, width=width, highlight=False))
    text = file.getvalue()
    assert [word for word in ("ok ", "warning", "problem", "-pl 700") if word not in text] == []
    assert text.startswith("1 problem (driver): results would be wrong or missing")
    assert "\x1b" not in text
    assert max(map(cell_len, text.splitlines())) <= width
    assert report_of_findings(FINDINGS[:1]).finding.startswith("Ready to measure")
