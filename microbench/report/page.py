"""A run as one HTML page: it opens offline, runs no script and loads nothing.

All text of a run file passes the template's escaping, so it can never become markup. Charts are
images, in which scripts do not run either.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kernels.files import write_atomically
from microbench import fmt
from microbench.errors import UserError
from microbench.report import notes
from microbench.report.comparison import every_alone, page_parts, summary
from microbench.report.console import header
from microbench.report.documents import Sheet, run_of_document
from microbench.report.drawing import chart_of, rendered
from microbench.report.export import parts, to_csv
from microbench.report.table import Part, html, records, write_csv
from microbench.results.comparison import Comparison
from microbench.results.kinds import document_of, reports
from microbench.results.types import Run
from microbench.results.values import Json
from microbench.verdict import verdict


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    source = files("microbench.report").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source)


def to_page(run: Run) -> str:
    """The page. Without the charts' libraries it has a line in place of the chart."""
    first, *about = (line.plain for line in header(run))
    chart, missing = _drawn(lambda: chart_of(run))
    return _template().render(
        title=_title(run),
        about=[first, *about, *missing],
        verdict=[*verdict(run), *(line for report in reports(run) for line in report.summary(run))],
        chart=chart,
        parts=[_shown(part) for part in (*parts(run), *_reading(run))],
        warnings=[line.plain for line in _warnings(run)],
        command=fmt.clean(" ".join(run.command)),
        environment=_environment(run),
        more=[],
        csv=to_csv(run),
    )


def document_page(data: Json, sheet: Sheet, title: str) -> str:
    """The page of a file that is not a run: its table and summary. ValueError: invalid field."""
    run = run_of_document(data) if "device" in data else None
    return _template().render(
        title=title,
        about=[line.plain for line in header(run)] if run else [],
        verdict=[sheet.summary] if sheet.summary else [],
        chart="",
        parts=[
            _shown(Part("", sheet.table, [note.plain for note in sheet.notes])),
            *map(_shown, sheet.parts),
        ],
        warnings=[],
        command=fmt.clean(" ".join(run.command)) if run else "",
        environment=_environment(run) if run else [],
        more=sheet.more,
        csv=write_csv([records(sheet.table)]),
    )


def report_page(
    title: str, about: Sequence[str], answer: Sequence[str], found: Sequence[Part], run: Run | None
) -> str:
    """The page of a report of several runs; `run` is one of them, for its environment."""
    return _template().render(
        title=title,
        about=[*about, *([header(run)[0].plain] if run else [])],
        verdict=answer,
        chart="",
        parts=[_shown(part) for part in found],
        warnings=[],
        command=fmt.clean(" ".join(run.command)) if run else "",
        environment=_environment(run) if run else [],
        more=[],
        csv=write_csv([records(part.table) for part in found if part.table]),
    )


def write_document(data: Json, path: Path) -> None:
    """Write the page of a command's document. UserError where the disk refuses."""
    document = document_of(data)
    assert document is not None
    write_page(document_page(data, document.sheet(data), f"Output of {document.written_by}"), path)


def write_comparisons(
    found: Mapping[str, Comparison], baseline: str, data: Json, path: Path
) -> None:
    """Write the page of runs compared; `data` is the same as JSON. UserError: the disk refuses."""
    document = document_of(data)
    assert document is not None
    sheet: Sheet = document.sheet(data)
    page = _template().render(
        title=f"{', '.join(map(fmt.clean, found))} compared with {fmt.clean(baseline)}",
        about=[],
        verdict=[_counted(name, one, len(found) > 1) for name, one in found.items()],
        chart="",
        parts=[_shown(part) for part in page_parts(found, baseline)],
        warnings=[],
        command="",
        environment=[],
        more=[line for one in found.values() for line in every_alone(one)],
        csv=write_csv([records(sheet.table)]),
    )
    write_page(page, path)


def _counted(name: str, comparison: Comparison, several: bool) -> str:
    return f"{fmt.clean(name)}: " * several + summary(comparison)


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
    chart, missing = _drawn(lambda: part.chart) if part.chart is not None else ("", [])
    below = [*part.below, *missing]
    return {"title": part.title.rstrip(":"), "table": table, "below": below, "chart": chart}


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
    limits = [line.plain.strip() for line in notes.whys(run, details=True)]
    legend = [line.plain for line in (*notes.legend(run, ""), *notes.ceilings(run))]
    found = (Part("What limits each case", None, limits), Part("How to read it", None, legend))
    return [part for part in found if part.below]


def _warnings(run: Run) -> list[Any]:
    return [
        *notes.machine(run),
        *notes.warnings(run),
        *(line for report in reports(run) for line in report.warnings(run)),
    ]


def _environment(run: Run) -> list[tuple[str, str]]:
    """What was measured on, with what, and how it was asked."""
    groups = (("", run.device), ("", run.software), ("", run.settings))
    return [
        (fmt.clean(name), fmt.clean(str(value)))
        for _, facts in groups
        for name, value in facts.items()
        if value not in (None, {}, [])
    ]
