"""The report of a diagnosis: where a step's time goes, or what differs between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from e2e.profile.causes import Cause, Gain
from e2e.profile.compare import Aligned, Ranks
from e2e.profile.diagnosis import Diagnosis, Traced, changes, step_ns
from e2e.profile.products import reach
from e2e.profile.trials import ASIDE, SAID_APART
from e2e.report.ledger import TERM_WORDS
from e2e.results.terms import LONG_STEPS, PYTHON, RESIDUAL
from microbench import fmt
from microbench.report.parts import DEFAULT, VERBOSE, Column, Line, Part, Raw, Report, Row
from microbench.results.codec import decode
from microbench.results.types import Json

MOST_TERMS = 6  # on the screen without --verbose
MOST_DOUBTS, MOST_TRIED = 2, 3
SMALL_SHARE = 0.005  # of a step: shorter terms are shown by --verbose only
NS_PER_MS = 10**6
SLOWED = 0.1  # of a step: from here on the profiler's own time is worth a sentence
MOST_RESIDUAL = 0.2  # of the difference of two steps: more is a doubt
MATCHED = 0.9  # of the work: below it no layers are held against each other
MS, CHANGE = "{:.3f}".format, "{:+.3f}".format
WORDS = {**TERM_WORDS, PYTHON: "the script's own code"}


def report(data: Json) -> Report:
    """One recording, or two held against each other. ValueError for an invalid field."""
    diagnosis = _checked(data)
    last = diagnosis.runs[-1]
    ruined = next((run.ruined for run in diagnosis.runs if run.ruined), ())
    terms, raw = _terms_parts(diagnosis.runs)
    parts = [
        *terms,
        *([] if ruined else [_causes_part(diagnosis)]),
        *_rank_parts(diagnosis.ranks),
        *([] if ruined else _layer_parts(diagnosis)),
        *chain.from_iterable(map(_product_parts, diagnosis.runs)),
    ]
    answer = _no_verdict(last, ruined) if ruined else list(_answer(diagnosis))
    return Report(f"{last.name} on {last.device}", answer, parts, raw=[raw])


def _checked(data: Json) -> Diagnosis:
    """ValueError for an invalid field."""
    diagnosis: Diagnosis = decode(
        Diagnosis, {name: data.get(name) for name in ("runs", "aligned", "ranks")}, ""
    )
    if len(diagnosis.runs) not in (1, 2):
        raise ValueError("runs are not one or two")
    if diagnosis.ranks and len(diagnosis.ranks.ranks) < 2:
        raise ValueError("ranks are not two or more")
    if any(sum(term.ns for term in run.terms) != run.window_ns for run in diagnosis.runs):
        raise ValueError("terms do not add up to window_ns")
    return diagnosis


# ---------------------------------------------------------------- the answer


def _answer(diagnosis: Diagnosis) -> Iterator[Line]:
    """The step and its bottleneck, what AMP gives, the first cause, and how far to trust it."""
    *_, last = diagnosis.runs
    yield Line("", _finding(diagnosis.runs))
    yield from (Line("", text) for text in _low_precision(diagnosis.runs))
    if diagnosis.ranks:
        yield Line("", _ranks_sentence(diagnosis.ranks, last))
    first = next(iter(last.findings), None)
    if first is None or first.gain is None:
        yield from _tried(last)
    if first is None:
        yield Line("Why", "no cause was found that costs 3 % of a step or more")
    else:
        most, gain = f", {_cost(first, last)}", first.gain
        if gain and first.ms and gain.ms / gain.step_ms > _most(first, last)[0]:
            most = ""  # trying it saved more
        tried = f"; tried: {_gain(gain)}" if gain else ""
        yield Line("Why", f"{first.status}: {first.title}{most}{tried}")
        proof = f" (not tried: {first.unproven})" if first.unproven else " (not measured)"
        if gain:
            proof = " (tried: no certain gain)" if gain.low_ms <= 0 else ""
        lines = first.where or "the lines under --causes"
        yield Line("Do", first.remedy.replace("these lines", lines) + proof)
    missing = (
        line.partition(". ")[0].rstrip(".") for line in last.missing if "Python stack" not in line
    )
    doubts = [*_residual(diagnosis.runs), *_trust(last), *missing]
    yield from (Line("Doubt", text) for text in doubts[:MOST_DOUBTS])


def _no_verdict(run: Traced, ruined: Sequence[str]) -> list[Line]:
    """Why nothing is concluded, what gained when it was tried beside the step, and what to do."""
    first, why, do = (*ruined, "", "")[:3]
    reason = first.removeprefix("Nothing is concluded: ")
    step = f"{fmt.number(run.step_ms)} ms a step"
    lines = [Line("", f"No verdict on {run.name} ({run.device}, {step}): {reason}"),
             *(Line("", amp) for amp in _low_precision([run])),
             *_tried(run),
             Line("Why", why), Line("Do", do)]  # fmt: skip
    return [line for line in lines if line.text]


def _tried(run: Traced) -> Iterator[Line]:
    """What gained most when it was tried, even if not for certain; autocast is said apart."""
    gains = [gain for gain in run.gains if gain.cause not in (SAID_APART, *ASIDE)]
    for gain in sorted(gains, key=lambda gain: -gain.ms)[:MOST_TRIED]:
        yield Line("", f"Tried: {gain.change}, {_gain(gain)}")


def _finding(runs: Sequence[Traced]) -> str:
    """ "train.py on NVIDIA H200: 14.4 ms a step; bottleneck: CPU launch (GPU busy 73 %)", or how
    much faster it is than its base.
    """
    *base, last = runs
    ends = last.step_ci95_s
    off = f" ±{500 * (ends[1] - ends[0]) / last.step_ms * 100:.0f} %" if ends else ""
    card = f", {100 * last.of_card:.0f} % of what the card allows" if last.of_card else ""
    unit = "step" if last.unit == "optimizer step" else last.unit
    step, than = f"{fmt.number(last.step_ms)} ms a {unit}{off}", ""
    for baseline in base:
        than = f" is {baseline.step_ms / last.step_ms:.2f} times as fast as {baseline.name}"
        step += f", not {fmt.number(baseline.step_ms)}"
    usual = " of usual steps" * bool(last.ms(LONG_STEPS))
    busy = "" if last.on_cpu else f" (GPU busy {100 * last.busy:.0f} %{usual}{card})"
    return f"{last.name}{than} on {last.device}: {step}; bottleneck: {last.bottleneck}{busy}"


def _low_precision(runs: Sequence[Traced]) -> Iterator[str]:
    """What autocast brings where it is tried: two runs that differ by it have measured it."""
    is_low = {any(made.precision in ("bf16", "fp16") for made in run.products) for run in runs}
    for gain in runs[-1].gains:
        if gain.cause not in (SAID_APART, *ASIDE) or len(is_low) > 1:
            continue
        saved = [gain.ms, gain.low_ms, gain.high_ms]
        if gain.cause == SAID_APART:
            ratio, *ends = (1 - ms / gain.step_ms for ms in saved)
        else:
            ratio, *ends = (gain.step_ms / max(1e-9, gain.step_ms - ms) for ms in saved)
        in_use, low, high = gain.cause == SAID_APART, min(ends), max(ends)
        gives = f"AMP {'makes' if in_use else 'would make'} it {ratio:.2f} times as fast"
        if low < 1 < high:
            used = ", which is in use," * in_use
            gives = f"Cannot tell what AMP{used} gives: {ratio:.2f} times as fast"
        again = ", on one batch again and again" * gain.resident
        yield f"{gives} ({low:.2f} to {high:.2f}){again}"


def _cost(cause: Cause, run: Traced) -> str:
    """ "at most 1.07 ms, 6 % of a step"; a share alone where times are of the recorded step."""
    if not cause.ms:
        return "no time to save"
    share, of = _most(cause, run)
    ms = f"{fmt.number(cause.most_ms)} ms, " if of == "step" and not run.on_cpu else ""
    return f"at most {ms}{100 * share:.0f} % of a {of}"


def _most(cause: Cause, run: Traced) -> tuple[float, str]:
    """The share that a fix saves at most, and of what: in older files of the recorded step."""
    as_recorded = cause.saves_ms is None and _recorded_longer(run)
    if run.on_cpu or as_recorded:
        return cause.share * cause.most_ms / cause.ms, "recorded step" if as_recorded else "step"
    return cause.most_ms / run.step_ms, "step"


def _recorded_longer(run: Traced) -> bool:
    """Whether the terms are of steps that recording made longer."""
    return run.window_ns / run.steps / NS_PER_MS > (1 + SLOWED) * run.step_ms


def _gain(gain: Gain) -> str:
    """ "17 % of a step less (9 to 23)", or "2 % of a step more ..." where it was slower.

    Steps of trials are not those that were recorded: their shares alone stand beside each other.
    """
    values, how = (gain.ms, gain.low_ms, gain.high_ms), "less"
    if gain.ms < 0:
        values, how = (-gain.ms, -gain.high_ms, -gain.low_ms), "more"
    share, low, high = (f"{100 * value / gain.step_ms:.2g}" for value in values)
    return f"{share} % of a step {how} ({low} to {high})"


def _residual(runs: Sequence[Traced]) -> Iterator[str]:
    """How much of two steps' difference no term explains, where that is much."""
    if len(runs) != 2:
        return
    *terms, whole = changes(*runs)
    rest_ns = sum(term.ns for term in terms if term.term == RESIDUAL)
    if abs(rest_ns) > MOST_RESIDUAL * abs(whole.ns):
        rest_ms, whole_ms = (f"{float(ns / NS_PER_MS):+.3g}" for ns in (rest_ns, whole.ns))
        yield f"of a difference of {whole_ms} ms {rest_ms} are unexplained: trust no smaller change"


