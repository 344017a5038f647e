"""The commands that do not measure: show, explain, compare, doctor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from microbench.results.kinds import Document, document_of
from microbench.results.runfile import (
    as_run,
    check_writable,
    damaged,
    probe,
    read_json,
    read_run,
    write_run,
    write_text,
)
from microbench.results.values import Json
from microbench.sweep import parse_names


def show_run(
    file: Path,
    *,
    form: str | None,
    verbose: bool,
    chart: Path | None = None,
    html: Path | None = None,
) -> None:
    """Print a file as a screen, or in the form "csv" or "markdown"; or draw the run in it, or write
    it as a page.
    """
    data = read_json(file)
    document = document_of(data)
    if html:
        check_writable(html, "--html")
    if document and not chart:
        show_document(document, data, file, form=form, verbose=verbose, html=html)
        return
    run = as_run(data, file)
    if chart:
        from microbench.report.drawing import check_chart_path, draw

        check_chart_path(chart)
        draw(run, chart)
        print(f"Chart: {chart}")
    if html:
        from microbench.report.page import to_page, write_page

        write_page(to_page(run), html)
        print(f"Page: {html}")
    if chart or html:
        return
    if form == "csv":
        from microbench.report.export import to_csv

        sys.stdout.write(to_csv(run))
        return
    if form == "markdown":
        from microbench.report.export import to_markdown

        sys.stdout.write(to_markdown(run))
        return
    from microbench.report.console import print_run
    from microbench.report.screen import make_console

    print_run(run, make_console(), details=verbose)


def show_document(
    document: Document,
    data: Json,
    file: Path,
    *,
    form: str | None,
    verbose: bool,
    html: Path | None,
) -> None:
    """Print what a command wrote that is no run, or write it as a page."""
    from microbench.report.documents import Sheet, print_document
    from microbench.report.screen import make_console
    from microbench.report.table import markdown, records, write_csv

    try:
        sheet: Sheet = document.sheet(data)
        if html:
            from microbench.report.page import document_page, write_page

            write_page(document_page(data, sheet, f"Output of {document.written_by}"), html)
            print(f"Page: {html}")
        elif form == "csv":
            sys.stdout.write(write_csv([records(sheet.table)]))
        elif form == "markdown":
            sys.stdout.write(markdown(sheet.table))
        else:
            print_document(data, sheet, make_console(), details=verbose)
    except (ValueError, OverflowError) as error:
        raise damaged(file, error) from None


def explain_again(file: Path) -> None:
    """Bounds, reasons, warnings and time model of a run file, from its numbers; written back."""
    from microbench.roofline.explain import annotate
    from microbench.roofline.model.held_out import with_model

    run = read_run(file)
    probe(file, "FILE")
    if run.others and not run.results:
        print(f"{file} has no kernel results. Other results are explained when they are measured.")
        return
    explained = with_model(annotate(run))
    changed = sum(a != b for a, b in zip(run.results, explained.results, strict=True))
    write_run(explained, file)
    print(f"{file}: {changed} of {len(run.results)} explanations changed")


def compare_runs(a: Path, b: Path, fail_on: str | None, json_path: Path | None) -> int:
    """Print the comparison; the exit code: 1 when a verdict is one to fail on, else 0."""
    from microbench.report.comparison import print_comparison
    from microbench.report.screen import make_console
    from microbench.results.comparison import VERDICTS, compare, failing

    choices = [verdict.replace(" ", "-") for verdict in VERDICTS]
    named = parse_names(fail_on, choices, "--fail-on") if fail_on is not None else []
    if json_path:
        check_writable(json_path, "--json")
    comparison = compare(read_run(a), read_run(b))
    if json_path:
        write_text(json.dumps(comparison.as_dict(), allow_nan=False), json_path)
    print_comparison(comparison, make_console())
    return 1 if failing(comparison, [name.replace("-", " ") for name in named]) else 0


def examine_machine(device: str) -> None:
    """Print the doctor's findings."""
    from microbench.device.device import describe
    from microbench.device.doctor import examine
    from microbench.report.doctor import print_findings
    from microbench.report.screen import make_console

    print_findings(examine(describe(device)), make_console())
