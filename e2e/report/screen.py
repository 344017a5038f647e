"""The trainings of a run on the screen: titled sections of lines, a pure function of the run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from e2e.report import costs, errors, learning, predictions, table
from e2e.report.arms import View, view_of
from e2e.report.causes import cause_sections
from e2e.report.chart import train_chart
from e2e.report.verdict import verdict
from e2e.report.waterfall import waterfall_sections
from e2e.results.types import Training
from microbench import fmt
from microbench.report import notes
from microbench.report.table import screen
from microbench.results.types import Run

Section = tuple[str, Sequence[Text]]


def training_sections(run: Run, width: int, *, details: bool = False) -> list[Section]:
    """(title, lines) of each part of the screen; parts with nothing to say have no lines.

    `details` adds the state of the device and why each step takes what it takes.
    """
    view = view_of(run)
    (_, lines), reasons = _speed(view, width, "")
    return [
        ("", [*lines, *costs.setups(view)] if lines else []),
        reasons,
        (predictions.ALONE_TITLE, predictions.alone_lines(view, width, details=details)),
        (learning.learning_title(run), learning.learning_lines(view, width)),
        (costs.phases_title(view), costs.phases_lines(view, width)),
        (costs.STATES_TITLE, costs.states(view) if details else []),
        ("Why a step takes what it takes", costs.whys(view) if details else []),
        (predictions.BESIDE_TITLE, predictions.beside_lines(view, width, details=details)),
        ("", train_chart(view, width)),
        *_accounts(view, width, details),
        ("In short", _in_short(run)),
        (errors.ERRORS_TITLE, errors.errors_lines(run, width)),
        ("Warnings", notes.told_once(_warnings(run, view))),
    ]


def table_sections(run: Run, width: int, title: str) -> list[Section]:
    """The table and the warnings alone, for trainings that are part of something else."""
    view = view_of(run)
    return [*_speed(view, width, title), ("Warnings", notes.told_once(_warnings(run, view)))]


def _speed(view: View, width: int, title: str) -> tuple[Section, Section]:
    """The table of the arms that were run, and reasons that had no room in it."""
    found = table.train_table(view)
    shown = screen(found, width)
    lines = [*shown.lines, *table.notes(view, shown, width)] if found.rows else []
    return (title, lines), ("Reasons in full", table.reasons(view, shown.cut))


def _accounts(view: View, width: int, details: bool) -> list[Section]:
    """Training by training: its ledger, its fixes, its findings."""
    parts = [
        *waterfall_sections(view, width, details=details),
        *cause_sections(view, width, details=details),
    ]
    place = {id(arm): i for i, arm in enumerate(view.arms)}
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
        for training in sorted(run.of(Training), key=table.wall_gap, reverse=True)
        for warning in training.warnings
    ]
