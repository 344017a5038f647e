"""The tables of kernels: one row a result, grouped by size on the screen; one row a problem; the
summary of a long run, with the back ends side by side; a row a layer of a network.

The speed-up of several passes has a 95 % interval, see `total_ratio`; "~1" is a ratio whose
interval contains 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import geometric_mean

from rich.cells import cell_len
from rich.text import Text

from kernels import is_library
from kernels.conv import Conv
from kernels.op import OWN
from microbench import fmt
from microbench.report.table import DIM, MISSING, Column, Row, Table, Value, ends_of, measured
from microbench.results.types import (
    RUINED_PCT,
    LayerUse,
    NetworkUse,
    Ratio,
    Result,
    Run,
    settings_of,
)
from microbench.roofline.explain import conversion_share
from microbench.timing.stats import half_width_pct
from microbench.verdict import (
    BASELINES,
    Arms,
    Payoff,
    Summary,
    arms_of,
    groups_of,
    is_rival,
    libraries_beside_own,
    payoffs,
    rate_unit,
    representative,
    subject_of,
    summaries,
    uncertain,
)

WIDEST_SIZE = 11  # longer sizes are on a line of their own above the rows
SHOWN_CONVERSION = 0.02
ALWAYS_SHOWN = 6  # variants of a wide table
JOIN = "; "  # between the values of a list in CSV
DIMS = ("m", "n", "k", "c", "h", "w", "r", "s", "stride", "padding", "dilation", "groups", "pass")
# Names that have their places in CSV; new ones follow them.
CSV_ORDER = (
    "op", *DIMS, "layout", "data", "precision", "backend", "status", "reason",
    "median_s", "ci95_low_s", "ci95_high_s", "samples", "flops", "min_bytes", "tflops", "gb_per_s",
    "ceiling_pct",
    "rel_error", "bound", "why", "sm_clock_mhz", "power_w", "energy_j", "temperature_c", "throttle",
    "tensor_core", "variant", "kernels", "timer", "l2", "regime",
    *(f"speedup_{name}{end}" for name in BASELINES for end in ("", "_low", "_high")),
)  # fmt: skip

Problem = Sequence[Result]  # the results of one
Arm = tuple[str, str]  # precision, back end
Raw = dict[str, Callable[[Result], Value]]


def run_table(run: Run) -> Table[Result]:
    """The table for the screen: results grouped by size, each size named once."""
    arms, groups = arms_of(run), groups_of(run)
    titles = _titles(run, [group[0] for group in groups])
    above = any(cell_len(title) > WIDEST_SIZE for title in titles)
    if above:
        titles = _titles(run, [group[0] for group in groups], long=True)
    first = {id(group[0]): title for title, group in zip(titles, groups, strict=True)}
    table = Table(run_columns(run, {} if above else first))
    apart = above or any(len(group) > 1 for group in groups)
    for title, group in zip(titles, groups, strict=True):
        rows = [_row(result, arms) for result in group]
        if apart:
            table.block(title * above, rows)
        else:
            table.rows += rows
    return table


def plain_table(run: Run) -> Table[Result]:
    """The table in the order measured, for Markdown and CSV."""
    arms = arms_of(run)
    rows = [_row(result, arms) for result in run.results]
    return Table(run_columns(run, {}), [*rows], CSV_ORDER)


def _titles(run: Run, results: Sequence[Result], *, long: bool = False) -> list[str]:
    """The size of each, with the layout and the data where these vary."""
    size = fmt.long_size if long else fmt.size
    names = [name for name in ("layout", "data") if name in run.varying]
    return [
        " ".join([size(one.case), *(fmt.clean(settings_of(one.case)[name]) for name in names)])
        for one in results
    ]


def _row(result: Result, arms: Arms) -> Row[Result]:
    if result.status != "ok" or result.measurement is None:
        reason = fmt.clean(result.reason or "no reason given")
        sentence = f"{MISSING.get(result.status, 'not measured')}: {reason}"
        return Row(result, sentence, "red" if result.status == "failed" else DIM)
    return Row(result, style=DIM if arms.is_baseline(result) else "")


def run_columns(run: Run, sizes: Mapping[int, str]) -> list[Column[Result]]:
    """All columns. `sizes`: id of a result -> the text that its row begins with on the screen."""
    arms, unit = arms_of(run), rate_unit(run.results)

    def size(result: Result) -> str:
        return sizes.get(id(result), "")

    return [
        Column("size", size if sizes else None, right=True, bold=True, key=True,
               markdown=lambda r: fmt.problem(r.case), csv=_case()),
        Column("precision", lambda r: fmt.clean(r.case.precision_name), key=True,
               csv={"precision": attrgetter("case.precision_name")}),
        Column("back end", lambda r: fmt.clean(r.case.backend), key=True,
               csv={"backend": attrgetter("case.backend")}),
        Column("time", lambda r: fmt.duration(r.median_s or 0.0), right=True,
               csv=measured("median_s")),
        Column("±", lambda r: fmt.half_of(r.timed), right=True, drop=8,
               csv=ends_of("ci95{}_s", lambda r: r.measurement and r.measurement.ci95_s)),
        Column(unit.name, lambda r: unit.text(r.flop_per_s or 0.0), right=True,
               csv={"tflops": lambda r: _scaled(r, r.flop_per_s, 1e12)}),
        Column("% of\nceiling", lambda r: fmt.per_cent(r.ceiling_pct), right=True, drop=6,
               markdown_title="% of peak", csv=_plain("ceiling_pct")),
        *(_speedup(name, arms.baselines) for name in BASELINES),
        *map(_beside_library, libraries_beside_own(run)),
        Column("layout\nchange", markdown=conversion, right=True,
               csv={"layout_change_share": lambda r: conversion_share(r) if r.kernels_s else None}),
        Column("rel.\nerror", lambda r: fmt.error(r.total_error), right=True, drop=9,
               csv=_plain("total_error")),
        Column("bottleneck", lambda r: fmt.clean(r.bound or ""), drop=7,
               csv=_plain("bound")),
        *_raw_columns(run),
    ]  # fmt: skip


def _raw_columns(run: Run) -> list[Column[Result]]:
    """What is in CSV alone."""
    return [
        Column(csv=_plain("status", "reason", "rel_error", "why", "tensor_core", "variant")),
        Column(csv=measured("sm_clock_mhz", "power_w", "energy_j", "temperature_c", "timer", "l2",
                             "regime")),
        Column(csv={
            "samples": lambda r: len(r.measurement.times_s) if r.measurement else None,
            "flops": lambda r: r.flops if r.measurement else None,
            "min_bytes": lambda r: r.min_bytes if r.measurement else None,
            "gb_per_s": lambda r: _scaled(r, r.byte_per_s, 1e9),
            "throttle": lambda r: JOIN.join(r.measurement.throttle) if r.measurement else None,
            "kernels": lambda r: JOIN.join(r.kernels),
            "tuned": lambda r: r.tuned,
            "choice": lambda r: r.choice.how if r.choice else None,
            "candidates": lambda r: r.choice.candidates if r.choice else None,
        }),
    ]  # fmt: skip


def conversion(result: Result) -> str:
    """Share of the time that changes layouts, as "12%"; "" where it is negligible."""
    share = conversion_share(result)
    return fmt.per_cent(100 * share) if share >= SHOWN_CONVERSION else ""


def _scaled(result: Result, rate: float | None, unit: float) -> float | None:
    return (rate or 0.0) / unit if result.measurement else None


# ---------------------------------------------------------------- speed-ups


def _speedup(name: str, baselines: Sequence[str]) -> Column[Result]:
    """A baseline is compared with those before it only: the rest would repeat the same ratios
    upside down."""
    place = baselines.index(name) if name in baselines else None
    before = baselines[:place]

    def ratio(result: Result) -> Ratio | None:
        return result.speedup.get(name)

    def cell(result: Result) -> str:
        found, own = ratio(result), result.case.precision_name
        if own == name and found is None:
            return "base"
        return fmt.ratio(found) if found and own != name and own not in before else "-"

    return Column(
        f"x faster\nthan {fmt.clean(name)}", None if place is None else cell, right=True,
        drop=place or 0, markdown=lambda r: fmt.interval(found) if (found := ratio(r)) else "",
        markdown_title=f"x {name}",
        csv={f"speedup_{name}": lambda r: found.ratio if (found := ratio(r)) else None,
             **ends_of(f"speedup_{name}{{}}", lambda r: (found := ratio(r)) and found.ci95)},
    )  # fmt: skip


def _beside_library(library: str) -> Column[Result]:
    """How a back end of the user's compares with a library in the same precision."""

    def found(result: Result) -> Ratio | None:
        return result.vs_backend.get(library)

    name = f"speedup_{library}"
    return Column(
        f"x faster\nthan {library}", lambda r: fmt.ratio(ratio) if (ratio := found(r)) else "",
        right=True, markdown_title=f"x {library}",
        csv={name: lambda r: ratio.ratio if (ratio := found(r)) else None,
             **ends_of(name + "{}", lambda r: ratio.ci95 if (ratio := found(r)) else None)},
    )  # fmt: skip


