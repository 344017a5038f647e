"""On a GPU: scripts whose kernels fault or do not end, under `diagnose`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from samples.commands import ROOT, environment
from samples.processes import MARK, marked, wait_for

SCRIPT = """import sys
import torch
from samples import bad_gpu_kernels

fault = getattr(bad_gpu_kernels, sys.argv[1])
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 64, device="cuda")
for step in range(100):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == int(sys.argv[2]):
        print("now", flush=True)
        fault(x)
        torch.cuda.synchronize()
"""
AT = {"before it is timed": 1, "while it is timed": 8, "while it is recorded": 16}
FAULTS = {
    "wild_store": "illegal memory access",
    "fail_an_assertion": "device-side assert",
    "ask_for_too_much": "out of memory",
}
WORDS = ("--after", "4", "--bare", "8", "--traced", "6")
LIMIT_S = 120


def started(folder: Path, fault: str, step: int) -> subprocess.Popen[str]:
    """`diagnose` of the script, as a process of its own."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "tmp").mkdir()
    more = {"TMPDIR": str(folder / "tmp"), MARK: str(folder),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "e2e", "diagnose", *WORDS, "train.py", "--json", "found.json", "--",
         fault, str(step)],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(**more),
    )  # fmt: skip


@pytest.mark.parametrize("step", AT.values(), ids=AT.keys())
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_the_scripts_and_ends_the_diagnosis(
    tmp_path: Path, fault: str, step: int
) -> None:
    process = started(tmp_path, fault, step)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3, errors
    assert FAULTS[fault] in errors  # as the script itself says
    *_, last = errors.splitlines()
    assert last.startswith("error: train.py ")
    assert last.endswith("nothing is diagnosed")
    assert not (tmp_path / "found.json").exists()
    assert not list((tmp_path / "tmp").glob("halfway-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_kernel_that_does_not_end_ends_with_the_command(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = started(tmp_path, "spin", 8)
    assert process.stdout
    while (line := process.stdout.readline()) != "now\n":  # the plan is said first
        assert line, "it ended"
    time.sleep(2)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    wait_for(lambda: not marked(str(tmp_path)))  # a driver may hold it for a while
    assert not list((tmp_path / "tmp").glob("halfway-*"))