def _trust(run: Traced) -> Iterator[str]:
    """What recording changed, and what a CPU cannot say."""
    if run.bare_step_s is None:
        bound = "" if run.on_cpu else "; CPU launch is an upper bound"
        yield f"the step without the profiler is not known (halfway_watch measures it){bound}"
    else:
        recorded = run.recorded_step_s
        slowed = recorded.times or recorded.names or run.window_ns / run.steps / 1e9
        if slowed and slowed > (1 + SLOWED) * run.bare_step_s:
            so = "idle time is cut down to the step"
            if run.on_cpu:
                so = "only shares are known"
            elif recorded.names is None:  # of older files
                so = "CPU launch is an upper bound"
            yield f"recording made a step {100 * (slowed / run.bare_step_s - 1):.0f} % longer: {so}"
    if run.on_cpu:
        yield "on a CPU: data loading, waits and launch counts carry over to a GPU, AMP does not"


# ---------------------------------------------------------------- terms


def _terms_parts(runs: Sequence[Traced]) -> tuple[list[Part], Raw]:
    """The first terms, the smaller ones, and their raw values."""
    every, least, raw = _terms_of_one(runs[0]) if len(runs) == 1 else _terms_of_two(*runs)
    whole = [row for row in every.rows if row.item["term"] == "step"]
    terms = [row for row in every.rows if row.item["size"] >= least and row not in whole]
    left = len(every.rows) - len(whole) - len(terms[:MOST_TERMS])
    first = replace(
        every, title="", rows=[*terms[:MOST_TERMS], *whole], level=DEFAULT,
        columns=[column for column in every.columns if column.path != "waits"],
        below=[f"{fmt.count(left, 'other term')}: --verbose"] * bool(left),
    )  # fmt: skip
    return [first, replace(every, rows=[row for row in every.rows if row not in first.rows])], raw


