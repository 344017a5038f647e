"""What a run of kernels says: one precision against another, and kernels against the libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean
from typing import Any

from kernels import is_library
from kernels.op import OWN
from microbench import fmt
from microbench.report import charts, layers, payoff
from microbench.report.cases import (
    MIXED,
    channels_last,
    conditions,
    example,
    no_verdict,
    of_every_case,
    of_peak,
    rate_chart,
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
from microbench.results.types import Ceiling, Json, Result, Run
from microbench.verdict import (
    RUINED,
    Payoff,
    Summary,
    arms_of,
    groups_of,
    is_rival,
    libraries_beside_own,
    library_or_best,
    payoffs,
    rate_unit,
    representative,
    subject_of,
    summaries,
)

MOST_ROWS = 12  # of the table of sizes; with more, it has a row a setting
MOST_SETTINGS = 6
MOST_PRECISIONS = 3  # that have a line of the answer each
MOST_BOUNDS = 2  # of a sentence


def report(run: Run) -> Report | None:
    """The report of the run's kernels."""
    if not run.results:
        none = Line(ANSWER, "No case was measured")
        return Report("", [none, *_peaks(run)], raw=[raw(run)], chart=lambda: rate_chart(run))
    if run.network:
        return layers.report(run, run.network)
    if run.kind == "payoff" and (found := payoff.report(run)):
        return found
    of_user = [result for result in run.results if OWN in result.case.backend]
    judged = of_user or run.results
    doubtful = [one for one in warnings_of(judged) if not one[0].remedy.startswith("none needed")]
    answer = [*_answer(run), *_doubts(run), *doubts(doubtful, len(judged), most=1)]
    parts = [*_tables(run), *of_every_case(run), warnings_part(warnings_of(run.results))]
    return Report("", answer, parts, conditions(run), raw=[raw(run)], chart=lambda: _chart(run))


def _chart(run: Run) -> Any:
    """The rates; for the user's kernels first their ratio to each library."""
    rows: list[Json] = []
    for result in sorted(run.results, key=lambda r: r.case.problem.flops):
        for library in (name for name in libraries_beside_own(run) if OWN in result.case.backend):
            ratio = result.vs_backend.get(library)
            if ratio:
                low, high = ratio.ci95 or (None, None)
                series = f"{result.case.precision_name} {result.case.backend}"
                rows.append({
                    "label": fmt.clean(fmt.problem(result.case)), "series": fmt.clean(series),
                    "ratio": ratio.ratio, "low": low, "high": high,
                    "panel": f"times as fast as {library}",
                })  # fmt: skip
    if not rows:
        return rate_chart(run)
    libraries = list(dict.fromkeys(row["panel"] for row in rows))
    title = f"own kernels on {run.device.get('name') or 'unknown device'}"
    drawn = charts.ratios(rows, x="", y=libraries[0] if len(libraries) == 1 else "times as fast")
    return charts.titled(drawn, title, [", ".join(conditions(run)), "bars: 95 % interval"])


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
    asked = arms_of(run).asked
    shown = own or [
        result for group in groups_of(run) if (result := representative(group, asked[:1]))
    ]
    unclear: dict[str, float] = {}
    beside = _beside([one for one in summaries(run) if OWN in one.backend or not own], unclear)
    if own:
        said = [*_own_missing(own), *beside]
    elif arms_of(run).baselines:
        said = [*_gains(run, unclear), *beside]
    elif run.kind == "peak":
        said = [*_highest(run, unclear), *beside]
    else:
        said = [*beside, *_highest(run, unclear)]
    if said:
        context = ", ".join(_context(run, shown))
        first = said[0].removesuffix(")")
        said[0] = f"{first}{'; ' if first != said[0] else ' ('}{context})"
    lines = [Line(ANSWER, text) for text in said]
    explained = [*_why(run, shown), *([] if own else _do(run))] if said else []
    return [*lines, *explained, *no_verdict(unclear, alone=not said)]


