"""FP8 linear layers: float64 references, what is converted, and trainings of a small GPT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.commands import run_here
from samples.feeding import Batches
from torch import nn

from e2e.__main__ import main
from e2e.case import TrainCase
from e2e.networks import find
from e2e.recipes import recipe_of
from e2e.results.types import Training
from e2e.training.float8 import (
    E4M3,
    E5M2,
    ROWWISE,
    TENSORWISE,
    Float8Linear,
    NothingToConvert,
    convert,
    multiplied,
    quantized,
)
from e2e.training.trainer import Trainer
from microbench.results.runfile import read_run

# The most that rounding to 3 or 2 bits of mantissa changes a number, relative to it.
ROUNDING = {E4M3: 2**-4, E5M2: 2**-3}
SIZES = st.integers(1, 4).map(lambda n: 16 * n)


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return ((found.double() - right).norm() / right.norm()).item()


@given(seed=st.integers(0, 2**20), rowwise=st.booleans(), kind=st.sampled_from([E4M3, E5M2]),
       magnitude=st.integers(-20, 20))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_values_come_back_within_a_rounding(
    seed: int, rowwise: bool, kind: torch.dtype, magnitude: int
) -> None:
    torch.manual_seed(seed)
    values = torch.randn(16, 32) * 2.0**magnitude
    low, scale = quantized(values, kind, rowwise)
    assert low.dtype == kind
    again = low.float() * scale
    largest = values.abs().amax(dim=1, keepdim=True) if rowwise else values.abs().amax()
    smallest = largest / torch.finfo(kind).max * torch.finfo(kind).smallest_normal
    assert ((again - values).abs() <= ROUNDING[kind] * values.abs() + smallest).all()
    # The largest value is the largest of its type: nothing of the range is left unused.
    assert torch.isclose(again.abs().amax(), values.abs().amax(), rtol=1e-2)


@given(seed=st.integers(0, 2**20), m=SIZES, n=SIZES, k=SIZES, rowwise=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_product_is_that_of_float64(seed: int, m: int, n: int, k: int, rowwise: bool) -> None:
    torch.manual_seed(seed)
    a, b = torch.randn(m, k), torch.randn(n, k)
    right = a.double() @ b.double().t()
    bound = (ROUNDING[E4M3] * 2 + 2**-7) * (a.abs().double() @ b.abs().double().t())
    found = multiplied(a.bfloat16(), b.bfloat16(), rowwise=rowwise)
    assert found.shape == (m, n)
    assert ((found.double() - right).abs() <= bound + 1e-3).all()


def test_a_scale_for_each_row_keeps_rows_of_other_sizes() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(32, 64), torch.randn(32, 64)
    a *= torch.logspace(-6, 6, 32)[:, None]
    right = a.double() @ b.double().t()
    small = slice(0, 8)
    errors = [
        off(multiplied(a.bfloat16(), b.bfloat16(), rowwise=one)[small], right[small])
        for one in (True, False)
    ]
    assert errors[0] < 0.1
    assert errors[1] > 0.5  # with one scale they vanish


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


def test_only_linear_layers_of_fitting_sizes_are_converted() -> None:
    attention = nn.MultiheadAttention(32, 2)
    network = nn.ModuleDict({
        "fits": nn.Linear(32, 64), "odd": nn.Linear(32, 50), "narrow": nn.Linear(24, 32),
        "attention": attention, "conv": nn.Conv2d(16, 16, 3),
    })  # fmt: skip
    before = list(network.state_dict())
    assert convert(network, TENSORWISE) == (1, 4)
    assert [name for name, m in network.items() if isinstance(m, Float8Linear)] == ["fits"]
    assert list(network.state_dict()) == before
    with pytest.raises(NothingToConvert):
        convert(nn.Sequential(nn.Conv2d(16, 16, 3), nn.Linear(16, 10)), ROWWISE)


def trained(path: Path, network: str, *more: str) -> dict[str, Training]:
    file = path / "run.json"
    ran = run_here(
        main, "e2e", network, "--device", "cpu", "--recipe", "amp-bf16,fp8,fp8-rowwise",
        "--batch", "2", "--budget", "1", "--no-predict", "--json", file, *more,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return {t.case.recipe: t for t in read_run(file).of(Training)}


def losses(recipe: str, steps: int = 12) -> list[float]:
    """Of a small GPT that learns one batch by heart."""
    case = TrainCase("gpt-tiny", recipe, 2, "64", "nchw", "adamw", fused=False, lr=1e-3)
    network = find("gpt-tiny", input=(64,))
    trainer = Trainer(network, case, recipe_of(case), torch.device("cpu"), seed=3)
    if recipe != "amp-bf16":
        kinds = [type(module) for module in trainer.module.modules()]
        assert kinds.count(Float8Linear) > 4
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


def test_a_network_without_a_layer_for_it_says_so(tmp_path: Path) -> None:
    found = trained(tmp_path, "cnn-cifar")
    assert found["amp-bf16"].status == "ok"
    for name in ("fp8", "fp8-rowwise"):
        assert found[name].status == "skipped"
        assert "linear layers" in (found[name].reason or "")