# ---------------------------------------------------------------- the arms side by side


def wide_table(run: Run) -> Table[Problem]:
    """A run over several settings: a block per setting, one row per problem, variants side by side.

    For convolutions: the long table of their passes, layouts and images would take many screens.
    """
    subjects: dict[str, list[Problem]] = {}
    for group in groups_of(run):
        subjects.setdefault(subject_of(group[0], run), []).append(group)
    table = Table(_wide_columns(run))
    for subject, groups in subjects.items():
        table.block(fmt.clean(subject), map(Row, sorted(groups, key=lambda group: group[0].flops)))
    return table


def _wide_columns(run: Run) -> list[Column[Problem]]:
    found, asked = arms_of(run), arms_of(run).asked
    arms = list(dict.fromkeys((r.case.precision_name, r.case.backend) for r in run.results))
    several, unit = len({backend for _, backend in arms}) > 1, rate_unit(run.results)
    pairs = [(name, base) for name in asked for base in found.baselines if name != base]
    return [
        Column("channels\nC or CxK", lambda group: fmt.size(group[0].case), right=True, bold=True),
        *(Column(f"{arm[0]}\n{arm[1] if several else unit.name}", _rate_of(arm, unit), right=True,
                 drop=0 if i < ALWAYS_SHOWN else 3) for i, arm in enumerate(arms)),
        *(Column(f"{name}\nx {base}", _gain(name, base), right=True, drop=2 + i)
          for i, (name, base) in enumerate(pairs)),
        *_wide_beside_library(run, arms),
        Column("layout\nchange", _of_best(asked, conversion), right=True, drop=9),
        Column("rel.\nerror", _of_best(asked, lambda r: fmt.error(r.total_error)), right=True,
               drop=12),
        Column("bottleneck", _of_best(asked, lambda r: fmt.clean(r.bound or "")), drop=8),
    ]  # fmt: skip


