"""What changes of a training step gained, from the times that halfway_prove.py has written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from microbench.timing.stats import Blocks, median, ratio_interval

PROVED_KEY = "halfway_proved"  # of the results in a trace of before 2026-11
SIDECAR = ".proofs.json"  # run.json.gz has run.proofs.json beside it
LEAST_ROUNDS = 3


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


def tried_beside(path: Path, header: Mapping[str, Any]) -> Tried | None:
    """What was tried after this trace was recorded; None where nothing was.

    It is in a file beside the trace, of older recorders in the trace's `header`. Whatever of it is
    damaged is left out.
    """
    found: object = header.get(PROVED_KEY)
    beside = path.with_name(path.name.removesuffix(".gz").removesuffix(".json") + SIDECAR)
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(beside.read_text(encoding="utf-8"), parse_float=Decimal)
    if not isinstance(found, dict):
        return None
    data = cast(dict[str, Any], found)
    why: object = data.get("not_tried")
    reasons = cast(dict[str, object], why) if isinstance(why, dict) else {}
    steps: object = data.get("steps")
    rows = [gain for row in _items(data.get("tried")) if (gain := _gain(row)) is not None]
    best = {gain.cause: gain for gain in sorted(rows, key=lambda gain: gain.ms)}
    return Tried(
        tuple(gain for gain in rows if gain is best[gain.cause]),
        {name: reason for name, reason in reasons.items() if isinstance(reason, str)},
        steps if type(steps) is int and 0 <= steps < 1 << 31 else 0,
    )


def gain_of(
    cause: str, change: str, as_is_s: Blocks, changed_s: Blocks, *, resident: bool = False
) -> Gain | None:
    """The gain from blocks of seconds a step, which pair up by round; None for too few rounds."""
    if len(as_is_s) != len(changed_s) or len(as_is_s) < LEAST_ROUNDS:
        return None
    ratio, interval = ratio_interval(as_is_s, changed_s)
    assert interval is not None
    step_ms = 1e3 * median([median(block) for block in as_is_s])
    ms, low_ms, high_ms = (step_ms * (1 - 1 / one) for one in (ratio, *interval))
    return Gain(cause, change, ms, low_ms, high_ms, step_ms, len(as_is_s), resident)


def _gain(row: object) -> Gain | None:
    if not isinstance(row, dict):
        return None
    data = cast(dict[str, object], row)
    as_is, changed = _blocks(data.get("as_is_s")), _blocks(data.get("changed_s"))
    if not (as_is and changed):
        return None
    # Of back ends of attention each has a name: sdpa_flash, sdpa_cudnn.
    cause = "sdpa" if str(data.get("name")).startswith("sdpa_") else str(data.get("name", ""))
    return gain_of(
        cause, str(data.get("change", "")), as_is, changed,
        resident=data.get("resident") is True,
    )  # fmt: skip


def _blocks(value: object) -> list[list[float]]:
    """Blocks of seconds, all above 0; [] for anything else."""
    blocks = [
        [float(one) for one in _items(block) if isinstance(one, int | Decimal) and one > 0]
        for block in _items(value)
    ]
    whole = all(block and len(block) == len(_items(given))
                for block, given in zip(blocks, _items(value), strict=True))  # fmt: skip
    return blocks if whole else []


def _items(value: object) -> Sequence[object]:
    return cast(list[object], value) if isinstance(value, list) else []
