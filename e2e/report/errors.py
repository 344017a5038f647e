"""The error table: predicted against measured, over the trainings of a run.

Pure functions of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from rich.text import Text

from e2e.report.figures import bottleneck, signed_pct
from e2e.report.predictions import error_pct, host_speed_error_pct, is_beside, is_within, off_pct
from e2e.report.table import table_lines
from e2e.results.baselines import BASELINES, baselines
from e2e.results.types import BORDER, Training
from e2e.validation_sets import CALIBRATED_ON, seen
from microbench import fmt
from microbench.report.table import DIM, Column, Row, Table, screen
from microbench.results.types import METHOD_VERSION, Run
from microbench.timing.stats import half_width_pct

WORST_TITLE = "Largest prediction errors"
FEWEST_SUMMARISED = 5  # comparisons of a run whose screen is a summary
MOST_WORST = 8
ERRORS_TITLE = "Prediction errors (absolute, in per cent)"


@dataclass(frozen=True)
class Line:
    """One row of the error table: median and largest of `count` errors, in per cent.

    `worst` names the training with the largest one. `target` is the project's goal for (median,
    largest), None for none.
    """

    what: str
    count: int
    median_pct: float
    largest_pct: float
    worst: str
    target: tuple[float, float] | None = None

    @property
    def met(self) -> bool:
        """Whether both are within the target; True without a target."""
        middle, largest = self.target or (math.inf, math.inf)
        return self.median_pct <= middle and self.largest_pct <= largest

    @property
    def verdict(self) -> str:
        """Such as "1 / 3 met"; "" without a target."""
        if self.target is None:
            return ""
        return f"{self.target[0]:g} / {self.target[1]:g} {'met' if self.met else 'missed'}"


@dataclass(frozen=True)
class Hits:
    """How many of `count` predictions were right."""

    right: int
    count: int


def error_table(trainings: Sequence[Training]) -> list[Line]:
    """Errors of step times by bottleneck, of speed-ups, and of peak memory.

    The bottleneck is the measured one: a CPU-bound step is no easier to predict because the
    prediction took it for another kind. A reader knows only the predicted one, so a row has the
    steps that were predicted to be GPU-bound. A measured speed-up is a mean over turns, which a few
    slow turns move; the speed-up of the median steps has its own row. A captured step is not
    predicted: the graph of its operations was captured and timed.
    """
    both = [t for t in trainings if t.predicted and t.steps]
    gpu = [t for t in both if t.limit == "gpu"]
    host = [t for t in both if t.limit == "host"]
    low = {
        who: [t for t in some if t.case.recipe.startswith("amp")]
        for who, some in (("GPU", gpu), ("CPU launch", host))
    }
    plain, captured = ([t for t in gpu if t.case.graph == graph] for graph in (False, True))
    said = [t for t in both if not t.case.graph and t.predicted and t.predicted.limit == "gpu"]
    rows = (
        _line("step, on a CPU", [t for t in both if t.limit is None], error_pct),
        _line("step, bottleneck GPU", plain, error_pct, (1.0, 3.0)),
        _line("step, bottleneck predicted as GPU", said, error_pct),
        _line("step, timed as a captured graph", captured, error_pct, (1.0, 3.0)),
        _line("step, bottleneck CPU launch", host, error_pct, (8.0, 20.0)),
        _line("the same, corrected for the CPU's speed", host, host_speed_error_pct, (8.0, 20.0)),
        *(
            _line(f"{what} over {base}, bottleneck {who}", some, pct, target)
            for who, some in low.items()
            for base in BASELINES
            for what, pct, target in (
                ("AMP's speed-up", _speedup_pct(base), (1.5, 4.0) if who == "GPU" else None),
                ("the same, of median steps", _medians_pct(base, both), None),
            )
        ),
        _line("peak memory", both, _memory_pct, (5.0, 5.0)),
    )
    return [row for row in rows if row is not None]


def limits_named(trainings: Sequence[Training]) -> Hits:
    """Of the trainings predicted and measured, those whose bottleneck was classified correctly."""
    pairs = _limits(trainings)
    return Hits(sum(predicted == found for predicted, found in pairs), len(pairs))


def on_the_border(trainings: Sequence[Training]) -> Hits:
    """Of the trainings predicted and measured, those predicted to have either bottleneck."""
    pairs = _limits(trainings)
    return Hits(sum(predicted == BORDER for predicted, _ in pairs), len(pairs))


def _limits(trainings: Sequence[Training]) -> list[tuple[str | None, str]]:
    """The (predicted, measured) bottlenecks."""
    return [(t.predicted.limit, t.limit) for t in trainings if t.predicted and t.steps and t.limit]


def intervals_kept(trainings: Sequence[Training], limit: str) -> Hits:
    """Of the steps with this bottleneck, those measured inside the prediction's interval."""
    known = [kept for t in trainings if t.limit == limit and (kept := is_within(t)) is not None]
    return Hits(sum(known), len(known))


