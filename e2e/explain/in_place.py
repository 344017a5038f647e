"""The ledger from one training's step to another's, from steps that the profiler recorded.

While the GPU works, a step's time is in the terms of that work, as recorded. What is left of the
measured step is idle. The profiler makes launching longer, so where the recorded steps idle more
than that, their idle terms are scaled down to it; what else differs is the residual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from e2e.explain.ledger import Step, from_to, top_layers
from e2e.prediction.prediction import measured_wait_s
from e2e.prediction.queue_model import OpCost, Simulated
from e2e.results.exchange import Exchange
from e2e.results.terms import (
    ATTENTION,
    BETWEEN,
    CONVOLUTIONS,
    EXCHANGE,
    EXPOSED,
    IDLE,
    LAUNCH,
    LAYOUT,
    LOADER,
    MATRIX_PRODUCTS,
    OP_TERMS,
    PRODUCT_TERMS,
    RESIDUAL,
    STEP_TERMS,
    TERMS,
    TracedPart,
    TracedStep,
)
from e2e.results.types import LedgerLine, Training
from e2e.training.speedups import IDLE_SHARE

NS = 10**9
ORDER = (*OP_TERMS, *STEP_TERMS, *IDLE)  # of the lines
_KINDS = {term: kind for kind, term in TERMS.items()}
_NAMES = {CONVOLUTIONS: "aten.convolution", MATRIX_PRODUCTS: "aten.mm", ATTENTION: "attention"}


def is_recorded(training: Training) -> bool:
    """Whether a ledger can be made of its own steps."""
    return training.traced is not None and training.measured_s is not None


@dataclass(frozen=True)
class Account:
    """One measured step in nanoseconds, as exact fractions: the terms and the rest add up to it.

    `as_recorded` are the idle terms before they were scaled.
    """

    step_ns: Fraction
    terms: Mapping[str, Fraction]
    as_recorded: Mapping[str, Fraction]

    @property
    def rest_ns(self) -> Fraction:
        """What the recorded steps do not explain of the measured one."""
        return self.step_ns - sum(self.terms.values())


def account(training: Training) -> Account:
    """The measured step of a training that was recorded, divided."""
    traced, step_s = training.traced, training.measured_s
    assert traced is not None
    assert step_s is not None
    step_ns, wait_ns = Fraction(step_s) * NS, Fraction(measured_wait_s(training)) * NS
    per_step = {
        term: Fraction(ns, traced.steps)
        for term, ns in _idle_between(traced, training.case.graph).items()
    }
    idle = {term: ns for term, ns in per_step.items() if term in IDLE}
    busy_ns = sum(ns for term, ns in per_step.items() if term not in IDLE)
    idle_ns = sum(idle.values())
    left_ns = max(Fraction(0), step_ns - wait_ns - busy_ns)
    if idle_ns > left_ns:
        per_step |= {term: ns * left_ns / idle_ns for term, ns in idle.items()}
    if wait_ns:
        per_step[LOADER] = per_step.get(LOADER, Fraction(0)) + wait_ns
    return Account(step_ns, per_step, idle)


def _idle_between(traced: TracedStep, captured: bool) -> Mapping[str, int]:
    """The terms. A captured step was recorded uncaptured: as captured it has no launches."""
    if not captured:
        return traced.terms
    found = {term: ns for term, ns in traced.terms.items() if term not in IDLE}
    return {**found, BETWEEN: traced.window_ns - traced.busy_ns}


def without_waits(traced: TracedStep, exchange: Exchange) -> TracedStep:
    """Recorded steps of rank 0 of several, whose exchange takes no longer than it can.

    What it waits for beyond that is another rank's launches, which the profiler makes longer: it is
    in the term of CPU launch.
    """
    most_ns = round(exchange.longest_wait_s * traced.steps * NS)
    beyond_ns = traced.terms.get(EXCHANGE, 0) - most_ns
    if exchange.ranks == 1 or beyond_ns <= 0:
        return traced
    terms = {**traced.terms, LAUNCH: traced.terms.get(LAUNCH, 0) + beyond_ns}
    parts = [part for part in traced.parts if part.term not in (EXCHANGE, LAUNCH)]
    parts += [TracedPart(EXCHANGE, most_ns), TracedPart(LAUNCH, terms[LAUNCH])]
    costs = tuple(
        replace(cost, ns=min(cost.ns, most_ns), where="between GPUs")
        if cost.title == EXPOSED
        else cost
        for cost in traced.costs
    )
    longest = tuple(sorted(parts, key=lambda part: -part.ns))
    return replace(traced, parts=longest, costs=costs)


def in_place_ledger(base: Training, other: Training) -> tuple[LedgerLine, ...]:
    """The lines that lead from one measured step to the other, in milliseconds.

    As `e2e.explain.ledger.ledger`; both trainings were recorded.
    """
    first, last = account(base), account(other)
    steps = recorded_step(base), recorded_step(other)
    changes: list[LedgerLine] = []
    for term in dict.fromkeys((*ORDER, *first.terms, *last.terms)):
        if term in first.terms or term in last.terms:
            taken = [each.terms.get(term, Fraction(0)) for each in (first, last)]
            detail = from_to(_ms(taken[0]), _ms(taken[1]))
            if term in PRODUCT_TERMS:
                detail += top_layers(*steps, term)
            if term in IDLE and term != LOADER:
                detail += _recorded_detail(first, last, term)
            changes.append(LedgerLine(term, _ms(taken[1] - taken[0]), "traced", detail))
    rests = first.rest_ns, last.rest_ns
    beyond = ", ".join(
        f"{name} {_ms(rest):+.2f}" for name, rest in zip(("base", "other"), rests, strict=True)
    )
    detail = f"measured minus recorded (the profiler, another CPU speed): {beyond}"
    return (
        LedgerLine(f"{base.case.recipe} step", _ms(first.step_ns), "measured"),
        *changes,
        LedgerLine(RESIDUAL, _ms(rests[1] - rests[0]), "measured", detail),
        LedgerLine(f"{other.case.recipe} step", _ms(last.step_ns), "measured"),
    )


def _recorded_detail(first: Account, last: Account, term: str) -> str:
    """What the idle term was beside the profiler, where it was more."""
    scaled = any(each.as_recorded.get(term, 0) > each.terms.get(term, 0) for each in (first, last))
    if not scaled:
        return ""
    recorded = [_ms(each.as_recorded.get(term, Fraction(0))) for each in (first, last)]
    return f"; with the profiler {from_to(*recorded)}"


def _ms(ns: Fraction) -> float:
    return float(ns / 10**6)


# ---------------------------------------------------------------- as a step


def recorded_step(training: Training) -> Step:
    """The recorded step as causes look at it: its parts as operations, its idle time measured."""
    traced, steps, step_s = training.traced, training.steps, training.measured_s
    assert traced is not None
    assert steps is not None
    assert step_s is not None
    wait_s = measured_wait_s(training)
    busy_s = min(step_s - wait_s, traced.busy_ns / traced.steps / NS)
    idle_s = step_s - wait_s - busy_s
    idles = training.limit == "host" if training.limit in ("gpu", "host") else (
        bool(traced.launches) and idle_s > IDLE_SHARE * step_s
    )  # fmt: skip
    ops = [_op(part, traced) for part in traced.parts if part.term not in IDLE]
    simulated = Simulated(
        step_s - wait_s, busy_s, steps.host_s or 0.0, idle_s, "host" if idles else "gpu"
    )
    return Step(ops, simulated, step_s, wait_s, wait_s, round(traced.launches / traced.steps))


def _op(part: TracedPart, traced: TracedStep) -> OpCost:
    seconds = part.ns / traced.steps / NS
    product = part.within or part.term
    if product in PRODUCT_TERMS:
        return OpCost(
            "product", "", part.layer, seconds, 0.0,
            conversion_s=seconds if part.term == LAYOUT else 0.0,
            name=_NAMES.get(product, ""), dtype=part.dtype, misaligned=part.misaligned,
        )  # fmt: skip
    return OpCost(
        _KINDS.get(part.term, "other"), "", part.layer, seconds, 0.0, waits=not traced.launches
    )
