"""Trainings and loader runs of a run: what `microbench.results.kinds.Report` asks of a kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from microbench.report.table_csv import Cell
from rich.text import Text

from e2e.case import OP
from e2e.report import figures
from e2e.report.arms import OPTIONS, in_words, what_was_trained
from e2e.report.joint import Joint, joints
from e2e.report.joint_table import joint_sentences, joint_table
from e2e.report.loaders_table import TITLE, loaders_table
from e2e.report.loading_markdown import loading_markdown
from e2e.report.loading_table_csv import COLUMNS as LOADING_COLUMNS
from e2e.report.loading_table_csv import loading_row
from e2e.report.markdown import training_caption, training_table
from e2e.report.screen import Section, table_sections, training_sections
from e2e.report.table_csv import COLUMNS as TRAINING_COLUMNS
from e2e.report.table_csv import training_row
from e2e.results import loader_types
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import TrainCase, Training
from microbench import fmt
from microbench.results.types import Ratio, Run

FIRST: Mapping[str, str] = {OP: "recipe", loader_types.OP: "loader"}


def conditions(run: Run) -> list[str]:
    """What was trained, for the header."""
    return what_was_trained(run) if run.of(Training) else []


def sections(run: Run, width: int, *, details: bool) -> list[Section]:
    """The screen's parts on trainings and loaders."""
    if joints(run) or not run.of(Training):
        return _fed_sections(run, width, details=details)
    return [
        *training_sections(run, width, details=details),
        (TITLE, loaders_table(run, width)),
    ]


def _fed_sections(run: Run, width: int, *, details: bool) -> list[Section]:
    """Loaders alone; then, where recipes were measured too, those alone and both together.

    `details` adds what a screen of trainings has for each of them.
    """
    pictures = joints(run)
    together = {t.case.key for joint in pictures for t in joint.trainings}
    apart = run.with_all(Training, tuple(t for t in run.of(Training) if t.case.key not in together))
    found: list[Section] = [(TITLE, loaders_table(run, width))]
    if apart.of(Training):
        found += table_sections(apart, width, "Recipes alone")
    for joint in pictures:
        found += [(_title(joint), joint_table(joint, width)), ("In short", _sentences(joint))]
    if details and pictures:
        fed = run.with_all(Training, tuple(t for joint in pictures for t in joint.trainings))
        found += training_sections(fed, width, details=True)
    return found


def markdown(run: Run) -> list[str]:
    """Tables of trainings, then of loaders."""
    tables: list[str] = []
    if run.of(Training):
        tables.append(f"{training_caption(run)}\n\n{training_table(run)}")
    if run.of(Loading):
        tables.append(loading_markdown(run))
    return tables


def csv(run: Run) -> tuple[Sequence[str], list[dict[str, Cell]]]:
    """(columns, rows) of trainings, then of loaders."""
    trainings, loadings = run.of(Training), run.of(Loading)
    columns = (*TRAINING_COLUMNS * bool(trainings), *LOADING_COLUMNS * bool(loadings))
    rows = [*map(training_row, trainings), *map(loading_row, loadings)]
    return columns, rows


def chart(run: Run) -> Any:
    """The chart of loaders, where there are some beside what they feed; else of trainings."""
    from e2e.report.plot_loading import loading_chart
    from e2e.report.plot_training import training_chart

    if joints(run) or (run.of(Loading) and not run.of(Training)):
        return loading_chart(run)
    return training_chart(run)


def cells(case: TrainCase | LoadCase) -> tuple[str, str, str]:
    """Of a training: recipe, what is trained, options; of a loader: its name, data, how."""
    if isinstance(case, TrainCase):
        told = ["network", "batch"]
        told += [] if case.data == "synthetic" else ["data", "loader", "workers", "prefetch"]
        return (fmt.clean(case.recipe), ", ".join(in_words(case, told)),
                " ".join(in_words(case, OPTIONS)))  # fmt: skip
    how = [fmt.count(case.workers, "worker"), *["cold files"] * case.cold]
    how += [f"prefetch {case.prefetch}"] if case.prefetch else []
    what = f"{fmt.clean(case.data)} data, batch {case.batch}"
    return fmt.clean(case.loader), what, ", ".join(how)


def ratio(op: str, value: Ratio) -> str:
    """A ratio with its interval; of steps, which are known better, with more digits."""
    return figures.interval(value) if op == OP else fmt.interval(value)


def _title(joint: Joint) -> str:
    case = joint.trainings[0].case
    return (
        f"Together: {fmt.clean(case.network)}, batch {case.batch}, loader {fmt.clean(joint.loader)}"
    )


def _sentences(joint: Joint) -> list[Text]:
    return [
        Text(sentence, "" if sentence.startswith(" ") else "bold")
        for sentence in joint_sentences(joint)
    ]