def _context(run: Run, shown: Sequence[Result]) -> list[str]:
    """What was measured, in a few words: device, sizes, library."""
    measured = sorted((r for r in shown if r.measurement), key=lambda r: r.flops)
    device = str(run.device.get("name") or "unknown device")
    if not measured:
        return [device]
    first, last = (fmt.size(result.case) for result in (measured[0], measured[-1]))
    sizes = first if first == last else f"{first} to {last}"
    what = {"gemm": f"GEMM {sizes}", "conv": f"convolutions of {sizes} channels"}
    backends = dict.fromkeys(r.case.backend for r in measured if is_library(r.case))
    return [device, what.get(measured[0].case.op, sizes), *backends]


def _own_missing(own: Sequence[Result]) -> list[str]:
    """The kernels of the user's that have no figures: how many cases, and why."""
    said: list[str] = []
    for backend in dict.fromkeys(result.case.backend for result in own):
        every = [result for result in own if result.case.backend == backend]
        for status, words in (("failed", "FAILED"), ("skipped", "was not measured")):
            lost = [result for result in every if result.status == status]
            if lost:
                of = f"{len(lost)} of {fmt.count(len(every), 'case')}"
                said.append(f"{backend} {words} in {of}: {_reasons(lost)}")
    return said


def _reasons(lost: Sequence[Result]) -> str:
    """The most common one, and how many others there are."""
    (reason, _), *others = Counter(result.reason for result in lost).most_common()
    more = f" (and {fmt.count(len(others), 'other reason')})" if others else ""
    return f"{reason or 'no reason given'}{more}"


def _beside(found: Sequence[Summary], unclear: dict[str, float]) -> list[str]:
    """Our kernels, or the user's, against the better library: a sentence a back end."""
    unclear |= {f"{one.backend} in {one.precision}": one.ruined_pct
                for one in found if one.ruined_pct}  # fmt: skip
    clear = [one for one in found if not one.ruined_pct]
    backends = dict.fromkeys(one.backend for one in clear)
    return [_means([one for one in clear if one.backend == backend]) for backend in backends]


def _means(found: Sequence[Summary]) -> str:
    """ "triton is 0.97 times as fast as the better library in fp16, 1.05 in int8 (geometric mean of
    8 sizes: 0.82 at 1536 to 1.19 at 512)"."""
    first, *others = found
    if not others and len(first.rows) == 1:
        row = first.rows[0]
        return (f"{first.backend} is {fmt.ratio(row.ratio)} times as fast as {row.library} in "
                f"{first.precision} at {row.result.case.problem.size}")  # fmt: skip
    names = {name for one in found for name in one.libraries}
    name = names.pop() if len(names) == 1 else "the better library"
    by_mean: dict[str, list[str]] = {}
    for one in found:
        by_mean.setdefault(f"{one.mean:.2f}", []).append(one.precision)
    (mean, precisions), *rest = by_mean.items()
    means = f"{mean} times as fast as {name} in {fmt.joined(precisions)}" + "".join(
        f", {mean} in {fmt.joined(precisions)}" for mean, precisions in rest
    )
    if len(found) > MOST_PRECISIONS:
        slow, *_, fast = sorted(found, key=lambda one: one.mean)
        means = (f"{slow.mean:.2f} ({slow.precision}) to {fast.mean:.2f} ({fast.precision}) times "
                 f"as fast as {name}, by precision")  # fmt: skip
    counts = sorted({len(one.rows) for one in found})
    over = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
    least = min((one.least for one in found), key=lambda row: row.ratio.ratio)
    most = max((one.most for one in found), key=lambda row: row.ratio.ratio)
    ends = " to ".join(
        f"{row.ratio.ratio:.2f} at {row.result.case.problem.size}" for row in (least, most)
    )
    return f"{first.backend} is {means} (geometric mean of {over} sizes: {ends})"


