"""What a study is made of, as its TOML file has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from e2e.studies.factors import Factors, Value
from microbench.results.values import Json


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
    """A published table with ours below it, from the cells of `parts`.

    `columns` are titles by column. `ratio` is a column whose ratio to the baseline is shown too,
    titled `ratio_title`. `elsewhere` has the part that measures a column, where the table's own
    parts do not.
    """

    id: str
    title: str
    published: str
    parts: tuple[str, ...]
    columns: Mapping[str, str]
    ratio: str = ""
    ratio_title: str = "x fp32"
    elsewhere: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Part:
    """Cells that are measured alike."""

    id: str
    measure: tuple[str, ...]
    factors: Factors
    skip: bool = False


@dataclass(frozen=True)
class Profile:
    """What is laid over the parts: `factors` over all, `part` over one; `parts` empty: all.

    `about` says how long it takes, and on what.
    """

    factors: Factors
    about: str = ""
    parts: tuple[str, ...] = ()
    part: Mapping[str, Factors] = field(default_factory=dict[str, Factors])


@dataclass(frozen=True)
class Study:
    """A whole file. `differences` are what is unlike the original, in sentences.

    `retired` names what the file has and no version reads any more.
    """

    name: str
    title: str
    seed: str
    question: str
    defaults: Factors
    parts: tuple[Part, ...]
    profiles: Mapping[str, Profile]
    published: tuple[Published, ...]
    tables: tuple[TableForm, ...]
    differences: tuple[str, ...]
    retired: tuple[str, ...]
    sha256: str
