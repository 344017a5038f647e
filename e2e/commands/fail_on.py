"""`--fail-on`: a condition on a diagnosis, such as "busy<70" or "loader wait>5"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from e2e.profile.diagnosis import Traced
from e2e.results.terms import IDLE, OP_TERMS, STEP_TERMS
from microbench.errors import UserError

BUSY = "busy"
NAMES = (BUSY, *IDLE, *OP_TERMS, *STEP_TERMS)
_CONDITION = re.compile(r"\s*([a-z ]+?)\s*([<>])\s*(\d{1,3}(?:\.\d+)?)\s*%?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Condition:
    """The share of the step that a term takes, or that the GPU is busy, below or above `pct`."""

    name: str
    is_below: bool
    pct: float

    def found_in(self, run: Traced) -> str:
        """What meets the condition, such as "busy is 44.1 %"; "" where nothing does."""
        share = run.busy if self.name == BUSY else run.ms(self.name) / run.step_ms
        met = 100 * share < self.pct if self.is_below else 100 * share > self.pct
        return f"{self.name} is {100 * share:.1f} %" if met else ""


def parse_condition(text: str) -> Condition:
    """The condition that --fail-on names. UserError for what is none."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UserError(f"--fail-on: cannot read {text!r}; write busy<70, or loader wait>5 (%)")
    name, sign, number = found.groups()
    name = " ".join(name.lower().split())
    if name not in NAMES:
        raise UserError(f"--fail-on: unknown {name!r}; choose from {', '.join(NAMES)}")
    return Condition(name, sign == "<", float(number))
