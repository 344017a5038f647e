"""What is known of a step before it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from e2e.predict.model import OpCost, Simulated, launched_at, simulate
from microbench.train_results import Predicted, TrainCase


@dataclass(frozen=True)
class Foretold:
    """What is known of a step before it runs: its predicted time, and the ops it is made of.

    `reason` says why there is none of either; `runs` is False where it is known that nobody can
    train it, so that there is nothing to measure; `notes` is what a reader must know beside it.
    `wait_s` is the part of the predicted step in which it waits for its loader. The ops' host times
    are as at `pace`, and so is `framework_s`, the host's time beside them; of a captured step, all
    that the host takes to launch it.
    """

    case: TrainCase
    predicted: Predicted | None = None
    simulated: Simulated | None = None
    ops: tuple[OpCost, ...] = ()
    reason: str | None = None
    runs: bool = True
    notes: tuple[str, ...] = ()
    wait_s: float = 0.0
    pace: float = 1.0
    framework_s: float = 0.0

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
