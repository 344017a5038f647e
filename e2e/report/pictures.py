"""Charts of trainings and loaders: the rows of bars, curves, ledgers, rates by workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from e2e.case import DATA_WORDS
from e2e.report import ledger
from e2e.report.figures import ratio
from e2e.report.loading import LoaderSweep, loader_sweeps, sweep_title
from e2e.report.variants import (
    SHORT_MARK,
    SHORT_WORDS,
    Group,
    View,
    grouped,
    step_word,
    view_of,
    what_was_trained,
)
from e2e.results.loader_types import Loading
from e2e.results.terms import RESIDUAL
from e2e.results.types import Training
from microbench import fmt
from microbench.errors import UserError
from microbench.report import charts
from microbench.results.types import Json, Run

# A recipe has the colour of the precision that its arithmetic is in, and never another's.
RECIPE_COLOURS = {
    **charts.COLOURS,
    **charts.WHOLLY,
    "amp": charts.COLOURS["fp16"],
    "amp-bf16": charts.COLOURS["bf16"],
    "O0": charts.COLOURS["fp32"],
    "O1": charts.COLOURS["fp16"],  # apex's names: of amp, of fp16
    "O2": charts.MIXED_COLOUR,
    "O3": charts.WHOLLY["fp16"],
}
DASHES = ([1, 0], [7, 4], [2, 3], [9, 3, 2, 3])  # variants of one recipe that differ in options
NEUTRAL, LOST_COLOUR = "#bbbbbb", "#e5e5e5"  # of what does not differ; of what does not converge
# By Okabe and Ito: safe for red-green colour blindness.
WHOLE, SAVED, ADDED, REST = "#555555", "#009e73", "#d55e00", "#cc79a7"
LOADER_LINE, LOADER_COLOUR = "loader alone", "#d55e00"
MOST_BARS, MOST_FALLS = 60, 4
FEWEST_SIZES = 3  # batch sizes of a curve


def recipe_colour(recipe: str) -> str:
    """The colour ("#rrggbb") of a recipe; one colour for all that RECIPE_COLOURS does not list."""
    return RECIPE_COLOURS.get(recipe, charts.OTHER_COLOUR)


def training_chart(run: Run) -> Any:
    """Throughput: curves over several batch sizes, else bars; then ledgers.

    UserError when the run has neither times nor ledgers, or when Altair is not installed.
    """
    view = view_of(run)
    timed = [t for t in view.variants if t.per_s]
    falls = fall_rows(view)
    if not timed and not falls:
        raise UserError("nothing to draw: the run has no training with step times")
    colours = {view.label(t): recipe_colour(t.case.recipe) for t in view.variants}
    reading: list[str] = []
    drawn: list[Any] = []
    family = max(view.families, key=lambda family: len(_sizes(family)))
    if timed and len(_sizes(family)) >= FEWEST_SIZES:
        rate = f"{family[0].variants[0].unit}/s"
        drawn.append(charts.lines(curve_rows(view, family), x="batch", y=rate, log=False,
                                  colours=colours, dashes=dashes_of(view)))  # fmt: skip
        if len(view.families) > 1:
            several = fmt.count(len(view.families), "", "networks or settings")
            reading.append(f"{family[0].case.network} only: the run holds {several}")
    elif timed:
        rows = bar_rows(view)
        if len(rows) > MOST_BARS:
            text = f"a chart of more than {MOST_BARS} bars is too large; draw a smaller run"
            raise UserError(text)
        drawn.append(charts.bars(rows, x=f"{view.unit or 'units'}/s"))
        reading += [
            "lines at the ends of the bars: 95 % confidence interval",
            *["grey: no difference measured"] * any(row["colour"] == NEUTRAL for row in rows),
            *[f"{SHORT_MARK}{SHORT_WORDS}"] * any(map(view.is_short, view.compared)),
        ]
    if falls:
        drawn.append(charts.bars(falls, x="ms"))
    return charts.titled(drawn, *heading(run, reading))


def heading(run: Run, reading: Sequence[str]) -> tuple[str, list[str]]:
    """The title: what was trained, on what; with which data, and how to read the chart."""
    title, *conditions = what_was_trained(run)[1:]
    device = run.device_name
    torch = run.software.get("torch", "")
    ran = any(t.steps for t in run.of(Training))
    measured = f"{'measured' if ran else 'predicted'} {run.started_at[:10]}"
    facts = [*conditions, *([f"torch {torch}"] if torch else []), measured]
    evaluates = view_of(run).evaluates
    what = "evaluation" if evaluates else "training" if ran else "predicted training of"
    return f"{what} {title} on {device}", [", ".join(facts), *reading]


def dashes_of(view: View) -> dict[str, list[int]]:
    """Dashes a variant, by which of its recipe's variants it is."""
    variants = grouped((recipe, label) for label, recipe in
                       {view.label(t): t.case.recipe for t in view.variants}.items())  # fmt: skip
    return {
        label: DASHES[place % len(DASHES)]
        for labels in variants.values()
        for place, label in enumerate(labels)
    }


# ---------------------------------------------------------------- rows


def bar_rows(view: View) -> list[Json]:
    """A bar a variant with times, in the order measured, a panel a group; units per second."""
    return [
        {"panel": group.title, **_bar(t, view)}
        for group in view.groups
        for t in group.variants
        if t.per_s
    ]


