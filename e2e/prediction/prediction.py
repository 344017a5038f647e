"""A step as predicted before it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from e2e.case import TrainCase
from e2e.prediction.queue_model import OpCost, Simulated, launched_at, simulate
from e2e.results.exchange import Gradient
from e2e.results.loader_types import Loading
from e2e.results.types import BORDER, Predicted, Training
from e2e.training.speed_readings import SlowdownRange, SpeedReading

GPU_ERROR = 0.03  # of a step: the most that validation allows
HOST_ERROR = 0.10  # of the time of CPU launch, beside the variation of the host speed
BORDER_RATIO = 1.25  # a CPU this much faster or slower, and the bottleneck may be the other one


@dataclass(frozen=True)
class Prediction:
    """A step's predicted time and the ops that it consists of; all times in seconds.

    `reason` says why neither is known. `runs` is False if the case is known not to run; `broke` is
    True if predicting failed. `notes` are remarks for the reader. `wait_s` is the part of the
    predicted step that waits for the loader. The host times of `ops` and `framework_s` (host time
    outside the ops; of a captured step, all host time) are for a host at `slowdown` times the
    reference (1.25: 25 % slower). `host_error` is the relative error of the framework overhead on
    the calibration networks; `speed_readings` are the slowdowns read during measurement;
    `gradients` are those of a step.
    """

    case: TrainCase
    predicted: Predicted | None = None
    simulated: Simulated | None = None
    ops: tuple[OpCost, ...] = ()
    reason: str | None = None
    runs: bool = True
    broke: bool = False
    notes: tuple[str, ...] = ()
    wait_s: float = 0.0
    slowdown: float = 1.0
    framework_s: float = 0.0
    host_error: float = 0.0
    speed_readings: tuple[SpeedReading, ...] = ()
    gradients: tuple[Gradient, ...] = ()

    def predicted_for(self, slowdowns: SlowdownRange) -> Prediction:
        """The same step on a host with this range of slowdowns; unchanged if not predicted."""
        if self.predicted is None:
            return self
        typical = self.at(slowdowns.middle)
        simulated = typical.simulate()
        predicted = replace(self.predicted, step_s=simulated.step_s, interval_s=None)
        if predicted.limit is not None:  # on a CPU the error is not known
            error = max(HOST_ERROR, 2 * self.host_error)
            quick = self.at((1 - error) * slowdowns.low).simulate().step_s
            slow = self.at((1 + error) * slowdowns.high).simulate().step_s
            ends = (quick * (1 - GPU_ERROR), slow * (1 + GPU_ERROR))
            limit = BORDER if self._on_the_border(slowdowns) else simulated.limit
            predicted = replace(
                predicted, interval_s=ends, limit=limit, gpu_s=simulated.gpu_s,
                host_s=simulated.host_s,
            )  # fmt: skip
        return replace(typical, predicted=predicted, simulated=simulated)

    def _on_the_border(self, slowdowns: SlowdownRange) -> bool:
        """Whether the bottleneck depends on how fast the host happens to be.

        It is looked at over the range that was read, and at least BORDER_RATIO to both sides.
        """
        quick = min(slowdowns.low, slowdowns.middle / BORDER_RATIO)
        slow = max(slowdowns.high, slowdowns.middle * BORDER_RATIO)
        return self.at(quick).simulate().limit != self.at(slow).simulate().limit

    def at(self, slowdown: float) -> Prediction:
        """The same ops at another slowdown (ratio) of the host. Not simulated."""
        ratio = slowdown / self.slowdown
        return replace(
            self,
            ops=launched_at(ratio, self.ops),
            framework_s=ratio * self.framework_s,
            slowdown=slowdown,
            simulated=None,
        )

    def simulate(self) -> Simulated:
        """Simulate the step from its ops."""
        return simulate(self.ops, framework_s=self.framework_s, captured=self.case.graph)


def needs_more(needed: int, has: int) -> str:
    """The reason for a case that does not fit the memory; arguments in bytes, printed in GB."""
    return f"it would need {needed / 1e9:,.1f} GB of the device's {has / 1e9:,.1f}"


def with_loader(
    prediction: Prediction, loading: Loading, images: int, *, on_gpu: bool
) -> Prediction:
    """The prediction of a step of `images` images when a loader feeds it: the slower of the two.

    A loader that makes batches `on_gpu` takes device time from the step. How much is not known, so
    the interval reaches up to both times added.
    """
    predicted = prediction.predicted
    if predicted is None or not loading.per_s:
        return prediction
    load_s = images / loading.per_s
    low, high = loading.ci95_per_s or (loading.per_s, loading.per_s)
    ends = predicted.interval_s or (predicted.step_s, predicted.step_s)
    longest_s = ends[1] + images / low if on_gpu else max(ends[1], images / low)
    both = replace(
        predicted,
        step_s=max(predicted.step_s, load_s),
        interval_s=(max(ends[0], images / high), longest_s),
        limit="data" if load_s > predicted.step_s else predicted.limit,
    )
    return replace(prediction, predicted=both, wait_s=max(0.0, load_s - predicted.step_s))


def measured_wait_s(training: Training) -> float:
    """Seconds by which a measured step was longer than on a preloaded batch; at least 0."""
    if training.steps is None or training.steps.unfed_s is None or training.measured_s is None:
        return 0.0
    return max(0.0, training.measured_s - training.steps.unfed_s)
