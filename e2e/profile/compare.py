"""Recordings held against each other: two runs, by term and by layer, or all ranks of one.

Of two runs also how far they match, and what only both show.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from e2e.profile.causes import Cause
from e2e.profile.operators import HALF, dtype_of, is_product, product, shapes_of, types_of
from e2e.profile.products import Product
from e2e.profile.step import ELSEWHERE, FORWARD, Step
from e2e.profile.trace import WORK, Span
from e2e.profile.unprofiled import Unprofiled
from e2e.results import terms
from e2e.results.terms import IDLE, PRODUCT_TERMS, TERMS
from kernels.precision import DTYPE_BYTES
from microbench.device.profiler import is_communication

# What exists for a type's, a layout's or an optimizer's sake has no counterpart in the other step.
EXCLUDED_TERMS = frozenset((
    *IDLE, terms.COMMUNICATION, terms.LATE, terms.COPIES, terms.FILLS, terms.RECOMPUTATION,
    terms.LAYOUT,
    *(TERMS[kind] for kind in ("cast", "copy", "optimizer", "scaler")),
))  # fmt: skip
WHOLE_STEP = "step"
SLOWER = 1.1  # times as long in half precision: less may be noise
LEAST_SHARE, MOST_PLACES = 0.03, 3
HALF_NAMES = ("fp16", "bf16")


@dataclass(frozen=True)
class LayerTime:
    """The GPU's time in one phase of a module: `base_ns` and `other_ns` in all steps of each."""

    module: str
    phase: str
    base_ns: int
    other_ns: int


@dataclass(frozen=True)
class Aligned:
    """How far two recordings match: `matched_ns` of `counted_ns`, of the base and of the other.

    `layers` hold all work of both, the largest change first. `alike` is the share of the work whose
    shapes the other has too, wherever: of products, if both have some.
    """

    matched_ns: tuple[int, int]
    counted_ns: tuple[int, int]
    alike: float
    layers: tuple[LayerTime, ...] = ()

    @property
    def share(self) -> float:
        """The matched share of the recording that matches less; 1 where nothing is counted."""
        pairs = zip(self.matched_ns, self.counted_ns, strict=True)
        return min((matched / counted for matched, counted in pairs if counted), default=1.0)


@dataclass(frozen=True)
class Change:
    """A line of a ledger: nanoseconds a step of both, as exact fractions."""

    term: str
    base_ns: Fraction
    other_ns: Fraction

    @property
    def ns(self) -> Fraction:
        """Nanoseconds a step that the other takes more."""
        return self.other_ns - self.base_ns


def ledger(
    base: Mapping[str, int], base_steps: int, other: Mapping[str, int], other_steps: int
) -> list[Change]:
    """Every term of both, the largest change first; the last line is the step, and their sum.

    The terms are nanoseconds in so many steps.
    """
    names = dict.fromkeys([*base, *other])
    lines = [
        Change(name, Fraction(base.get(name, 0), base_steps),
               Fraction(other.get(name, 0), other_steps))
        for name in names
    ]  # fmt: skip
    lines.sort(key=lambda line: (-abs(line.ns), line.term))
    wholes = Fraction(sum(base.values()), base_steps), Fraction(sum(other.values()), other_steps)
    return [*lines, Change(WHOLE_STEP, *wholes)]


# ---------------------------------------------------------------- what matches

Key = tuple[Hashable, ...]
Times = Mapping[Key, tuple[float, int]]  # calls a step, and nanoseconds in all steps


def align(base: Step, other: Step) -> Aligned | None:
    """How far two steps match by module, phase, term and shapes; None where one has no shapes."""
    named = all(any(op.module for op in step.ops) for step in (base, other))
    counts = [_counted(step, named=named) for step in (base, other)]
    if not all(any(key[-1] for key in times) for times in counts):
        return None
    matched = [
        round(sum(
            ns * min(1.0, theirs[key][0] / calls)
            for key, (calls, ns) in mine.items() if key in theirs
        ))
        for mine, theirs in (counts, counts[::-1])
    ]  # fmt: skip
    counted = [sum(ns for _, ns in times.values()) for times in counts]
    layers = _layers(base, other) if named else ()
    return Aligned((matched[0], matched[1]), (counted[0], counted[1]), _overlap(*counts), layers)


