"""A run as Markdown, CSV and HTML tables, and as one page that opens offline and runs no script.

All text of a run file passes the template's escaping, so it can never become markup. Charts are
images, in which scripts do not run either.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from kernels.files import write_atomically
from microbench import fmt
from microbench.errors import UserError
from microbench.report import comparison, writers
from microbench.report.charts import rendered, template
from microbench.report.console import ceilings, header, legend, machine, warnings, whys
from microbench.report.documents import run_of_document
from microbench.report.drawing import chart_of
from microbench.report.report import report_of, report_of_document
from microbench.report.run_table import layers_table, plain_table
from microbench.report.table import (
    Part,
    Records,
    html,
    markdown,
    plain_markdown,
    records,
    write_csv,
)
from microbench.results.comparison import Comparison
from microbench.results.kinds import document_of, reports
from microbench.results.types import Json, Run
from microbench.verdict import verdict


def _page(
    title: str, about: Sequence[str], verdict: Sequence[str], found: Iterable[Part],
    run: Run | None, csv: str, *, chart: str = "", warnings: Sequence[str] = (),
    more: Sequence[str] = (),
) -> str:  # fmt: skip
    """The template filled in; `run` says what was measured on, and by which command."""
    return template("page.html").render(
        title=title, about=about, verdict=verdict, chart=chart, parts=list(map(_shown, found)),
        warnings=warnings, command=fmt.clean(" ".join(run.command)) if run else "",
        environment=_environment(run) if run else [], more=more, csv=csv,
    )  # fmt: skip


def to_page(run: Run) -> str:
    """The page. Without the charts' libraries it has a line in place of the chart."""
    if new := report_of(run):
        return writers.page({"": new})
    chart, missing = _drawn(lambda: chart_of(run))
    said = [*verdict(run), *(line for report in reports(run) for line in report.summary(run))]
    return _page(
        _title(run), [*(line.plain for line in header(run)), *missing], said,
        (*parts(run), *_reading(run)), run, to_csv(run),
        chart=chart, warnings=[line.plain for line in _warnings(run)],
    )  # fmt: skip


def report_page(
    title: str, about: Sequence[str], answer: Sequence[str], found: Sequence[Part], run: Run | None
) -> str:
    """The page of a report of several runs; `run` is one of them, for its environment."""
    csv = write_csv([records(part.table) for part in found if part.table])
    return _page(title, [*about, *([header(run)[0].plain] if run else [])], answer, found, run, csv)


def write_document(data: Json, path: Path) -> None:
    """Write the page of a file that is not a run: its table and summary. UserError where the disk
    refuses, ValueError for an invalid field.
    """
    document = document_of(data)
    assert document is not None
    if document.report:
        write_page(writers.page({"": report_of_document(document, data)}), path)
        return
    sheet, run = document.sheet(data), run_of_document(data) if "device" in data else None
    page = _page(
        f"Output of {document.written_by}", [line.plain for line in header(run)] if run else [],
        [*sheet.first, *([sheet.summary] if sheet.summary else [])],
        (Part("", sheet.table, [note.plain for note in sheet.notes]), *sheet.parts),
        run, write_csv([records(sheet.table)]), more=sheet.more,
    )  # fmt: skip
    write_page(page, path)


def write_comparisons(found: Mapping[str, Comparison], baseline: str, path: Path) -> None:
    """Write the page of runs compared. UserError: the disk refuses."""
    report = comparison.report(found, baseline)
    write_page(writers.page({report.title: report}), path)


def write_page(page: str, path: Path) -> None:
    """Write a page, whole or not at all. UserError where the disk refuses."""
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise UserError(f"--html {path}: cannot write the file ({error.strerror})") from None


def _shown(part: Part) -> dict[str, Any]:
    """A part as the template has it; `html` has escaped the table's texts."""
    from markupsafe import Markup

    table = Markup(html(part.table)) if part.table else ""
    return {"title": part.title.rstrip(":"), "table": table, "below": part.below}


def _title(run: Run) -> str:
    """ "gemm on NVIDIA H200", "resnet50 on NVIDIA H200": the command's first words."""
    words = run.command[3:] if "-m" in run.command else run.command[1:]
    named = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), words))
    device = fmt.clean(run.device.get("name") or "unknown device")
    return f"{fmt.clean(named) or 'A run'} on {device}"


def _drawn(make: Callable[[], Any]) -> tuple[str, list[str]]:
    """A chart as a data URL; or why there is none."""
    try:
        text = rendered(make(), "svg")
    except UserError as error:
        return "", [f"No chart: {error}."]
    encoded = base64.b64encode(text).decode()
    return f"data:image/svg+xml;base64,{encoded}", []


def _reading(run: Run) -> list[Part]:
    """What limits each kernel, and how to read their table."""
    if not run.results:
        return []
    limits = [line.plain.strip() for line in whys(run, details=True)]
    reading = [line.plain for line in (*legend(run, ""), *ceilings(run))]
    found = (Part("What limits each case", None, limits), Part("How to read it", None, reading))
    return [part for part in found if part.below]


def _warnings(run: Run) -> list[Any]:
    return [
        *machine(run),
        *warnings(run),
        *(line for report in reports(run) for line in report.warnings(run)),
    ]


def _environment(run: Run) -> list[tuple[str, str]]:
    """What was measured on, with what, and how it was asked."""
    return [
        (fmt.clean(name), fmt.clean(str(value)))
        for facts in (run.device, run.software, run.settings)
        for name, value in facts.items()
        if value not in (None, {}, [])
    ]


# ---------------------------------------------------------------- export


def parts(run: Run) -> list[Part]:
    """The run's tables with their titles.

    One row per result, in the order measured, with the reason of those skipped. A network's layers,
    trainings and loaders have tables of their own.
    """
    found = [Part(table=plain_table(run))] if run.results or not run.others else []
    if run.results and run.network:
        found.append(Part(table=layers_table(run, run.network)))
    found += [part for report in reports(run) for part in report.parts(run)]
    return [part for part in found if part.table is None or part.table.rows]


def to_markdown(run: Run) -> str:
    """The run's tables as Markdown."""
    if new := report_of(run):
        return writers.to_markdown(new)
    return plain_markdown("\n".join(map(_markdown_part, parts(run))))


def _markdown_part(part: Part) -> str:
    said = "".join(f"\n{sentence}\n" for sentence in part.below)
    shown = [f"{part.title}\n"] if part.title else []
    shown += [markdown(part.table)] if part.table else []
    return "\n".join(shown) + said


def to_html(run: Run) -> str:
    """The run's tables as HTML elements, for notebooks. All text is escaped."""
    if new := report_of(run):
        return writers.to_html(new)
    return "\n".join(map(_html_part, parts(run)))


def _html_part(part: Part) -> str:
    title = f"<p><b>{escape(part.title)}</b></p>" if part.title else ""
    table = html(part.table) if part.table else ""
    return title + table + "".join(f"<p>{escape(sentence)}</p>" for sentence in part.below)


def to_csv(run: Run) -> str:
    """One row per result.

    Names of columns have the unit and do not change; an unknown value is empty. A run with several
    kinds of results has the columns of all of them.
    """
    if new := report_of(run):
        return writers.to_csv(new)
    found: list[Records] = []
    if run.results or not run.others:
        found.append(records(plain_table(run)))
    for report in reports(run):
        names, rows = report.csv(run)
        found.append((list(names), rows))
    return write_csv(found)