def _bar(variant: Training, view: View) -> Json:
    per_s, steps = variant.per_s or 0.0, variant.steps
    fast, slow = steps.ci95_s if steps and steps.ci95_s else (None, None)
    name = next((name for name in view.compared if view.is_compared(variant, name)), "")
    over = view.title(name, SHORT_MARK)
    gain = f" ({ratio(variant.speedup[name])} x {over})" if name else ""
    known = [variant.speedup[name] for name in view.compared if name in variant.speedup]
    lost, same = variant.converged is False, bool(known) and known[0].no_difference
    return {
        "label": view.label(variant), "value": per_s,
        "low": per_s * steps.median_s / slow if steps and slow else None,
        "high": per_s * steps.median_s / fast if steps and fast else None,
        "text": f"{fmt.throughput(per_s)}{', not converged' if lost else gain}",
        "colour": LOST_COLOUR if lost else NEUTRAL if same else recipe_colour(variant.case.recipe),
    }  # fmt: skip


def _sizes(family: Sequence[Group]) -> set[int]:
    """The batch sizes that have times."""
    return {t.case.batch for group in family for t in group.variants if t.per_s}


def curve_rows(view: View, family: Sequence[Group]) -> list[Json]:
    """Units per second by batch, recipe after recipe."""
    timed = grouped((view.label(t), t) for group in family for t in group.variants if t.per_s)
    return [
        {"series": label, "x": t.case.batch, "y": t.per_s}
        for label, variants in timed.items()
        for t in variants
    ]


def fall_rows(view: View) -> list[Json]:
    """The ledgers whose figures are good enough, a panel each, MOST_FALLS at most."""
    explained = [t for t in view.variants if ledger.has_ledger(t) and ledger.is_sound(view, t)]
    rows: list[Json] = []
    for place, variant in enumerate(explained[:MOST_FALLS], 1):
        title = ledger.ledger_title(view, variant)
        if place == MOST_FALLS < len(explained):
            title += f" (and {len(explained) - MOST_FALLS} more in the run)"
        rows += [{"panel": title, **row} for row in waterfall_rows(variant, view.label(variant))]
    return rows


def waterfall_rows(variant: Training, label: str) -> list[Json]:
    """A bar a line of the ledger, in ms, small terms folded; whole steps begin at 0."""
    *terms, whole = ledger.changes(variant, fold=True)
    first_ms, last_ms = whole.base_ms or 0.0, whole.other_ms or 0.0
    ends = list(accumulate((change.ms for change in terms), initial=first_ms))
    word = step_word(variant)
    bars = [(f"{ledger.base_name(variant)} {word}", 0.0, first_ms, f"{first_ms:.4g} ms", WHOLE)]
    for change, start, end in zip(terms, ends, ends[1:], strict=False):
        colour = SAVED if change.ms < 0 else ADDED if change.ms > 0 else NEUTRAL
        colour = REST if change.term == RESIDUAL else colour
        bars.append((ledger.term_words(change.term), start, end, f"{change.ms:+.3g}", colour))
    bars.append((f"{label} {word}", 0.0, last_ms, f"{last_ms:.4g} ms", WHOLE))
    names = ("label", "start", "value", "text", "colour")
    return [dict(zip(names, bar, strict=True)) for bar in bars]


# ---------------------------------------------------------------- loaders


def loading_chart(run: Run) -> Any:
    """Networks fed by loaders, a panel each: images (or tokens) per second by workers.

    UserError when none was measured, or when Altair is not installed.
    """
    sweeps = loader_sweeps(run)
    rows = [row for sweep in sweeps for row in sweep_rows(sweep)]
    if not rows:
        raise UserError("nothing to draw: the run has no network fed by a loader")
    colours = {name: recipe_colour(name) for sweep in sweeps for name in sweep.recipes}
    colours[LOADER_LINE] = LOADER_COLOUR
    names = {loading.case.data for loading in run.of(Loading)}
    data = fmt.listed(sorted(DATA_WORDS.get(name, name) for name in names))
    unit = fmt.listed(sorted({f"{t.unit}/s" for sweep in sweeps for t in sweep.trainings}))
    drawn = charts.lines(rows, x="workers", y=unit, log=False, colours=colours,
                         dashes={LOADER_LINE: [5, 4]})  # fmt: skip
    return charts.titled(
        [drawn],
        f"training fed by loaders on {run.device_name}",
        [
            f"{data} data, measured {run.started_at[:10]}",
            "lines: predicted from recipe and loader alone; points: measured together",
        ],
    )


def sweep_rows(sweep: LoaderSweep) -> list[Json]:
    """A row a point: predicted ("line") and measured ("point") rates, and the loader alone."""
    fed = sweep.trainings[0]
    units = fed.step_units / (fed.case.batch * fed.case.accumulate)  # of a sample
    points = [
        (t.case.recipe, t.case.workers, per_s, mark)
        for t in sweep.trainings
        for per_s, mark in ((t.predicted_per_s, "line"), (t.per_s, "point"))
    ]
    points += [
        (LOADER_LINE, count, units * (row.per_s or 0.0), "line")
        for count, row in sweep.loading.items()
    ]
    return [
        {"panel": sweep_title(sweep), "series": series, "x": workers, "y": per_s, "mark": mark}
        for series, workers, per_s, mark in points
        if per_s
    ]
