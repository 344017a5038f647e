"""Where the time went between two steps of one network, as terms that add up.

Pure functions of the ops' costs and of the two step times. A term is other minus base: negative
where time was saved.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from e2e.prediction.queue_model import OpCost, Simulated
from e2e.results.terms import (
    ATTENTION,
    CONVOLUTIONS,
    EXCHANGE,
    GAPS,
    LAYOUT,
    LOADER,
    MATRIX_PRODUCTS,
    OP_TERMS,
    OTHER,
    PRODUCT_TERMS,
    PRODUCTS,
    RESIDUAL,
    TERMS,
)
from e2e.results.types import LedgerLine

TOP_LAYERS = 3
NO_LAYER = "outside the layers"
NOTHING = 1e-9  # of a step: less is rounding


@dataclass(frozen=True)
class Step:
    """One training step: its operations, the predicted times, and the measured one if known.

    All times are seconds per step. `data_wait_s` is the wait for the loader: measured if the step
    was, else predicted. `predicted_wait_s` is always predicted. `exchange_s` is what the exchange
    of gradients adds to a predicted step over several GPUs. `predicted` includes none of them.
    `launches` is how many kernels it launches, None where that is the number of operations.
    """

    ops: Sequence[OpCost]
    predicted: Simulated
    measured_s: float | None = None
    data_wait_s: float = 0.0
    predicted_wait_s: float = 0.0
    launches: int | None = None
    exchange_s: float = 0.0

    @property
    def expected_s(self) -> float:
        """The predicted step in seconds, with its exchange and predicted wait for the loader."""
        return self.predicted.step_s + self.exchange_s + self.predicted_wait_s

    @property
    def whole_s(self) -> float:
        """The step in seconds: measured if known, else predicted."""
        if self.measured_s is not None:
            return self.measured_s
        return self.predicted.step_s + self.exchange_s + self.data_wait_s

    @property
    def source(self) -> str:
        """Whether `whole_s` is "measured" or "predicted"."""
        return "predicted" if self.measured_s is None else "measured"

    @property
    def product_s(self) -> float:
        """Device seconds of GEMMs and convolutions, layout changes inside them included."""
        return math.fsum(op.device_s for op in self.ops if op.kind == "product")


class LayerRow(NamedTuple):
    """Time of one layer's GEMMs and convolutions in both steps, in ms, layout changes included."""

    layer: str
    kind: str  # one of PRODUCT_TERMS
    base_ms: float
    other_ms: float

    @property
    def saving_ms(self) -> float:
        """Milliseconds saved; negative where the layer got slower."""
        return self.base_ms - self.other_ms


def ledger(
    base: Step, other: Step, names: tuple[str, str] = ("fp32", "amp")
) -> tuple[LedgerLine, ...]:
    """The lines that lead from one step's time to the other's, in milliseconds.

    The first line is the base step, the last one the other step. The lines between are changes
    (negative: time saved) and add up to the difference. The residual is what the prediction does
    not explain; a measured step always has that line.
    """
    changes = _op_lines(base, other)
    gaps = [1e3 * step.predicted.idle_s for step in (base, other)]
    changes.append(LedgerLine(GAPS, gaps[1] - gaps[0], "predicted", from_to(*gaps)))
    if base.data_wait_s or other.data_wait_s:
        waits = [1e3 * step.data_wait_s for step in (base, other)]
        changes.append(LedgerLine(LOADER, waits[1] - waits[0], other.source, from_to(*waits)))
    if base.exchange_s or other.exchange_s:
        added = [1e3 * step.exchange_s for step in (base, other)]
        changes.append(LedgerLine(EXCHANGE, added[1] - added[0], "predicted", from_to(*added)))
    first_ms, last_ms = 1e3 * base.whole_s, 1e3 * other.whole_s
    rest_ms = math.fsum([last_ms, -first_ms, *(-line.ms for line in changes)])
    measured = "measured" in (base.source, other.source)
    if measured or abs(rest_ms) > NOTHING * (first_ms + last_ms):
        source = "measured" if measured else "predicted"
        changes.append(LedgerLine(RESIDUAL, rest_ms, source, _residual_detail(base, other)))
    return (
        LedgerLine(f"{names[0]} step", first_ms, base.source),
        *changes,
        LedgerLine(f"{names[1]} step", last_ms, other.source),
    )


