"""What every report of kernels has: raw values, the table of all results, what limits each, and
how to read them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kernels import OPS
from kernels.op import OWN
from kernels.precision import PRECISIONS
from microbench import fmt, verdict
from microbench.errors import UserError
from microbench.report import charts, parts
from microbench.report.parts import DEFAULT, VERBOSE, Column, Line, Part, Raw, Report, Row, value
from microbench.results.types import RUINED_PCT, Ceiling, Json, Ratio, Result, Run
from microbench.roofline.explain import OVER_PEAK_PCT, WIDE_INTERVAL_PCT, conversion_share
from microbench.timing.stats import half_width_pct

SHOWN_CONVERSION = 0.02
MOST_PRECISIONS = 3  # of a sentence
FEW_ROWS = 8  # of a table that is shortened
MIXED = "mixed"
AT_LARGE = ("power", "compute", MIXED)  # bottlenecks that a large size shows best
JOIN = "; "  # between the values of a list in CSV
DIMS = ("m", "n", "k", "c", "h", "w", "r", "s", "stride", "padding", "dilation", "groups", "pass")
# CSV: column -> where a result has it. These keep their places; new columns follow them.
PATHS = {
    "op": "case.op", **{name: f"case.problem.dims.{name}" for name in DIMS},
    "layout": "case.problem.layout", "data": "case.data", "precision": "case.precision_name",
    "backend": "case.backend", "status": "status", "reason": "reason",
    "median_s": "measurement.median_s", "ci95_low_s": "measurement.ci95_s.0",
    "ci95_high_s": "measurement.ci95_s.1", "samples": "measurement.times_s", "flops": "flops",
    "min_bytes": "min_bytes", "tflops": "flop_per_s", "gb_per_s": "byte_per_s",
    **{name: name for name in ("ceiling_pct", "rel_error", "bound", "why")},
    **{name: f"measurement.{name}" for name in (
        "sm_clock_mhz", "power_w", "energy_j", "temperature_c", "throttle")},
    **{name: name for name in ("tensor_core", "variant", "kernels")},
    **{name: f"measurement.{name}" for name in ("timer", "l2", "regime")},
}  # fmt: skip
LATER_PATHS = {"total_error": "total_error", "tuned": "tuned", "choice": "choice.how",
               "candidates": "choice.candidates"}  # fmt: skip
NO_ROOM = ("out of memory", "--budget")  # in the reason of a skip that another run may not have


def kernel_report(
    run: Run, answer: Sequence[Line], tables: Sequence[Part], chart: Callable[[], Any] | None = None
) -> Report:
    """The report with this answer and these tables, and what all reports of kernels have.

    Warnings that ask for nothing are no doubts; of the user's own kernels theirs alone are. Wide
    intervals are summed up.
    """
    judged = [r for r in run.results if OWN in r.case.backend] or run.results
    warned = [  # older files name the program as it was
        (replace(warning, remedy=warning.remedy.replace("python -m microbench", "halfway")),
         fmt.name(r.case))
        for r in run.results for warning in r.warnings
    ]  # fmt: skip
    names = {fmt.name(result.case) for result in judged}
    asking = [(warning, name) for warning, name in warned
              if name in names and "confidence interval is" not in warning.symptom
              and not warning.remedy.startswith("none needed")]  # fmt: skip
    limits = [f"{fmt.name(r.case)}: {r.why}" for r in run.results if r.why and not r.ruined_pct]
    shown = [
        *map(_with_signs, tables),
        _every_result(run),
        Part("What limits each case", below=limits, level=VERBOSE),
        Part(
            "How to read it" * bool(run.results),
            below=_reading(run),
            level=VERBOSE if run.results else DEFAULT,
        ),
        parts.warnings_part(warned),
    ]
    lost = [Line("", text) for text in _own_missing(run)]
    lines = [*lost, *answer, *_doubt(run, judged), *parts.doubts(asking, len(judged), most=1)]
    return Report("", lines, shown, conditions(run), raw=[_raw(run)],
                  chart=chart or partial(rate_chart, run))  # fmt: skip


# ---------------------------------------------------------------- CSV


def _raw(run: Run) -> Raw:
    """A row a result, in the order measured."""
    ratios = {
        name: f"speedup.{name}" for name in (*OPS["gemm"].baselines, *verdict.baselines_of(run))
    }
    ratios |= {name: f"vs_backend.{name}" for name in verdict.libraries_beside_own(run)}
    paths = dict(PATHS)
    for name, path in ratios.items():
        paths |= {f"speedup_{name}": f"{path}.ratio", f"speedup_{name}_low": f"{path}.ci95.0",
                  f"speedup_{name}_high": f"{path}.ci95.1"}  # fmt: skip
    names = [*paths, "layout_change_share", *LATER_PATHS]
    names += [name for result in run.results for name in result.case.problem.dims]
    paths |= {name: f"case.problem.dims.{name}" for name in names if name not in paths}
    rows = [_raw_row(result, paths | LATER_PATHS) for result in run.results]
    return list(dict.fromkeys(names)), rows


def _raw_row(result: Result, paths: Mapping[str, str]) -> Mapping[str, parts.Value]:
    row = {name: value(result, path) for name, path in paths.items()}
    row["kernels"] = JOIN.join(result.kernels)
    row["layout_change_share"] = conversion_share(result) if result.kernels_s else None
    if result.measurement is None:
        return row | dict.fromkeys(("flops", "min_bytes"))
    return row | {
        "samples": len(result.measurement.times_s),
        "tflops": (result.flop_per_s or 0.0) / 1e12,
        "gb_per_s": (result.byte_per_s or 0.0) / 1e9,
        "throttle": JOIN.join(result.measurement.throttle),
    }


# ---------------------------------------------------------------- every result


def _every_result(run: Run) -> Part:
    unit, libraries = verdict.rate_unit(run.results), verdict.libraries_beside_own(run)
    baselines = verdict.baselines_of(run)
    columns = [
        Column("size", "case", fmt.problem),
        Column("precision", "case.precision_name"),
        Column("back end", "case.backend"),
        *([Column("picks", "", picked)] if any(map(picked, run.results)) else []),
        Column("time", "median_s", fmt.duration),
        Column("±", "timed", fmt.half_of, 8),
        Column(unit.name, "flop_per_s", unit.text, 3),
        Column("% of peak", "ceiling_pct", of_peak, 6),
        *(Column(f"x {name}", f"speedup.{name}", _exactly, 2) for name in baselines),
        *(Column(f"x {name}", f"vs_backend.{name}", _exactly) for name in libraries),
        Column("layout change", "", _conversion, 7),
        Column("rel. error", "total_error", fmt.error, 9),
        Column("bottleneck", "bound", drop=5),
        Column("configuration", "choice.how", drop=10),
    ]  # fmt: skip
    lacking = [(fmt.name(r.case), f"{_missing(r)}: {r.reason or 'no reason given'}")
               for r in run.results if _missing(r)]  # fmt: skip
    return Part("Every result", columns, rows_of(run.results), parts.missing(lacking), VERBOSE)


def picked(result: Result) -> str:
    """The back end that ran, where the one asked for leaves it to the library."""
    case, ran = result.case, result.variant or ""
    return ran if ran != case.backend and ran in OPS[case.op].backends else ""


def rows_of(results: Iterable[Result]) -> list[Row]:
    """A row each, which says if it was not measured."""
    return [Row(r, _missing(r), "red" if r.status == "failed" else "") for r in results]


def _missing(result: Result) -> str:
    return "" if result.measurement else "FAILED" if result.status == "failed" else "skipped"


def _exactly(ratio: Ratio) -> str:
    """With its interval also where that contains 1; "?" beyond what a verdict bears."""
    return fmt.interval(ratio) + fmt.UNCERTAIN * bool(ratio.ruined_pct)


def known_ratio(ratios: Sequence[Ratio]) -> str:
    """ "1.42 to 1.64"; "~1 ±0.02" of one, "~1" of several without a difference; "0.90 to 1.14 (~1
    in 2 of 6)".
    """
    clear = [ratio for ratio in ratios if not ratio.no_difference]
    if len(ratios) == 1 or not clear:
        return fmt.ratio(ratios[0]) if len(ratios) == 1 else fmt.NO_DIFFERENCE
    same = len(ratios) - len(clear)
    return fmt.ratios(clear) + f" ({fmt.NO_DIFFERENCE} in {same} of {len(ratios)})" * bool(same)


def _conversion(result: Result) -> str:
    share = conversion_share(result)
    return fmt.per_cent(100 * share) if share >= SHOWN_CONVERSION else ""


def of_peak(pct: float) -> str:
    """A share of a peak; "?" where it is more than there can be."""
    return fmt.per_cent(pct) + fmt.UNCERTAIN * (pct > OVER_PEAK_PCT)


def _with_signs(part: Part) -> Part:
    """The part, and below it what the signs mean that its table has."""
    texts = " ".join(text for line in parts.cells(part).texts for text in line)
    unclear = f"beyond ±{RUINED_PCT:.0f} % or above the peak: no verdict"
    meanings = [
        ("±?: one round only", "±?" in texts),
        (f"{fmt.NO_DIFFERENCE}: no difference seen", f" {fmt.NO_DIFFERENCE} " in texts),
        (f"{fmt.UNCERTAIN}: {unclear}", fmt.UNCERTAIN in texts.replace("±?", "")),
    ]
    signs = JOIN.join(meaning for meaning, there in meanings if there)
    return replace(part, below=[*part.below, *filter(None, [signs])])


def shortened(part: Part, most: int, chosen: Sequence[Row] = ()) -> list[Part]:
    """The chosen rows, or the first, where there are more than `most`, and the columns that are
    always there, for the screen; all for --verbose.
    """
    if len(part.rows) <= most:
        return [part]
    columns, rows = [c for c in part.columns if not c.drop], chosen or part.rows[:FEW_ROWS]
    below = [*part.below, f"and {len(part.rows) - len(rows)} more: --verbose"]
    cut = replace(part, columns=columns, rows=rows, below=below, level=DEFAULT)
    return [cut, replace(part, level=VERBOSE)]


def library_table(compared: Sequence[verdict.Summary], which: str) -> Part:
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
    return Part(title, columns, [Row(summary) for summary in compared])


def _mean(summary: verdict.Summary) -> str:
    return f"{summary.mean:.3f}{fmt.UNCERTAIN * bool(summary.ruined_pct)}"


# ---------------------------------------------------------------- how to read it


def conditions(run: Run) -> list[str]:
    """What all results share: what was computed, on which data, and how it was timed."""
    results = run.results
    said = sorted({result.case.op for result in results})
    if len(said) == 1 and not run.network:
        setting = results[0].case.problem.setting
        said += [f"{name} {value}" for name, value in setting.items() if name not in run.varying]
    if len({result.case.data for result in results}) == 1:
        said.append(f"{results[0].case.data} data")
    timed = [result.measurement for result in results if result.measurement]
    for title, field in (("timer", "timer"), ("L2", "l2"), ("regime", "regime")):
        if timed:
            values = "/".join(sorted({getattr(one, field) for one in timed}))
            said.append(f"{title} {fmt.clean(values)}")
    return said


def _reading(run: Run) -> list[str]:
    """The signs, the names of precisions, and the peaks."""
    present = list(dict.fromkeys(result.case.precision_name for result in run.results))
    titles = [f"{name} = {PRECISIONS[name].title}" for name in present if name in PRECISIONS]
    lines = [
        "±: larger half of the 95 % interval; x: times as fast as",
        "rel. error: against float64, including input rounding",
        JOIN.join(titles),
    ]
    measured = (
        peaks(run, "measured") if run.kind != "ceilings" else []
    )  # those of `ceilings` are its answer
    addresses = dict.fromkeys(c.reference for c in run.ceilings if "://" in c.reference)
    return [
        *(line for line in lines if line and run.results),
        *peaks(run, "datasheet"),
        *(f"datasheet: {address}" for address in addresses),
        *measured,
    ]


def peaks(run: Run, source: str) -> list[str]:
    """What bounds the device, of the datasheet or as measured: "memory, measured: 4.27 TB/s".

    Rates of one unit have it once.
    """
    by_unit: dict[tuple[str, str], list[str]] = {}
    for ceiling in run.ceilings:
        if ceiling.source == source:
            rate, _, unit = _rate(ceiling).partition(" ")
            key = (f"{ceiling.name}, " * bool(ceiling.precision), unit)
            by_unit.setdefault(key, []).append(f"{ceiling.precision or ceiling.name} {rate}")
    return [f"{name}{source}: {', '.join(rates)} {unit}" for (name, unit), rates in by_unit.items()]


def _rate(ceiling: Ceiling) -> str:
    if ceiling.flop_per_clock:
        return f"{ceiling.flop_per_clock:,.0f} FLOP per clock and SM"
    if ceiling.flop_per_s:
        unit = fmt.rate_unit([ceiling.flop_per_s], integers=ceiling.precision == "int8")
        return f"{unit.text(ceiling.flop_per_s)} {unit.name}"
    if ceiling.byte_per_s:
        return fmt.bandwidth(ceiling.byte_per_s)
    return fmt.duration(ceiling.seconds or 0.0)


# ---------------------------------------------------------------- lines of an answer


def why(run: Run, results: Iterable[Result]) -> list[Line]:
    """The two most common bottlenecks, mixed ones last; the first with a case that shows it."""
    sure = (r for r in results if r.measurement and not r.ruined_pct)
    timed = sorted(sure, key=lambda result: result.flops)
    by_bound: dict[str, list[Result]] = {}
    for result in timed:
        if result.bound:
            by_bound.setdefault(result.bound, []).append(result)
    several = len({verdict.subject_of(result, run) for result in timed}) > 1
    every = list(dict.fromkeys(fmt.size(result.case) for result in timed))
    texts: list[str] = []
    bounds = sorted(by_bound, key=lambda bound: (bound == MIXED, -len(by_bound[bound])))
    for bound in bounds[:2]:
        bounded = by_bound[bound]
        sizes = list(dict.fromkeys(fmt.size(result.case) for result in bounded))
        first = every.index(sizes[0])
        where = f"at {fmt.listed(sizes)}"
        if several:
            of = f" of {fmt.count(len(timed), 'case')}" if not texts else ""
            where = f"in {len(bounded)}{of}"
        elif len(sizes) > 1 and every[first : first + len(sizes)] == sizes:
            where = f"at {sizes[0]}..{sizes[-1]}"
        shown = "" if texts else _example(bounded, [] if several else sizes)
        texts.append(f"{bound} {where}{shown}")
    return [Line("Why", JOIN.join(texts))] if texts else []


def bottlenecks(of: Iterable[verdict.Payoff]) -> str:
    """The two most common, and how many sizes have each: "memory 12, launch 3"."""
    bounds = Counter(row.result.bound for payoff in of for row in payoff.rows if row.result.bound)
    return ", ".join(f"{bound} {count}" for bound, count in bounds.most_common(2))


def _example(results: Sequence[Result], sizes: Sequence[str]) -> str:
    """What shows the bottleneck that these share, smallest first: " (256: 3.3 us of 3.8 us)".

    Without the size where `sizes`, which the sentence names, are that alone.
    """
    if results[0].bound == "layout":
        shares = [100 * conversion_share(result) for result in results]
        ends = dict.fromkeys(f"{share:.0f}" for share in (min(shares), max(shares)))
        return f" ({' to '.join(ends)} % of the time)"
    shows = results[-1] if results[0].bound in AT_LARGE else results[0]
    detail = (shows.why or "").removeprefix("no single bottleneck: ")
    detail = re.split(r" \(|; |[,:] (?=\d)", detail)[0]
    if sizes == [fmt.size(shows.case)]:
        return f" ({detail})" * bool(detail)
    return f" ({fmt.size(shows.case)}: {detail})" if detail else ""


def _own_missing(run: Run) -> list[str]:
    """The kernels of the user's that have no figures."""
    own = [result for result in run.results if OWN in result.case.backend]
    texts: list[str] = []
    for backend in dict.fromkeys(result.case.backend for result in own):
        every = [result for result in own if result.case.backend == backend]
        texts += [f"{backend} {text}" for text in _lost(every, len(every))]
    return texts


