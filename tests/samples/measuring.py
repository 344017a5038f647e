"""A made-up measuring session, and the runner around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kernels.case import CannotRun, Case, Target
from kernels.checking import Prepared
from kernels.gemm import Gemm
from kernels.op import OPS, Session
from kernels.tune import NONE
from microbench.device.device import DeviceInfo, open_telemetry
from microbench.measure import Measurer
from microbench.results.types import Ceiling, Measurement, Result, Run
from microbench.run import Runner
from microbench.sweep import Group
from microbench.timing.timers import Block, Launch, make_timer
from microbench.worker import OnStage

Trouble = Callable[[Group], None]


@dataclass
class PlantedTimer:
    """A timer that reads what a launch says that it takes: seconds, and at which clock."""

    name: str = "events"
    l2: str = "cold"
    resolution_s: float = 0.0
    flush_s: float = 0.0
    overhead_s: float = 0.0

    def block(self, launch: Launch, samples: int) -> Block:
        """That time in each sample."""
        seconds, clock_mhz = cast("tuple[float, float | None]", launch())
        return Block((seconds,) * samples, clock_mhz)

    def run(self, launch: Launch, times: int) -> None:
        """Nothing warms up."""

    def forget(self) -> None:
        """Nothing is kept."""


def group_of(size: int, *precisions: str, backends: Sequence[str] = ("cublas",)) -> Group:
    problem, named = Gemm(size, size, size), precisions or ("fp32", "fp16")
    return Group(tuple(Case(problem, p, b) for p in named for b in backends))


def refusal(check: Callable[..., None], case: Case, target: Target) -> str:
    """The reason of a check; empty where the case can run."""
    try:
        check(case, target)
    except CannotRun as error:
        return str(error)
    return ""


def ready_or_why(session: Session, case: Case) -> tuple[Prepared | None, str]:
    """What runs the case; or None, and the line that says why it cannot run."""
    ready, reason = None, ""
    try:
        OPS[case.op].check(case, session.target)
        ready = session.prepare(case)
    except CannotRun as error:
        reason = str(error)
    assert ready or reason
    assert "\n" not in reason
    return ready, reason


def measurer_of(
    gpu: DeviceInfo, l2: str = "cold", timer: str = "auto", search: int = NONE
) -> Measurer:
    clock = make_timer(timer, l2, gpu.kind, gpu.index, gpu.l2_bytes, gpu.sm_count)
    return Measurer(gpu.target(), clock, open_telemetry(gpu), "sustained", 0, search)


def measured(measurer: Measurer, *cases: Case, budget_s: float = 0.5) -> list[Result]:
    """The results of one comparison."""
    with measurer.telemetry:
        return measurer.measure(Group(cases), budget_s, lambda *_: None)


def timed(seconds: float, half_pct: float | None = None, **more: Any) -> Measurement:
    """Three blocks that took as long, with an interval of ± half_pct if it is given."""
    half = seconds * (half_pct or 0) / 100
    interval = None if half_pct is None else (seconds - half, seconds + half)
    conditions: dict[str, Any] = {"timer": "events", "l2": "cold", "regime": "sustained"} | more
    return Measurement((seconds,) * 3, (1, 1, 1), seconds, interval, **conditions)


def result_of(case: Case, seconds: float = 1e-3) -> Result:
    flops = case.problem.flops
    return Result(case, "ok", measurement=timed(seconds, 0.0), flops=flops, min_bytes=1)


def empty_run() -> Run:
    return Run(("x",), "2026-01-01T00:00:00+00:00", {"name": "Made Up", "kind": "cuda"}, {})


@dataclass
class FakeSession:
    """Measures in no time that all takes `seconds`; `trouble` may raise first."""

    trouble: Trouble = lambda _: None
    seconds: float = 1e-3
    asked: list[tuple[Group, float]] = field(default_factory=list)
    checked: list[bool] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)  # the fewest that were asked for
    calibrated: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    closed: int = 0

    def expect(self, cases: Sequence[Case]) -> None:
        """Nothing is loaded."""

    def calibrate(
        self, precisions: Sequence[str], large: Sequence[str], on_stage: OnStage
    ) -> list[Ceiling]:
        self.calibrated.append((tuple(precisions), tuple(large)))
        return [Ceiling("memory", "measured", byte_per_s=1e12, reference="copy")]

    def measure(
        self,
        group: Group,
        budget_s: float,
        on_stage: OnStage,
        *,
        checked: Mapping[str, str] = {},
        fewest: int = 0,
    ) -> list[Result]:
        assert not self.closed
        self.asked.append((group, budget_s))
        self.rounds.append(fewest)
        self.checked.append(bool(checked))
        on_stage(group.cases[0].key, "timing")
        self.trouble(group)
        return [result_of(case, self.seconds) for case in group.cases]

    def others(self) -> int:
        """No other process is on its GPU."""
        return 0

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeProgress:
    lines: list[tuple[str, list[str], float]] = field(default_factory=list)
    passes: list[tuple[int, int, list[str]]] = field(default_factory=list)

    def stage(self, key: str, stage: str) -> None:
        """No one waits."""

    def done(
        self, group: Group, results: Sequence[Result], left_s: float, sampled_s: float
    ) -> None:
        self.lines.append((group.name, [r.status for r in results], left_s))

    def next_process(self, number: int, of: int, groups: Sequence[Group]) -> None:
        self.passes.append((number, of, [group.name for group in groups]))


@dataclass
class World:
    """A runner and everything it touches. In each process all takes twice as long as before."""

    path: Path
    trouble: Trouble = lambda _: None
    run: Run = field(default_factory=empty_run)
    sessions: list[FakeSession] = field(default_factory=list)
    progress: FakeProgress = field(default_factory=FakeProgress)
    loaded_ahead: int = 0

    def start(self) -> FakeSession:
        self.sessions.append(FakeSession(self.trouble, 1e-3 * 2 ** len(self.sessions)))
        return self.sessions[-1]

    def runner(self, processes: int = 1) -> Runner:
        session: Any = self.start
        progress: Any = self.progress
        return Runner(
            self.run, "cuda", self.path, session, progress, processes, self.load_ahead,
            now=lambda: "the end", saving=math.inf,
        )  # fmt: skip

    def load_ahead(self) -> None:
        self.loaded_ahead += 1

    def asked(self) -> list[Group]:
        return [group for session in self.sessions for group, _ in session.asked]


def keys(results: Sequence[Result]) -> list[str]:
    return [result.case.key for result in results]
