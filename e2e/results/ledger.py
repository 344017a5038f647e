"""Where a training's step goes, from steps that the profiler recorded: its ledger and its causes.

While the GPU works, a step's time is in the terms of that work, as recorded. What is left of the
measured step is idle. The profiler makes launching longer, so where the recorded steps idle more
than that, their idle terms are scaled down to it; what else differs is the residual. Other work on
a CPU slows all of its step alike: there the terms share it (`cpu_pace`).

Pure functions of trainings.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from e2e.results.baselines import BASELINES, baselines, slowest
from e2e.results.exchange import Exchange
from e2e.results.terms import (
    BETWEEN,
    EXCHANGE,
    EXPOSED,
    IDLE,
    LAUNCH,
    LOADER,
    OP_TERMS,
    PRODUCT_TERMS,
    RESIDUAL,
    STEP_TERMS,
    TracedPart,
    TracedStep,
)
from e2e.results.types import Cause, LedgerLine, Training
from microbench.fmt import as_ms

ORDER = (*OP_TERMS, *STEP_TERMS, *IDLE)  # of the lines
TOP_LAYERS = 3
MOST_PACE = 2.0  # between recorded and timed steps on a CPU: beyond it they are not alike
NO_LAYER = "outside the layers"
SLOWER = 1.1  # times as long as in the base: less may be noise
LEAST_SHARE = 0.03  # of a step: a cause that takes less is not named
FULL_PRECISION = frozenset(recipe for recipes in BASELINES.values() for recipe in recipes)
# Causes of launching call by call, which a CUDA graph does not do: its step was recorded without.
OF_LAUNCHING = ("launch", "sync", "loops", "late", "own")
OF_IDLING = ("launch", "sync", "own")  # causes in which the GPU does nothing but wait
LOADING, COMPETING = "data loading", "the data loader competes for the CPU"  # titles


def explained(trainings: Sequence[Training]) -> list[Training]:
    """The trainings of one comparison with their causes and, if steps were recorded, ledgers.

    Causes are those of low precision, or of all where none has that.
    """
    timed = {t.case for t in trainings if t.step_s}
    known = {t.case: at_timed_pace(t) for t in trainings if t.traced and t.case in timed}
    low = {case for case in timed if case.recipe not in FULL_PRECISION} or timed
    results: list[Training] = []
    for training in trainings:
        base = slowest(training.case, baselines(training.case, list(known)))
        seen = known.get(training.case, training)
        if training.case in low:
            causes = causes_of(seen, known[base] if base else None)
            training = replace(training, causes=causes)
        if training.case in known and base:
            training = replace(training, ledger=ledger(known[base], seen), ledger_base=base.recipe)
        results.append(training)
    return results


def cpu_pace(training: Training) -> float:
    """By how much to multiply the recorded times of a CPU's step so that they are the timed one's.

    1 for a GPU's steps, and where their idle time alone may make the difference, as the profiler
    makes that longer.
    """
    traced, step_s = training.traced, training.step_s
    if traced is None or step_s is None or traced.launches or not traced.busy_ns:
        return 1.0
    own_ns = 1e9 * traced.steps * (step_s - training.loader_wait_s)
    return max(own_ns / traced.window_ns, min(1.0, own_ns / traced.busy_ns))


def at_timed_pace(training: Training) -> Training:
    """The training with recorded times at the CPU speed of its timed steps, if that is near."""
    pace = cpu_pace(training)
    if training.traced is None or pace == 1 or not 1 / MOST_PACE <= pace <= MOST_PACE:
        return training
    parts, costs = (
        tuple(replace(one, ns=round(pace * one.ns)) for one in of)
        for of in (training.traced.parts, training.traced.costs)
    )
    return replace(training, traced=replace(training.traced, parts=parts, costs=costs))


def terms_ms(training: Training) -> dict[str, float]:
    """Milliseconds of a recorded training's measured step by term; with RESIDUAL they add up."""
    traced, step_s = training.traced, training.step_s
    assert traced is not None
    assert step_s is not None
    step_ms, wait_ms = 1e3 * step_s, 1e3 * training.loader_wait_s
    terms = {term: ns / traced.steps / 1e6 for term, ns in traced.terms.items()}
    idle = {term: terms.pop(term) for term in IDLE if term in terms}
    if training.case.graph:  # recorded uncaptured: as captured it has no launches
        idle = {BETWEEN: math.fsum(idle.values())}
    idle_ms = math.fsum(idle.values())
    left_ms = max(0.0, step_ms - wait_ms - math.fsum(terms.values()))
    scale = min(1.0, left_ms / idle_ms) if idle_ms else 1.0
    terms |= {term: scale * ms for term, ms in idle.items()}
    if wait_ms:
        terms[LOADER] = terms.get(LOADER, 0.0) + wait_ms
    return {**terms, RESIDUAL: step_ms - math.fsum(terms.values())}


