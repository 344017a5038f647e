"""Predicts steps that were never run: trace, measure the calls one by one, simulate the queue."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from e2e.case import TrainCase
from e2e.networks import Network
from e2e.prediction.calibration import calibrated
from e2e.prediction.framework_overhead import FrameworkOverhead
from e2e.prediction.host_speed import RecordedSpeed, host_speed_of
from e2e.prediction.op_timer.cuda_graph import CaptureFailed, check_capturable, measure_graph
from e2e.prediction.op_timer.op_costs import CallTimer, key_of, step_key
from e2e.prediction.op_timer.op_timer import OpTime
from e2e.prediction.op_timer.store import Store
from e2e.prediction.padding import PaddedCase, padded_step, padding
from e2e.prediction.prediction import Prediction
from e2e.prediction.queue_model import GraphCosts, OpCost
from e2e.prediction.step_profile import (
    Announce,
    DoesNotFit,
    Stages,
    StepProfile,
    StepProfiler,
    free_memory,
)
from e2e.prediction.trace.fake_trace import CannotTrace, Trace
from e2e.prediction.trace.recorder import TracedOp, kind
from e2e.recipes import NO_GRAPHS, cannot_run, recipe_of
from e2e.results.types import Predicted
from e2e.training.speed_readings import HostSpeed, SpeedReading, slowdown_range
from kernels.case import Target
from kernels.error_words import one_line

SECONDS, RECENT_S = 3, 10.0  # that readings of the host speed cover; their age
COMPILED = "a compiled step runs kernels that no trace shows: predicted steps are eager or captured"
FLOAT8 = "steps with FP8 are not predicted: their products are not measured alone"
NO_GAIN = "no layer gets faster when it is padded"


class Predictor:
    """Predicts cases of one network on one device; each call is measured once.

    `allow_run` and `memory_bytes` are as for StepProfiler. `host_speed` measures the host's launch
    speed; None: this process's for the device.
    """

    def __init__(
        self, network: Network, target: Target, classes: int, store: Store, *, allow_run: bool,
        memory_bytes: int | None = None, host_speed: HostSpeed | None = None,
    ) -> None:  # fmt: skip
        self.network = network
        self.target, self.device = target, torch.device(target.torch_device)
        self.cuda = target.kind == "cuda"
        self.host_speed = host_speed or host_speed_of(self.device)
        self._recorded_speed = RecordedSpeed(self.host_speed)
        self._readings: tuple[SpeedReading, ...] = ()
        self._store, self._calls = store, CallTimer(target, store, self._recorded_speed)
        self._profiler = StepProfiler(
            network, classes, self._calls, self._recorded_speed,
            allow_run=allow_run, memory_bytes=memory_bytes,
        )  # fmt: skip
        self._graphs = dict(store.captured)
        self._stages = Stages()

    def predict(self, case: TrainCase, announce: Announce) -> Prediction:
        """The predicted step of a case, or the reason why there is none.

        Nothing of the network runs, except what `allow_run` permits. The prediction is for the host
        speed read during measurement or, if nothing had to be measured, the last reading.
        CaptureFailed when a capture broke off; the process cannot be used any more.
        """
        reason = self._cannot(case)
        if reason:
            return Prediction(case, reason=reason)
        self._stages = Stages()
        try:
            found = self._prediction(case, announce)
        except CaptureFailed:
            raise  # this process can predict nothing more
        except CannotTrace as problem:
            found = Prediction(case, reason=f"the step cannot be traced: {problem}")
        except DoesNotFit as problem:
            found = Prediction(case, reason=str(problem), runs=False)
        except Exception as error:
            if self.cuda:
                torch.cuda.synchronize(self.device)  # raises where the device is of no more use
            found = Prediction(case, reason=one_line(error), broke=True)
        if self.cuda:
            self.host_speed.forget()
            free_memory(self.device)  # leave the memory as it was
        return found

    def _prediction(self, case: TrainCase, announce: Announce) -> Prediction:
        plain = case.plain if isinstance(case, PaddedCase) else case
        profile = self._profiler.of(plain, self._stages, announce)
        alone = tuple(self._cost(plain, op, profile.times) for op in profile.traced.ops)
        ops = alone
        if isinstance(case, PaddedCase):
            announce(case.key, "measuring its operations padded")
            with self._stages.timed("operations"):
                padded = self._padded(profile.traced, alone)
            if padded is None:
                return Prediction(case, reason=NO_GAIN)
            ops = padded
        gradients = profile.traced.gradients
        at_1 = Prediction(plain, ops=ops, notes=profile.notes, gradients=gradients)
        if plain.graph:
            captured = self._captured(case, profile, announce)
            costs = zip(profile.traced.ops, alone, strict=True)
            of_graph = [cost for op, cost in costs if key_of(plain, op) not in profile.in_situ]
            at_1 = replace(at_1, ops=captured.ops(of_graph, ops), framework_s=captured.host_s(ops))
        else:
            framework = self._framework(case, announce)
            at_1 = replace(
                at_1, framework_s=framework.of(profile.traced), host_error=framework.error
            )
        at_1 = replace(at_1, speed_readings=self._recent_readings(case, announce))
        return replace(self._on_this_host(profile, at_1), case=case)

    def _recent_readings(self, case: TrainCase, announce: Announce) -> tuple[SpeedReading, ...]:
        """Readings of the host speed since the last prediction. Takes more if they cover fewer than
        SECONDS seconds and the last ones are older than RECENT_S.
        """
        speed_readings = self._recorded_speed.take()
        before_s = self._readings[-1][0] if self._readings else -math.inf
        seconds = {int(at_s) for at_s, _ in speed_readings}
        if len(seconds) < SECONDS and time.perf_counter() > before_s + RECENT_S:
            announce(case.key, "measuring how fast the host launches")
            with self._stages.timed("host"):
                self._recorded_speed.look()
            speed_readings += self._recorded_speed.take()
        self._readings = speed_readings or self._readings
        return self._readings

    def _captured(self, case: TrainCase, profile: StepProfile, announce: Announce) -> GraphCosts:
        """The costs of a graph of these calls."""
        check_capturable(profile.traced, profile.times)
        key = step_key(profile.traced, profile.alone)
        if key not in self._graphs:
            announce(case.key, "measuring its operations captured together")
            with self._stages.timed("operations"):
                captured, steady = measure_graph(
                    self._calls, profile.traced, profile.alone, self._recorded_speed
                )
            self._graphs[key] = captured
            if steady:
                self._store.keep_captured(key, captured)
        return self._graphs[key]

    def _framework(self, case: TrainCase, announce: Announce) -> FrameworkOverhead:
        """The framework overhead of this machine."""
        framework = self._store.framework
        if framework is None:
            announce(case.key, "measuring what the host does around operations")
            with self._stages.timed("host"):
                framework = calibrated(self._calls, self._recorded_speed)
            self._store.keep(framework)
        return framework

    def _cannot(self, case: TrainCase) -> str | None:
        if case.compile:
            return COMPILED
        if case.graph and not self.cuda:
            return NO_GRAPHS
        if recipe_of(case).float8:
            return FLOAT8
        return cannot_run(recipe_of(case), self.target.kind, self.target.capability)

    # ------------------------------------------------------------ the step

    def _on_this_host(self, profile: StepProfile, at_1: Prediction) -> Prediction:
        slowdowns = slowdown_range(at_1.speed_readings)
        predicted = Predicted(
            0.0, None,  # which depend on the host's speed
            "gpu" if self.cuda else None,
            {},
            profile.memory_bytes if self.cuda else None,
            profile.uncovered,
            took_s=self._stages.took_s,
            from_step=profile.from_step(at_1.at(slowdowns.middle).ops),
        )  # fmt: skip
        return replace(at_1, predicted=predicted).predicted_for(slowdowns)

    def _padded(self, traced: Trace, ops: Sequence[OpCost]) -> tuple[OpCost, ...] | None:
        """The ops with those layers padded that gain by it; None where none does."""
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