def _rate_of(arm: Arm, unit: fmt.Unit) -> Callable[[Problem], str]:
    def cell(group: Problem) -> str:
        found = {(r.case.precision_name, r.case.backend): r for r in group}.get(arm)
        if found is None:
            return ""
        return unit.text(found.flop_per_s) if found.flop_per_s else found.status

    return cell


def _gain(name: str, baseline: str) -> Callable[[Problem], str]:
    def cell(group: Problem) -> str:
        found = representative(group, [name])
        return fmt.ratio(found.speedup[baseline]) if found and baseline in found.speedup else ""

    return cell


def _wide_beside_library(run: Run, arms: Sequence[Arm]) -> list[Column[Problem]]:
    def column(arm: Arm, library: str) -> Column[Problem]:
        def cell(group: Problem) -> str:
            found = {(r.case.precision_name, r.case.backend): r for r in group}.get(arm)
            ratio = found.vs_backend.get(library) if found else None
            return fmt.ratio(ratio) if ratio else ""

        return Column(f"{arm[0]}\nx {library}", cell, right=True)

    libraries = libraries_beside_own(run)
    return [column(arm, library) for arm in arms if OWN in arm[1] for library in libraries]


def _of_best(asked: Sequence[str], text: Callable[[Result], str]) -> Callable[[Problem], str]:
    """The text of the result that the verdict speaks of."""

    def cell(group: Problem) -> str:
        best = representative(group, asked)
        return text(best) if best else ""

    return cell


# ---------------------------------------------------------------- raw values


def _case() -> Raw:
    def dim(name: str) -> Callable[[Result], Value]:
        return lambda result: result.case.problem.dims.get(name)

    raw: Raw = {"op": attrgetter("case.op"), **{name: dim(name) for name in DIMS}}
    return raw | {"layout": attrgetter("case.problem.layout"), "data": attrgetter("case.data")}


def _plain(*names: str) -> Raw:
    return {name: attrgetter(name) for name in names}


# ---------------------------------------------------------------- summary


BETTER = "Times faster than the better of the libraries measured at each size"
MOST_BOTTLENECKS = 2
MOST_ROWS = 48  # of a run's table; with more, its screen is a summary


def is_long(run: Run) -> bool:
    """Whether the screen has the summary in place of all rows, which --verbose prints."""
    convolutions = any(result.case.op == "conv" for result in run.results)
    rows = len(groups_of(run)) if convolutions else len(run.results)
    return not run.network and rows > MOST_ROWS and bool(settings_table(run).rows)


