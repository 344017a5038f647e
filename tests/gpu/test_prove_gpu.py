"""Changes that need a GPU are tried there, and each is taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from samples.recording import inspected
from torch import nn

from e2e.__main__ import main
from e2e.profile.halfway_prove import ABLATIONS, COUNTED

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

ATTENTION = """
import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, 2).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randn(16, 256, 256, device="cuda")
for _ in range(5000):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def diagnosed(folder: Path, text: str) -> dict[str, Any]:
    """The last run's data of a script with --prove."""
    script, written = folder / "train.py", folder / "found.json"
    script.write_text(text)
    written.unlink(missing_ok=True)  # a file that is there is not written again
    words = ["--prove", "--json", str(written), "--after", "5", "--bare", "5"]
    assert main(["diagnose", str(script), *words]) == 0
    return json.loads(written.read_text())["runs"][-1]


def names(run: dict[str, Any]) -> set[str]:
    return {gain["cause"] for gain in run["gains"]}


def test_each_change_that_a_network_may_take_is_tried(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = diagnosed(tmp_path, PLAIN)
    assert {"tf32", "benchmark", "float32", "layout", "launch", "sync"} <= names(run)
    assert all(gain["rounds"] >= 3 and gain["step_ms"] > 0 for gain in run["gains"])
    assert "END" not in capfd.readouterr().out, "the script is ended"
    run = diagnosed(tmp_path, MIXED)
    assert {"sync", "casts", "optimizer", "amp", "half", "misaligned"} <= names(run)
    run = diagnosed(tmp_path, ATTENTION)
    assert {"amp", "sdpa"} <= names(run)  # of the back ends the best one


# ---------------------------------------------------------------- in this process


class Training:
    """A little training on the GPU, whose model takes part in all changes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 8)
        ).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, foreach=False)
        self.images = torch.randn(4, 8, 8, 8, device="cuda")
        self.loss = torch.zeros(())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss = self.model(self.images).square().mean()  # kept: with its nodes of autograd
        self.loss.backward()
        self.optimizer.step()

    def gradients(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Of a loss, in the model's parameters; the output comes first."""
        self.model.zero_grad()
        found = self.model(images)
        found.square().mean().backward()
        return [found.detach().clone(), *(p.grad.clone() for p in self.model.parameters())]  # type: ignore[union-attr]


def close(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Within 1 % of the largest value: sums in another order, in TF32 and over a batch."""
    return all(
        (one - other).abs().max() <= 0.01 * other.abs().max() + 1e-6
        for one, other in zip(some, others, strict=True)
    )


@pytest.mark.parametrize("name", ["layout", "launch"])
def test_a_model_gives_the_same_gradients_with_a_change(name: str) -> None:
    """Also for inputs that come later, and after the weights have changed."""
    training = Training()
    probe = inspected(training.step)
    assert ABLATIONS[name].when(probe) is None
    assert probe.rehearse(ABLATIONS[name]) is None
    other, smaller = torch.randn(4, 8, 8, 8, device="cuda"), torch.randn(2, 8, 8, 8, device="cuda")
    training.step()
    plain = [training.gradients(images) for images in (training.images, other, smaller)]
    with ABLATIONS[name].change(probe):
        again = [training.gradients(images) for images in (training.images, other, smaller)]
    for mine, theirs in zip(again, plain, strict=True):
        assert close(mine, theirs)
    assert not close(plain[0], plain[1]), "of another input they are others"
    assert "forward" not in vars(training.model)


@pytest.mark.parametrize("name", list(ABLATIONS))
def test_a_change_is_taken_back_and_the_training_goes_on(name: str) -> None:
    training = Training()
    probe = inspected(training.step)
    cuda = torch.backends.cuda

    def state() -> list[Any]:
        flags = [torch.backends.cudnn.benchmark, cuda.matmul.allow_tf32, cuda.flash_sdp_enabled()]
        groups = [(g["foreach"], g["fused"]) for g in training.optimizer.param_groups]
        kept = [(k, v.device, v.stride()) for one in training.optimizer.state.values()
                for k, v in one.items()]  # fmt: skip
        return [*flags, groups, kept, [p.stride() for p in training.model.parameters()],
                dict(vars(torch.Tensor)), torch.autocast.__enter__]  # fmt: skip

    before = state()
    with ABLATIONS[name].change(probe):
        training.step()
    assert state() == before
    training.step()
    steps = {int(one["step"]) for one in training.optimizer.state.values()}
    assert steps == {1 + COUNTED + 2}, "counted also by a fused optimizer"