def measured_half_pct(trainings: Sequence[Training], limit: str) -> float | None:
    """Median half width of the measurements' intervals, in per cent, for this bottleneck.

    None if unknown. A prediction cannot be shown to be closer than this.
    """
    halves = [
        half_width_pct(t.steps.median_s, t.steps.ci95_s)
        for t in trainings
        if t.predicted and t.predicted.interval_s and t.steps and t.steps.ci95_s
        and t.limit == limit
    ]  # fmt: skip
    return median(halves) if halves else None


def _line(
    what: str,
    trainings: Sequence[Training],
    pct: Callable[[Training], float | None],
    target: tuple[float, float] | None = None,
) -> Line | None:
    known = [(abs(value), t) for t in trainings if (value := pct(t)) is not None]
    if not known:
        return None
    largest, worst = max(known, key=lambda pair: pair[0])
    return Line(what, len(known), median(v for v, _ in known), largest, _named(worst), target)


def _predicted_speedup(training: Training, base: str) -> float | None:
    return training.predicted.speedup.get(base) if training.predicted else None


def _speedup_pct(base: str) -> Callable[[Training], float | None]:
    def pct(training: Training) -> float | None:
        measured = training.speedup.get(base)
        return off_pct(_predicted_speedup(training, base), measured.ratio if measured else None)

    return pct


def _medians_pct(base: str, trainings: Sequence[Training]) -> Callable[[Training], float | None]:
    steps_s = {t.case: t.measured_s for t in trainings if t.measured_s}

    def pct(training: Training) -> float | None:
        beside = [case for case in steps_s if case.group == training.case.group]
        other, step_s = baselines(training.case, beside).get(base), steps_s.get(training.case)
        measured = steps_s[other] / step_s if other and step_s else None
        return off_pct(_predicted_speedup(training, base), measured)

    return pct


def _memory_pct(training: Training) -> float | None:
    predicted = training.predicted.memory_bytes if training.predicted else None
    return off_pct(predicted, training.memory_peak_bytes)


def _named(training: Training) -> str:
    case = training.case
    parts = [case.network, case.recipe, case.layout, f"batch {case.batch}", "graph" * case.graph]
    return " ".join(filter(None, parts))


# ---------------------------------------------------------------- as read


def is_validation(run: Run) -> bool:
    """Whether the run predicted and measured so many comparisons that it needs a summary."""
    both = filter(is_beside, run.of(Training))
    return len({(t.case.network, t.case.batch) for t in both}) >= FEWEST_SUMMARISED


def worst_table(run: Run) -> Table[Training]:
    """The steps with the largest prediction errors, the worst first; in ms and per cent."""
    known = [t for t in run.of(Training) if is_beside(t) and error_pct(t) is not None]
    worst = sorted(known, key=lambda t: -abs(error_pct(t) or 0.0))[:MOST_WORST]
    columns: list[Column[Training]] = [
        Column("training", lambda t: fmt.clean(_named(t))),
        Column("predicted\nms", lambda t: fmt.milliseconds(t.predicted and t.predicted.step_s),
               right=True),
        Column("measured\nms", lambda t: fmt.milliseconds(t.measured_s), right=True),
        Column("error", lambda t: signed_pct(error_pct(t)), right=True),
        Column("bottleneck", lambda t: bottleneck(t.limit), drop=1),
    ]  # fmt: skip
    return Table(columns, [Row(training) for training in worst])


def worst_lines(run: Run, width: int) -> list[Text]:
    """The largest errors, and how to see the others."""
    count = sum(map(is_beside, run.of(Training)))
    note = f"{fmt.count(count, 'training')} in all: --verbose shows every step, ledger and fix"
    return [*screen(worst_table(run), width).lines, Text(note, DIM)]