def _lost(results: Sequence[Result], of: int) -> list[str]:
    """Those without figures, and why: "FAILED in 2 of 12 cases: no such tile"."""
    texts: list[str] = []
    for status, words in (("failed", "FAILED"), ("skipped", "not measured")):
        if lost := [result for result in results if result.status == status]:
            texts.append(f"{words} in {len(lost)} of {fmt.count(of, 'case')}: {reasons(lost)}")
    return texts


def reasons(lost: Sequence[Result]) -> str:
    """The most common one, in short but of a user's kernel, and how many others there are."""
    (reason, _), *others = Counter(
        re.split(r"\. |: (?=relative)", result.reason or "")[0]
        if OWN not in result.case.backend else result.reason
        for result in lost
    ).most_common()  # fmt: skip
    more = f" (and {fmt.count(len(others), 'other reason')})" if others else ""
    return f"{reason or 'no reason given'}{more}"


def library_sentences(compared: Sequence[verdict.Summary], unclear: dict[str, float]) -> list[str]:
    """Our kernels, or the user's, against the better library: "triton is 0.97 times as fast as the
    better library in fp16, 1.05 in int8 (mean of 8 sizes: 0.82 at 1536 to 1.19 at 512)".
    """
    by_backend: dict[str, list[verdict.Summary]] = {}
    for summary in compared:
        if summary.ruined_pct:
            unclear[f"{summary.backend} in {summary.precision}"] = summary.ruined_pct
        else:
            by_backend.setdefault(summary.backend, []).append(summary)
    texts: list[str] = []
    for backend, of_backend in by_backend.items():
        rows = [row for summary in of_backend for row in summary.rows]
        rows.sort(key=lambda row: row.ratio.ratio)
        libraries = {name for summary in of_backend for name in summary.libraries}
        against = libraries.pop() if len(libraries) == 1 else "the better library"
        if len(rows) == 1:
            at = f"in {of_backend[0].precision} at {rows[0].result.case.problem.size}"
            times = f"{fmt.ratio(rows[0].ratio)} times as fast as {rows[0].library}"
            texts.append(f"{backend} is {times} {at}")
            continue
        means = [f"{summary.mean:.2f} in {summary.precision}" for summary in of_backend]
        first = of_backend[0]
        means[0] = f"{first.mean:.2f} times as fast as {against} in {first.precision}"
        if len(of_backend) > MOST_PRECISIONS:
            slow, *_, fast = sorted(of_backend, key=lambda summary: summary.mean)
            means = [f"{slow.mean:.2f} ({slow.precision}) to {fast.mean:.2f} ({fast.precision}) "
                     f"times as fast as {against}, by precision"]  # fmt: skip
        counts = [len(summary.rows) for summary in of_backend]
        sizes = " to ".join(dict.fromkeys(map(str, (min(counts), max(counts)))))
        ends = [(row.ratio.ratio, row.result.case) for row in (rows[0], rows[-1])]
        alike = len({case.problem.size for _, case in ends}) == 1
        over = " to ".join(
            f"{ratio:.2f} {f'in {case.precision_name}' if alike else f'at {case.problem.size}'}"
            for ratio, case in ends
        )
        texts.append(f"{backend} is {', '.join(means)} (mean of {sizes} sizes: {over})")
    return texts


