"""What a measuring command does, straight through: check the words, plan, measure, report."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from kernels import OPS
from microbench.errors import UserError
from microbench.host import WATCHED_VARIABLES
from microbench.requests import Conditions, Request
from microbench.results import METHOD_VERSION, NetworkUse, Run
from microbench.runfile import check_writable, probe, read_run, write_text
from microbench.runner import Runner, Schedule
from microbench.sweep import Group, parse_choice
from microbench.timing import L2_STATES, REGIMES, TIMERS
from microbench.worker import Greeting, Settings, Worker, WorkerDied

MAX_SEED = 2**31
# A published file need not say where it lay.
PATH_OPTIONS = ("--json", "--csv", "--resume", "--chart")
MEMORY_SHARE = 0.9  # of the free memory that the tensors of one comparison may take
COMMANDS = ("gemm", "conv", "payoff", "layers")
KNOBS = {"gemm": "--sizes", "conv": "--channels, --image or --batch"}
# What the float64 check and the cache flush take beside them, at most; a convolution's check holds
# bands of three tensors in float64, and torch keeps an output of its own.
CHECK_BYTES = {"gemm": 1 << 29, "conv": 3 << 30}
CHECK_FACTOR = 16  # times the tensors themselves: all that a small problem's check can take


def run_request(request: Request) -> None:
    """Measure and report; UserError for what the user can mend."""
    from microbench.report.console import print_run
    from microbench.report.live import LiveProgress
    from microbench.report.screen import make_console

    asked = request.conditions
    _check_words(request)
    before = read_run(asked.resume) if asked.resume else None
    path = _run_path(asked, request.name)
    console = make_console(quiet=asked.quiet)
    settings = Settings(
        asked.device, asked.timer, asked.l2, asked.regime,
        secrets.randbelow(MAX_SEED) if asked.seed is None else asked.seed, asked.autotune,
    )  # fmt: skip
    worker = Worker(settings)
    try:
        greeting = _greet(worker)
        groups = request.plan(greeting.target.kind)
        _check_memory(groups, greeting)
        network = request.network(greeting.target.kind)
        if before is not None:
            _check_same_task(asked.resume, before, request.name, network)
        run = replace(_begin(asked, settings, greeting, before), network=network)
        todo = request.remaining(groups, run)
        if todo:
            schedule = request.schedule(todo, greeting.target.kind)
            workers = _Workers(settings, worker)
            with LiveProgress(console, todo, quiet=asked.quiet) as progress:
                runner = Runner(run, greeting.target.kind, path, workers.next, progress)
                run = _measure(runner, schedule, path)
        else:
            console.print(f"Nothing is missing in {path}.")
    finally:
        worker.close()
    if asked.autotune:
        _keep_tuned(run, greeting)
    print_run(run, console, details=asked.verbose)
    console.print(f"Run file: {path}")
    if asked.chart:
        from microbench.report.drawing import draw

        draw(run, asked.chart)
        console.print(f"Chart: {asked.chart}")
    if asked.csv:
        _write_csv(run, asked.csv)


class _Workers:
    """The worker that greeted first; new ones after it."""

    def __init__(self, settings: Settings, first: Worker) -> None:
        self._settings = settings
        self._first: Worker | None = first

    def next(self) -> Worker:
        """A worker that is ready to measure."""
        worker, self._first = self._first, None
        if worker is None:
            worker = Worker(self._settings)
            worker.greet()
        return worker


def _greet(worker: Worker) -> Greeting:
    try:
        return worker.greet()
    except WorkerDied as death:
        raise UserError(f"the device cannot be used: {death.reason}") from None


def _check_words(request: Request) -> None:
    """Everything that can be found wrong before a device is touched."""
    request.plan("cuda")
    _check_conditions(request.conditions)


def _check_conditions(request: Conditions) -> None:
    for value, choices, name in (
        (request.l2, L2_STATES, "--l2"),
        (request.regime, REGIMES, "--regime"),
        (request.timer, TIMERS, "--timer"),
    ):
        parse_choice(value, choices, name)
    if request.budget is not None and not 0 < request.budget < float("inf"):
        raise UserError(f"--budget takes seconds above 0, not {request.budget:g}")
    if request.json and request.resume:
        raise UserError("--resume writes to the file it goes on with; leave out --json")
    if request.seed is not None and not 0 <= request.seed < MAX_SEED:
        raise UserError(f"--seed takes a number from 0 to {MAX_SEED - 1}")
    if request.chart:
        from microbench.report.drawing import check_chart_path

        check_chart_path(request.chart)
    if request.csv:
        check_writable(request.csv, "--csv")
        if request.json and request.csv.resolve() == request.json.resolve():
            raise UserError("--json and --csv name the same file")


def _run_path(request: Conditions, name: str) -> Path:
    if request.resume:
        probe(request.resume, "--resume")
        return request.resume
    if request.json:
        check_writable(request.json, "--json")
        return request.json
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = state / "halfway" / "runs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot keep run files in {folder} ({error.strerror}); name one: --json"
        ) from None
    path = folder / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.json"
    check_writable(path, "--json")
    return path


def _check_memory(groups: Sequence[Group], greeting: Greeting) -> None:
    """UserError when a comparison's matrices, held at once, do not fit the free memory."""
    from microbench.report.words import problem

    if greeting.free_bytes is None:
        return
    for group in groups:
        # Arms that store alike share matrices, so one case of each storage counts.
        stored = {case.precision.storage: OPS[case.op].min_bytes(case) for case in group.cases}
        tensors = sum(stored.values())
        needed = tensors + min(CHECK_BYTES[group.cases[0].op], (1 << 29) + CHECK_FACTOR * tensors)
        if needed > MEMORY_SHARE * greeting.free_bytes:
            raise UserError(
                f"{problem(group.cases[0])} in {', '.join(stored)} needs {needed / 1e9:.1f} GB, "
                f"{greeting.free_bytes / 1e9:.1f} GB are free; "
                f"try smaller {KNOBS[group.cases[0].op]}"
            )