def _gains(run: Run, unclear: dict[str, float]) -> list[str]:
    """Each precision asked for against the baselines, TF32 first: the range over all sizes.

    Of many, the fastest.
    """
    said: dict[str, str] = {}
    means: dict[str, float] = {}
    arms = arms_of(run)
    for name in arms.asked:
        results = [r for r in run.results if r.case.precision_name == name]
        if not any(result.measurement for result in results):
            said[name] = f"{name} was not measured: {_reasons(results)}"
        known: list[str] = []
        for baseline in reversed(arms.baselines):
            some = [one for one in payoffs(run, name) if one.baseline == baseline]
            unclear |= {" ".join(filter(None, (one.subject, name, "against", baseline))):
                        max(one.uncertain.values()) for one in some if one.uncertain}  # fmt: skip
            some = [one for one in some if not one.uncertain]
            if some and all(one.gains[-1] == "unknown" for one in some):
                known.append(f"perhaps {_range(some)} times as fast as {baseline} (unknown: one "
                             "round, raise --budget)")  # fmt: skip
            elif some:
                times = "as" if known else "times as fast as"
                known.append(f"{_range(some)} {times} {baseline}{_where(some)}")
                ratios = [ratio.ratio for one in some for _, ratio in one.rows]
                means.setdefault(name, fmean(ratios))
        if known:
            said[name] = f"{name} is {', '.join(known)}"
    most = 1 if run.varying else MOST_PRECISIONS
    if len(said) <= most or not means:
        return list(said.values())
    best = max(means, key=lambda name: means[name])
    name = f"{best}, the fastest of {len(said)} precisions,"
    return [said[best].replace(best, name, 1)]


def _highest(run: Run, unclear: dict[str, float]) -> list[str]:
    """The highest rates, of precisions that are compared with no other."""
    said: list[str] = []
    for name in arms_of(run).asked[:MOST_PRECISIONS]:
        timed = library_or_best([r for r in run.results if r.case.precision_name == name])
        best = max(timed, key=lambda r: (not r.ruined_pct, r.flop_per_s or 0.0), default=None)
        if best and best.ruined_pct:
            unclear[name] = best.ruined_pct
        elif best:
            unit = rate_unit([best])
            rate = f"{unit.text(best.flop_per_s or 0.0)} {unit.name}"
            at = f"{best.case.problem.size} {best.case.problem.layout}"
            said.append(f"{name} reaches {rate} at most, at {at} by {best.case.backend}")
    return said


def _range(found: Sequence[Payoff]) -> str:
    """ "1.41 to 1.90" over all sizes that are known well enough; "1.53 ±0.12" of one."""
    known = [ratio for one in found for (_, ratio), gain in zip(one.rows, one.gains, strict=True)
             if gain != RUINED]  # fmt: skip
    if len(known) == 1:
        return fmt.ratio(known[0])
    ratios = [ratio.ratio for ratio in known]
    return " to ".join(dict.fromkeys(map(fmt.times, (min(ratios), max(ratios)))))


def _where(found: Sequence[Payoff]) -> str:
    """ " (faster from 64 up)"; "" where it is faster at every size."""
    firsts = [one.from_start[0][0] for one in found if one.from_start]
    starts = sorted(firsts, key=lambda result: result.flops)
    never = len(found) - len(starts)
    if all(one.start == 0 for one in found):
        return ""
    if len(found) == 1 and never:
        rows = zip(found[0].rows, found[0].gains, strict=True)
        sizes = [fmt.size(result.case) for (result, _), gain in rows if gain == "faster"]
        return f" (faster at {fmt.listed(sizes) if sizes else 'no size'})"
    parts: list[str] = []
    if starts:
        ends = dict.fromkeys(fmt.size(result.case) for result in (starts[0], starts[-1]))
        parts.append(f"from {' up at best, at worst from '.join(ends)} up")
    if never:
        parts.append(f"not at the largest size in {never} of {len(found)} settings")
    return f" (faster {'; '.join(parts)})"


def _why(run: Run, shown: Sequence[Result]) -> list[Line]:
    """The bottlenecks of the results that the table has, each with a case that shows it."""
    found: dict[str, list[Result]] = {}
    timed = sorted((r for r in shown if r.measurement), key=lambda r: r.flops)
    for result in timed:
        if result.bound and not result.ruined_pct:
            found.setdefault(result.bound, []).append(result)
    sizes = list(dict.fromkeys(fmt.size(result.case) for result in timed))
    several = len({subject_of(result, run) for result in timed}) > 1
    said: list[str] = []
    ordered = sorted(found.items(), key=lambda one: (one[0] == MIXED, -len(one[1])))
    for bound, some in ordered[:MOST_BOUNDS]:
        own = list(dict.fromkeys(fmt.size(result.case) for result in some))
        where = f"in {len(some)} of {len(timed)} cases" if several else _among(own, sizes)
        said.append(f"{bound} {where}{example(some)}")
    return [Line(WHY, "; ".join(said))] if said else []


