"""What a study is made of, as its TOML file has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.studies.factors import Factors, Value
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


Json = dict[str, Any]


@dataclass(frozen=True)
class Published:
    """A published table: `rows` have the values of `key`, then those of `columns`.

    `machine` is the key that names the author's machine; ours is one more. `alias` maps words of
    the author to ours ("FP32" = "fp32"). `comparable` says of each column: "yes", "ratios" (only
    beside its baseline on the same machine), "with DATA", or "no"; `reasons` why not.
    """

    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...] = ()
    machine: str = ""
    note: str = ""
    alias: Mapping[str, Value] = field(default_factory=dict[str, Value])
    comparable: Mapping[str, str] = field(default_factory=dict[str, str])
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])

    def records(self) -> list[Json]:
        """The rows by name; an empty text is a cell that the author left empty."""
        names = (*self.key, *self.columns)
        return [dict(zip(names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class TableForm:
    """The author's own table: its rows and columns, and the part that measures the same cells.

    `columns` are titles by column. `pivot` is a key whose values are columns; `rows` are the other
    keys. `ratio` is a column whose ratio to the baseline is shown too, titled `ratio_title`.
    `elsewhere` has the part that measures a column, where the table's own parts do not.
    """

    id: str
    title: str
    published: str
    parts: tuple[str, ...]
    rows: tuple[str, ...]
    columns: Mapping[str, str]
    pivot: str = ""
    ratio: str = ""
    ratio_title: str = "x fp32"
    elsewhere: Mapping[str, str] = field(default_factory=dict[str, str])
    where: Mapping[str, Value] = field(default_factory=dict[str, Value])


@dataclass(frozen=True)
class FigureForm:
    """The author's own figure: axes, and the keys that make a line."""

    id: str
    title: str
    published: str
    parts: tuple[str, ...]
    x: str
    y: str
    line: tuple[str, ...]
    x_title: str = ""
    y_title: str = ""
    error: str = ""  # the column of its bars, published and ours
    scale: str = "linear"


@dataclass(frozen=True)
class Claim:
    """What the author says, and the test that settles it.

    The claim is confirmed where the test holds, or contradicted, as `holds` says. Where a claim has
    a cause, `because` is said only if its own test holds too. `untestable` is why there is no test.
    """

    id: str
    text: str
    test: Test | None = None
    holds: str = "confirmed"
    untestable: str = ""
    cause: Test | None = None
    because: str = ""


@dataclass(frozen=True)
class Puzzle:
    """What the author could not explain: `numbers` is what the published numbers already say.

    `part` names cells whose ledger and causes are shown; `test` settles `answer`, a hypothesis.
    """

    id: str
    text: str
    numbers: str = ""
    part: str = ""
    test: Test | None = None
    answer: str = ""
    untestable: str = ""


@dataclass(frozen=True)
class Part:
    """Cells that are measured alike."""

    id: str
    measure: tuple[str, ...]
    factors: Factors
    skip: bool = False


@dataclass(frozen=True)
class Profile:
    """What is laid over the parts. `budget_s` in seconds; `parts` empty: all."""

    budget_s: float
    factors: Factors
    parts: tuple[str, ...] = ()
    part: Mapping[str, Factors] = field(default_factory=dict[str, Factors])


@dataclass(frozen=True)
class Study:
    """A whole file. `differences` are what is unlike the original, in sentences."""

    name: str
    title: str
    seed: str
    question: str
    defaults: Factors
    parts: tuple[Part, ...]
    profiles: Mapping[str, Profile]
    published: tuple[Published, ...]
    tables: tuple[TableForm, ...]
    figures: tuple[FigureForm, ...]
    claims: tuple[Claim, ...]
    puzzles: tuple[Puzzle, ...]
    differences: tuple[str, ...]
    sha256: str
