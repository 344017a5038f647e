"""The parts under the table: reasons, explanations, warnings, sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rich.text import Text

from kernels.precision import PRECISIONS
from kernels.tune import HOW, Choice
from microbench import fmt
from microbench.device.load import AT_START, COMPUTING, HELD, LATER, LOAD, LOADED, PROCESSES, SHARE
from microbench.report.arms import arms_of, groups_of, rate_unit, representative
from microbench.results.types import Ceiling, Result, Run, Warning
from microbench.results.values import RUINED_PCT

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
    said = [f"{_how(choice)}: {fmt.listed(list(found[choice]))}" for choice in kinds]
    return f"Triton configurations: {'; '.join(said)}" if said else ""


def _how(choice: Choice) -> str:
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


def load_warnings(settings: Mapping[str, Any]) -> list[Warning]:
    """Warnings about other programs, from a run's settings; see `microbench.device.load`."""
    load = settings.get(LOAD)
    if not isinstance(load, dict):
        return []
    facts = cast("dict[str, Any]", load)
    share, average, processes = (facts.get(name) or 0 for name in (SHARE, AT_START, PROCESSES))
    found: list[Warning] = []
    if share > LOADED:
        symptom = f"other programs used {100 * share:.0f} % of the CPU during the run"
        found.append(Warning(symptom, *_BUSY_CPU))
    elif average > LOADED:
        symptom = f"the load average was {average:.2f} per core before the run"
        found.append(Warning(symptom, *_BUSY_CPU))
    if processes:
        held = (facts.get(HELD) or 0) / 1e9
        symptom = f"{fmt.count(processes, 'other process', 'other processes')} held {held:.1f} GB "
        found.append(Warning(symptom + "on the GPU before the run", *_BUSY_GPU))
    if busy_pct := facts.get(COMPUTING):
        symptom = f"another program computed on the GPU before the run ({busy_pct} % of the time)"
        found.append(Warning(symptom, *_BUSY_GPU))
    if later := facts.get(LATER):
        came = fmt.count(later, "other process was", "other processes were")
        found.append(Warning(f"{came} on the GPU at the end of the run", *_BUSY_GPU))
    return found


_BUSY_CPU = (
    "other programs delay CPU launches and data loading, so times are longer and vary",
    "stop other programs and measure again",
)
_BUSY_GPU = (
    "other processes may take the GPU's time, memory bandwidth and power",
    "stop them, or choose another GPU with --device cuda:N",
)


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
        said = [f"{fmt.clean(c.precision)} {c.flop_per_clock:,.0f} ({_instruction(c)})"
                for c in reached if c.flop_per_clock]  # fmt: skip
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


def _instruction(ceiling: Ceiling) -> str:
    """ "wgmma" of "wgmma, m64n256k16, ..."."""
    return fmt.clean(ceiling.reference.partition(",")[0])


def _rates(found: Sequence[Ceiling], unit: fmt.Unit) -> str:
    rates = ((fmt.clean(c.precision), c.flop_per_s) for c in found if c.flop_per_s)
    return ", ".join(f"{name} {unit.text(rate)}" for name, rate in rates) + f" {unit.name}"


def _item(name: str, text: str) -> Text:
    return Text(f"  {name}: ", "bold").append(text, "not bold")
