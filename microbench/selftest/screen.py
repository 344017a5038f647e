"""The selftest's verdicts as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from microbench import fmt
from microbench.report.documents import Sheet
from microbench.report.table import Column, Row, Table
from microbench.results.fields import decode
from microbench.results.values import Json
from microbench.selftest.judge import NOT_APPLICABLE, TARGET_PCT, WRONG, passed, score
from microbench.selftest.plant import CONDITIONS, Absent

NOTHING = "nothing"  # in the confusion matrix: the case failed, so nothing was diagnosed


@dataclass(frozen=True)
class PlantRow:
    """A plant and its verdict: a row of the file, without its numbers."""

    name: str
    condition: str
    control: bool
    because: str
    expected: str
    named: str | None
    why: str
    verdict: str
    held_out: bool = False


@dataclass(frozen=True)
class _File:
    rows: tuple[PlantRow, ...]
    absent: tuple[Absent, ...] = ()


def sheet(data: Json) -> Sheet:
    """The evidence as a table; the short one is the confusion matrix. ValueError: invalid field.

    Notes say what was diagnosed wrong and what is not applicable.
    """
    found: _File = decode(_File, data, "")
    columns: list[Column[PlantRow]] = [
        Column("plant", lambda row: fmt.clean(row.name), csv={"name": lambda row: row.name}),
        Column(csv={"condition": lambda row: row.condition, "control": lambda row: row.control,
                    "held_out": lambda row: row.held_out}),
        Column("expected", lambda row: fmt.clean(row.expected), drop=2,
               csv={"expected": lambda row: row.expected}),
        Column("named", lambda row: fmt.clean(row.named or ""),
               csv={"named": lambda row: row.named}),
        Column("", lambda row: fmt.clean(row.verdict), csv={"verdict": lambda row: row.verdict}),
        Column("why", lambda row: fmt.clean(row.why), drop=1, csv={"why": lambda row: row.why}),
    ]  # fmt: skip
    left = [(row.name, row.why) for row in found.rows if row.verdict == NOT_APPLICABLE]
    left += [(absent.condition, absent.reason) for absent in found.absent]
    return Sheet(
        Table(columns, [Row(row) for row in found.rows]),
        _matrix(found),
        _summary(found.rows),
        [
            *(_wrong(row) for row in found.rows if row.verdict == WRONG),
            *(Text(f"not applicable: {fmt.clean(name)}: {fmt.clean(why)}", "dim")
              for name, why in left),
        ],
    )  # fmt: skip


def confusion(rows: Iterable[PlantRow]) -> Mapping[str, Mapping[str, int]]:
    """How often each diagnosis was made of what was planted, and of each kind of control.

    By planted condition ("not launch" for its controls), then by diagnosis; what is not applicable
    is left out, and a case without a diagnosis counts as NOTHING.
    """
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.verdict == NOT_APPLICABLE:
            continue
        planted = f"not {row.condition}" if row.control else row.condition
        counts = found.setdefault(planted, {})
        counts[row.named or NOTHING] = counts.get(row.named or NOTHING, 0) + 1
    return found


def _matrix(found: _File) -> Table[str]:
    """A row per planted condition, a column per diagnosis; then how many are right."""
    counts = confusion(found.rows)
    seen = dict.fromkeys(name for row in counts.values() for name in row)
    order = [*(name for name in CONDITIONS if name in seen),
             *sorted(name for name in seen if name not in CONDITIONS)]  # fmt: skip

    def of(planted: str) -> list[PlantRow]:
        control, condition = planted.startswith("not "), planted.removeprefix("not ")
        return [r for r in found.rows if (r.condition, r.control) == (condition, control)]

    def left(planted: str) -> str:
        skipped = sum(r.verdict == NOT_APPLICABLE for r in of(planted))
        return str(skipped + sum(absent.condition == planted for absent in found.absent) or "")

    def right(planted: str) -> str:
        correct, counted = score(of(planted))
        return f"{correct} of {counted}" if counted else ""

    def column(diagnosis: str) -> Column[str]:
        text = fmt.clean(diagnosis)
        return Column(text, lambda planted: str(counts.get(planted, {}).get(diagnosis, "")), True)

    planted = [*CONDITIONS, *dict.fromkeys(r.condition for r in found.rows)]
    every = [name for c in dict.fromkeys(planted) for name in (c, f"not {c}")]
    columns: list[Column[str]] = [
        Column("planted", fmt.clean),
        *map(column, order),
        Column("correct", right, True),
        Column("not applicable", left, True),
    ]
    return Table(columns, [Row(name) for name in every if counts.get(name) or left(name)])


def _wrong(row: PlantRow) -> Text:
    text = Text("✗ wrong ", "bold red")
    text.append(fmt.clean(row.name), "bold not red")
    text.append(
        f": expected {fmt.clean(row.expected)}, diagnosed {fmt.clean(row.named or 'nothing')} "
        f"({fmt.clean(row.why)}). Planted: {fmt.clean(row.because)}",
        "not bold not red",
    )
    return text


def _summary(rows: Sequence[PlantRow]) -> str:
    """ "41 of 42 diagnosed correctly (97.6 %, target 95 %)"."""
    held = [row for row in rows if row.held_out]
    rows = [row for row in rows if not row.held_out]
    right, counted = score(rows)
    if not counted:
        return "No case could be planted on this device: the diagnosis was not tested."
    share = f"{right} of {counted} diagnosed correctly ({100 * right / counted:.1f} %"
    verdict = "" if passed(rows) else ": the diagnosis fails its test on this device"
    said = f"{share}, target {TARGET_PCT:g} %){verdict}."
    right, counted = score(held)
    if not counted:
        return said
    return f"{said} Planted by other means and never tuned for: {right} of {counted}."
