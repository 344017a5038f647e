"""Tests of the method on a device: measure, judge, write, report.

They are commands, because they need device time; their outputs are committed under results/.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from kernels.case import Case
from microbench.command_line import MAX_SEED, check_budget, kept
from microbench.conditions import Conditions
from microbench.device.device import target_of
from microbench.errors import UserError
from microbench.results.kinds import document_of
from microbench.results.runfile import (
    check_apart,
    check_writable,
    claimed_new,
    read_run,
    write_text,
)
from microbench.results.types import Run
from microbench.results.values import Json
from microbench.run_output import STDOUT, now
from microbench.runner import InOrder, Runner, group_weight
from microbench.selftest.judge import Judged, Runs, judge, passed, score
from microbench.selftest.plant import Absent, Plant
from microbench.selftest.planted import plan, triton_tile
from microbench.sweep import Group
from microbench.worker import Greeting, Worker, WorkerDied, Workers

if TYPE_CHECKING:
    pass

# Times the usual budget. A diagnosis needs no narrow interval, so a GPU gets a fifth of it. A CPU
# has few plants, and other processes that disturb them.
BUDGET_SHARE = {"cuda": 0.2, "cpu": 8.0}
TRIES = 300  # comparisons of a kernel with itself
SPLITS = 100  # of a run of many processes


def run_selftest(
    *,
    json_path: Path | None,
    device: str,
    budget: float | None,
    quiet: bool,
    html: Path | None = None,
) -> int:
    """Plant, measure, report. The exit code: 0 when at least TARGET_PCT per cent are right, else 1.

    `budget` is seconds of sampling in all. UserError for a bad option or a device that fails.
    """
    from microbench.report.screen import make_console

    if budget is not None:
        check_budget("--budget", budget)
    with _outputs(json_path, html):
        console = make_console(stderr=json_path == STDOUT, quiet=quiet)
        seed = secrets.randbelow(MAX_SEED)
        cold = Workers(Conditions(device=device, seed=seed, no_tune=True))
        try:
            greeting = cold.greet()
            plants, absent = planted_for(greeting)
            runs = measure(plants, cold, greeting, budget, console)
        finally:
            cold.close()
        judged = [judge(plant, runs) for plant in plants]
        _publish(evidence(judged, absent, runs), json_path, console, html)
    return 0 if passed([item for item in judged if not item.plant.held_out]) else 1


def validate_method(
    what: str,
    path: Path,
    device: str,
    tries: int | None = None,
    budget: float | None = None,
    html: Path | None = None,
) -> None:
    """Run the check called `what` ("aa" or "timer"), print its figures and write them to `path`.

    `tries` and `budget` are of "aa" alone. UserError for a bad option, or a device that is missing
    or that the check cannot use.
    """
    from microbench.device.device import describe, software
    from microbench.report.screen import make_console
    from microbench.selftest import aa, ncu

    given = {"--tries": tries, "--budget": budget}
    options = {name: value for name, value in given.items() if value is not None}
    if what == "timer" and options:
        raise UserError(f"validate timer takes no {next(iter(options))}")
    if tries is not None and tries < 1:
        raise UserError(f"--tries must be at least 1, not {tries}")
    if budget is not None:
        check_budget("--budget", budget)
    with _outputs(path, html):
        info = describe(device)
        if what == "timer":
            figures = ncu.timer_against_ncu(info)
        else:
            options["--tries"] = tries or TRIES
            figures = aa.same_kernel_twice(info, tries or TRIES, budget or aa.BUDGET_S)
        words = [word for name, value in options.items() for word in (name, f"{value:g}")]
        document = {
            "check": what,
            "command": ["python", "-m", "microbench", "validate", what, *words],
            "finished_at": now(),
            "device": info.as_dict(),
            "software": software(),
            **asdict(figures),
        }
        _publish(document, path, make_console(stderr=path == STDOUT), html)


def validate_compare(
    what: str, files: Sequence[Path], path: Path, processes: int, tries: int, html: Path | None
) -> None:
    """Split runs into two of `processes` processes each, `tries` times, and judge them.

    `what` is "compare" (false verdicts) or "power" (slow-downs seen). UserError for a bad option,
    a file that is no run, and runs of other devices, software or methods than the first.
    """
    from microbench.report.screen import make_console
    from microbench.selftest import splits

    check = {"compare": splits.false_verdicts, "power": splits.power}[what]
    if not files:
        raise UserError(f"validate {what} takes run files of {2 * processes} processes or more")
    for name, value, least in (("--tries", tries, 1), ("--processes", processes, 2)):
        if value < least:
            raise UserError(f"{name} must be at least {least}, not {value}")
    with _outputs(path, html):
        runs = [read_run(file) for file in files]
        for file, run in zip(files, runs, strict=True):
            for name in ("device", "software", "method_version"):
                if getattr(run, name) != getattr(runs[0], name):
                    raise UserError(
                        f"{file} is of another {name.replace('_', ' ')} than {files[0]}"
                    )
        figures = check(runs, processes, tries)
        names = [file.name for file in files]
        document = {
            "check": what,
            "command": [
                "python", "-m", "microbench", "validate", what, *names,
                "--processes", str(processes), "--tries", str(tries),
            ],
            "finished_at": max(run.finished_at or run.started_at for run in runs),
            "device": runs[0].device,
            "software": runs[0].software,
            "method_version": runs[0].method_version,
            "runs": [
                {"file": name, "command": list(run.command), "started_at": run.started_at,
                 "finished_at": run.finished_at}
                for name, run in zip(names, runs, strict=True)
            ],
            **asdict(figures),
        }  # fmt: skip
        _publish(document, path, make_console(stderr=path == STDOUT), html)


@contextmanager
def _outputs(path: Path | None, html: Path | None) -> Generator[None]:
    """Hold the file to write. UserError where an output cannot be written, or both are one."""
    check_apart({"--json": path, "--html": html})
    if html:
        check_writable(html, "--html")
    with claimed_new(path, "--json") if path and path != STDOUT else nullcontext():
        yield


def _publish(document: Json, path: Path | None, console: Console, html: Path | None) -> None:
    """Write a document, print it as `show` prints the file, and write it as a page."""
    from microbench.report.documents import print_sheet

    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    data = json.loads(text)
    kind = document_of(data)
    assert kind is not None
    try:
        if path == STDOUT:
            print(text)
        elif path:
            write_text(text, path)
    finally:  # a disk that is full does not lose what was measured
        print_sheet(kind.sheet(data), console)
    if path and path != STDOUT:
        console.print(f"File: {path}")
    if html:
        from microbench.report.page import write_document

        write_document(data, html)
        console.print(f"Page: {html}")


def planted_for(greeting: Greeting) -> tuple[list[Plant], list[Absent]]:
    """The plants for the device of this greeting, and the conditions that it cannot have."""
    device = greeting.device
    cuda = device["kind"] == "cuda"
    return plan(device, triton_tile(target_of(device)) if cuda else lambda _: None)


def measure(
    plants: Sequence[Plant],
    cold: Workers,
    greeting: Greeting,
    budget: float | None,
    console: Console,
) -> Runs:
    """Measure the plants' cases with a cold L2, and those in `apart` with a warm one too.

    `budget` is seconds of sampling in all. UserError when the device fails.
    """
    beside = groups_of(case for plant in plants for case in (*plant.companions, plant.subject))
    apart = groups_of(case for plant in plants for case in plant.apart)
    weights = [sum(group_weight(group) for group in groups) for groups in (beside, apart)]
    whole_s = budget or BUDGET_SHARE[greeting.target.kind] * sum(weights)
    share_s = [whole_s * weight / sum(weights) for weight in weights]
    found = take(beside, share_s[0], cold.next, blank(greeting, cold.settings), console)
    if not apart:
        return Runs(found)
    warm = Workers(replace(cold.settings, l2="warm"))
    return Runs(found, take(apart, share_s[1], warm.next, blank(greeting, warm.settings), console))


def take(
    groups: Sequence[Group],
    budget_s: float,
    start_session: Callable[[], Worker],
    run: Run,
    console: Console,
) -> Run:
    """The run with an explained result for every case. UserError when the device fails."""
    from microbench.report.live import LiveProgress

    kind = str(run.device["kind"])
    with LiveProgress(console, groups) as progress:
        runner = Runner(run, kind, None, start_session, progress)
        try:
            return runner.measure(InOrder(groups, budget_s))
        except WorkerDied as death:
            raise UserError(death.reason) from None


def groups_of(cases: Iterable[Case]) -> list[Group]:
    """The cases, each once, grouped by problem."""
    found: dict[str, dict[str, Case]] = {}
    for case in cases:
        found.setdefault(case.group, {})[case.key] = case
    return [Group(tuple(arms.values())) for arms in found.values()]


def blank(greeting: Greeting, settings: Conditions) -> Run:
    """A run of this device without results."""
    return Run(
        command=("python", "-m", "microbench", "selftest"),
        started_at=now(),
        device=greeting.device,
        software=greeting.software,
        settings={**kept(settings), "seed": settings.seed},
    )


def evidence(judged: Sequence[Judged], absent: Sequence[Absent], runs: Runs) -> Json:
    """The JSON of the evidence file: each plant, its expected and actual diagnosis, its numbers."""
    developed = [item for item in judged if not item.plant.held_out]
    right, counted = score(developed)
    return {
        "check": "selftest",
        "command": list(runs.cold.command),
        "started_at": runs.cold.started_at,
        "finished_at": now(),
        "device": runs.cold.device,
        "software": runs.cold.software,
        "settings": runs.cold.settings,
        "ceilings": [
            {"l2": run.settings["l2"], "name": c.name, "source": c.source, "precision": c.precision,
             "flop_per_s": c.flop_per_s, "byte_per_s": c.byte_per_s, "seconds": c.seconds}
            for run in (runs.cold, runs.warm) if run for c in run.ceilings
        ],
        "right": right,
        "counted": counted,
        "passed": passed(developed),
        "absent": [{"condition": a.condition, "reason": a.reason} for a in absent],
        "rows": [item.as_dict(runs) for item in judged],
    }  # fmt: skip
