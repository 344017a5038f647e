"""Schedules of the learning rate, as `--schedule` takes them: what part of it is used when.

Written with numbers after a colon, each optional: "cosine:4" (cycles), "triangle:25" (per cent of
the training until the peak), "step:50,75/10" (per cent of the training, then what to divide by).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from microbench.errors import UserError

CONSTANT, COSINE, TRIANGLE, STEP = KINDS = ("constant", "cosine", "triangle", "step")
RISE_PCT = 25.0
STEPS_PCT, DIVISOR = (50.0, 75.0), 10.0
NUMBER = r"\d{1,6}(?:\.\d{1,6})?"


@dataclass(frozen=True)
class Schedule:
    """What part of the learning rate is used at each moment of a training.

    `cycles` is how often a cosine falls from 1 to 0. A triangle rises for `rise`, from 0 to 1 of
    the training. A step schedule divides by `divisor` at each of `at`, from 0 to 1.
    """

    kind: str = CONSTANT
    cycles: int = 1
    rise: float = RISE_PCT / 100
    at: tuple[float, ...] = ()
    divisor: float = DIVISOR

    def share(self, done: float) -> float:
        """The part of the learning rate, 0 to 1, when `done` of the training, 0 to 1, is done."""
        done = min(1.0, max(0.0, done))
        if self.kind == COSINE:
            turn = done * self.cycles
            within = 1.0 if done == 1 else turn - math.floor(turn)
            return (1 + math.cos(math.pi * within)) / 2
        if self.kind == TRIANGLE:
            rising = done / self.rise if self.rise else 1.0
            falling = (1 - done) / (1 - self.rise) if self.rise < 1 else 1.0
            return min(rising, falling)
        if self.kind == STEP:
            return self.divisor ** -sum(done >= edge for edge in self.at)
        return 1.0


def parse_schedule(text: str) -> Schedule:
    """The schedule of a text. UserError, in one line, for one that cannot be."""
    kind, colon, rest = text.partition(":")
    if kind not in KINDS:
        raise UserError(f"--schedule must be one of {', '.join(KINDS)}, not {text!r}")
    if not colon:
        return Schedule(kind, at=tuple(pct / 100 for pct in STEPS_PCT) if kind == STEP else ())
    if kind == COSINE and re.fullmatch(r"[1-9]\d{0,5}", rest):
        return Schedule(kind, cycles=int(rest))
    if kind == TRIANGLE and re.fullmatch(NUMBER, rest) and float(rest) <= 100:
        return Schedule(kind, rise=float(rest) / 100)
    if kind == STEP and re.fullmatch(rf"{NUMBER}(?:,{NUMBER})*(?:/{NUMBER})?", rest):
        edges, _, divisor = rest.partition("/")
        at = tuple(float(edge) / 100 for edge in edges.split(","))
        by = float(divisor or DIVISOR)
        if by >= 1 and at[-1] <= 1 and all(a < b for a, b in pairwise(at)):
            return Schedule(kind, at=at, divisor=by)
    raise UserError(
        f"--schedule: cannot read {text!r}; write cosine:4 (cycles), triangle:25 (per cent until "
        "the peak) or step:50,75/10 (per cent, divided by)"
    )
