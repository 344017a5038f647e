"""Training steps that torch's profiler recorded, divided into the terms of `e2e.results.terms`.

Times are whole nanoseconds over all recorded steps, so that they add up exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from e2e.results.terms import IDLE


@dataclass(frozen=True)
class TracedPart:
    """Some of the steps' time: `ns` of a term.

    Of a GEMM, a convolution or attention: the `layer`'s path, the `dtype` of its factors, and the
    shape with `misaligned` sizes; each is "" where it is unknown or not. Of a layout change inside
    one, `within` is that one's term.
    """

    term: str
    ns: int
    layer: str = ""
    dtype: str = ""
    misaligned: str = ""
    within: str = ""


@dataclass(frozen=True)
class TracedCost:
    """Something that costs `ns` in all steps at most: where it is, and what to try against it."""

    title: str
    ns: int
    where: str
    remedy: str


@dataclass(frozen=True)
class TracedStep:
    """`steps` consecutive steps, which consist of their `parts`, without gap or overlap.

    `launches` are the kernels and copies that ran in them; 0 where no device worked, and the parts
    are the CPU's. `costs` are what the trace of these steps alone says against them.
    """

    steps: int
    launches: int
    parts: tuple[TracedPart, ...]
    costs: tuple[TracedCost, ...] = ()

    @property
    def window_ns(self) -> int:
        """Nanoseconds of all steps."""
        return sum(part.ns for part in self.parts)

    @property
    def busy_ns(self) -> int:
        """Nanoseconds in which something ran."""
        return sum(part.ns for part in self.parts if part.term not in IDLE)

    @property
    def terms(self) -> Mapping[str, int]:
        """Nanoseconds in all steps by term."""
        found: dict[str, int] = defaultdict(int)
        for part in self.parts:
            found[part.term] += part.ns
        return found
