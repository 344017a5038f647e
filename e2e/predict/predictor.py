"""Predicts steps that were never run: trace, measure the calls one by one, simulate the queue."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from e2e.networks import Network
from e2e.predict.calibration import calibrated
from e2e.predict.calls import Calls, key_of, kind, step_key
from e2e.predict.captured import CaptureFailed, refuse
from e2e.predict.captured import measure as measure_captured
from e2e.predict.fixes import PaddedCase
from e2e.predict.foretold import Foretold, needs_more
from e2e.predict.framework import Framework
from e2e.predict.in_step import time_in_step
from e2e.predict.lacking import from_step, uncovered
from e2e.predict.memory import peak_bytes
from e2e.predict.model import Captured, OpCost
from e2e.predict.pace import HostPace, Noted, pace_of
from e2e.predict.padding import padded_step, padding
from e2e.predict.recorder import TracedOp
from e2e.predict.replay import TOO_LARGE, OpTime
from e2e.predict.spread import Seen, spread
from e2e.predict.store import Store
from e2e.predict.trace import CannotTrace, Trace, trace, trace_real
from e2e.recipes import NO_GRAPHS, cannot_run, recipe_of
from kernels.case import Target
from kernels.error_words import one_line
from microbench.train_results import Predicted, TrainCase

SECONDS, RECENT_S = 3, 10.0  # in which the host's pace was seen; it changes in some
COMPILED = "a compiled step runs kernels that no trace shows: predicted steps are eager or captured"
MEMORY_ERROR = 0.05  # of a peak: the most that validation allows
NO_GAIN = "no layer gets faster when it is padded"

Announce = Callable[[str, str], None]


@dataclass(frozen=True)
class _Known:
    """A case's trace, the times of its calls by key, launched `alone` or taken `in_step` where
    they cannot be, why there is none of others, and what a reader must know of them.
    """

    traced: Trace
    alone: Mapping[str, OpTime]
    in_step: Mapping[str, OpTime]
    problems: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def times(self) -> Mapping[str, OpTime]:
        """All that are known."""
        return {**self.alone, **self.in_step}


class Predictor:
    """Predicts cases of one network on one device; calls are measured once.

    Of a step that needs more than `memory_bytes`, where that is given, by more than MEMORY_ERROR,
    nothing is measured. `pace`
    tells how fast the host launches; of the device's own when none is given.
    """

    def __init__(
        self, network: Network, target: Target, classes: int, store: Store, *, allow_run: bool,
        memory_bytes: int | None = None, pace: HostPace | None = None,
    ) -> None:  # fmt: skip
        self.network, self.classes = network, classes
        self.target, self.device = target, torch.device(target.torch_device)
        self.cuda = target.kind == "cuda"
        self.allow_run, self.memory_bytes = allow_run, memory_bytes
        self.pace = pace or pace_of(self.device)
        self._noted = Noted(self.pace)
        self._seen: tuple[Seen, ...] = ()
        self._store, self._calls = store, Calls(target, store, self._noted)
        self._known: dict[str, _Known] = {}
        self._graphs = dict(store.captured)
        self._took_s: dict[str, float] = {}

    def foretell(self, case: TrainCase, announce: Announce) -> Foretold:
        """The step of a case, or why it cannot be told. Nothing of the network runs.

        It is told for the host's pace as seen meanwhile, or, where nothing had to be measured, as
        seen the last time. CaptureFailed, after which the process is of no more use.
        """
        reason = self._cannot(case)
        if reason:
            return Foretold(case, reason=reason)
        self._took_s = {}
        try:
            found = self._foretold(case, announce)
        except CaptureFailed:
            raise  # nothing more can be told in this process
        except CannotTrace as problem:
            found = Foretold(case, reason=f"cannot be traced: {problem}")
        except _DoesNotFit as problem:
            found = Foretold(case, reason=str(problem), runs=False)
        except Exception as error:
            if self.cuda:
                torch.cuda.synchronize(self.device)  # raises where the device is of no more use
            found = Foretold(case, reason=one_line(error), broke=True)
        if self.cuda:
            self.pace.forget()
            self._let_go()  # what comes next finds the memory as it was
        return found

    def _let_go(self) -> None:
        """Of memory that nobody uses, a training's that has ended for one."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def _foretold(self, case: TrainCase, announce: Announce) -> Foretold:
        plain = case.plain if isinstance(case, PaddedCase) else case
        known = self._known.get(plain.key) or self._measured(plain, announce)
        self._known[plain.key] = known
        alone = tuple(self._cost(plain, op, known.times) for op in known.traced.ops)
        ops = alone
        if isinstance(case, PaddedCase):
            announce(case.key, "measuring its operations padded")
            with self._timed("operations"):
                padded = self._padded(known.traced, alone)
            if padded is None:
                return Foretold(case, reason=NO_GAIN)
            ops = padded
        at_1 = Foretold(plain, ops=ops, notes=known.notes)
        if plain.graph:
            captured = self._captured(case, known, announce)
            of_graph = [
                cost
                for op, cost in zip(known.traced.ops, alone, strict=True)
                if key_of(plain, op) not in known.in_step
            ]
            at_1 = replace(at_1, ops=captured.ops(of_graph, ops), framework_s=captured.host_s(ops))
            error = 0.0
        else:
            framework = self._framework(case, announce)
            at_1 = replace(at_1, framework_s=framework.of(known.traced))
            error = framework.error
        told = self._told(known, replace(at_1, host_error=error), self._pace_seen(case, announce))
        return replace(told, case=case)

    def _pace_seen(self, case: TrainCase, announce: Announce) -> tuple[Seen, ...]:
        """How fast the host launched since the last prediction; looked at where that is hardly
        known and the last one is not RECENT_S ago.
        """
        seen = self._noted.take()
        before_s = self._seen[-1][0] if self._seen else -math.inf
        if len({int(at_s) for at_s, _ in seen}) < SECONDS and time.perf_counter() > (
            before_s + RECENT_S
        ):
            announce(case.key, "measuring how fast the host launches")
            with self._timed("host"):
                self._noted.look()
            seen += self._noted.take()
        self._seen = seen or self._seen
        return self._seen

    def _captured(self, case: TrainCase, known: _Known, announce: Announce) -> Captured:
        """What a graph of these calls takes."""
        refuse(known.traced, known.times)
        key = step_key(known.traced, known.alone)
        if key not in self._graphs:
            announce(case.key, "measuring its operations captured together")
            with self._timed("operations"):
                learnt = measure_captured(self._calls, known.traced, known.alone, self._noted)
            self._graphs[key] = learnt.captured
            if learnt.steady:
                self._store.keep_captured(key, learnt.captured)
        return self._graphs[key]

    def _framework(self, case: TrainCase, announce: Announce) -> Framework:
        """What the host does beside calls."""
        framework = self._store.framework
        if framework is None:
            announce(case.key, "measuring what the host does around operations")
            with self._timed("host"):
                framework = calibrated(self._calls, self._noted)
            self._store.keep(framework)
        return framework

    def _measured(self, case: TrainCase, announce: Announce) -> _Known:
        announce(case.key, "tracing")
        with self._timed("tracing"):
            traced, notes = self._traced(case)
        needed, has = _memory_bytes(traced, {}), self.memory_bytes
        if has and needed > (1 + MEMORY_ERROR) * has:
            raise _DoesNotFit(needs_more(needed, has))
        announce(case.key, "measuring its operations one by one")
        with self._timed("operations"):
            self._noted.now()  # takes its memory before the operations take theirs
            times = self._calls.times(traced)
        lacking = {key: why for key, why in times.problems.items() if why != TOO_LARGE}
        in_step: Mapping[str, OpTime] = {}
        reason = "--allow-run times it in a real step"
        if lacking and self.allow_run:
            announce(case.key, "timing in a real step what cannot be launched alone")
            with self._timed("real steps"):
                in_step, reason = self._in_step(traced, lacking)
        lacking = {key: f"{why}; {reason}" for key, why in lacking.items()}
        problems = {
            key: why for key, why in {**times.problems, **lacking}.items() if key not in in_step
        }
        return _Known(traced, times.known, in_step, problems, notes)

    def _in_step(
        self, traced: Trace, problems: Mapping[str, str]
    ) -> tuple[Mapping[str, OpTime], str]:
        """Times from real steps by key, and why there is none of the others."""
        keys = [key_of(traced.case, op) for op in traced.ops]
        wanted = {i: key for i, key in enumerate(keys) if key in problems}
        reason = "a real step did not make it"
        try:
            found = time_in_step(
                self.network, traced, self.device, self.classes, wanted,
                self._calls.stopwatch, self._noted,
            )  # fmt: skip
        except Exception as error:
            if self.cuda:
                torch.cuda.synchronize(self.device)  # raises where the device is of no more use
            found, reason = {}, f"a real step raised {one_line(error)}"
        self._let_go()
        return found, reason

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Add what is done inside to `took_s` of the prediction under way."""
        began_s = time.perf_counter()
        yield
        took_s = self._took_s.get(stage, 0.0) + time.perf_counter() - began_s
        self._took_s[stage] = round(took_s, 3)

    def _cannot(self, case: TrainCase) -> str | None:
        if case.compile:
            return COMPILED
        if case.graph and not self.cuda:
            return NO_GRAPHS
        return cannot_run(recipe_of(case), self.target.kind, self.target.capability)

    def _traced(self, case: TrainCase) -> tuple[Trace, tuple[str, ...]]:
        try:
            return trace(self.network, case, self.device, self.classes), ()
        except CannotTrace as problem:
            if not problem.real:
                raise
            if not self.allow_run:
                raise CannotTrace(f"{problem}; --allow-run records a real step") from problem
            real = trace_real(self.network, case, self.device, self.classes)
            self._let_go()
            return real, (f"recorded from a real step, because fake tensors failed: {problem}",)

    # ------------------------------------------------------------ the step

    def _told(self, known: _Known, at_1: Foretold, seen: tuple[Seen, ...]) -> Foretold:
        traced = known.traced
        memory_bytes, pace = _memory_bytes(traced, known.times), spread(seen)
        predicted = Predicted(
            0.0, None,  # which depend on the pace
            "gpu" if self.cuda else None,
            {},
            memory_bytes if self.cuda else None,
            uncovered(traced, known.problems),
            took_s=self._took_s,
            from_step=from_step(traced, at_1.at(pace.middle).ops, known.in_step),
        )  # fmt: skip
        return replace(at_1, predicted=predicted, seen=seen).told_for(pace)

    def _padded(self, traced: Trace, ops: Sequence[OpCost]) -> tuple[OpCost, ...] | None:
        """The ops with layers padded where that makes them faster; None where it does for none."""
        case = traced.case
        paddings = {
            i: found
            for i, op in enumerate(traced.ops)
            if (found := padding(op.call, recipe_of(case).tf32)) is not None
        }
        larger = {i: replace(traced.ops[i], call=each.call) for i, each in paddings.items()}
        times = self._calls.times(replace(traced, ops=tuple(larger.values()))).known
        tried = {
            i: (self._cost(case, op, times), paddings[i])
            for i, op in larger.items()
            if key_of(case, op) in times
        }
        return padded_step(ops, [op.call for op in traced.ops], tried)

    def _cost(self, case: TrainCase, op: TracedOp, times: Mapping[str, OpTime]) -> OpCost:
        time = times.get(key_of(case, op), OpTime(0.0, 0.0))
        tensors = op.call.tensors
        odd = padding(op.call, recipe_of(case).tf32) if self.cuda else None  # of Tensor Cores
        return OpCost(
            kind(op), op.phase, op.layer, time.gpu_s, time.host_s,
            waits=op.waits or time.waits or not self.cuda,  # a CPU's host is its device
            conversion_s=time.conversion_s,
            busy_s=time.busy_s,
            name=op.call.name,
            dtype=tensors[0].dtype if tensors else "",
            misaligned=odd.misaligned if odd else "",
            kernels=time.kernels,
        )  # fmt: skip


class _DoesNotFit(Exception):
    """A step that the device has no room for; the message is the reason a person reads."""


def _memory_bytes(traced: Trace, times: Mapping[str, OpTime]) -> int:
    """The peak of a step, with what its calls take beside their results as far as that is known."""
    scratch = {
        op.call.key: times[key].scratch_bytes
        for op in traced.ops
        if (key := key_of(traced.case, op)) in times
    }
    copied = traced.batch_bytes if traced.case.graph else 0  # which a graph reads
    return peak_bytes(traced, scratch) + copied
