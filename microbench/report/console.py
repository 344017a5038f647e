"""The screen of a run: a pure function of the run, so that `show FILE` prints it again."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from microbench import fmt
from microbench.report import notes
from microbench.report.arms import arms_of, groups_of, states_of
from microbench.report.layers_table import layers_summary, layers_table
from microbench.report.payoff_map import is_map, map_tables, map_verdict
from microbench.report.run_table import run_table, wide_table
from microbench.report.screen import prose_width
from microbench.report.summary_table import backends_table, is_long, rivals_table, settings_table
from microbench.report.table import screen
from microbench.results.kinds import reports
from microbench.results.types import Result, Run
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
MOST_SENTENCES = 13  # of a summary's verdict: its table says the rest


def print_run(run: Run, console: Console, *, details: bool = False) -> None:
    """Print header, table, verdict and warnings; kernels before trainings.

    `details` adds the reason for every result.
    """
    width = console.width
    _section(console, header(run, details))
    _section(console, notes.machine(run), "The machine was busy")
    if not run.entries:
        _section(console, [Text("No case was measured."), *notes.peaks(run)])
    if run.results and is_map(run):
        _print_map(run, console, width)
    elif run.results:
        _print_kernels(run, console, width, details)
    for report in reports(run):
        for title, lines in report.sections(run, width, details=details):
            _section(console, lines, title)
    of_data = [Text(fmt.clean(note)) for note in run.settings.get("notes", ())]
    _section(console, of_data, "Notes on the data")


def _print_kernels(run: Run, console: Console, width: int, details: bool) -> None:
    brief = not details and is_long(run)
    lines, left_out, cut = _brief(run, width) if brief else _table(run, width)
    legend = notes.legend(run, left_out, ratios=run.network is None)
    _section(console, [*lines, *legend])
    _section(console, notes.reasons(cut), "Full reasons")
    if not brief:
        of = "each case" if details else fmt.listed([*map(fmt.clean, arms_of(run).asked)])
        _section(console, notes.whys(run, details), f"What limits {of}")
    if run.network:
        _section(console, layers_summary(run, run.network), "In short")
    else:
        _section(console, notes.sentences(_verdict(run, brief)), "In short")
    _section(console, notes.warnings(run), "Warnings")
    _section(console, notes.ceilings(run), blank=False)


def _brief(run: Run, width: int) -> tuple[list[Text], str, list[Result]]:
    """A row per setting in place of a row per problem; then the back ends, where there are many."""
    found = screen(settings_table(run), width)
    many = f"{fmt.count(len(groups_of(run)), 'size')}, {fmt.count(len(run.results), 'result')}"
    more = Text(f"{many}; --verbose shows all. faster, slower: by more than 2 %", "dim")
    vendor, rivals = backends_table(run), rivals_table(run)
    beside = [Text(), *screen(vendor, width).lines] if vendor.rows else []
    beside += [Text(), *screen(rivals, width).lines] if rivals.rows else []
    lines = [*found.lines, more, *beside, *notes.missing_reasons(run)]
    return lines, found.left_out_note(width), []


def _verdict(run: Run, brief: bool) -> list[str]:
    """Its sentences; in brief the first ones, without details, which begin with a space."""
    said = verdict(run, beside=not brief)  # in brief, `rivals_table` has it
    if not brief:
        return said
    short = [line for line in said if not line.startswith(" ")]
    more = len(short) - MOST_SENTENCES
    counted = [f"  and {more} more (--verbose shows all)"] if more > 0 else []
    return [*short[:MOST_SENTENCES], *counted]


def _table(run: Run, width: int) -> tuple[list[Text], str, list[Result]]:
    """(lines, columns left out to fit the width, results whose reason was cut)."""
    if run.network:
        layers = screen(layers_table(run, run.network), width)
        return [*layers.lines, *notes.missing_reasons(run)], layers.left_out_note(width), []
    if any(result.case.op == "conv" for result in run.results):
        wide = screen(wide_table(run), width)
        return [*wide.lines, *notes.missing_reasons(run)], wide.left_out_note(width), []
    found = screen(run_table(run), width)
    return found.lines, found.left_out_note(width), found.cut


def _print_map(run: Run, console: Console, width: int) -> None:
    _section(console, [*map_tables(run, width), *notes.missing_reasons(run)])
    _section(console, [Text(line, "bold") for line in map_verdict(run)], "In short")
    _section(console, notes.ceilings(run), blank=False)


def header(run: Run, details: bool = False) -> list[Text]:
    """The device, the software and the conditions."""
    shown = SOFTWARE if details else SOFTWARE[:3]
    software = [
        f"{title} {fmt.clean(run.software[name])}"
        for name, title in shown
        if run.software.get(name)
    ]
    driver, limit = run.device.get("driver"), run.device.get("power_limit_w")
    machine = [
        *([f"driver {fmt.clean(driver)}"] if driver else []),
        *software,
        *([f"power limit {limit:.0f} W"] if isinstance(limit, int | float) else []),
    ]
    lines = [
        Text(fmt.clean(run.device.get("name", "unknown device")), "bold")
        .append("".join(f", {part}" for part in machine), "not bold"),
        Text(", ".join(_how(run)), "dim"),
    ]  # fmt: skip
    if run.finished_at is None:
        lines.append(Text("unfinished run: continue it with --resume FILE", "bold"))
    if details:
        lines.append(Text(f"$ {fmt.clean(' '.join(run.command))}", "dim"))
    return lines


def _how(run: Run) -> list[str]:
    """The conditions that all results share, and when."""
    parts: list[str] = []
    parts += sorted({fmt.clean(r.case.op) for r in run.results})
    parts += _shared_settings(run)
    parts += [part for report in reports(run) for part in report.conditions(run)]
    if len({r.case.data for r in run.results}) == 1:
        parts.append(f"{fmt.clean(run.results[0].case.data)} data")
    parts += states_of(run.results)
    parts.append(fmt.clean(run.started_at.replace("T", " ").replace("+00:00", " UTC")))
    return parts


def _shared_settings(run: Run) -> list[str]:
    """What every problem of the run has in common, by name."""
    if len({r.case.op for r in run.results}) != 1 or run.network:
        return []
    settings = run.results[0].case.problem.setting
    return [fmt.clean(f"{name} {value}") for name, value in settings.items()
            if name not in run.varying]  # fmt: skip


def _section(console: Console, lines: Sequence[Text], title: str = "", blank: bool = True) -> None:
    """Lines under a title, and an empty line after them; nothing when there are none.

    Lines of tables may be as wide as the console, others are folded at WIDTH.
    """
    if not lines:
        return
    width = console.width
    titled = [*([Text(title, "bold underline")] if title else []), *lines]
    parts = [
        part
        for line in titled
        for part in line.wrap(
            console, width if line.no_wrap else prose_width(console), overflow="fold"
        )
    ]
    for part in parts:
        part.rstrip()
    console.print(*parts, sep="\n", width=width)
    if blank:
        console.print()
