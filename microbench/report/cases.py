"""What every report of kernels has: raw values, the table of all results, what limits each, and
how to read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kernels import OPS
from kernels.op import OWN
from kernels.precision import PRECISIONS
from kernels.tune import HOW, Choice
from microbench import fmt
from microbench.errors import UserError
from microbench.report import charts
from microbench.report.parts import (
    VERBOSE,
    Column,
    Line,
    Part,
    Raw,
    Report,
    Row,
    Value,
    cells,
    doubts,
    missing,
    warnings_part,
)
from microbench.results.types import RUINED_PCT, Json, Ratio, Result, Run
from microbench.roofline.explain import OVER_PEAK_PCT, conversion_share
from microbench.verdict import (
    Summary,
    arms_of,
    baselines_of,
    groups_of,
    libraries_beside_own,
    limits_of,
    rate_unit,
    representative,
    states_of,
    subject_of,
)

SHOWN_CONVERSION = 0.02
MIXED = "mixed"
AT_LARGE = ("power", "compute", MIXED)  # bottlenecks that a large size shows best
JOIN = "; "  # between the values of a list in CSV
DIMS = ("m", "n", "k", "c", "h", "w", "r", "s", "stride", "padding", "dilation", "groups", "pass")
# Names that have their places in CSV; new ones follow them.
CSV_ORDER = (
    "op", *DIMS, "layout", "data", "precision", "backend", "status", "reason",
    "median_s", "ci95_low_s", "ci95_high_s", "samples", "flops", "min_bytes", "tflops", "gb_per_s",
    "ceiling_pct",
    "rel_error", "bound", "why", "sm_clock_mhz", "power_w", "energy_j", "temperature_c", "throttle",
    "tensor_core", "variant", "kernels", "timer", "l2", "regime",
    *(f"speedup_{name}{end}" for name in OPS["gemm"].baselines for end in ("", "_low", "_high")),
)  # fmt: skip
NEW = ("layout_change_share", "total_error", "tuned", "choice", "candidates")
OF_RESULT = ("status", "reason", "ceiling_pct", "total_error", "bound", "rel_error", "why",
             "tensor_core", "variant", "tuned")  # fmt: skip
OF_MEASUREMENT = ("median_s", "sm_clock_mhz", "power_w", "energy_j", "temperature_c", "timer", "l2",
                  "regime")  # fmt: skip


def made(
    run: Run, answer: Sequence[Line], tables: Sequence[Part], chart: Callable[[], Any] | None = None
) -> Report:
    """The report with this answer and these tables, and what all reports of kernels have.

    Warnings that ask for nothing are no doubts; of the user's own kernels theirs alone are.
    """
    judged = [r for r in run.results if OWN in r.case.backend] or run.results
    found = [(warning, fmt.name(r.case)) for r in run.results for warning in r.warnings]
    names = {fmt.name(result.case) for result in judged}
    asking = [(warning, name) for warning, name in found
              if name in names and not warning.remedy.startswith("none needed")]  # fmt: skip
    limits = [f"{fmt.name(r.case)}: {r.why}" for r in run.results if r.why and not r.ruined_pct]
    parts = [
        *map(_with_signs, tables),
        _every_result(run),
        Part("What limits each case", below=limits, level=VERBOSE),
        Part("How to read it", below=_reading(run), level=VERBOSE),
        warnings_part(found),
    ]
    lines = [*answer, *doubts(asking, len(judged), most=1)]
    return Report("", lines, parts, conditions(run), raw=[_raw(run)],
                  chart=chart or partial(rate_chart, run))  # fmt: skip


# ---------------------------------------------------------------- CSV


def _raw(run: Run) -> Raw:
    """A row a result, in the order measured."""
    libraries = libraries_beside_own(run)
    others = [*baselines_of(run), *libraries]
    beside = [f"speedup_{name}{end}" for name in others for end in ("", "_low", "_high")]
    other = [name for result in run.results for name in result.case.problem.dims]
    names = list(dict.fromkeys([*CSV_ORDER, *beside, *NEW, *other]))
    return names, [_raw_row(result, libraries) for result in run.results]


def _raw_row(result: Result, libraries: Sequence[str]) -> Mapping[str, Value]:
    case, measured, choice = result.case, result.measurement, result.choice
    row: dict[str, Value] = {
        "op": case.op,
        **{**dict.fromkeys(DIMS), **case.problem.dims},
        "layout": case.problem.layout,
        "data": case.data,
        "precision": case.precision_name,
        "backend": case.backend,
        **{name: getattr(result, name) for name in OF_RESULT},
        "kernels": JOIN.join(result.kernels),
        "layout_change_share": conversion_share(result) if result.kernels_s else None,
    }
    if choice:
        row |= {"choice": choice.how, "candidates": choice.candidates}
    if measured:
        row |= {name: getattr(measured, name) for name in OF_MEASUREMENT}
        row |= {
            "samples": len(measured.times_s),
            "flops": result.flops,
            "min_bytes": result.min_bytes,
            "tflops": (result.flop_per_s or 0.0) / 1e12,
            "gb_per_s": (result.byte_per_s or 0.0) / 1e9,
            "throttle": JOIN.join(measured.throttle),
        }
        row["ci95_low_s"], row["ci95_high_s"] = measured.ci95_s or (None, None)
    ratios = {name: result.speedup.get(name) for name in OPS[case.op].baselines}
    ratios |= {name: result.vs_backend.get(name) for name in libraries}
    for name, ratio in ratios.items():
        if ratio:
            low, high = ratio.ci95 or (None, None)
            row[f"speedup_{name}"] = ratio.ratio
            row |= {f"speedup_{name}_low": low, f"speedup_{name}_high": high}
    return row


# ---------------------------------------------------------------- every result


def _every_result(run: Run) -> Part:
    unit, libraries = rate_unit(run.results), libraries_beside_own(run)
    columns = [
        Column("size", "case", fmt.problem),
        Column("precision", "case.precision_name"),
        Column("back end", "case.backend"),
        Column("time", "median_s", fmt.duration),
        Column("±", "timed", fmt.half_of, 8),
        Column(unit.name, "flop_per_s", unit.text, 3),
        Column("% of peak", "ceiling_pct", of_peak, 6),
        *(Column(f"x {name}", f"speedup.{name}", _exactly, 2) for name in baselines_of(run)),
        *(Column(f"x {name}", f"vs_backend.{name}", _exactly) for name in libraries),
        Column("layout change", "", _conversion, 7),
        Column("rel. error", "total_error", fmt.error, 9),
        Column("bottleneck", "bound", drop=5),
    ]  # fmt: skip
    lacking = [(fmt.name(r.case), f"{_missing(r)}: {r.reason or 'no reason given'}")
               for r in run.results if _missing(r)]  # fmt: skip
    return Part("Every result", columns, rows_of(run.results), missing(lacking), VERBOSE)


def rows_of(results: Iterable[Result]) -> list[Row]:
    """A row each, which says if it was not measured."""
    return [Row(r, _missing(r), "red" if r.status == "failed" else "") for r in results]


def _missing(result: Result) -> str:
    return "" if result.measurement else "FAILED" if result.status == "failed" else "skipped"


def _exactly(ratio: Ratio) -> str:
    """With its interval also where that contains 1; "?" beyond what a verdict bears."""
    return fmt.interval(ratio) + fmt.UNCERTAIN * bool(ratio.ruined_pct)


def _conversion(result: Result) -> str:
    share = conversion_share(result)
    return fmt.per_cent(100 * share) if share >= SHOWN_CONVERSION else ""


def of_peak(pct: float) -> str:
    """A share of a peak; "?" where it is more than there can be."""
    return fmt.per_cent(pct) + fmt.UNCERTAIN * (pct > OVER_PEAK_PCT)


def _with_signs(part: Part) -> Part:
    """The part, and below it what the signs mean that its table has."""
    texts = " ".join(text for line in cells(part).texts for text in line)
    unclear = f"beyond ±{RUINED_PCT:.0f} % or above the peak: no verdict"
    found = [
        ("±?: one round only", "±?" in texts),
        (f"{fmt.NO_DIFFERENCE}: no difference seen", f" {fmt.NO_DIFFERENCE} " in texts),
        (f"{fmt.UNCERTAIN}: {unclear}", fmt.UNCERTAIN in texts.replace("±?", "")),
    ]
    signs = JOIN.join(meaning for meaning, there in found if there)
    return replace(part, below=[*part.below, *filter(None, [signs])])


def rivals(found: Sequence[Summary], which: str) -> Part:
    """Kernels against the better library: a row for each precision and what else is apart."""
    columns = [
        Column("back end", "backend"),
        Column("precision", "precision"),
        Column(which, "which"),
        Column("sizes", "rows", lambda rows: str(len(rows))),
        Column("against", "against", drop=2),
        Column("geometric\nmean", "", _mean),
        Column("least", "least.ratio.ratio", "{:.2f}".format),
        Column("at", "least.result.case", fmt.size),
        Column("most", "most.ratio.ratio", "{:.2f}".format),
    ]
    title = "Times as fast as the better of the libraries measured at each size"
    return Part(title, columns, [Row(one) for one in found])


def _mean(found: Summary) -> str:
    return f"{found.mean:.3f}{fmt.UNCERTAIN * bool(found.ruined_pct)}"


# ---------------------------------------------------------------- how to read it


def conditions(run: Run) -> list[str]:
    """What all results share: what was computed, on which data, and how it was timed."""
    results = run.results
    parts = sorted({result.case.op for result in results})
    if len(parts) == 1 and not run.network:
        setting = results[0].case.problem.setting
        parts += [f"{name} {value}" for name, value in setting.items() if name not in run.varying]
    if len({result.case.data for result in results}) == 1:
        parts.append(f"{results[0].case.data} data")
    return [*parts, *states_of(results)]


def _reading(run: Run) -> list[str]:
    """The signs, the names of precisions, how configurations were chosen, and the peaks."""
    present = list(dict.fromkeys(result.case.precision_name for result in run.results))
    titles = [f"{name} = {PRECISIONS[name].title}" for name in present if name in PRECISIONS]
    lines = [
        "±: larger half of the 95 % interval; x: times as fast as",
        "rel. error: against float64, including input rounding",
        JOIN.join(titles),
        choices(run),
    ]
    unit = rate_unit(run.results)
    for text, kind in (("peak: dense, of the datasheet", ("dense peak", "datasheet")),
                       ("largest GEMM measured", ("large GEMM", "measured"))):  # fmt: skip
        found = [peak for name in present if (peak := run.ceiling(*kind, name))]
        rates = [f"{peak.precision} {unit.text(peak.flop_per_s or 0.0)}" for peak in found]
        address = " ".join(dict.fromkeys(p.reference for p in found if "://" in p.reference))
        if found:
            lines.append(f"{text}: {', '.join(rates)} {unit.name} {address}".rstrip())
    reached = [
        f"{found.precision} {found.flop_per_clock:,.0f} "
        f"({found.reference.partition(',')[0]})"  # "wgmma" of "wgmma, m64n256k16, ..."
        for name in present
        if (found := run.ceiling("instruction", "measured", name)) and found.flop_per_clock
    ]
    if reached:
        lines.append(f"instructions, FLOP per clock and SM: {', '.join(reached)} measured")
    memory = run.ceiling("memory", "measured")
    if memory and memory.byte_per_s:
        lines.append(f"memory: {fmt.bandwidth(memory.byte_per_s)} measured")
    return [line for line in lines if line] if run.results else []


def choices(run: Run) -> str:
    """How the configurations of our kernels were chosen: "Triton configurations:
    tuned: 1024; quick-tuned over 6 candidates: 1048, 1120". "" where no result has one.
    """
    found: dict[Choice, dict[str, None]] = {}
    for result in run.results:
        if result.choice:
            found.setdefault(result.choice, {})[fmt.problem(result.case)] = None
    said: list[str] = []
    for choice in sorted(found, key=lambda choice: HOW.index(choice.how)):
        over = f" over {fmt.count(choice.candidates, 'candidate')}" if choice.candidates else ""
        said.append(f"{choice.how}{over}: {fmt.listed(list(found[choice]))}")
    return f"Triton configurations: {JOIN.join(said)}" if said else ""


# ---------------------------------------------------------------- lines of an answer


def why(run: Run, results: Iterable[Result]) -> list[Line]:
    """The most common bottlenecks, mixed ones last, each with a case that shows it."""
    timed = sorted((r for r in results if r.measurement and not r.ruined_pct), key=_flops)
    found: dict[str, list[Result]] = {}
    for result in timed:
        if result.bound:
            found.setdefault(result.bound, []).append(result)
    several = len({subject_of(result, run) for result in timed}) > 1
    every = list(dict.fromkeys(fmt.size(result.case) for result in timed))
    said: list[str] = []
    for bound, some in sorted(found.items(), key=lambda one: (one[0] == MIXED, -len(one[1])))[:2]:
        sizes = list(dict.fromkeys(fmt.size(result.case) for result in some))
        first = every.index(sizes[0])
        where = f"at {fmt.listed(sizes)}"
        if several:
            where = f"in {len(some)} of {fmt.count(len(timed), 'case')}"
        elif len(sizes) > 1 and every[first : first + len(sizes)] == sizes:
            where = f"at {sizes[0]}..{sizes[-1]}"
        said.append(f"{bound} {where}{_example(some)}")
    return [Line("Why", JOIN.join(said))] if said else []


def _flops(result: Result) -> int:
    return result.flops


def _example(results: Sequence[Result]) -> str:
    """What shows the bottleneck that these share, smallest first: " (256: 3.3 us of 3.8 us)"."""
    if results[0].bound == "layout":
        shares = [100 * conversion_share(result) for result in results]
        ends = dict.fromkeys(f"{share:.0f}" for share in (min(shares), max(shares)))
        return f" ({' to '.join(ends)} % of the time)"
    shows = results[-1] if results[0].bound in AT_LARGE else results[0]
    detail = re.split(r" \(|; |, (?=\d)", shows.why or "")[0]
    detail = re.sub(r"^(no single bottleneck: |launch latency is )", "", detail)
    return f" ({fmt.size(shows.case)}: {detail})" if detail else ""


def channels_last(run: Run) -> str:
    """Whether nhwc is faster than nchw in most cases that both have, and how much."""
    by_layout: dict[str, dict[str, float]] = {"nhwc": {}, "nchw": {}}
    for group in groups_of(run):
        found = representative(group, arms_of(run).asked[:1])
        if found and found.median_s and not found.ruined_pct:
            layout = found.case.problem.layout
            by_layout.setdefault(layout, {})[group[0].case.group.replace(layout, "")] = (
                found.median_s
            )
    nhwc, nchw = by_layout["nhwc"], by_layout["nchw"]
    ratios = [nchw[same] / nhwc[same] for same in nhwc if same in nchw]
    faster = sum(ratio > 1 for ratio in ratios)
    if not ratios or 2 * faster < len(ratios):
        return ""
    times = fmt.span(ratios)
    return f"use channels_last (nhwc): {times} times as fast, faster in {faster} of {len(ratios)}"


def no_verdict(found: Mapping[str, float], *, alone: bool) -> list[Line]:
    """What stands in place of verdicts on figures that are too uncertain; a doubt beside others.

    `found` has half of the widest interval, in per cent, by what there is no verdict on.
    """
    if not found:
        return []
    half = f"±{max(found.values()):.0f} %" if max(found.values()) < 999 else "beyond ±999 %"
    what = f"verdict on {fmt.listed([*found], 2)}: the widest interval is {half}"
    remedy = "repeat on a quiet machine, or raise --budget"
    if not alone:
        return [Line("Doubt", f"no {what}; {remedy}")]
    reason = "likely other work on the machine, or clocks that changed"
    return [Line("", f"No {what}"), Line("Why", reason), Line("Do", remedy)]


# ---------------------------------------------------------------- the chart


MOST_ARMS = 8  # of a panel; with more, each back end has panels of its own
DASHES = {"tf32": (7, 4), "fp64": (2, 3)}  # greys alone are hard to tell apart


def rate_chart(run: Run) -> Any:
    """The rate of each precision and back end against the size. UserError: nothing to draw."""
    rows = rate_rows(run)
    if not rows:
        raise UserError("nothing to draw: no case has a rate and a size that is one number")
    unit, of = rate_unit(run.results), {row["series"]: row["precision"] for row in rows}
    rules: list[Json] = []
    peaks = limits_of(run, [r for r in run.results if r.flop_per_s])
    for source, what in (("datasheet", "peak"), ("measured", "largest")):
        rates = {p.precision: p.flop_per_s or 0.0 for p in peaks if p.source == source}
        text = ", ".join(f"{name} {unit.text(rate)}" for name, rate in rates.items())
        drawn = [
            {"series": series, "y": rates.pop(precision) / unit.per_s, "text": ""}
            for series, precision in of.items() if precision in rates
        ]  # fmt: skip
        if drawn:  # their texts would lie on each other
            max(drawn, key=lambda rule: rule["y"])["text"] = f"{what}: {text}"
        rules += drawn
    drawn = charts.lines(
        rows, x=OPS[run.results[0].case.op].axis_name, y=unit.name, rules=rules,
        colours={s: charts.COLOURS.get(name, charts.OTHER_COLOUR) for s, name in of.items()},
        dashes={series: DASHES[name] for series, name in of.items() if name in DASHES},
    )  # fmt: skip
    below = ["bars: 95 % interval; dotted: peak of the datasheet, and the largest GEMM measured"]
    return charts.titled(drawn, title_of(run), [", ".join(conditions(run)), *below])


def rate_rows(run: Run) -> list[Json]:
    """A row a result with a rate and a size that is one number; by precision, smallest first."""
    found = [r for r in run.results if r.flop_per_s and r.case.problem.axis]
    unit, backends = rate_unit(run.results), {r.case.backend for r in found}
    apart = len({(r.case.precision_name, r.case.backend) for r in found}) > MOST_ARMS
    order = list(dict.fromkeys(r.case.precision_name for r in run.results))
    rows: list[Json] = []
    for result in sorted(found, key=lambda r: (order.index(r.case.precision_name), r.flops)):
        case, flops = result.case, result.flops / unit.per_s
        fast_s, slow_s = (result.measurement and result.measurement.ci95_s) or (None, None)
        backend = case.backend * (len(backends) > 1)
        data = case.data * ("data" in run.varying)
        rows.append({
            "panel": " ".join(filter(None, [subject_of(result, run), data, backend * apart])),
            "series": " ".join(filter(None, [case.precision_name, backend * (not apart)])),
            "precision": case.precision_name, "x": case.problem.axis,
            "y": flops / (result.median_s or 1.0), "low": flops / slow_s if slow_s else None,
            "high": flops / fast_s if fast_s and fast_s > 0 else None, "note": result.bound or "",
        })  # fmt: skip
    return rows


def title_of(run: Run) -> str:
    """ "gemm on NVIDIA H200: fp16 against tf32 and fp32"."""
    arms = arms_of(run)
    others = [name for name in reversed(arms.baselines) if name not in arms.asked]
    against = f" against {fmt.joined(others)}" if others else ""
    ops = fmt.joined(list(dict.fromkeys(result.case.op for result in run.results)))
    device = run.device.get("name") or "unknown device"
    return f"{ops} on {device}: {fmt.listed(list(arms.asked), most=4)}{against}"
