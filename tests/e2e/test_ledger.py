"""Ledgers and causes of recorded steps: they add up, whatever the steps, and name what changed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.any_training import traced_steps
from samples.training_runs import variant

from e2e.results.exchange import Exchange
from e2e.results.ledger import causes_of, explained, ledger, terms_ms, without_waits
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
from e2e.results.types import LedgerLine, Training
from microbench.fmt import as_ms

MS = 10**6  # nanoseconds


def recorded(
    parts: dict[str, int], step_ms: float, recipe: str = "amp", *costs: TracedCost
) -> Training:
    """A training that takes so long, with this many milliseconds of each term in two steps."""
    terms = tuple(TracedPart(term, 2 * ms * MS) for term, ms in parts.items())
    return variant(recipe, 256e3 / step_ms, busy=0.5, traced=TracedStep(2, 80, terms, costs))


def change(lines: tuple[LedgerLine, ...], term: str) -> float:
    return next(line.ms for line in lines if line.term == term)


def fed(training: Training, unfed_s: float) -> Training:
    case = replace(training.case, loader="torchvision", data="made")
    return replace(training, case=case, steps=replace(training.steps, unfed_s=unfed_s))


# ---------------------------------------------------------------- sums


@settings(max_examples=50)
@given(traced_steps, st.floats(1e-6, 1e3), st.booleans())
def test_the_terms_are_the_measured_step(traced: TracedStep, step_s: float, captured: bool) -> None:
    training = variant("amp", 256 / step_s, case={"graph": captured}, traced=traced)
    found = terms_ms(training)
    step_ms = 1e3 * training.step_s
    rest_ms = found.pop(RESIDUAL)
    assert math.fsum([*found.values(), rest_ms]) == pytest.approx(step_ms)
    assert all(ms >= 0 for ms in found.values())
    idle_ms = math.fsum(ms for term, ms in found.items() if term in IDLE)
    busy_ms = math.fsum(ms for term, ms in found.items() if term not in IDLE)
    assert idle_ms <= max(0, step_ms - busy_ms) + 1e-9 * step_ms, "no longer than it lasts"
    assert busy_ms == pytest.approx(traced.busy_ns / traced.steps / 1e6), "work is as recorded"


@settings(max_examples=50)
@given(traced_steps, traced_steps, st.floats(1e-3, 1e2), st.floats(1e-3, 1e2))
def test_a_ledger_adds_up_and_the_other_way_round_it_is_the_same(
    first: TracedStep, last: TracedStep, first_s: float, last_s: float
) -> None:
    base = variant("fp32", 256 / first_s, traced=first)
    other = variant("amp", 256 / last_s, traced=last)
    lines, back = ledger(base, other), ledger(other, base)
    scale = max(abs(line.ms) for line in lines)
    assert math.fsum(line.ms for line in lines[:-1]) == pytest.approx(
        lines[-1].ms, abs=1e-9 * scale
    )
    assert {line.term: -line.ms for line in lines[1:-1]} == {one.term: one.ms for one in back[1:-1]}
    assert lines[-2].term == RESIDUAL
    assert all(line.ms == 0 for line in ledger(base, base)[1:-1])


def test_idle_time_is_what_is_left_between_kernels_if_captured_and_the_loader_s_if_fed() -> None:
    training = recorded({CONVOLUTIONS: 20, LAUNCH: 40}, 21.0)
    captured = replace(training, case=replace(training.case, graph=True))
    expected = {CONVOLUTIONS: 20, BETWEEN: 1, RESIDUAL: 0}
    assert terms_ms(captured) == pytest.approx(expected, abs=1e-9)
    found = terms_ms(fed(recorded({CONVOLUTIONS: 20}, 30.0), 22e-3))
    assert found == pytest.approx({CONVOLUTIONS: 20, LOADER: 8.15, RESIDUAL: 2})
    for unfed_s, wait_s in ((0.02, 0.03025), (0.06, 0.0)):  # longer than on a batch that was there
        waits = fed(recorded({CONVOLUTIONS: 20}, 50.0), unfed_s)
        assert waits.loader_wait_s == pytest.approx(wait_s)
    assert Training(training.case, "failed").loader_wait_s == 0.0
    base = recorded({CONVOLUTIONS: 90, LAUNCH: 2}, 95.0, "fp32")
    other = recorded({CONVOLUTIONS: 20, LAUNCH: 45, SYNC: 15}, 40.0)  # 40 of 60 ms: the profiler
    lines = ledger(base, other)
    assert change(lines, CONVOLUTIONS) == pytest.approx(-70)
    assert change(lines, LAUNCH) == pytest.approx(15 - 2)
    assert change(lines, SYNC) == pytest.approx(5)
    assert change(lines, RESIDUAL) == pytest.approx(-3), "of fp32, which took 3 ms more"
    assert {line.source for line in lines} == {"measured", "traced"}


@pytest.mark.parametrize(
    ("slowed", "launches", "rest_pct"),
    [(0.6, 0, 0), (1.0, 0, 0), (1.9, 0, 0), (1.9, 80, -90), (3.0, 0, -200), (0.4, 0, 60)],
)
def test_other_work_on_a_cpu_slows_all_of_its_recorded_step_unless_too_much(
    slowed: float, launches: int, rest_pct: int
) -> None:
    """Beyond twice, and on a GPU, what differs is not explained."""

    def of(recipe: str, step_ms: float, conv_ms: float, pace: float = 1.0) -> Training:
        parts = (TracedPart(CONVOLUTIONS, round(pace * conv_ms * MS), "body", "float32"),
                 TracedPart(LAYOUT, round(pace * (step_ms - conv_ms) * MS)))  # fmt: skip
        cost = TracedCost("layout changes", parts[1].ns, "", "channels_last", "layout")
        return variant(recipe, 256e3 / step_ms, traced=TracedStep(1, launches, parts, (cost,)))

    _, amp = explained([of("fp32", 200, 150), of("amp", 100, 70, slowed)])
    assert change(amp.ledger, RESIDUAL) == pytest.approx(rest_pct, abs=0.01)
    if not rest_pct:
        assert change(amp.ledger, CONVOLUTIONS) == pytest.approx(70 - 150)
        assert change(amp.ledger, LAYOUT) == pytest.approx(30 - 50)
        assert "(30 %)" in amp.causes[0].why
    assert amp.traced
    assert amp.traced.window_ns == pytest.approx(slowed * 100 * MS), "as it was recorded"


# ---------------------------------------------------------------- causes


def test_layers_and_costs_of_recorded_steps_are_named_by_what_they_take() -> None:
    def of(recipe: str, *parts: TracedPart, costs: tuple[TracedCost, ...] = ()) -> Training:
        return variant(recipe, 256 / 0.1, traced=TracedStep(1, 9, parts, costs))

    base = of(
        "fp32",
        TracedPart(CONVOLUTIONS, 60 * MS, "body", "float32"),
        TracedPart(MATRIX_PRODUCTS, 10 * MS, "head", "float32"),
    )
    costs = (
        TracedCost("casts", 10 * MS, "", "one autocast", "casts"),
        TracedCost("synchronisation", 30 * MS, "train.py:8 30 ms", "read it seldom", "sync"),
        TracedCost("copies", 2 * MS, "", ""),
    )
    other = of(
        "amp",
        TracedPart(CONVOLUTIONS, 20 * MS, "body", "float16"),
        TracedPart(LAYOUT, 1 * MS, "body", "float16", within=CONVOLUTIONS),
        TracedPart(MATRIX_PRODUCTS, 15 * MS, "head", "float16", ""),
        TracedPart(SYNC, 40 * MS),
        costs=costs,
    )
    unseen = variant("bf16", 1e4)
    first, found, nothing = explained([base, other, unseen])
    assert nothing == unseen, "no steps of it were recorded"
    assert (first.ledger, first.causes) == ((), ()), "of full precision"
    lines = {line.term: line for line in found.ledger}
    assert lines[CONVOLUTIONS].detail == "60.0000 to 20.0000 ms; body -40.00"
    assert lines[LAYOUT].ms == pytest.approx(1)
    assert found.ledger_base == "fp32"
    titles = ["synchronisation", "casts", "layers that are slower than in fp32"]
    assert [cause.title for cause in found.causes] == titles
    assert found.causes[-1].why == "5.00 of 100.0 ms (5 %): head +5.00 ms"
    assert "30.0 of 100.0 ms (30 %): train.py:8" in found.causes[0].why
    assert found.causes[0].fix == "read it seldom"
    (alone,) = explained([base])
    assert alone.causes == (), "and its trace says nothing against it"


def test_a_captured_step_is_not_blamed_for_launches() -> None:
    launch = TracedCost("CPU launch", 40 * MS, "", "", "launch")
    training = recorded({CONVOLUTIONS: 20, LAUNCH: 20}, 40.0, "amp", launch)
    assert [cause.title for cause in causes_of(training)] == ["CPU launch"]
    assert causes_of(replace(training, case=replace(training.case, graph=True))) == ()
    waits = causes_of(fed(training, 25e-3))
    assert [cause.title for cause in waits] == ["data loading", "CPU launch"]
    assert "40.2 ms, on a preloaded batch 25.0 ms" in waits[0].why
    few = replace(training, steps=replace(training.steps, wait_s=1e-3), traced=None)
    (competes,) = causes_of(fed(few, 15e-3))
    assert competes.title == "the data loader competes for the CPU"


@given(st.integers(1, 90), st.sampled_from(["launch", "sync", "own"]))
def test_a_wait_takes_no_longer_than_the_gpu_idles_in_the_timed_step(ms: int, name: str) -> None:
    """Whatever the steps beside the recording took, when the CPU was slower."""
    cost = TracedCost("a wait", 2 * ms * MS, "", "", name)
    training = recorded({CONVOLUTIONS: 20, LAUNCH: 40}, 30.0, "amp", cost)
    idle_ms = 1e3 * training.step_s - 20
    named = [cause.why for cause in causes_of(training)]
    assert named == [f"it takes up to {as_ms(min(ms, idle_ms))} of 30.0 ms "
                     f"({100 * min(ms, idle_ms) / 30:.0f} %)"]  # fmt: skip
    assert causes_of(recorded({CONVOLUTIONS: 20, LAUNCH: 40}, 20.2, "amp", cost)) == ()
    on_cpu = replace(training, traced=replace(training.traced, launches=0))
    assert f"{as_ms(min(ms, 30))} of" in causes_of(on_cpu)[0].why, "there every term is slowed"


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