def layer_table(base: Step, other: Step) -> list[LayerRow]:
    """GEMMs and convolutions by layer and kind, in ms: the largest saving first, losses last."""
    times = [_by_layer(step.ops, net=False) for step in (base, other)]
    keys = dict.fromkeys([*times[0], *times[1]])
    rows = [LayerRow(*key, times[0].get(key, 0.0), times[1].get(key, 0.0)) for key in keys]
    return sorted(rows, key=lambda row: -row.saving_ms)


def bound(base: Step) -> float | None:
    """Amdahl's law: the step's speed-up (a ratio) if GEMMs and convolutions took no time.

    None where it is undefined: a step without any, or with nothing else.
    """
    rest_s = base.whole_s - base.product_s
    if base.product_s <= 0 or rest_s <= NOTHING * base.whole_s:
        return None
    return base.whole_s / rest_s


def term_of(op: OpCost) -> str:
    """The ledger's term for an op's time without its `conversion_s`, which belongs to LAYOUT."""
    if op.kind != "product":
        return TERMS.get(op.kind, OTHER)
    if "conv" in op.name:
        return CONVOLUTIONS
    if "attention" in op.name:
        return ATTENTION
    return MATRIX_PRODUCTS if op.name else PRODUCTS


def op_terms_ms(ops: Iterable[OpCost]) -> dict[str, float]:
    """Device milliseconds by term, of the terms that occur, in the ledger's order."""
    parts: dict[str, list[float]] = defaultdict(list)
    for op in ops:
        if op.kind == "view":
            continue
        parts[term_of(op)].append(op.device_s - op.conversion_s)
        if op.conversion_s:
            parts[LAYOUT].append(op.conversion_s)
    return {term: 1e3 * math.fsum(parts[term]) for term in OP_TERMS if term in parts}


def _op_lines(base: Step, other: Step) -> list[LedgerLine]:
    before, after = op_terms_ms(base.ops), op_terms_ms(other.ops)
    lines: list[LedgerLine] = []
    for term in OP_TERMS:
        if term in before or term in after:
            ms = before.get(term, 0.0), after.get(term, 0.0)
            layers = top_layers(base, other, term) if term in PRODUCT_TERMS else ""
            lines.append(LedgerLine(term, ms[1] - ms[0], "replayed", from_to(*ms) + layers))
    return lines


def top_layers(base: Step, other: Step, term: str) -> str:
    """The layers whose time (ms) of a term changed most: "; layer4.0.conv2 -1.20, ..."."""
    times = [_by_layer(step.ops, net=True) for step in (base, other)]
    keys = [key for key in dict.fromkeys([*times[0], *times[1]]) if key[1] == term]
    changes = [(key[0], times[1].get(key, 0.0) - times[0].get(key, 0.0)) for key in keys]
    most = sorted(changes, key=lambda change: -abs(change[1]))[:TOP_LAYERS]
    named = ", ".join(f"{layer} {ms:+.2f}" for layer, ms in most if f"{abs(ms):.2f}" != "0.00")
    return f"; {named}" if named else ""


def _by_layer(ops: Iterable[OpCost], *, net: bool) -> dict[tuple[str, str], float]:
    """Milliseconds of products by layer and term; `net` of the layout changes inside them."""
    parts: dict[tuple[str, str], list[float]] = defaultdict(list)
    for op in ops:
        if op.kind == "product":
            taken_s = op.device_s - (op.conversion_s if net else 0.0)
            parts[op.layer or NO_LAYER, term_of(op)].append(taken_s)
    return {key: 1e3 * math.fsum(seconds) for key, seconds in parts.items()}


def _residual_detail(base: Step, other: Step) -> str:
    """What measured steps take beyond their prediction."""
    beyond = [
        f"{name} {1e3 * (step.measured_s - step.predicted.step_s - step.data_wait_s):+.2f}"
        for name, step in (("base", base), ("other", other))
        if step.measured_s is not None
    ]
    return f"measured minus predicted: {', '.join(beyond)}" if beyond else ""


def from_to(base_ms: float, other_ms: float) -> str:
    """Both sums behind a change, in milliseconds: "25.17 to 14.15 ms"."""
    return f"{base_ms:.2f} to {other_ms:.2f} ms"
