"""The table of a network's layers: a row per layer, its passes summed, precisions side by side.

Every ratio has a 95 % interval, see `total_ratio`; "~1" is a ratio whose interval contains 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from kernels import is_library
from kernels.conv import Conv
from kernels.op import OWN
from microbench import fmt
from microbench.report.table import Column, Row, Table
from microbench.results.types import RUINED_PCT, LayerUse, NetworkUse, Ratio, Result, Run
from microbench.timing.stats import half_width_pct
from microbench.verdict import arms_of, groups_of, summaries, uncertain

PASSES = ("fprop", "dgrad", "wgrad")
LITTLE_GAIN = 1.3  # times faster: a layer under it is named among those that gain little
MOST_NAMED = 4


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
    """How many times faster all passes together are, with a 95 % interval; None without passes.

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
    """A layer of the network, or all of them (`total`): the uses, a layer's by pass, and the
    library's results of each.
    """

    label: str
    count: int
    uses: dict[str, LayerUse] = field(default_factory=dict[str, LayerUse])
    results: dict[tuple[str, str], Result] = field(default_factory=dict[tuple[str, str], Result])
    total: bool = False

    def seconds(self, precision: str) -> float | None:
        """Seconds per step, all passes, in a precision; None where a pass was not measured."""
        times = [
            use.count * (found.median_s or 0.0)
            for which, use in self.uses.items()
            if (found := self.results.get((which, precision)))
        ]
        return sum(times) if len(times) == len(self.uses) and all(times) else None

    def bound(self, precision: str) -> str:
        """The bottleneck of the pass that takes longest; "" for the total."""
        found = [r for (_, p), r in self.results.items() if p == precision and r.median_s]
        if not found or self.total:
            return ""
        return fmt.clean(max(found, key=lambda r: r.median_s or 0.0).bound or "")

    def ratio(self, precision: str, baseline: str, which: str | None = None) -> Ratio | None:
        """Times faster, all passes together or one; None where a pass was not measured."""
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
        label = _label(results[0], use)
        layer = layers.setdefault(_identity(results[0], label), Layer(label, use.count))
        layer.uses[use.which] = use
        for result in results:
            if is_library(result.case):
                layer.results[use.which, result.case.precision_name] = result
    return list(layers.values())


def _identity(result: Result, label: str) -> tuple[object, ...]:
    """What the passes of a layer have in common."""
    problem = result.case.problem
    return label, problem.shape if isinstance(problem, Conv) else tuple(sorted(problem.mnk))


def _label(result: Result, use: LayerUse) -> str:
    problem = result.case.problem
    if not isinstance(problem, Conv):
        m, n, k = problem.mnk
        into, out = {"fprop": (k, n), "dgrad": (n, k)}.get(use.which, (n, m))
        return fmt.clean(f"linear {into}>{out}")
    conv = problem.shape
    stride = f"/{conv.stride}" if conv.stride != 1 else ""
    groups = f" g{conv.groups}" if conv.groups != 1 else ""
    image = problem.setting["image"]
    return fmt.clean(f"{conv.r}x{conv.s}{stride} {conv.c}>{conv.k} @{image}{groups}")


def total_of(layers: Sequence[Layer], which: Callable[[Layer], object]) -> Layer:
    """The layers together of which this is true; the label says if some are left out."""
    found = [layer for layer in layers if which(layer)]
    part = f" over {len(found)} of {len(layers)} layers" if len(found) < len(layers) else ""
    whole = Layer(f"total{part}", sum(layer.count for layer in found), total=True)
    for i, layer in enumerate(found):
        whole.uses |= {f"{i} {name}": use for name, use in layer.uses.items()}
        whole.results |= {(f"{i} {n}", p): result for (n, p), result in layer.results.items()}
    return whole


def layers_table(run: Run, network: NetworkUse) -> Table[Layer]:
    """One row per layer, and the total. Times are per training step."""
    layers = layers_of(run, network)
    timed = [(p, r.median_s) for layer in layers for (_, p), r in layer.results.items()]
    precisions = list(dict.fromkeys(p for p, median_s in timed if median_s))
    table = Table(_columns(run, layers), [Row(layer) for layer in layers])
    whole = total_of(layers, lambda layer: all(map(layer.seconds, precisions)))
    table.block("", [Row(whole, style="bold")])
    return table


def _columns(run: Run, layers: Sequence[Layer]) -> list[Column[Layer]]:
    arms = arms_of(run)
    name = arms.asked[0] if arms.asked else "fp16"
    others = [p for p in dict.fromkeys(r.case.precision_name for r in run.results) if p != name]
    hardest = arms.baselines[-1] if arms.baselines else ""  # to beat
    total_s = sum(layer.seconds(name) or 0.0 for layer in layers)
    return [
        Column("layer", lambda row: row.label, bold=True, key=True),
        Column("uses", lambda row: str(row.count), right=True, drop=9),
        *(Column(f"{p}\nms", _ms(p), right=True, drop=2) for p in others),
        Column(f"{name}\nms", _ms(name), right=True),
        Column("share", _share(name, total_s), right=True),
        *(Column(f"{name}\nx {b}", _times(name, b), right=True) for b in arms.baselines),
        *(Column(f"{which}\nx {hardest}", _times(name, hardest, which), right=True, drop=3)
          for which in PASSES if hardest),
        Column("bottleneck", lambda row: row.bound(name), drop=6),
    ]  # fmt: skip


