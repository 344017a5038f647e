"""The commands that do not measure: show, report, explain, compare, doctor."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping, Sequence
from json import dumps
from pathlib import Path

from rich.console import Console
from rich.text import Text

from microbench import fmt
from microbench.device.device import describe
from microbench.device.doctor import Finding, examine
from microbench.errors import UserError
from microbench.report import charts, comparison, parts, writers
from microbench.report.report import overview, report_of_file
from microbench.report.screen import make_console, print_report
from microbench.results import runfile
from microbench.results.comparison import VERDICTS, Comparison, compare, failing, parse_threshold
from microbench.results.kinds import DOCUMENT_VERSION
from microbench.roofline.explain import annotate
from microbench.sweep import parse_names

STUDY = "study.json"  # what a study says of itself


def show_files(
    files: Sequence[Path],
    *,
    form: str | None = None,
    topic: str | None = None,
    verbose: bool = False,
    chart: Path | None = None,
    html: Path | None = None,
) -> None:
    """Print a file as a screen, "csv" or "markdown" (`form`), or write it as a chart or a page.

    Of several, print a line each, or their reports one after the other. UserError for a file that
    cannot be read or written, or without what is asked for.
    """
    if form and Path("-") in files:
        raise UserError(f"--{form} prints the report, and takes no -")
    for option, asked in (("--csv", form == "csv"), ("--chart", chart)):
        if asked and len(files) > 1:
            raise UserError(f"{option} takes one file")
    named = {"FILE" + f" {i}" * (i > 1): file for i, file in enumerate(files, 1)}
    runfile.check_apart({**named, "--chart": chart, "--html": html})
    if html:
        runfile.check_writable(html, "--html")
    if chart:
        charts.check_chart_path(chart)
    reports: dict[str, parts.Report] = {}
    for path in files:
        reports[_apart(path, reports)] = report_of_file(path)
    console = make_console()
    if chart:
        charts.write_chart(next(iter(reports.values())).chart(), chart)
        console.print(f"Chart: {chart}", soft_wrap=True)
    if html:
        writers.write_page(writers.page(reports, overview(reports).title), html)
        console.print(f"Page: {html}", soft_wrap=True)
    if not (chart or html):
        _print_reports(reports, console, form, topic or "", verbose=verbose)


def _print_reports(
    reports: Mapping[str, parts.Report],
    console: Console,
    form: str | None,
    topic: str,
    *,
    verbose: bool,
) -> None:
    """Print a report, or several. UserError where one has not the topic."""
    if form:
        written = {"csv": writers.to_csv, "markdown": writers.to_markdown}[form]
        sys.stdout.write("\n".join(map(written, reports.values())))
        return
    if len(reports) > 1 and not (verbose or topic):
        print_report(overview(reports), console)
        return
    for name, report in reports.items():
        if topic and not report.shown(topic=topic):
            raise UserError(f"{name} has no {topic}")
        if len(reports) > 1:
            console.print(Text(f"\n{name}", "bold underline"))
        print_report(report, console, verbose=verbose, topic=topic)


def report_folder(folder: Path, html: Path | None) -> None:
    """Write one page of the files below a folder that have a report, and print their findings.

    UserError where there are none, or the page cannot be written.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; `halfway show FILE` prints one file")
    if html:
        runfile.check_writable(html, "--html")
    reports: dict[str, parts.Report] = {}
    unread: dict[str, str] = {}
    for path in sorted(set(folder.rglob("*.json")) - set(folder.rglob(STUDY))):
        name = path.relative_to(folder).as_posix()
        try:
            reports[name] = report_of_file(path)
        except UserError as error:
            unread[name] = str(error)
    if not reports:
        why = f": {next(iter(unread.values()))}" if unread else ""
        raise UserError(f"{folder} has no run file{why}")
    several, console = overview(reports), make_console()
    page = html or folder / "overview.html"
    writers.write_page(writers.page(reports, several.title, unread), page)
    print_report(several, console)
    if unread:
        console.print(f"Not read: {fmt.count(len(unread), 'file')} (the page says why)")
    console.print(f"Page: {page}", soft_wrap=True)


def explain_again(file: Path) -> None:
    """Compute bottlenecks, reasons and warnings of a run file anew, and write it back.

    The file keeps its permissions and its links. UserError for a file that is no run, cannot be
    written, or is being measured.
    """
    console = make_console()
    with runfile.claimed(file, "FILE"):
        run = runfile.read_run(file)
        if run.others and not run.results:
            why = "Other results are explained when they are measured."
            console.print(f"{file} has no kernel results. {why}", soft_wrap=True)
            return
        explained = annotate(run)
        changed = sum(a != b for a, b in zip(run.results, explained.results, strict=True))
        runfile.write_run(explained, file)
        change = f"{changed} of {len(run.results)} explanations changed"
        console.print(f"{file}: {change}", soft_wrap=True)


