"""Runs a study's tasks, one after another, each into its part's run file; goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from e2e.studies.factors import Factors
from e2e.studies.tasks import Plan, Task
from e2e.studies.types import Study
from microbench.errors import UserError
from microbench.results.runfile import claimed, read_json, read_run, write_text

if TYPE_CHECKING:
    from rich.console import Console

    from e2e.commands.plan import Planned
    from e2e.commands.scheduler import Job
    from microbench.results.types import Run

COUNT_EVERY = 10  # steps, of counted gradients
STATE, TOML, RUNS = "study.json", "study.toml", "runs"
IDENTITY = ("study", "sha256", "profile", "sets", "data")
RETIRED = "budget_s"  # of a state: older versions cut a study until it fitted


@dataclass(frozen=True)
class State:
    """What a folder of a study holds beside its run files.

    `machine` are the kind, cores and GPUs that the plan was made for. `data` are the names of the
    user's data, without folders. `lacking` is the plan's. `done` are ids of tasks, `failed` why a
    task broke off. `cells` are the keys of the cases of each task's arms, in order: by these a
    report finds what was measured.
    """

    study: str
    sha256: str
    profile: str
    sets: Factors
    data: tuple[str, ...]
    machine: Mapping[str, Any]
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])
    done: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


def begun(out: Path, state: State, content: bytes) -> State:
    """The state to go on with in a folder, which is made. UserError if it holds another study."""
    path = out / STATE
    if path.exists():
        before = read_state(out)
        for name in IDENTITY:
            then, now = getattr(before, name), getattr(state, name)
            if then != now:
                raise UserError(
                    f"{out} holds {before.study} with {name} {then}, not {now}; give the same, or "
                    "another --out"
                )
        return replace(before, machine=state.machine, lacking=state.lacking)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty, and holds no study; choose another folder")
    try:
        (out / RUNS).mkdir(parents=True, exist_ok=True)
        write_text(content.decode().rstrip("\n"), out / TOML)
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there ({error.strerror})") from None
    return kept(out, state)


def read_state(out: Path) -> State:
    """The state of a folder. UserError where it holds none, or a damaged one."""
    path = out / STATE
    if not path.exists():
        raise UserError(f"{out} holds no study: it has no {STATE}")
    data = {name: value for name, value in read_json(path).items() if name != RETIRED}
    try:
        return State(
            **cast("Any", {**data, "data": tuple(data["data"]), "done": tuple(data["done"])})
        )
    except (TypeError, KeyError):
        raise UserError(f"{path} is damaged, or of another version") from None


def kept(out: Path, state: State) -> State:
    """The same state, after writing it. UserError where the disk refuses."""
    try:
        write_text(json.dumps(asdict(state), indent=1), out / STATE)
    except OSError as error:
        raise UserError(f"cannot write {out / STATE} ({error.strerror})") from None
    return state


def run_tasks(
    study: Study, plan: Plan, out: Path, state: State, console: Console, *, quiet: bool
) -> State:
    """Run what is not done yet; one task that breaks off is a reason, and the others go on."""
    todo = [task for task in plan.tasks if not task.skipped]
    with claimed(out / STATE, "--out"):
        for number, task in enumerate(todo, 1):
            if task.id in state.done and task.id in state.cells:
                continue
            console.print(f"\n{study.name}, part {task.part} ({number} of {len(todo)}): "
                          f"{task.network}, {', '.join(task.recipes)}")  # fmt: skip
            failed = {name: why for name, why in state.failed.items() if name != task.id}
            path = out / RUNS / f"{task.file}.json"
            measure = Procedure(task)
            try:
                _run(task, path, measure, quiet=quiet)
            except UserError as error:
                # A report is handed on: it has no folder of this machine.
                failed[task.id] = str(error).replace(f"--resume {path}: ", "")
                console.print(f"not measured: {error}")
            done = tuple(dict.fromkeys([*state.done, *[task.id] * (task.id not in failed)]))
            cells = {**state.cells, **({task.id: measure.keys} if measure.keys else {})}
            state = kept(out, replace(state, done=done, failed=failed, cells=cells))
    return state


def _run(task: Task, path: Path, measure: Procedure, *, quiet: bool) -> None:
    """Measure a task into this file. UserError for what cannot be, on this machine or at all."""
    from e2e.commands.requests import request_of
    from e2e.commands.train import file_name, run_requests

    words = {**task.words, "quiet": quiet, ("resume" if path.exists() else "json"): path}
    words["recipe"] = ",".join(dict.fromkeys(arm.recipe for arm in task.arms("cuda"))) or "fp32"
    words["batch"] = ",".join(map(str, task.batches))
    if task.layouts:
        words["layout"] = ",".join(task.layouts)
    if "zero-gradients" in task.measure:
        words["count_gradients"] = COUNT_EVERY
    if task.kind == "train":
        instead: dict[str, Any] = {"record": "ledger" in task.measure}
    else:
        words.pop("workers", None)
        words.setdefault("loader", "torchvision")
        instead = {"workers": 0, "record": False}
    requests = [request_of(task.network, words, **instead)]
    if "predict" in task.measure:
        requests.insert(0, request_of(task.network, words, **instead, train=False))
    run_requests(requests, file_name(task.file), measure)


@dataclass
class Procedure:
    """How a task is measured. `keys` are those of its arms' cases, noted before anything runs."""

    task: Task
    keys: tuple[str, ...] = ()

    def __call__(self, job: Job, run: Run) -> Run:
        """Loaders alone, with the training beside them, or all variants of recipes interleaved."""
        from e2e.commands.plan import Comparison
        from e2e.commands.stalls import LOAD_BUDGET_S, Loaders, Stalls
        from e2e.commands.train import compare_recipes
        from e2e.results.loader_types import load_case

        arms = self._planned(job)
        of_loader = self.task.kind == "loader"
        self.keys = tuple((load_case(one.case) if of_loader else one.case).key for one in arms)
        request = job.work.request
        if of_loader:
            names = [request.arms.base.loader]
            return Loaders(names, self.task.workers, 0, False, LOAD_BUDGET_S)(job, run)
        if self.task.kind == "stalls":
            budget_s = min(LOAD_BUDGET_S, request.budget or LOAD_BUDGET_S)
            return Stalls(self.task.workers, 0, "all", budget_s)(job, run)
        by_batch: dict[int, list[Planned]] = {}
        for one in dict.fromkeys(arms):
            by_batch.setdefault(one.case.batch, []).append(one)
        return compare_recipes(job, run, [Comparison(tuple(same)) for same in by_batch.values()])

    def _planned(self, job: Job) -> list[Planned]:
        """What each arm of the task trains: "O3" and "O3+bn32" are two cases of one recipe."""
        from e2e.commands.plan import plan

        work = job.work
        asked = work.request.arms
        found: list[Planned] = []
        for arm in self.task.arms(work.kind):
            changes: dict[str, Any] = {
                "loss_scale": arm.loss_scale, "keep_batchnorm_fp32": arm.keep_batchnorm_fp32
            }  # fmt: skip
            if arm.workers is not None:
                changes["workers"] = arm.workers
            own = replace(
                asked, recipe=arm.recipe or asked.recipe, batch=str(arm.batch),
                layout=arm.layout or None, base=replace(asked.base, **changes),
            )  # fmt: skip
            (comparison,) = plan(work.network, own, work.kind, work.memory_bytes)
            found += comparison.arms
        return found


def device_of(out: Path) -> tuple[str, Run | None]:
    """The kind of device that the run files of a folder were taken on, and one of them."""
    for path in sorted((out / RUNS).glob("*.json")):
        run = read_run(path)
        return str(run.device.get("kind") or "cuda"), run
    return "cuda", None
