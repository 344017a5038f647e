"""The cells of a study: what each was asked, and what a run file says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from e2e.case import NO_COMPRESSION
from e2e.results.loader_types import Loading
from e2e.results.types import Training
from e2e.studies.factors import Factors
from e2e.studies.measures import COLUMNS, MEASURES, gain_of, seconds_to
from e2e.studies.run import State
from e2e.studies.tasks import Plan, Task
from microbench import fmt
from microbench.results.runfile import read_run
from microbench.results.types import Run

RAN, UNTESTABLE = "ok", "not testable here"
OLD = (
    "measured by an older version, which did not note which training is whose: run the study again"
)
NAMED = ("network", "recipe", "batch", "workers", "loader", "gpus", "compress")
GENERATED = ("generated", "made")  # accuracy on them compares with nothing published


@dataclass(frozen=True)
class Cell:
    """One cell. `id` is "PART-N", as in cells.csv; `reason` is why it has no values.

    `status` is RAN, UNTESTABLE, "skipped", "failed" or "not run".
    """

    id: str
    part: str
    measure: tuple[str, ...]
    factors: Factors
    status: str
    reason: str = ""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    training: Training | None = None

    def words(self, factors: Sequence[str]) -> list[str]:
        """These factors in words, those that it has: ["resnet50", "amp", "batch 64", "2 GPUs"]."""
        found: list[str] = []
        for name in factors:
            value = self.factors.get(name)
            if name == "compress" and value not in (None, NO_COMPRESSION):
                found.append(f"{value} gradients")
            elif name == "gpus" and value is not None:
                found.append(fmt.count(int(value), "GPU"))
            elif value is not None and name != "compress":
                found.append(str(value) if name in ("network", "recipe") else f"{name} {value}")
        return found

    @property
    def generated(self) -> bool:
        """Whether its data are not the author's, but made by a generator."""
        return self.factors.get("data") in GENERATED


def differing(cells: Sequence[Cell]) -> list[str]:
    """The NAMED factors in which cells differ."""
    return [name for name in NAMED if len({str(cell.factors.get(name)) for cell in cells}) > 1]


def cells_of(plan: Plan, runs: Path, state: State, kind: str) -> list[Cell]:
    """All cells of a plan, with what the run files in `runs` say. UserError for a damaged file.

    `state` has the key of each arm's case, and why a task broke off; `kind` is the device's:
    "cuda" or "cpu".
    """
    read: dict[str, Run] = {}
    found: list[Cell] = []
    numbers: dict[str, int] = {}
    for task in plan.tasks:
        path = runs / f"{task.file}.json"
        if not task.skipped and task.file not in read and path.exists():
            read[task.file] = read_run(path)
        keys = state.cells.get(task.id, ())
        reason = state.failed.get(task.id) or (
            OLD if task.id in state.done and not keys else "not run yet"
        )
        for index, arm in enumerate(task.arms(kind)):
            numbers[task.part] = number = numbers.get(task.part, 0) + 1
            cell = Cell(
                f"{task.part}-{number}", task.part, task.measure, {**task.named, **arm.factors},
                UNTESTABLE if task.skipped else "not run", task.skipped or reason,
            )  # fmt: skip
            if task.file in read and index < len(keys):
                cell = _measured(cell, task, read[task.file], keys[index])
            found.append(cell)
    return found


def _measured(cell: Cell, task: Task, run: Run, key: str) -> Cell:
    """The cell with what the run says of its case; as it is where the run does not have it."""
    loading = run.find(Loading, key)
    if loading is not None:
        return replace(
            cell, status=loading.status, reason=loading.reason or "",
            values={"per_s": loading.per_s},
        )  # fmt: skip
    training = run.find(Training, key)
    if training is None:
        return cell
    values = {
        name: COLUMNS[name].read(training)
        for measure in task.measure
        for name in MEASURES[measure].columns
    }
    if "time-to-accuracy" in task.measure:
        for target in task.targets:
            values[f"s_to_{100 * target:g}_pct"] = seconds_to(training, target)
    gain = gain_of(training)
    if gain:
        values["speedup"] = gain.ratio
    if "epochs" in task.words and values.get("iterations_s") is not None:
        values["projected_s"] = values["iterations_s"] * task.projected
    status = training.status if training.status != "predicted" else "not run"
    return replace(
        cell, status=status, reason=training.reason or "", values=values, training=training
    )
