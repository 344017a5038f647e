"""The screen of a run: a pure function of the run, so that `show FILE` prints it again."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from kernels.precision import PRECISIONS
from kernels.tune import HOW, Choice
from microbench import fmt
from microbench.report.payoff_map import is_map, map_tables, map_verdict
from microbench.report.report import report_of
from microbench.report.run_table import (
    backends_table,
    is_long,
    layers_summary,
    layers_table,
    rivals_table,
    run_table,
    settings_table,
    wide_table,
)
from microbench.report.screen import print_report, prose_width
from microbench.report.table import screen
from microbench.results.kinds import reports
from microbench.results.types import RUINED_PCT, Ceiling, Result, Run, Warning
from microbench.verdict import (
    arms_of,
    groups_of,
    load_warnings,
    rate_unit,
    representative,
    states_of,
    verdict,
)

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
    if new := report_of(run):
        print_report(new, console, verbose=details)
        return
    width = console.width
    _section(console, header(run, details))
    _section(console, machine(run), "The machine was busy")
    if not run.entries:
        _section(console, [Text("No case was measured."), *peaks(run)])
    if run.results and is_map(run):
        _section(console, [*map_tables(run, width), *missing_reasons(run)])
        _section(console, [Text(line, "bold") for line in map_verdict(run)], "In short")
        _section(console, ceilings(run), blank=False)
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
    read_by = legend(run, left_out, ratios=run.network is None)
    _section(console, [*lines, *read_by])
    _section(console, reasons(cut), "Full reasons")
    if not brief:
        of = "each case" if details else fmt.listed([*map(fmt.clean, arms_of(run).asked)])
        _section(console, whys(run, details), f"What limits {of}")
    if run.network:
        _section(console, layers_summary(run, run.network), "In short")
    else:
        _section(console, sentences(_verdict(run, brief)), "In short")
    _section(console, warnings(run), "Warnings")
    _section(console, ceilings(run), blank=False)


def _brief(run: Run, width: int) -> tuple[list[Text], str, list[Result]]:
    """A row per setting in place of a row per problem; then the back ends, where there are many."""
    found = screen(settings_table(run), width)
    many = f"{fmt.count(len(groups_of(run)), 'size')}, {fmt.count(len(run.results), 'result')}"
    more = Text(f"{many}; --verbose shows all. faster, slower: by more than 2 %", "dim")
    vendor, rivals = backends_table(run), rivals_table(run)
    beside = [Text(), *screen(vendor, width).lines] if vendor.rows else []
    beside += [Text(), *screen(rivals, width).lines] if rivals.rows else []
    lines = [*found.lines, more, *beside, *missing_reasons(run)]
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
        return [*layers.lines, *missing_reasons(run)], layers.left_out_note(width), []
    if any(result.case.op == "conv" for result in run.results):
        wide = screen(wide_table(run), width)
        return [*wide.lines, *missing_reasons(run)], wide.left_out_note(width), []
    found = screen(run_table(run), width)
    return found.lines, found.left_out_note(width), found.cut


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


# ---------------------------------------------------------------- notes


MOST_WHYS = 8
MOST_REASONS = 3

Found = tuple[Warning, str]  # and the case it is about, in words


def legend(run: Run, left_out: str, *, ratios: bool = True) -> list[Text]:
    """How to read the table, and which columns are left out.

    `ratios`: whether it has intervals and errors.
    """
    arms = arms_of(run)
    parts: list[str] = []
    if ratios and any(r.measurement for r in run.results):
        parts.append("±: larger half of the 95 % interval")
    if ratios and arms.baselines:
        parts.append("~1: no difference seen; below 1: slower")
    if ratios and any(ratio.ci95 is None for r in run.results for ratio in r.speedup.values()):
        parts.append("±?: too few rounds")
    if any(r.ruined_pct or any(x.ruined_pct for x in r.speedup.values()) for r in run.results):
        parts.append(f"{fmt.UNCERTAIN}: beyond ±{RUINED_PCT:.0f} %, too uncertain for a verdict")
    lines = [Text("; ".join(parts), "dim")] if parts else []
    if ratios and any(r.total_error is not None for r in run.results):
        lines.append(Text("rel. error: against float64, including input rounding", "dim"))
    present = dict.fromkeys(r.case.precision_name for r in run.results)
    titles = [f"{p} = {PRECISIONS[p].title}" for p in present if p in PRECISIONS]
    if titles:
        lines.append(Text("; ".join(titles), "dim"))
    if left_out:
        lines.append(Text(left_out, "dim"))
    chosen = choices(run)
    return [*lines, Text(chosen, "dim")] if chosen else lines


def choices(run: Run) -> str:
    """How the configurations of our kernels were chosen: "Triton configurations:
    tuned: 1024; quick-tuned over 6 candidates: 1048, 1120". "" where no result has one.
    """
    found: dict[Choice, dict[str, None]] = {}
    for result in run.results:
        if result.choice:
            found.setdefault(result.choice, {})[fmt.problem(result.case)] = None
    kinds = sorted(found, key=lambda choice: HOW.index(choice.how))
    said = [f"{_chosen(choice)}: {fmt.listed(list(found[choice]))}" for choice in kinds]
    return f"Triton configurations: {'; '.join(said)}" if said else ""


def _chosen(choice: Choice) -> str:
    """ "quick-tuned over 6 candidates"; "tuned" where none were timed."""
    count = choice.candidates
    return choice.how + (f" over {fmt.count(count, 'candidate')}" if count else "")


def reasons(cut: Sequence[Result]) -> list[Text]:
    """The whole reason of results whose row had no room for it, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for result in cut:
        by_reason.setdefault(fmt.clean(result.reason or ""), []).append(fmt.name(result.case))
    return [_item(fmt.listed(names), reason) for reason, names in by_reason.items()]


