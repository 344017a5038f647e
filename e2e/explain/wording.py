"""Times and layers as words in a sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from e2e.explain.ledger import NO_LAYER
from e2e.predict.queue_model import OpCost
from microbench import fmt
from microbench.fmt import as_ms

NAMED = 3  # layers or terms that a sentence names


def layers(ops: Sequence[OpCost]) -> str:
    """The layers of these ops, those that take most first, with their ms."""
    taken_ms: dict[str, float] = defaultdict(float)
    for op in ops:
        taken_ms[layer_of(op)] += 1e3 * op.device_s
    return largest(taken_ms)


def largest(taken_ms: Mapping[str, float]) -> str:
    """ "layer3 (4.00 ms), layer4 (2.00 ms) and 5 more"."""
    most = sorted(taken_ms, key=lambda name: -taken_ms[name])
    return named([f"{called(name)} ({as_ms(taken_ms[name])} ms)" for name in most])


def named(words: Iterable[str]) -> str:
    """The first ones, each once, and how many more there are."""
    return fmt.listed(list(dict.fromkeys(words)), NAMED)


def layer_of(op: OpCost) -> str:
    """The op's layer, or what stands for none."""
    return op.layer or NO_LAYER


def called(layer: str) -> str:
    """A layer that has a number for a name in a sentence."""
    return f"layer {layer}" if layer[:1].isdigit() else layer


def share(part_s: float, whole_s: float) -> str:
    """ "3.1 of 16.0 ms (19 %)"."""
    return f"{as_ms(1e3 * part_s)} of {as_ms(1e3 * whole_s)} ms ({100 * part_s / whole_s:.0f} %)"


def rate(per_s: float) -> str:
    """ "6,078", "3.47"."""
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"