def _counted(step: Step, *, named: bool) -> Times:
    calls: dict[Key, set[int]] = defaultdict(set)
    times: Counter[Key] = Counter()
    for op in step.ops:
        if op.term in EXCLUDED_TERMS or not op.ops:
            continue
        multiplies = op.term in PRODUCT_TERMS
        by = (product(op.ops) if multiplies else None) or next(
            (o for o in reversed(op.ops) if shapes_of(o)), op.ops[-1]
        )
        # Only modules tell the forward pass from what is beside it.
        phase = FORWARD if op.phase == ELSEWHERE and not named else op.phase
        shapes = tuple(map(tuple, shapes_of(by)[: 3 if multiplies else 1]))
        key = op.module if named else "", phase, op.term, shapes
        calls[key].add(id(by))
        times[key] += op.ns
    return {key: (len(calls[key]) / step.steps, ns) for key, ns in times.items()}


def _overlap(base: Times, other: Times) -> float:
    """The share of the work with a shape that is in both, of the step with the less of it."""
    sums: list[Counter[Key]] = [Counter(), Counter()]
    for total, times in zip(sums, (base, other), strict=True):
        for key, (_, ns) in times.items():
            total[key[2:]] += ns
    multiplied = [{k: ns for k, ns in some.items() if k[0] in PRODUCT_TERMS} for some in sums]
    both = multiplied if all(multiplied) else sums
    common = both[0].keys() & both[1].keys()
    return min(sum(some[key] for key in common) / max(1, sum(some.values())) for some in both)


def _layers(base: Step, other: Step) -> tuple[LayerTime, ...]:
    """All work of both by module and phase: the changes add up to that of the GPU's work."""
    times: list[Counter[tuple[str, str]]] = [Counter(), Counter()]
    for total, step in zip(times, (base, other), strict=True):
        for op in step.ops:
            if op.term not in IDLE:
                total[op.module, op.phase] += op.ns
    rows = [
        LayerTime(*key, *(some[key] for some in times))
        for key in dict.fromkeys([*times[0], *times[1]])
    ]

    def largest(row: LayerTime) -> tuple[Fraction, str, str]:
        change = Fraction(row.other_ns, other.steps) - Fraction(row.base_ns, base.steps)
        return -abs(change), row.module, row.phase

    return tuple(sorted(rows, key=largest))


# ---------------------------------------------------------------- what only two steps show


def paired_causes(
    base: Unprofiled, other: Unprofiled, base_products: Sequence[Product],
    other_products: Iterable[Product],
) -> tuple[Cause, ...]:  # fmt: skip
    """Causes of the other step that need the base beside it, at least LEAST_SHARE of it."""
    return *_slower(base.step, other), *_tf32_base(other, base_products, other_products)


def _tf32_base(
    other: Unprofiled, base: Sequence[Product], products: Iterable[Product]
) -> Iterator[Cause]:
    """The base's float32 products ran on Tensor Cores: that explains a small gain, and costs none.

    Nothing can be saved, so it has no time.
    """
    proved = sum(p.ns for p in base if p.precision == "tf32" and p.tensor_cores)
    if proved >= LEAST_SHARE * other.whole_ns and any(p.precision in HALF_NAMES for p in products):
        share = proved / sum(p.ns for p in base)
        yield Cause(
            "the base already uses Tensor Cores, as TF32", 0.0, 0.0,
            f"{100 * share:.0f} % of the time of its GEMMs and convolutions",
            "expect half precision to run these up to twice as fast, not eight times; "
            "set_float32_matmul_precision('highest') and cudnn.allow_tf32 = False give IEEE "
            "float32 to compare with",
            0.0,
        )  # fmt: skip


def _slower(base: Step, other: Unprofiled) -> Iterator[Cause]:
    """Operators that take longer in half precision than in float32, with half the bytes."""
    before, after = _by_operator(base), _by_operator(other.step)
    grown: Counter[str] = Counter()
    total_ns = 0.0
    for key in before.keys() & after.keys():
        (single, base_ns), (half, other_ns) = before[key], after[key]
        if not (half & HALF and "float32" in single and not single & HALF):
            continue
        if other_ns > SLOWER * base_ns:
            place = " ".join(str(word) for word in key[:3] if word)
            grown[place] += round(other_ns - base_ns)
            total_ns += other_ns
    growth_ns = sum(grown.values())
    share = growth_ns * other.step.steps / other.whole_ns
    if share >= LEAST_SHARE:
        places = (f"{place} +{ns / 1e6:.3g} ms" for place, ns in grown.most_common(MOST_PLACES))
        yield Cause(
            "slower in half precision than in float32", growth_ns / 1e6, share, ", ".join(places),
            f"these operators ({total_ns / 1e6:.3g} ms) in float32: "
            "autocast(enabled=False) and .float() around them", growth_ns / 1e6, "half",
        )  # fmt: skip


