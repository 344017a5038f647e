"""Predicts steps that were never run: trace, measure the calls one by one, simulate the queue."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from e2e.networks import Network
from e2e.predict.coverage import from_step, uncovered
from e2e.predict.host_model.calibration import calibrated
from e2e.predict.host_model.framework_overhead import Framework
from e2e.predict.host_model.host_speed import Noted, pace_of
from e2e.predict.host_model.variation import Seen, spread
from e2e.predict.op_timer.cuda_graph import CaptureFailed, refuse
from e2e.predict.op_timer.cuda_graph import measure as measure_captured
from e2e.predict.op_timer.op_costs import Calls, key_of, step_key
from e2e.predict.op_timer.op_timer import OpTime
from e2e.predict.op_timer.store import Store
from e2e.predict.padding import PaddedCase, padded_step, padding
from e2e.predict.prediction import Foretold
from e2e.predict.queue_model import Captured, OpCost
from e2e.predict.step_profile import Announce, DoesNotFit, Knowledge, Known, Stages, let_go
from e2e.predict.trace.fake_trace import CannotTrace, Trace
from e2e.predict.trace.recorder import TracedOp, kind
from e2e.recipes import NO_GRAPHS, cannot_run, recipe_of
from e2e.results.types import Predicted, TrainCase
from e2e.train.speed_readings import HostPace
from kernels.case import Target
from kernels.error_words import one_line

SECONDS, RECENT_S = 3, 10.0  # in which the host's pace was seen; it changes in some
COMPILED = "a compiled step runs kernels that no trace shows: predicted steps are eager or captured"
NO_GAIN = "no layer gets faster when it is padded"


class Predictor:
    """Predicts cases of one network on one device; calls are measured once.

    `allow_run` and `memory_bytes` are as for its Knowledge; `pace` tells how fast the host
    launches: the device's own when none is given.
    """

    def __init__(
        self, network: Network, target: Target, classes: int, store: Store, *, allow_run: bool,
        memory_bytes: int | None = None, pace: HostPace | None = None,
    ) -> None:  # fmt: skip
        self.network = network
        self.target, self.device = target, torch.device(target.torch_device)
        self.cuda = target.kind == "cuda"
        self.pace = pace or pace_of(self.device)
        self._noted = Noted(self.pace)
        self._seen: tuple[Seen, ...] = ()
        self._store, self._calls = store, Calls(target, store, self._noted)
        self._knowledge = Knowledge(
            network, classes, self._calls, self._noted,
            allow_run=allow_run, memory_bytes=memory_bytes,
        )  # fmt: skip
        self._graphs = dict(store.captured)
        self._stages = Stages()

    def foretell(self, case: TrainCase, announce: Announce) -> Foretold:
        """The step of a case, or why it cannot be told. Nothing of the network runs, but for what
        `allow_run` lets.

        It is told for the host's pace as seen meanwhile, or, where nothing had to be measured, as
        seen the last time. CaptureFailed, after which the process is of no more use.
        """
        reason = self._cannot(case)
        if reason:
            return Foretold(case, reason=reason)
        self._stages = Stages()
        try:
            found = self._foretold(case, announce)
        except CaptureFailed:
            raise  # nothing more can be told in this process
        except CannotTrace as problem:
            found = Foretold(case, reason=f"cannot be traced: {problem}")
        except DoesNotFit as problem:
            found = Foretold(case, reason=str(problem), runs=False)
        except Exception as error:
            if self.cuda:
                torch.cuda.synchronize(self.device)  # raises where the device is of no more use
            found = Foretold(case, reason=one_line(error), broke=True)
        if self.cuda:
            self.pace.forget()
            let_go(self.device)  # what comes next finds the memory as it was
        return found

    def _foretold(self, case: TrainCase, announce: Announce) -> Foretold:
        plain = case.plain if isinstance(case, PaddedCase) else case
        known = self._knowledge.of(plain, self._stages, announce)
        alone = tuple(self._cost(plain, op, known.times) for op in known.traced.ops)
        ops = alone
        if isinstance(case, PaddedCase):
            announce(case.key, "measuring its operations padded")
            with self._stages.timed("operations"):
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
            with self._stages.timed("host"):
                self._noted.look()
            seen += self._noted.take()
        self._seen = seen or self._seen
        return self._seen

    def _captured(self, case: TrainCase, known: Known, announce: Announce) -> Captured:
        """What a graph of these calls takes."""
        refuse(known.traced, known.times)
        key = step_key(known.traced, known.alone)
        if key not in self._graphs:
            announce(case.key, "measuring its operations captured together")
            with self._stages.timed("operations"):
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
            with self._stages.timed("host"):
                framework = calibrated(self._calls, self._noted)
            self._store.keep(framework)
        return framework

    def _cannot(self, case: TrainCase) -> str | None:
        if case.compile:
            return COMPILED
        if case.graph and not self.cuda:
            return NO_GRAPHS
        return cannot_run(recipe_of(case), self.target.kind, self.target.capability)

    # ------------------------------------------------------------ the step

    def _told(self, known: Known, at_1: Foretold, seen: tuple[Seen, ...]) -> Foretold:
        traced = known.traced
        pace = spread(seen)
        predicted = Predicted(
            0.0, None,  # which depend on the pace
            "gpu" if self.cuda else None,
            {},
            known.memory_bytes if self.cuda else None,
            uncovered(traced, known.problems),
            took_s=self._stages.took_s,
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
        step = tuple(larger.get(i, op) for i, op in enumerate(traced.ops))
        times = self._calls.times(replace(traced, ops=step), larger).known
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
