"""Each case of a run of kernels: its raw values, the table of all results, and what limits them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernels import OPS
from kernels.precision import PRECISIONS
from kernels.tune import HOW, Choice
from microbench import fmt
from microbench.errors import UserError
from microbench.report import charts
from microbench.report.parts import (
    ANSWER,
    DO,
    DOUBT,
    VERBOSE,
    WHY,
    Column,
    Found,
    Line,
    Part,
    Raw,
    Row,
    Value,
    cells,
    missing,
)
from microbench.results.types import RUINED_PCT, Ceiling, Json, Ratio, Result, Run
from microbench.roofline.explain import OVER_PEAK_PCT, conversion_share
from microbench.verdict import (
    BASELINES,
    arms_of,
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
    *(f"speedup_{name}{end}" for name in BASELINES for end in ("", "_low", "_high")),
)  # fmt: skip
NEW = ("layout_change_share", "total_error", "tuned", "choice", "candidates")
OF_RESULT = ("status", "reason", "ceiling_pct", "total_error", "bound", "rel_error", "why",
             "tensor_core", "variant", "tuned")  # fmt: skip
OF_MEASUREMENT = ("median_s", "sm_clock_mhz", "power_w", "energy_j", "temperature_c", "timer", "l2",
                  "regime")  # fmt: skip


# ---------------------------------------------------------------- CSV


def raw(run: Run) -> Raw:
    """A row a result, in the order measured."""
    libraries = libraries_beside_own(run)
    beside = [f"speedup_{name}{end}" for name in libraries for end in ("", "_low", "_high")]
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
    ratios = {name: result.speedup.get(name) for name in BASELINES}
    ratios |= {name: result.vs_backend.get(name) for name in libraries}
    for name, ratio in ratios.items():
        if ratio:
            low, high = ratio.ci95 or (None, None)
            row[f"speedup_{name}"] = ratio.ratio
            row |= {f"speedup_{name}_low": low, f"speedup_{name}_high": high}
    return row


# ---------------------------------------------------------------- every result


def of_every_case(run: Run) -> list[Part]:
    """Below a report's own tables: all results, what limits each, and how to read it."""
    limits = [f"{fmt.name(r.case)}: {r.why}" for r in run.results if r.why and not r.ruined_pct]
    return [
        _every_result(run),
        Part("What limits each case", below=limits, level=VERBOSE),
        Part("How to read it", below=[*_terms(run), *_ceilings(run)], level=VERBOSE),
    ]


def _every_result(run: Run) -> Part:
    unit, libraries = rate_unit(run.results), libraries_beside_own(run)
    columns = [
        Column("size", "size"),
        Column("precision", "result.case.precision_name"),
        Column("back end", "result.case.backend"),
        Column("time", "result.median_s", fmt.duration),
        Column("±", "half", drop=8),
        Column(unit.name, "result.flop_per_s", unit.text, 3),
        Column("% of peak", "result.ceiling_pct", of_peak, 6),
        *(Column(f"x {name}", f"speedup.{name}", exact_ratio, 2) for name in BASELINES),
        *(Column(f"x {name}", f"beside.{name}", exact_ratio) for name in libraries),
        Column("layout change", "changes", fmt.per_cent, 7),
        Column("rel. error", "result.total_error", fmt.error, 9),
        Column("bottleneck", "result.bound", drop=5),
    ]
    rows: list[Row] = []
    for result in run.results:
        share = conversion_share(result)
        item = {
            "size": fmt.problem(result.case),
            "result": result,
            "half": fmt.half_of(result.timed),
            "speedup": result.speedup,
            "beside": {name: result.vs_backend.get(name) for name in libraries},
            "changes": 100 * share if share >= SHOWN_CONVERSION else None,
        }
        rows.append(row_of(result, item))
    return Part("Every result", columns, rows, missing(lacking(run.results)), VERBOSE)


def row_of(result: Result, item: object) -> Row:
    """The row of a result, which says if it was not measured."""
    if result.measurement:
        return Row(item)
    failed = result.status == "failed"
    return Row(item, "FAILED" if failed else "skipped", "red" if failed else "dim")


def lacking(results: Iterable[Result]) -> list[tuple[str, str]]:
    """(case, why it has no figures) of those that have none."""
    return [
        (fmt.name(r.case), f"{'FAILED' if r.status == 'failed' else 'skipped'}: "
                           f"{r.reason or 'no reason given'}")
        for r in results if r.measurement is None
    ]  # fmt: skip


