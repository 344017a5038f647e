"""What a run of a network's layers says: the time of a step, and how much each layer gains.

The speed-up of several passes has a 95 % interval, see `total_ratio`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, takewhile
from typing import Any

from kernels import is_library
from kernels.attention import PASSES as OF_ATTENTION
from kernels.attention import Attention
from kernels.conv import Conv
from kernels.gemm.triton.config import SPLIT_K
from kernels.op import OWN
from kernels.precision import PRECISIONS
from microbench import fmt
from microbench.errors import UserError
from microbench.report import charts
from microbench.report.cases import beside, made, no_verdict, rivals, title_of
from microbench.report.parts import VERBOSE, Column, Line, Part, Report, Row
from microbench.results.types import Json, LayerUse, NetworkUse, Ratio, Result, Run
from microbench.roofline.limits import limits_for
from microbench.timing.stats import half_width_pct
from microbench.verdict import MIN_GAIN, Summary, groups_of, precisions_of, summaries
from microbench.verdict import beside as beside_library

PASSES = dict.fromkeys(("fprop", "dgrad", "wgrad", *OF_ATTENTION))
MOST_LAYERS = 8
DECODE, FORWARD = "tokens", "fprop"  # an option of the command; the only pass of decode
FASTER, SLOWER, SAME = "#1f77b4", "#e07b39", "#9a9a9a"


@dataclass(frozen=True)
class Pass:
    """One pass of a layer in two precisions: seconds per step, and relative errors.

    Errors are fractions. `ratio_errors` are the lower and the upper side of the speed-up's interval
    (95 %) over the speed-up; None where only one round was measured.
    """

    own_s: float
    base_s: float
    own_error: float = 0.0
    ratio_errors: tuple[float, float] | None = None


def total_ratio(passes: Sequence[Pass]) -> Ratio | None:
    """How many times as fast all passes together are, with a 95 % interval; None without passes.

    First-order propagation of error, with the passes' errors taken as independent: each speed-up
    was measured interleaved, and changes the total by its share of the time.
    """
    own_s = sum(one.own_s for one in passes)
    if not own_s:
        return None
    ratio = sum(one.base_s for one in passes) / own_s
    below, above = 0.0, 0.0
    for one in passes:
        if one.ratio_errors is None:
            return Ratio(ratio, None)
        weight = (one.base_s - ratio * one.own_s) * one.own_error
        below += (one.base_s * one.ratio_errors[0]) ** 2 + weight**2
        above += (one.base_s * one.ratio_errors[1]) ** 2 + weight**2
    return Ratio(ratio, (ratio - math.sqrt(below) / own_s, ratio + math.sqrt(above) / own_s))


@dataclass
class Layer:
    """A layer of the network, or all of them: the uses, a layer's by pass, and the library's
    results of each.
    """

    label: str
    count: int
    uses: dict[str, LayerUse] = field(default_factory=dict[str, LayerUse])
    results: dict[tuple[str, str], Result] = field(default_factory=dict[tuple[str, str], Result])

    @property
    def tokens(self) -> int:
        """Of decode: the rows of the forward product."""
        (result, *_) = self.results.values()
        return result.case.problem.mnk[0]

    def summed(self, precision: str, figure: Callable[[Result], float | None]) -> float:
        """A figure of one launch, over all uses in a step; what is not known counts as 0."""
        found = [(use.count, self.results.get((which, precision)))
                 for which, use in self.uses.items()]  # fmt: skip
        return sum(count * (figure(result) or 0.0) for count, result in found if result)

    def seconds(self, precision: str) -> float | None:
        """Seconds per step, all passes, in a precision; None where a pass was not measured."""
        times = [
            use.count * (found.median_s or 0.0)
            for which, use in self.uses.items()
            if (found := self.results.get((which, precision)))
        ]
        return sum(times) if len(times) == len(self.uses) and all(times) else None

    def bound(self, precision: str) -> str:
        """The bottleneck of the pass that takes longest."""
        found = [r for (_, p), r in self.results.items() if p == precision and r.median_s]
        return max(found, key=lambda r: r.median_s or 0.0).bound or "" if found else ""

    def ratio(self, precision: str, baseline: str, which: str | None = None) -> Ratio | None:
        """Times as fast, all passes together or one; None where a pass was not measured."""
        found = [self._pass(one, precision, baseline) for one in ([which] if which else self.uses)]
        return total_ratio([one for one in found if one]) if all(found) else None

    def _pass(self, which: str, precision: str, baseline: str) -> Pass | None:
        a, b = self.results.get((which, baseline)), self.results.get((which, precision))
        if not a or not b or not a.median_s or not b.median_s or not b.measurement:
            return None
        count, speedup, own = self.uses[which].count, b.speedup.get(baseline), b.measurement.ci95_s
        errors = None
        if speedup and speedup.ci95 and own:
            low, high = speedup.ci95
            errors = (speedup.ratio - low) / speedup.ratio, (high - speedup.ratio) / speedup.ratio
        error = half_width_pct(b.median_s, own) / 100 if own else 0.0
        return Pass(count * b.median_s, count * a.median_s, error, errors)


def layers_of(run: Run, network: NetworkUse) -> list[Layer]:
    """The network's layers in order, each with its passes."""
    by_group = {group[0].case.group: group for group in groups_of(run)}
    layers: dict[tuple[object, ...], Layer] = {}
    for use in network.layers:
        results = by_group.get(use.group, [])
        if not results:
            continue
        label, problem = _label(results[0], use), results[0].case.problem
        same = problem.shape if isinstance(problem, Conv) else tuple(sorted(problem.mnk))
        layer = layers.setdefault((label, same), Layer(label, use.count))
        layer.uses[use.which] = use
        for result in sorted(results, key=_preferred):
            if is_library(result.case) or DECODE in run.options:
                layer.results[use.which, result.case.precision_name] = result
    return list(layers.values())


