"""Paces of a host that a test plans."""

from __future__ import annotations

from e2e.predict.host_model.host_speed import Steady


class Planned(Steady):
    """Paces in the order that they are asked for."""

    def __init__(self, *paces: float) -> None:
        self.left = list(paces)

    def now(self) -> float:
        return self.left.pop(0)
