"""What a run of a network's layers says: the time of a step, and how much each layer gains."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, groupby
from typing import Any

from kernels import is_library
from kernels.attention import PASSES as OF_ATTENTION
from kernels.attention import Attention
from kernels.conv import Conv
from kernels.op import OWN
from kernels.precision import PRECISIONS
from microbench import fmt
from microbench.errors import UserError
from microbench.report import cases, charts
from microbench.report.parts import VERBOSE, Column, Line, Part, Report, Row
from microbench.results.types import Json, LayerUse, NetworkUse, Ratio, Result, Run
from microbench.timing.stats import half_width_pct
from microbench.verdict import RUINED, Summary, asked_for, compared_with, gain, groups_of, summaries

PASSES = dict.fromkeys(("fprop", "dgrad", "wgrad", *OF_ATTENTION))
MOST_LAYERS = 8
DECODE = "tokens"  # the option of the command
VERDICTS = {"faster": "faster", "slower": "slower", RUINED: "without a verdict"}
UNCLEAR = "not clearly faster"
FASTER, SLOWER, SAME = "#1f77b4", "#e07b39", "#9a9a9a"


@dataclass
class MeasuredLayer:
    """A layer of the network, or all of them: the uses, a layer's by pass, and the results of each
    in a precision, by the library; of decode also by others ("triton bf16").
    """

    label: str
    count: int
    uses: dict[str, LayerUse] = field(default_factory=dict[str, LayerUse])
    results: dict[tuple[str, str], Result] = field(default_factory=dict[tuple[str, str], Result])

    def timed(self, precision: str) -> list[tuple[int, float, Result]]:
        """Of each pass how often a step runs it, its seconds in all, and its result; nothing where
        one was not measured.
        """
        passes = [
            (use.count, use.count * result.median_s, result)
            for which, use in self.uses.items()
            if (result := self.results.get((which, precision))) and result.median_s
        ]
        return passes if len(passes) == len(self.uses) else []

    def seconds(self, precision: str) -> float | None:
        """Seconds per step, all passes, in a precision; None where a pass was not measured."""
        return sum(seconds for _, seconds, _ in self.timed(precision)) or None

    def rate(self, precision: str, amount: Callable[[Result], float]) -> float | None:
        """An amount of each launch, all passes of a step, per second."""
        amounts = sum(count * amount(result) for count, _, result in self.timed(precision))
        return amounts / (self.seconds(precision) or 1.0) or None

    def bound(self, precision: str) -> str:
        """The bottleneck of most of the time."""
        by_bound: dict[str, float] = {}
        for _, seconds, result in self.timed(precision):
            bound = result.bound or ""
            by_bound[bound] = by_bound.get(bound, 0.0) + seconds
        return max(by_bound, key=lambda bound: by_bound[bound], default="")

    def ratio(self, precision: str, baseline: str, which: str | None = None) -> Ratio | None:
        """Times as fast, all passes together or one, with a 95 % interval; None where a pass was
        not measured.

        First-order propagation of error, with the passes' errors taken as independent: each
        speed-up was measured interleaved, and changes the total by its share of the time.
        """
        if which:
            return replace(self, uses={which: self.uses[which]}).ratio(precision, baseline)
        total_s, base_total_s = self.seconds(precision), self.seconds(baseline)
        if not total_s or not base_total_s:
            return None
        ratio, below, above = base_total_s / total_s, 0.0, 0.0
        passes = zip(self.timed(precision), self.timed(baseline), strict=True)
        for (_, seconds, result), (_, base_s, base) in passes:
            speedup, own = result.speedup.get(base.case.precision_name), result.measurement
            if result.case.precision_name == base.case.precision_name:
                speedup = result.vs_backend.get(base.case.backend)
            if not speedup or not speedup.ci95 or not own or not own.ci95_s:
                return Ratio(ratio, None)
            error = half_width_pct(own.median_s, own.ci95_s) / 100
            weight = (base_s - ratio * seconds) * error
            low, high = (end / speedup.ratio for end in speedup.ci95)
            below += (base_s * (1 - low)) ** 2 + weight**2
            above += (base_s * (high - 1)) ** 2 + weight**2
        return Ratio(
            ratio, (ratio - math.sqrt(below) / total_s, ratio + math.sqrt(above) / total_s)
        )


def layers_of(run: Run, network: NetworkUse) -> list[MeasuredLayer]:
    """The network's layers in order, each with its passes."""
    by_group = {group[0].case.group: group for group in groups_of(run)}
    layers: dict[tuple[object, ...], MeasuredLayer] = {}
    for use in network.layers:
        results = by_group.get(use.group, [])
        if not results:
            continue
        label, problem = _label(results[0], use), results[0].case.problem
        same = problem.shape if isinstance(problem, Conv) else tuple(sorted(problem.mnk))
        layer = layers.setdefault((label, same), MeasuredLayer(label, use.count))
        layer.uses[use.which] = use
        for result in results:
            name = result.case.precision_name
            if is_library(result.case):
                layer.results[use.which, name] = result
            elif DECODE in run.options:
                layer.results[use.which, f"{result.case.backend} {name}"] = result
    return list(layers.values())


