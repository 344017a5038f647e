"""The screen of a run: a pure function of the run, so that `show FILE` prints it again."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from microbench.report import notes, words
from microbench.report.arms import arms_of, varying
from microbench.report.chart import chart
from microbench.report.run_table import run_table
from microbench.report.screen import WIDTH
from microbench.results import Run
from microbench.verdict import verdict

SOFTWARE = (
    ("torch", "torch"),
    ("cuda", "CUDA"),
    ("triton", "Triton"),
    ("cublas", "cuBLAS"),
    ("cupy", "CuPy"),
    ("python", "Python"),
    ("project", "halfway"),
)


def print_run(run: Run, console: Console, *, details: bool = False) -> None:
    """Header, table, chart, verdict, warnings. `details` adds why for every result."""
    width = min(console.width, WIDTH)
    _section(console, header(run, details), width)
    if not run.results:
        console.print(Text("Nothing was measured."))
        return
    table = run_table(run, width)
    _section(console, [*table.lines, *notes.legend(run, table.left_out, width)], width)
    _section(console, notes.reasons(table.cut), width, "Reasons in full")
    _section(console, notes.whys(run, details), width, _what_holds_back(run, details))
    _section(console, chart(run, width), width)
    _section(console, _verdict(run), width, "In short")
    _section(console, notes.warnings(run), width, "Warnings")
    _section(console, notes.ceilings(run), width, blank=False)


def header(run: Run, details: bool = False) -> list[Text]:
    """What was measured on, with what, and how."""
    shown = SOFTWARE if details else SOFTWARE[:3]
    software = [
        f"{title} {words.clean(run.software[name])}"
        for name, title in shown
        if run.software.get(name)
    ]
    driver, limit = run.device.get("driver"), run.device.get("power_limit_w")
    machine = [
        *([f"driver {words.clean(driver)}"] if driver else []),
        *software,
        *([f"power limit {limit:.0f} W"] if isinstance(limit, int | float) else []),
    ]
    lines = [
        Text(words.clean(run.device.get("name", "unknown device")), "bold")
        .append("".join(f", {part}" for part in machine), "not bold"),
        Text(", ".join(_how(run)), "dim"),
    ]  # fmt: skip
    if run.finished_at is None:
        lines.append(Text("not finished: --resume goes on with the run file", "bold"))
    if details:
        lines.append(Text(f"$ {words.clean(' '.join(run.command))}", "dim"))
    return lines


def _how(run: Run) -> list[str]:
    """The conditions that all results share, and when."""
    with_layout, with_data = varying(run)
    parts: list[str] = []
    ops = {r.case.op for r in run.results}
    parts += sorted(words.clean(op) for op in ops)
    if run.results and not with_layout and run.results[0].case.layout:
        parts.append(f"layout {words.clean(run.results[0].case.layout)}")
    if run.results and not with_data:
        parts.append(f"{words.clean(run.results[0].case.data)} data")
    for title, field in (("timer", "timer"), ("L2", "l2"), ("regime", "regime")):
        values = sorted({getattr(r.measurement, field) for r in run.results if r.measurement})
        parts += [f"{title} {words.clean('/'.join(values))}"] if values else []
    parts.append(words.clean(run.started_at.replace("T", " ").replace("+00:00", " UTC")))
    return parts


def _what_holds_back(run: Run, details: bool) -> str:
    asked = [words.clean(precision) for precision in arms_of(run).asked]
    return f"What holds {'each' if details else words.listed(asked)} back"


def _verdict(run: Run) -> list[Text]:
    return [
        Text("  " + words.clean(sentence)) if sentence.startswith(" ")
        else Text(words.clean(sentence), "bold")
        for sentence in verdict(run)
    ]  # fmt: skip


def _section(
    console: Console, lines: Sequence[Text], width: int, title: str = "", blank: bool = True
) -> None:
    """Lines under a title, and an empty line after them; nothing when there are none."""
    if not lines:
        return
    for line in [*([Text(title, "bold underline")] if title else []), *lines]:
        console.print(line, width=width, overflow="fold")
    if blank:
        console.print()
