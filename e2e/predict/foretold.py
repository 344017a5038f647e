"""What is known of a step before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from e2e.predict.model import OpCost, Simulated
from microbench.train_results import Predicted, TrainCase


@dataclass(frozen=True)
class Foretold:
    """What is known of a step before it runs: its predicted time, and the ops it is made of.

    `reason` says why there is none of either; `notes` is what a reader must know beside it.
    `wait_s` is the part of the predicted step in which it waits for its loader.
    """

    case: TrainCase
    predicted: Predicted | None = None
    simulated: Simulated | None = None
    ops: tuple[OpCost, ...] = ()
    reason: str | None = None
    notes: tuple[str, ...] = ()
    wait_s: float = 0.0
