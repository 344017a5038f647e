"""Types of a run, the run file, comparison of two runs.

The public names, as in `from microbench.results import read_run`. Each loads its module when it is
first asked for, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microbench.results.comparison import CompareRow, Comparison, compare
    from microbench.results.runfile import read_run, write_run
    from microbench.results.types import Ceiling, Measurement, NetworkUse, Result, Run
    from microbench.results.values import Entry, Interval, Ratio, Warning

_MODULES = {
    "comparison": ("CompareRow", "Comparison", "compare"),
    "runfile": ("read_run", "write_run"),
    "types": ("Ceiling", "Measurement", "NetworkUse", "Result", "Run"),
    "values": ("Entry", "Interval", "Ratio", "Warning"),
}

__all__ = [
    "Ceiling", "CompareRow", "Comparison", "Entry", "Interval", "Measurement", "NetworkUse",
    "Ratio", "Result", "Run", "Warning", "compare", "read_run", "write_run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
