"""FP8 linear layers: float64 references, what is converted, and trainings of a small GPT."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from samples.feeding import Batches, convolutions
from torch import nn

from e2e.case import TrainCase
from e2e.data.datasets import Options, open_data
from e2e.networks import find
from e2e.recipes import recipe_of
from e2e.training.arms import Arms, Task
from e2e.training.float8 import ROWWISE, TENSORWISE, Float8Linear, convert
from e2e.training.trainer import Trainer
from kernels.case import Target

CPU = torch.device("cpu")


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return ((found.double() - right).norm() / right.norm()).item()


@pytest.mark.parametrize("scaling", [TENSORWISE, ROWWISE])
@pytest.mark.parametrize("rows", [(32,), (2, 16), (7,)], ids=["rows", "batch", "odd"])
def test_a_layer_and_its_gradients_are_those_of_float64(
    scaling: str, rows: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    layer, exact = nn.Linear(64, 48), nn.Linear(64, 48)
    exact.load_state_dict(layer.state_dict())
    exact.double()
    assert convert(layer, scaling) == (1, 1)
    inputs = torch.randn(*rows, 64, requires_grad=True)
    same = inputs.detach().double().requires_grad_()
    gradient = torch.randn(*rows, 48)
    output, right = layer(inputs), exact(same)
    output.backward(gradient.to(output.dtype))
    right.backward(gradient.double())
    assert output.dtype == torch.bfloat16
    pairs = [(output, right), (inputs.grad, same.grad), (layer.weight.grad, exact.weight.grad),
             (layer.bias.grad, exact.bias.grad)]  # fmt: skip
    for found, wanted in pairs:
        assert found is not None
        assert wanted is not None
        assert found.shape == wanted.shape
        assert off(found, wanted) < 0.1
    # It really is FP8 that multiplies, where the rows can be summed over.
    assert (off(output, right) > 0.01) is (rows != (7,))


def test_a_scale_for_each_row_keeps_rows_of_other_sizes() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(32, 64) * torch.logspace(-6, 6, 32)[:, None]
    small, errors = slice(0, 8), list[float]()
    for scaling in (ROWWISE, TENSORWISE):
        layer = nn.Linear(64, 48, bias=False)
        right = inputs.double() @ layer.weight.double().t()
        convert(layer, scaling)
        errors.append(off(layer(inputs)[small], right[small]))
    assert errors[0] < 0.1
    assert errors[1] > 0.5, "with one scale they vanish"


def test_only_linear_layers_of_fitting_sizes_are_converted() -> None:
    network = nn.ModuleDict({
        "fits": nn.Linear(32, 64), "odd": nn.Linear(32, 50), "narrow": nn.Linear(24, 32),
        "attention": nn.MultiheadAttention(32, 2), "conv": nn.Conv2d(16, 16, 3),
    })  # fmt: skip
    before = list(network.state_dict())
    assert convert(network, TENSORWISE) == (1, 4)
    assert [name for name, m in network.items() if isinstance(m, Float8Linear)] == ["fits"]
    assert list(network.state_dict()) == before


def losses(recipe: str, steps: int = 12, accumulate: int = 1) -> list[float]:
    """Of a small GPT that learns one batch by heart."""
    case = TrainCase(
        "gpt-tiny", recipe, 2, "64", "nchw", "adamw", fused=False, lr=1e-3, accumulate=accumulate
    )
    network = find("gpt-tiny", input=(64,))
    trainer = Trainer(network, case, recipe_of(case), CPU, seed=3)
    torch.manual_seed(4)
    tokens = torch.randint(0, 100, (2, 65))
    feed = Batches((tokens[:, :-1], tokens[:, 1:]))
    return [trainer.step(feed).item() for _ in range(steps)]


def test_a_gpt_learns_as_with_bfloat16() -> None:
    base = losses("amp-bf16")
    assert base[-1] < 0.8 * base[0]
    for recipe in ("fp8", "fp8-rowwise"):
        found = losses(recipe)
        assert found != base
        assert found == pytest.approx(base, rel=0.05)


@pytest.mark.parametrize("recipe", ["fp8", "fp8-rowwise"])
def test_two_batches_of_a_step_train_as_one_of_the_same(recipe: str) -> None:
    """Both are the same batch, so that their mean is its gradient: a stale weight would differ."""
    assert losses(recipe, 2, accumulate=2) == losses(recipe, 2)


def test_a_network_without_a_layer_for_it_is_skipped() -> None:
    network = replace(find("cnn-cifar"), name="small", build=convolutions, input=(3, 8, 8))
    data = open_data("synthetic", Options((3, 8, 8), classes=10))
    cases = [TrainCase("small", name, 2, "3x8x8") for name in ("amp-bf16", "fp8", "fp8-rowwise")]
    arms = Arms(Task(network, data, 1), Target("cpu", "a processor"))
    found = arms.set_up(cases, lambda key, stage: None)
    assert [training.status for training in found] == ["ok", "skipped", "skipped"]
    assert all("linear layers" in (training.reason or "") for training in found[1:])