def _label(result: Result, use: LayerUse) -> str:
    problem = result.case.problem
    if isinstance(problem, Attention):
        return f"attention {problem.setting['heads']} @{problem.size}"
    if not isinstance(problem, Conv):
        m, n, k = problem.mnk
        into, out = {"fprop": (k, n), "dgrad": (n, k)}.get(use.which, (n, m))
        return f"linear {into}>{out}"
    conv = problem.shape
    stride = f"/{conv.stride}" if conv.stride != 1 else ""
    groups = f" g{conv.groups}" if conv.groups != 1 else ""
    return f"{conv.r}x{conv.s}{stride} {conv.c}>{conv.k} @{problem.setting['image']}{groups}"


def total_of(
    layers: Sequence[MeasuredLayer], which: Callable[[MeasuredLayer], object]
) -> MeasuredLayer:
    """The layers together of which this is true; the label says if some are left out."""
    found = [layer for layer in layers if which(layer)]
    part = f" over {len(found)} of {len(layers)} layers" if len(found) < len(layers) else ""
    whole = MeasuredLayer(f"total{part}", sum(layer.count for layer in found))
    for i, layer in enumerate(found):
        whole.uses |= {f"{i} {name}": use for name, use in layer.uses.items()}
        whole.results |= {(f"{i} {n}", p): result for (n, p), result in layer.results.items()}
    return whole


# ---------------------------------------------------------------- the report


def report(run: Run, network: NetworkUse) -> Report:
    """The report of a network's layers."""
    layers = layers_of(run, network)
    others = replace(cases.library_table(by_pass(run, network), "pass"), level=VERBOSE)
    if DECODE in run.options:
        return _decode(run, network, layers, others)
    ops = {result.case.op for result in run.results}
    what = "convolutions, GEMMs and attention" if "attention" in ops else "convolutions and GEMMs"
    asked, bases = asked_for(run), compared_with(run)
    names = {name: [base for base in bases if base != name] for name in asked}
    where = f"{network.name}, batch {network.batch}"
    answer = _answer(run, layers, f"{what} of a step", names, where)
    if answer and answer[-1].label != "Do":
        answer.append(Line("Do", "halfway train measures the rest of a step"))
    answer += [Line("Doubt", text) for text in _not_measured(run, network)]
    name, base = (next(iter(one), "") for one in (asked, bases))
    longest = sorted(layers, key=lambda layer: -(layer.seconds(name) or 0.0))
    chart = partial(_chart, run, longest, name, base, f"{where}: ms of a step, all passes")
    return cases.kernel_report(run, answer, [*_tables(run, layers), others], chart)


def _answer(
    run: Run, layers: Sequence[MeasuredLayer], what: str, compared: Mapping[str, Sequence[str]],
    where: str,
) -> list[Line]:  # fmt: skip
    """How long each precision takes and how many times as fast it is as its baselines, and why."""
    texts, why, unclear = list[str](), list[str](), dict[str, float]()
    for name, baselines in compared.items():
        known: list[str] = []
        took = ""
        for baseline in baselines:
            every = total_of(layers, lambda layer, n=name, b=baseline: layer.ratio(n, b))
            ratio, total = every.ratio(name, baseline), every.seconds(name)
            if ratio is None or not total:
                continue
            if ratio.ruined_pct:
                unclear[f"{name} against {baseline}"] = ratio.ruined_pct
                continue
            took = f"{fmt.as_ms(1e3 * total)} ms{every.label.removeprefix('total')}"
            if not known:
                of = f"{name} " * (len(compared) > 1)
                why.append(f"{of}against {baseline} {_gainers(layers, name, baseline)}")
            known.append(f"{fmt.ratio(ratio)} {'as' if known else 'times as fast as'} {baseline}")
        if known:
            texts.append(f"{name}: {what} take {took}: {', '.join(known)}")
    if texts:
        texts[0] += f" ({where}, {run.device_name})"
    own = cases.library_sentences([one for one in summaries(run) if OWN in one.backend], unclear)
    lines = [Line("", text) for text in (*own, *texts)]
    lines += [Line("Why", cases.JOIN.join(why))] if why else []
    return [*lines, *cases.no_verdict(unclear, alone=not lines)]