def missing_reasons(run: Run) -> list[Text]:
    """Why results are missing: each reason once, with the number of results."""
    seen: dict[str, list[str]] = {}
    for result in run.results:
        if result.measurement is None:
            key = f"{result.status}: {fmt.clean(result.reason or 'no reason given')}"
            seen.setdefault(key, []).append(fmt.name(result.case))
    lines = [
        Text(f"{reason} [{fmt.listed(names, most=2)}]", "dim")
        for reason, names in list(seen.items())[:MOST_REASONS]
    ]
    if len(seen) > MOST_REASONS:
        lines.append(Text(f"and {len(seen) - MOST_REASONS} more reasons (show --csv)", "dim"))
    return lines


def whys(run: Run, details: bool) -> list[Text]:
    """Why results are not faster: one per size, where arithmetic is not the bottleneck.

    Every result with `details`.
    """
    asked = arms_of(run).asked
    if details:
        chosen = [r for r in run.results if r.why and not r.ruined_pct]
    else:
        best = [representative(group, asked) for group in groups_of(run)]
        chosen = [
            r for r in best
            if r and r.why and not r.ruined_pct and not (r.bound or "").startswith("compute")
        ]  # fmt: skip
    lines = [_item(fmt.name(r.case), fmt.clean(r.why)) for r in chosen]
    if details or len(lines) <= MOST_WHYS:
        return lines
    more = fmt.count(len(lines) - MOST_WHYS, "more result")
    return [*lines[:MOST_WHYS], Text(f"  and {more} (--verbose shows all)", "dim")]


def warnings(run: Run) -> list[Text]:
    """The warnings of the results, see `listed_once`."""
    return listed_once([(warning, fmt.name(r.case)) for r in run.results for warning in r.warnings])


def machine(run: Run) -> list[Text]:
    """Warnings about other programs on the CPU or the GPU while the run was measured."""
    return listed_once([(warning, "") for warning in load_warnings(run.settings)])


