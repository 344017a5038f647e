"""What `validate compare` and `validate power` write as tables: by class, and case by case."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np

from microbench import fmt
from microbench.report.documents import Sheet
from microbench.report.table import Column, Row, Table
from microbench.results.fields import decode
from microbench.results.values import Json
from microbench.selftest.splits import Falsely, FalseVerdicts, Power, Seen

TARGET_PCT = 1.0  # of pairs of the same that are called different, at most
DROP = {"slower": 1, "slower_by_pct": 1, "pairs": 2, "faster": 3, "change": 4, "sd_pct": 5}
CLASSES_S = ((5e-6, "under 5 us"), (20e-6, "5 to 20 us"), (float("inf"), "20 us and more"))


R = TypeVar("R", bound=Falsely | Seen)


@dataclass(frozen=True)
class Class(Generic[R]):
    """The rows of one kind, length and clock (and change)."""

    name: tuple[str, ...]
    rows: Sequence[R]

    def sum(self, *names: str) -> int:
        """The sum of these counts over its rows."""
        return sum(getattr(row, name) for row in self.rows for name in names)

    def pct(self, *names: str) -> str:
        """These counts in per cent of its pairs."""
        return _pct(self.sum(*names), self.sum("pairs"))


def time_class(seconds: float) -> str:
    """The name of the class of times that these seconds are in."""
    return next(name for below_s, name in CLASSES_S if seconds < below_s)


def compare_sheet(data: Json) -> Sheet:
    """False verdicts, in brief by class. ValueError for an invalid field."""
    found: FalseVerdicts = decode(FalseVerdicts, data, "")
    classes: list[Column[Class[Falsely]]] = [
        *_named("op", "time", "state"),
        Column("cases", lambda c: str(len(c.rows)), right=True),
        Column("pairs", lambda c: f"{c.sum('pairs'):,}", right=True),
        Column("faster or slower", lambda c: c.pct("faster", "slower"), right=True),
        Column("same", lambda c: c.pct("same"), right=True),
        Column("cannot tell", lambda c: c.pct("cannot_tell"), right=True),
        Column("sd, median", lambda c: f"{np.median([r.sd_pct for r in c.rows]):.1f} %", True),
    ]
    false = found.faster + found.slower
    said = (
        f"Each case against itself, {found.tries} splits into two runs of {found.processes} "
        "processes: "
        f"{false:,} of {found.pairs:,} pairs called faster or slower "
        f"({_pct(false, found.pairs)}, target {TARGET_PCT:g} %), {_pct(found.same, found.pairs)} "
        f"the same, {_pct(found.cannot_tell, found.pairs)} cannot tell."
    )
    groups = _classes(found.rows, lambda _: ())
    return Sheet(_whole(Falsely, found.rows), Table(classes, list(groups)), said)


def power_sheet(data: Json) -> Sheet:
    """Slow-downs seen, in brief by class. ValueError for an invalid field."""
    found: Power = decode(Power, data, "")
    classes: list[Column[Class[Seen]]] = [
        *_named("change", "op", "time", "state"),
        Column("slower by", lambda c: _range([r.slower_by_pct for r in c.rows]), right=True),
        Column("cases", lambda c: str(len(c.rows)), right=True),
        Column("pairs", lambda c: f"{c.sum('pairs'):,}", right=True),
        Column("called slower", lambda c: c.pct("slower"), right=True),
        Column("faster", lambda c: c.pct("faster"), right=True),
    ]
    said = (
        f"Known slow-downs, in splits into two runs of {found.processes} processes. "
        "scaled: the measured times multiplied; others: a kernel that does more work."
    )
    groups = _classes(sorted(found.rows, key=_size), _change)
    return Sheet(_whole(Seen, found.rows), Table(classes, list(groups)), said)


def _size(row: Seen) -> tuple[bool, float]:
    """Kernels that do more work first, then by how much slower."""
    return row.scaled, row.slower_by_pct


def _change(row: Seen) -> tuple[str, ...]:
    return (f"scaled {row.slower_by_pct:g} %" if row.scaled else row.change,)


def _classes(rows: Sequence[R], more: Callable[[R], tuple[str, ...]]) -> list[Row[Class[R]]]:
    lengths = [name for _, name in CLASSES_S]
    changes = list(dict.fromkeys(more(row) for row in rows))
    found: dict[tuple[str, ...], list[R]] = {}
    for row in sorted(
        rows, key=lambda r: (changes.index(more(r)), r.op, lengths.index(time_class(r.median_s)))
    ):
        name = (*more(row), row.op, time_class(row.median_s), _state(row))
        found.setdefault(name, []).append(row)
    return [Row(Class(name, of)) for name, of in found.items()]


def _state(row: Falsely | Seen) -> str:
    if row.cpu_bound:
        return "CPU-bound"
    return "held by power" if row.clock_held else "free"


def _named(*titles: str) -> list[Column[Any]]:
    def column(place: int, title: str) -> Column[Any]:
        return Column(title, lambda c: fmt.clean(c.name[place]))

    return [column(place, title) for place, title in enumerate(titles)]


def _whole(kind: type[Any], rows: Sequence[Any]) -> Table[Any]:
    """Every field of every row; the screen leaves out what does not fit."""

    def column(name: str) -> Column[Any]:
        def value(row: Any) -> Any:
            return getattr(row, name)

        return Column(
            name.replace("_", " "), lambda row: _text(value(row)), True, DROP.get(name, 9),
            csv={name: value} if name != "ci95_pct" else {},
        )  # fmt: skip

    case: Column[Any] = Column("case", lambda row: _short(row.case), csv={"case": lambda r: r.case})
    columns = [column(f.name) for f in fields(kind) if f.name != "case"]
    return Table([case, *columns], [Row(row) for row in rows])


def _short(key: str) -> str:
    """A case's key without what is usual."""
    return fmt.clean(re.sub(r",(stride|dilation|groups)=1(?=[,/])|/normal(?=/)", "", key))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else fmt.clean(str(value))


def _pct(part: int, whole: int) -> str:
    """ "0.43 %"; "87 %" from 10 on."""
    pct = 100 * part / whole if whole else 0.0
    return f"{pct:.0f} %" if pct >= 10 or not part else f"{pct:.2g} %"


def _range(values: Sequence[float]) -> str:
    low, high = (f"{end:.1f}" for end in (min(values), max(values)))
    return f"{low} %" if low == high else f"{low} to {high} %"
