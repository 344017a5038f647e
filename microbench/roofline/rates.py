"""The best rates that were measured on a GPU: of arithmetic, and of its memory.

A floor by a datasheet is of a clock that the power cap rarely allows; these are what kernels that
only multiply, or only move bytes, reached: the measured ceilings of a run. Those of GPUs that we
measured come with the package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.precision import Precision

MEASURED = Path(__file__).parent / "measured"


@dataclass(frozen=True)
class Rates:
    """FLOP/s by `Precision.rate_name` and bytes/s of the memory, the highest that was measured.

    `device` is the GPU's whole name, `source` the run file. `byte_per_s` is None if not measured.
    """

    device: str
    source: str
    flop_per_s: Mapping[str, float]
    byte_per_s: float | None = None

    def peak(self, precision: Precision) -> float | None:
        """The FLOP/s of a precision; None where it was not measured."""
        return self.flop_per_s.get(precision.rate_name)


def known_rates(device: str) -> Rates | None:
    """The rates that come with the package for the GPU of this name; None for others."""
    name = "-".join(device.lower().split()) + ".json"
    for path in MEASURED.glob("*.json"):
        if path.name == name:  # a name from a trace is no path
            return Rates(**json.loads(path.read_text(encoding="utf-8")))
    return None