def exact_ratio(ratio: Ratio) -> str:
    """A ratio with its interval also where that contains 1; "?" beyond what a verdict bears."""
    return fmt.interval(ratio) + fmt.UNCERTAIN * bool(ratio.ruined_pct)


def of_peak(pct: float) -> str:
    """A share of a peak; "?" where it is more than there can be."""
    return fmt.per_cent(pct) + fmt.UNCERTAIN * (pct > OVER_PEAK_PCT)


def with_signs(part: Part) -> Part:
    """The part, and below it what the signs mean that its table has."""
    texts = [text for line in cells(part).texts for text in line]
    unclear = f"beyond ±{RUINED_PCT:.0f} % or above the peak: no verdict"
    found = [
        ("±?", "one round only", any("±?" in text for text in texts)),
        (fmt.NO_DIFFERENCE, "no difference seen", any(text[:2] == "~1" for text in texts)),
        (fmt.UNCERTAIN, unclear, any("?" in text.replace("±?", "") for text in texts)),
    ]
    signs = [f"{sign}: {meaning}" for sign, meaning, there in found if there]
    return replace(part, below=[*part.below, *([JOIN.join(signs)] if signs else [])])


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
    parts += states_of(results)
    return parts


def _terms(run: Run) -> list[str]:
    lines: list[str] = []
    if run.results:
        lines.append("±: larger half of the 95 % interval; x: times as fast as")
    if any(result.total_error is not None for result in run.results):
        lines.append("rel. error: against float64, including input rounding")
    present = dict.fromkeys(result.case.precision_name for result in run.results)
    titles = [f"{name} = {PRECISIONS[name].title}" for name in present if name in PRECISIONS]
    lines += [JOIN.join(titles)] if titles else []
    chosen = choices(run)
    return [*lines, chosen] if chosen else lines


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


def _ceilings(run: Run) -> list[str]:
    """Which peak "% of peak" means, and its source."""
    precisions = list(dict.fromkeys(result.case.precision_name for result in run.results))
    unit = rate_unit(run.results)
    peaks = [c for p in precisions if (c := run.ceiling("dense peak", "datasheet", p))]
    large = [c for p in precisions if (c := run.ceiling("large GEMM", "measured", p))]
    lines: list[str] = []
    if peaks:
        address = " ".join(dict.fromkeys(peak.reference for peak in peaks))
        lines.append(f"peak: dense datasheet peak, {_rates(peaks, unit)} {address}".strip())
    elif large:
        text = f"peak: largest GEMMs measured, {_rates(large, unit)}"
        lines.append(f"{text}; no datasheet value known")
    reached = [
        f"{found.precision} {found.flop_per_clock:,.0f} "
        f"({found.reference.partition(',')[0]})"  # "wgmma" of "wgmma, m64n256k16, ..."
        for p in precisions
        if (found := run.ceiling("instruction", "measured", p)) and found.flop_per_clock
    ]
    if reached:
        lines.append(f"instructions, FLOP per clock and SM: {', '.join(reached)} measured")
    memory = run.ceiling("memory", "measured")
    if memory and memory.byte_per_s:
        lines.append(f"memory: {fmt.bandwidth(memory.byte_per_s)} measured")
    return lines


def _rates(found: Sequence[Ceiling], unit: fmt.Unit) -> str:
    rates = [f"{one.precision} {unit.text(one.flop_per_s)}" for one in found if one.flop_per_s]
    return f"{', '.join(rates)} {unit.name}"


def example(results: Sequence[Result]) -> str:
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
    asked = arms_of(run).asked
    by_layout: dict[str, dict[str, float]] = {}
    for group in groups_of(run):
        found = representative(group, asked[:1])
        if found and found.median_s and not found.ruined_pct:
            layout = found.case.problem.layout
            same = found.case.group.replace(layout, "")
            by_layout.setdefault(layout, {})[same] = found.median_s
    nhwc, nchw = by_layout.get("nhwc", {}), by_layout.get("nchw", {})
    ratios = [nchw[same] / nhwc[same] for same in nhwc if same in nchw]
    faster = sum(ratio > 1 for ratio in ratios)
    if not ratios or 2 * faster < len(ratios):
        return ""
    times = " to ".join(dict.fromkeys(map(fmt.times, (min(ratios), max(ratios)))))
    return (
        f"use channels_last (nhwc): {times} times as fast ({faster} of {len(ratios)} cases faster)"
    )


def warnings_of(results: Iterable[Result]) -> list[Found]:
    """Their warnings, each with its case; those that ask for nothing come last."""
    found = [(warning, fmt.name(r.case)) for r in results for warning in r.warnings]
    return sorted(found, key=lambda one: one[0].remedy.startswith("none needed"))