def _gainers(layers: Sequence[MeasuredLayer], name: str, baseline: str) -> str:
    """How many layers are faster, slower, neither or not known, with the least of each."""
    found = [(layer, ratio) for layer in layers if (ratio := layer.ratio(name, baseline))]
    found.sort(key=lambda one: one[1].ratio)
    by_gain: dict[str, list[tuple[MeasuredLayer, Ratio]]] = {}
    for layer, ratio in found:
        by_gain.setdefault(VERDICTS.get(gain(None, ratio), UNCLEAR), []).append((layer, ratio))
    said: list[str] = []
    for verdict in (*VERDICTS.values(), UNCLEAR):
        if some := by_gain.get(verdict):
            show = fmt.short_ratio if verdict == "faster" else fmt.ratio
            least = "least " * (len(some) > 2)
            most = 1 if verdict == "faster" and least else 2
            named = ", ".join(f"{layer.label} {show(ratio)}" for layer, ratio in some[:most])
            of = "" if said else f" of {fmt.count(len(found), 'layer')}"
            said.append(f"{len(some)}{of} {verdict} ({least}{named})")
    return ", ".join(said)


def by_pass(run: Run, network: NetworkUse) -> list[Summary]:
    """Our convolutions, our kernels of decode, and the user's against the better library, over the
    distinct problems of each pass.
    """
    uses = {use.group: use.which for use in network.layers}
    return [
        one for one in summaries(run, lambda result: uses.get(result.case.group, ""))
        if one.rows[0].result.case.op == "conv" or OWN in one.backend or DECODE in run.options
    ]  # fmt: skip


def _not_measured(run: Run, network: NetworkUse) -> list[str]:
    """The share of a step's operations that has no case, for each reason."""
    skipped: dict[str, int] = {}
    for one in network.not_measured:
        skipped[one.reason] = skipped.get(one.reason, 0) + one.count * one.flops
    known = {result.case.group: result.flops for result in run.results}
    measured = sum(use.count * known.get(use.group, 0) for use in network.layers)
    whole = measured + sum(skipped.values())
    return [
        f"{100 * flops / whole:.1f} % of the FLOPs not measured: {reason}"
        for reason, flops in skipped.items()
    ]


def _tables(run: Run, layers: Sequence[MeasuredLayer]) -> list[Part]:
    """The total, then the layers with most of the time; for --verbose all with their passes."""
    name = next(iter(asked_for(run)), "fp16")
    baselines = [baseline for baseline in compared_with(run) if baseline != name]
    present = dict.fromkeys(r.case.precision_name for r in run.results)
    timed = [p for p in present if any(layer.seconds(p) for layer in layers)]
    total_s = sum(layer.seconds(name) or 0.0 for layer in layers)
    whole = total_of(layers, lambda layer: all(map(layer.seconds, timed)))
    rows: list[Row] = []
    longest = sorted(layers, key=lambda layer: -(layer.seconds(name) or 0.0))
    for layer in (whole, *longest):
        own_s, total = layer.seconds(name), layer is whole
        rows.append(Row({
            "layer": layer.label, "uses": layer.count, "s": {p: layer.seconds(p) for p in timed},
            "share": 100 * own_s / total_s if own_s and total_s and not total else None,
            "ratios": {b: layer.ratio(name, b) for b in baselines},
            "passes": {w: layer.ratio(name, b, w) for b in baselines[:1] for w in layer.uses},
            "bound": "" if total else layer.bound(name),
        }, style="bold" if total else ""))  # fmt: skip
    shows = [fmt.ratio, *[fmt.short_ratio] * len(baselines)]
    columns = [
        Column("layer", "layer"),
        Column(f"{name}\nms", f"s.{name}", fmt.milliseconds),
        Column("share", "share", fmt.per_cent),
        *(Column(f"{name}\nx {b}", f"ratios.{b}", show)
          for b, show in zip(baselines, shows, strict=False)),
        *(Column(f"{p}\nms", f"s.{p}", fmt.milliseconds, 2) for p in timed if p != name),
        *(Column(f"{which}\nx {b}", f"passes.{which}", fmt.short_ratio, 3)
          for b in baselines[:1] for which in PASSES if any(which in one.uses for one in layers)),
        Column("uses", "uses", drop=9), Column("bottleneck", "bound"),
    ]  # fmt: skip
    every = Part("Layers, longest first: all passes of a step", columns, rows)
    return cases.shortened(every, MOST_LAYERS)


