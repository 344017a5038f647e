"""What is known of a step before it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from e2e.predict.host_model.variation import Seen, Spread
from e2e.predict.queue_model import OpCost, Simulated, launched_at, simulate
from e2e.results.types import Predicted, TrainCase

GPU_ERROR = 0.03  # of a step that the device limits: the most that validation allows
HOST_ERROR = 0.10  # of one that the host limits, beside what its pace varies by


@dataclass(frozen=True)
class Foretold:
    """What is known of a step before it runs: its predicted time, and the ops it is made of.

    `reason` says why there is none of either; `runs` is False where it is known that nobody can
    train it, so that there is nothing to measure, `broke` is True where telling it went wrong;
    `notes` is what a reader must know beside it. `wait_s` is the part of the predicted step in
    which it waits for its loader. The ops' host times
    are as at `pace`, and so is `framework_s`, the host's time beside them; of a captured step, all
    that the host takes to launch it. `host_error` is how far off small networks' steps were from
    what is told of what surrounds their ops; `seen` is the host's pace while this was measured.
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
    pace: float = 1.0
    framework_s: float = 0.0
    host_error: float = 0.0
    seen: tuple[Seen, ...] = ()

    def told_for(self, pace: Spread) -> Foretold:
        """The same, predicted for a host that varies so; what is not predicted stays so."""
        if self.predicted is None:
            return self
        told, quick, slow = map(self.at, (pace.middle, pace.low, pace.high))
        simulated = told.simulate()
        error = GPU_ERROR
        if simulated.limit == "host":
            error = max(HOST_ERROR, 2 * self.host_error)
        ends = (quick.simulate().step_s * (1 - error), slow.simulate().step_s * (1 + error))
        if self.predicted.limit is None:  # on a CPU, where nobody has seen how far steps are off
            predicted = replace(self.predicted, step_s=simulated.step_s, interval_s=None)
            return replace(told, predicted=predicted, simulated=simulated)
        limit = simulated.limit
        predicted = replace(self.predicted, step_s=simulated.step_s, interval_s=ends, limit=limit)
        return replace(told, predicted=predicted, simulated=simulated)

    def at(self, pace: float) -> Foretold:
        """The same ops, launched at another pace, and not simulated yet; `predicted` stays."""
        ratio = pace / self.pace
        return replace(
            self,
            ops=launched_at(ratio, self.ops),
            framework_s=ratio * self.framework_s,
            pace=pace,
            simulated=None,
        )

    def simulate(self) -> Simulated:
        """The step from its ops."""
        return simulate(
            self.ops,
            framework_s=self.framework_s,
            captured=self.case.graph,
        )


def needs_more(needed: int, has: int) -> str:
    """The reason for a case that the device has too little memory for, in bytes both."""
    return f"it would need {needed / 1e9:,.1f} GB of the device's {has / 1e9:,.1f}"
