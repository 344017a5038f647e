"""Trainings and loader runs of a run: what `microbench.results.kinds.Report` asks of a kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rich.text import Text

from e2e.case import OP, TrainCase
from e2e.report import causes, figures, predictions, table, waterfall
from e2e.report.arms import OPTIONS, in_words, view_of, what_was_trained
from e2e.report.costs import PHASES, phase_columns
from e2e.report.joint import Joint, joint_lines, joint_sentences, joints
from e2e.report.learning import learning_columns
from e2e.report.loaders import TITLE, loaders_lines, loaders_table
from e2e.report.markdown import loading_markdown, training_caption, training_markdown
from e2e.report.screen import Section, table_sections, training_sections
from e2e.results import loader_types
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import Training
from microbench import fmt
from microbench.report.table import Row, Table, Value, records
from microbench.results.types import Ratio, Run

# The first names of CSV, in an order that does not change; new ones follow.
CSV_ORDER = (
    "op", *(field.name for field in fields(TrainCase)),
    "rung", "status", "reason", "unit", "step_units", "images_per_s", "step_s",
    "ci95_low_s", "ci95_high_s", "samples", "wall_per_s", "busy_s", "host_s", "launches",
    *(f"{phase}_{clock}_s" for phase in PHASES for clock in ("host", "gpu")),
    "memory_peak_bytes", "fits_batch", "gpu_util_mean_pct", "gpu_util_min_pct", "gpu_util_max_pct",
    "sm_clock_mhz", "power_w", "images_per_j", "temperature_c", "throttle", "setup_s", "compile_s",
    "skipped_steps", "accuracy_mean", "accuracy_std", "loss_mean", "loss_std", "train_mean_s",
    "train_std_s", "repeats", "seeds", "chance", "converged", "convergence", "limit", "why",
    *(f"speedup_{name}{end}" for name in table.BASELINES for end in ("", "_low", "_high")),
    "predicted_step_s", "predicted_error_pct",
)  # fmt: skip

FIRST: Mapping[str, str] = {OP: "recipe", loader_types.OP: "loader"}


def conditions(run: Run) -> list[str]:
    """What was trained, for the header."""
    return what_was_trained(run) if run.of(Training) else []


def sections(run: Run, width: int, *, details: bool) -> list[Section]:
    """The screen's parts on trainings and loaders."""
    if joints(run) or not run.of(Training):
        return _fed_sections(run, width, details=details)
    return [*training_sections(run, width, details=details), (TITLE, loaders_lines(run, width))]


def _fed_sections(run: Run, width: int, *, details: bool) -> list[Section]:
    """Loaders alone; then, where recipes were measured too, those alone and both together.

    `details` adds what a screen of trainings has for each of them.
    """
    pictures = joints(run)
    together = {t.case.key for joint in pictures for t in joint.trainings}
    apart = run.with_all(Training, tuple(t for t in run.of(Training) if t.case.key not in together))
    found: list[Section] = [(TITLE, loaders_lines(run, width))]
    if apart.of(Training):
        found += table_sections(apart, width, "Recipes alone")
    for joint in pictures:
        found += [(_title(joint), joint_lines(joint, width)), ("In short", _sentences(joint))]
    if details and pictures:
        fed = run.with_all(Training, tuple(t for joint in pictures for t in joint.trainings))
        found += training_sections(fed, width, details=True)
    return found


def markdown(run: Run) -> list[str]:
    """Tables of trainings, then of loaders."""
    tables: list[str] = []
    if run.of(Training):
        tables.append(f"{training_caption(run)}\n\n{training_markdown(run)}")
    if run.of(Loading):
        tables.append(loading_markdown(run))
    return tables


def csv(run: Run) -> tuple[Sequence[str], list[dict[str, Value]]]:
    """(columns, rows) of trainings, then of loaders."""
    trainings, loaders = records(training_records(run)), records(loaders_table(run))
    names = [
        *(CSV_ORDER if run.of(Training) else ()),
        *(loaders[0] if run.of(Loading) else ()),
        *(trainings[0] if run.of(Training) else ()),
    ]
    return list(dict.fromkeys(names)), [*trainings[1], *loaders[1]]


def training_records(run: Run) -> Table[Training]:
    """All that is known of each training, for CSV."""
    view = view_of(run)
    columns = [
        *table.raw_columns(), *table.speed_columns(view), *phase_columns(view),
        *learning_columns(view), *predictions.raw_columns(), *waterfall.raw_columns(),
        *causes.raw_columns(),
    ]  # fmt: skip
    return Table(columns, [Row(arm) for arm in run.of(Training)], CSV_ORDER)


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
