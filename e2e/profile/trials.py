"""What was tried against a slow step: what it gained, and which causes it proves or refutes.

A trace says what was seen. A change that was tried in the training (halfway_prove.py), or a replay
of its calls (replay.py), says what it gains; a cause and what was tried against it have one name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from e2e.profile.causes import AFTER, KNOWN, LEAST_SHARE, PROVEN, Cause, Gain, ranked
from microbench.timing.stats import median, ratio_interval

SIDECAR = ".proofs.json"  # run.json.gz has run.proofs.json beside it
LEAST_ROUNDS = 3

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Blocks = list[Annotated[list[Seconds], msgspec.Meta(min_length=1)]]
FAIR = 0.25  # of what the trace says that a cause costs: to gain it proves the cause
HIDING = 0.1  # of a step that waits for data: from here on other gains may not show
SAID_APART = "amp"  # what it gains below 0 is what low precision brings
ASIDE = ("float32",)  # what AMP would bring is said apart: it is a cause where a trace says so


@dataclass(frozen=True)
class Tried:
    """All that was tried: what it gained, and by cause why something was not tried.

    `steps` of the training were used for it.
    """

    gains: tuple[Gain, ...]
    not_tried: Mapping[str, str]
    steps: int


class _Row(msgspec.Struct):
    """One change, as halfway_prove.py writes it."""

    as_is_s: Blocks
    changed_s: Blocks
    name: str = ""
    change: str = ""
    resident: bool = False


def tried_beside(path: Path) -> Tried | None:
    """What was tried after this trace was recorded; None where nothing was.

    It is in a file beside the trace. Whatever of it is damaged is left out.
    """
    content: object = None
    beside = path.with_name(path.name.removesuffix(".gz").removesuffix(".json") + SIDECAR)
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(beside.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        return None
    data = cast(dict[str, Any], content)
    tried, reasons, steps = (data.get(name) for name in ("tried", "not_tried", "steps"))
    gains: list[Gain] = []
    for raw in cast(list[object], tried) if isinstance(tried, list) else []:
        with suppress(msgspec.ValidationError):
            row = msgspec.convert(raw, _Row)
            # Of back ends of attention each has a name: sdpa_flash, sdpa_cudnn.
            cause = "sdpa" if row.name.startswith("sdpa_") else row.name
            gain = gain_of(cause, row.change, row.as_is_s, row.changed_s, resident=row.resident)
            gains += [gain] if gain else []
    best = {gain.cause: gain for gain in sorted(gains, key=lambda gain: gain.ms)}
    reasons = cast(dict[str, object], reasons) if isinstance(reasons, dict) else {}
    return Tried(
        tuple(gain for gain in gains if gain is best[gain.cause]),
        {name: reason for name, reason in reasons.items() if isinstance(reason, str)},
        steps if type(steps) is int and 0 <= steps < 1 << 31 else 0,
    )


def gain_of(
    cause: str, change: str, as_is_s: Blocks, changed_s: Blocks, *, resident: bool = False,
    step_ms: float | None = None,
) -> Gain | None:  # fmt: skip
    """The gain from blocks of seconds, which pair up by round; None for too few rounds.

    They are of whole steps or, where `step_ms` says how long a step is, of a part of it.
    """
    if len(as_is_s) != len(changed_s) or len(as_is_s) < LEAST_ROUNDS:
        return None
    ratio, interval = ratio_interval(as_is_s, changed_s)
    assert interval is not None
    took_ms = 1e3 * median([median(block) for block in as_is_s])
    ms, low_ms, high_ms = (took_ms * (1 - 1 / end) for end in (ratio, *interval))
    step_ms = took_ms if step_ms is None else step_ms
    return Gain(cause, change, ms, low_ms, high_ms, step_ms, len(as_is_s), resident)


# ---------------------------------------------------------------- what it proves


def judged(causes: Sequence[Cause], tried: Tried, step_ms: float) -> list[Cause]:
    """The causes that stand after all that was tried, by what a step as it is gains.

    Causes that were found by trying alone are added. What was tried on one batch again and again
    does not show in a step that waits for loader workers: it comes after that.
    """
    gains = {gain.cause: gain for gain in tried.gains}
    kept = [_judged(cause, gains.get(cause.cause), tried) for cause in causes]
    whole = [cause for cause in kept if cause is not None]
    waits = next((cause for cause in whole if cause.cause == "loader"), None)
    hides = waits is not None and waits.share >= HIDING and "num_workers=0" not in waits.where
    seen = {cause.cause for cause in causes}
    for gain in tried.gains:
        after = hides and gain.resident
        least_ms = LEAST_SHARE * (gain.step_ms if after else step_ms)
        known = KNOWN.get(gain.cause)
        if known and gain.cause not in (*seen, *ASIDE) and gain.low_ms > 0 and gain.ms >= least_ms:
            whole.append(Cause(
                known.title, gain.ms, gain.ms / step_ms, "", known.remedy, cause=gain.cause,
                status=PROVEN, gain=gain,
            ))  # fmt: skip
    if hides:
        hidden = {id(cause) for cause in whole if cause.gain and cause.gain.resident}
        whole = [replace(cause, status=AFTER) if id(cause) in hidden else cause for cause in whole]
    return ranked(whole)


def refuted(causes: Sequence[Cause], tried: Tried) -> Iterator[Gain]:
    """What was tried and gains nothing that matters: it is not the cause."""
    claims = {cause.cause: cause for cause in causes}
    for gain in tried.gains:
        claim = claims.get(gain.cause)
        known = KNOWN.get(gain.cause)
        if gain.cause == SAID_APART or (claim is None and not (known and known.suspected)):
            continue
        least = _worth(claim, gain) if claim else LEAST_SHARE * gain.step_ms
        if gain.high_ms < least or (claim and gain.ms <= 0):
            yield gain


def _judged(cause: Cause, gain: Gain | None, tried: Tried) -> Cause | None:
    """The cause with its status; None where it is refuted."""
    if gain is None:
        return replace(cause, unproven=tried.not_tried.get(cause.cause, ""))
    worth = _worth(cause, gain)
    if gain.high_ms < worth or gain.ms <= 0:
        return None
    proven = gain.low_ms > 0 and gain.ms >= worth
    return replace(cause, status=PROVEN if proven else cause.status, gain=gain)


def _worth(cause: Cause, gain: Gain) -> float:
    """The least gain in ms that proves this cause."""
    return min(FAIR * cause.most_ms, LEAST_SHARE * gain.step_ms)
