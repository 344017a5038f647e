"""Values that every kind of result is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Ratio:
    """How many times faster than something else, with its 95 % interval (None: too few rounds)."""

    ratio: float
    ci95: Interval | None


@dataclass(frozen=True)
class Warning:
    """Something that spoils or colours a number: what is seen, why, and what to do."""

    symptom: str
    cause: str
    remedy: str
