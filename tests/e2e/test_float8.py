"""FP8 linear layers: float64 references, what is converted, and trainings of a small GPT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.commands import run_here
from samples.feeding import Batches
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from e2e.__main__ import main
from e2e.case import TrainCase
from e2e.networks import find
from e2e.recipes import recipe_of
from e2e.results.types import Training
from e2e.training.float8 import (
    E4M3,
    E5M2,
    HIGH,
    ROWWISE,
    TENSORWISE,
    Float8Linear,
    NothingToConvert,
    cast_once,
    convert,
    multiplied,
    quantized,
)
from e2e.training.trainer import Trainer
from microbench.results.runfile import read_run

# The most that rounding to 3 or 2 bits of mantissa changes a number, relative to it.
ROUNDING = {E4M3: 2**-4, E5M2: 2**-3}
SIZES = st.integers(1, 4).map(lambda n: 16 * n)
SCALINGS = st.sampled_from([TENSORWISE, ROWWISE])


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
    found = multiplied(*(quantized(one.bfloat16(), E4M3, rowwise) for one in (a, b)))
    assert found.shape == (m, n)
    assert ((found.double() - right).abs() <= bound + 1e-3).all()


def test_a_scale_for_each_row_keeps_rows_of_other_sizes() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(32, 64), torch.randn(32, 64)
    a *= torch.logspace(-6, 6, 32)[:, None]
    right = a.double() @ b.double().t()
    small = slice(0, 8)
    errors = [
        off(multiplied(*(quantized(x.bfloat16(), E4M3, one) for x in (a, b)))[small], right[small])
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


@given(seed=st.integers(0, 2**20), m=SIZES, n=SIZES, k=SIZES, scaling=SCALINGS,
       weight_dtype=st.sampled_from([torch.float32, torch.bfloat16]))  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_what_forward_keeps_gives_the_gradients_that_new_scales_do(
    seed: int, m: int, n: int, k: int, scaling: str, weight_dtype: torch.dtype
) -> None:
    """Bit for bit: each product with factors that are made for it alone."""
    torch.manual_seed(seed)
    layer = nn.Linear(k, n, bias=False).to(weight_dtype)
    convert(layer, scaling)
    rowwise, kind = scaling == ROWWISE, E4M3 if scaling == ROWWISE else E5M2
    rows, gradient = torch.randn(m, k, dtype=HIGH), torch.randn(m, n, dtype=HIGH)
    weight = layer.weight.detach().to(HIGH)
    inputs = rows.clone().requires_grad_()
    output = layer(inputs)
    output.backward(gradient)

    def product(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, fast: bool) -> torch.Tensor:
        return multiplied(quantized(a, kind, rowwise), quantized(b, E4M3, rowwise), fast=fast)

    assert torch.equal(output, product(rows, weight, E4M3, True))
    assert inputs.grad is not None
    assert layer.weight.grad is not None
    assert torch.equal(inputs.grad, product(gradient, weight.t(), kind, False))
    of_weight = product(gradient.t(), rows.t(), kind, False)
    assert torch.equal(layer.weight.grad, of_weight.to(weight_dtype))


class Counting(TorchDispatchMode):
    """Counts scales that are found, values that are rounded to FP8, and copies of these."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = self.casts = self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.scales += "vector_norm" in str(func)
        self.casts += "_to_copy" in str(func) and found.dtype in (E4M3, E5M2)
        self.copies += "clone" in str(func) and found.dtype in (E4M3, E5M2)
        return found


def counted(layer: nn.Module, batches: int) -> tuple[int, int]:
    counting = Counting()
    with counting:
        for _ in range(batches):
            layer(torch.randn(16, 64, requires_grad=True)).sum().backward()
    return counting.scales, counting.casts


# Of input, weight and gradient; of rows also of their transposes, whose rows are others.
@pytest.mark.parametrize(("scaling", "each"), [(TENSORWISE, 1), (ROWWISE, 2)])
def test_a_step_finds_each_scale_once(scaling: str, each: int) -> None:
    layer = nn.Linear(64, 48)
    convert(layer, scaling)
    assert counted(layer, 1) == (3 * each, 3 * each)
    assert counted(layer, 4) == (12 * each, 12 * each)
    with cast_once(layer):
        assert counted(layer, 4) == (9 * each, 9 * each), "the weight once"
    with cast_once(layer):
        assert counted(layer, 2) == (5 * each, 5 * each), "once more in the next step"
    assert counted(layer, 1) == (3 * each, 3 * each), "nothing is kept after a step"