def _terms_of_one(run: Traced) -> tuple[Part, float, Raw]:
    """The terms of a step, the least size that is worth a row, and raw values.

    Of a CPU every term is slowed by the profiler: only shares are known.
    """
    rows: list[Json] = [
        {
            "words": WORDS.get(term.term, term.term), "term": term.term,
            "ms": term.ns / run.steps / 1e6,
            "share": term.ns / run.window_ns, "idle": term.idle, "where": _places(term.where),
            "waits": "idle" if term.idle else None, "size": abs(term.ns),
        }
        for term in run.terms
    ]  # fmt: skip
    title = "ms recorded" if _recorded_longer(run) else "ms a step"
    columns = [
        Column("term", "words"),
        *([] if run.on_cpu else [Column(title, "ms", MS)]),
        Column("share", "share", "{:.1%}".format),
        Column("", "waits"),
        Column("most of it in", "where", drop=1),
    ]
    names = ["term", *([] if run.on_cpu else ["ms"]), "share", "idle"]
    every = Part("Other terms of a step", columns, [*map(Row, rows)], level=VERBOSE)
    return every, SMALL_SHARE * run.window_ns, (names, rows)


def _places(where: str) -> str | None:
    """Where most of a term is: "layer 2" for the place of a module in a Sequential."""
    names = where.split(", ") if where else []
    numbered = (name.replace(".", "").isdecimal() for name in names)
    return ", ".join("layer " * n + name for n, name in zip(numbered, names, strict=True)) or None


