"""The layers of two recordings that changed most, and how far the recordings match."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.profile.aligned import Aligned, LayerTime
from e2e.profile.diagnosis import Diagnosis, Traced
from microbench import fmt
from microbench.report.table import Column, Part, Row, Table

MATCHED = 0.9  # of the work: below it no layers are held against each other
MOST_LAYERS = 10  # on the screen without --verbose


def parts(found: Diagnosis, most: int | None = None) -> Iterator[Part]:
    """The table of layers, all or the first `most`; nothing where too little matches."""
    aligned = found.aligned if len(found.runs) == 2 else None
    if aligned and aligned.layers and aligned.share >= MATCHED:
        base, other = found.runs
        rows = [Row(layer) for layer in aligned.layers[:most]]
        title = "Layers that changed most, ms a step"
        yield Part(title, Table(_columns(base, other), [*rows]))


def sentence(aligned: Aligned | None) -> Iterator[str]:
    """The share that matches; nothing where a trace has no shapes, which it says itself."""
    if aligned is None:
        return
    shares = zip(aligned.matched_ns, aligned.counted_ns, strict=True)
    base, other = (100 * matched / counted if counted else 100.0 for matched, counted in shares)
    yield (
        f"By module and shapes, {base:.0f} % of the base's work and {other:.0f} % of the other's "
        "match (casts, copies, layout changes, recomputation and the optimizer apart)"
        f"{'' if aligned.share >= MATCHED else ': too little to compare layers'}."
    )


def _columns(base: Traced, other: Traced) -> list[Column[LayerTime]]:
    def base_ms(layer: LayerTime) -> float:
        return layer.base_ns / base.steps / 1e6

    def other_ms(layer: LayerTime) -> float:
        return layer.other_ns / other.steps / 1e6

    def change_ms(layer: LayerTime) -> float:
        return other_ms(layer) - base_ms(layer)

    return [
        Column("module", lambda row: fmt.clean(row.module) or "-",
               csv={"module": lambda row: row.module}),
        Column("phase", lambda row: fmt.clean(row.phase), csv={"phase": lambda row: row.phase}),
        Column(fmt.clean(base.name), lambda row: f"{base_ms(row):.3f}", True,
               csv={"base_ms": base_ms}),
        Column(fmt.clean(other.name), lambda row: f"{other_ms(row):.3f}", True,
               csv={"other_ms": other_ms}),
        Column("change", lambda row: f"{change_ms(row):+.3f}", True, csv={"change_ms": change_ms}),
    ]  # fmt: skip
