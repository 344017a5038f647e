"""Predicts a training step from its ops, each benchmarked alone."""

from __future__ import annotations

from dataclasses import dataclass

from e2e.results.types import Predicted


@dataclass(frozen=True)
class Prediction:
    """The predicted step of a case, or why there is none.

    `broke`: predicting failed; else the case cannot run, or cannot be predicted.
    """

    predicted: Predicted | None = None
    reason: str | None = None
    broke: bool = False
