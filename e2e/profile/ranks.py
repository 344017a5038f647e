"""All ranks of one training: what of their communication is transfer, and what is waiting.

A collective ends on all ranks at once, and on each it begins where that rank arrives. So on the one
that arrives last it takes as long as the transfer, and the others wait for it before. Clocks of
several machines need not agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.profile.operators import dtype_of
from e2e.profile.trace import WORK, Span
from e2e.profile.unprofiled import Unprofiled
from kernels.precision import DTYPE_BYTES
from microbench.device.profiler import is_communication


@dataclass(frozen=True)
class RankTime:
    """One rank: milliseconds of a step, of its communication, and of what of it is waiting.

    `busy` is the share of a step in which its GPU works, `last` that of the collectives at which it
    arrived last.
    """

    rank: int
    step_ms: float
    busy: float
    communication_ms: float
    waiting_ms: float
    last: float


@dataclass(frozen=True)
class Ranks:
    """The ranks of a training by their `collectives` a step that all have.

    `transfer_ms` are of a step. `bus_byte_per_s` is what crosses each link meanwhile, as nccl-tests
    count it; None where the traces have no sizes.
    """

    ranks: tuple[RankTime, ...]
    collectives: float
    transfer_ms: float
    bus_byte_per_s: float | None

    @property
    def latest(self) -> RankTime:
        """The rank that arrives last most often."""
        return max(self.ranks, key=lambda one: (one.last, -one.waiting_ms))


def ranks_of(runs: Sequence[Unprofiled]) -> Ranks | None:
    """The communication of all ranks, in steps as recorded; None where nothing matches."""
    sides = [_collectives(run) for run in runs]
    keys = [key for key in sides[0] if all(key in side for side in sides)]
    if not keys:
        return None
    transfer_ns = {key: min(side[key].ns for side in sides) for key in keys}
    last = Counter(min(range(len(runs)), key=lambda n: sides[n][key].ns) for key in keys)
    found: list[RankTime] = []
    for number, (run, side) in enumerate(zip(runs, sides, strict=True)):
        scale = 1e6 * run.step.steps
        taken = sum(side[key].ns for key in keys)
        rank = run.step.trace.facts.get("rank", number)
        found.append(RankTime(
            rank if isinstance(rank, int) else number, run.whole_ns / scale,
            max(0.0, 1 - run.idle_ns / run.whole_ns), taken / scale,
            (taken - sum(transfer_ns.values())) / scale, last[number] / len(keys),
        ))  # fmt: skip
    sized = {key: size for key in keys if (size := _bus_bytes(sides[0][key]))}
    timed_s = sum(transfer_ns[key] for key in sized) / 1e9
    steps = runs[0].step.steps
    return Ranks(
        tuple(sorted(found, key=lambda one: one.rank)), len(keys) / steps,
        sum(transfer_ns.values()) / steps / 1e6, sum(sized.values()) / timed_s if timed_s else None,
    )  # fmt: skip


def _collectives(run: Unprofiled) -> dict[tuple[object, ...], Span]:
    """The collectives in the steps by their group, kind and order."""
    step = run.step.with_names
    count: Counter[tuple[object, ...]] = Counter()
    found: dict[tuple[object, ...], Span] = {}
    for span in step.trace.spans[WORK]:
        if is_communication(span.name) and step.start < span.end <= step.end:
            group = span.args.get("Process Group Name", span.lane)
            key = group, span.args.get("Collective name", span.name)
            found[*key, count[key]] = span
            count[key] += 1
    return found


def _bus_bytes(span: Span) -> float:
    """Bytes that cross each link; 0 where the trace does not say."""
    elements, size = span.args.get("In msg nelems"), span.args.get("Group size")
    width = DTYPE_BYTES.get(dtype_of(span.args.get("dtype")), 0)
    if not isinstance(elements, int) or not isinstance(size, int) or size < 2:
        return 0.0
    name = str(span.args.get("Collective name", span.name)).lower().replace("_", "")
    if "allgather" in name:
        elements *= size
    return (2.0 if "allreduce" in name else 1.0) * elements * width * (size - 1) / size
