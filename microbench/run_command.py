"""What a measuring command does, straight through: check the words, plan, measure, report."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kernels import OPS
from microbench.errors import UserError
from microbench.host import WATCHED_VARIABLES
from microbench.results import METHOD_VERSION, Run
from microbench.runfile import check_writable, probe, read_run, write_text
from microbench.runner import Runner, default_budget_s, missing
from microbench.sweep import Group, parse_choice, plan_gemm
from microbench.timing import L2_STATES, REGIMES, TIMERS
from microbench.worker import Greeting, Settings, Worker, WorkerDied

MAX_SEED = 2**31
PATH_OPTIONS = ("--json", "--csv", "--resume")  # a published file need not say where it lay
MEMORY_SHARE = 0.9  # of the free memory that the matrices of one comparison may take
CHECK_BYTES = 1 << 29  # what the float64 check and the cache flush take beside them


@dataclass(frozen=True)
class GemmRequest:
    """The options of `microbench gemm`, as given."""

    dtype: str
    sizes: str
    backend: str | None
    vs: str
    layout: str
    data: str
    device: str
    l2: str
    regime: str
    timer: str
    budget: float | None
    json: Path | None
    csv: Path | None
    resume: Path | None
    autotune: bool
    seed: int | None
    verbose: bool
    quiet: bool

    def plan(self, kind: str) -> list[Group]:
        """The comparisons to make on a device of this kind; UserError for bad words."""
        return plan_gemm(
            sizes=self.sizes, dtypes=self.dtype, backends=self.backend, layouts=self.layout,
            data=self.data, vs=self.vs, kind=kind,
        )  # fmt: skip


def run_gemm(request: GemmRequest) -> None:
    """Measure and report; UserError for what the user can mend."""
    from microbench.report.console import print_run
    from microbench.report.live import LiveProgress
    from microbench.report.screen import make_console

    _check_words(request)
    before = read_run(request.resume) if request.resume else None
    path = _run_path(request)
    console = make_console(quiet=request.quiet)
    settings = Settings(
        request.device, request.timer, request.l2, request.regime,
        secrets.randbelow(MAX_SEED) if request.seed is None else request.seed, request.autotune,
    )  # fmt: skip
    worker = Worker(settings)
    try:
        greeting = _greet(worker)
        groups = request.plan(greeting.target.kind)
        _check_memory(groups, greeting)
        run = _begin(request, settings, greeting, before)
        todo = missing(groups, run, retry_skipped=request.budget is not None)
        if todo:
            budget_s = request.budget or default_budget_s(todo, greeting.target.kind)
            workers = _Workers(settings, worker)
            with LiveProgress(console, todo, quiet=request.quiet) as progress:
                runner = Runner(run, greeting.target.kind, path, workers.next, progress)
                run = _measure(runner, todo, budget_s, path)
        else:
            console.print(f"Nothing is missing in {path}.")
    finally:
        worker.close()
    if request.autotune:
        _keep_tuned(run, greeting)
    print_run(run, console, details=request.verbose)
    console.print(f"Run file: {path}")
    if request.csv:
        _write_csv(run, request.csv)


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


def _check_words(request: GemmRequest) -> None:
    """Everything that can be found wrong before a device is touched."""
    request.plan("cuda")
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
    if request.csv:
        check_writable(request.csv, "--csv")
        if request.json and request.csv.resolve() == request.json.resolve():
            raise UserError("--json and --csv name the same file")


def _run_path(request: GemmRequest) -> Path:
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
    path = folder / f"gemm-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.json"
    check_writable(path, "--json")
    return path


def _check_memory(groups: Sequence[Group], greeting: Greeting) -> None:
    """UserError when a comparison's matrices, held at once, do not fit the free memory."""
    if greeting.free_bytes is None:
        return
    for group in groups:
        # Arms that store alike share matrices, so one case of each storage counts.
        stored = {case.precision.storage: OPS[case.op].min_bytes(case) for case in group.cases}
        needed = sum(stored.values()) + CHECK_BYTES
        if needed > MEMORY_SHARE * greeting.free_bytes:
            raise UserError(
                f"{group.name} in {', '.join(stored)} needs {needed / 1e9:.1f} GB, "
                f"{greeting.free_bytes / 1e9:.1f} GB are free; smaller --sizes, or fewer precisions"
            )


def _begin(request: GemmRequest, settings: Settings, greeting: Greeting, before: Run | None) -> Run:
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


def _write_csv(run: Run, path: Path) -> None:
    from microbench.report.table_csv import to_csv

    try:
        write_text(to_csv(run).rstrip("\n"), path)
    except OSError as error:
        raise UserError(f"--csv {path}: cannot write there ({error.strerror})") from None


def _measure(runner: Runner, groups: Sequence[Group], budget_s: float, path: Path) -> Run:
    try:
        return runner.measure(groups, budget_s)
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
    from kernels.gemm.triton_gemm import save_tuned

    for result in run.results:
        if result.case.backend == "triton" and result.measurement and result.variant:
            save_tuned(result.case, greeting.target, result.variant)
