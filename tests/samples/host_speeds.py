"""Paces of a host that a test plans."""

from __future__ import annotations

from e2e.predict.host_speed import ConstantSpeed


class PlannedSpeeds(ConstantSpeed):
    """Paces in the order that they are asked for."""

    def __init__(self, *paces: float) -> None:
        self.left = list(paces)

    def slowdown(self) -> float:
        return self.left.pop(0)
