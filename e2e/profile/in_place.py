"""Records steps of a training of ours where they run, and sums them up for its ledger."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.profile.findings import findings, rules_of_training
from e2e.profile.halfway_watch import Watch
from e2e.profile.operands import DTYPES, FLOAT8, HALF, SINGLE, misaligned, types_of
from e2e.profile.partition import NothingSeen, Partition, Piece, partition, term_of_ops
from e2e.profile.reader import Recording, read_trace
from e2e.results.terms import (
    COMMUNICATION,
    EXCHANGE,
    LAYOUT,
    PRODUCT_TERMS,
    TracedCost,
    TracedPart,
    TracedStep,
)

BARE_STEPS = 2  # the fewest that the recorder takes before it begins


def traced_step(
    step: Callable[[], object], module: Any, count: int, *, named: bool, channels_last: bool
) -> TracedStep:
    """Run and record `count` steps, and a few before them that do not count.

    `module` is the network, whose layers have their names in it if `named`. `channels_last`: it has
    that layout already. UserError where nothing can be told of what was recorded; what a step
    raises is raised.
    """
    with tempfile.TemporaryDirectory(prefix="halfway-trace-") as folder:
        recording = _recorded(step, module, count, Path(folder) / "trace.json", named=named)
    return summed(recording, partition(recording), channels_last=channels_last)


def _recorded(
    step: Callable[[], object], module: Any, count: int, path: Path, *, named: bool
) -> Recording:
    said: list[str] = []
    watch = Watch(str(path), 0, BARE_STEPS, count, module_names=named, quiet=True, say=said.append)
    watch.model = module
    try:
        while not watch.done:
            step()
            watch.step()
    finally:
        watch.end()
    if said:
        raise NothingSeen(said[0])
    return read_trace(Path(watch.out))


def summed(recording: Recording, parts: Partition, *, channels_last: bool) -> TracedStep:
    """The steps with their parts by term and, of what multiplies, by layer; longest first."""
    found: dict[tuple[str, ...], int] = defaultdict(int)
    for piece in parts.pieces:
        found[_key(piece, on_cpu=parts.on_cpu)] += piece.ns
    longest = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    device = str(recording.facts.get("device", ""))
    costs = findings(recording, parts, device, rules=rules_of_training(channels_last))
    return TracedStep(
        parts.steps,
        sum(parts.start <= span.start < parts.end for span in recording.work),
        tuple(TracedPart(key[0], ns, *key[1:]) for key, ns in longest),
        tuple(
            TracedCost(
                one.title, round(one.most_ms * 1e6 * parts.steps), one.where, one.remedy, one.cause
            )
            for one in costs
        ),
    )


def _key(piece: Piece, *, on_cpu: bool) -> tuple[str, str, str, str, str]:
    """What distinguishes a part from others: its fields but the time. Sizes are misaligned for
    Tensor Cores alone.
    """
    if piece.term == COMMUNICATION:
        return EXCHANGE, "", "", "", ""
    ops = piece.caller.ops
    within = term_of_ops(ops) if piece.term == LAYOUT else piece.term
    if within not in PRODUCT_TERMS:
        return piece.term, "", "", "", ""
    types = types_of(ops)
    # Of mixed types the lowest: FP8 before half precision before float32.
    low = sorted(types & FLOAT8) or sorted(types & HALF)
    dtype = DTYPES[low[0]] if low else "float32" if types & SINGLE else ""
    return (
        piece.term, piece.caller.module, dtype,
        misaligned(ops) if types & HALF and not on_cpu else "",
        within if piece.term == LAYOUT else "",
    )  # fmt: skip
