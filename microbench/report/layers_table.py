"""The table of a network's layers: one row a layer, its passes added up, the arms side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean

from rich.text import Text

from kernels import is_library
from microbench import fmt
from microbench.report.arms import arms_of, groups_of
from microbench.report.table import Column, Row, Table
from microbench.results.types import LayerUse, NetworkUse, Result, Run

PASSES = ("fprop", "dgrad", "wgrad")
LITTLE_GAIN = 1.3  # times faster: a layer under it is named among those that gain little
MOST_NAMED = 4


@dataclass
class Layer:
    """A layer of the network: its uses by pass, and the library's results of each."""

    label: str
    count: int
    uses: dict[str, LayerUse] = field(default_factory=dict[str, LayerUse])
    results: dict[tuple[str, str], Result] = field(default_factory=dict[tuple[str, str], Result])

    def seconds(self, precision: str) -> float | None:
        """Of a step, all passes, in a precision; None when one is missing."""
        total = 0.0
        for which, use in self.uses.items():
            found = self.results.get((which, precision))
            if found is None or not found.median_s:
                return None
            total += use.count * found.median_s
        return total

    def bound(self, precision: str) -> str:
        """What limits the pass that takes longest."""
        found = [r for (_, p), r in self.results.items() if p == precision and r.median_s]
        return fmt.clean(max(found, key=lambda r: r.median_s or 0.0).bound or "") if found else ""

    def gain(self, which: str, precision: str, baseline: str) -> float | None:
        """Times faster in one pass."""
        a, b = self.results.get((which, baseline)), self.results.get((which, precision))
        return a.median_s / b.median_s if a and b and a.median_s and b.median_s else None


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
    dims = result.case.dims
    if result.case.op == "gemm":
        return label, tuple(sorted(int(size) for size in dims.values()))
    return label, tuple(value for name, value in dims.items() if name != "pass")


def _label(result: Result, use: LayerUse) -> str:
    dims = result.case.dims
    if result.case.op == "gemm":
        m, n, k = (dims[d] for d in "mnk")
        into, out = {"fprop": (k, n), "dgrad": (n, k)}.get(use.which, (n, m))
        return fmt.clean(f"linear {into}>{out}")
    stride = f"/{dims['stride']}" if dims["stride"] != 1 else ""
    groups = f" g{dims['groups']}" if dims["groups"] != 1 else ""
    taps, image = f"{dims['r']}x{dims['s']}", dims["h"]
    return fmt.clean(f"{taps}{stride} {dims['c']}>{dims['k']} @{image}{groups}")


@dataclass(frozen=True)
class Whole:
    """All layers of the network together."""

    layers: Sequence[Layer]
    label: str = "all together"

    @property
    def count(self) -> int:
        """How often layers are used in a step."""
        return sum(layer.count for layer in self.layers)

    def seconds(self, precision: str) -> float | None:
        """Of a step, in a precision; None when that of a layer is missing."""
        parts = [layer.seconds(precision) for layer in self.layers]
        return sum(part for part in parts if part) if all(parts) else None


def layers_table(run: Run, network: NetworkUse) -> Table[Layer | Whole]:
    """A row a layer, and the sum of all."""
    layers = layers_of(run, network)
    table = Table(_columns(run, layers), [Row(layer) for layer in layers])
    table.block("", [Row(Whole(layers), style="bold")])
    return table


def _columns(run: Run, layers: Sequence[Layer]) -> list[Column[Layer | Whole]]:
    arms = arms_of(run)
    name = arms.asked[0] if arms.asked else "fp16"
    others = [p for p in dict.fromkeys(r.case.precision_name for r in run.results) if p != name]
    hardest = arms.baselines[-1] if arms.baselines else ""  # to beat
    total_s = sum(layer.seconds(name) or 0.0 for layer in layers)
    return [
        Column("layer", lambda row: row.label, bold=True, key=True),
        Column("times", lambda row: str(row.count), right=True, drop=5),
        *(Column(f"{p}\nms", _ms(p), right=True, drop=2) for p in others),
        Column(f"{name}\nms", _ms(name), right=True),
        Column("share", _share(name, total_s), right=True),
        *(Column(f"{name}\nx {b}", _times(name, b), right=True) for b in arms.baselines),
        *(Column(f"{which}\nx {hardest}", _pass_gain(which, name, hardest), right=True, drop=3)
          for which in PASSES if hardest),
        Column("bottleneck", lambda row: row.bound(name) if isinstance(row, Layer) else "",
               drop=6),
    ]  # fmt: skip