def listed_once(found: Sequence[Found]) -> list[Text]:
    """Each warning once, with its cases; those of one cause and remedy together."""
    seen: dict[tuple[str, str], list[Found]] = {}
    for warning, case in found:
        seen.setdefault((warning.cause, warning.remedy), []).append((warning, case))
    lines: list[Text] = []
    for (cause, remedy), alike in seen.items():
        symptoms = list(dict.fromkeys(fmt.clean(warning.symptom) for warning, _ in alike))
        cases = list(dict.fromkeys(case for _, case in alike if case))
        more = f" (and {len(symptoms) - 1} similar)" if len(symptoms) > 1 else ""
        line = Text("! ", "bold yellow").append(symptoms[0] + more, "bold not yellow")
        if cases:
            line.append(f" [{fmt.listed(cases, most=2)}]", "not bold not yellow dim")
        line.append(f"\n  cause: {fmt.clean(cause)}", "not bold not yellow")
        line.append(f"\n  try:   {fmt.clean(remedy)}", "not bold not yellow")
        lines.append(line)
    return lines


def sentences(said: Sequence[str]) -> list[Text]:
    """A verdict; details of a sentence, which begin with a space, are not bold."""
    return [
        Text("  " + fmt.clean(line)) if line.startswith(" ") else Text(fmt.clean(line), "bold")
        for line in said
    ]


def ceilings(run: Run) -> list[Text]:
    """Which peak "% of ceiling" means, and its source."""
    precisions = list(dict.fromkeys(r.case.precision_name for r in run.results))
    unit = rate_unit(run.results)
    peaks = [c for p in precisions if (c := run.ceiling("dense peak", "datasheet", p))]
    large = [c for p in precisions if (c := run.ceiling("large GEMM", "measured", p))]
    lines: list[Text] = []
    if peaks:
        address = " ".join(dict.fromkeys(fmt.clean(c.reference) for c in peaks))
        lines.append(Text(f"ceiling: dense datasheet peak, {_rates(peaks, unit)}", "dim"))
        lines.append(Text(f"         {address}", "dim"))
    elif large:
        text = f"ceiling: largest GEMMs measured, {_rates(large, unit)}"
        lines.append(Text(text + "; no datasheet value known", "dim"))
    reached = [c for p in precisions if (c := run.ceiling("instruction", "measured", p))]
    if reached:
        said = [
            f"{fmt.clean(c.precision)} {c.flop_per_clock:,.0f} "
            f"({fmt.clean(c.reference.partition(',')[0])})"  # "wgmma" of "wgmma, m64n256k16, ..."
            for c in reached
            if c.flop_per_clock
        ]
        lines.append(
            Text(f"instructions, FLOP per clock and SM: {', '.join(said)} measured", "dim")
        )
    memory = run.ceiling("memory", "measured")
    if memory and memory.byte_per_s:
        lines.append(Text(f"memory: {fmt.bandwidth(memory.byte_per_s)} measured", "dim"))
    return lines


def peaks(run: Run) -> list[Text]:
    """What bounds the device, as measured: all that a run without a case says."""
    return [
        Text(f"{fmt.clean(' '.join(filter(None, (one.name, one.precision))))}: {_peak(one)}", "dim")
        for one in run.ceilings
        if one.source == "measured"
    ]


def _peak(one: Ceiling) -> str:
    if one.flop_per_s:
        unit = fmt.rate_unit([one.flop_per_s], integers=one.precision == "int8")
        return f"{unit.text(one.flop_per_s)} {unit.name}"
    return fmt.bandwidth(one.byte_per_s) if one.byte_per_s else fmt.duration(one.seconds or 0.0)


def _rates(found: Sequence[Ceiling], unit: fmt.Unit) -> str:
    rates = ((fmt.clean(c.precision), c.flop_per_s) for c in found if c.flop_per_s)
    return ", ".join(f"{name} {unit.text(rate)}" for name, rate in rates) + f" {unit.name}"


def _item(name: str, text: str) -> Text:
    return Text(f"  {name}: ", "bold").append(text, "not bold")
