"""A diagnosis as a table: where a step's time goes, or what differs between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from rich.text import Text

from e2e.profile.causes import AFTER, Cause, Gain
from e2e.profile.compare import Aligned, Change, LayerTime
from e2e.profile.diagnosis import Diagnosis, Ranks, RankTime, TermTime, Traced, changes, step_ns
from e2e.profile.products import Fused, Product, reach
from e2e.profile.trials import ASIDE, SAID_APART
from e2e.report.ledger import TERM_WORDS
from e2e.results.terms import PYTHON
from microbench import fmt
from microbench.report.documents import Sheet
from microbench.report.table import Column, Part, Row, Table
from microbench.results.codec import decode
from microbench.results.types import Json

SMALL_SHARE = 0.005  # of a step: shorter terms are shown by --verbose only
MOST_CAUSES = 5
NS_PER_MS = 10**6
SLOWED = 0.1  # of a step: from here on the profiler's own time is worth a sentence
WORDS = {**TERM_WORDS, PYTHON: "the script's own code"}


def sheet(data: Json) -> Sheet:
    """One recording, or two held against each other. ValueError for an invalid field."""
    found: Diagnosis = decode(
        Diagnosis, {name: data.get(name) for name in ("runs", "aligned", "ranks")}, ""
    )
    if len(found.runs) not in (1, 2) or any(run.steps < 1 for run in found.runs):
        raise ValueError("runs are not one or two of at least one step")
    if any(run.window_ns < 1 for run in found.runs):
        raise ValueError("window_ns is no time above zero")
    if any(abs(term.ns) >= 1 << 63 for run in found.runs for term in run.terms):
        raise ValueError("ns of a term is no time")
    if found.ranks and len(found.ranks.ranks) < 2:
        raise ValueError("ranks are not two or more")
    if not all(run.bare_step_s is None or 0 < run.bare_step_s < 1e9 for run in found.runs):
        raise ValueError("bare_step_s is no time above zero")
    if any(gain.step_ms <= 0 for run in found.runs for gain in run.gains):
        raise ValueError("step_ms of a gain is no time above zero")
    if any(sum(term.ns for term in run.terms) != run.window_ns for run in found.runs):
        raise ValueError("terms do not add up to window_ns")
    *_, last = found.runs
    tables = _one(last) if len(found.runs) == 1 else _two(*found.runs)
    said = list(_ranks_sentence(found.ranks)) if found.ranks else []
    ruined = next((run.ruined for run in found.runs if run.ruined), ())
    said += ruined or _said(last)
    if len(found.runs) == 2 and not ruined:
        said += _match_sentence(found.aligned)
    return Sheet(
        *tables,
        summary=_summary(found.runs),
        notes=[Text(""), *map(Text, said)],
        parts=[
            *_rank_parts(found.ranks),
            *_layer_parts(found),
            *chain.from_iterable(map(_product_parts, found.runs)),
        ],
        brief_parts=[
            *_rank_parts(found.ranks),
            *(() if ruined else _layer_parts(found, MOST_LAYERS)),
        ],
        first=[line for said in _low_precision(last) for line in (said, "")] if not ruined else [],
    )


# ---------------------------------------------------------------- tables


def _one(run: Traced) -> tuple[Table[TermTime], Table[TermTime]]:
    time: Column[TermTime] = Column(
        "ms a step", lambda t: f"{t.ns / run.steps / 1e6:.3f}", True,
        csv={"ms": lambda t: t.ns / run.steps / 1e6},
    )  # fmt: skip
    columns: list[Column[TermTime]] = [
        Column("term", lambda t: _words(t.term), csv={"term": lambda t: t.term}),
        # Of a CPU every term is slowed by the profiler: only shares are known.
        *([] if run.on_cpu else [time]),
        Column(
            "share", lambda t: f"{100 * t.ns / run.window_ns:.1f} %", True,
            csv={"share": lambda t: t.ns / run.window_ns},
        ),
        Column("", lambda t: "idle" if t.idle else "", csv={"idle": lambda t: t.idle}),
        Column("most of it in", lambda t: fmt.clean(t.where), drop=1),
    ]  # fmt: skip
    rows = [Row(term) for term in run.terms]
    brief = [row for row in rows if abs(row.item.ns) >= SMALL_SHARE * run.window_ns]
    return Table(columns, [*rows]), Table(columns, [*brief])


def _two(base: Traced, other: Traced) -> tuple[Table[Change], Table[Change]]:
    columns: list[Column[Change]] = [
        Column("ms a step", lambda c: _words(c.term), csv={"term": lambda c: c.term}),
        Column(fmt.clean(base.name), lambda c: f"{float(c.base_ns / NS_PER_MS):.3f}", True,
               csv={"base_ms": lambda c: float(c.base_ns / NS_PER_MS)}),
        Column(fmt.clean(other.name), lambda c: f"{float(c.other_ns / NS_PER_MS):.3f}", True,
               csv={"other_ms": lambda c: float(c.other_ns / NS_PER_MS)}),
        Column("change", lambda c: f"{float(c.ns / NS_PER_MS):+.3f}", True,
               csv={"change_ms": lambda c: float(c.ns / NS_PER_MS)}),
    ]  # fmt: skip
    least_ns = SMALL_SHARE * max(step_ns(base), step_ns(other))
    rows = [Row(change) for change in changes(base, other)]
    brief = [row for row in rows if max(abs(row.item.base_ns), abs(row.item.other_ns)) >= least_ns]
    return Table(columns, [*rows]), Table(columns, [*brief])


# ---------------------------------------------------------------- sentences


def _said(run: Traced) -> Iterator[str]:
    """The causes, what is not the cause, and how far to trust it."""
    tried = run.gains or any(one.unproven for one in run.findings)
    if run.findings:
        how = "likely; a trace proves no gain"
        if run.gains and run.tried_steps:
            how = f"changes were tried in {run.tried_steps} more steps"
        elif run.gains:
            how = "calls were replayed"
        yield f"What costs time in {fmt.clean(run.name)}, at most ({how})"
    for number, cause in enumerate(run.findings[:MOST_CAUSES], 1):
        status = f"{fmt.clean(cause.status)}: " if tried or cause.status == AFTER else ""
        yield f"{number:2d} {status}{_cause(cause, run)}"
    if not run.findings:
        yield "No cause was found that costs 3 % of a step or more."
    if run.not_the_cause:
        split = [one.rsplit(" ", 2) for one in run.not_the_cause]  # "loader wait", "0.1", "%"
        said = (" ".join((_words(term), *share)) for term, *share in split)
        yield f"Not the cause: {fmt.clean(', '.join(said))}."
    yield from _products_sentence(run)
    yield from _trust(run)
    yield from map(fmt.clean, run.missing)


def _cause(cause: Cause, run: Traced) -> str:
    where = f" ({fmt.clean(cause.where)})" if cause.where else ""
    cost = "no time to save"
    if cause.ms:
        cost = f"{'' if run.on_cpu else f'{fmt.number(cause.most_ms)} ms, '}{_share(cause)}"
    return (
        f"{fmt.clean(cause.title)}: {cost}{where}. "
        f"Try: {fmt.clean(cause.remedy)}.{_measured(cause)}"
    )


def _share(cause: Cause) -> str:
    """What a fix saves at most, of the step that `ms` is of: in older files as it was recorded."""
    return f"{100 * cause.share * cause.most_ms / cause.ms:.0f} %"


def _measured(cause: Cause) -> str:
    """What was gained when it was tried, or why that is not known."""
    if cause.gain is None:
        return f" Not tried: {fmt.clean(cause.unproven)}." if cause.unproven else ""
    return f" Measured: {fmt.clean(cause.gain.change)}, {_gain(cause.gain)}."


def _gain(gain: Gain) -> str:
    return f"{gain.ms:.3g} ms less of {gain.step_ms:.3g} ({gain.low_ms:.3g} to {gain.high_ms:.3g})"


def _low_precision(run: Traced) -> Iterator[str]:
    """What autocast brings: switched off where it is there, or else switched on."""
    for gain in run.gains:
        if gain.cause not in (SAID_APART, *ASIDE):
            continue
        saved = [gain.ms, gain.low_ms, gain.high_ms]
        if gain.cause == SAID_APART:
            without_ms, with_ms = gain.step_ms - gain.ms, gain.step_ms
            ratio, *ends = (1 - ms / gain.step_ms for ms in saved)
        else:
            without_ms, with_ms = gain.step_ms, gain.step_ms - gain.ms
            ratio, *ends = (gain.step_ms / max(1e-9, gain.step_ms - ms) for ms in saved)
        gives = "gives" if gain.cause == SAID_APART else "would give"
        low, high = min(ends), max(ends)
        doubt = ", which may be nothing" if low < 1 < high else ""
        yield (
            f"AMP {'may give' if doubt else gives} {ratio:.2f}x ({low:.2f} to {high:.2f}){doubt}: "
            f"a step takes {without_ms:.3g} ms without autocast, {with_ms:.3g} with it"
            f"{', on one batch again and again' * gain.resident}."
        )


def _trust(run: Traced) -> Iterator[str]:
    if run.bare_step_s is None:
        yield (
            "The step without the profiler is not known, and the profiler slows the CPU"
            f"{'' if run.on_cpu else ': CPU launch is an upper bound'}. halfway_watch measures it."
        )
        return
    recorded = run.recorded_step_s
    slowed = recorded.times or recorded.names or run.window_ns / run.steps / 1e9
    if slowed and slowed > (1 + SLOWED) * run.bare_step_s:
        more = 100 * (slowed / run.bare_step_s - 1)
        so = "; idle time is cut down to the step"
        if run.on_cpu:
            so = ": only shares are known"
        elif recorded.names is None:  # of older files
            so = ", nearly all of it on the CPU, so CPU launch is an upper bound"
        yield f"While it was recorded a step took {more:.0f} % longer{so}."


def _summary(runs: Sequence[Traced]) -> str:
    *_, last = runs
    ends = last.step_ci95_s
    off = f" ±{500 * (ends[1] - ends[0]) / last.step_ms * 100:.0f} %" if ends else ""
    card = f", {100 * last.of_card:.0f} % of what the card allows" if last.of_card else ""
    first = next((one for one in last.findings if one.ms), None)
    least = f", at most {_share(first)} of it" if first else ""
    unit = "step" if last.unit == "optimizer step" else fmt.clean(last.unit)
    said = (
        f"{fmt.clean(last.name)} on {fmt.clean(last.device)}: {fmt.number(last.step_ms)} ms a "
        f"{unit}{off}; bottleneck: {fmt.clean(last.bottleneck)}{least}"
        f"{'' if last.on_cpu else f' (GPU busy {100 * last.busy:.0f} %{card})'}."
    )
    if len(runs) == 1 or any(run.ruined for run in runs):
        return said
    return (
        f"{said} It is {runs[0].step_ms / last.step_ms:.2f} times as fast as "
        f"{fmt.clean(runs[0].name)} ({fmt.number(runs[0].step_ms)} ms). The terms add up to the "
        "difference."
    )


def _words(term: str) -> str:
    return WORDS.get(term, fmt.clean(term))


# ---------------------------------------------------------------- ranks


def _ranks_sentence(ranks: Ranks) -> Iterator[str]:
    """Who is late, and what of the communication is transfer."""
    late = ranks.latest
    waiting = sum(one.waiting_ms for one in ranks.ranks if one is not late)
    bus = f" at {ranks.bus_byte_per_s / 1e9:.3g} GB/s on the bus" if ranks.bus_byte_per_s else ""
    yield (
        f"{len(ranks.ranks)} ranks, {ranks.collectives:.3g} collectives a step: transfer takes "
        f"{ranks.transfer_ms:.3g} ms{bus}; the others wait "
        f"{waiting / (len(ranks.ranks) - 1):.3g} ms for who arrives last."
    )
    yield (
        f"Rank {late.rank} arrives last at {100 * late.last:.0f} % of them: what follows is its "
        "step."
    )


def _rank_parts(ranks: Ranks | None) -> Iterator[Part]:
    if ranks is None:
        return
    columns: list[Column[RankTime]] = [
        Column("rank", lambda r: str(r.rank), True, csv={"rank": lambda r: r.rank}),
        Column("ms a step", lambda r: f"{r.step_ms:.3f}", True, csv={"ms": lambda r: r.step_ms}),
        Column("GPU busy", lambda r: f"{100 * r.busy:.0f} %", True, csv={"busy": lambda r: r.busy}),
        Column("communication", lambda r: f"{r.communication_ms:.3f}", True,
               csv={"communication_ms": lambda r: r.communication_ms}),
        Column("of it waiting", lambda r: f"{r.waiting_ms:.3f}", True,
               csv={"waiting_ms": lambda r: r.waiting_ms}),
        Column("arrives last", lambda r: f"{100 * r.last:.0f} %", True,
               csv={"last": lambda r: r.last}),
    ]  # fmt: skip
    yield Part("Ranks", Table(columns, [Row(one) for one in ranks.ranks]))


# ---------------------------------------------------------------- layers


MATCHED = 0.9  # of the work: below it no layers are held against each other
MOST_LAYERS = 10  # on the screen without --verbose


def _layer_parts(found: Diagnosis, most: int | None = None) -> Iterator[Part]:
    """The table of layers, all or the first `most`; nothing where too little matches."""
    aligned = found.aligned if len(found.runs) == 2 else None
    if aligned and aligned.layers and aligned.share >= MATCHED:
        base, other = found.runs
        rows = [Row(layer) for layer in aligned.layers[:most]]
        title = "Layers that changed most, ms a step"
        yield Part(title, Table(_layer_columns(base, other), [*rows]))


def _match_sentence(aligned: Aligned | None) -> Iterator[str]:
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


def _layer_columns(base: Traced, other: Traced) -> list[Column[LayerTime]]:
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


# ---------------------------------------------------------------- products


def _product_parts(run: Traced) -> Iterator[Part]:
    """The table of every product, the longest first; nothing without any."""
    if run.products:
        title = f"GEMMs, convolutions and attention in {fmt.clean(run.name)}, each a step"
        rows = [Row(product) for product in run.products]
        yield Part(title, Table(_product_columns(run.steps), [*rows]))
    if run.fused:
        title = f"Kernels that torch.compile made in {fmt.clean(run.name)}, each a step"
        yield Part(title, Table(_fused_columns(run.steps), [Row(one) for one in run.fused]))


def _fused_columns(steps: int) -> list[Column[Fused]]:
    def ms(one: Fused) -> float:
        return one.ns / steps / 1e6

    return [
        Column("module", lambda f: fmt.clean(f.module) or "-", csv={"module": lambda f: f.module}),
        Column("fuses", lambda f: fmt.clean(f.fuses), csv={"fuses": lambda f: f.fuses}),
        Column("calls", lambda f: f"{f.count / steps:.3g}", True,
               csv={"calls": lambda f: f.count / steps}),
        Column("ms", lambda f: f"{ms(f):.3f}", True, csv={"ms": ms}),
        Column("GB/s, at least", lambda f: f"{f.byte_per_s / 1e9:,.0f}" if f.byte_per_s else "",
               True, csv={"byte_per_s": lambda f: f.byte_per_s, "bytes": lambda f: f.bytes}),
    ]  # fmt: skip


def _products_sentence(run: Traced) -> Iterator[str]:
    """How far they use the card, where it is known."""
    if found := reach(run.products):
        known = all(one.floor_s is not None for one in run.products)
        who = "they" if known else "those whose limit is known"
        by = f"the rates in {fmt.clean(run.rates)}" if run.rates else "the card's datasheet"
        yield (
            "GEMMs, convolutions and attention: Tensor Cores proved by rate for "
            f"{100 * found.proved:.0f} % of their time; {who} reach "
            f"{100 * found.of_card:.0f} % of what {by} {'allow' if run.rates else 'allows'} "
            "(--verbose lists each)."
        )


def _product_columns(steps: int) -> list[Column[Product]]:
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
