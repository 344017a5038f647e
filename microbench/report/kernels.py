"""What a run of kernels says: one precision against another, and kernels against the libraries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

from kernels import is_library
from kernels.op import OWN
from microbench import fmt
from microbench.report.cases import (
    conditions,
    no_verdict,
    of_every_case,
    of_peak,
    raw,
    row_of,
    warnings_of,
    with_signs,
)
from microbench.report.parts import (
    ANSWER,
    DO,
    DOUBT,
    VERBOSE,
    WHY,
    Column,
    Line,
    Part,
    Report,
    Row,
    doubts,
    warnings_part,
)
from microbench.results.types import Ceiling, Result, Run
from microbench.verdict import (
    RUINED,
    Payoff,
    Summary,
    arms_of,
    groups_of,
    is_rival,
    library_or_best,
    payoffs,
    rate_unit,
    representative,
    subject_of,
    summaries,
)

MOST_ROWS = 12  # of the table of sizes; with more, it has a row a setting
MOST_SETTINGS = 8
MOST_PRECISIONS = 4  # lines of the answer
OP = {"gemm": "GEMM", "conv": "convolution"}


def report(run: Run) -> Report | None:
    """The report of the run's kernels."""
    if not run.results:
        return Report("", [Line(ANSWER, "No case was measured"), *_peaks(run)], raw=[raw(run)])
    found = warnings_of(run)
    answer = [*_answer(run), *_doubts(run), *doubts(found, len(run.results))]
    parts = [*_tables(run), *of_every_case(run), warnings_part(found)]
    return Report("", answer, parts, conditions(run), raw=[raw(run)])


def _peaks(run: Run) -> list[Line]:
    """What bounds the device, as measured: all that a run without a case says."""

    def rate(one: Ceiling) -> str:
        if one.flop_per_s:
            unit = fmt.rate_unit([one.flop_per_s], integers=one.precision == "int8")
            return f"{unit.text(one.flop_per_s)} {unit.name}"
        return fmt.bandwidth(one.byte_per_s) if one.byte_per_s else fmt.duration(one.seconds or 0.0)

    measured = [one for one in run.ceilings if one.source == "measured"]
    said = [f"{' '.join(filter(None, (one.name, one.precision)))} {rate(one)}" for one in measured]
    return [Line(ANSWER, f"measured peaks: {', '.join(said)}")] if said else []


# ---------------------------------------------------------------- the answer


def _answer(run: Run) -> list[Line]:
    own = [result for result in run.results if OWN in result.case.backend]
    beside = [found for found in summaries(run) if OWN in found.backend or not own]
    shown = own or [
        result
        for group in groups_of(run)
        if (result := representative(group, arms_of(run).asked[:1]))
    ]
    lines = [*_own_missing(own), *_beside(beside)] if own else [*_gains(run), *_beside(beside)]
    if lines:
        context = f" ({', '.join(_context(run, shown))})"
        lines[0] = replace(lines[0], text=lines[0].text + context)
    return [*lines, *_why(run, shown), *([] if own else _do(run))]


def _context(run: Run, shown: Sequence[Result]) -> list[str]:
    """What was measured, in a few words: device, sizes, library."""
    measured = sorted((r for r in shown if r.measurement), key=lambda r: r.flops)
    device = str(run.device.get("name") or "unknown device")
    if not measured:
        return [device]
    first, last = (fmt.size(result.case) for result in (measured[0], measured[-1]))
    sizes = first if first == last else f"{first} to {last}"
    what = f"{OP.get(measured[0].case.op, measured[0].case.op)} {sizes}"
    backends = dict.fromkeys(r.case.backend for r in measured if is_library(r.case))
    return [device, what, *backends]


def _own_missing(own: Sequence[Result]) -> list[Line]:
    """The kernels of the user's that have no figures: how many cases, and why."""
    lines: list[Line] = []
    for backend in dict.fromkeys(result.case.backend for result in own):
        every = [result for result in own if result.case.backend == backend]
        for status, words in (("failed", "FAILED"), ("skipped", "was not measured")):
            lost = [result for result in every if result.status == status]
            if lost:
                (reason, _), *others = Counter(r.reason for r in lost).most_common()
                more = f" and {fmt.count(len(others), 'more reason')}" if others else ""
                of = f"{len(lost)} of {fmt.count(len(every), 'case')}"
                text = f"{backend} {words} in {of}: {reason or 'no reason given'}{more}"
                lines.append(Line(ANSWER, text))
    return lines


def _beside(found: Sequence[Summary]) -> list[Line]:
    """Our kernels, or the user's, against the better library: a line a back end."""
    lines: list[Line] = []
    unclear: dict[str, float] = {}
    for backend in dict.fromkeys(one.backend for one in found):
        every = [one for one in found if one.backend == backend]
        unclear |= {f"{backend} in {one.precision}": one.ruined_pct
                    for one in every if one.ruined_pct}  # fmt: skip
        clear = [one for one in every if not one.ruined_pct]
        if clear:
            lines.append(Line(ANSWER, _means(clear)))
    return lines + no_verdict(unclear)