def ledger(base: Training, other: Training) -> tuple[LedgerLine, ...]:
    """The lines that lead from one measured step to the other, in milliseconds.

    The first line is the base step, the last one the other step. The lines between are changes
    (negative: time saved) and add up to the difference. Both trainings were recorded.
    """
    assert base.step_s
    assert other.step_s
    first, last = terms_ms(base), terms_ms(other)
    changes: list[LedgerLine] = []
    for term in dict.fromkeys((*ORDER, *first, *last)):
        if term not in first and term not in last:
            continue
        before_ms, after_ms = first.get(term, 0.0), last.get(term, 0.0)
        detail, source = f"{before_ms:.4f} to {after_ms:.4f} ms", "traced"
        if term in PRODUCT_TERMS:
            detail += _top_layers(base, other, term)
        elif term == RESIDUAL:
            source = "measured"
            detail = (
                "measured minus recorded (the profiler, another CPU speed): "
                f"base {before_ms:+.4f}, other {after_ms:+.4f}"
            )
        changes.append(LedgerLine(term, after_ms - before_ms, source, detail))
    changes.sort(key=lambda line: line.term == RESIDUAL)
    return (
        LedgerLine(f"{base.case.recipe} step", 1e3 * base.step_s, "measured"),
        *changes,
        LedgerLine(f"{other.case.recipe} step", 1e3 * other.step_s, "measured"),
    )


def _top_layers(base: Training, other: Training, term: str) -> str:
    """The layers whose time (ms) of a term changed most: "; layer4.0.conv2 -1.20, ..."."""
    before, after = (_by_layer(training, (term,)) for training in (base, other))
    changed = {layer: after[layer] - before[layer] for layer in {**before, **after}}
    most = sorted(changed.items(), key=lambda change: -abs(change[1]))[:TOP_LAYERS]
    named = ", ".join(f"{layer} {ms:+.2f}" for layer, ms in most if f"{abs(ms):.2f}" != "0.00")
    return f"; {named}" if named else ""


def _by_layer(
    training: Training, terms: Collection[str], *, within: bool = False
) -> dict[str, float]:
    """Milliseconds a step of these terms by layer; `within`: with layout changes inside them."""
    assert training.traced
    layers: dict[str, float] = defaultdict(float)
    for part in training.traced.parts:
        if (part.within if within and part.within else part.term) in terms:
            layer = part.layer or NO_LAYER
            layers[layer] += part.ns / training.traced.steps / 1e6
    return layers