def _doubt(run: Run, judged: Sequence[Result]) -> list[Line]:
    """What was not measured, and how well times are known.

    A back end that has not a precision in a layout is no doubt: nothing of it could be measured.
    """
    timed = {r.case.precision_name for r in run.results if r.measurement}
    unasked = {r.case.precision_name for r in run.results} - {*verdict.asked_for(run)}
    there = {_combination(r) for r in run.results if r.measurement}
    lost = [
        r for r in run.results
        if r.measurement is None and OWN not in r.case.backend
        and r.case.precision_name in timed | unasked
        and (r.status == "failed" or _combination(r) in there
             or any(words in (r.reason or "") for words in NO_ROOM))
    ]  # fmt: skip
    texts = _lost(lost, len(run.results))
    tf32 = [r for r in run.results if r.measurement and r.case.precision_name == "tf32"]
    exact = [
        r for r in tf32 if r.rel_error is not None and r.rel_error < r.case.precision.least_error
    ]
    if 2 * len(exact) > len(tf32):
        texts.append(
            f"tf32 ran as exactly as fp32 in {len(exact)} of {fmt.count(len(tf32), 'case')}"
        )
    known = [one for result in judged if (one := result.measurement)]
    one_process = known and not any(measurement.processes for measurement in known)
    halves = [half_width_pct(one.median_s, one.ci95_s) for one in known if one.ci95_s]
    noise = ["one process (--processes 3)"] if one_process else []
    if wide := [pct for pct in halves if pct > WIDE_INTERVAL_PCT]:
        option = "--budget" if one_process else "--processes"
        half = f"up to ±{max(wide):.1f} %" if max(wide) < 999 else "beyond ±999 %"
        noise.append(f"{fmt.count(len(wide), 'interval')} {half} ({option})")
    return [Line("Doubt", JOIN.join(some)) for some in (texts, noise) if some]


