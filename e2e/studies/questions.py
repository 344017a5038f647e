"""The tests of claims as they are written: `FUNC(where) OP number`. No expression is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernels.error_words import suggest
from microbench.errors import UserError

FUNCTIONS = ("speedup", "ratio", "difference", "accuracy", "converged", "efficiency")
# What picks a cell, and what a function takes beside it.
WHERE = ("part", "network", "recipe", "batch", "layout", "workers", "loader", "gpus", "cpus", "lr",
         "data", "epochs", "device", "optimizer", "clip", "memory_gb", "cudnn_search", "compress",
         "to", "column")  # fmt: skip
FORM = re.compile(r"\s*([a-z_]+)\(([^()]*)\)\s*(>=|<=)\s*(-?[\d.]+)\s*$")


@dataclass(frozen=True)
class Test:
    """A test as it is written, and its parts."""

    text: str
    function: str
    where: Mapping[str, str]
    sign: str
    number: float


def parse_test(text: str, where: str) -> Test:
    """The test in a text such as "speedup(network=resnet18, recipe=O2) >= 1.2". UserError."""
    found = FORM.match(text)
    if not found:
        raise UserError(f"{where}: test {text!r} is not FUNC(NAME=VALUE, ...) >= or <= NUMBER")
    function, inside, sign, number = found.groups()
    if function not in FUNCTIONS:
        near = suggest(function, FUNCTIONS) or f"; choose from {', '.join(FUNCTIONS)}"
        raise UserError(f"{where}: test has no function {function!r}{near}")
    pairs = [part.partition("=") for part in inside.split(",") if part.strip()]
    if any(not sign or not value.strip() for _, sign, value in pairs):
        raise UserError(f"{where}: test {text!r}: write NAME=VALUE within the brackets")
    named = {name.strip(): value.strip() for name, _, value in pairs}
    unknown = next((name for name in named if name not in WHERE), None)
    if unknown is not None:
        near = suggest(unknown, WHERE) or f"; choose from {', '.join(WHERE)}"
        raise UserError(f"{where}: test has no {unknown!r}{near}")
    try:
        return Test(text, function, named, sign, float(number))
    except ValueError:
        raise UserError(f"{where}: test {text!r}: {number} is no number") from None