def causes_of(training: Training, base: Training | None = None) -> tuple[Cause, ...]:
    """What the trace of its steps says against them, of a fed one its wait for the loader, and
    layers that its `base` runs faster; the costliest first.
    """
    traced, steps, step_s = training.traced, training.steps, training.step_s
    assert steps is not None
    assert step_s is not None
    step_ms, wait_ms = 1e3 * step_s, 1e3 * training.loader_wait_s
    causes: list[tuple[float, Cause]] = []
    if wait_ms > LEAST_SHARE * step_ms:
        step = "forward pass" if training.case.evaluation else "step"
        why = (
            f"the {step} takes {as_ms(step_ms)} ms, on a preloaded batch "
            f"{as_ms(step_ms - wait_ms)} ms ({100 * wait_ms / step_ms:.0f} % less)"
        )
        title, remedy = LOADING, "more loader workers, or less work for each sample"
        if steps.wait_s is not None and 1e3 * steps.wait_s < wait_ms / 2:
            why += "; mostly it does not wait for data"
            title = COMPETING
            remedy = "fewer workers, or a CUDA graph, so that the CPU has less to launch"
        causes.append((wait_ms, Cause(title, why, remedy)))
    for cost in traced.costs if traced else ():
        assert traced
        most_ms = step_ms
        if traced.launches and cost.cause in OF_IDLING:  # the CPU may have been slower meanwhile
            most_ms -= wait_ms + traced.busy_ns / traced.steps / 1e6
        ms = min(cost.ns / traced.steps / 1e6, most_ms)
        if ms <= LEAST_SHARE * step_ms or (training.case.graph and cost.cause in OF_LAUNCHING):
            continue
        why = f"it takes up to {as_ms(ms)} of {as_ms(step_ms)} ms ({100 * ms / step_ms:.0f} %)"
        why += f": {cost.where}" * bool(cost.where)
        causes.append((ms, Cause(cost.title, why, cost.remedy)))
    if base and traced and training.case.recipe not in FULL_PRECISION:
        causes += _slower_layers(base, training, step_ms)
    return tuple(cause for _, cause in sorted(causes, key=lambda pair: -pair[0]))


def _slower_layers(
    base: Training, training: Training, step_ms: float
) -> Iterator[tuple[float, Cause]]:
    """Layers whose GEMMs and convolutions take longer than in the base."""
    before, after = (_by_layer(t, PRODUCT_TERMS, within=True) for t in (base, training))
    grown = {
        layer: after[layer] - ms
        for layer, ms in before.items()
        if layer != NO_LAYER and after[layer] > SLOWER * ms
    }
    lost_ms = math.fsum(grown.values())
    if lost_ms > LEAST_SHARE * step_ms:
        most = sorted(grown, key=lambda layer: -grown[layer])[:TOP_LAYERS]
        places = ", ".join(f"{layer} +{as_ms(grown[layer])} ms" for layer in most)
        why = f"{as_ms(lost_ms)} of {as_ms(step_ms)} ms ({100 * lost_ms / step_ms:.0f} %): {places}"
        name = base.case.recipe
        yield lost_ms, Cause(f"layers that are slower than in {name}", why, f"keep them in {name}")


def without_waits(traced: TracedStep, exchange: Exchange) -> TracedStep:
    """Recorded steps of rank 0 of several, whose exchange takes no longer than it can.

    What it waits for beyond that is another rank's launches, which the profiler makes longer: it is
    in the term of CPU launch.
    """
    most_ns = round(1e9 * exchange.longest_wait_s * traced.steps)
    beyond_ns = traced.terms.get(EXCHANGE, 0) - most_ns
    if exchange.ranks == 1 or beyond_ns <= 0:
        return traced
    launch_ns = traced.terms.get(LAUNCH, 0) + beyond_ns
    parts = [part for part in traced.parts if part.term not in (EXCHANGE, LAUNCH)]
    parts += [TracedPart(EXCHANGE, most_ns), TracedPart(LAUNCH, launch_ns)]
    costs = tuple(
        replace(cost, ns=min(cost.ns, most_ns), where="between GPUs")
        if cost.title == EXPOSED
        else cost
        for cost in traced.costs
    )
    longest = tuple(sorted(parts, key=lambda part: -part.ns))
    return replace(traced, parts=longest, costs=costs)