def _ms(precision: str) -> Callable[[Layer], str]:
    return lambda row: fmt.number(1e3 * s) if (s := row.seconds(precision)) else "-"


def _share(name: str, total_s: float) -> Callable[[Layer], str]:
    def cell(row: Layer) -> str:
        own_s = None if row.total else row.seconds(name)
        return fmt.per_cent(100 * own_s / total_s) if own_s and total_s else ""

    return cell


def _times(name: str, baseline: str, which: str | None = None) -> Callable[[Layer], str]:
    """The total with its interval; layers without, or the table would be too wide."""

    def cell(row: Layer) -> str:
        if which and row.total:
            return ""
        found = row.ratio(name, baseline, which)
        if found is None:
            return "-"
        return fmt.ratio(found) if row.total else fmt.short_ratio(found)

    return cell


def layers_summary(run: Run, network: NetworkUse) -> list[Text]:
    """Time and speed-up of a step; layers that gain little or nothing; back ends compared."""
    arms, layers = arms_of(run), layers_of(run, network)
    lines: list[Text] = []
    for name in arms.asked:
        for baseline in arms.baselines:
            if name != baseline:
                lines += _gainers(layers, name, baseline)
    lines += [Text(line) for line in against_library(run, network)]
    skipped: dict[str, int] = {}
    for one in network.not_measured:
        skipped[one.reason] = skipped.get(one.reason, 0) + one.count * one.flops
    measured = sum(use.count * run.by_group_flops.get(use.group, 0) for use in network.layers)
    for reason, flops in skipped.items():
        share = 100 * flops / (measured + sum(skipped.values()))
        lines.append(Text(f"Not measured: {share:.1f} % of the FLOPs ({fmt.clean(reason)})."))
    return lines


def _gainers(layers: Sequence[Layer], name: str, baseline: str) -> list[Text]:
    found = [(layer, layer.ratio(name, baseline), layer.seconds(name) or 0.0) for layer in layers]
    timed = [(layer, ratio, own_s) for layer, ratio, own_s in found if ratio]
    every = total_of(layers, lambda layer: layer.ratio(name, baseline))
    whole, total = every.ratio(name, baseline), every.seconds(name)
    if whole is None or not total:
        return []
    part = every.label.removeprefix("total ")
    title = f"{name} against {baseline}"
    own, base = fmt.as_ms(1e3 * total), fmt.as_ms(1e3 * total * whole.ratio)
    lines = [Text(f"{title}: the convolutions and GEMMs of a step take {own} ms instead of {base}, "
                  f"{_faster(whole)}{f' ({part})' * (part != every.label)}.", "bold")]  # fmt: skip
    if whole.ruined_pct:
        lines = [Text(line, "bold") for line in uncertain({title: whole.ruined_pct})]
    kinds: dict[str, list[tuple[Layer, Ratio, float]]] = {}
    for layer, ratio, own_s in timed:
        kinds.setdefault(_kind(ratio), []).append((layer, ratio, own_s))
    for kind in KINDS_NAMED:
        rows = sorted(kinds.get(kind, []), key=lambda row: -row[2])
        if rows:
            share = 100 * sum(own_s for *_, own_s in rows) / total
            named = ", ".join(
                f"{layer.label} ({fmt.short_ratio(ratio)})" for layer, ratio, _ in rows[:MOST_NAMED]
            )
            more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
            lines.append(Text(f"  {len(rows)} of {len(timed)} layers {kind}, {share:.0f} % of "
                              f"the {name} time: {named}{more}."))  # fmt: skip
    return lines


KINDS_NAMED = (
    SLOWER := "are slower",
    SAME := "show no difference",
    LITTLE := f"are less than {LITTLE_GAIN} times faster",
    DOUBTFUL := f"are too uncertain to say (beyond ±{RUINED_PCT:.0f} %)",
)


def _kind(ratio: Ratio) -> str:
    if ratio.ruined_pct:
        return DOUBTFUL
    if ratio.no_difference:
        return SAME
    return SLOWER if ratio.ratio < 1 else LITTLE if ratio.ratio < LITTLE_GAIN else ""


def _faster(gain: Ratio) -> str:
    """ "2.22 ±0.01 times faster"; how much slower as a ratio below 1."""
    if gain.no_difference:
        return f"no difference seen ({fmt.ratio(gain)})"
    text = fmt.ratio(gain) if gain.ci95 else fmt.short_ratio(gain)
    return f"{text} times {'as fast' if gain.ratio < 1 else 'faster'}"


def against_library(run: Run, network: NetworkUse) -> list[str]:
    """Our convolutions, and the user's own kernels, against the better library: the geometric mean
    over the distinct problems, by pass.
    """
    uses = {use.group: use.which for use in network.layers}
    found = summaries(run, lambda result: uses.get(result.case.group, ""))
    lines: list[str] = []
    doubt: dict[str, float] = {}
    for one in found:
        title = f"{one.backend} against {one.against}, {one.precision} {one.which}"
        if one.rows[0].result.case.op != "conv" and OWN not in one.backend:
            continue
        if one.ruined_pct:
            doubt[title] = one.ruined_pct
            continue
        lines.append(
            f"{title}: {one.mean:.3f} (geometric mean of {fmt.count(len(one.rows), 'layer')}), "
            f"lowest {one.least.ratio.ratio:.2f}, highest {one.most.ratio.ratio:.2f}"
            f"{f'; {one.not_measured}' if one.not_measured else ''}."
        )
    return [*lines, *uncertain(doubt)]
