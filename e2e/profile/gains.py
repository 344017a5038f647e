"""What changes of a training step gained, from the times that halfway_prove.py has written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from microbench.timing.stats import median, ratio_interval

PROVED_KEY = "halfway_proved"  # of the results in a trace of before 2026-11
SIDECAR = ".proofs.json"  # run.json.gz has run.proofs.json beside it
LEAST_ROUNDS = 3

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Blocks = list[Annotated[list[Seconds], msgspec.Meta(min_length=1)]]


@dataclass(frozen=True)
class Gain:
    """Milliseconds that a step takes less with one change; below 0 where it takes longer.

    `low_ms` to `high_ms` is the 95 % interval, over `rounds` pairs of blocks. `step_ms` is the step
    without the change, in the same blocks: of one batch again and again, if `resident`. `cause` is
    what is taken away, `change` says how.
    """

    cause: str
    change: str
    ms: float
    low_ms: float
    high_ms: float
    step_ms: float
    rounds: int
    resident: bool = False


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


def tried_beside(path: Path, header: Mapping[str, Any]) -> Tried | None:
    """What was tried after this trace was recorded; None where nothing was.

    It is in a file beside the trace, of older recorders in the trace's `header`. Whatever of it is
    damaged is left out.
    """
    found: object = header.get(PROVED_KEY)
    beside = path.with_name(path.name.removesuffix(".gz").removesuffix(".json") + SIDECAR)
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(beside.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        return None
    data = cast(dict[str, Any], found)
    tried, reasons, steps = (data.get(name) for name in ("tried", "not_tried", "steps"))
    gains: list[Gain] = []
    for row in cast(list[object], tried) if isinstance(tried, list) else []:
        with suppress(msgspec.ValidationError):
            one = msgspec.convert(row, _Row)
            # Of back ends of attention each has a name: sdpa_flash, sdpa_cudnn.
            cause = "sdpa" if one.name.startswith("sdpa_") else one.name
            gain = gain_of(cause, one.change, one.as_is_s, one.changed_s, resident=one.resident)
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
    ms, low_ms, high_ms = (took_ms * (1 - 1 / one) for one in (ratio, *interval))
    step_ms = took_ms if step_ms is None else step_ms
    return Gain(cause, change, ms, low_ms, high_ms, step_ms, len(as_is_s), resident)