# ---------------------------------------------------------------- decode


def _decode(run: Run, network: NetworkUse, layers: Sequence[MeasuredLayer], rivals: Part) -> Report:
    """The report of linear layers by tokens: what they reach of the memory bandwidth."""
    base, *others = dict.fromkeys(name for layer in layers for _, name in layer.results) or [""]
    by_tokens: dict[int, list[MeasuredLayer]] = {}
    for layer in layers:
        (result, *_) = layer.results.values()
        by_tokens.setdefault(result.case.problem.mnk[0], []).append(layer)
    memory = run.ceiling("memory", "datasheet") or run.ceiling("memory", "measured")
    peak = memory and memory.byte_per_s
    steps = {n: total_of(some, lambda layer: layer.seconds(base)) for n, some in by_tokens.items()}
    most = max((step.count for step in steps.values()), default=0)  # of a run that was cut
    rows: list[Json] = []
    for tokens, step in sorted(steps.items()):
        rate = step.rate(base, lambda r: r.min_bytes)
        if rate and step.count == most:
            rows.append({
                "tokens": tokens, "step": step, "s": step.seconds(base), "bound": step.bound(base),
                "rate": rate, "share": 100 * rate / peak if peak else None,
                "flops": step.rate(base, lambda r: r.flops),
                "ratios": {name: step.ratio(name, base) for name in others},
            })  # fmt: skip
    columns = [
        Column("tokens", "tokens"), Column(f"{base}\nms", "s", fmt.milliseconds),
        Column("GB/s", "rate", lambda rate: fmt.throughput(rate / 1e9)),
        Column("% of\nmemory", "share", fmt.per_cent),
        Column("TFLOP/s", "flops", lambda rate: fmt.number(rate / 1e12)),
        *(Column(name.replace(" ", "\n"), f"ratios.{name}", fmt.short_ratio) for name in others),
        Column("bottleneck", "bound", drop=6),
    ]  # fmt: skip
    title = f"All linear layers of a step; other precisions: times as fast as {base}"
    whole = Part(title, columns, list(map(Row, rows)))
    answer = _answer_of_decode(run, network, base, rows, by_tokens) if rows else []
    drawn = [replace(row["step"], label=fmt.count(row["tokens"], "token"), count=1) for row in rows]
    name = next((name for name in others if name in PRECISIONS), base)
    chart = partial(_chart, run, drawn, name, base, f"{network.name}: ms of all linear layers")
    return cases.kernel_report(run, answer, [whole, _by_layer(layers, base), rivals], chart)


