"""A measuring command from start to end: check options, plan, measure, report."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernels import OPS
from microbench.command_line import MAX_SEED, kept
from microbench.conditions import Conditions, check_without
from microbench.errors import NothingMeasured, UserError
from microbench.requests import Request
from microbench.results.types import NetworkUse, Run
from microbench.run_output import (
    Done,
    check_goes_on,
    check_outputs,
    new_run,
    run_console,
    run_file,
    say_stopped,
)
from microbench.runner import InOrder, Runner, default_budget_s, few_processes, missing
from microbench.stopping import last_words
from microbench.sweep import Group
from microbench.worker import Greeting, WorkerDied, Workers

MEMORY_SHARE = 0.9  # of the free memory that the tensors of one comparison may take
KNOBS = {"gemm": "--sizes", "conv": "--channels, --image or --batch"}
# Bytes that the float64 check and the cache flush take beside them, at most: a convolution's check
# holds bands of three tensors in float64, and torch keeps an output of its own.
CHECK_BYTES = {"gemm": 1 << 29, "conv": 3 << 30}
CHECK_FACTOR = 16  # times the tensors' bytes: the most that a small problem's check takes


def run_request(request: Request) -> Done:
    """Measure what is asked.

    UserError for a bad option, a device that is missing or fails, too little memory, or a run file
    that cannot be written or resumed; NothingMeasured, with the reasons, for an empty plan.
    """
    asked = request.conditions
    asked.search  # noqa: B018  # UserError for options that exclude each other
    if not request.plan("cuda"):  # UserError before a device is touched
        network = request.network("cuda")
        found = dict.fromkeys(one.reason for one in network.not_measured) if network else ()
        why = "; ".join(found) or "there is no convolution and no matrix multiplication"
        raise NothingMeasured(f"nothing can be measured: {why}")
    check_outputs(asked.outputs)
    with run_file(asked.outputs, request.name) as (path, before):
        return _carried_out(request, path, before)


def _carried_out(request: Request, path: Path, before: Run | None) -> Done:
    """What is asked, measured into the file at `path`, `before` continued."""
    from microbench.report.live import LiveProgress

    asked = request.conditions
    console = run_console(asked.outputs)
    usual = before.settings.get("seed") if before else None
    seed = secrets.randbelow(MAX_SEED) if usual is None else int(usual)
    seed = seed if asked.seed is None else asked.seed
    settings = replace(asked, seed=seed)
    workers = Workers(settings)
    try:
        greeting = workers.greet()
        groups = request.plan(greeting.target.kind)
        _check_memory(groups, greeting)
        check_without(asked.without, [c for g in groups for c in g.cases], greeting.target)
        network = request.network(greeting.target.kind)
        if before is not None:
            _check_same_task(asked.outputs.resume, before, request.name, network)
        run = replace(_begin(settings, greeting, before), network=network)
        todo = missing(groups, run, retry_skipped=asked.budget is not None)
        kind = greeting.target.kind
        processes = asked.processes or 1
        if todo or few_processes(groups, run, processes - 1):
            budget_s = asked.budget or default_budget_s(todo, kind, request.most_s)
            schedule = InOrder(todo, budget_s, kind)
            quiet = asked.outputs.quiet
            with LiveProgress(console, todo, quiet=quiet) as progress:
                # A CPU that measures is left alone.
                ahead = workers.load_ahead if kind == "cuda" else lambda: None
                runner = Runner(run, kind, path, workers.next, progress, processes, ahead)
                run = _measure(runner, schedule, groups, path)
        else:
            console.print(f"{path} is complete: nothing to measure.")
    finally:
        workers.close()
    return Done(run, path, asked.outputs)


def _check_memory(groups: Sequence[Group], greeting: Greeting) -> None:
    """UserError when a comparison's matrices, held at once, do not fit the free memory."""
    from microbench.fmt import problem

    if greeting.free_bytes is None:
        return
    for group in groups:
        # Variants with the same storage share matrices, so one case of each storage counts.
        stored = {case.precision.storage: OPS[case.op].min_bytes(case) for case in group.cases}
        tensors = sum(stored.values())
        needed = tensors + min(CHECK_BYTES[group.cases[0].op], (1 << 29) + CHECK_FACTOR * tensors)
        if needed > MEMORY_SHARE * greeting.free_bytes:
            raise UserError(
                f"{problem(group.cases[0])} in {', '.join(stored)} needs {needed / 1e9:.1f} GB, "
                f"but {greeting.free_bytes / 1e9:.1f} GB are free; "
                f"try smaller {KNOBS[group.cases[0].op]}"
            )


def _begin(asked: Conditions, greeting: Greeting, before: Run | None) -> Run:
    """A new run, or the one to go on with; UserError when that was taken on another device."""
    chosen = kept(asked) | {"seed": asked.seed}
    if before is None:
        return new_run("microbench", greeting, chosen)
    path = asked.outputs.resume
    check_goes_on(path, before, greeting)
    for name, value in chosen.items():
        if before.settings.get(name, value) != value:
            raise UserError(
                f"--resume {path} was measured with --{name} {before.settings[name]}; "
                "use the same value"
            )
    return replace(before, finished_at=None)


def _check_same_task(path: Path | None, before: Run, name: str, network: NetworkUse | None) -> None:
    """UserError when a run file is of another command, or of another network."""
    if before.kind not in ("", name):
        raise UserError(
            f"--resume {path} is a run of {before.kind}, not of {name}; start a new run"
        )
    if network and before.network and _identity(network) != _identity(before.network):
        was, now = (" ".join(map(str, _identity(n))) for n in (before.network, network))
        raise UserError(f"--resume {path}: network was {was}, now {now}; start a new run")


def _identity(network: NetworkUse) -> tuple[str, int, int | None]:
    return network.name, network.batch, network.image


def _measure(runner: Runner, schedule: InOrder, groups: Sequence[Group], path: Path) -> Run:
    try:
        with last_words(lambda: say_stopped("microbench", path)):
            return runner.measure(schedule, groups)
    except WorkerDied as death:
        raise UserError(f"{death.reason}; results so far: {path}") from None
