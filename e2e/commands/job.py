"""The training process. It has the device, the data and the variants, and carries out one job.

What it finds goes one way, to the parent, which saves it. Over several GPUs each has a process, and
all do the same; rank 0 speaks. Where this process dies, the parent starts another with the same
job, what was found so far, and what is not to be tried again.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from click import Context

from e2e.case import TrainCase
from e2e.options import TrainOptions
from e2e.plan import check_device, notes, plan
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import Training
from e2e.training.launch import RanksLost, dist_env, launch, leave_lost
from microbench.command_line import Program
from microbench.results.types import Run, Warning
from microbench.streams import clean
from microbench.worker import WorkerDied, greet_parent, serve_requests

if TYPE_CHECKING:
    from e2e.commands.session import Session

Result = Training | Loading

SILENT = "9"  # of the profiler's own messages on standard error
POLL_S = 0.05  # sensors are read less often than for kernels: the host has a loop to run


class Stage(StrEnum):
    """What a process does, as far as it matters where it dies."""

    OPENING = "opening"
    ENDING = "ending"
    LOADING = "loading"
    PREDICTING = "predicting"
    SETTING_UP = "setting up"
    TIMING = "timing"
    RECORDING = "recording"
    HOLDING = "holding"
    TRAINING = "training"


class Pipe(Protocol):
    """To the parent: ("ok", event), or ("stage", key, text)."""

    def send(self, message: tuple[Any, ...], /) -> None:
        """Send a message."""
        ...


class Silent:
    """In the place of a pipe on the ranks after 0: rank 0 speaks, but for what breaks this one."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def send(self, message: tuple[Any, ...], /) -> None:
        """Print why this rank ends; nothing else."""
        kind, *rest = message
        if kind == "dead":
            print(clean(f"rank {self._rank}: {rest[0]}"), file=sys.stderr, flush=True)


# ---------------------------------------------------------------- what is asked, and reported


Procedure = Callable[["Session", Run], Run]  # adds to the run


@dataclass(frozen=True)
class Job:
    """What a training process is to do: a procedure, with the comparisons of so many `gpus`.

    `number` counts the processes that time the same, from 0. `known` are the results of the run so
    far; what is `tried` has a result of this command and number, and is not begun again.
    """

    options: TrainOptions
    procedure: Procedure
    gpus: int = 1
    number: int = 0
    known: tuple[Result, ...] = ()
    tried: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Opened:
    """Network and data are there. `train_samples` None: endless; `notes` are for the screen."""

    data: str
    train_samples: int | None
    held_out: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Begun:
    """What begins, a Stage, and with which cases; it may take `budget_s` alone."""

    what: str
    cases: Sequence[TrainCase] | Sequence[LoadCase] = ()
    budget_s: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Measured:
    """Results to save; more of the same cases is to come unless they are `whole`."""

    results: Sequence[Result]
    whole: bool = True


@dataclass(frozen=True)
class More:
    """So many more results of a kind are to come: TIMING, TRAINING, LOADING or PREDICTING."""

    kind: str
    results: int


@dataclass(frozen=True)
class Left:
    """About how many seconds what has begun still takes, and all after it, where that is known."""

    seconds: float
    after_s: float | None = None


@dataclass(frozen=True)
class Ended:
    """All is done: remarks on the data (broken images), and other processes on the GPU now."""

    notes: tuple[str, ...] = ()
    others: int = 0


# ---------------------------------------------------------------- what becomes of a training


def can_step(training: Training) -> bool:
    """Whether it was timed, and has not failed since."""
    return training.status == "ok" and training.steps is not None


def with_what_was(before: Training | None, training: Training) -> Training:
    """A variant that is timed again, with earlier results that the new timing does not replace."""
    if before is None:
        return training
    if before.steps and before.steps == training.steps:  # it was not timed again
        return replace(before, speedup=training.speedup)
    predicted = training.predicted or before.predicted
    return replace(
        training,
        repeats=before.repeats,
        predicted=predicted and predicted.beside(training.step_s),
        causes=training.causes or before.causes,
    )


def untraced(training: Training, reason: str) -> Training:
    """A timed training of which nothing was recorded."""
    warning = Warning(
        f"{training.case.recipe}: no steps were recorded, so it has no ledger",
        reason,
        "nothing to do: the step times are complete",
    )
    return replace(training, warnings=(*training.warnings, warning))


# ---------------------------------------------------------------- the process


def serve(pipe: Any, job: Job) -> None:
    """In a process of its own: carry out a job, in a process a GPU where there are several.

    WorkerDied where one of those dies.
    """
    if job.gpus > 1 and dist_env() is None:
        death = launch(job.gpus, _as_rank, pipe, job)
        if death:
            raise WorkerDied("", death)
        return
    with Context(Program()).scope():  # the network's code cannot start the program within itself
        carry_out(pipe, job)


def _as_rank(pipe: Any, job: Job) -> None:
    """One of several processes. Where another has gone, whoever started them says so."""

    def serve_rank(pipe: Any, job: Job) -> None:
        try:
            serve(pipe, job)
        except RanksLost:
            leave_lost()

    env = dist_env()
    channel: Any = Silent(env.rank) if env and env.rank else pipe
    if not serve_requests(channel, serve_rank, job):
        os._exit(1)  # what would be freed now may wait for ranks that have gone


def follow(device: str) -> NoReturn:
    """Be one of torchrun's processes after rank 0, which says what is to be done."""

    def nothing(_session: Session, run: Run) -> Run:
        return run

    _as_rank(None, Job(TrainOptions(device=device), nothing))
    os._exit(0)  # what would be freed now may wait for ranks that have gone


def carry_out(pipe: Pipe, job: Job) -> None:
    """Open what the job needs, do it, and tell the parent. UserError for a mistake of the user."""
    os.environ.setdefault("KINETO_LOG_LEVEL", SILENT)  # torch reads it when it is loaded
    import torch

    from e2e.commands.session import Session
    from e2e.commands.tasks import check_data, open_task
    from e2e.data.loaders.cpus import limit_cpus
    from e2e.training.ranks import Ranks, device_of
    from microbench.device import device as devices

    env, device = dist_env(), job.options.device
    if env:
        device = str(device_of(env, device))
    leads = not env or not env.rank
    info = greet_parent(pipe, device) if leads else devices.describe(device)  # type: ignore[arg-type]
    ranks = Ranks.join(env, torch.device(info.target().torch_device)) if env else None
    if ranks:
        job = ranks.from_rank0(job)
    options, limit = job.options, job.options.of_case.get("memory_limit")
    check_device(options, info.kind, info.memory_bytes)
    if options.cpus:
        limit_cpus(options.cpus)
    if limit and info.memory_bytes:
        devices.limit_memory(info.index, limit)

    def announce(key: str, stage: str) -> None:
        pipe.send(("stage", key, stage))

    with ranks.fail_together() if ranks else nullcontext():
        task, remarks = open_task(options, info.target(), announce, ranks)
    data = task.data
    comparisons = plan(options, task.network.facts, info.kind, info.memory_bytes)
    check_data(options, data, info.kind)
    remarks = (*notes(options, info.kind), *remarks)
    pipe.send(("ok", Opened(data.name, data.train_samples, data.held_out_samples, remarks)))
    # On a computer without CUDA it warns at every compilation.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    with devices.open_telemetry(info, POLL_S) as telemetry:
        session = Session(job, task, info, telemetry, comparisons, pipe, announce)
        try:
            job.procedure(session, session.run)
            session.end()
        finally:
            session.close()
    if ranks:
        ranks.leave()