def errors_table(run: Run) -> Table[Line]:
    """The error table of a validation, in per cent; no rows for other runs."""
    columns: list[Column[Line]] = [
        Column("error of the", lambda line: line.what),
        Column("cases", lambda line: str(line.count), right=True),
        Column("median", lambda line: f"{line.median_pct:.1f}", right=True),
        Column("largest", lambda line: f"{line.largest_pct:.1f}", right=True),
        Column("target", lambda line: line.verdict),
        Column("worst case", lambda line: fmt.clean(line.worst), drop=1),
    ]
    table = Table(columns)
    both = [t for t in run.of(Training) if is_beside(t)]
    several = len({(t.case.network, t.case.batch) for t in both}) > 1
    if several or "validate" in run.command:
        table.rows += [Row(line) for line in error_table(both)]
    return table


def errors_lines(run: Run, width: int) -> list[Text]:
    """The table and its sentences, at most `width` columns wide; empty without rows."""
    return table_lines(errors_table(run), width, error_sentences(run))


def error_sentences(run: Run) -> list[str]:
    """How often the bottleneck was classified correctly and the step was inside its interval.

    Also the measured steps' own intervals, what was timed and not predicted, and where the rows are
    from.
    """
    trainings = run.of(Training)
    named = limits_named(trainings)
    border = on_the_border(trainings)
    found = [f"The bottleneck was classified correctly in {_share(named)}."] if named.count else []
    if border.right:
        wrong = Hits(border.count - border.right - named.right, border.count)
        found.append(
            f"On the border of GPU and CPU launch, so that either is right: {_share(border)}. "
            f"Classified wrongly: {_share(wrong)}."
        )
    for limit, who in (("gpu", "GPU"), ("host", "CPU launch")):
        kept = intervals_kept(trainings, limit)
        if kept.count:
            found.append(
                f"Bottleneck {who}: the measured step was inside the predicted interval in "
                f"{_share(kept)}."
            )
            half_pct = measured_half_pct(trainings, limit)
            if half_pct is not None:
                found.append(
                    "Half of these steps have a measured 95 % interval of "
                    f"±{fmt.per_cent(half_pct)} or wider."
                )
    both = [t for t in trainings if is_beside(t)]
    return [*found, *_captured(both), *_origin(both), *_age(run, both)] if both else found


def _captured(trainings: Sequence[Training]) -> list[str]:
    """That captured steps are no predictions."""
    count = sum(t.case.graph for t in trainings)
    if not count:
        return []
    return [
        f"Of {len(trainings)} steps, {count} captured: the graph of their operations was timed, "
        "not predicted. Rows of speed-ups and memory, and the counts above, include these."
    ]


def _origin(trainings: Sequence[Training]) -> list[str]:
    """Which rows are of networks that the method has seen."""
    known = seen(dict.fromkeys(t.case.network for t in trainings))
    if not known:
        return ["None of these networks was used to develop or to calibrate the method."]
    rows = sum(t.case.network in known for t in trainings)
    found = [
        f"{rows} of {len(trainings)} steps are of networks that the method was developed on "
        f"({len(known)}): their errors are not independent of it."
    ]
    calibrated = [fmt.clean(name) for name in known if name in CALIBRATED_ON]
    if calibrated:
        found.append(f"Also calibration models, at a small size: {fmt.joined(calibrated)}.")
    return found


def _age(run: Run, trainings: Sequence[Training]) -> list[str]:
    """Which rows predate this code, as far as the file says."""
    days = sorted(t.measured_at[:10] for t in trainings if t.measured_at)
    file = f"the file is of {fmt.clean(run.started_at[:10])}"
    if run.method_version < METHOD_VERSION:
        versions = f"method version {run.method_version}, now {METHOD_VERSION}"
        return [f"All rows predate this code: {file}, {versions}."]
    found: list[str] = []
    if days:
        found.append(f"{fmt.count(len(days), 'step')} measured from {days[0]} to {days[-1]}.")
    if len(days) < len(trainings):
        undated = fmt.count(len(trainings) - len(days), "step")
        found.append(f"{undated} without a date, {file}: may predate this code.")
    return [fmt.clean(line) for line in found]


def _share(hits: Hits) -> str:
    return f"{hits.right} of {hits.count} ({100 * hits.right / hits.count:.3g}%)"
