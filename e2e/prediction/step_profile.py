"""A case's step profile: its trace, and its calls' times."""

from __future__ import annotations

import gc
import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from e2e.case import TrainCase
from e2e.networks import Network
from e2e.prediction.op_timer.in_situ import time_in_step
from e2e.prediction.op_timer.op_costs import CallTimer, key_of
from e2e.prediction.op_timer.op_timer import TOO_LARGE, OpTime
from e2e.prediction.prediction import needs_more
from e2e.prediction.queue_model import OpCost
from e2e.prediction.trace.fake_trace import CannotTrace, Trace, trace, trace_real
from e2e.prediction.trace.recorder import TracedOp, is_view
from e2e.training.speed_readings import HostSpeed
from kernels.error_words import one_line
from microbench.fmt import as_ms

MEMORY_ERROR = 0.05  # of a peak: the most that validation allows

Announce = Callable[[str, str], None]


@dataclass(frozen=True)
class StepProfile:
    """A case's trace, and the times of its calls by key.

    They are measured `alone` or, where that is impossible, `in_situ`, in a real step. `problems`
    are the reasons why others have none; `notes` are remarks for the reader.
    """

    traced: Trace
    alone: Mapping[str, OpTime]
    in_situ: Mapping[str, OpTime]
    problems: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def times(self) -> Mapping[str, OpTime]:
        """All known times, by key."""
        return {**self.alone, **self.in_situ}

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the step in bytes, workspaces of its calls included."""
        return peak_bytes(self.traced, self.times)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """The calls without a time, a line per name and reason, for the reader.

        Each has their number, and their share (%) of the calls that launch something and of the
        bytes of arguments and results.
        """
        launched = [op for op in self.traced.ops if not is_view(op)]
        missing: dict[tuple[str, str], list[TracedOp]] = defaultdict(list)
        for op in launched:
            why = self.problems.get(key_of(self.traced.case, op))
            if why is not None:
                missing[op.call.name, why].append(op)
        return tuple(
            f"{len(ops)} x {name}: {why} ({len(ops)} of {len(launched)} calls, "
            f"{_percent(_bytes(ops), _bytes(launched))} of their bytes)"
            for (name, why), ops in missing.items()
        )

    def from_step(self, costs: Sequence[OpCost]) -> tuple[str, ...]:
        """The calls timed in a real step, a line per name, for the reader.

        Each has their device time, its share (%) of the step's, and their host time. `costs` are of
        the trace's calls.
        """
        device_s = math.fsum(cost.device_s for cost in costs)
        taken: dict[str, list[OpCost]] = defaultdict(list)
        for op, cost in zip(self.traced.ops, costs, strict=True):
            if key_of(self.traced.case, op) in self.in_situ:
                taken[op.call.name].append(cost)
        lines: list[str] = []
        for name, some in taken.items():
            own_s = math.fsum(cost.device_s for cost in some)
            host_s = math.fsum(cost.host_s for cost in some)
            host = f"; {as_ms(1e3 * host_s)} ms of the host's" if host_s else ""
            lines.append(
                f"{len(some)} x {name} ({as_ms(1e3 * own_s)} ms, "
                f"{_percent(own_s, device_s)} of the device's time{host})"
            )
        return tuple(lines)


class DoesNotFit(Exception):
    """A step that needs more memory than the device has; the message says how much."""


class Stages:
    """The seconds that each stage of a prediction took."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = {}

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        """Add the seconds that the body takes to the stage."""
        began_s = time.perf_counter()
        yield
        took_s = self.took_s.get(stage, 0.0) + time.perf_counter() - began_s
        self.took_s[stage] = round(took_s, 3)


class StepProfiler:
    """Traces cases of one network and has their calls timed, each case once.

    With `allow_run`, real steps run where tracing or timing alone is impossible. A step that needs
    more than `memory_bytes` (None: any) by more than MEMORY_ERROR is not measured.
    """

    def __init__(
        self, network: Network, classes: int, calls: CallTimer, host_speed: HostSpeed,
        *, allow_run: bool, memory_bytes: int | None,
    ) -> None:  # fmt: skip
        self._network, self._classes = network, classes
        self._calls, self._host_speed = calls, host_speed
        self._allow_run, self._memory_bytes = allow_run, memory_bytes
        self._known: dict[str, StepProfile] = {}

    def of(self, case: TrainCase, stages: Stages, announce: Announce) -> StepProfile:
        """The profile of a case. Raises CannotTrace, DoesNotFit, or what measuring raises."""
        if case.key not in self._known:
            self._known[case.key] = self._measured(case, stages, announce)
        return self._known[case.key]

    def _measured(self, case: TrainCase, stages: Stages, announce: Announce) -> StepProfile:
        announce(case.key, "tracing")
        with stages.timed("tracing"):
            traced, notes = self._traced(case)
        needed, has = peak_bytes(traced, {}), self._memory_bytes
        if has and needed > (1 + MEMORY_ERROR) * has:
            raise DoesNotFit(needs_more(needed, has))
        announce(case.key, "preparing its operations")
        with stages.timed("operations"):
            self._host_speed.slowdown()  # takes its memory before the operations take theirs
            self._calls.doing = partial(announce, case.key)
            times = self._calls.times(traced)
        # But for want of memory: no step would have it.
        not_alone = {key: why for key, why in times.problems.items() if why != TOO_LARGE}
        in_situ: Mapping[str, OpTime] = {}
        reason = "--allow-run times it in a real step"
        if not_alone and self._allow_run:
            announce(case.key, "timing in a real step what cannot be launched alone")
            with stages.timed("real steps"):
                in_situ, reason = self._in_situ(traced, not_alone)
        problems = {
            key: f"{why}; {reason}" if key in not_alone else why
            for key, why in times.problems.items()
            if key not in in_situ
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
    """Return unused cached memory, such as that of a finished training, to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak_bytes(traced: Trace, times: Mapping[str, OpTime]) -> int:
    """Peak memory of a step in bytes, weights and optimizer state included.

    `times` has what each call allocates beside its results (workspaces): measured, because the
    trace cannot know it. A graph also holds a copy of the batch.
    """
    scratch = {
        op.call.key: times[key].scratch_bytes
        for op in traced.ops
        if (key := key_of(traced.case, op)) in times
    }
    alive = peak = traced.held_bytes
    for op in traced.ops:
        alive -= op.freed
        peak = max(peak, alive + op.allocated + scratch.get(op.call.key, 0))
        alive += op.allocated
    return peak + (traced.batch_bytes if traced.case.graph else 0)


def _bytes(ops: Sequence[TracedOp]) -> int:
    return sum(
        each.distinct * each.itemsize for op in ops for each in (*op.call.tensors, *op.outputs)
    )


def _percent(part: float, whole: float) -> str:
    share = part / whole if whole else 0.0
    return f"{100 * share:.1f} %" if share >= 0.001 or not share else "under 0.1 %"