def _among(own: Sequence[str], sizes: Sequence[str]) -> str:
    """Which of these sizes: "up to 512", "from 4096 up", "at 1024, 2048"."""
    if len(own) == len(sizes):
        return "at every size" if len(own) > 1 else f"at {own[0]}"
    if len(own) > 1 and own == sizes[: len(own)]:
        return f"up to {own[-1]}"
    if len(own) > 1 and own == sizes[-len(own) :]:
        return f"from {own[0]}"
    return f"at {fmt.listed(list(own))}"


def _do(run: Run) -> list[Line]:
    """Which precision to use, against the fastest baseline, and what it costs in accuracy."""
    arms = arms_of(run)
    where: dict[str, list[str]] = {}
    for name in arms.asked:
        baseline = next((b for b in reversed(arms.baselines) if b != name), "")
        found = [one for one in payoffs(run, name) if one.baseline == baseline]
        if len(found) != 1 or found[0].uncertain or found[0].gains[-1] == "unknown":
            continue
        start = found[0].from_start
        if start:
            first = f"from {fmt.size(start[0][0].case)} up"
            place = first if found[0].start else "at every size"
            where.setdefault(f"use {{}} {place}", []).append(name)
        elif "faster" not in found[0].gains:
            where.setdefault(f"stay with {baseline}: {{}} is faster at no size", []).append(name)
    said = [text.format(fmt.listed(names)) for text, names in where.items()]
    faster = [name for text, names in where.items() if text.startswith("use") for name in names]
    said += [price for price in [_price(faster, run)] if price]
    said += [layout for layout in [channels_last(run)] if layout]
    return [Line(DO, "; ".join(said))] if said else []


def _price(names: Sequence[str], run: Run) -> str:
    """The relative errors at the largest size: "error 3.6e-04, 1.6e-06 in fp32 (8192)"."""
    for group in sorted(groups_of(run), key=lambda group: -group[0].flops):
        errors = {
            name: fmt.error(found.total_error)
            for name in (*names[:2], "fp32")
            if (found := representative(group, [name])) and found.total_error is not None
        }
        base = errors.pop("fp32", "")
        if errors and base:
            own = " and ".join(errors.values())
            return f"error {own}, {base} in fp32 ({fmt.size(group[0].case)})"
    return ""


def _doubts(run: Run) -> list[Line]:
    """What was not measured, and what one process does not know."""
    timed = {r.case.precision_name for r in run.results if r.measurement}
    lost = [
        r for r in run.results
        if r.measurement is None and OWN not in r.case.backend
        and (r.case.precision_name in timed or r.case.precision_name not in arms_of(run).asked)
    ]  # fmt: skip
    lines: list[str] = []
    if lost:
        of = f"{len(lost)} of {fmt.count(len(run.results), 'case')}"
        words = "failed" if any(r.status == "failed" for r in lost) else "not measured"
        lines.append(f"{of} {words}: {_reasons(lost)}")
    absent = dict.fromkeys(one.not_measured for one in summaries(run) if one.not_measured)
    lines += absent
    if timed and not any(r.measurement.processes for r in run.results if r.measurement):
        lines.append("one process (--processes 3)")
    return [Line(DOUBT, "; ".join(lines))] if lines else []


# ---------------------------------------------------------------- tables


