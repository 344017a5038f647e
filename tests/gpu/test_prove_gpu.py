"""Changes that need a GPU are tried there, and each is taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.__main__ import main
from e2e.profile.halfway_prove import GOES_ON

PLAIN = """
import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Sequential(nn.Conv2d(32 if i else 3, 32, 3, padding=1), nn.ReLU()) for i in range(6)]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(32, 3, 64, 64, device="cuda"), torch.arange(32, device="cuda") % 10
for _ in range(3000):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    finite = torch.isfinite(loss.detach()).item()
print("END")
"""

MIXED = """
import torch
from torch import nn

torch.manual_seed(0)
block = nn.Sequential(nn.Linear(1021, 1021), nn.GELU(), nn.Dropout(0.1)).cuda()
optimizer = torch.optim.Adam(block.parameters(), lr=1e-4, foreach=False)
scaler = torch.amp.GradScaler("cuda")
inputs = torch.randn(1024, 1021, device="cuda")
losses = []
for number in range(3000):
    hidden = inputs
    for _ in range(4):
        with torch.autocast("cuda", torch.float16):
            hidden = block(hidden)
    loss = hidden.float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
"""


def diagnosed(folder: Path, text: str, *words: str) -> dict[str, Any]:
    """The last run's data of a script with --prove."""
    script, written = folder / "train.py", folder / "found.json"
    script.write_text(text)
    given = ["--prove", "--json", str(written), "--after", "5", "--bare", "5", *words]
    assert main(["diagnose", str(script), *given]) == 0
    return json.loads(written.read_text())["runs"][-1]


def names(run: dict[str, Any]) -> set[str]:
    return {gain["cause"] for gain in run["gains"]}


def test_a_float32_network_is_tried_in_tf32_bf16_channels_last_and_as_graphs(
    tmp_path: Path,
) -> None:
    run = diagnosed(tmp_path, PLAIN)
    assert {"tf32", "benchmark", "float32", "layout", "launch", "sync"} <= names(run)
    assert all(gain["rounds"] >= 3 and gain["step_ms"] > 0 for gain in run["gains"])


def test_casts_reads_and_the_optimizer_are_tried_and_calls_replayed(tmp_path: Path) -> None:
    run = diagnosed(tmp_path, MIXED)
    assert {"sync", "casts", "optimizer", "amp", "half", "misaligned"} <= names(run)


def test_a_training_that_goes_on_is_not_put_at_risk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = diagnosed(tmp_path, PLAIN, "--whole")
    assert "END" in capfd.readouterr().out
    assert {"tf32", "benchmark"} <= names(run)
    assert not {"float32", "layout", "launch"} & names(run)
    for one in run["findings"]:
        if one["cause"] in ("layout", "launch"):
            assert one["unproven"] == GOES_ON