def _preferred(result: Result) -> tuple[bool, bool, float]:
    """Sorts what stands for a precision last: the library's if measured, else the fastest."""
    return bool(result.median_s), is_library(result.case), -(result.median_s or 0.0)


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


def total_of(layers: Sequence[Layer], which: Callable[[Layer], object]) -> Layer:
    """The layers together of which this is true; the label says if some are left out."""
    found = [layer for layer in layers if which(layer)]
    part = f" over {len(found)} of {len(layers)} layers" if len(found) < len(layers) else ""
    whole = Layer(f"total{part}", sum(layer.count for layer in found))
    for i, layer in enumerate(found):
        whole.uses |= {f"{i} {name}": use for name, use in layer.uses.items()}
        whole.results |= {(f"{i} {n}", p): result for (n, p), result in layer.results.items()}
    return whole


# ---------------------------------------------------------------- the report


def report(run: Run, network: NetworkUse) -> Report:
    """The report of a network's layers."""
    layers = layers_of(run, network)
    if DECODE in run.options:
        return _decode(run, network, layers)
    others = replace(rivals(by_pass(run, network), "pass"), level=VERBOSE)
    return made(run, _answer(run, network, layers), [*_tables(run, layers), others],
                partial(_chart, run, network, layers))  # fmt: skip


