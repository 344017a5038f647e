"""The device's description, and NVML behind a fake pynvml that refuses what the test says."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels.case import Target
from microbench.device import device
from microbench.device.device import DeviceInfo, describe
from microbench.device.nvml import GpuState, NvmlGpu
from microbench.errors import UserError

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


@pytest.mark.parametrize(
    "name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "cpu:0", "cuda:²"]
)
def test_unknown_device_lists_the_choices(name):
    with pytest.raises(UserError, match="choose from auto, cuda, cuda:N, cpu") as error:
        describe(name)
    assert repr(name) in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_cuda_without_a_gpu_says_what_to_do():
    with pytest.raises(UserError, match=r"^no CUDA device here: .*; use --device cpu$"):
        describe("cuda:0")


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


def test_as_dict_is_the_run_files_object_and_names_no_computer():
    facts = H200.as_dict()
    assert list(facts) == SCHEMA
    assert facts["capability"] == "9.0"
    here = describe("cpu").as_dict()
    assert here["capability"] is None
    machine_id = Path("/etc/machine-id")
    for secret in (platform.node(), machine_id.read_text().strip() if machine_id.exists() else ""):
        assert not secret or secret not in json.dumps(here)


def test_missing_driver_gives_no_nvml(monkeypatch):
    def fail():
        raise NvmlError

    fake = SimpleNamespace(nvmlInit=fail, NVMLError=NvmlError)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    device.load_nvml.cache_clear()
    assert device.load_nvml() is None
    device.load_nvml.cache_clear()


# --- NVML


def test_the_card_is_a_hash_of_its_uuid():
    assert gpu(nvmlDeviceGetUUID=UUID).card() == gpu(nvmlDeviceGetUUID=UUID.encode()).card() == CARD
    assert gpu(nvmlDeviceGetUUID=UUID.replace("1", "9")).card() != CARD
    assert gpu().card() is None
    assert describe("cpu").card is None


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"nvmlDeviceGetFieldValues": power_field(612_500)}, 612.5),
        ({"nvmlDeviceGetFieldValues": power_field(9, 3), "nvmlDeviceGetPowerUsage": 70_000}, 70.0),
        ({"nvmlDeviceGetPowerUsage": 71_000}, 71.0),
        ({}, None),
    ],
    ids=["instant", "field refused", "call refused", "nothing"],
)
def test_power_falls_back(answers, expected):
    assert gpu(**answers).power_w() == expected


def test_event_reasons_fall_back_to_the_old_name():
    assert gpu(nvmlDeviceGetCurrentClocksThrottleReasons=4).event_reasons() == 4
    both = {"EventReasons": 0, "ThrottleReasons": 4}
    answers = {f"nvmlDeviceGetCurrentClocks{name}": mask for name, mask in both.items()}
    assert gpu(**answers).event_reasons() == 0


@pytest.mark.parametrize("nvml", [FakeNvml(), SimpleNamespace(NVMLError=NvmlError)])
def test_a_card_that_refuses_everything_or_has_old_bindings_has_an_empty_state(nvml):
    assert NvmlGpu(nvml, "handle").state() == GpuState()


def test_state_in_our_units():
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