def no_verdict(found: Mapping[str, float], *, alone: bool) -> list[Line]:
    """What stands in place of verdicts on figures that are too uncertain; a doubt beside others.

    `found` has half of the widest interval, in per cent, by what there is no verdict on.
    """
    if not found:
        return []
    most = max(found.values())
    half = f"±{most:.0f} %" if most < 999 else "beyond ±999 %"
    what = f"verdict on {fmt.listed([*found], 2)}: the widest interval is {half}"
    remedy = "repeat on a quiet machine, or raise --budget"
    if not alone:
        return [Line(DOUBT, f"no {what}; {remedy}")]
    why = "likely other work on the machine, or clocks that changed"
    return [Line(ANSWER, f"No {what}"), Line(WHY, why), Line(DO, remedy)]


# ---------------------------------------------------------------- the chart


MOST_ARMS = 6  # of a panel; with more, each back end has panels of its own
DASHES = {"tf32": (7, 4), "fp64": (2, 3)}  # greys alone are hard to tell apart
SOURCES = {"datasheet": "peak", "measured": "largest"}


def rate_chart(run: Run) -> Any:
    """The rate of each precision and back end against the size. UserError: nothing to draw."""
    found = [r for r in run.results if r.flop_per_s and r.case.problem.axis]
    if not found:
        raise UserError("nothing to draw: no case has a rate and a size that is one number")
    rows, unit = rate_rows(run), rate_unit(found)
    of = {row["series"]: row["precision"] for row in rows}
    rules = [
        {"series": next(series for series, name in of.items() if name == peak.precision),
         "y": (peak.flop_per_s or 0.0) / unit.per_s,
         "text": f"{SOURCES[peak.source]} {unit.text(peak.flop_per_s or 0.0)}: {peak.precision}"}
        for peak in limits_of(run, found)
    ]  # fmt: skip
    drawn = charts.lines(
        rows, x=OPS[found[0].case.op].axis_name, y=unit.name, rules=rules,
        colours={s: charts.COLOURS.get(name, charts.OTHER_COLOUR) for s, name in of.items()},
        dashes={series: DASHES[name] for series, name in of.items() if name in DASHES},
    )  # fmt: skip
    below = [", ".join(conditions(run)), "bars: 95 % interval; dotted: peak of the datasheet, and "
             "the largest GEMM measured"]  # fmt: skip
    return charts.titled(drawn, title_of(run), below)


def rate_rows(run: Run) -> list[Json]:
    """A row a result with a rate and a size that is one number, smallest first."""
    found = [r for r in run.results if r.flop_per_s and r.case.problem.axis]
    unit, backends = rate_unit(found), {r.case.backend for r in found}
    arms = {(r.case.precision_name, r.case.backend) for r in found}
    apart = len(backends) > 1 and len(arms) > MOST_ARMS
    rows: list[Json] = []
    for result in sorted(found, key=lambda r: r.case.problem.axis or 0):
        case, seconds, rate = result.case, result.median_s or 1.0, result.flop_per_s or 0.0
        fast, slow = (result.measurement and result.measurement.ci95_s) or (None, None)
        panel = [subject_of(result, run), *([case.data] if "data" in run.varying else []),
                 *([case.backend] if apart else [])]  # fmt: skip
        named = [case.precision_name, *([case.backend] if len(backends) > 1 and not apart else [])]
        rows.append({
            "panel": fmt.clean(" ".join(filter(None, panel))),
            "series": fmt.clean(" ".join(named)), "precision": case.precision_name,
            "x": case.problem.axis, "y": rate / unit.per_s,
            "low": rate * seconds / slow / unit.per_s if slow else None,
            "high": rate * seconds / fast / unit.per_s if fast and fast > 0 else None,
            "note": fmt.clean(result.bound or ""),
        })  # fmt: skip
    order = list(dict.fromkeys(r.case.precision_name for r in run.results))
    return sorted(rows, key=lambda row: order.index(row["precision"]))


def title_of(run: Run) -> str:
    """ "gemm on NVIDIA H200: fp16 against tf32 and fp32"."""
    arms = arms_of(run)
    others = [name for name in reversed(arms.baselines) if name not in arms.asked]
    against = f" against {fmt.joined(others)}" if others else ""
    ops = fmt.joined(list(dict.fromkeys(result.case.op for result in run.results)))
    device = run.device.get("name") or "unknown device"
    return f"{ops} on {device}: {fmt.listed(list(arms.asked), most=4)}{against}"