def _means(found: Sequence[Summary]) -> str:
    """ "triton is 0.97 times as fast as the better library in fp16, 1.05 in int8 (geometric mean of
    8 sizes; lowest 0.82 at 1536 in bf16, highest 1.19 at 512 in int8)"."""
    first, *others = found
    if not others and len(first.rows) == 1:
        row = first.rows[0]
        return (f"{first.backend} is {fmt.ratio(row.ratio)} times as fast as {row.library} in "
                f"{first.precision} at {row.result.case.problem.size}")  # fmt: skip
    against = {one.against for one in found}
    name = against.pop() if len(against) == 1 else "the better library"
    means = ", ".join(f"{one.mean:.2f} in {one.precision}" for one in others)
    counts = sorted({len(one.rows) for one in found})
    over = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
    least = min((one.least for one in found), key=lambda row: row.ratio.ratio)
    most = max((one.most for one in found), key=lambda row: row.ratio.ratio)
    ends = [f"{row.ratio.ratio:.2f} at {row.result.case.problem.size}"
            + f" in {row.result.case.precision_name}" * bool(others)
            for row in (least, most)]  # fmt: skip
    return (
        f"{first.backend} is {first.mean:.2f} times as fast as {name} in {first.precision}"
        f"{', ' * bool(means)}{means} (geometric mean of {over} sizes; lowest {ends[0]}, "
        f"highest {ends[1]})"
    )


def _gains(run: Run) -> list[Line]:
    """Each precision asked for against the baselines, TF32 first: the range over all sizes."""
    lines: list[Line] = []
    unclear: dict[str, float] = {}
    asked = arms_of(run).asked
    for name in asked[:MOST_PRECISIONS]:
        results = [r for r in run.results if r.case.precision_name == name]
        timed = library_or_best(results)
        if not timed:
            reason = next((r.reason for r in results if r.reason), "no reason given")
            lines.append(Line(ANSWER, f"{name} was not measured: {reason}"))
            continue
        compared = payoffs(run, name)
        known: list[str] = []
        for baseline in reversed(arms_of(run).baselines):
            some = [one for one in compared if one.baseline == baseline]
            unclear |= {" ".join(filter(None, (one.subject, name, "against", baseline))):
                        max(one.uncertain.values()) for one in some if one.uncertain}  # fmt: skip
            some = [one for one in some if not one.uncertain]
            if some and all(one.gains[-1] == "unknown" for one in some):
                lines.append(Line(ANSWER, f"Unknown whether {name} is faster than {baseline}: only "
                                          f"one round was measured ({_range(some)} times as fast); "
                                          "raise --budget"))  # fmt: skip
            elif some:
                known.append(f"{_range(some)} times as fast as {baseline}{_where(some)}")
        if known:
            lines.append(Line(ANSWER, f"{name} is {', '.join(known)}"))
        elif not compared:
            lines += _highest(name, timed)
    if len(asked) > MOST_PRECISIONS:
        lines.append(Line(ANSWER, f"and {len(asked) - MOST_PRECISIONS} more precisions"))
    return lines + no_verdict(unclear)


def _highest(name: str, timed: Sequence[Result]) -> list[Line]:
    """The highest rate, of a precision that was compared with no other."""
    best = max(timed, key=lambda r: (not r.ruined_pct, r.flop_per_s or 0.0))
    if best.ruined_pct:
        return no_verdict({name: best.ruined_pct})
    unit = rate_unit([best])
    at = f"{best.case.problem.size} {best.case.problem.layout}"
    rate = f"{unit.text(best.flop_per_s or 0.0)} {unit.name}"
    return [Line(ANSWER, f"{name} reaches {rate} at most, at {at} by {best.case.backend}")]


def _range(found: Sequence[Payoff]) -> str:
    """ "1.41 to 1.90" over all sizes that are known well enough; "1.53 ±0.12" of one."""
    known = [ratio for one in found for (_, ratio), gain in zip(one.rows, one.gains, strict=True)
             if gain != RUINED]  # fmt: skip
    if len(known) == 1:
        return fmt.ratio(known[0])
    ratios = [ratio.ratio for ratio in known]
    return " to ".join(dict.fromkeys(map(fmt.times, (min(ratios), max(ratios)))))


def _where(found: Sequence[Payoff]) -> str:
    """ " (faster from 64 up)", "" where it is faster at every size."""
    if all(one.start == 0 for one in found):
        return ""
    never = [one for one in found if not one.from_start]
    if len(found) == 1 and never:
        rows = zip(found[0].rows, found[0].gains, strict=True)
        sizes = [fmt.size(result.case) for (result, _), gain in rows if gain == "faster"]
        return f" (faster at {fmt.listed(sizes) if sizes else 'no size'})"
    some = sorted((one for one in found if one.from_start), key=lambda one: _first(one).flops)
    if not some:
        return f" (faster at no size of {len(found)} settings)"
    first, last = ({fmt.size(_first(one).case): one.subject for one in (some[0], some[-1])}
                   .items()) if len(some) > 1 and _size(some[0]) != _size(some[-1]) else (
                   (_size(some[0]), ""), (_size(some[0]), ""))  # fmt: skip
    place = f"{first[0]} up" if first == last else (
        f"{first[0]} up in {first[1]} to {last[0]} in {last[1]}"
    )  # fmt: skip
    return f" (faster from {place}{f'; never in {len(never)} settings' * bool(never)})"