def settings_table(run: Run) -> Table[Payoff]:
    """For each setting and baseline, where a precision is faster.

    A block for each precision asked for, or a column for them where no setting varies. Ratios are
    times faster, sizes the first number of a case.
    """
    found = {name: payoffs(run, name) for name in arms_of(run).asked}
    every = [payoff for some in found.values() for payoff in some]
    if not any(payoff.subject for payoff in every):
        precision = Column[Payoff]("precision", lambda payoff: fmt.clean(payoff.precision))
        return Table([precision, *_SETTINGS[1:]], [Row(payoff) for payoff in every])
    table = Table(_SETTINGS)
    for name, some in found.items():
        table.block(fmt.clean(name) if len(found) > 1 else "", map(Row, some))
    return table


def backends_table(run: Run) -> Table[str]:
    """How many times faster than one library the vendor's others are, a row for each precision.

    Geometric means over the problems that both computed. Empty where a run has none of them.
    """
    library = next((r.case.backend for r in run.results if is_library(r.case)), None)
    ratios: dict[tuple[str, str], list[float]] = {}
    for result in run.results:
        if library and library in result.vs_backend and not is_rival(result):
            arm = (result.case.precision_name, result.case.backend)
            ratios.setdefault(arm, []).append(result.vs_backend[library].ratio)

    def column(backend: str) -> Column[str]:
        def cell(precision: str) -> str:
            some = ratios.get((precision, backend))
            return f"{geometric_mean(some):.2f}" if some else "-"

        return Column(fmt.clean(backend), cell, right=True)

    backends = dict.fromkeys(backend for _, backend in ratios)
    found = Table([Column[str]("precision", fmt.clean), *map(column, backends)])
    if ratios:
        heading = f"Times faster than {library}, geometric mean over the sizes"
        found.block(heading, map(Row, dict.fromkeys(name for name, _ in ratios)))
    return found


def rivals_table(run: Run) -> Table[Summary]:
    """Our kernels, and the user's, against the better library: a row for each precision. Empty
    where none was measured beside a library.
    """
    table = Table(_RIVALS)
    rows = [Row(found) for found in summaries(run)]
    if rows:
        table.block(BETTER, rows)
    return table


def _libraries(found: Summary) -> str:
    absent = f" ({found.not_measured})" if found.not_measured else ""
    return ", ".join(found.libraries) + absent


def _mean(found: Summary) -> str:
    return f"{found.mean:.3f}{fmt.UNCERTAIN * bool(found.ruined_pct)}"


def _faster_from(payoff: Payoff) -> str:
    if payoff.uncertain:
        return fmt.UNCERTAIN
    return fmt.size(payoff.from_start[0][0].case) if payoff.from_start else "-"


def _speedup_there(payoff: Payoff) -> str:
    known = payoff.from_start and not payoff.uncertain
    return fmt.ratio(payoff.from_start[0][1]) if known else ""


def _highest(payoff: Payoff) -> str:
    result, ratio = payoff.best
    return f"{fmt.ratio(ratio)} at {fmt.size(result.case)}"


def _count(gain: str) -> Callable[[Payoff], str]:
    return lambda payoff: str(payoff.gains.count(gain) or "")


def _bottlenecks(payoff: Payoff) -> str:
    """The most common ones: "alignment 64, mixed 5"."""
    found = Counter(fmt.clean(result.bound or "") for result, _ in payoff.rows)
    return ", ".join(f"{bound} {n}" for bound, n in found.most_common(MOST_BOTTLENECKS) if bound)


_SETTINGS: Sequence[Column[Payoff]] = (
    Column("setting", lambda payoff: fmt.clean(payoff.subject), bold=True),
    Column("vs", lambda payoff: fmt.clean(payoff.baseline)),
    Column("faster\nfrom", _faster_from, right=True),
    Column("speed-up\nthere", _speedup_there, right=True, drop=2),
    Column("highest\nspeed-up", _highest, right=True),
    Column("sizes", lambda payoff: str(len(payoff.rows)), right=True, drop=3),
    Column("faster", _count("faster"), right=True),
    Column("within\n2 %", _count("same"), right=True, drop=4),
    Column("slower", _count("slower"), right=True),
    Column("bottlenecks", _bottlenecks, drop=5),
)

_RIVALS: Sequence[Column[Summary]] = (
    Column("back end", lambda found: fmt.clean(found.backend)),
    Column("precision", lambda found: fmt.clean(found.precision)),
    Column("sizes", lambda found: str(len(found.rows)), right=True),
    Column("libraries", _libraries),
    Column("geometric\nmean", _mean, right=True),
    Column("least", lambda found: f"{found.least.ratio.ratio:.2f}", right=True),
    Column("at", lambda found: fmt.size(found.least.result.case), right=True),
    Column("library\nthere", lambda found: found.least.library, drop=1),
)


# ---------------------------------------------------------------- layers of a network


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
