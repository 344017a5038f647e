"""Networks that start from a file, or with other dropout; sizes of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from samples.feeding import Batches, noise, small_cnn, trainer_of
from torch import Tensor, nn

from e2e.networks import find
from e2e.networks.weights import model_bytes, saved_bytes, with_weights
from e2e.recipes import RECIPES
from microbench.errors import UserError

CNN = find("cnn-cifar")
SMALL = small_cnn()


def state_of(classes: int = 10, seed: int = 9) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return find("cnn-cifar", classes=classes).build().state_dict()


def saved(state: Any, folder: Path) -> Path:
    path = folder / "weights.pth"
    torch.save(state, path)
    return path


@pytest.mark.parametrize(("wrap", "prefix"), [("", ""), ("state_dict", "module."), ("model", "")])
def test_a_training_starts_from_the_file_and_again_after_a_restart(
    wrap: str, prefix: str, tmp_path: Path
) -> None:
    state = state_of()
    named: Any = {f"{prefix}{name}": value for name, value in state.items()}
    network = with_weights(CNN, saved({wrap: named, "epoch": 3} if wrap else named, tmp_path))
    trainer = trainer_of(network)
    for _ in range(2):
        found = trainer.module.state_dict()
        assert all(torch.equal(found[name], state[name]) for name in state)
        trainer.step(Batches(*noise(CNN)))
        trainer.restart(8)


def test_a_head_of_other_classes_is_new_and_the_seed_decides_it(tmp_path: Path) -> None:
    state = state_of(classes=7)
    trainer = trainer_of(with_weights(CNN, saved(state, tmp_path)))
    *_, layer = (one for one in trainer.module.modules() if isinstance(one, nn.Linear))
    first = layer.weight.detach().clone()
    assert first.shape[0] == 10
    for name, value in trainer.module.state_dict().items():
        assert value.shape[:1] == (10,) or torch.equal(value, state[name])
    trainer.restart(1)
    assert torch.equal(layer.weight, first)
    trainer.restart(4)
    assert not torch.equal(layer.weight, first)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: {n: v for n, v in state.items() if n != "0.weight"}, "it has no 0.weight"),
        (lambda state: {**state, list(state)[-2]: torch.zeros(10, 77)}, "is [10, 77], not [10, 1"),
        (lambda state: {**state, "extra.weight": torch.ones(1)}, "has no extra.weight"),
        (lambda state: {"state_dict": {}, "epoch": 1}, "is no state dict"),
        (lambda state: b"PK\x03\x04 and no more", "cannot be read"),
    ],
)
def test_weights_that_do_not_fit_are_said_in_a_line(change: Any, said: str, tmp_path: Path) -> None:
    changed, path = change(state_of()), tmp_path / "weights.pth"
    if isinstance(changed, bytes):
        path.write_bytes(changed)
    else:
        torch.save(changed, path)
    with pytest.raises(UserError) as caught:
        with_weights(CNN, path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- dropout


def test_dropout_is_an_option_of_the_network() -> None:
    assert find("wrn-16-4@dropout=0.3").name == "wrn-16-4@dropout=0.3"
    first, second = (find(name).build().train() for name in ("wrn-16-4", "wrn-16-4@dropout=0.3"))
    ((images, _),) = noise(CNN, 1)
    assert not torch.equal(second(images), second(images))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.eval()(images), second.eval()(images)), "none in evaluation"
    with torch.device("meta"):
        own = find("vgg11@dropout=.25", input=(3, 32, 32)).build()
    assert [layer.p for layer in own.modules() if isinstance(layer, nn.Dropout)] == [0.25, 0.25]
    for name in ("cnn-cifar@dropout=0.3", "wrn-16-4@dropout=1", "wrn-16-4@dropout=x"):
        with pytest.raises(UserError):
            find(name)


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("recipe", ["fp32", "amp", "O2", "bf16"])
def test_a_checkpoint_is_as_large_as_a_file_saved_by_hand(
    recipe: str, optimizer: str, tmp_path: Path
) -> None:
    trainer = trainer_of(SMALL, recipe, optimizer=optimizer)
    trainer.step(Batches(*noise(SMALL)))
    state: dict[str, Any] = {
        "model": trainer.module.state_dict(),
        "optimizer": trainer.optimizer.torch_optimizer.state_dict(),
    }
    if RECIPES[recipe].scale == "dynamic":
        state["scaler"] = trainer.optimizer.scaler.state_dict()
    if RECIPES[recipe].masters:
        pairs = zip(trainer.module.parameters(), trainer.optimizer.masters, strict=True)
        state["masters"] = [master for weight, master in pairs if weight.dtype != master.dtype]
    with (tmp_path / "checkpoint.pt").open("wb") as file:  # a path would be in the file
        torch.save(state, file)
    assert saved_bytes(trainer.checkpoint()) == (tmp_path / "checkpoint.pt").stat().st_size
    assert saved_bytes({"model": lambda: None}) is None, "what cannot be saved"


def test_a_model_is_as_large_as_its_weights() -> None:
    """11,173,962 weights of four bytes, statistics of batch-norm, and its counters."""
    with torch.device("meta"):
        module = find("resnet18-cifar").build()
    weights = sum(weight.numel() for weight in module.parameters())
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    statistics = sum(8 * norm.num_features + 8 for norm in norms)
    assert weights == 11_173_962
    assert model_bytes(module) == 4 * weights + statistics
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    assert model_bytes(tied) == 8 * 8 * 4, "shared weights count once"