def _answer(run: Run, network: NetworkUse, layers: Sequence[Layer]) -> list[Line]:
    ops = {result.case.op for result in run.results}
    what = "convolutions, GEMMs and attention" if "attention" in ops else "convolutions and GEMMs"
    said: list[str] = []
    why: list[str] = []
    unclear: dict[str, float] = {}
    for name in precisions_of(run).asked:
        known: list[str] = []
        took = ""
        for baseline in reversed(precisions_of(run).baselines):
            every = total_of(layers, lambda layer, n=name, b=baseline: layer.ratio(n, b))
            ratio, total = every.ratio(name, baseline), every.seconds(name)
            if name == baseline or ratio is None or not total:
                continue
            if ratio.ruined_pct:
                unclear[f"{name} against {baseline}"] = ratio.ruined_pct
                continue
            took = f"{fmt.as_ms(1e3 * total)} ms{every.label.removeprefix('total')}"
            why += [] if known else [f"against {baseline} {_gainers(layers, name, baseline)}"]
            known.append(f"{fmt.ratio(ratio)} {'as' if known else 'times as fast as'} {baseline}")
        if known:
            said.append(f"{name}: {what} of a step take {took}: {', '.join(known)}")
    if said:
        device = run.device.get("name") or "unknown device"
        said[0] += f" ({network.name}, batch {network.batch}, {device})"
    own = beside([one for one in summaries(run) if OWN in one.backend], unclear)
    lines = [Line("", text) for text in (*own, *said)]
    lines += [Line("Why", "; ".join(why))] if why else []
    lines += no_verdict(unclear, alone=not lines)
    lines += [Line("Do", "halfway train measures the rest of a step")] if said else []
    return [*lines, *(Line("Doubt", text) for text in _not_measured(run, network))]


def _gainers(layers: Sequence[Layer], name: str, baseline: str) -> str:
    """How many layers are faster, slower, neither or not known, with the least of each."""
    found = [(layer, ratio) for layer in layers if (ratio := layer.ratio(name, baseline))]
    found.sort(key=lambda one: one[1].ratio)
    by_gain: dict[str, list[tuple[Layer, Ratio]]] = {}
    for layer, ratio in found:
        low, high = ratio.ci95 or (0.0, math.inf)
        verdict = "not clearly faster"
        if ratio.ruined_pct:
            verdict = "without a verdict"
        elif low > MIN_GAIN:
            verdict = "faster"
        elif high < 1 / MIN_GAIN:
            verdict = "slower"
        by_gain.setdefault(verdict, []).append((layer, ratio))
    said: list[str] = []
    for verdict in ("faster", "slower", "not clearly faster", "without a verdict"):
        if some := by_gain.get(verdict):
            show = fmt.short_ratio if verdict == "faster" else fmt.ratio
            named = ", ".join(f"{layer.label} {show(ratio)}" for layer, ratio in some[:2])
            of = "" if said else f" of {fmt.count(len(found), 'layer')}"
            least = "least " * (len(some) > 2)
            said.append(f"{len(some)}{of} {verdict} ({least}{named})")
    return ", ".join(said)


def by_pass(run: Run, network: NetworkUse) -> list[Summary]:
    """Our convolutions and the user's kernels against the better library, over the distinct
    problems of each pass.
    """
    uses = {use.group: use.which for use in network.layers}
    return [
        one for one in summaries(run, lambda result: uses.get(result.case.group, ""))
        if one.rows[0].result.case.op == "conv" or OWN in one.backend
    ]  # fmt: skip


def _not_measured(run: Run, network: NetworkUse) -> list[str]:
    """The share of a step's operations that has no case, for each reason."""
    skipped: dict[str, int] = {}
    for one in network.not_measured:
        skipped[one.reason] = skipped.get(one.reason, 0) + one.count * one.flops
    measured = sum(use.count * run.by_group_flops.get(use.group, 0) for use in network.layers)
    whole = measured + sum(skipped.values())
    return [
        f"{100 * flops / whole:.1f} % of the FLOPs not measured: {reason}"
        for reason, flops in skipped.items()
    ]