def _by_operator(step: Step) -> dict[Key, tuple[frozenset[str], float]]:
    """Types of the inputs, and nanoseconds a step, by module, phase, operator and shapes."""
    times: Counter[Key] = Counter()
    types: dict[Key, frozenset[str]] = {}
    for op in step.ops:
        by = next((o for o in reversed(op.ops) if shapes_of(o)), None)
        if by is None or op.term in (*IDLE, TERMS["cast"], TERMS["optimizer"]):
            continue
        # A product's kernels may be launched by operators that differ by type.
        name = "product" if is_product(op) else by.name.removeprefix("aten::")
        key = op.module, op.phase, name, str(shapes_of(by))
        types.setdefault(key, types_of(op.ops))
        times[key] += op.ns
    return {key: (types[key], ns / step.steps) for key, ns in times.items()}


# ---------------------------------------------------------------- the ranks of one training


@dataclass(frozen=True)
class RankTime:
    """One rank: milliseconds of a step, of its communication, and of what of it is waiting.

    Recording makes ranks wait longer for each other: where the step without it is known, the
    waiting is at most what that step leaves beside the rank's own work. `busy` is the share of a
    step in which its GPU works, `last` that of the collectives at which it arrived last, as
    recorded.
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
        return max(self.ranks, key=lambda rank: (rank.last, -rank.waiting_ms))


def ranks_of(runs: Sequence[Unprofiled]) -> Ranks | None:
    """The communication of all ranks; None where nothing matches."""
    sides = [_collectives(run) for run in runs]
    keys = [key for key in sides[0] if all(key in side for side in sides)]
    if not keys:
        return None
    transfer_ns = {key: min(side[key].ns for side in sides) for key in keys}
    transfers_ns = sum(transfer_ns.values())
    last = Counter(min(range(len(runs)), key=lambda n: sides[n][key].ns) for key in keys)
    times: list[RankTime] = []
    for number, (run, side) in enumerate(zip(runs, sides, strict=True)):
        scale = 1e6 * run.step.steps
        own_ns = sum(
            ns for term, ns in run.step.recorded.items()
            if term not in (*IDLE, terms.COMMUNICATION, terms.LATE)
        )  # fmt: skip
        left_ns = max(0, run.whole_ns - own_ns)  # transfers may hide behind its own work
        waiting_ns = min(sum(side[key].ns for key in keys) - transfers_ns, left_ns)
        rank = run.step.trace.facts.get("rank", number)
        times.append(RankTime(
            rank if isinstance(rank, int) else number, run.whole_ns / scale,
            max(0.0, 1 - run.idle_ns / run.whole_ns), (transfers_ns + waiting_ns) / scale,
            waiting_ns / scale, last[number] / len(keys),
        ))  # fmt: skip
    sized = {key: size for key in keys if (size := _bus_bytes(sides[0][key]))}
    timed_s = sum(transfer_ns[key] for key in sized) / 1e9
    steps = runs[0].step.steps
    return Ranks(
        tuple(sorted(times, key=lambda time: time.rank)), len(keys) / steps,
        transfers_ns / steps / 1e6, sum(sized.values()) / timed_s if timed_s else None,
    )  # fmt: skip


def _collectives(run: Unprofiled) -> dict[tuple[object, ...], Span]:
    """The collectives in the steps by their group, kind and order."""
    named, timed = (_communication(step) for step in (run.step.with_names, run.step))
    if [span.name for span in timed] != [span.name for span in named]:
        timed = named
    count: Counter[tuple[object, ...]] = Counter()
    by_order: dict[tuple[object, ...], Span] = {}
    for span, own in zip(named, timed, strict=True):
        group = span.args.get("Process Group Name", span.lane)
        key = group, span.args.get("Collective name", span.name)
        by_order[*key, count[key]] = replace(span, start=own.start, end=own.end)
        count[key] += 1
    return by_order


def _communication(step: Step) -> list[Span]:
    return [
        span for span in step.trace.spans[WORK]
        if is_communication(span.name) and step.start < span.end <= step.end
    ]  # fmt: skip


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
