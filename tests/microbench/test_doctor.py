"""Doctor: each bad condition, planted where it is read, brings its finding alone."""

from __future__ import annotations

import io
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from microbench.commands import report_of_findings
from microbench.device import doctor, host
from microbench.device.device import DeviceInfo, describe
from microbench.device.doctor import GIB, VARIABLES, Finding, examine
from microbench.device.telemetry import GpuState
from microbench.report.screen import print_report

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
