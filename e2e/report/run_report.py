"""Reports of trainings and loaders: what `microbench.results.kinds.Report` needs of a kind.

The content and order of screen, Markdown and CSV; pure functions of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from rich.text import Text

from e2e.case import DATA_WORDS, OP, TrainCase
from e2e.report import (
    costs,
    learning,
    ledger,
    predictions,
    ranks,
    table,
)
from e2e.report.arms import OPTIONS, View, in_words, view_of, what_was_trained
from e2e.report.figures import interval
from e2e.report.joint import joint_part, joint_sentences, joints
from e2e.report.loaders import TITLE, loaders_lines, loaders_table
from e2e.report.verdict import causes_part, raw_columns, verdict
from e2e.results import loader_types
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import Training
from microbench import fmt
from microbench.report.console import listed_once, sentences
from microbench.report.table import Part, Row, Table, Value, records, screen
from microbench.results.types import Ratio, Run

Section = tuple[str, Sequence[Text]]

# The first names of CSV, in an order that does not change; new ones follow.
CSV_ORDER = (
    "op", *(field.name for field in fields(TrainCase)),
    "rung", "status", "reason", "unit", "step_units", "images_per_s", "step_s",
    "ci95_low_s", "ci95_high_s", "samples", "wall_per_s", "busy_s", "host_s", "launches",
    *(f"{phase}_{clock}_s" for phase in costs.PHASES for clock in ("host", "gpu")),
    "memory_peak_bytes", "fits_batch", "gpu_util_mean_pct", "gpu_util_min_pct", "gpu_util_max_pct",
    "sm_clock_mhz", "power_w", "images_per_j", "temperature_c", "throttle", "setup_s", "compile_s",
    "skipped_steps", "accuracy_mean", "accuracy_std", "loss_mean", "loss_std", "train_mean_s",
    "train_std_s", "repeats", "seeds", "chance", "converged", "convergence", "limit", "why",
    *(f"speedup_{name}{end}" for name in table.BASELINES for end in ("", "_low", "_high")),
    "predicted_step_s", "predicted_error_pct",
)  # fmt: skip

FIRST: Mapping[str, str] = {OP: "recipe", loader_types.OP: "loader"}


def conditions(run: Run) -> list[str]:
    """For the header: what was trained."""
    return what_was_trained(run) if run.of(Training) else []


def cells(case: TrainCase | LoadCase) -> tuple[str, str, str]:
    """Of a training: recipe, subject, options; of a loader: name, data, settings."""
    if isinstance(case, TrainCase):
        names = ["network", "batch"]
        names += [] if case.data == "synthetic" else ["data", "loader", "workers", "prefetch"]
        return (fmt.clean(case.recipe), ", ".join(in_words(case, names)),
                " ".join(in_words(case, OPTIONS)))  # fmt: skip
    how = [fmt.count(case.workers, "worker"), *["cold files"] * case.cold]
    how += [f"prefetch {case.prefetch}"] if case.prefetch else []
    what = f"{fmt.clean(DATA_WORDS.get(case.data, case.data))} data, batch {case.batch}"
    return fmt.clean(case.loader), what, ", ".join(how)


def ratio(op: str, value: Ratio) -> str:
    """A ratio with its interval; more digits for steps, whose intervals are narrower."""
    return interval(value) if op == OP else fmt.interval(value)


def chart(run: Run) -> Any:
    """The Altair chart of loaders or of trainings.

    UserError when nothing can be drawn, or when Altair is not installed.
    """
    from e2e.report.plots import loading_chart, training_chart

    if joints(run) or (run.of(Loading) and not run.of(Training)):
        return loading_chart(run)
    return training_chart(run)


# ---------------------------------------------------------------- the screen


def sections(run: Run, width: int, *, details: bool) -> list[Section]:
    """The screen's sections on trainings and loaders, at most `width` columns wide."""
    if joints(run) or not run.of(Training):
        return _fed_sections(run, width, details=details)
    return [*training_sections(run, width, details=details), (TITLE, loaders_lines(run, width))]


def _fed_sections(run: Run, width: int, *, details: bool) -> list[Section]:
    """In short; loaders alone; and where recipes were measured too, those alone and both together.

    `details` adds what a screen of trainings has for each of them.
    """
    pictures = joints(run)
    fed = run.with_all(Training, [t for joint in pictures for t in joint.trainings])
    together = {t.case.key for t in fed.of(Training)}
    apart = run.with_all(Training, [t for t in run.of(Training) if t.case.key not in together])
    said = [line for joint in pictures for line in joint_sentences(joint)]
    found: list[Section] = [("In short", sentences(said)), (TITLE, loaders_lines(run, width))]
    if apart.of(Training):
        view = view_of(apart)
        found += [*_speed(view, width, "Recipes alone"), _warnings(apart, view)]
    found += _shown([joint_part(joint) for joint in pictures], width)
    if pictures:
        found.append(("Warnings on recipes fed by a loader", _warnings(fed, view_of(fed))[1]))
    if details and pictures:
        found += training_sections(fed, width, details=True)
    return found


