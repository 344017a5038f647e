"""The data loaders of a run: alone, and what recipes fed by them reach by number of workers.

`LoaderSweep` puts a network's trainings and its loader together; measured comes before predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from statistics import median
from typing import NamedTuple

from e2e.case import DATA_WORDS, RESIDENT, TrainCase, is_own
from e2e.report.answer import NO_VERDICT
from e2e.report.figures import bottleneck, is_clear
from e2e.report.variants import SHORT_MARK, SHORT_NOTE, SHORT_WORDS, grouped, is_short
from e2e.results.baselines import BASELINES, by_the_wall
from e2e.results.loader_types import OP, LoadCase, Loading, load_case
from e2e.results.types import Training
from microbench import fmt
from microbench.report.parts import VERBOSE, Column, Line, Part, Raw, Row, missing, value
from microbench.results.types import Json, Ratio, Run
from microbench.timing.stats import half_width_pct
from microbench.verdict import MIN_GAIN

ALONE = " without a loader"  # what a recipe is held against
IN_FULL = 0.95  # of a recipe's throughput without a loader
WIDE_PCT = 15.0  # half of a rate's interval: wider ones are a doubt
WARM = "files had been read before: they were in memory"
MARKS = {"skipped": "skipped", "failed": "FAILED", "ok": "not measured"}
# CSV of loaders: name and path, in an order that does not change.
RAW = {
    **{field.name: f"case.{field.name}" for field in fields(LoadCase)},
    "status": "status", "reason": "reason", "images_per_s": "per_s",
    "ci95_low_per_s": "ci95_per_s.0", "ci95_high_per_s": "ci95_per_s.1", "samples": "",
    "images_per_s_per_core": "per_s_per_core", "read_bytes_per_s": "bytes_per_s",
    "first_s": "first_s",
}  # fmt: skip


class Gain(NamedTuple):
    """How many times as fast as another a recipe is, measured or predicted."""

    ratio: Ratio
    measured: bool

    @property
    def pays(self) -> bool:
        """Whether the ratio is at least MIN_GAIN and its interval, if known, is above 1."""
        ends = self.ratio.ci95
        return self.ratio.ratio >= MIN_GAIN and (ends is None or ends[0] > 1)


@dataclass(frozen=True)
class LoaderSweep:
    """A network fed by one loader: its trainings by recipe and number of workers, and its parts.

    `alone` are the trainings on a pinned batch (else on one that stays on the device), by recipe.
    """

    loader: str
    trainings: tuple[Training, ...]
    alone: dict[str, Training]
    loading: dict[int, Loading]

    @property
    def recipes(self) -> list[str]:
        """The recipes, in order of appearance."""
        return list(dict.fromkeys(t.case.recipe for t in self.trainings))

    @property
    def workers(self) -> list[int]:
        """The numbers of workers, ascending."""
        return sorted({t.case.workers for t in self.trainings})

    def at(self, recipe: str, workers: int) -> Training | None:
        """The training of a recipe with this number of workers."""
        variants = (
            t for t in self.trainings if (t.case.recipe, t.case.workers) == (recipe, workers)
        )
        return next(variants, None)

    @property
    def errors_pct(self) -> list[float]:
        """Errors of predicted throughput in per cent where it was measured; positive: too high."""
        return [
            100 * (t.predicted_per_s / t.per_s - 1)
            for t in self.trainings
            if t.per_s and t.predicted_per_s
        ]

    def title(self, recipe: str, short: str = SHORT_WORDS) -> str:
        """A recipe that others are held against; `short` follows as in `View.title`."""
        return recipe + short * is_short(recipe, self.trainings)

    def per_s(self, recipe: str, workers: int) -> float:
        """Units per second as measured, else as predicted; 0 if neither is known."""
        training = self.at(recipe, workers)
        return (training and (training.per_s or training.predicted_per_s)) or 0.0

    def speedup(self, recipe: str, base: str, workers: int) -> Gain | None:
        """The speed-up of a recipe over another with this number of workers; None if unknown.

        Measured if both were, else predicted.
        """
        ours, theirs = self.at(recipe, workers), self.at(base, workers)
        if ours is None or theirs is None:
            return None
        if ours.per_s and theirs.per_s:
            name = next((name for name, known in BASELINES.items() if base in known), base)
            paired = ours.speedup.get(name, Ratio(ours.per_s / theirs.per_s, None))
            return Gain(by_the_wall(paired, theirs, ours), measured=True)
        if ours.predicted_per_s and theirs.predicted_per_s:
            ratio = ours.predicted_per_s / theirs.predicted_per_s
            return Gain(Ratio(ratio, None), measured=False)
        return None

    def pays_from(self, recipe: str, base: str) -> int | None:
        """The fewest workers from which on a recipe is faster than another; None if it never is."""

        def pays(count: int) -> bool:
            gain = self.speedup(recipe, base, count)
            return gain is not None and gain.pays

        return self._fewest(pays)

    def in_full_from(self, recipe: str) -> int | None:
        """The fewest workers at which a recipe has IN_FULL of its throughput without a loader."""
        return self._fewest(lambda count: self.reached(recipe, count).ratio >= IN_FULL)

    def _fewest(self, fits: Callable[[int], bool]) -> int | None:
        """The fewest workers from which on all fit; None if the most do not."""
        fitting = [*takewhile(fits, reversed(self.workers))]
        return fitting[-1] if fitting else None

    def reached(self, recipe: str, workers: int) -> Ratio:
        """The share of its throughput without a loader, measured, else predicted; 0 if unknown."""
        alone, fed = self.alone.get(recipe), self.at(recipe, workers)
        timed, per_s = alone and alone.timed, self.per_s(recipe, workers)
        if fed is None or timed is None or not per_s:
            return Ratio(0.0, None)
        ends = fed.timed.ci95_s if fed.timed else fed.predicted and fed.predicted.interval_s
        low, high = timed.ci95_s or 2 * (timed.median_s,)
        share = timed.median_s * per_s / fed.step_units
        return Ratio(share, ends and (low / ends[1], high / ends[0]))


def loader_sweeps(run: Run) -> list[LoaderSweep]:
    """Each network, batch and loader of the run whose recipes were also measured alone."""
    fed = grouped(
        (_family(t.case), t)
        for t in run.of(Training)
        if t.case.loads_data and not t.case.cached and run.find(Loading, load_case(t.case).key)
    )
    known = (_sweep(run, family, trainings) for family, trainings in fed.items())
    return [sweep for sweep in known if sweep.alone]


def _sweep(run: Run, family: TrainCase, trainings: list[Training]) -> LoaderSweep:
    def by_recipe(loader: str) -> dict[str, Training]:
        plain = replace(family, loader=loader, prefetch=0)
        return {t.case.recipe: t for t in run.of(Training) if _family(t.case) == plain}

    own = replace(load_case(family), workers=0)
    loadings = [row for row in run.of(Loading) if replace(row.case, workers=0) == own]
    return LoaderSweep(
        family.loader,
        tuple(trainings),
        alone=by_recipe("pinned") or by_recipe("synthetic"),
        loading={loading.case.workers: loading for loading in loadings},
    )


def _family(case: TrainCase) -> TrainCase:
    """What trainings of one picture share."""
    return replace(case, recipe="", workers=0, cached=False, loss_scale=None)


# ---------------------------------------------------------------- together


def sweep_title(sweep: LoaderSweep) -> str:
    """The network, batch size and loader of all its trainings."""
    case = sweep.trainings[0].case
    return f"{case.network}, batch {case.batch}, loader {sweep.loader}"


def sweep_part(sweep: LoaderSweep, level: int) -> Part:
    """Workers x recipes: how much faster, and images per second."""
    base, *others = sweep.recipes
    last = sweep.recipes[-1]
    rows: list[Json] = [
        {
            "workers": count, "loader": sweep.loading.get(count),
            **{f"rate {name}": _rates(sweep.at(name, count)) for name in sweep.recipes},
            "limit": _limit(sweep.at(last, count)),
            **{f"gain {name}": sweep.speedup(name, base, count) for name in others},
        }
        for count in sweep.workers
    ]  # fmt: skip
    title = sweep.title(base, SHORT_MARK)
    unit = sweep.trainings[0].unit
    loader = "loader\nalone" if unit == "img" else "loader\nsample/s"
    columns = [
        Column("workers", "workers"),
        *(Column(f"{name} x {title}", f"gain {name}", _gain) for name in others),
        *(Column(f"{name}\n{unit}/s", f"rate {name}", drop=2) for name in sweep.recipes),
        Column(f"{last}\nbottleneck", "limit", drop=1),
        Column(loader, "loader.per_s", fmt.throughput, drop=3),
    ]
    name = f"Together: {sweep_title(sweep)}" * (level == VERBOSE)
    return Part(name, columns, [*map(Row, rows)], _notes(sweep), level)


def _limit(variant: Training | None) -> str:
    """The measured bottleneck, else the predicted one; "" if unknown."""
    predicted = variant.predicted.limit if variant and variant.predicted else None
    return bottleneck((variant and variant.limit) or predicted)


def _rates(variant: Training | None) -> str:
    """ "2,000 / 1,960": predicted / measured."""
    if variant is None:
        return ""
    predicted = fmt.throughput(variant.predicted_per_s) if variant.predicted_per_s else "-"
    measured = fmt.throughput(variant.per_s) if variant.per_s else ""
    measured = "failed" if variant.status == "failed" else measured
    return f"{predicted} / {measured}" if measured else predicted


def _gain(gain: Gain) -> str:
    """ "2.00 ±0.03" where it was measured, "(2.00)" where it is predicted; "?": too uncertain."""
    doubt = fmt.UNCERTAIN * bool(gain.ratio.ruined_pct)
    return fmt.interval(gain.ratio) + doubt if gain.measured else f"({fmt.short_ratio(gain.ratio)})"


def _notes(sweep: LoaderSweep) -> list[str]:
    lost = [t for t in sweep.trainings if t.status == "failed"]
    base, *others = sweep.recipes
    every = (sweep.speedup(name, base, count) for name in others for count in sweep.workers)
    gains = list(filter(None, every))
    return [
        f"{sweep.trainings[0].unit}/s: predicted / measured, by the wall clock"
        + "; in round brackets: predicted" * any(not gain.measured for gain in gains)
        + f"; {fmt.UNCERTAIN}: too uncertain for a verdict"
        * any(gain.measured and gain.ratio.ruined_pct > 0 for gain in gains),
        *[SHORT_NOTE] * is_short(sweep.recipes[0], sweep.trainings),
        *missing([(f"{t.case.recipe} with {fmt.count(t.case.workers, 'worker')}",
                   f"failed: {t.reason or 'no reason given'}") for t in lost]),
    ]  # fmt: skip


def sweep_answer(sweep: LoaderSweep, device: str) -> list[Line]:
    """From how many workers on recipes are faster, what limits them, and how sure that is."""
    base, *others = sweep.recipes
    most = sweep.workers[-1]
    wide = {name: gain for name in others if sweep.pays_from(name, base) is None
            and (gain := sweep.speedup(name, base, most)) and gain.ratio.ruined_pct}  # fmt: skip
    texts = [_against(sweep, name, base) for name in others if name not in wide]
    full = [text for name in reversed(sweep.recipes) if (text := _in_full(sweep, name))]
    if wide:
        if full and not texts:
            texts.append(full.pop(0))
        ratios = ", ".join(map(_times, wide.values()))
        texts.append(
            f"{NO_VERDICT} on {fmt.joined(list(wide))} against {sweep.title(base)}: {ratios} times "
            f"as fast with {fmt.count(most, 'worker')}, too wide intervals"
        )
    lost = grouped((t.reason or "no reason given", t) for t in sweep.trainings
                   if t.status == "failed")  # fmt: skip
    for why, variants in lost.items():
        each = [f"{a.case.recipe} with {fmt.count(a.case.workers, 'worker')}" for a in variants]
        texts.insert(1, f"{fmt.listed(each)} FAILED: {why}")
    if not others:
        texts.insert(0, full.pop() if full else f"{base}: only one recipe was fed")
    where = f"{sweep_title(sweep)}, {device}"
    lines = [Line("", f"{texts[0]} ({where})"), *(Line("", text) for text in texts[1:2])]
    if full:
        also = [text.replace(ALONE, "") for text in full[1:2]]
        lines.append(Line("Why", "; ".join([full[0], *also])))
    if any(sweep.alone.get(name) and not sweep.in_full_from(name) for name in sweep.recipes):
        cpus = sweep.trainings[0].case.cpus  # 0: not known how many there were
        more = ", or more workers where cores are free" * (not 0 < cpus <= most)
        lines.append(Line("Do", f"a faster loader{more} (halfway loader; not measured)"))
    if errors := sweep.errors_pct:
        off = f"{median(map(abs, errors)):.1f} % off in the median, {max(errors, key=abs):+.1f} %"
        points = fmt.count(len(errors), "point")
        lines.append(Line("Doubt", f"predictions were {off} at worst ({points})"))
    if not sweep.trainings[0].case.cold:
        lines.append(Line("Doubt", WARM))
    return lines


def _against(sweep: LoaderSweep, name: str, base: str) -> str:
    """From how many workers on a recipe is faster, and how much there; else how it is with most."""
    start, title = sweep.pays_from(name, base), sweep.title(base)
    count = sweep.workers[-1] if start is None else start
    gain, workers = sweep.speedup(name, base, count), fmt.count(count, "worker")
    if gain is None:
        return f"{NO_VERDICT} on {name} against {title}: not known with {workers}"
    source, faster = "measured" if gain.measured else "predicted", f"{_times(gain)} times as fast"
    if start is None and gain.ratio.no_difference:
        return f"No difference {source} between {name} and {title} with {workers}: {faster}"
    how = "hardly " if round(gain.ratio.ratio, 2) > 1 else "not "
    how = how if start is None else "clearly " * is_clear(gain.ratio)
    text = f"{name} is {how}faster with {workers}: {faster} as {title}, {source}"
    if start in (None, sweep.workers[0]):
        return text
    fewer = sweep.workers[sweep.workers.index(count) - 1]
    before = sweep.speedup(name, base, fewer)
    if before is None or (before.measured and not is_clear(before.ratio)):
        return f"{text}; with {fewer} that is not known"
    return f"{text}; with {fewer} it is not{' (predicted)' * (gain.measured > before.measured)}"


def _times(gain: Gain) -> str:
    """ "2.00 ±0.03"; without an interval "2.00"."""
    return fmt.interval(gain.ratio) if gain.ratio.ci95 else fmt.short_ratio(gain.ratio)


def _in_full(sweep: LoaderSweep, name: str) -> str:
    """What a recipe reaches of its speed without a loader, and with how many workers."""
    alone = sweep.alone.get(name)
    if alone is None or not alone.per_s:
        return ""
    start, most = sweep.in_full_from(name), sweep.workers[-1]
    text = f"{name} trains {fmt.throughput(alone.per_s)} {alone.unit}/s{ALONE}"
    share = sweep.reached(name, start or most)
    if not share.ratio:
        return text
    workers, left = fmt.count(start or most, "worker"), f"{100 * share.ratio:.0f} %"
    if share.ci95 and share.ruined_pct:
        low, high = share.ci95
        left = f"{100 * low:.0f} to {100 * min(1.0, high):.0f} %"
    elif start is not None:
        left = f"at least {100 * IN_FULL:.0f} %"
    return f"{text}, with {workers} {left} of that"


# ---------------------------------------------------------------- alone


def loaders_part(run: Run, level: int) -> Part:
    """One row per loader and number of workers."""
    loadings = run.of(Loading)
    unit = unit_of(loadings)
    lost = [(row.case.loader, row.reason or "no reason given") for row in loadings
            if row.per_s is None]  # fmt: skip
    notes = [
        "per core: by the CPU time of the workers and of the process that takes the batches",
        *missing(list(dict.fromkeys(lost))),
    ]
    columns = [
        Column("loader", "case.loader", once=True),
        Column("files", "case.cold", lambda cold: "cold" * cold, drop=6),
        *[Column("batch", "case.batch", drop=7)] * (len({row.case.batch for row in loadings}) > 1),
        Column("workers", "case.workers"),
        Column("prefetch", "case.prefetch", lambda ahead: f"{ahead or ''}", drop=8),
        Column(f"{unit}/s", "per_s", fmt.throughput),
        Column("±", "", lambda row: fmt.half_interval(row.per_s or 0.0, row.ci95_per_s), drop=3),
        Column(f"{unit}/s\nper core", "per_s_per_core", fmt.throughput, drop=2),
        Column("MB/s\nread", "bytes_per_s", lambda rate: fmt.throughput(rate / 1e6), drop=4),
        Column("first\nbatch", "first_s", fmt.duration, drop=5),
    ]
    title = "Loaders alone" * (level == VERBOSE)
    return Part(title, columns, [*map(_row, loadings)], notes if loadings else (), level)


def _row(row: Loading) -> Row:
    if row.per_s is not None:
        return Row(row)
    return Row(row, MARKS.get(row.status, row.status), "red" if row.status == "failed" else "dim")


def _shared(loadings: Sequence[Loading]) -> str:
    """What all were given: "synthetic JPEG data, 3x224x224, batches of 256, on 8 cores"."""
    cases = [row.case for row in loadings]
    data = sorted({DATA_WORDS.get(case.data, case.data) for case in cases})
    inputs = sorted({case.input for case in cases})
    batches = [str(batch) for batch in sorted({case.batch for case in cases})]
    cores = max(case.cpus for case in cases)
    parts = [f"{fmt.listed(data)} data", fmt.listed(inputs), f"batches of {fmt.listed(batches)}"]
    return ", ".join([*parts, *[f"on {fmt.count(cores, 'core')}"] * bool(cores)])


def loaders_answer(run: Run, device: str) -> list[Line]:
    """The fastest loader that decodes, and how sure the rates are."""
    loadings = run.of(Loading)
    ran = [row for row in loadings if row.per_s]
    loaders = [row for row in ran if row.case.loader not in ("read", RESIDENT)] or ran
    lines = [Line("", "Nothing was measured")]
    if ran:
        best = max(loaders, key=lambda row: row.per_s or 0.0)
        lines = [Line("", f"{_rate(best)} ({_shared(loadings)}, {device})")]
    halves = [half_width_pct(r.per_s, r.ci95_per_s) for r in ran if r.per_s and r.ci95_per_s]
    wide = [pct for pct in halves if pct > WIDE_PCT]
    if wide:
        text = f"{len(wide)} of {fmt.count(len(ran), 'rate')} beyond ±{WIDE_PCT:.0f} %"
        lines.append(Line("Doubt", f"{text}, up to ±{max(wide):.0f} %"))
    if ran and not any(row.case.cold for row in loadings):
        lines.append(Line("Doubt", WARM))
    return lines


def _rate(row: Loading) -> str:
    """ "dali delivers 16,160 img/s with 16 workers (±11%)"."""
    half = fmt.half_interval(row.per_s or 0.0, row.ci95_per_s)
    with_ = f" with {fmt.count(row.case.workers, 'worker')}" if row.case.workers else ""
    ends = f" (±{half})" if half else ""
    rate = f"{fmt.throughput(row.per_s or 0.0)} {unit_of([row])}/s"
    return f"{row.case.loader} delivers {rate}{with_}{ends}"


def unit_of(loadings: Sequence[Loading]) -> str:
    """What loaders' rates count: samples of people's own data need not be images."""
    return "sample" if any(is_own(row.case.data) for row in loadings) else "img"


def loaders_raw(run: Run) -> Raw:
    """CSV of the loaders."""
    rows = [
        {"op": OP, "samples": len(row.blocks),
         **{name: value(row, path) for name, path in RAW.items() if path}}
        for row in run.of(Loading)
    ]  # fmt: skip
    return ["op", *RAW], rows
