"""A report as Markdown and CSV, and as one page that opens offline and runs no script.

All text of a run file is escaped, so it can never become markup. Charts are images, in which
scripts do not run either.
"""

from __future__ import annotations

import csv
import io
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microbench import fmt
from microbench.errors import UserError
from microbench.report import parts
from microbench.report.charts import rendered
from microbench.results.runfile import write_output
from microbench.streams import printable

NONE: Mapping[str, str] = MappingProxyType({})
COMPUTED = ("=", "+", "-", "@")  # how cells begin that a spreadsheet computes


# ---------------------------------------------------------------- Markdown


def to_markdown(report: parts.Report) -> str:
    """The answer, then every part."""
    lines = [
        f"**{line.label}:** {line.text}" if line.label else f"**{line.text}**"
        for line in report.answer
    ]
    shown = [part_markdown(part) for part in report.shown(verbose=True)]
    text = printable("\n\n".join([*map(fmt.clean, lines), *shown]) + "\n")
    return text.replace("<", "&lt;").replace("](", "]\\(")  # a run's text is no HTML and no link


def part_markdown(part: parts.Part) -> str:
    """The title, the table without its empty columns, and the sentences below."""
    content = parts.cells(part)
    rules = ["---:" if number else "---" for number in content.numbers]
    titles = [fmt.clean(column.title) for column in content.columns]
    table = "\n".join(map(_markdown_row, [titles, rules, *content.texts])) if content.texts else ""
    title = f"### {fmt.clean(part.title)}" if part.title else ""
    return "\n\n".join(filter(None, [title, table, *map(fmt.clean, part.below)]))


def _markdown_row(texts: Iterable[str]) -> str:
    # A backslash escapes nothing, not its "|" either.
    escaped = (re.sub(r"[|\\]", r"\\\g<0>", text) for text in texts)
    return f"| {' | '.join(escaped)} |"


# ---------------------------------------------------------------- CSV


def to_csv(report: parts.Report) -> str:
    """The raw values: a row a result.

    Names of columns have the unit and do not change; an unknown value is empty. A run with several
    kinds of results has the columns of all of them.
    """
    names = list(dict.fromkeys(name for columns, _ in report.raw for name in columns))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_text, names))
    for _, rows in report.raw:
        writer.writerows([csv_text(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def csv_text(value: parts.Value) -> str:
    """Nine significant digits: finer than any timer here, without binary noise.

    A text has no control characters; one that a spreadsheet would compute gets an apostrophe.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = printable(value).strip()
        return f"'{text}" if text.startswith(COMPUTED) and not _is_number(text) else text
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- pages


MOST_CHARTS, MOST_OPEN = 20, 10  # files of a page with a chart; that are not folded


@cache
def _template() -> Any:
    """The page of this folder, whose values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = PackageLoader("microbench.report", "")
    environment = Environment(loader=pages, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html")


def page(
    reports: Mapping[str, parts.Report], title: str = "", unread: Mapping[str, str] = NONE
) -> str:
    """The page of a report; of several, by file name, a table of findings and all reports.

    `unread` has why files are not in it. Without the charts' libraries, a line says so.
    """
    several = len(reports) > 1
    note = f"Charts are drawn for the first {MOST_CHARTS} files." * (len(reports) > MOST_CHARTS)
    sections = [
        _section(name, report, several, drawn=index < MOST_CHARTS)
        for index, (name, report) in enumerate(reports.items())
    ]
    heading = title if several else next(iter(reports.values())).title
    return _template().render(
        title=fmt.clean(heading), reports=sections, note=note, most_open=MOST_OPEN,
        prose=parts.PROSE,
        unread=[(fmt.clean(name), fmt.clean(why)) for name, why in unread.items()],
    )  # fmt: skip


def _section(name: str, report: parts.Report, several: bool, *, drawn: bool) -> dict[str, Any]:
    """A report as the template has it, which escapes every text."""
    chart, about = _drawn(report) if drawn else ("", [])
    shown = [
        {
            "title": fmt.clean(part.title), "below": map(fmt.clean, part.below),
            "table": parts.cells(part), "folded": part.level == parts.VERBOSE,
        }
        for part in report.shown(verbose=True)
    ]  # fmt: skip
    return {
        "name": fmt.clean(name), "finding": report.finding, "chart": chart, "parts": shown,
        "about": [*([report.title] if several else []), *map(fmt.clean, report.about), *about],
        "answer": [parts.Line(line.label, fmt.clean(line.text)) for line in report.answer],
        "csv": to_csv(report) if report.raw else "",
    }  # fmt: skip


def _drawn(report: parts.Report) -> tuple[str, list[str]]:
    """The chart as a data URL; or why there is none."""
    if report.chart is parts.nothing_to_draw:
        return "", []
    try:
        image = rendered(report.chart(), "svg")
    except UserError as error:
        return "", [f"No chart: {error}."]
    return f"data:image/svg+xml;base64,{b64encode(image).decode()}", []


def write_page(page: str, path: Path) -> None:
    """Write a page, whole or not at all. UserError where the disk refuses."""
    write_output("--html", path, page.encode())
