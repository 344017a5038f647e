"""`ceilings`: what the device's instructions and memories can do, by kernels that do nothing else.

Every probe runs in a child process, so that a kernel that faults costs its own probe alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kernels.ceilings.plan import LAUNCHES, Probe, all_probes
from microbench.child_pipes import Pipe
from microbench.command_line import Outputs, check_budget
from microbench.errors import UserError
from microbench.report.ceilings import in_one_line
from microbench.report.live import LiveLine
from microbench.results.ceilings import CeilingResult, ceiling_of
from microbench.results.types import Run
from microbench.roofline.ceilings import datasheet_ceilings
from microbench.run_output import (
    Done,
    check_outputs,
    new_run,
    now,
    run_console,
    run_file,
    save,
)
from microbench.worker import HANG_S, Child, Greeting, WorkerDied, greet, greet_parent

if TYPE_CHECKING:
    from microbench.device.device import DeviceInfo

BUDGET_S = 0.5  # of sampling for each probe's best variant


def measure_ceilings(
    *, device: str, only: str | None, budget: float | None, outputs: Outputs
) -> Done:
    """Measure, save and hand back. UserError for what the user can mend."""
    probes = chosen(only)
    if budget is not None:
        check_budget("--budget", budget)
    check_outputs(outputs)
    each_s = budget / len(probes) if budget else BUDGET_S
    with run_file(outputs, "ceilings") as (path, _):
        session = _Session(device)
        try:
            run = _begin(session.greeting, probes, budget)
            with Progress(run_console(outputs), len(probes), quiet=outputs.quiet) as progress:
                for probe in probes:
                    result = session.measure(probe, each_s, progress.stage)
                    found = ceiling_of(result)
                    run = run.with_other(result)
                    run = replace(run, ceilings=(*run.ceilings, *([found] if found else ())))
                    save(run, path)
                    progress.done(result)
        finally:
            session.close()
        run = replace(run, finished_at=now())
        save(run, path)
        return Done(run, path, outputs)


def chosen(only: str | None) -> list[Probe]:
    """The probes whose name, precision or key holds one of the words; UserError where none does."""
    words = [word.strip() for word in (only or "").split(",") if word.strip()]
    found = [
        probe for probe in all_probes()
        if not words or any(word.lower() in probe.key.lower() for word in words)
    ]  # fmt: skip
    if not found:
        names = dict.fromkeys(probe.name for probe in all_probes())
        raise UserError(f"--only {only} names no ceiling; choose from {', '.join(names)}")
    return found


def _begin(greeting: Greeting, probes: Sequence[Probe], budget: float | None) -> Run:
    run = new_run("microbench", greeting, {"budget": budget} if budget else {})
    precisions = list(dict.fromkeys(p.precision_name for p in probes if p.precision_name))
    return replace(
        run, ceilings=tuple(datasheet_ceilings(str(greeting.device["name"]), precisions))
    )


class Progress(LiveLine):
    """Says what is measured, and each ceiling when it is known."""

    def stage(self, key: str, stage: str) -> None:
        """A probe entered a stage."""
        self._doing = f"{key.partition('/')[2]}: {stage}"

    def done(self, result: CeilingResult) -> None:
        """A probe is on disk."""
        self._done += 1
        self.say(f"[{self._done}/{self._total}] {in_one_line(result)}")

    def left_s(self) -> float | None:
        """Not known: compiling takes most of it, once."""
        return None


class _Session:
    """The measuring process, and another after one that has died."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._child = Child(_serve, device)
        self.greeting = greet(self._child)

    def measure(
        self, probe: Probe, budget_s: float, on_stage: Callable[[str, str], None]
    ) -> CeilingResult:
        """The probe's result; that of one which ends the process is failed."""
        try:
            return self._child.ask((probe, budget_s), on_stage, HANG_S + budget_s)
        except WorkerDied as death:
            self._child.close()
            self._child = Child(_serve, self._device)
            greet(self._child)
            return CeilingResult(probe, "failed", death.reason)

    def close(self) -> None:
        """End the process."""
        self._child.close()


# ---------------------------------------------------------------- in the child


def _serve(pipe: Pipe, device: str) -> None:
    from microbench.device import device as devices
    from microbench.roofline.instructions import why_no_kernels

    info = devices.describe(device)
    reason = why_no_kernels(info.target())
    if reason:
        raise UserError(reason)
    info = greet_parent(pipe, device)
    _measure(pipe, info)


def _measure(pipe: Pipe, info: DeviceInfo) -> None:
    from kernels.ceilings.launch import Loader
    from microbench.device import device as devices
    from microbench.roofline.instructions import measure_probe
    from microbench.timing.timers import make_timer

    target = info.target()
    timers = {
        name: make_timer(name, "warm", info.kind, info.index, info.l2_bytes, info.sm_count)
        for name in ("events", "graph")
    }
    loader = Loader(target)

    def announce(key: str, stage: str) -> None:
        pipe.send(("stage", key, stage))

    with devices.open_telemetry(info) as telemetry:
        while True:
            probe, budget_s = pipe.recv()
            timer = timers[LAUNCHES.get(probe.name, "events")]
            pipe.send(
                ("ok", measure_probe(probe, loader, target, timer, telemetry, budget_s, announce))
            )
