"""Which configuration a case runs, and how it came to be chosen: tuned, lent or by the model.

What a quick tune found is kept in the user's cache (`kernels.quick_cache`). Nothing here imports
torch or triton.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from kernels import quick_cache
from kernels.case import Case, Target
from kernels.tile_model import short_list

Config = TypeVar("Config")

NONE, QUICK, WIDE = "none", "quick", "wide"  # searches: none, a few candidates, many
HOW = TUNED, QUICK_TUNED, LENT, MODELLED = "tuned", "quick-tuned", "lent", "modelled"


@dataclass(frozen=True)
class Choice:
    """How a configuration was chosen: TUNED (by a wide search, kept in a table), QUICK_TUNED, LENT
    (tuned for a similar case) or MODELLED (first by the model).

    `candidates` is how many were timed, where that is known.
    """

    how: str
    candidates: int | None = None


@dataclass(frozen=True)
class Options(Generic[Config]):
    """The configurations that a case may run, by where they come from.

    `tuned` is what a table has for this very case; `lent` what one has for the nearest usable case,
    which `agrees` if it serves this one alike. `settled`: it is of the same size, in a precision
    that lays tensors out alike, so nothing needs timing. `rank` gives all that can run, the most
    promising first; `tile` is what a configuration computes at a time; `parse` reads a label, and
    `valid` says whether a configuration can run the case. `families` sort configurations: a short
    list has two of each, where there are two.
    """

    case: Case
    target: Target
    tuned: Config | None
    lent: Config | None
    agrees: bool
    settled: bool
    rank: Callable[[], Sequence[Config]]
    tile: Callable[[Config], Hashable]
    parse: Callable[[str], Config]
    valid: Callable[[Config], bool]
    families: Sequence[Callable[[Config], Hashable]] = ()

    @cached_property
    def known(self) -> tuple[Config, Choice] | None:
        """The configuration that needs no timing, and why."""
        if self.tuned is not None:
            return self.tuned, Choice(TUNED)
        if self.lent is not None and self.settled:
            return self.lent, Choice(LENT)
        return self._quick_tuned()

    def chosen(self) -> tuple[Config, Choice]:
        """What runs untimed, and why. Raises CannotRun where nothing fits the GPU."""
        if self.known is not None:
            return self.known
        if self.lent is not None and self.agrees:
            return self.lent, Choice(LENT)
        return self.rank()[0], Choice(MODELLED)

    def short_list(self) -> Sequence[Config]:
        """What a quick tune times: the model's first, and the nearest tuned one; where one is known
        already, that alone. Raises CannotRun where nothing fits the GPU.
        """
        if self.known is not None:
            return (self.known[0],)
        nearest = () if self.lent is None else (self.lent,)
        return tuple(
            dict.fromkeys((*short_list(self.rank(), self.tile, families=self.families), *nearest))
        )

    def _quick_tuned(self) -> tuple[Config, Choice] | None:
        found = quick_cache.find(self.case, self.target)
        if found is None:
            return None
        label, candidates = found
        try:
            config = self.parse(label)
        except ValueError:
            return None
        return (config, Choice(QUICK_TUNED, candidates)) if self.valid(config) else None
