"""Doctor: each bad condition, planted in facts, brings its finding alone; clean facts none."""

from __future__ import annotations

import io
import platform
import sys
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from microbench.device.device import DeviceInfo, describe
from microbench.device.doctor import CHECKS, Facts, examine, gather, judge
from microbench.device.doctor.facts import GIB, Finding
from microbench.device.doctor.host import VARIABLES
from microbench.device.host import WATCHED_VARIABLES
from microbench.device.nvml import GpuState
from microbench.report.doctor import print_findings, summary

OWN_PID = 4242
GPU = GpuState(
    driver_cuda=(13, 2), power_w=75.0, power_limit_w=700.0, power_limit_default_w=700.0,
    sm_clock_mhz=345, sm_clock_max_mhz=1980, application_clock_mhz=1980,
    application_clock_default_mhz=1980, event_reasons=0x1, temperature_c=35,
    temperature_margin_c=52, utilization_pct=0, ecc=True, ecc_pending=True, mig=False,
    persistence=True, pcie_width=16, pcie_width_max=16, pcie_generation=5, pcie_generation_max=5,
    virtualization="none", processes=((OWN_PID, GIB // 2),),
)  # fmt: skip
CLEAN = Facts(
    device=DeviceInfo(
        "NVIDIA H200", "cuda", (9, 0), 132, 140 * GIB, 60 << 20, "595.10", 700.0, 1980
    ),
    gpu=GPU,
    driver_present=True,
    software={"torch": "2.15.0", "cuda": "13.2", "triton": "3.9.0", "cupy": "14.2.0"},
    torch_architectures=("sm_80", "sm_90", "compute_120"),
    matmul_fp32="none",
    conv_fp32="tf32",
    own_pid=OWN_PID,
    cores_usable=16,
    cores_total=16,
    load_1min=0.4,
    governor="performance",
    device_free_bytes=139 * GIB,
    host_total_bytes=128 * GIB,
    host_free_bytes=100 * GIB,
    disk_free_bytes=50 * GIB,
)
CPU = replace(
    CLEAN,
    device=DeviceInfo("A CPU", "cpu", None, 16, 128 * GIB, 32 << 20),
    gpu=None,
    no_cuda="torch finds no NVIDIA driver or no GPU",
    driver_present=False,
    torch_architectures=(),
    cache_bytes=32 << 20,
    device_free_bytes=None,
)


def on_gpu(**state):
    return replace(CLEAN, gpu=replace(GPU, **state))


def with_variable(name, value, base=CLEAN):
    return replace(base, environment={name: value})


def find(facts, name):
    return next((finding for finding in judge(facts) if finding.name == name), None)


def test_clean_gpu_facts_are_all_ok():
    findings = judge(CLEAN)
    assert {finding.level for finding in findings} == {"ok"}
    assert all(finding.remedy is None for finding in findings)
    assert len({finding.name for finding in findings}) == len(findings)


def test_clean_cpu_facts_bring_nothing_above_a_note():
    levels = {finding.name: finding.level for finding in judge(CPU)}
    assert {name for name, level in levels.items() if level != "ok"} == {"device"}
    assert levels["device"] == "note"


PLANTED = [
    ("device", "note", replace(CPU, no_cuda=None), "also has a GPU"),
    ("device", "warning", replace(CPU, driver_present=True), "driver is installed, but torch"),
    ("libraries", "problem", replace(CLEAN, unimportable={"cupy": "ImportError: no"}), "cupy"),
    ("libraries", "note", replace(CPU, unimportable={"triton": "OSError: x"}), "OSError: x"),
    ("packages", "warning", replace(CLEAN, shadowed=("kernels",)), "halfway's: kernels"),
    ("driver", "problem", on_gpu(driver_cuda=(12, 8)), "supports CUDA 12.8, torch has 13.2"),
    ("driver", "note", on_gpu(driver_cuda=(13, 0)), "minor-version"),
    ("torch kernels", "problem", replace(CLEAN, torch_architectures=("sm_70",)), "only for sm_70"),
    ("tf32 switches", "note", replace(CLEAN, matmul_fp32="tf32"), "GEMMs are TF32"),
    ("sensors", "warning", replace(CLEAN, gpu=None), "NVML is missing"),
    ("sensors", "note", on_gpu(power_w=None, sm_clock_mhz=None), "power, SM clock (2 of 4)"),
    ("power limit", "warning", on_gpu(power_limit_w=500.0), "500 W, 29 % below"),
    ("clocks", "warning", on_gpu(application_clock_mhz=1200), "set to 1200 MHz, default 1980"),
    ("throttling", "warning", on_gpu(event_reasons=0x4 | 0x40), "power cap, thermal (NVML"),
    ("throttling", "note", on_gpu(event_reasons=0x10), "sync boost"),
    ("temperature", "warning", on_gpu(temperature_c=85, temperature_margin_c=3), "85 °C, 3 °C"),
    ("ecc", "note", on_gpu(ecc=False, ecc_pending=False), "ECC is off"),
    ("ecc", "warning", on_gpu(ecc=True, ecc_pending=False), "changes at the next reset"),
    ("mig", "warning", on_gpu(mig=True), "132 SMs"),
    ("persistence", "note", on_gpu(persistence=False), "off"),
    ("pcie", "warning", on_gpu(pcie_width=8), "x8 of x16"),
    ("pcie", "note", on_gpu(pcie_generation=1), "generation 1 of 5 (lower"),
    ("virtualization", "note", on_gpu(virtualization="passthrough"), "passed through"),
    ("virtualization", "warning", on_gpu(virtualization="vgpu"), "vgpu"),
    ("other processes", "warning", on_gpu(processes=((OWN_PID, 1), (7, 3 * GIB), (8, None))),
     "2 other process(es) on the GPU hold 3.0 GiB"),
    ("other processes", "note", on_gpu(processes=((7, GIB),)), "maybe this one"),
    ("other processes", "warning", on_gpu(processes=((7, GIB), (8, GIB))), "2.0 GiB"),
    ("busy", "warning", on_gpu(utilization_pct=97), "97 %"),
    ("gpu memory", "warning", replace(CLEAN, device_free_bytes=20 * GIB), "20.0 of 140.0 GiB"),
    ("cores", "note", replace(CLEAN, cores_usable=4), "4 of 16"),
    ("cores", "warning", replace(CLEAN, quota_cores=2.5), "quota of 2.5"),
    ("load", "warning", replace(CLEAN, load_1min=12.0), "12.0 on 16"),
    ("cpu governor", "note", replace(CLEAN, governor="powersave"), "powersave"),
    ("cpu governor", "warning", replace(CPU, governor="powersave"), "powersave"),
    ("virtual machine", "note", replace(CLEAN, virtual_machine=True), "virtual machine"),
    ("cache", "note", replace(CPU, cache_bytes=None), "32 MiB assumed"),
    ("host memory", "warning", replace(CLEAN, host_free_bytes=GIB), "1.0 of 128.0 GiB"),
    ("disk", "warning", replace(CLEAN, disk_free_bytes=GIB // 2), "0.5 GiB"),
]  # fmt: skip
PLANTED_VARIABLES = [
    ("CUDA_LAUNCH_BLOCKING", "problem", "1", "=1: every launch"),
    ("NVIDIA_TF32_OVERRIDE", "problem", "0", "=0: silently overrides"),
    ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "warning", "1", "=1: float32 GEMMs"),
    ("CUBLAS_WORKSPACE_CONFIG", "warning", ":16:8", "=:16:8: limits"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "warning", "0", "=0: every allocation"),
    ("TRITON_INTERPRET", "problem", "1", "=1: Triton kernels"),
    ("OMP_NUM_THREADS", "note", "4", "=4: fewer"),
]
PLANTED += [
    (name, level, with_variable(name, value), words)
    for name, level, value, words in PLANTED_VARIABLES
]


@pytest.mark.parametrize(("name", "level", "facts", "words"), PLANTED)
def test_a_planted_condition_is_found_and_no_other(name, level, facts, words):
    finding = find(facts, name)
    assert finding is not None
    assert (finding.level, bool(finding.remedy)) == (level, True)
    assert words in finding.what
    others = [f for f in judge(facts) if f.name != name and f.level in ("warning", "problem")]
    assert others == []
    assert (find(facts, "environment") is None) == bool(facts.environment), "called clean"


def test_every_check_is_planted():
    planted = {name for name, *_ in PLANTED}
    named = {finding.name for facts in (CLEAN, CPU) for finding in judge(facts)}
    assert named - planted == {"environment"}
    assert set(WATCHED_VARIABLES) == set(VARIABLES) <= planted
    assert len(CHECKS) == len(planted) + 1


@pytest.mark.parametrize(
    "facts",
    [
        with_variable("CUDA_LAUNCH_BLOCKING", "0"),
        with_variable("TRITON_INTERPRET", ""),
        with_variable("NVIDIA_TF32_OVERRIDE", ""),
        with_variable("OMP_NUM_THREADS", "16"),
        with_variable("OMP_NUM_THREADS", "many"),
        with_variable("TRITON_INTERPRET", "1", CPU),
        with_variable("NVIDIA_TF32_OVERRIDE", "0", CPU),
        on_gpu(power_limit_default_w=None),
        on_gpu(power_limit_w=699.9),
        on_gpu(processes=()),
        replace(CLEAN, quota_cores=64.0),
        replace(CLEAN, torch_architectures=("sm_75", "compute_80")),
        replace(CLEAN, torch_architectures=("sm_90a",)),
    ],
)
def test_harmless_variants_bring_nothing(facts):
    assert {finding.level for finding in judge(facts) if finding.name != "device"} == {"ok"}


def test_a_gpu_that_answers_nothing_warns_of_nothing():
    findings = judge(replace(CLEAN, gpu=GpuState()))
    assert {finding.level for finding in findings} == {"ok", "note"}
    assert [finding.name for finding in findings if finding.level == "note"] == ["sensors"]


def test_this_computer(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "not" / "there"))
    (tmp_path / "cupy.py").write_text("raise OSError('libcuda.so.1 is missing\\nmore')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    info = describe("cpu")
    facts = gather(info)
    assert facts.environment["OMP_NUM_THREADS"] == "1"
    assert facts.cores_usable == info.sm_count
    assert facts.disk_free_bytes is not None
    assert facts.unimportable["cupy"] == "OSError: libcuda.so.1 is missing"
    text = repr(examine(info)) + repr(facts)
    assert "hush-hush" not in text
    assert not platform.node() or platform.node() not in text.replace("localhost", "")


# ---------------------------------------------------------------- the screen

FINDINGS = [
    Finding("device", "ok", "NVIDIA H200, 132 SMs", "a remedy nobody needs"),
    Finding("power limit", "warning", "600 W, 14 % under " + "the default " * 20, "-pl 700"),
    Finding("driver", "problem", "driver 470 is too old for CUDA 13.0", "install a driver\x1b[31m"),
]


@pytest.mark.parametrize("width", [60, 100])
def test_levels_are_words_and_remedies_follow(width):
    file = io.StringIO()
    print_findings(FINDINGS, Console(file=file, width=width, highlight=False))
    text = file.getvalue()
    assert [word for word in ("ok ", "! warning", "problem", "→ -pl 700") if word not in text] == []
    assert "nobody needs" not in text
    assert "\x1b" not in text
    assert max(map(cell_len, text.splitlines())) <= width
    assert summary(FINDINGS).startswith("1 problem to fix before measuring (driver)")
    assert summary(FINDINGS[:1]).startswith("Ready to measure")