def _answer_of_decode(
    run: Run, network: NetworkUse, base: str, rows: Sequence[Json],
    by_tokens: Mapping[int, Sequence[MeasuredLayer]],
) -> list[Line]:  # fmt: skip
    """Of the fewest tokens; the table has the others."""
    first = rows[0]
    step, tokens, base_s = first["step"], first["tokens"], first["s"]
    library = next(r.case.backend for (_, name), r in step.results.items() if name == base)
    source = "the datasheet" if run.ceiling("memory", "datasheet") else "a copy"
    share = f", {first['share']:.0f} % of {source}'s bandwidth" if first["share"] else ""
    text = f"{library} {base}: the linear layers of a step of {fmt.count(tokens, 'token')} take "
    text += f"{fmt.as_ms(1e3 * base_s)} ms{step.label.removeprefix('total')}"
    text += f": {fmt.bandwidth(first['rate'])}{share} ({network.name}, {run.device_name})"
    lines = [Line("", text)]
    known, unclear = list[str](), dict[str, float]()
    for name, ratio in first["ratios"].items():
        shown = f"{library} {name}" if name in PRECISIONS else name
        if ratio and ratio.ruined_pct:
            unclear[shown] = ratio.ruined_pct
        elif ratio:
            known.append(f"{shown} {fmt.ratio(ratio)}")
    lines += [Line("", f"times as fast: {', '.join(known)}")] if known else []
    bounds = dict.fromkeys(row["bound"] for row in rows if row["bound"])
    why = [
        f"{bound} at {_spans([row['tokens'] for row in rows if row['bound'] == bound], by_tokens)}"
        + " tokens" * (not i) for i, bound in enumerate(bounds)
    ]  # fmt: skip
    why = [", ".join(why)] if why else []
    why += [f"{name}: {gainers}" for name in first["ratios"] if name in PRECISIONS
            and (gainers := _gainers(by_tokens[tokens], name, base))]  # fmt: skip
    lines += [Line("Why", cases.JOIN.join(why))] if why else []
    doubts = ["attention over the KV cache is not measured"]
    floors = [c.seconds for c in run.ceilings if c.name == "latency floor" and c.seconds]
    cast = {
        name: base_s / (own_s + min(floors, default=0.0) * step.count) for name in first["ratios"]
        if PRECISIONS[name.split()[-1]].is_float8 and (own_s := step.seconds(name))
    }  # fmt: skip
    if cast:
        gains = ", ".join(f"{name} {fmt.times(times)}" for name, times in cast.items())
        more = f" (with a launch more a layer: {gains})" * bool(floors)
        doubts.append(f"FP8 inputs are cast before{more}")
    if run.device.get("kind") == "cpu":
        doubts.append("a CPU says nothing of decode on a GPU")
    return [*lines, *cases.no_verdict(unclear, alone=False), Line("Doubt", cases.JOIN.join(doubts))]


def _by_layer(layers: Sequence[MeasuredLayer], base: str) -> Part:
    """Where memory limits a layer, and where the library splits K."""
    rows: list[Row] = []
    for label in dict.fromkeys(layer.label for layer in layers):
        some = [layer for layer in layers if layer.label == label]
        results = [result for layer in some for _, _, result in layer.timed(base)]
        tokens = [result.case.problem.mnk[0] for result in results]
        marks = {
            "memory": [result.bound == "memory" for result in results],
            "split": [any("splitk" in n.lower() for n in result.kernels) for result in results],
        }
        spans = {name: _spans([*compress(tokens, of)], tokens) for name, of in marks.items()}
        rows.append(Row({"layer": label, "uses": some[0].count, **spans}))
    columns = [
        Column("layer", "layer"), Column("uses", "uses"),
        Column("memory-bound\nat tokens", "memory"), Column("the library\nsplits K at", "split"),
    ]  # fmt: skip
    return Part(f"Each layer in {base}", columns, rows, level=VERBOSE)


def _spans(tokens: Collection[int], measured: Collection[int]) -> str:
    """ "1..32, 128" of the numbers that were measured."""
    runs = groupby(sorted(measured), lambda one: one in tokens)
    spans = [list(some) for inside, some in runs if inside]
    return ", ".join("..".join(dict.fromkeys(map(str, (one[0], one[-1])))) for one in spans)


# ---------------------------------------------------------------- the chart


def _chart(run: Run, layers: Sequence[MeasuredLayer], name: str, baseline: str, what: str) -> Any:
    """A bar a layer over that of the baseline. UserError where none was measured."""
    rows: list[Json] = []
    for layer in layers:
        ratio, own_s = layer.ratio(name, baseline), layer.seconds(name)
        if ratio and own_s:
            faster = SAME if ratio.no_difference else FASTER if ratio.ratio > 1 else SLOWER
            rows.append({
                "label": layer.label + f" x{layer.count}" * (layer.count > 1),
                "value": 1e3 * own_s, "base": 1e3 * own_s * ratio.ratio, "low": None, "high": None,
                "text": fmt.short_ratio(ratio), "colour": faster,
                "note": layer.bound(name),
            })  # fmt: skip
    if not rows:
        raise UserError("nothing to draw: the run has no layer with a baseline")
    below = [
        f"{what}; grey: {baseline}, coloured: {name}, number: times as fast",
        "blue: faster, orange: slower, dark grey: no difference seen",
    ]
    return charts.titled(charts.bars(rows, x="ms/step"), cases.title_of(run), below)