def _combination(result: Result) -> tuple[str, str, str]:
    case = result.case
    return case.backend, case.precision_name, case.problem.layout


def channels_last(run: Run) -> str:
    """Where nhwc is faster than nchw in three of four cases that both have: how much."""
    by_layout: dict[str, dict[str, Result]] = {"nhwc": {}, "nchw": {}}
    for best in verdict.representatives(run, verdict.asked_for(run)[:1]):
        if not best.ruined_pct:
            layout = best.case.problem.layout
            by_layout.setdefault(layout, {})[best.case.group.replace(layout, "")] = best
    ratios = [_apart(by_layout["nchw"][same], result) for same, result in by_layout["nhwc"].items()
              if same in by_layout["nchw"]]  # fmt: skip
    faster = sum((ratio.ci95 or (0.0, 0.0))[0] > 1 for ratio in ratios)
    if not ratios or 4 * faster < 3 * len(ratios):
        return ""
    of = f"in all {faster}" if faster == len(ratios) else f"surely in {faster} of {len(ratios)}"
    return f"use channels_last (nhwc): {fmt.ratios(ratios)} times as fast, {of}"


def _apart(a: Result, b: Result) -> Ratio:
    """Time of A over B's, which did not take turns: from end to end of their intervals."""
    ratio = (a.median_s or 0.0) / (b.median_s or 1.0)
    ours, theirs = (r.measurement and r.measurement.ci95_s for r in (a, b))
    return Ratio(ratio, ours and theirs and (ours[0] / theirs[1], ours[1] / theirs[0]))


