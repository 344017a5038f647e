"""Which causes of a slow step are proven, likely or possible, and which are none.

A trace says what was seen. A change that was tried in the training, or a replay of the calls, says
what it gains. The changes are those of halfway_prove.py, the replays those of replays.py; a finding
and what was tried against it have the same cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from e2e.profile.finding import LEAST_SHARE, PROVEN, Finding, ranked
from e2e.profile.gains import Gain, Tried

FAIR = 0.25  # of what the trace says that a cause costs: to gain it proves the cause
# Of a change that gains without a finding: title, remedy.
ALSO = {
    "loader": ("data loading", "more loader workers, pin_memory, or less work for each sample"),
    "sync": ("synchronisation", "read losses and metrics every 50th step"),
    "launch": ("CPU launch: the GPU waits for the CPU", "a CUDA graph, or torch.compile"),
    "tf32": ("float32 without TF32", "torch.set_float32_matmul_precision('high')"),
    "benchmark": (
        "cuDNN's choice of algorithms", "torch.backends.cudnn.benchmark the other way round",
    ),
    "casts": ("casts between types", "one autocast around the whole forward"),
    "optimizer": ("an optimizer that updates one tensor at a time", "fused=True, or foreach=True"),
    "amp": ("autocast: without it a step is faster", "larger work for each operation, or no AMP"),
    "float32": ("float32 throughout, without autocast", "torch.autocast around the forward pass"),
    "layout": ("the layout of images in memory", "memory_format=torch.channels_last"),
    "half": ("operators that are slower in half precision than in float32", "keep them in float32"),
    "bf16": ("operators that are slower in BF16 than in FP16", "FP16 with a loss scaler"),
    "misaligned": ("sizes that are no multiple of 8", "pad them"),
}  # fmt: skip
# Users do not suspect these before they are found; what they do not gain is no news.
UNSUSPECTED = frozenset({"half", "bf16", "misaligned", "islands"})
SAID_APART = "amp"  # what it gains below 0 is what low precision brings


def judged(found: Sequence[Finding], tried: Tried) -> tuple[Finding, ...]:
    """The findings that stand after all that was tried: proven ones first, by what was gained.

    Causes that were found by trying alone are added.
    """
    gains = {gain.cause: gain for gain in tried.gains}
    kept = [_judged(one, gains.get(one.cause), tried) for one in found]
    seen = {one.cause for one in found}
    added = [_added(gain) for gain in tried.gains if gain.cause not in seen and _matters(gain)]
    whole = [one for one in (*kept, *added) if one is not None]
    return ranked(whole)


def refuted(found: Sequence[Finding], tried: Tried) -> Iterator[Gain]:
    """What was tried and gains nothing that matters: it is not the cause."""
    claims = {one.cause: one for one in found}
    for gain in tried.gains:
        claim = claims.get(gain.cause)
        if gain.cause == SAID_APART or (claim is None and gain.cause in UNSUSPECTED):
            continue
        if gain.high_ms < (_worth(claim, gain) if claim else LEAST_SHARE * gain.step_ms):
            yield gain


def _judged(one: Finding, gain: Gain | None, tried: Tried) -> Finding | None:
    """The finding with its status; None where it is refuted."""
    if gain is None:
        return replace(one, unproven=tried.not_tried.get(one.cause, ""))
    worth = _worth(one, gain)
    if gain.high_ms < worth:
        return None
    proven = gain.low_ms > 0 and gain.ms >= worth
    return replace(one, status=PROVEN if proven else one.status, gain=gain)


def _worth(one: Finding, gain: Gain) -> float:
    """The least gain in ms that proves this cause."""
    return min(FAIR * one.most_ms, LEAST_SHARE * gain.step_ms)


def _matters(gain: Gain) -> bool:
    return gain.cause in ALSO and gain.low_ms > 0 and gain.ms >= LEAST_SHARE * gain.step_ms


def _added(gain: Gain) -> Finding:
    title, remedy = ALSO[gain.cause]
    return Finding(
        title, gain.ms, gain.ms / gain.step_ms, "", remedy,
        cause=gain.cause, status=PROVEN, gain=gain,
    )  # fmt: skip
