"""Hypothesis strategies: any training that a run file may hold."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from e2e.case import TrainCase
from e2e.results.terms import IDLE, OP_TERMS, TracedCost, TracedPart, TracedStep
from e2e.results.types import (
    BORDER,
    LIMITS,
    PREDICTED,
    Cause,
    Evaluation,
    LedgerLine,
    Phase,
    Predicted,
    Repeat,
    Spread,
    State,
    StepTimes,
    Training,
)
from microbench.results.types import TIME_DECIMALS, Ratio, Warning

words = st.text(max_size=8)
numbers = st.floats(0, 1e30)
maybe = st.none() | numbers
times = st.floats(1e-9, 1e6).map(lambda seconds: round(seconds, TIME_DECIMALS))
counts = st.integers(1, 10**9)
intervals = st.tuples(times, times).map(lambda pair: (min(pair), max(pair)))
cases = st.builds(
    TrainCase, network=words, recipe=st.sampled_from(["fp32", "tf32", "amp", "O3"]) | words,
    batch=counts, input=st.sampled_from(["3x224x224", "1024", "3x8x9"]) | words, layout=words,
    optimizer=words, fused=st.booleans(), compile=st.booleans(), graph=st.booleans(),
    accumulate=counts, loss_scale=maybe, keep_batchnorm_fp32=st.booleans(),
    label_smoothing=numbers, data=st.sampled_from(["synthetic", "generated", "folder"]) | words,
    loader=st.sampled_from(["synthetic", "resident", "torchvision"]) | words,
    workers=st.integers(0, 99), cached=st.booleans(), cold=st.booleans(), cpus=st.integers(0, 99),
    gpus=counts,
)  # fmt: skip


@st.composite
def step_times(draw: st.DrawFn) -> StepTimes:
    blocks = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    count = sum(blocks)
    some = st.lists(times, min_size=count, max_size=count).map(tuple)
    return StepTimes(
        draw(some), draw(some), tuple(blocks), draw(st.floats(1e-9, 1e6)),
        draw(st.none() | intervals), draw(numbers), draw(st.integers(0, 99)), draw(maybe),
        draw(maybe), draw(st.none() | counts),
    )  # fmt: skip


repeats = st.builds(
    Repeat, curve=st.lists(maybe, max_size=3).map(tuple), seed=st.integers(0, 2**62),
    steps=st.integers(3, 10**6), train_s=numbers, first_loss=maybe,
    train_loss=maybe, loss=maybe, accuracy=st.none() | st.floats(0, 1),
    skipped_steps=st.integers(0, 99), last_loss=maybe, mean_loss=maybe,
    evaluations=st.lists(
        st.builds(Evaluation, st.integers(0, 3), numbers, maybe, st.none() | st.floats(0, 1)),
        max_size=3,
    ).map(tuple),
    zero_gradients=st.none() | st.floats(0, 1), infinite_gradients=st.none() | st.floats(0, 1),
)  # fmt: skip
ratios = st.builds(Ratio, st.floats(1e-6, 1e6), st.none() | intervals)
steps_ahead = st.builds(
    Predicted, step_s=st.floats(1e-9, 1e6), interval_s=st.none() | intervals,
    limit=st.sampled_from([*LIMITS, BORDER]),
    speedup=st.dictionaries(st.sampled_from(["fp32", "tf32"]) | words, st.floats(1e-6, 1e6),
                            max_size=3),
    memory_bytes=st.none() | counts, uncovered=st.lists(words, max_size=3).map(tuple),
    error_pct=st.none() | st.floats(-100, 1e6),
    took_s=st.dictionaries(words, st.floats(0, 1e6), max_size=3),
    paced_s=st.none() | st.floats(1e-9, 1e6),
    gpu_s=st.none() | st.floats(0, 1e6),
    host_s=st.none() | st.floats(0, 1e6),
    from_step=st.lists(words, max_size=3).map(tuple),
    terms_ms=st.dictionaries(words, numbers, max_size=3),
)  # fmt: skip
nanoseconds = st.integers(1, 10**12)
parts = st.builds(
    TracedPart, term=st.sampled_from([*OP_TERMS, *IDLE]) | words, ns=nanoseconds, layer=words,
    dtype=words, misaligned=words, within=st.sampled_from(["", *OP_TERMS[:3]]),
)  # fmt: skip
traced_steps = st.builds(
    TracedStep, steps=st.integers(1, 9), launches=st.integers(0, 10**6),
    parts=st.lists(parts, min_size=1, max_size=5).map(tuple),
    costs=st.lists(st.builds(TracedCost, words, nanoseconds, words, words), max_size=2).map(tuple),
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
causes = st.lists(
    st.builds(
        Cause, title=words, why=words, fix=st.just("") | st.sampled_from(["--graph"]) | words,
        predicted_gain_pct=gains, measured_gain_pct=gains,
        case_change=st.none() | st.dictionaries(words, settings_of_a_case, max_size=2),
    ),
    max_size=4,
).map(tuple)  # fmt: skip


unmeasured = st.builds(
    Training, case=cases, status=st.just(PREDICTED), step_units=counts,
    unit=st.sampled_from(["img", "tok"]), predicted=steps_ahead, why=st.none() | words,
    ledger=st.just(()) | ledgers(), rung=st.none() | words, causes=causes,
)  # fmt: skip
ran = st.builds(
    Training, case=cases, status=st.sampled_from(["ok", "skipped", "failed"]),
    reason=st.none() | words, unit=st.sampled_from(["img", "tok", "sample"]), step_units=counts,
    steps=st.none() | step_times(),
    phases=st.lists(st.builds(Phase, words, maybe, numbers), max_size=3).map(tuple),
    state=st.builds(State, st.none() | st.builds(Spread, numbers, numbers, numbers), maybe, maybe,
                    maybe, st.lists(words, max_size=2).map(tuple)),
    setup_s=maybe, compile_s=maybe, memory_peak_bytes=st.none() | counts,
    memory_reserved_bytes=st.none() | counts, memory_process_bytes=st.none() | counts,
    model_bytes=st.none() | counts, checkpoint_bytes=st.none() | counts, first_step_s=maybe,
    float8_layers=st.none() | counts, linear_layers=st.none() | counts,
    fits_batch=st.none() | counts, skipped_steps=st.none() | counts,
    speedup=st.dictionaries(
        st.sampled_from(["fp32", "tf32", "previous", "first"]) | words, ratios, max_size=3
    ),
    repeats=st.lists(repeats, max_size=3).map(tuple), chance=maybe,
    converged=st.none() | st.booleans(), convergence=st.none() | words,
    limit=st.none() | st.sampled_from(LIMITS), why=st.none() | words, rung=st.none() | words,
    warnings=st.lists(st.builds(Warning, words, words, words), max_size=2).map(tuple),
    predicted=st.none() | steps_ahead, ledger=st.just(()) | ledgers(),
    ledger_base=st.none() | words, bound=st.none() | st.floats(1, 1e6),
    causes=causes, traced=st.none() | traced_steps,
)  # fmt: skip
trainings = ran | unmeasured