@pytest.mark.parametrize("scaling", [TENSORWISE, ROWWISE])
def test_a_layer_keeps_a_byte_a_value_until_backward(scaling: str) -> None:
    layer = nn.Linear(64, 48, bias=False)
    convert(layer, scaling)
    kept: list[torch.Tensor] = []

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(seen, lambda tensor: tensor):
        layer(torch.randn(32, 64, requires_grad=True))
    assert sorted(t.shape for t in kept if t.dtype == E4M3) == [(64, 32), (64, 48)]
    assert all(t.dtype == torch.float32 and t.numel() <= 64 for t in kept if t.dtype != E4M3)


@pytest.mark.parametrize("scaling", [TENSORWISE, ROWWISE])
def test_evaluation_makes_nothing_for_backward(scaling: str) -> None:
    layer, rows = nn.Linear(64, 48), torch.randn(32, 64)
    convert(layer, scaling)
    trained = layer(rows)
    counting = Counting()
    with torch.no_grad(), counting:
        evaluated = layer(rows)
    assert torch.equal(evaluated, trained)
    assert (counting.scales, counting.casts) == (2, 2), "of the input and of the weight"
    assert counting.copies == 0


@pytest.mark.parametrize("frozen", ["input", "weight"])
@pytest.mark.parametrize("scaling", [TENSORWISE, ROWWISE])
def test_what_needs_no_gradient_gets_none(scaling: str, frozen: str) -> None:
    torch.manual_seed(0)
    layer, rows = nn.Linear(64, 48), torch.randn(32, 64)
    convert(layer, scaling)
    grads: list[list[torch.Tensor | None]] = []
    for trained in ({"input", "weight"}, {"input", "weight"} - {frozen}):
        inputs = rows.clone().requires_grad_("input" in trained)
        layer.weight.requires_grad_("weight" in trained)
        layer.zero_grad()
        layer(inputs).sum().backward()
        grads.append([inputs.grad, layer.weight.grad])
    at = ["input", "weight"].index(frozen)
    assert grads[1][at] is None
    other, again = grads[0][1 - at], grads[1][1 - at]
    assert other is not None
    assert again is not None
    assert torch.equal(other, again)


@pytest.mark.parametrize("scaling", [TENSORWISE, ROWWISE])
def test_a_compiled_layer_keeps_its_weight_over_batches(scaling: str) -> None:
    found: list[torch.Tensor] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32))
        convert(network, scaling)
        run = torch.compile(network, backend="aot_eager", fullgraph=True) if compiled else network
        for _ in range(2):  # the weights of the second step are others
            with cast_once(network):
                for _ in range(3):
                    run(torch.randn(32, 64)).float().pow(2).sum().backward()
            with torch.no_grad():
                for weight in network.parameters():
                    assert weight.grad is not None
                    weight -= 1e-4 * weight.grad
        found.append(torch.cat([weight.detach().flatten() for weight in network.parameters()]))
    assert torch.equal(*found)


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


def losses(recipe: str, steps: int = 12, accumulate: int = 1) -> list[float]:
    """Of a small GPT that learns one batch by heart."""
    case = TrainCase(
        "gpt-tiny", recipe, 2, "64", "nchw", "adamw", fused=False, lr=1e-3, accumulate=accumulate
    )
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


@pytest.mark.parametrize("recipe", ["fp8", "fp8-rowwise"])
def test_two_batches_of_a_step_train_as_one_of_the_same(recipe: str) -> None:
    """Both are the same batch, so that their mean is its gradient: a stale weight would differ."""
    assert losses(recipe, 2, accumulate=2) == losses(recipe, 2)


def test_a_network_without_a_layer_for_it_says_so(tmp_path: Path) -> None:
    found = trained(tmp_path, "cnn-cifar")
    assert found["amp-bf16"].status == "ok"
    for name in ("fp8", "fp8-rowwise"):
        assert found[name].status == "skipped"
        assert "linear layers" in (found[name].reason or "")
