"""Each case of a run of kernels: its raw values, the table of all results, and what limits them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kernels.precision import PRECISIONS
from kernels.tune import HOW, Choice
from microbench import fmt
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
from microbench.results.types import RUINED_PCT, Ceiling, Ratio, Result, Run
from microbench.roofline.explain import OVER_PEAK_PCT, conversion_share
from microbench.verdict import BASELINES, libraries_beside_own, rate_unit, states_of

SHOWN_CONVERSION = 0.02
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
    names = list(dict.fromkeys([*CSV_ORDER, *beside, *NEW]))
    return names, [_raw_row(result, libraries) for result in run.results]


def _raw_row(result: Result, libraries: Sequence[str]) -> Mapping[str, Value]:
    case, measured, choice = result.case, result.measurement, result.choice
    row: dict[str, Value] = {
        "op": case.op,
        **{name: case.problem.dims.get(name) for name in DIMS},
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
