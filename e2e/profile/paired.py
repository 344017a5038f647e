"""Causes that only two recordings show: a float32 one, and the same training in half precision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from e2e.profile.aligned import Side
from e2e.profile.finding import LEAST_SHARE, MOST_PLACES, Finding
from e2e.profile.operands import HALF, SINGLE, shapes_of, types_of
from e2e.profile.partition import Partition, is_product
from e2e.profile.products import Product
from e2e.results.terms import IDLE, TERMS

SLOWER = 1.1  # times as long in half precision: less may be noise
HALF_NAMES = ("fp16", "bf16")
_ALONE = {*IDLE, TERMS["cast"], TERMS["optimizer"]}

Key = tuple[str, str, str, str]  # module, phase, operator, shapes


def paired_findings(
    base: Side, other: Side, base_products: Sequence[Product], other_products: Sequence[Product]
) -> tuple[Finding, ...]:
    """What costs at least LEAST_SHARE of a step, and is seen by the difference of two runs."""
    found = [*_tf32_base(base.parts, base_products, other_products), *_slower(base, other)]
    return tuple(one for one in found if one.share >= LEAST_SHARE)


def _tf32_base(
    parts: Partition, base: Sequence[Product], other: Sequence[Product]
) -> Iterator[Finding]:
    """The base's float32 GEMMs ran on Tensor Cores, so half precision can gain little."""
    if not any(p.precision in HALF_NAMES for p in other):
        return
    proved = sum(p.ns for p in base if p.precision == "tf32" and p.tensor_cores)
    whole = parts.end - parts.start
    if proved:
        of_products = proved / sum(p.ns for p in base)
        yield Finding(
            "the base already uses Tensor Cores, as TF32", proved / parts.steps / 1e6,
            proved / whole,
            f"{100 * of_products:.0f} % of the time of its GEMMs and convolutions",
            "expect half precision to run these up to twice as fast, not eight times; "
            "set_float32_matmul_precision('highest') and cudnn.allow_tf32 = False give IEEE "
            "float32 to compare with",
        )  # fmt: skip


@dataclass
class _Time:
    """Nanoseconds in all steps of one operator in one place, and the types of its inputs."""

    types: frozenset[str]
    ns: int = 0


def _slower(base: Side, other: Side) -> Iterator[Finding]:
    """Operators that take longer in half precision than in float32, with half the bytes."""
    before, after = _times(base.parts), _times(other.parts)
    steps = base.parts.steps, other.parts.steps
    grown: dict[str, float] = defaultdict(float)
    total_ns = 0.0
    for key in before.keys() & after.keys():
        single, half = before[key], after[key]
        if not (half.types & HALF and single.types & SINGLE and not single.types & HALF):
            continue
        base_ns, other_ns = single.ns / steps[0], half.ns / steps[1]
        if other_ns > SLOWER * base_ns:
            module, phase, operator, _ = key
            place = " ".join(word for word in (module, phase, operator) if word)
            grown[place] += other_ns - base_ns
            total_ns += other_ns
    if grown:
        largest = sorted(grown.items(), key=lambda item: (-item[1], item[0]))[:MOST_PLACES]
        growth_ns = sum(grown.values())
        yield Finding(
            "slower in half precision than in float32", growth_ns / 1e6,
            growth_ns / other.parts.step_ns,
            ", ".join(f"{place} +{ns / 1e6:.3g} ms" for place, ns in largest),
            f"these operators ({total_ns / 1e6:.3g} ms) in float32: "
            "autocast(enabled=False) and .float() around them", cause="half",
        )  # fmt: skip


def _times(parts: Partition) -> Mapping[Key, _Time]:
    found: dict[Key, _Time] = {}
    for piece in parts.pieces:
        caller = piece.caller
        op = next((op for op in reversed(caller.ops) if shapes_of(op)), None)
        if op is None or piece.term in _ALONE:
            continue
        # A product's kernels may be launched by operators that differ by type.
        name = "product" if is_product(piece) else op.name.removeprefix("aten::")
        key = (caller.module, caller.phase, name, str(shapes_of(op)))
        found.setdefault(key, _Time(types_of(caller.ops))).ns += piece.ns
    return found