def _terms_of_two(base: Traced, other: Traced) -> tuple[Part, float, Raw]:
    """The terms of two steps, those that differ most first."""
    rows: list[Json] = [
        {
            "words": WORDS.get(row.term, row.term), "term": row.term,
            "base_ms": float(row.base_ns / NS_PER_MS), "other_ms": float(row.other_ns / NS_PER_MS),
            "change_ms": float(row.ns / NS_PER_MS),
            "size": max(abs(row.base_ns), abs(row.other_ns)),
        }
        for row in changes(base, other)
    ]  # fmt: skip
    columns = [
        Column("ms a step", "words"),
        Column(base.name, "base_ms", MS),
        Column(other.name, "other_ms", MS),
        Column("change", "change_ms", CHANGE),
    ]
    every = Part("Other terms of both steps", columns, [*map(Row, rows)], level=VERBOSE)
    least_ns = SMALL_SHARE * float(max(step_ns(base), step_ns(other)))
    return every, least_ns, (("term", "base_ms", "other_ms", "change_ms"), rows)


def _causes_part(diagnosis: Diagnosis) -> Part:
    """Every cause, what is not the cause, how far the card is used, and what is missing."""
    run = diagnosis.runs[-1]
    how = "likely; a trace proves no gain"
    if run.gains:
        how = "calls were replayed"
        if run.tried_steps:
            how = f"changes were tried in {run.tried_steps} more steps"
    sentences: list[str] = []
    for number, cause in enumerate(run.findings, 1):
        where = f" ({cause.where})" if cause.where else ""
        tried = f" Not tried: {cause.unproven}." if cause.unproven else ""
        if cause.gain:
            tried = f" Measured: {cause.gain.change}, {_gain(cause.gain)}."
        sentences.append(
            f"{number}. {cause.status}: {cause.title}: {_cost(cause, run)}{where}. "
            f"Try: {cause.remedy}.{tried}"
        )
    if run.not_the_cause:
        split = [share.rsplit(" ", 2) for share in run.not_the_cause]  # "loader wait", "0.1", "%"
        shares = (" ".join((WORDS.get(term, term), *share)) for term, *share in split)
        sentences.append(f"Not the cause: {', '.join(shares)}.")
    sentences += [
        *_products_sentence(run),
        *(f"{line[:1].upper()}{line[1:]}." for line in _trust(run)),
        *run.missing,
    ]
    if len(diagnosis.runs) == 2 and diagnosis.aligned:
        sentences.append(_match_sentence(diagnosis.aligned))
    title = f"What costs time in {run.name}, at most ({how})"
    return Part(title, below=sentences, level=VERBOSE, topic="causes")


# ---------------------------------------------------------------- ranks


def _ranks_sentence(ranks: Ranks, run: Traced) -> str:
    """Who is late, and what of the communication is transfer."""
    late = ranks.latest
    bound = "" if run.bare_step_s is None else "at most "
    waiting = sum(rank.waiting_ms for rank in ranks.ranks if rank is not late)
    bus = f" at {ranks.bus_byte_per_s / 1e9:.3g} GB/s on the bus" if ranks.bus_byte_per_s else ""
    return (
        f"Rank {late.rank} of {len(ranks.ranks)} arrives last at {100 * late.last:.0f} % of "
        f"{ranks.collectives:.3g} collectives a recorded step: the others wait {bound}"
        f"{waiting / (len(ranks.ranks) - 1):.3g} ms, the transfer takes {ranks.transfer_ms:.3g} ms"
        f"{bus}. What follows is the step of rank {late.rank}"
    )


def _rank_parts(ranks: Ranks | None) -> list[Part]:
    if ranks is None:
        return []
    columns = [
        Column("rank", "rank"),
        Column("ms a step", "step_ms", MS),
        Column("GPU busy", "busy", "{:.0%}".format),
        Column("communication", "communication_ms", MS),
        Column("of it waiting", "waiting_ms", MS),
        Column("arrives last", "last", "{:.0%}".format),
    ]
    return [Part("Ranks", columns, [*map(Row, ranks.ranks)], level=VERBOSE)]