def _tables(run: Run, layers: Sequence[Layer]) -> list[Part]:
    """The layers with most of the time for the screen; all of them with their passes."""
    compared = precisions_of(run)
    name = compared.asked[0] if compared.asked else "fp16"
    baselines = [baseline for baseline in reversed(compared.baselines) if baseline != name]
    present = dict.fromkeys(r.case.precision_name for r in run.results)
    timed = [p for p in present if any(layer.seconds(p) for layer in layers)]
    total_s = sum(layer.seconds(name) or 0.0 for layer in layers)
    whole = total_of(layers, lambda layer: all(map(layer.seconds, timed)))
    rows: list[Row] = []
    for layer in (*layers, whole):
        own_s, last = layer.seconds(name), layer is whole
        rows.append(Row({
            "layer": layer.label, "uses": layer.count, "s": {p: layer.seconds(p) for p in timed},
            "share": 100 * own_s / total_s if own_s and total_s and not last else None,
            "ratios": {b: layer.ratio(name, b) for b in baselines},
            "passes": {w: layer.ratio(name, b, w) for b in baselines[:1] for w in layer.uses},
            "bound": "" if last else layer.bound(name),
        }, style="bold" if last else ""))  # fmt: skip
    shows = [fmt.ratio, *[fmt.short_ratio] * len(baselines)]
    first = [
        Column("layer", "layer"),
        Column(f"{name}\nms", f"s.{name}", fmt.milliseconds),
        Column("share", "share", fmt.per_cent),
        *(Column(f"{name}\nx {b}", f"ratios.{b}", show)
          for b, show in zip(baselines, shows, strict=False)),
    ]  # fmt: skip
    last = Column("bottleneck", "bound", drop=6)
    more = [
        *(Column(f"{p}\nms", f"s.{p}", fmt.milliseconds, 2) for p in timed if p != name),
        *(Column(f"{which}\nx {b}", f"passes.{which}", fmt.short_ratio, 3)
          for b in baselines[:1] for which in PASSES if any(which in one.uses for one in layers)),
        Column("uses", "uses", drop=9),
    ]  # fmt: skip
    longest = sorted(rows[:-1], key=lambda row: -(row.item["share"] or 0.0))[:MOST_LAYERS]
    title = f"The {len(longest)} of {fmt.count(len(layers), 'layer')} with most of the time"
    every = Part("Every layer: all passes of a step", [*first, *more, last], rows, level=VERBOSE)
    return [Part(title, [*first, last], longest), every]


# ---------------------------------------------------------------- decode


def _decode(run: Run, network: NetworkUse, layers: Sequence[Layer]) -> Report:
    """The report of linear layers by tokens: what they reach of the memory bandwidth."""
    base, *others = dict.fromkeys(r.case.precision_name for r in run.results) or [""]
    by_tokens: dict[int, list[Layer]] = {}
    for layer in layers:
        by_tokens.setdefault(layer.tokens, []).append(layer)
    steps = {n: total_of(some, lambda layer: layer.seconds(base)) for n, some in by_tokens.items()}
    memory = run.ceiling("memory", "datasheet") or run.ceiling("memory", "measured")
    rows: list[Json] = []
    for tokens, step in sorted(steps.items()):
        if not (seconds := step.seconds(base)):
            continue
        rate = step.summed(base, lambda r: r.min_bytes) / seconds
        bounds = Counter[str]()
        for layer in by_tokens[tokens]:
            bounds[layer.bound(base)] += round(1e9 * (layer.seconds(base) or 0.0))
        rows.append({
            "tokens": tokens, "s": seconds, "rate": rate, "bound": bounds.most_common(1)[0][0],
            "share": 100 * rate / memory.byte_per_s if memory and memory.byte_per_s else None,
            "flops": step.summed(base, lambda r: r.flops) / seconds,
            "ratios": {name: step.ratio(name, base) for name in others}, "step": step,
        })  # fmt: skip
    columns = [
        Column("tokens", "tokens"), Column(f"{base}\nms", "s", fmt.milliseconds),
        Column("GB/s", "rate", lambda rate: f"{rate / 1e9:,.0f}"),
        Column("% of\nmemory", "share", fmt.per_cent),
        Column("TFLOP/s", "flops", lambda rate: fmt.number(rate / 1e12)),
        *(Column(f"{name}\nx {base}", f"ratios.{name}",
                 fmt.ratio if name == others[0] else fmt.short_ratio) for name in others),
        Column("bottleneck", "bound", drop=6),
    ]  # fmt: skip
    tables = [
        Part("All linear layers of a step", columns, list(map(Row, rows))),
        _by_layer(run, layers, base),
    ]
    answer = _of_decode(run, network, base, rows, tables[1])
    return made(run, answer, tables, partial(_decode_chart, run, network, base, rows))


