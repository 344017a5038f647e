"""Hypothesis strategies: any training that a run file may hold."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from e2e.case import TrainCase
from e2e.results.terms import IDLE, OP_TERMS, TracedCost, TracedPart, TracedStep
from e2e.results.types import (
    BORDER,
    LIMITS,
    PREDICTED,
    Cause,
    DeviceState,
    Evaluation,
    LayerGain,
    LedgerLine,
    PartGain,
    Phase,
    Predicted,
    Repeat,
    SensorStats,
    StepTimes,
    Training,
)
from microbench.results.types import TIME_DECIMALS, Ratio, Warning

words = st.text(max_size=8)
numbers = st.floats(0, 1e30)
shares = st.floats(0, 1)
times = st.floats(1e-9, 1e6).map(lambda seconds: round(seconds, TIME_DECIMALS))
counts = st.integers(1, 10**9)
intervals = st.tuples(times, times).map(lambda pair: (min(pair), max(pair)))
BY_TYPE = {
    "bool": st.booleans(), "int": counts, "float": numbers, "str": words, "Interval": intervals,
    "Amount": numbers, "Positive": times, "Share": shares, "Count": counts, "AtLeastOne": counts,
    "Mapping[str, Amount]": st.dictionaries(words, times, max_size=2),
    "Mapping[str, Positive]": st.dictionaries(words, times, max_size=2),
    "tuple[str, ...]": st.lists(words, max_size=2).map(tuple),
}  # fmt: skip


def any_of(kind: Any, **known: Any) -> st.SearchStrategy[Any]:
    """Any value of a dataclass; `known` are fields that hold less than their types."""
    for one in fields(kind):
        name, _, more = str(one.type).partition(" | ")
        if one.name not in known:
            known[one.name] = st.none() | BY_TYPE[name] if more else BY_TYPE[name]
    return st.builds(kind, **known)


def some(strategy: st.SearchStrategy[Any], most: int = 3, least: int = 0) -> Any:
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


cases = any_of(
    TrainCase, recipe=st.sampled_from(["fp32", "tf32", "amp", "O3"]) | words,
    input=st.sampled_from(["3x224x224", "1024", "3x8x9"]) | words,
    data=st.sampled_from(["synthetic", "generated", "folder"]) | words,
    loader=st.sampled_from(["synthetic", "resident", "torchvision"]) | words,
    workers=st.integers(0, 99),
)  # fmt: skip


@st.composite
def step_times(draw: st.DrawFn) -> StepTimes:
    blocks = draw(some(st.integers(1, 3), least=1))
    several = some(times, sum(blocks), sum(blocks))
    return draw(any_of(
        StepTimes, times_s=several, wall_times_s=several, blocks=st.just(blocks), median_s=times,
        ci95_s=st.none() | intervals, wall_s=st.just(0.0) | times, processes=st.just(()),
    ))  # fmt: skip


repeats = any_of(
    Repeat, steps=st.integers(3, 10**6), curve=some(st.none() | numbers),
    evaluations=some(any_of(Evaluation, steps=st.integers(0, 3), accuracy=st.none() | shares)),
    accuracy=st.none() | shares, zero_gradients=st.none() | shares,
    infinite_gradients=st.none() | shares,
)  # fmt: skip
ratios = st.builds(Ratio, st.floats(1e-6, 1e6), st.none() | intervals)
steps_ahead = any_of(
    Predicted, step_s=times, limit=st.sampled_from([*LIMITS, BORDER]),
    speedup=st.dictionaries(st.sampled_from(["fp32", "tf32"]) | words, st.floats(1e-6, 1e6),
                            max_size=3),
    error_pct=st.none() | st.floats(-100, 1e6),
)  # fmt: skip
nanoseconds = st.integers(1, 10**12)
parts = any_of(
    TracedPart, term=st.sampled_from([*OP_TERMS, *IDLE]) | words, ns=nanoseconds,
    within=st.sampled_from(["", *OP_TERMS[:3]]),
)  # fmt: skip
traced_steps = st.builds(
    TracedStep, steps=st.integers(1, 9), launches=st.integers(0, 10**6),
    parts=some(parts, 5, 1),
    costs=some(any_of(TracedCost, ns=nanoseconds), 2),
)  # fmt: skip


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[LedgerLine, ...]:
    """Lines that add up, from one whole step to another."""
    terms = st.sampled_from(["convolutions", "casts", "residual"]) | words
    sources = st.sampled_from(["measured", "replayed", "predicted"]) | words
    first = draw(st.floats(1e-3, 1e5))
    changes = draw(st.lists(st.floats(-first, first), max_size=6))
    last = math.fsum([first, *changes])
    if last <= 0:
        changes.append(first - last)
        last = math.fsum([first, *changes])
    return tuple(
        LedgerLine(draw(terms), ms, draw(sources), draw(words)) for ms in (first, *changes, last)
    )


settings_of_a_case = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | numbers | words
gains = st.none() | st.floats(-100, 1e30)
causes = some(any_of(
    Cause, fix=st.just("") | st.sampled_from(["--graph"]) | words,
    predicted_gain_pct=gains, measured_gain_pct=gains,
    case_change=st.none() | st.dictionaries(words, settings_of_a_case, max_size=2),
), 4)  # fmt: skip
both = {"case": cases, "causes": causes, "ledger": st.just(()) | ledgers()}
unmeasured = st.builds(
    Training, status=st.just(PREDICTED), step_units=counts, unit=st.sampled_from(["img", "tok"]),
    predicted=steps_ahead, why=st.none() | words, rung=st.none() | words, **both,
)  # fmt: skip
ran = any_of(
    Training, status=st.sampled_from(["ok", "skipped", "failed"]),
    unit=st.sampled_from(["img", "tok", "sample"]), steps=st.none() | step_times(),
    phases=some(any_of(Phase)),
    state=any_of(DeviceState, gpu_util_pct=st.none() | any_of(SensorStats)),
    speedup=st.dictionaries(
        st.sampled_from(["fp32", "tf32", "previous", "first"]) | words, ratios, max_size=3
    ),
    repeats=some(repeats), limit=st.none() | st.sampled_from(LIMITS),
    warnings=some(any_of(Warning), 2), predicted=st.none() | steps_ahead,
    bound=st.none() | st.floats(1, 1e6), traced=st.none() | traced_steps, exchange=st.none(),
    fp8_gains=some(any_of(
        PartGain, layers=some(any_of(LayerGain, gain=ratios), least=1), gain=st.none() | ratios
    )),
    measured_at=st.none() | words.filter(bool),
    **both,
)  # fmt: skip
trainings = ran | unmeasured
