"""The GEMMs, convolutions and attentions of a recording: a table, and what they reach in sum."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.profile.diagnosis import Traced
from e2e.profile.products import Product, reach
from microbench import fmt
from microbench.report.table import Column, Part, Row, Table


def parts(run: Traced) -> Iterator[Part]:
    """The table of every product, the longest first; nothing without any."""
    if run.products:
        title = f"GEMMs, convolutions and attention in {fmt.clean(run.name)}, each a step"
        rows = [Row(product) for product in run.products]
        yield Part(title, Table(_columns(run.steps), [*rows]))


def sentence(run: Traced) -> Iterator[str]:
    """How far they use the card, where it is known."""
    if found := reach(run.products):
        by = f"the rates in {fmt.clean(run.rates)}" if run.rates else "the card's datasheet"
        yield (
            f"GEMMs and convolutions: Tensor Cores proved by rate for {100 * found.proved:.0f} % "
            f"of their time; they reach {100 * found.of_card:.0f} % of what {by} "
            f"{'allow' if run.rates else 'allows'} (--verbose lists each)."
        )


def _columns(steps: int) -> list[Column[Product]]:
    def ms(product: Product) -> float:
        return product.ns / steps / 1e6

    def floor_ms(product: Product) -> float | None:
        return None if product.floor_s is None else 1e3 * product.floor_s * product.count / steps

    return [
        Column("module", lambda p: fmt.clean(p.module) or "-", csv={"module": lambda p: p.module}),
        Column("phase", lambda p: fmt.clean(p.phase), csv={"phase": lambda p: p.phase}),
        Column("operator", lambda p: fmt.clean(p.operator), drop=3,
               csv={"operator": lambda p: p.operator}),
        Column("shapes", lambda p: fmt.clean(p.shapes) + " (misaligned)" * p.misaligned,
               csv={"shapes": lambda p: p.shapes, "misaligned": lambda p: p.misaligned}),
        Column("type", lambda p: fmt.clean(p.precision), csv={"precision": lambda p: p.precision}),
        Column("calls", lambda p: f"{p.count / steps:.3g}", True, 2,
               csv={"calls": lambda p: p.count / steps}),
        Column("ms", lambda p: f"{ms(p):.3f}", True, csv={"ms": ms}),
        Column("floor", lambda p: "" if (f := floor_ms(p)) is None else f"{f:.3f}", True,
               csv={"floor_ms": floor_ms, "floor_by": _floor_by}),
        Column("TFLOP/s", lambda p: f"{p.flop_per_s / 1e12:.3g}" if p.flop_per_s else "", True, 1,
               csv={"flop_per_s": lambda p: p.flop_per_s, "flops": lambda p: p.flops,
                    "bytes": lambda p: p.bytes}),
        Column("Tensor Cores", _tensor_cores, csv={"tensor_cores": lambda p: p.tensor_cores}),
    ]  # fmt: skip


def _floor_by(product: Product) -> str | None:
    if product.floor_s is None:
        return None
    return "measured" if product.measured else "datasheet"


def _tensor_cores(product: Product) -> str:
    if product.tensor_cores is None:
        return "not proved" if product.floor_s is not None else ""
    return "proved" if product.tensor_cores else "none"