def compare_with(
    files: Sequence[Path],
    *,
    threshold: str | None = None,
    fail_on: str | None = None,
    markdown: bool = False,
    verbose: bool = False,
    json: Path | None = None,
    html: Path | None = None,
) -> int:
    """Print comparisons of runs with one baseline, which is the first file.

    Returns the exit code: 1 when a verdict is one to fail on, else 0. UserError for what cannot be
    read, compared or written.
    """
    if len(files) < 2:
        raise UserError("compare takes two run files or more: the baseline, then each run")
    choices = [verdict.replace(" ", "-") for verdict in VERDICTS]
    named = parse_names(fail_on, choices, "--fail-on") if fail_on is not None else []
    wanted = [name.replace("-", " ") for name in named]
    pct = None if threshold is None else parse_threshold(threshold)
    outputs = {"--json": json, "--html": html}
    for option, path in outputs.items():
        if path == Path("-"):
            raise UserError(f"{option} of compare takes a file, not -")
        if path:
            runfile.check_writable(path, option)
    runfile.check_apart(outputs)
    first, *others = [runfile.read_run(path) for path in files]
    comparisons: dict[str, Comparison] = {}
    for path, run in zip(files[1:], others, strict=True):
        try:
            comparisons[_apart(path, comparisons)] = compare(first, run, pct)
        except UserError as error:
            raise (UserError(f"{path}: {error}") if len(others) > 1 else error) from None
    if json:
        every = [{"run": name, **one.as_dict()} for name, one in comparisons.items()]
        # That of one comparison is as it always was; that of several has a list of them.
        one = {"kind": "compare", **next(iter(comparisons.values())).as_dict()}
        several = {"kind": "comparisons", "baseline": files[0].name, "comparisons": every}
        data = {"schema_version": DOCUMENT_VERSION, **(one if len(comparisons) == 1 else several)}
        runfile.write_text(dumps(data, allow_nan=False), json)
    report = comparison.report(comparisons, files[0].name)
    if html:
        writers.write_page(writers.page({report.title: report}), html)
    if markdown:
        sys.stdout.write(writers.to_markdown(report))
    else:
        console = make_console()
        print_report(report, console, verbose=verbose, more="halfway compare FILES")
        console.print(f"Page: {html}\n" if html else "", end="", soft_wrap=True)
    return 1 if any(failing(one, wanted) for one in comparisons.values()) else 0


def _apart(path: Path, taken: Container[str]) -> str:
    """The file's name; with its folder, or a number, where another run has that name."""
    name, number = path.name, 1
    while name in taken:
        number += 1
        name = str(path) if number == 2 else f"{path} ({number - 1})"
    return name


def examine_machine() -> None:
    """Print the doctor's findings."""
    print_report(report_of_findings(examine(describe())), make_console())


def report_of_findings(findings: Sequence[Finding]) -> parts.Report:
    """What the doctor found, problems first, each with its remedy."""
    styles = {"problem": "bold red", "warning": "bold yellow", "note": "cyan", "ok": "green"}
    lines: list[parts.Line] = []
    for level, meaning in (("problem", "results would be wrong or missing"),
                           ("warning", "results may be slower or noisier")):  # fmt: skip
        graded = [finding for finding in findings if finding.level == level]
        if graded:
            named = ", ".join(finding.name for finding in graded)
            lines.append(parts.Line("", f"{fmt.count(len(graded), level)} ({named}): {meaning}"))
            remedies = [f"{finding.name}: {finding.remedy}" for finding in graded if finding.remedy]
            lines += [parts.Line("Do", remedy) for remedy in remedies]
    rows: list[parts.Row] = []
    for finding in sorted(findings, key=lambda finding: [*styles].index(finding.level)):
        more = f"; {finding.remedy}" if finding.level == "note" and finding.remedy else ""
        item = {"level": finding.level, "check": finding.name, "found": finding.what + more}
        rows.append(parts.Row(item, style=styles[finding.level]))
    columns = [parts.Column(name, name) for name in ("level", "check", "found")]
    ready = parts.Line("", "Ready to measure: no problems found")
    return parts.Report("doctor", lines or [ready], [parts.Part("", columns, rows)])
