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

from kernels.precision import PRECISIONS, Precision
from microbench.errors import UserError
from microbench.results.runfile import read_run
from microbench.results.types import Run
from microbench.roofline.limits import INSTRUCTION

MEASURED = Path(__file__).parent / "measured"
# Names of ceilings; the later ones are of files by `halfway ceilings`, which earlier versions had.
ARITHMETIC = (INSTRUCTION, "wgmma", "mma.sync", "FFMA")
MEMORY = ("memory", "DRAM")


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


def rates_of(run: Run, source: str) -> Rates:
    """The rates that a run measured, `source`; none where it measured others alone."""
    measured = [c for c in run.ceilings if c.source == "measured"]
    flop_per_s: dict[str, float] = {}
    for ceiling in measured:
        precision = PRECISIONS.get(ceiling.precision or "")
        if precision and ceiling.name in ARITHMETIC and ceiling.flop_per_s:
            name = precision.rate_name
            flop_per_s[name] = max(ceiling.flop_per_s, flop_per_s.get(name, 0.0))
    moved = [c.byte_per_s for c in measured if c.name.startswith(MEMORY) and c.byte_per_s]
    return Rates(str(run.device.get("name", "")), source, flop_per_s, max(moved, default=None))


def read_rates(path: Path) -> Rates:
    """The rates in a run file. UserError where it has none, or cannot be read."""
    rates = rates_of(read_run(path), path.name)
    if not rates.flop_per_s:
        raise UserError(f"{path} has no measured rates: it is no run of halfway gemm on a GPU")
    return rates


def known_rates(device: str) -> Rates | None:
    """The rates that come with the package for the GPU of this name; None for others."""
    name = "-".join(device.lower().split()) + ".json"
    for path in MEASURED.glob("*.json"):
        if path.name == name:  # a name from a trace is no path
            return Rates(**json.loads(path.read_text(encoding="utf-8")))
    return None
