"""Files that are not runs, laid out as tables: a fleet check, and documents of other programs.

Each GPU of a fleet is compared with the median of the others of its model, so that it does not hide
itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from statistics import median
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from microbench import fmt
from microbench.report.console import header
from microbench.report.screen import print_lines
from microbench.report.table import Column, Part, Row, Table, screen
from microbench.results.codec import decode
from microbench.results.kinds import Document, register_document
from microbench.results.types import Interval, Json, Ratio, Result, Run

HEADER = ("command", "device", "software", "finished_at")  # of a document, above its table


@dataclass(frozen=True)
class Sheet:
    """A document as a table. Without --verbose the screen has `brief` in place of it.

    `first` is above the table, `notes` and `summary` follow it. `more` are lines that --verbose
    adds, and that are folded on a page. `parts` are further tables, on a page and with --verbose;
    without it the screen has `brief_parts`.
    """

    table: Table[Any]
    brief: Table[Any]
    summary: str = ""
    notes: Sequence[Text] = ()
    more: Sequence[str] = ()
    parts: Sequence[Part] = ()
    brief_parts: Sequence[Part] = ()
    first: Sequence[str] = ()


def print_document(data: Json, sheet: Sheet, console: Console, *, details: bool) -> None:
    """Print the device, if the document has one, and the sheet. ValueError: invalid field."""
    if "device" in data:
        print_lines(console, header(run_of_document(data), details))
        console.print()
    print_sheet(sheet, console, details=details)


def run_of_document(data: Json) -> Run:
    """A document's device, software, command and time as a run. ValueError: invalid field."""
    *names, when = HEADER
    facts = {name: data.get(name) for name in names}
    when = data.get(when)
    return decode(Run, {**facts, "started_at": when, "finished_at": when}, "")


def print_sheet(sheet: Sheet, console: Console, *, details: bool = False) -> None:
    """Print the table, notes, and the summary."""
    table = sheet.table if details else sheet.brief
    lines = [Text(line, "bold") for line in sheet.first]
    lines += [*(screen(table, console.width).lines if table.rows else ()), *sheet.notes]
    for part in sheet.parts if details else sheet.brief_parts:
        rows = screen(part.table, console.width).lines if part.table else ()
        lines += [Text(""), Text(part.title), *rows, *map(Text, part.below)]
    lines += [Text(line) for line in sheet.more] if details else []
    print_lines(console, lines)
    if sheet.summary:
        console.print(*([""] if lines else []), Text(sheet.summary, "bold"), sep="\n")


# ---------------------------------------------------------------- of other programs


def figures(data: Mapping[str, object]) -> Sheet:
    """The values in another program's document, one per line, in its own units."""
    columns: list[Column[tuple[str, str]]] = [
        Column("figure", lambda row: row[0], csv={"figure": lambda row: row[0]}),
        Column("value", lambda row: row[1], csv={"value": lambda row: row[1]}),
    ]
    rows = [
        Row((fmt.clean(name), fmt.clean(_value(value))))
        for name, value in data.items()
        if name not in HEADER
    ]
    table = Table(columns, list(rows))
    return Sheet(table, table)


def check(data: Mapping[str, object]) -> Sheet:
    """The totals of a check of the method, and how long its lists are; its file holds them."""
    return figures({
        name: len(cast("list[object]", value)) if isinstance(value, list) else value
        for name, value in data.items()
        if not isinstance(value, dict)
    })  # fmt: skip


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, cast("list[object]", value)))
    return str(value)


# ---------------------------------------------------------------- a fleet check


CHECK = "fleet"  # the value of "check" in the file
COPY = "memory copy"
FAULTS = FAILED, SLOW = "failed", "slow"
READ = ("median_s", "ci95_s", "sm_clock_mhz", "power_w", "temperature_c", "throttle")
RAW = ("work", "median_s", "status", "reason")  # what CSV has of a rate


@dataclass(frozen=True)
class Reading:
    """One case on one GPU: median seconds, their 95 % interval, and the sensors meanwhile.

    `gpu` is torch's index, `work` FLOP of a launch, bytes for COPY. Without seconds, `reason` says
    why. `finding` is one of FAULTS, "unclear" or "". Nothing identifies the card or the host.
    """

    gpu: int
    name: str = "unknown"
    case: str = ""
    work: float = 0.0
    median_s: float | None = None
    ci95_s: Interval | None = None
    status: str = "ok"
    reason: str | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    vs_others_pct: float | None = None
    finding: str = ""

    def of(self, result: Result) -> Reading:
        """A kernel's result on this GPU."""
        case, found = result.case, result.measurement
        layout = (
            "" if case.problem.layout == "nt" else case.problem.layout
        )  # the usual one goes without saying
        words = (case.precision_name, fmt.size(case), layout, case.backend)
        read = {name: getattr(found, name) for name in READ} if found else {}
        return replace(self, case=" ".join(filter(None, words)), work=result.flops,
                       status=result.status, reason=result.reason, **read)  # fmt: skip

    @property
    def rate(self) -> str:
        """FLOP/s, or bytes/s for COPY; why there is none."""
        if not self.median_s:
            return fmt.clean(self.reason or "")
        per_s = self.work / self.median_s
        return fmt.bandwidth(per_s) if self.case == COPY else f"{fmt.number(per_s / 1e12)} TFLOP/s"


