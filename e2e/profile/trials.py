"""Which causes of a slow step are proven, likely or possible, and which are none.

A trace says what was seen. A change that was tried in the training (halfway_prove.py), or a replay
of its calls (replay.py), says what it gains; a cause and what was tried against it have one name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from e2e.profile.causes import AFTER, KNOWN, LEAST_SHARE, PROVEN, Cause, ranked
from e2e.profile.gains import Gain, Tried

FAIR = 0.25  # of what the trace says that a cause costs: to gain it proves the cause
HIDING = 0.1  # of a step that waits for data: from here on other gains may not show
SAID_APART = "amp"  # what it gains below 0 is what low precision brings
ASIDE = ("float32",)  # what AMP would bring is said apart: it is a cause where a trace says so


def judged(causes: Sequence[Cause], tried: Tried, step_ms: float) -> list[Cause]:
    """The causes that stand after all that was tried, by what a step as it is gains.

    Causes that were found by trying alone are added. What was tried on one batch again and again
    does not show in a step that waits for loader workers: it comes after that.
    """
    gains = {gain.cause: gain for gain in tried.gains}
    kept = [_judged(one, gains.get(one.cause), tried) for one in causes]
    whole = [one for one in kept if one is not None]
    waits = next((one for one in whole if one.cause == "loader"), None)
    hides = waits is not None and waits.share >= HIDING and "num_workers=0" not in waits.where
    seen = {one.cause for one in causes}
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
        hidden = {id(one) for one in whole if one.gain and one.gain.resident}
        whole = [replace(one, status=AFTER) if id(one) in hidden else one for one in whole]
    return ranked(whole)


def refuted(causes: Sequence[Cause], tried: Tried) -> Iterator[Gain]:
    """What was tried and gains nothing that matters: it is not the cause."""
    claims = {one.cause: one for one in causes}
    for gain in tried.gains:
        claim = claims.get(gain.cause)
        known = KNOWN.get(gain.cause)
        if gain.cause == SAID_APART or (claim is None and not (known and known.suspected)):
            continue
        least = _worth(claim, gain) if claim else LEAST_SHARE * gain.step_ms
        if gain.high_ms < least or (claim and gain.ms <= 0):
            yield gain


def _judged(one: Cause, gain: Gain | None, tried: Tried) -> Cause | None:
    """The cause with its status; None where it is refuted."""
    if gain is None:
        return replace(one, unproven=tried.not_tried.get(one.cause, ""))
    worth = _worth(one, gain)
    if gain.high_ms < worth or gain.ms <= 0:
        return None
    proven = gain.low_ms > 0 and gain.ms >= worth
    return replace(one, status=PROVEN if proven else one.status, gain=gain)


def _worth(one: Cause, gain: Gain) -> float:
    """The least gain in ms that proves this cause."""
    return min(FAIR * one.most_ms, LEAST_SHARE * gain.step_ms)
