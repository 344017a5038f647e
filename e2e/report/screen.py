"""The trainings of a run on the screen: titled sections of lines, a pure function of the run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from e2e.report import costs, errors, predictions
from e2e.report.arms import View, view_of, was_run
from e2e.report.cause_lines import cause_sections
from e2e.report.chart import train_chart
from e2e.report.learning import learning_table, learning_title
from e2e.report.table import notes as table_notes
from e2e.report.table import reasons, train_table, wall_gap
from e2e.report.verdict import verdict
from e2e.report.waterfall import waterfall_sections
from e2e.results.types import Training
from microbench import fmt
from microbench.report import notes
from microbench.results.types import Run

Section = tuple[str, Sequence[Text]]


def training_sections(run: Run, width: int, *, details: bool = False) -> list[Section]:
    """(title, lines) of each part of the screen; parts with nothing to say have no lines.

    `details` adds the state of the device and why each step takes what it takes.
    """
    view = view_of(run)
    ran = view.only(was_run)
    table = train_table(ran, width)
    below = [*table_notes(ran, table, width), *costs.setups(view)]
    return [
        ("", [*table.lines, *below] if ran.groups else []),
        ("Reasons in full", reasons(view, table.cut)),
        (predictions.ALONE_TITLE, predictions.alone_table(view, width, details=details)),
        (learning_title(run), learning_table(view, width)),
        (costs.phases_title(view), costs.phases_table(view, width)),
        (costs.STATES_TITLE, costs.states(view) if details else []),
        ("Why a step takes what it takes", costs.whys(view) if details else []),
        (predictions.BESIDE_TITLE, predictions.beside_table(view, width, details=details)),
        ("", train_chart(view, width)),
        *_accounts(view, width, details),
        ("In short", _in_short(run)),
        (errors.ERRORS_TITLE, errors.errors_table(run, width)),
        ("Warnings", notes.told_once(_warnings(run, view))),
    ]


def table_sections(run: Run, width: int, title: str) -> list[Section]:
    """The table and the warnings alone, for trainings that are part of something else."""
    view = view_of(run)
    ran = view.only(was_run)
    table = train_table(ran, width)
    return [
        (title, [*table.lines, *table_notes(ran, table, width)] if ran.groups else []),
        ("Reasons in full", reasons(view, table.cut)),
        ("Warnings", notes.told_once(_warnings(run, view))),
    ]


def _accounts(view: View, width: int, details: bool) -> list[Section]:
    """Training by training: its ledger, its fixes, its findings."""
    parts = [
        *waterfall_sections(view, width, details=details),
        *cause_sections(view, width, details=details),
    ]
    arms = [arm for group in view.groups for arm in group.arms]
    place = {id(arm): i for i, arm in enumerate(arms)}
    return [section for _, section in sorted(parts, key=lambda part: place[id(part[0])])]


def _in_short(run: Run) -> list[Text]:
    return [
        Text("  " + fmt.clean(sentence)) if sentence.startswith(" ")
        else Text(fmt.clean(sentence), "bold")
        for sentence in verdict(run)
    ]  # fmt: skip


def _warnings(run: Run, view: View) -> list[notes.Found]:
    """Of those alike, that of the training whose steps are least alike is first."""
    several = len(view.groups) > 1
    return [
        (warning, view.label(training) + f" batch {training.case.batch}" * several)
        for training in sorted(run.of(Training), key=wall_gap, reverse=True)
        for warning in training.warnings
    ]
