"""The cells of a study: what each was asked, and what a run file says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.case import NO_COMPRESSION, TrainCase
from e2e.results.loader_types import Loading
from e2e.results.types import Training
from e2e.studies.factors import Factors
from e2e.studies.measures import COLUMNS, MEASURES, gain_of, seconds_to
from e2e.studies.tasks import Arm, Plan, Task
from microbench import fmt
from microbench.results.runfile import read_run
from microbench.results.types import Run

RAN, UNTESTABLE = "ok", "not testable here"
BASES = ("fp32", "O0")
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

    def fits(self, where: Mapping[str, Any]) -> bool:
        """Whether it has these factors; values are compared as text."""
        own = {**self.factors, "part": self.part}
        return all(str(own.get(name)) == str(value) for name, value in where.items())

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
    def speedup(self) -> tuple[float, tuple[float, float] | None] | None:
        """(times faster than float32, 95 % interval); None where it was not compared."""
        gain = gain_of(self.training) if self.training else None
        return (gain.ratio, gain.ci95) if gain else None

    def repeats(self, column: str) -> list[float]:
        """A column of each training from scratch, in order."""
        each = COLUMNS[column].each if column in COLUMNS else None
        if each is None or self.training is None:
            return []
        values = (each(one) for one in self.training.repeats)
        return [value for value in values if value is not None]

    @property
    def generated(self) -> bool:
        """Whether its data are not the author's, but made by a generator."""
        return self.factors.get("data") in GENERATED


def differing(cells: Sequence[Cell]) -> list[str]:
    """The NAMED factors in which cells differ."""
    return [name for name in NAMED if len({str(cell.factors.get(name)) for cell in cells}) > 1]


def baseline_of(cell: Cell, cells: Sequence[Cell], recipe: str | None = None) -> Cell | None:
    """The cell that differs in the recipe alone: of this one, or in float32."""
    wanted = (recipe,) if recipe else BASES
    alike = {k: v for k, v in cell.factors.items() if k != "recipe"}
    return next(
        (
            one
            for one in cells
            if one.part == cell.part
            and one.factors.get("recipe") in wanted
            and {k: v for k, v in one.factors.items() if k != "recipe"} == alike
        ),
        None,
    )


def cells_of(plan: Plan, runs: Path, failed: Mapping[str, str], kind: str) -> list[Cell]:
    """All cells of a plan, with what the run files in `runs` say. UserError for a damaged file.

    `failed` has why a task broke off, by its id; `kind` is the device's: "cuda" or "cpu".
    """
    read: dict[str, Run] = {}
    found: list[Cell] = []
    numbers: dict[str, int] = {}
    for task in plan.tasks:
        path = runs / f"{task.file}.json"
        if not task.skipped and task.file not in read and path.exists():
            read[task.file] = read_run(path)
        run = None if task.skipped else read.get(task.file)
        for arm in task.arms(kind):
            numbers[task.part] = number = numbers.get(task.part, 0) + 1
            found.append(_cell(f"{task.part}-{number}", task, arm, run, failed.get(task.id, "")))
    return found


def _cell(id: str, task: Task, arm: Arm, run: Run | None, why: str) -> Cell:
    factors = {**task.named, **arm.factors}
    if task.skipped:
        return Cell(id, task.part, task.measure, factors, UNTESTABLE, task.skipped)
    if task.kind == "loader":
        loading = _loading(run, task, arm) if run else None
        if loading is None:
            return Cell(id, task.part, task.measure, factors, "not run", why or "not run yet")
        return Cell(
            id, task.part, task.measure, factors, loading.status, loading.reason or "",
            {"per_s": loading.per_s},
        )  # fmt: skip
    training = next((t for t in run.of(Training) if _is(t.case, task, arm)), None) if run else None
    if training is None:
        return Cell(id, task.part, task.measure, factors, "not run", why or "not run yet")
    values = {
        name: COLUMNS[name].read(training)
        for measure in task.measure
        for name in MEASURES[measure].columns
    }
    if "time-to-accuracy" in task.measure:
        for target in task.targets:
            values[f"s_to_{100 * target:g}_pct"] = seconds_to(training, target)
    speedup = gain_of(training)
    if speedup:
        values["speedup"] = speedup.ratio
    if "epochs" in task.words and values.get("iterations_s") is not None:
        values["projected_s"] = values["iterations_s"] * task.projected
    status = training.status if training.status != "predicted" else "not run"
    return Cell(id, task.part, task.measure, factors, status, training.reason or "", values,
                training)  # fmt: skip


def _is(case: TrainCase, task: Task, arm: Arm) -> bool:
    """Whether a training is that of this arm: what the task sets, and nothing else, is compared."""
    wanted: dict[str, Any] = {
        "network": task.network, "batch": arm.batch, "recipe": arm.recipe,
        "loss_scale": arm.loss_scale, "keep_batchnorm_fp32": arm.keep_batchnorm_fp32,
        "cached": False, "gpus": task.named.get("gpus", 1),
        "compress": task.words.get("compress", NO_COMPRESSION),
    }  # fmt: skip
    if arm.layout:
        wanted["layout"] = arm.layout
    if task.kind == "stalls":
        wanted |= {"workers": arm.workers, "loader": task.words.get("loader") or "torchvision"}
    for name in ("loader", "optimizer", "clip", "cpus", "lr"):
        value = task.words.get(name)
        if value is not None and hasattr(case, name):
            wanted[name] = value
    return all(getattr(case, name) == value for name, value in wanted.items())


def _loading(run: Run, task: Task, arm: Arm) -> Loading | None:
    return next(
        (
            one
            for one in run.of(Loading)
            if (one.case.workers, one.case.batch) == (arm.workers, arm.batch)
            and one.case.loader == (task.words.get("loader") or "torchvision")
        ),
        None,
    )
