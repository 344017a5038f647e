"""Ledgers of recorded steps: exact to the nanosecond, and of what really ran."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.any_training import traced_steps
from samples.training_runs import arm
from torch import Tensor, nn

from e2e.explain.annotate import with_predictions
from e2e.explain.causes import findings
from e2e.explain.in_place import NS, account, in_place_ledger, recorded_step, without_waits
from e2e.profile.in_place import traced_step
from e2e.results.exchange import Exchange
from e2e.results.terms import (
    BETWEEN,
    CONVOLUTIONS,
    EXCHANGE,
    EXPOSED,
    IDLE,
    LAUNCH,
    LAYOUT,
    LOADER,
    MATRIX_PRODUCTS,
    RESIDUAL,
    SYNC,
    TracedCost,
    TracedPart,
    TracedStep,
)
from e2e.results.types import Training
from e2e.training.float8 import TENSORWISE, convert

MS = 10**6  # nanoseconds
WIDTH, BATCH = 64, 32


def recorded(
    parts: dict[str, int], step_ms: float, recipe: str = "amp", **more: object
) -> Training:
    """A training that takes so long, with this many milliseconds of each term in two steps."""
    traced = TracedStep(2, 80, tuple(TracedPart(term, 2 * ms * MS) for term, ms in parts.items()))
    made = arm(recipe, 256e3 / step_ms, busy=0.5)
    return replace(made, traced=traced, **more)


def change(lines: tuple[object, ...], term: str) -> float:
    return next(line.ms for line in lines if getattr(line, "term", "") == term)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- sums


@settings(max_examples=50)
@given(traced_steps, st.floats(1e-6, 1e3), st.booleans())
def test_the_terms_and_the_rest_are_the_measured_step_exactly(
    traced: TracedStep, step_s: float, captured: bool
) -> None:
    training = arm("amp", 256 / step_s, case={"graph": captured}, traced=traced)
    found = account(training)
    assert training.measured_s
    assert sum(found.terms.values()) + found.rest_ns == Fraction(training.measured_s) * NS
    assert all(ns >= 0 for ns in found.terms.values())
    idle_ns = sum(ns for term, ns in found.terms.items() if term in IDLE)
    busy_ns = sum(ns for term, ns in found.terms.items() if term not in IDLE)
    assert idle_ns <= max(0, found.step_ns - busy_ns), "it cannot wait longer than it lasts"
    assert busy_ns == Fraction(traced.busy_ns, traced.steps), "work is as recorded"


@settings(max_examples=50)
@given(traced_steps, traced_steps, st.floats(1e-3, 1e2), st.floats(1e-3, 1e2))
def test_a_ledger_adds_up_and_the_other_way_round_it_is_the_same(
    first: TracedStep, last: TracedStep, first_s: float, last_s: float
) -> None:
    base = arm("fp32", 256 / first_s, traced=first)
    other = arm("amp", 256 / last_s, traced=last)
    lines, back = in_place_ledger(base, other), in_place_ledger(other, base)
    scale = max(abs(line.ms) for line in lines)
    assert math.fsum(line.ms for line in lines[:-1]) == pytest.approx(
        lines[-1].ms, abs=1e-9 * scale
    )
    assert {line.term: -line.ms for line in lines[1:-1]} == {one.term: one.ms for one in back[1:-1]}
    itself = in_place_ledger(base, base)
    assert all(line.ms == 0 for line in itself[1:-1])


def test_idle_time_is_what_is_left_of_the_step_that_was_measured() -> None:
    base = recorded({CONVOLUTIONS: 90, LAUNCH: 2}, 95.0, "fp32")
    other = recorded({CONVOLUTIONS: 20, LAUNCH: 45, SYNC: 15}, 40.0)  # 40 of 60 ms: the profiler
    lines = in_place_ledger(base, other)
    assert change(lines, CONVOLUTIONS) == pytest.approx(-70)
    assert change(lines, LAUNCH) == pytest.approx(15 - 2)
    assert change(lines, SYNC) == pytest.approx(5)
    assert change(lines, RESIDUAL) == pytest.approx(-3), "of fp32, which took 3 ms more"
    detail = next(line.detail for line in lines if line.term == LAUNCH)
    assert "with the profiler 2.00 to 45.00 ms" in detail


def test_a_captured_step_waits_between_kernels_and_a_fed_one_for_its_loader() -> None:
    training = recorded({CONVOLUTIONS: 20, LAUNCH: 40}, 21.0)
    captured = replace(training, case=replace(training.case, graph=True))
    assert account(captured).terms == {CONVOLUTIONS: 20 * MS, BETWEEN: pytest.approx(1 * MS)}
    training = recorded({CONVOLUTIONS: 20}, 30.0)
    assert training.steps is not None
    fed = replace(training.case, loader="torchvision", data="made")
    found = account(replace(training, case=fed, steps=replace(training.steps, unfed_s=22e-3)))
    assert float(found.terms[LOADER]) == pytest.approx(found.step_ns - 22 * MS)
    assert float(found.rest_ns) == pytest.approx(2 * MS)


# ---------------------------------------------------------------- causes


def test_layers_and_costs_of_recorded_steps_are_named_by_what_they_take() -> None:
    def of(recipe: str, *parts: TracedPart, costs: tuple[TracedCost, ...] = ()) -> Training:
        made = arm(recipe, 256 / 0.1)
        return replace(made, traced=TracedStep(1, 9, parts, costs))

    base = of(
        "fp32",
        TracedPart(CONVOLUTIONS, 60 * MS, "body", "float32"),
        TracedPart(MATRIX_PRODUCTS, 10 * MS, "head", "float32"),
    )
    sync = TracedCost("synchronisation", 30 * MS, "train.py:8 30 ms", "read it seldom")
    other = of(
        "amp",
        TracedPart(CONVOLUTIONS, 20 * MS, "body", "float16"),
        TracedPart(LAYOUT, 1 * MS, "body", "float16", within=CONVOLUTIONS),
        TracedPart(MATRIX_PRODUCTS, 15 * MS, "head", "float32", ""),
        TracedPart(SYNC, 40 * MS),
        costs=(sync,),
    )
    _, found = with_predictions([base, other], {})
    lines = {line.term: line for line in found.ledger}
    assert lines[CONVOLUTIONS].detail == "60.00 to 20.00 ms; body -40.00"
    assert lines[LAYOUT].ms == pytest.approx(1)
    assert lines[CONVOLUTIONS].source == "traced"
    assert found.bound == pytest.approx(100 / 30)
    assert other.traced is not None
    causes = findings(
        recorded_step(other), recorded_step(base), "amp", "fp32", other.traced.costs, 1
    )
    by_title = {cause.title: cause for cause in causes}
    assert causes[0].title == "synchronisation", "the costliest first"
    assert "train.py:8" in by_title["synchronisation"].why
    assert by_title["synchronisation"].fix == "read it seldom"
    assert "head (15.0 ms in amp, 10.0 in fp32)" in (
        by_title["layers that are slower in low precision"].why
    )
    assert "head (15.0 ms)" in by_title["GEMMs and convolutions still in float32"].why


# ---------------------------------------------------------------- the real thing


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
        found = traced_step(step_of(model), model, 2, named=True, channels_last=False)
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
    found = account(other)
    assert sum(found.terms.values()) + found.rest_ns == found.step_ns
    changed = next(x for x in in_place_ledger(base, other) if x.term == MATRIX_PRODUCTS)
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
        traced_step(breaking, model, 2, named=True, channels_last=False)
    assert products_of(recorded_of(model)).keys() >= {"0"}, "another begins, and names its layers"


# ---------------------------------------------------------------- over several ranks


@given(st.integers(0, 90), st.integers(0, 9))
def test_a_rank_that_waits_for_anothers_launches_exchanges_no_longer(ms: int, late_ms: int) -> None:
    """An all-reduce of 5 ms alone, and a rank that is so much later than rank 0."""
    terms = {EXCHANGE: 2 * ms, CONVOLUTIONS: 40, LAUNCH: 6}
    parts = tuple(TracedPart(term, taken * MS) for term, taken in terms.items())
    costs = (TracedCost(EXPOSED, 2 * ms * MS, "x", ""), TracedCost("other", 90 * MS, "y", ""))
    recorded = TracedStep(2, 100, parts, costs)
    local_s = 0.05 + late_ms / 1000
    exchange = Exchange(2, 100, local_s, 0.005, 0.001, None, (0.05, local_s))
    found = without_waits(recorded, exchange)
    assert found.terms[EXCHANGE] == min(2 * ms, 2 * (5 + late_ms)) * MS
    assert found.terms[CONVOLUTIONS] == 40 * MS
    assert found.window_ns == recorded.window_ns
    assert [cost.ns for cost in found.costs] == [found.terms[EXCHANGE], 90 * MS]
    assert without_waits(recorded, replace(exchange, ranks=1)) == recorded