def _begin(request: Conditions, settings: Settings, greeting: Greeting, before: Run | None) -> Run:
    """A new run, or the one to go on with; UserError when that was taken on another device."""
    chosen = {"timer": settings.timer, "l2": settings.l2, "regime": settings.regime}
    environment = {name: os.environ[name] for name in WATCHED_VARIABLES if name in os.environ}
    if before is None:
        return Run(
            command=("python", "-m", "microbench", *_without(sys.argv[1:], *PATH_OPTIONS)),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            device=greeting.device,
            software=greeting.software,
            settings=chosen | {"seed": settings.seed, "environment": environment},
        )
    if before.method_version != METHOD_VERSION:
        raise UserError(
            f"--resume {request.resume}: measured by method_version {before.method_version}, this "
            f"program has {METHOD_VERSION}; start a new run"
        )
    parts = (
        ("device", before.device, greeting.device),
        ("software", before.software, greeting.software),
    )
    for part, then, now in parts:
        for name in sorted(then.keys() | now.keys()):
            if then.get(name) != now.get(name):
                raise UserError(
                    f"--resume {request.resume}: {part} {name} was {then.get(name)} and is "
                    f"{now.get(name)}; start a new run"
                )
    for name, value in chosen.items():
        if before.settings.get(name, value) != value:
            raise UserError(
                f"--resume {request.resume} was taken with --{name} {before.settings[name]}; "
                f"give the same"
            )
    return replace(before, finished_at=None)


def _check_same_task(path: Path | None, before: Run, name: str, network: NetworkUse | None) -> None:
    """UserError when a run file is of another command, or of another network."""
    command = next((word for word in before.command if word in COMMANDS), name)
    if command != name:
        raise UserError(f"--resume {path} is a run of {command}, not of {name}; start a new run")
    if network and before.network and _identity(network) != _identity(before.network):
        was, now = (" ".join(map(str, _identity(n))) for n in (before.network, network))
        raise UserError(f"--resume {path}: network was {was}, now {now}; start a new run")


def _identity(network: NetworkUse) -> tuple[str, int, int | None]:
    return network.name, network.batch, network.image


def _write_csv(run: Run, path: Path) -> None:
    from microbench.report.table_csv import to_csv

    try:
        write_text(to_csv(run).rstrip("\n"), path)
    except OSError as error:
        raise UserError(f"--csv {path}: cannot write there ({error.strerror})") from None


def _measure(runner: Runner, schedule: Schedule, path: Path) -> Run:
    try:
        return runner.measure(schedule)
    except KeyboardInterrupt:
        words = [word for word in sys.argv[1:] if word]
        command = shlex.join(["python", "-m", "microbench", *_without(words, "--json", "--resume")])
        print(
            f"\nstopped; what is done is in {path}. Go on with:\n  {command} --resume "
            f"{shlex.quote(str(path))}",
            file=sys.stderr,
        )
        raise
    except WorkerDied as death:
        raise UserError(f"the device cannot be used: {death.reason}; so far: {path}") from None


def _without(words: Sequence[str], *options: str) -> list[str]:
    """The command line without these options and their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif not any(word.startswith(f"{option}=") for option in options):
            kept.append(word)
    return kept


def _keep_tuned(run: Run, greeting: Greeting) -> None:
    for result in run.results:
        if result.case.backend == "triton" and result.measurement and result.variant:
            OPS[result.case.op].save_tuned(result.case, greeting.target, result.variant)
