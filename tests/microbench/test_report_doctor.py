"""The doctor's screen."""

from __future__ import annotations

import io

from rich.cells import cell_len
from rich.console import Console

from microbench.device.doctor.facts import Finding
from microbench.report.doctor import print_findings, summary

FINDINGS = [
    Finding("device", "ok", "NVIDIA H200, 132 SMs", "a remedy nobody needs"),
    Finding("virtual machine", "note", "a hypervisor runs this machine", "repeat the run"),
    Finding(
        "power limit", "warning", "600 W, 14 % under " + "the default " * 20, "nvidia-smi -pl 700"
    ),
    Finding("driver", "problem", "driver 470 is too old for CUDA 13.0", "install a driver\x1b[31m"),
]


def shown(findings: list[Finding], width: int = 100) -> str:
    file = io.StringIO()
    print_findings(findings, Console(file=file, width=width, highlight=False))
    return file.getvalue()


def test_levels_are_words_and_remedies_follow() -> None:
    text = shown(FINDINGS)
    for word in (
        "ok ",
        "note ",
        "! warning",
        "problem",
        "→ nvidia-smi -pl 700",
        "→ repeat the run",
    ):
        assert word in text
    assert "nobody needs" not in text
    assert "\x1b" not in text
    for width in (60, 100):
        assert max(cell_len(line) for line in shown(FINDINGS, width).splitlines()) <= width


def test_last_sentence() -> None:
    assert summary(FINDINGS).startswith("1 problem to fix before measuring (driver)")
    assert "1 warning (power limit)" in summary(FINDINGS)
    assert summary(FINDINGS[:2]).startswith("Ready to measure")
    assert shown([]).startswith("Ready to measure")
