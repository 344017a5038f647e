"""Networks that start from a file, with a frozen body or other dropout; sizes of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from samples.feeding import Batches, noise, small_cnn, trainer_of
from torch import Tensor, nn

from e2e.networks import find
from e2e.networks.weights import freeze_body, head_of, model_bytes, saved_bytes, with_weights
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
    layer = head_of(trainer.module, CNN)
    assert isinstance(layer, nn.Linear)
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


# ---------------------------------------------------------------- a frozen body


@pytest.mark.parametrize(
    "name", ["cnn-cifar", "resnet18-cifar", "wrn-16-4", "vgg16", "mobilenet_v3_small", "googlenet"]
)
def test_the_head_is_what_puts_out_the_classes(name: str) -> None:
    network = find(name, classes=13)
    with torch.device("meta"):
        module = network.build()
        head = head_of(module, network)
        assert isinstance(head, nn.Linear)
        assert head.out_features == 13
        assert head_of(nn.Sequential(module, nn.LayerNorm(13)), network) is head, "a norm is none"
    assert module.training


class Tied(nn.Module):
    """A decoder whose output layer is its embedding, with a module for it or without."""

    def __init__(self, has_layer: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.body = nn.Linear(8, 8)
        if has_layer:
            self.head = nn.Linear(8, 20, bias=False)
            self.head.weight = self.tokens.weight
        self.has_layer = has_layer

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T] to logits [N, T, 20]."""
        hidden = self.body(self.tokens(tokens))
        return self.head(hidden) if self.has_layer else F.linear(hidden, self.tokens.weight)


@pytest.mark.parametrize("has_layer", [True, False])
def test_a_network_whose_output_layer_is_its_embedding_has_no_head_to_train(
    has_layer: bool,
) -> None:
    gpt = find("gpt-tiny")
    for module in (gpt.build(), Tied(has_layer)):
        with pytest.raises(UserError, match="gpt-tiny has no output layer of its own"):
            freeze_body(module, replace(gpt, tokens=20))
        assert all(weight.requires_grad for weight in module.parameters())
    last = nn.Sequential(Tied(has_layer), nn.Linear(20, 20))
    freeze_body(last, replace(gpt, tokens=20))
    assert [name for name, w in last.named_parameters() if w.requires_grad] == [
        "1.weight", "1.bias",
    ]  # fmt: skip


@pytest.mark.parametrize("recipe", ["fp32", "O2", "bf16"])
def test_a_frozen_body_stays_and_the_head_learns(recipe: str) -> None:
    trainer = trainer_of(SMALL, recipe, freeze="body")
    head = {id(weight) for weight in head_of(trainer.module, SMALL).parameters()}
    before = {name: weight.clone() for name, weight in trainer.module.named_parameters()}
    for _ in range(3):
        trainer.step(Batches(*noise(SMALL)))
    for name, weight in trainer.module.named_parameters():
        assert torch.equal(weight, before[name]) == (id(weight) not in head)


# ---------------------------------------------------------------- dropout, and the same twice


@pytest.fixture
def _as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # pyright: ignore
    torch.backends.cudnn.deterministic = False


@pytest.mark.usefixtures("_as_before")
def test_a_deterministic_training_is_the_same_twice_to_the_last_bit() -> None:
    losses = [trainer_of(CNN, deterministic=True).step(Batches(*noise(CNN))) for _ in range(2)]
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.equal(*losses)


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