def _of_decode(
    run: Run, network: NetworkUse, base: str, rows: Sequence[Json], by_layer: Part
) -> list[Line]:
    if not rows:
        return [Line("", f"No linear layer was measured in {base} at any number of tokens")]
    first, unclear = rows[0], dict[str, float]()
    device = run.device.get("name") or "unknown device"
    source = "datasheet" if run.ceiling("memory", "datasheet") else "a copy"
    share = f", {first['share']:.0f} % of the bandwidth ({source})" if first["share"] else ""
    said = [
        f"{base}: the linear layers of a step of {fmt.count(first['tokens'], 'token')} take "
        f"{fmt.as_ms(1e3 * first['s'])} ms: {fmt.bandwidth(first['rate'])}{share}; "
        f"{_end(run, base, rows)} ({network.name}, {device})"
    ]
    floor_s = min(
        (c.seconds for c in run.ceilings if c.name == "latency floor" and c.seconds), default=None
    )
    for name in first["ratios"]:
        found = [(row, ratio) for row in rows if (ratio := row["ratios"][name])]
        known = [(row, ratio) for row, ratio in found if not ratio.ruined_pct]
        if len(known) < len(found):
            unclear[name] = max(ratio.ruined_pct for _, ratio in found)
        if not known:
            continue
        (row, ratio), *_, (last, least) = (*known, known[-1])
        times = f"{fmt.ratio(ratio)} times as fast as {base} at {row['tokens']}"
        times += f", {fmt.ratio(least)} at {last['tokens']}" * (last is not row)
        faster = list(takewhile(lambda one: _gains(one[1]), known))
        if 0 < len(faster) < len(known):
            times += f" (faster up to {faster[-1][0]['tokens']})"
        if PRECISIONS[name].is_float8 and floor_s:
            cast_s = floor_s * sum(use.count for use in row["step"].uses.values())
            slower = row["s"] / (row["s"] / ratio.ratio + cast_s)
            times += f"; {fmt.times(slower)} with a launch more to cast the input of each layer"
        said.append(f"{name}: {times}")
    own = beside([one for one in summaries(run) if OWN in one.backend], unclear)
    lines = [Line("", text) for text in (*own, *said)]
    split = [row.item for row in by_layer.rows if row.item["split"]]
    if split:
        named = [f"{one['layer']} at tokens {one['split']} (up to {fmt.times(one['most'])} times)"
                 for one in sorted(split, key=lambda one: -one["most"])[:2]]  # fmt: skip
        of = f"{len(split)} of {fmt.count(len(by_layer.rows), 'layer')}"
        gains = f"our split-K is faster than the library in {of}: {', '.join(named)}"
        lines.append(Line("Why", gains))
    doubt = "attention over the KV cache is not measured"
    if any(PRECISIONS[name].is_float8 for name in first["ratios"]):
        doubt += "; FP8 inputs are cast before the time begins"
    if run.device.get("kind") == "cpu":
        doubt += "; a CPU says nothing of decode on a GPU"
    return [*lines, *no_verdict(unclear, alone=False), Line("Doubt", doubt)]


def _gains(ratio: Ratio) -> bool:
    """Whether the whole interval is above MIN_GAIN."""
    return (ratio.ci95 or (0.0,))[0] > MIN_GAIN and not ratio.ruined_pct


def _end(run: Run, precision: str, rows: Sequence[Json]) -> str:
    """From how many tokens on arithmetic takes longer than memory traffic, each at its peak."""

    def limit(row: Json, name: str) -> float:
        step: Layer = row["step"]
        return step.summed(precision, lambda r: getattr(limits_for(r, run), name))

    bound = [row["tokens"] for row in rows if limit(row, "compute_s") > limit(row, "memory_s")]
    return f"compute-bound from {bound[0]}" if bound else f"memory-bound to {rows[-1]['tokens']}"