def training_sections(run: Run, width: int, *, details: bool = False) -> list[Section]:
    """(title, lines) of each section of the screen; sections without content have no lines.

    `details` adds the state of the device and where the time of the run went.
    """
    view = view_of(run)
    (_, lines), reasons = _speed(view, width, "")
    stages = [costs.stages_part(run)] if details else []
    return [
        ("", [*lines, *costs.setups(view), *costs.float8_layers(view)] if lines else []),
        reasons,
        *_shown([learning.learning_part(view), *_tables(view, details=details), *stages], width),
        (costs.STATES_TITLE, costs.states(view) if details else []),
        *_shown(_accounts(view, details=details), width),
        ("In short", sentences(verdict(run))),
        _warnings(run, view),
    ]


def _tables(view: View, *, details: bool = True) -> list[Part]:
    """What stands below the table of speed, on a screen and in Markdown."""
    return [
        predictions.prediction_part(view, details=details),
        costs.phases_part(view, details=details),
        ranks.scaling_part(view),
        ranks.exchange_part(view),
    ]


def _shown(parts: Sequence[Part], width: int) -> list[Section]:
    return [(part.title, table.part_lines(part, width)) for part in parts]


def _speed(view: View, width: int, title: str) -> tuple[Section, Section]:
    """The table of the arms that were run, and reasons that had no room in it."""
    found = table.train_table(view)
    shown = screen(found, width)
    lines = [*shown.lines, *table.notes(view, shown, width)] if found.rows else []
    return (title, lines), ("Reasons in full", table.reasons(view, shown.cut))


def _accounts(view: View, *, details: bool = True) -> list[Part]:
    """Training by training, of a few without `details`: its ledger, its causes; then why some have
    none.
    """
    known = [arm for arm in view.arms if ledger.is_explained(view, arm)]
    shown = known if details else view.first_of(known)
    parts = [
        part
        for arm in shown
        for part in (
            ledger.ledger_part(view, arm, fold=not details), causes_part(view, arm)
        )
        if part.table or part.below
    ]  # fmt: skip
    if len(shown) < len(known):
        noun = "more evaluation" if view.evaluates else "more training"
        more = f"and {fmt.count(len(known) - len(shown), noun)} (--verbose shows all)"
        parts[-1] = replace(parts[-1], below=[*parts[-1].below, more])
    return [*parts, ledger.doubts_part(view)]


def _warnings(run: Run, view: View) -> Section:
    """Of those alike, that of the training whose steps are least alike is first."""
    names = ["batch"] * (len(view.groups) > 1)
    if len({arm.case.network for arm in view.arms}) > 1:
        names.insert(0, "network")
    found = [
        (warning, " ".join([view.label(training), *in_words(training.case, names)]))
        for training in sorted(run.of(Training), key=table.wall_gap, reverse=True)
        for warning in training.warnings
    ]
    return "Warnings", listed_once(found)


# ---------------------------------------------------------------- Markdown, HTML


def parts(run: Run) -> list[Part]:
    """For Markdown: tables of trainings, below a line on device and settings; then of loaders."""
    found: list[Part] = []
    if run.of(Training):
        device = fmt.clean(run.device.get("name", "unknown device"))
        found = [Part(f"{device}: {', '.join(what_was_trained(run))}."), *training_parts(run)]
    if run.of(Loading):
        found += [Part(table=loaders_table(run)), *map(joint_part, joints(run))]
    return found


def summary(run: Run) -> list[str]:
    """The verdict on trainings; with loaders, the results for each network and loader."""
    pictures = joints(run)
    if pictures or not run.of(Training):
        return [line for joint in pictures for line in joint_sentences(joint)]
    return verdict(run)


def warnings(run: Run) -> list[Text]:
    """The warnings of trainings."""
    return list(_warnings(run, view_of(run))[1]) if run.of(Training) else []


def training_parts(run: Run) -> list[Part]:
    """One row per arm or rung, in the order measured; the reason where there are no times.

    The caption has the settings that all arms share. Phases, predictions, ledgers and causes
    follow in tables of their own.
    """
    view = view_of(run)
    found = [*_tables(view), *_accounts(view)]
    return [
        Part("", table.train_table(view, learning.learning_columns(view)), table.short_note(view)),
        *(replace(part, title=f"{part.title}:") for part in found if part.table or part.below),
    ]


# ---------------------------------------------------------------- CSV


def csv(run: Run) -> tuple[Sequence[str], list[dict[str, Value]]]:
    """(columns, rows) of trainings, then of loaders."""
    view = view_of(run)
    columns = [
        *table.raw_columns(), *table.speed_columns(view), *costs.phase_columns(view),
        *learning.learning_columns(view), *predictions.raw_columns(), *ledger.raw_columns(),
        *raw_columns(), *ranks.exchange_columns(),
    ]  # fmt: skip
    trainings = records(Table(columns, [Row(arm) for arm in run.of(Training)], CSV_ORDER))
    loaders = records(loaders_table(run))
    names = [
        *(CSV_ORDER if run.of(Training) else ()),
        *(loaders[0] if run.of(Loading) else ()),
        *(trainings[0] if run.of(Training) else ()),
    ]
    return list(dict.fromkeys(names)), [*trainings[1], *loaders[1]]