# ---------------------------------------------------------------- layers


def _layer_parts(diagnosis: Diagnosis) -> list[Part]:
    """The table of layers; nothing where too little matches."""
    aligned = diagnosis.aligned if len(diagnosis.runs) == 2 else None
    if aligned is None or not aligned.layers or aligned.share < MATCHED:
        return []
    base, other = diagnosis.runs
    times = [(layer, layer.base_ns / base.steps / 1e6, layer.other_ns / other.steps / 1e6)
             for layer in aligned.layers]  # fmt: skip
    rows = [Row({"layer": layer, "base_ms": a, "other_ms": b, "change_ms": b - a})
            for layer, a, b in times]  # fmt: skip
    columns = [
        Column("module", "layer.module"),
        Column("phase", "layer.phase"),
        Column(base.name, "base_ms", MS),
        Column(other.name, "other_ms", MS),
        Column("change", "change_ms", CHANGE),
    ]
    return [Part("Layers that changed most, ms a step", columns, rows, level=VERBOSE)]


def _match_sentence(aligned: Aligned) -> str:
    """The share that matches; nothing where a trace has no shapes, which it says itself."""
    shares = zip(aligned.matched_ns, aligned.counted_ns, strict=True)
    base, other = (100 * matched / counted if counted else 100.0 for matched, counted in shares)
    return (
        f"By module and shapes, {base:.0f} % of the base's work and {other:.0f} % of the other's "
        "match (casts, copies, layout changes, recomputation and the optimizer apart)"
        f"{'' if aligned.share >= MATCHED else ': too little to compare layers'}."
    )


# ---------------------------------------------------------------- products


def _product_parts(run: Traced) -> Iterator[Part]:
    """The tables of every product and fused kernel, the longest first; nothing without any."""

    def ms(ns: int) -> str:
        return f"{ns / run.steps / 1e6:.3f}"

    def calls(count: int) -> str:
        return f"{count / run.steps:.3g}"

    if run.products:
        columns = [
            Column("module", "product.module"),
            Column("phase", "product.phase"),
            Column("operator", "product.operator", drop=3),
            Column("shapes", "shapes"),
            Column("type", "product.precision"),
            Column("calls", "product.count", calls, drop=2),
            Column("ms", "product.ns", ms),
            Column("floor", "floor_s", lambda s: f"{1e3 * s / run.steps:.3f}"),
            Column("TFLOP/s", "product.flop_per_s", lambda rate: f"{rate / 1e12:.3g}", drop=1),
            Column("Tensor Cores", "tensor_cores"),
        ]
        rows = [
            Row({
                "product": product, "shapes": product.shapes + " (misaligned)" * product.misaligned,
                "floor_s": None if product.floor_s is None else product.floor_s * product.count,
                "tensor_cores": {
                    True: "proved", False: "none",
                    None: None if product.floor_s is None else "not proved",
                }[product.tensor_cores],
            })
            for product in run.products
        ]  # fmt: skip
        title = f"GEMMs, convolutions and attention in {run.name}, each a step"
        yield Part(title, columns, rows, level=VERBOSE)
    if run.fused:
        columns = [
            Column("module", "module"),
            Column("fuses", "fuses"),
            Column("calls", "count", calls),
            Column("ms", "ns", ms),
            Column("GB/s, at least", "byte_per_s", lambda rate: f"{rate / 1e9:,.0f}"),
        ]
        title = f"Kernels that torch.compile made in {run.name}, each a step"
        yield Part(title, columns, [*map(Row, run.fused)], level=VERBOSE)


def _products_sentence(run: Traced) -> Iterator[str]:
    """How far they use the card, where it is known."""
    if reached := reach(run.products):
        proved, of_card = reached
        known = all(product.floor_s is not None for product in run.products)
        who = "they" if known else "those whose limit is known"
        by = f"the rates in {run.rates}" if run.rates else "the card's datasheet"
        yield (
            "GEMMs, convolutions and attention: Tensor Cores proved by rate for "
            f"{100 * proved:.0f} % of their time; {who} reach "
            f"{100 * of_card:.0f} % of what {by} {'allow' if run.rates else 'allows'}."
        )