def _by_layer(run: Run, layers: Sequence[Layer], base: str) -> Part:
    """A row a layer: where our split-K gains over the library, and where the library splits K."""
    ours = {r.case.group: r for r in run.results if r.case.precision_name == base
            and (r.variant or "").startswith(SPLIT_K) and "/k" in (r.variant or "")}  # fmt: skip
    by_label: dict[str, list[Layer]] = {}
    for layer in layers:
        by_label.setdefault(layer.label, []).append(layer)
    rows: list[Row] = []
    for label, some in by_label.items():
        gains: dict[int, float] = {}
        splits: list[int] = []
        for layer in some:
            result = layer.results.get((FORWARD, base))
            rival = ours.get(result.case.group) if result else None
            found = beside_library(rival) if rival else None
            if found and _gains(found.ratio):
                gains[layer.tokens] = found.ratio.ratio
            if result and any("splitk" in name.lower() for name in result.kernels):
                splits.append(layer.tokens)
        rows.append(Row({
            "layer": label, "uses": some[0].count, "split": _spans(gains, some),
            "most": max(gains.values(), default=None), "library": _spans(splits, some),
            "end": _end(run, base, [{"tokens": one.tokens, "step": one} for one in some]),
        }))  # fmt: skip
    columns = [
        Column("layer", "layer"),
        Column("uses", "uses"),
        Column("our split-K is\nfaster at tokens", "split"),
        Column("at most\ntimes", "most", fmt.times),
        Column("the library\nsplits K at", "library"),
        Column("at peak rates", "end"),
    ]
    return Part(f"Split-K and limits, layer by layer ({base})", columns, rows, level=VERBOSE)


def _spans(tokens: Collection[int], layers: Sequence[Layer]) -> str:
    """ "1..32, 128" of the numbers that were measured."""
    measured = groupby(sorted(layer.tokens for layer in layers), lambda one: one in tokens)
    spans = [list(some) for inside, some in measured if inside]
    return ", ".join("..".join(dict.fromkeys(map(str, (one[0], one[-1])))) for one in spans)


def _decode_chart(run: Run, network: NetworkUse, base: str, rows: Sequence[Json]) -> Any:
    """Bytes per second of all linear layers against tokens, a curve a precision."""
    found: list[Json] = []
    for row in rows:
        step: Layer = row["step"]
        for name in (base, *row["ratios"]):
            if seconds := step.seconds(name):
                rate = step.summed(name, lambda r: r.min_bytes) / seconds
                found.append({"panel": "", "series": name, "x": row["tokens"], "y": rate / 1e9,
                              "low": None, "high": None, "note": row["bound"]})  # fmt: skip
    if not found:
        raise UserError("nothing to draw: no linear layer was measured")
    memory = run.ceiling("memory", "datasheet")
    peak = memory and memory.byte_per_s
    rules = [{"series": base, "y": peak / 1e9, "text": "datasheet"}] if peak else []
    drawn = charts.lines(found, x="tokens", y="GB/s", log=False, rules=rules)
    return charts.titled(drawn, title_of(run), [f"{network.name}: all linear layers of a step"])


# ---------------------------------------------------------------- the chart


def _chart(run: Run, network: NetworkUse, layers: Sequence[Layer]) -> Any:
    """A bar a layer over that of the baseline, the longest first. UserError: none was measured."""
    compared = precisions_of(run)
    name, baseline = (
        names[0] if names else "" for names in (compared.asked, compared.baselines[::-1])
    )
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
    rows.sort(key=lambda row: -row["value"])
    below = [
        f"{network.name}, batch {network.batch}: ms of a step, all passes; grey: {baseline}, "
        f"coloured: {name}, number: times as fast",
        "blue: faster, orange: slower, dark grey: no difference seen",
    ]
    return charts.titled(charts.bars(rows, x="ms/step"), title_of(run), below)