def no_verdict(unclear: Mapping[str, float], *, alone: bool) -> list[Line]:
    """What stands in place of verdicts on figures that are too uncertain; a doubt beside others.

    `found` has half of the widest interval, in per cent, by what there is no verdict on.
    """
    if not unclear:
        return []
    half = f"±{max(unclear.values()):.0f} %" if max(unclear.values()) < 999 else "beyond ±999 %"
    doubt = f"verdict on {fmt.listed([*unclear], 2)}: the widest interval is {half}"
    remedy = "repeat on a quiet machine, or raise --budget"
    if not alone:
        return [Line("Doubt", f"no {doubt}")]
    reason = "likely other work on the machine, or clocks that changed"
    return [Line("", f"No {doubt}"), Line("Why", reason), Line("Do", remedy)]


# ---------------------------------------------------------------- the chart


MOST_ARMS = 8  # of a panel; with more, each back end has panels of its own
DASHES = {"tf32": (7, 4), "fp64": (2, 3)}  # greys alone are hard to tell apart


def rate_chart(run: Run) -> Any:
    """The rate of each precision and back end against the size. UserError: nothing to draw."""
    rows = rate_rows(run)
    if not rows:
        raise UserError("nothing to draw: no case has a rate and a size that is one number")
    unit, of = verdict.rate_unit(run.results), {row["series"]: row["precision"] for row in rows}
    rules: list[Json] = []
    rated = {result.case.precision_name for result in run.results if result.flop_per_s}
    asked = rated.intersection(verdict.asked_for(run))
    limits = ("dense peak", "datasheet", "peak"), ("large GEMM", "measured", "largest")
    for limit, source, words in limits:
        found = [one for one in run.ceilings if (one.name, one.source) == (limit, source)]
        rates = {c.precision: c.flop_per_s for c in found if c.flop_per_s and c.precision in asked}
        text = ", ".join(f"{name} {unit.text(rate)}" for name, rate in rates.items())
        drawn = [
            {"series": series, "y": rates.pop(precision) / unit.per_s, "text": ""}
            for series, precision in of.items() if precision in rates
        ]  # fmt: skip
        if drawn:  # their texts would lie on each other
            max(drawn, key=lambda rule: rule["y"])["text"] = f"{words}: {text}"
        rules += drawn
    drawn = charts.lines(
        rows, x=OPS[run.results[0].case.op].axis_name, y=unit.name, rules=rules,
        colours={s: charts.COLOURS.get(name, charts.OTHER_COLOUR) for s, name in of.items()
                 if s.startswith(name)},
        dashes={series: DASHES[name] for series, name in of.items() if name in DASHES},
    )  # fmt: skip
    below = ["bars: 95 % interval; dotted: peak of the datasheet, and the largest GEMM measured"]
    return charts.titled(drawn, title_of(run), [", ".join(conditions(run)), *below])