def _ms(precision: str) -> Callable[[Layer | Whole], str]:
    return lambda row: fmt.number(1e3 * s) if (s := row.seconds(precision)) else "-"


def _share(name: str, total_s: float) -> Callable[[Layer | Whole], str]:
    def cell(row: Layer | Whole) -> str:
        own_s = row.seconds(name) if isinstance(row, Layer) else None
        return fmt.per_cent(100 * own_s / total_s) if own_s and total_s else ""

    return cell


def _times(name: str, baseline: str) -> Callable[[Layer | Whole], str]:
    def cell(row: Layer | Whole) -> str:
        base_s, own_s = row.seconds(baseline), row.seconds(name)
        return f"{base_s / own_s:.2f}" if base_s and own_s else "-"

    return cell


def _pass_gain(which: str, name: str, baseline: str) -> Callable[[Layer | Whole], str]:
    def cell(row: Layer | Whole) -> str:
        if isinstance(row, Whole):
            return ""
        found = row.gain(which, name, baseline)
        return f"{found:.2f}" if found else "-"

    return cell


def layers_summary(run: Run, network: NetworkUse) -> list[Text]:
    """Which layers gain, which lose, what share of the time each kind has; back ends compared."""
    arms, layers = arms_of(run), layers_of(run, network)
    lines: list[Text] = []
    for name in arms.asked:
        for baseline in arms.baselines:
            if name != baseline:
                lines += _gainers(layers, name, baseline)
    lines += [Text(line) for line in against_library(run, network)]
    skipped = sum(s.count * s.flops for s in network.not_measured)
    measured = sum(use.count * run.by_group_flops.get(use.group, 0) for use in network.layers)
    if skipped:
        share = 100 * skipped / (skipped + measured) if measured else 100.0
        reasons = list(dict.fromkeys(fmt.clean(s.reason) for s in network.not_measured))
        lines.append(Text(f"Not measured: {share:.1f} % of the FLOPs ({fmt.listed(reasons)})."))
    return lines


def _gainers(layers: Sequence[Layer], name: str, baseline: str) -> list[Text]:
    timed = [
        (layer, base / own, own)
        for layer in layers
        if (own := layer.seconds(name)) and (base := layer.seconds(baseline))
    ]
    if not timed:
        return []
    total = sum(own for *_, own in timed)
    base_total = sum(gain * own for _, gain, own in timed)
    part = "" if len(timed) == len(layers) else f" ({len(timed)} of {len(layers)} layers)"
    lines = [Text(f"{name} against {baseline}: the convolutions and GEMMs of a step{part} take "
                  f"{1e3 * total:.1f} ms instead of {1e3 * base_total:.1f}, "
                  f"{_faster(base_total / total)}.", "bold")]  # fmt: skip
    kinds: Mapping[str, list[tuple[Layer, float, float]]] = {
        "lose": [row for row in timed if row[1] < 1],
        f"gain less than {LITTLE_GAIN}": [row for row in timed if 1 <= row[1] < LITTLE_GAIN],
    }
    for kind, rows in kinds.items():
        if rows:
            rows = sorted(rows, key=lambda row: -row[2])
            share = 100 * sum(own for *_, own in rows) / total
            named = ", ".join(f"{layer.label} ({gain:.2f})" for layer, gain, _ in rows[:MOST_NAMED])
            more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
            lines.append(Text(f"  {len(rows)} of {len(timed)} layers {kind}, with {share:.0f} % of "
                              f"the {name} time: {named}{more}."))  # fmt: skip
    return lines


def _faster(gain: float) -> str:
    return f"{gain:.2f} times faster" if gain >= 1 else f"{1 / gain:.2f} times slower"


def against_library(run: Run, network: NetworkUse) -> list[str]:
    """Our kernels against the library: geometric mean over the distinct problems, by pass."""
    ratios: dict[tuple[str, str, str, str], dict[str, float]] = {}
    uses = {use.group: use.which for use in network.layers}
    for result in run.results:
        for rival, ratio in result.vs_backend.items():
            if is_library(result.case) or result.case.op != "conv":
                continue
            key = (result.case.backend, rival, result.case.precision_name,
                   uses.get(result.case.group, ""))  # fmt: skip
            ratios.setdefault(key, {})[result.case.group] = ratio.ratio
    return [
        f"{ours} against {rival}, {precision} {which}: {geometric_mean(found.values()):.3f} "
        f"(geometric mean of {len(found)} distinct layers), lowest {min(found.values()):.2f}, "
        f"highest {max(found.values()):.2f}."
        for (ours, rival, precision, which), found in ratios.items()
    ]