def judged(rows: Sequence[Reading], threshold_pct: float) -> list[Reading]:
    """The rows with their distance from the others', and what is wrong with each.

    Slow is one whose whole interval, where it has one, is beyond the threshold.
    """
    found: list[Reading] = []
    for row in rows:
        ratio, finding = _relative(row, rows), FAILED if row.status == FAILED else ""
        if ratio and ratio.ruined_pct:
            finding = "unclear"
        elif ratio and (ratio.ci95 or (ratio.ratio,))[0] > 1 + threshold_pct / 100:
            finding = SLOW
        distance_pct = 100 * (1 / ratio.ratio - 1) if ratio else None
        found.append(replace(row, vs_others_pct=distance_pct, finding=finding))
    return found


def _relative(row: Reading, rows: Sequence[Reading]) -> Ratio | None:
    """Its time over the median time of the others, with the noise of both; None for no time."""
    others = [r for r in rows if (r.name, r.case) == (row.name, row.case) and r.gpu != row.gpu]
    times_s = [r.median_s for r in others if r.median_s]
    if not row.median_s or not times_s:
        return None
    ratio = row.median_s / median(times_s)
    halves = [math.log(r.ci95_s[1] / r.ci95_s[0]) / 2 for r in others if r.ci95_s]
    if row.ci95_s is None or not halves:
        return Ratio(ratio, None)
    half = math.hypot(math.log(row.ci95_s[1] / row.ci95_s[0]) / 2, median(halves))
    return Ratio(ratio, (ratio * math.exp(-half), ratio * math.exp(half)))


def to_json(facts: Json, rows: Sequence[Reading]) -> Json:
    """The file: facts of the command, then the rows."""
    return {**facts, "rows": [asdict(row) for row in rows]}


def sheet(data: Json) -> Sheet:
    """The file of a check as a table. ValueError names the invalid field."""
    pct: float = decode(float, data.get("threshold_pct"), "threshold_pct")
    rows: list[Reading] = []
    for i, one in enumerate(decode(tuple[Json, ...], data.get("rows"), "rows")):
        # In older files a row is a GPU.
        readings = decode(tuple[Json, ...], one.get("readings", [{}]), f"rows[{i}].readings")
        parts = [one | part for part in readings]
        died = [one | {"status": FAILED}] if "readings" in one and one.get("reason") else []
        rows += (decode(Reading, part, f"rows[{i}]") for part in parts + died)
    for row in rows:
        low, high = row.ci95_s or (1.0, 1.0)
        if (row.median_s is not None and row.median_s <= 0) or not 0 < low <= high:
            raise ValueError(f"rows: the time of {row.case} is not above zero, or no interval")
    return sheet_of(judged(rows, pct))


def sheet_of(rows: Sequence[Reading]) -> Sheet:
    """What is wrong in a sentence, then case by case a row a GPU."""
    count, bad = len({row.gpu for row in rows}), {r.gpu: r.finding for r in rows if r.finding}
    named = ", ".join(f"GPU {gpu} {finding}" for gpu, finding in bad.items())
    few = " With fewer than three there is no telling which one is as it should be."
    said = f"{fmt.count(count, 'GPU')}: {named or 'none is slow'}.{few * (count < 3)}"
    cases = list(dict.fromkeys(row.case for row in rows))
    ordered = sorted(rows, key=lambda row: (cases.index(row.case), row.gpu))
    columns = [
        _column("case", "case", fmt.clean, key=True), _column("GPU", "gpu", key=True),
        _column("name", "name", fmt.clean, key=True, drop=5),
        Column("rate", lambda row: row.rate, True, csv={n: attrgetter(n) for n in RAW}),
        _column("vs others", "vs_others_pct", fmt.signed_pct, right=True),
        _column("SM MHz", "sm_clock_mhz", "{:.0f}".format, right=True, drop=1),
        _column("power W", "power_w", "{:.0f}".format, right=True, drop=3),
        _column("°C", "temperature_c", "{:.0f}".format, right=True, drop=2),
        _column("throttle", "throttle", ", ".join, drop=4), _column("finding", "finding"),
    ]  # fmt: skip
    table = Table(columns, [Row(row, "" if row.median_s else row.rate) for row in ordered])
    return Sheet(table, table, first=[said])


def _column(title: str, name: str, text: Callable[[Any], str] = str, **more: Any) -> Column[Any]:
    """A field, as text and in CSV."""

    def cell(row: Reading) -> str:
        value = getattr(row, name)
        return "" if value is None else text(value)

    return Column(title, cell, csv={name: cell if name == "throttle" else attrgetter(name)}, **more)


# ---------------------------------------------------------------- what a file may be


for document in (
    Document("fleet", {"check": "fleet"}, sheet),
    Document("a check of the method (tests/)", {"check": None}, check),
    Document("timm's benchmark.py", dict.fromkeys(("model", "train_samples_per_sec")),
             figures),
    Document("examples/plain_dataloader.py", dict.fromkeys(("workers", "images_per_s", "torch")),
             figures),
):  # fmt: skip
    register_document(document)