def rate_rows(run: Run) -> list[Json]:
    """A row a result with a rate and a size that is one number; by precision, smallest first.

    Where the library picks, each precision has its panels, and each back end its curve.
    """
    drawn = [r for r in run.results if r.flop_per_s and r.case.problem.axis]
    picks = any(map(picked, drawn))
    asked = verdict.asked_for(run)
    drawn = [r for r in drawn if not picks or r.case.precision_name in asked]
    unit, backends = verdict.rate_unit(run.results), {r.case.backend for r in drawn}
    apart = len({(r.case.precision_name, r.case.backend) for r in drawn}) > MOST_ARMS
    order = list(dict.fromkeys(r.case.precision_name for r in run.results))
    rows: list[Json] = []
    for result in sorted(drawn, key=lambda r: (order.index(r.case.precision_name), r.flops)):
        case, flops = result.case, result.flops / unit.per_s
        fast_s, slow_s = (result.measurement and result.measurement.ci95_s) or (None, None)
        backend = case.backend * (len(backends) > 1)
        data = case.data * ("data" in run.varying)
        name = case.precision_name
        series = [backend] if picks else [name, backend * (not apart)]
        rows.append({
            "panel": " ".join(filter(None, [
                verdict.subject_of(result, run), data, name * picks or backend * apart,
            ])),
            "series": " ".join(filter(None, series)),
            "precision": name, "x": case.problem.axis,
            "y": flops / (result.median_s or 1.0), "low": flops / slow_s if slow_s else None,
            "high": flops / fast_s if fast_s and fast_s > 0 else None, "note": result.bound or "",
        })  # fmt: skip
    return rows


def title_of(run: Run) -> str:
    """ "gemm on NVIDIA H200: fp16 against tf32 and fp32"."""
    asked = verdict.asked_for(run)
    others = [name for name in verdict.compared_with(run) if name not in asked]
    against = f" against {fmt.joined(others)}" if others else ""
    ops = fmt.joined(list(dict.fromkeys(result.case.op for result in run.results)))
    device = run.device_name
    return f"{ops} on {device}: {fmt.listed(asked, most=4)}{against}"