def _tables(run: Run) -> list[Part]:
    """The first is that of the screen: own kernels, else sizes, else settings."""
    own = [result for result in run.results if OWN in result.case.backend]
    settings, rivals, libraries = _settings(run), _rivals(run), _libraries(run)
    shown = own or [
        result
        for name in arms_of(run).asked
        for group in groups_of(run)
        if (result := representative(group, [name]))
    ]
    one_setting = len({subject_of(result, run) for result in shown}) == 1
    if own and len(own) <= 2 * MOST_ROWS:
        first = [_sizes(run, own)]
    elif one_setting and len(shown) <= MOST_ROWS:
        first = [_sizes(run, shown)]
    elif settings.rows and not own:
        wide = len(arms_of(run).baselines) > 1
        without = ["bottlenecks", *(["sizes"] if wide and len(arms_of(run).asked) > 1 else [])]
        first = shortened(settings, MOST_SETTINGS, without if wide else ())
        settings = Part()
    elif rivals.rows and run.kind != "peak":
        first = shortened(rivals, MOST_SETTINGS, ["libraries"])
        rivals = Part()
    else:
        first = [_best(run)]
    others = [replace(part, level=VERBOSE) for part in (settings, rivals, libraries)]
    return [with_signs(first[0]), *first[1:], *others]


def shortened(part: Part, most: int, without: Sequence[str]) -> list[Part]:
    """The first rows and the columns that fit a screen; all of them for --verbose."""
    columns = [column for column in part.columns if column.path not in without]
    more = len(part.rows) - most
    below = [*part.below, *([f"and {more} more: --verbose"] if more > 0 else [])]
    return [replace(part, columns=columns, rows=part.rows[:most], below=below),
            replace(part, level=VERBOSE)]  # fmt: skip


def _sizes(run: Run, results: Sequence[Result]) -> Part:
    """A row a result; for the user's kernels first their ratio to each library."""
    own = [result for result in results if OWN in result.case.backend]
    several = len({result.case.precision_name for result in results}) > 1
    backends = len({result.case.backend for result in own}) > 1
    libraries = list(dict.fromkeys(name for r in own for name in r.vs_backend if OWN not in name))
    baselines = [] if libraries else list(reversed(arms_of(run).baselines))
    unit = rate_unit(results)
    setting = len({subject_of(result, run) for result in results}) > 1
    columns = [
        *([Column("back end", "result.case.backend", once=True)] if backends else []),
        *([Column("precision", "result.case.precision_name", once=True)] if several else []),
        *([Column("setting", "subject", once=True)] if setting else []),
        Column("size", "size"),
        Column("time", "result.median_s", fmt.duration),
        *(Column(f"x {name}", f"beside.{name}", fmt.ratio) for name in libraries),
        *(Column(f"x {name}", f"speedup.{name}", fmt.ratio) for name in baselines),
        *([] if own else [Column(unit.name, "result.flop_per_s", unit.text, 3)]),
        Column("% of peak", "result.ceiling_pct", of_peak, 2),
        Column("bottleneck", "result.bound", drop=1),
    ]
    rows = [
        row_of(result, {
            "result": result, "subject": subject_of(result, run), "size": _size_of(result),
            "beside": result.vs_backend, "speedup": result.speedup,
        })
        for result in sorted(results, key=lambda r: _order(r, run))
    ]  # fmt: skip
    return Part("", columns, rows)


def _order(result: Result, run: Run) -> tuple[Any, ...]:
    """By back end, precision and setting as they were asked for, then by size."""
    precisions = list(dict.fromkeys(r.case.precision_name for r in run.results))
    return (result.case.backend if OWN in result.case.backend else "",
            precisions.index(result.case.precision_name), subject_of(result, run),
            result.case.problem.flops)  # fmt: skip


def _size_of(result: Result) -> int | str:
    """A number where the size is one, so that it is aligned as such."""
    size = fmt.size(result.case)
    return int(size) if size.isdecimal() else size


