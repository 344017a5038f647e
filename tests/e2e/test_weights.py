"""Networks that start from a file, with a frozen body, or with another dropout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from samples.feeding import Batch, Batches
from torch import Tensor, nn

from e2e.case import TrainCase
from e2e.networks import Network, find
from e2e.networks.weights import head_of, with_weights
from e2e.recipes import RECIPES
from e2e.training.trainer import Trainer
from microbench.errors import UserError

CNN = find("cnn-cifar")


def state_of(classes: int = 10, seed: int = 9) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return find("cnn-cifar", classes=classes).build().state_dict()


def saved(state: Any, folder: Path) -> Path:
    path = folder / "weights.pth"
    torch.save(state, path)
    return path


def trainer_of(network: Network, **case: Any) -> Trainer:
    recipe = case.pop("recipe", "fp32")
    plan = TrainCase(network.name, recipe, 4, "3x32x32", **case)
    return Trainer(network, plan, RECIPES[recipe], torch.device("cpu"), seed=3)


def pictures() -> Batch:
    generator = torch.Generator().manual_seed(4)
    images = torch.randn(4, 3, 32, 32, generator=generator)
    return images, torch.randint(10, (4,), generator=generator)


@pytest.mark.parametrize("wrap", ["", "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module."])
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
        trainer.step(Batches(pictures()))
        trainer.restart(8)


def weight_of(layer: nn.Module) -> Tensor:
    """Of a linear layer, [out, in]."""
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach()


def test_a_head_of_other_classes_is_new_and_the_seed_decides_it(tmp_path: Path) -> None:
    state = state_of(classes=7)
    network = with_weights(CNN, saved(state, tmp_path))
    trainer = trainer_of(network)
    head, layer = head_of(trainer.module)
    first = weight_of(layer).clone()
    assert first.shape[0] == 10
    for name, value in trainer.module.state_dict().items():
        if not name.startswith(head):
            assert torch.equal(value, state[name])
    trainer.restart(3)
    assert torch.equal(weight_of(layer), first)
    trainer.restart(4)
    assert not torch.equal(weight_of(layer), first)


def missing(state: dict[str, Tensor]) -> Any:
    del state["0.weight"]
    return state


def unfit(state: dict[str, Tensor]) -> Any:
    state["0.weight"] = torch.zeros(5, 3, 3, 3)
    return state


def other_head(state: dict[str, Tensor]) -> Any:
    name = list(state)[-2]
    state[name] = torch.zeros(10, 77)
    return state


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (missing, "it has no 0.weight"),
        (unfit, "0.weight is [5, 3, 3, 3], not [32, 3, 3, 3]"),
        (other_head, "is [10, 77], not [10, 128]"),
        (lambda state: {**state, "extra.weight": torch.ones(1)}, "has no extra.weight"),
        (lambda state: {"state_dict": {}, "epoch": 1}, "is no state dict"),
        (lambda state: [1, 2], "is no state dict"),
    ],
)
def test_weights_that_do_not_fit_are_said_in_a_line(change: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        with_weights(CNN, saved(change(state_of()), tmp_path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no pickle", b"PK\x03\x04 and no more"])
def test_a_file_that_is_no_state_dict_is_said_in_a_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        with_weights(CNN, path)
    assert "cannot be read" in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- a frozen body


@pytest.mark.parametrize(
    "name", ["cnn-cifar", "resnet18-cifar", "wrn-16-4", "vgg16", "mobilenet_v3_small", "googlenet"]
)
def test_the_head_is_what_puts_out_the_classes(name: str) -> None:
    module = find(name, classes=13).build()
    _, head = head_of(module)
    assert isinstance(head, nn.Linear)
    assert head.out_features == 13


@pytest.mark.parametrize("recipe", ["fp32", "O2", "bf16"])
def test_a_frozen_body_stays_and_the_head_learns(recipe: str) -> None:
    trainer = trainer_of(CNN, recipe=recipe, freeze="body")
    head, _ = head_of(trainer.module)
    before = {name: weight.clone() for name, weight in trainer.module.named_parameters()}
    for _ in range(3):
        trainer.step(Batches(pictures()))
    for name, weight in trainer.module.named_parameters():
        assert torch.equal(weight, before[name]) == (not name.startswith(head))


# ---------------------------------------------------------------- dropout, and the same twice


@pytest.fixture
def _as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # pyright: ignore
    torch.backends.cudnn.deterministic = False


@pytest.mark.usefixtures("_as_before")
def test_a_deterministic_training_is_the_same_twice_to_the_last_bit() -> None:
    losses = [trainer_of(CNN, deterministic=True).step(Batches(pictures())) for _ in range(2)]
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.equal(*losses)


def test_dropout_is_an_option_of_the_network() -> None:
    plain, dropped = find("wrn-16-4"), find("wrn-16-4@dropout=0.3")
    assert dropped.name == "wrn-16-4@dropout=0.3"
    built = []
    for network in (plain, dropped):
        torch.manual_seed(1)
        built.append(network.build())
    images, _ = pictures()
    first, second = (module.train() for module in built)
    assert not torch.equal(second(images), second(images))
    outputs = [module.eval()(images) for module in (first.train(), second.train())]
    assert torch.isfinite(outputs[1]).all()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.eval()(images), second.eval()(images)), "none in evaluation"


def test_dropout_of_a_network_that_has_layers_of_it() -> None:
    module = find("vgg11@dropout=.25", input=(3, 32, 32)).build()
    shares = [layer.p for layer in module.modules() if isinstance(layer, nn.Dropout)]
    assert shares == [0.25, 0.25]


@pytest.mark.parametrize(
    "name", ["cnn-cifar@dropout=0.3", "wrn-16-4@dropout=1", "wrn-16-4@dropout=x", "no@dropout=0.1"]
)
def test_a_dropout_that_cannot_be_is_said_in_a_line(name: str) -> None:
    with pytest.raises(UserError) as caught:
        find(name)
    assert "\n" not in str(caught.value)
