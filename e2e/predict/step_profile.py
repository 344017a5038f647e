"""A case's step profile: its trace, and its calls' times."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from e2e.case import TrainCase
from e2e.networks import Network
from e2e.predict.op_timer.in_situ import time_in_step
from e2e.predict.op_timer.op_costs import CallTimer, CallTimes, key_of
from e2e.predict.op_timer.op_timer import TOO_LARGE, OpTime
from e2e.predict.prediction import needs_more
from e2e.predict.trace.fake_trace import CannotTrace, Trace, trace, trace_real
from e2e.train.speed_readings import HostSpeed
from kernels.error_words import one_line

MEMORY_ERROR = 0.05  # of a peak: the most that validation allows

Announce = Callable[[str, str], None]


@dataclass(frozen=True)
class StepProfile:
    """A case's trace and the times of its calls by key, launched `alone` or, if they cannot be,
    taken `in_situ`, in a real step. `problems` are the reasons why others have none; `notes` are
    remarks for the reader.
    """

    traced: Trace
    alone: Mapping[str, OpTime]
    in_situ: Mapping[str, OpTime]
    problems: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def times(self) -> Mapping[str, OpTime]:
        """All known times."""
        return {**self.alone, **self.in_situ}

    @property
    def memory_bytes(self) -> int:
        """The peak of the step, with what its calls take beside their results."""
        return _memory_bytes(self.traced, self.times)


class DoesNotFit(Exception):
    """A step that the device has no room for; the message is the reason a person reads."""


class Stages:
    """What is done, stage by stage, and how many seconds it takes."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = {}

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        """Add what is done inside to the stage."""
        began_s = time.perf_counter()
        yield
        took_s = self.took_s.get(stage, 0.0) + time.perf_counter() - began_s
        self.took_s[stage] = round(took_s, 3)


class StepProfiler:
    """Traces cases of one network and has their calls measured, each case once.

    With `allow_run`, real steps run where they must. Of a step that needs more than `memory_bytes`,
    where that is given, by more than MEMORY_ERROR, nothing is measured.
    """

    def __init__(
        self, network: Network, classes: int, calls: CallTimer, host_speed: HostSpeed,
        *, allow_run: bool, memory_bytes: int | None,
    ) -> None:  # fmt: skip
        self._network, self._classes, self._calls, self._host_speed = (
            network,
            classes,
            calls,
            host_speed,
        )
        self._allow_run, self._memory_bytes = allow_run, memory_bytes
        self._known: dict[str, StepProfile] = {}

    def of(self, case: TrainCase, stages: Stages, announce: Announce) -> StepProfile:
        """What is known of a case. CannotTrace, DoesNotFit, or what measuring raises."""
        if case.key not in self._known:
            self._known[case.key] = self._measured(case, stages, announce)
        return self._known[case.key]

    def _measured(self, case: TrainCase, stages: Stages, announce: Announce) -> StepProfile:
        announce(case.key, "tracing")
        with stages.timed("tracing"):
            traced, notes = self._traced(case)
        needed, has = _memory_bytes(traced, {}), self._memory_bytes
        if has and needed > (1 + MEMORY_ERROR) * has:
            raise DoesNotFit(needs_more(needed, has))
        announce(case.key, "measuring its operations one by one")
        with stages.timed("operations"):
            self._host_speed.slowdown()  # takes its memory before the operations take theirs
            times = self._calls.times(traced)
        in_situ: Mapping[str, OpTime] = {}
        reason = "--allow-run times it in a real step"
        if _not_alone(times) and self._allow_run:
            announce(case.key, "timing in a real step what cannot be launched alone")
            with stages.timed("real steps"):
                in_situ, reason = self._in_situ(traced, _not_alone(times))
        not_covered = {key: f"{why}; {reason}" for key, why in _not_alone(times).items()}
        problems = {
            key: why for key, why in {**times.problems, **not_covered}.items() if key not in in_situ
        }
        return StepProfile(traced, times.known, in_situ, problems, notes)

    def _traced(self, case: TrainCase) -> tuple[Trace, tuple[str, ...]]:
        try:
            return trace(self._network, case, self._calls.device, self._classes), ()
        except CannotTrace as problem:
            if not problem.real:
                raise
            if not self._allow_run:
                raise CannotTrace(f"{problem}; --allow-run records a real step") from problem
            try:
                real = trace_real(self._network, case, self._calls.device, self._classes)
            except torch.OutOfMemoryError:
                raise DoesNotFit(
                    "its step, which has to run to be recorded, does not fit"
                ) from None
            finally:
                free_memory(self._calls.device)
            return real, (f"recorded from a real step, because fake tensors do not do: {problem}",)

    def _in_situ(
        self, traced: Trace, problems: Mapping[str, str]
    ) -> tuple[Mapping[str, OpTime], str]:
        """Times from real steps by key, and why there is none of the others."""
        keys = [key_of(traced.case, op) for op in traced.ops]
        wanted = {i: key for i, key in enumerate(keys) if key in problems}
        reason = "a real step did not make it"
        try:
            found = time_in_step(
                self._network, traced, self._calls.device, self._classes, wanted,
                self._calls.stopwatch, self._host_speed,
            )  # fmt: skip
        except Exception as error:
            if self._calls.device.type == "cuda":
                torch.cuda.synchronize(self._calls.device)  # raises where it is of no more use
            found, reason = {}, f"a real step raised {one_line(error)}"
        free_memory(self._calls.device)
        return found, reason


def free_memory(device: torch.device) -> None:
    """Return unused memory, such as an ended training's, to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _not_alone(times: CallTimes) -> dict[str, str]:
    """Why calls cannot be launched alone, but for want of memory: no step would have it."""
    return {key: why for key, why in times.problems.items() if why != TOO_LARGE}


def _memory_bytes(traced: Trace, times: Mapping[str, OpTime]) -> int:
    """The peak of a step, with what its calls take beside their results as far as that is known."""
    scratch = {
        op.call.key: times[key].scratch_bytes
        for op in traced.ops
        if (key := key_of(traced.case, op)) in times
    }
    copied = traced.batch_bytes if traced.case.graph else 0  # which a graph reads
    return peak_bytes(traced, scratch) + copied


def peak_bytes(trace: Trace, scratch: Mapping[str, int]) -> int:
    """The most that is allocated at once, weights and optimizer state included.

    `scratch` has, by a call's key, what it allocates beside its results while it runs (workspaces):
    measured, because the trace cannot know it.
    """
    alive = peak = trace.held_bytes
    for op in trace.ops:
        alive -= op.freed
        peak = max(peak, alive + op.allocated + scratch.get(op.call.key, 0))
        alive += op.allocated
    return peak