def _settings(run: Run) -> Part:
    """A row for each precision and setting: from where, and how much, it is faster."""
    arms = arms_of(run)
    baselines = list(reversed(arms.baselines))
    rows: list[Row] = []
    for name in arms.asked:
        found: dict[str, dict[str, Payoff]] = {}
        for one in payoffs(run, name):
            found.setdefault(one.subject, {})[one.baseline] = one
        for subject, by_baseline in found.items():
            results = [result for result, _ in next(iter(by_baseline.values())).rows]
            bounds = Counter(result.bound for result in results if result.bound)
            said = [f"{bound} {count}" for bound, count in bounds.most_common(2)]
            item = {"precision": name, "setting": subject, "sizes": len(results),
                    "bottlenecks": ", ".join(said)}  # fmt: skip
            rows.append(Row(item | {b: _against(one) for b, one in by_baseline.items()}))
    several = len({row.item["precision"] for row in rows}) > 1
    columns = [
        *([Column("precision", "precision", once=True)] if several else []),
        Column("setting", "setting"),
        *(column for name in baselines for column in (
            Column(f"faster than\n{name} from", f"{name}.from"),
            Column(f"x {name}\nleast", f"{name}.least", fmt.times),
            Column("\nmost", f"{name}.most", fmt.times),
        )),
        Column("sizes", "sizes", drop=1),
        Column("bottlenecks", "bottlenecks", drop=2),
    ]  # fmt: skip
    return Part("Where a precision is faster, by more than 2 %", columns, rows)


def _against(one: Payoff) -> Mapping[str, object]:
    start = fmt.size(one.from_start[0][0].case) if one.from_start else "-"
    ratios = [ratio.ratio for _, ratio in one.rows]
    return {
        "from": fmt.UNCERTAIN if one.uncertain else start,
        "least": min(ratios), "most": max(ratios),
    }  # fmt: skip


def _rivals(run: Run) -> Part:
    """Our kernels, and the user's, against the better library: a row for each precision."""
    columns = [
        Column("back end", "backend"),
        Column("precision", "precision"),
        Column("setting", "which"),
        Column("sizes", "sizes"),
        Column("libraries", "libraries", drop=2),
        Column("geometric\nmean", "mean"),
        Column("least", "least.ratio.ratio", "{:.2f}".format),
        Column("at", "at"),
        Column("library\nthere", "least.library", drop=1),
    ]
    rows = [
        Row({
            "backend": one.backend, "precision": one.precision, "which": one.which,
            "sizes": len(one.rows),
            "libraries": ", ".join(one.libraries)
            + (f" ({one.not_measured})" if one.not_measured else ""),
            "mean": f"{one.mean:.3f}{fmt.UNCERTAIN * bool(one.ruined_pct)}",
            "least": one.least, "at": _size_of(one.least.result),
        })
        for one in summaries(run, lambda result: subject_of(result, run))
    ]  # fmt: skip
    title = "Times as fast as the better of the libraries measured at each size"
    return Part(title, columns, rows)


def _libraries(run: Run) -> Part:
    """The vendor's other libraries beside the first, a row for each precision: geometric means over
    the problems that both computed."""
    library = next((r.case.backend for r in run.results if is_library(r.case)), "")
    found: dict[str, dict[str, list[float]]] = {}
    for result in run.results:
        if library in result.vs_backend and not is_rival(result):
            by_backend = found.setdefault(result.case.precision_name, {})
            ratio = result.vs_backend[library].ratio
            by_backend.setdefault(result.case.backend, []).append(ratio)
    backends = dict.fromkeys(name for by_backend in found.values() for name in by_backend)
    columns = [
        Column("precision", "precision"),
        *(Column(name, f"means.{name}", "{:.2f}".format) for name in backends),
    ]
    rows = [
        Row({"precision": precision,
             "means": {name: geometric_mean(ratios) for name, ratios in by_backend.items()}})
        for precision, by_backend in found.items()
    ]  # fmt: skip
    return Part(f"Times as fast as {library}, geometric mean over the sizes", columns, rows)


def _best(run: Run) -> Part:
    """The highest rate of each precision."""
    names = dict.fromkeys(r.case.precision_name for r in run.results if r.flop_per_s)
    best = [
        max((r for r in run.results if r.case.precision_name == name),
            key=lambda r: r.flop_per_s or 0.0)
        for name in names
    ]  # fmt: skip
    unit = rate_unit(best)
    columns = [
        Column("precision", "case.precision_name"),
        Column(unit.name, "flop_per_s", unit.text),
        Column("% of peak", "ceiling_pct", of_peak),
        Column("at", "case", fmt.problem),
        Column("back end", "case.backend"),
        Column("bottleneck", "bound", drop=1),
    ]
    return Part("The highest rates", columns, [Row(result) for result in best])
