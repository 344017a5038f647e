"""What a report is: an answer, then a list of parts. Writers walk it; nothing here prints.

All text of a run file is cleaned here, once: kinds of results pass it on as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from microbench import fmt
from microbench.errors import UserError
from microbench.results.types import Warning
from microbench.streams import printable

DEFAULT, VERBOSE = 0, 1  # of a part: on the screen; also with --verbose, in Markdown, on pages
Label = Literal["", "Why", "Do", "Doubt"]  # of a line of the answer; "" is what was found
Topic = Literal["", "ledger", "phases", "causes"]  # show FILE --TOPIC
PROSE = 36  # characters: a longer text of a table is folded

Value = str | int | float | bool | None
Raw = tuple[Sequence[str], Sequence[Mapping[str, Value]]]  # names in published order; a dict a row


@dataclass(frozen=True)
class Column:
    """A value of each row, and how it is written.

    `path` are attributes, keys or places of the row ("measurement.median_s", "speedup.fp32",
    "ci95_s.0"); "" is the row. `show` never gets None, which is an empty cell. `title` may have two
    lines. To fit a width the column with the highest `drop` goes first; 0 never does. `once`: on
    the screen only where it differs from the row above.
    """

    title: str
    path: str
    show: Callable[[Any], str] = str
    drop: int = 0
    once: bool = False


@dataclass(frozen=True)
class Row:
    """`missing` ("skipped", "failed") is in the first empty cell; the part says below why."""

    item: Any
    missing: str = ""
    style: str = ""


@dataclass(frozen=True)
class Part:
    """A titled table, and sentences below it."""

    title: str = ""
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    below: Sequence[str] = ()
    level: int = DEFAULT
    topic: Topic = ""


@dataclass(frozen=True)
class Line:
    """A line of the answer."""

    label: Label
    text: str


def nothing_to_draw() -> Any:
    """The chart of a report without one: UserError."""
    raise UserError("nothing to draw")


@dataclass(frozen=True)
class Report:
    """What a file says, whatever kind it is. The first line of the answer is the finding.

    `about` are the device, the software, the conditions and the command. `raw` is what CSV has, for
    each kind of results. `chart` makes an Altair chart; UserError where there is nothing to draw.
    """

    title: str = ""
    answer: Sequence[Line] = ()
    parts: Sequence[Part] = ()
    about: Sequence[str] = ()
    device: str = ""
    raw: Sequence[Raw] = ()
    chart: Callable[[], Any] = nothing_to_draw

    @property
    def finding(self) -> str:
        """The answer in a line; "" where there is none."""
        return fmt.clean(self.answer[0].text) if self.answer else ""

    def shown(self, *, verbose: bool = False, topic: str = "") -> list[Part]:
        """The parts of a topic, or else those of the level; none that are empty."""
        level = VERBOSE if verbose else DEFAULT
        chosen = [
            part for part in self.parts if (part.topic == topic if topic else part.level <= level)
        ]
        return [part for part in chosen if part.rows or part.below]


# ---------------------------------------------------------------- texts of a table


@dataclass(frozen=True)
class Cells:
    """The columns of a part that are not empty, their texts row by row, and which are numbers."""

    columns: Sequence[Column]
    texts: Sequence[Sequence[str]]
    numbers: Sequence[bool]


def value(row: object, path: str) -> Any:
    """What is at the end of a path; None where anything on it is missing.

    A key may have a dot in it, as names of callables do.
    """
    if not path or row is None:
        return row
    name, _, rest = path.partition(".")
    if isinstance(row, Mapping):
        known = cast("Mapping[str, object]", row)
        return known[path] if path in known else value(known.get(name), rest)
    if name.isdecimal() and isinstance(row, Sequence):
        places = cast("Sequence[object]", row)
        return value(places[int(name)], rest) if int(name) < len(places) else None
    return value(getattr(row, name, None), rest)


def cells(part: Part) -> Cells:
    """The texts of a part's table, clean."""
    texts: list[list[str]] = []
    worded = [False] * len(part.columns)
    for row in part.rows:
        values = [value(row.item, column.path) for column in part.columns]
        line = [
            "" if one is None else fmt.clean(column.show(one))
            for one, column in zip(values, part.columns, strict=True)
        ]
        worded = [
            seen or isinstance(one, str | bool) for seen, one in zip(worded, values, strict=True)
        ]
        if row.missing and "" in line:
            line[line.index("")] = row.missing
        texts.append(line)
    kept = [i for i in range(len(part.columns)) if any(line[i] for line in texts)]
    return Cells(
        [replace(part.columns[i], title=printable(part.columns[i].title)) for i in kept],
        [[line[i] for i in kept] for line in texts],
        [not worded[i] for i in kept],
    )


# ---------------------------------------------------------------- doubts


CaseWarning = tuple[Warning, str]  # and the case it is about, in words; "" for all of them


def _alike(warned: Sequence[CaseWarning]) -> list[tuple[str, list[str], Warning]]:
    """(worst symptom, cases, one of the warnings) of those with one cause and remedy."""
    alike: dict[tuple[str, str], list[CaseWarning]] = {}
    for warning, case in warned:
        alike.setdefault((warning.cause, warning.remedy), []).append((warning, case))
    return [
        (
            _worst({warning.symptom for warning, _ in group}),
            list(dict.fromkeys(case for _, case in group if case)),
            group[0][0],
        )
        for group in alike.values()
    ]


def _worst(symptoms: Collection[str]) -> str:
    """The symptom with the largest last number: "interval is up to ±7.4 %"."""
    worst = max(symptoms, key=lambda text: (float(re.findall(r"\d+\.?\d*", f"0 {text}")[-1]), text))
    if len(symptoms) > 1 and "beyond ±" not in worst:
        worst = worst.replace("±", "up to ±", 1) if "±" in worst else f"{worst} (at worst)"
    return re.sub(r"(up to )?±\d{4,}[.\d]* %", "beyond ±999 %", worst)


def doubts(warned: Sequence[CaseWarning], cases: int, most: int = 2) -> list[Line]:
    """What makes figures unreliable, a line each: the warnings of most cases first.

    "22 of 30 cases: the interval is up to ±7.4 %; measure longer".
    """
    lines: list[str] = []
    alike = sorted(_alike(warned), key=lambda group: -(len(group[1]) or cases))
    for worst, named, warning in alike[:most]:
        which = f"{len(named)} of {fmt.count(cases, 'case')}: " if named and cases > 1 else ""
        lines.append(f"{which}{worst}; {re.split('[:;] ', warning.remedy)[0]}")
    if len(alike) > most:
        lines[-1] += f" ({fmt.count(len(alike) - most, 'more warning')}: --verbose)"
    return [Line("Doubt", line) for line in lines]


def warnings_part(warned: Sequence[CaseWarning]) -> Part:
    """Every warning once, with its cause, what to try, and its cases."""
    lines = [
        f"{worst}{f' [{fmt.listed(named, most=2)}]' if named else ''}; cause: {warning.cause}; "
        f"try: {warning.remedy}"
        for worst, named, warning in _alike(warned)
    ]
    return Part("Warnings", below=lines, level=VERBOSE)


def missing(reasons: Sequence[tuple[str, str]]) -> list[str]:
    """Why cases, (case, reason) each, have no figures: every reason once, with its cases."""
    by_reason: dict[str, list[str]] = {}
    for case, reason in reasons:
        by_reason.setdefault(reason or "no reason given", []).append(case)
    return [f"{fmt.listed(names, most=2)}: {reason}" for reason, names in by_reason.items()]
