"""Steps of a training that were recorded where they run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from samples.training_runs import arm
from torch import Tensor, nn

from e2e.profile.training_steps import traced_step
from e2e.results.ledger import ledger
from e2e.results.terms import MATRIX_PRODUCTS, TracedPart, TracedStep
from e2e.training.float8 import TENSORWISE, convert

WIDTH, BATCH = 64, 32


class Repeated(nn.Linear):
    """A layer that does its work several times: a slow one, planted."""

    times = 1

    def forward(self, x: Tensor) -> Tensor:
        """[N, WIDTH] -> [N, WIDTH]"""
        for _ in range(self.times):
            x = super().forward(x)
        return x


def network(times: int) -> nn.Sequential:
    slow = Repeated(WIDTH, WIDTH)
    slow.times = times
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), slow, nn.Linear(WIDTH, 4))


def step_of(model: nn.Module) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def recorded_of(model: nn.Module, *, autocast: bool = False) -> TracedStep:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = traced_step(step_of(model), model, 2, named=True)
    assert (found.steps, found.launches) == (2, 0), "no device"
    assert sum(found.terms.values()) == found.window_ns > 0
    return found


def products_of(traced: TracedStep) -> dict[str, TracedPart]:
    return {part.layer: part for part in traced.parts if part.term == MATRIX_PRODUCTS}


def test_recorded_steps_add_up_and_a_slow_layer_is_first() -> None:
    plain, slow = recorded_of(network(1)), recorded_of(network(100))
    layer, part = next(iter(products_of(slow).items()))
    assert (layer, part.dtype) == ("2", "float32")
    base = arm("fp32", 1e9 / plain.window_ns * 2 * 256, traced=plain)
    other = arm("amp", 1e9 / slow.window_ns * 2 * 256, traced=slow)
    changed = next(x for x in ledger(base, other) if x.term == MATRIX_PRODUCTS)
    assert changed.ms > 0
    assert changed.detail.partition("; ")[2].startswith("2 +")


def test_a_layer_has_the_same_name_over_several_gpus() -> None:
    wrapped = nn.DataParallel(network(1))  # with no GPU it calls the model
    layers = products_of(recorded_of(wrapped)).keys()
    assert "0" in layers
    assert not any(layer.startswith("module") for layer in layers)


def test_types_are_those_of_the_products_and_no_size_is_misaligned_on_a_cpu() -> None:
    """It has no Tensor Cores. What FP8 computes is not taken for float32."""
    odd = recorded_of(nn.Sequential(nn.Linear(WIDTH, 13), nn.Linear(13, 4)), autocast=True)
    assert {part.dtype for part in products_of(odd).values()} >= {"bfloat16"}
    assert {part.misaligned for part in products_of(odd).values()} == {""}
    assert not any("multiple of" in cost.title for cost in odd.costs)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 5, bias=False))
    assert convert(model, TENSORWISE) == (1, 2)
    found = {
        layer: part.dtype for layer, part in products_of(recorded_of(model, autocast=True)).items()
    }
    assert found["0"].startswith("float8")
    assert found["1"] == "bfloat16"


def test_a_step_that_raises_ends_the_recording() -> None:
    model = network(1)
    step, calls = step_of(model), 0

    def breaking() -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise RuntimeError("planted")
        step()

    with pytest.raises(RuntimeError, match="planted"):
        traced_step(breaking, model, 2, named=True)
    assert products_of(recorded_of(model)).keys() >= {"0"}, "another begins, and names its layers"
