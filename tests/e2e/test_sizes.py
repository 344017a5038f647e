"""Sizes of networks and checkpoints are those of files that anyone can save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from samples.feeding import Batches, convolutions
from torch import nn

from e2e.case import TrainCase
from e2e.networks import Network, find
from e2e.networks.losses import classification_loss
from e2e.networks.weights import model_bytes, saved_bytes
from e2e.recipes import RECIPES
from e2e.training.trainer import Trainer

NETWORK = Network(
    name="own", build=convolutions, input=(3, 8, 8), classes=10, loss=classification_loss,
    optimizer="sgd", lr=0.1, weight_decay=0.0, batch=4, cpu_batch=4,
)  # fmt: skip


def trained(recipe: str, optimizer: str) -> Trainer:
    case = TrainCase("own", recipe, 4, "3x8x8", optimizer=optimizer)
    trainer = Trainer(NETWORK, case, RECIPES[recipe], torch.device("cpu"), seed=1)
    trainer.step(Batches((torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64))))
    return trainer


def saved_by_hand(state: Any, path: Path) -> int:
    with path.open("wb") as file:
        torch.save(state, file)
    return path.stat().st_size


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("recipe", ["fp32", "amp", "O2", "bf16"])
def test_a_checkpoint_is_as_large_as_a_file_saved_by_hand(
    recipe: str, optimizer: str, tmp_path: Path
) -> None:
    trainer = trained(recipe, optimizer)
    state: dict[str, Any] = {
        "model": trainer.module.state_dict(),
        "optimizer": trainer.optimizer.torch_optimizer.state_dict(),
    }
    if RECIPES[recipe].scale == "dynamic":
        state["scaler"] = trainer.optimizer.scaler.state_dict()
    if RECIPES[recipe].masters:
        pairs = zip(trainer.module.parameters(), trainer.optimizer.masters, strict=True)
        state["masters"] = [master for weight, master in pairs if weight.dtype != master.dtype]
    expected = saved_by_hand(state, tmp_path / "checkpoint.pt")
    assert saved_bytes(trainer.checkpoint()) == expected
    assert expected > model_bytes(trainer.module)


def test_float16_halves_a_model_and_amp_leaves_it() -> None:
    sizes = {name: model_bytes(trained(name, "sgd").module) for name in ("fp32", "amp", "fp16")}
    assert sizes["amp"] == sizes["fp32"]
    # batch-norm counts its steps in int64
    assert sizes["fp16"] == pytest.approx(sizes["fp32"] / 2, rel=0.02)


def test_a_model_is_as_large_as_its_weights() -> None:
    """11,173,962 weights of four bytes, statistics of batch-norm, and its counters."""
    module = find("resnet18-cifar").build()
    weights = sum(weight.numel() for weight in module.parameters())
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    statistics = sum(8 * norm.num_features + 8 for norm in norms)
    assert weights == 11_173_962
    assert model_bytes(module) == 4 * weights + statistics


def test_shared_weights_count_once() -> None:
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    assert model_bytes(tied) == 8 * 8 * 4


def test_what_cannot_be_saved_has_no_size() -> None:
    assert saved_bytes({"model": lambda: None}) is None
