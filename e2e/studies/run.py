"""Runs a study's tasks, one after another, each into its part's run file; goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
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

    from e2e.commands.plan import Comparison
    from e2e.commands.scheduler import Job
    from e2e.commands.train import Procedure
    from microbench.results.types import Run

COUNT_EVERY = 10  # steps, of counted gradients
STATE, TOML, RUNS = "study.json", "study.toml", "runs"
IDENTITY = ("study", "sha256", "profile", "budget_s", "sets", "data")


@dataclass(frozen=True)
class State:
    """What a folder of a study holds beside its run files.

    `machine` are the kind, cores and GPUs that the plan was made for. `data` are the names of the
    user's data, without folders. `lacking` is the plan's. `done` are ids of tasks, `failed` why a
    task broke off.
    """

    study: str
    sha256: str
    profile: str
    budget_s: float
    sets: Factors
    data: tuple[str, ...]
    machine: Mapping[str, Any]
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])
    done: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


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
    data = read_json(path)
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
            if task.id in state.done:
                continue
            console.print(f"\n{study.name}, part {task.part} ({number} of {len(todo)}): "
                          f"{task.network}, {', '.join(task.recipes)}")  # fmt: skip
            failed = {name: why for name, why in state.failed.items() if name != task.id}
            path = out / RUNS / f"{task.file}.json"
            try:
                _run(task, path, quiet=quiet)
            except UserError as error:
                # A report is handed on: it has no folder of this machine.
                failed[task.id] = str(error).replace(f"--resume {path}: ", "")
                console.print(f"not measured: {error}")
            done = state.done if task.id in failed else (*state.done, task.id)
            state = kept(out, replace(state, done=done, failed=failed))
    return state


def _run(task: Task, path: Path, *, quiet: bool) -> None:
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
    run_requests(requests, file_name(task.file), _procedure(task, words))


def _procedure(task: Task, words: Mapping[str, Any]) -> Procedure:
    from e2e.commands.stalls import LOAD_BUDGET_S, Loaders, Stalls

    if task.kind == "loader":
        return Loaders([words["loader"]], task.workers, 0, False, LOAD_BUDGET_S)
    if task.kind == "stalls":
        budget_s = min(LOAD_BUDGET_S, words.get("budget") or LOAD_BUDGET_S)
        return Stalls(task.workers, 0, "all", budget_s)
    return Variants(task)


@dataclass(frozen=True)
class Variants:
    """The usual procedure with a task's variants of recipes, interleaved: "O3", "O3+bn32"."""

    task: Task

    def __call__(self, job: Job, run: Run) -> Run:
        """Every batch size a comparison, every variant an arm of it."""
        from e2e.commands.train import compare_recipes

        return compare_recipes(job, run, self._comparisons(job))

    def _comparisons(self, job: Job) -> list[Comparison]:
        from e2e.commands.plan import Comparison, plan

        work = job.work
        asked = work.request.arms
        by_batch: dict[int, list[Any]] = {}
        for arm in self.task.arms(work.kind):
            changes = {"loss_scale": arm.loss_scale, "keep_batchnorm_fp32": arm.keep_batchnorm_fp32}
            own = replace(
                asked, recipe=arm.recipe, batch=str(arm.batch), layout=arm.layout or None,
                base=replace(asked.base, **changes),
            )  # fmt: skip
            (one,) = plan(work.network, own, work.kind, work.memory_bytes)
            by_batch.setdefault(arm.batch, []).extend(one.arms)
        return [Comparison(tuple(dict.fromkeys(arms))) for arms in by_batch.values()]


def device_of(out: Path) -> tuple[str, Run | None]:
    """The kind of device that the run files of a folder were taken on, and one of them."""
    for path in sorted((out / RUNS).glob("*.json")):
        run = read_run(path)
        return str(run.device.get("kind") or "cuda"), run
    return "cuda", None
