"""What a run of kernels says: one precision against another, and kernels against the libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from kernels import is_library
from kernels.gemm import Gemm
from kernels.op import OWN, SEPARATE
from microbench import fmt, verdict
from microbench.report import cases, charts, layers
from microbench.report import payoff as payoff_report
from microbench.report.parts import VERBOSE, Column, Line, Part, Report
from microbench.results.types import Json, Ratio, Result, Run

MOST_ROWS = 12  # of the table of sizes; with more, it has a row a setting
MOST_SETTINGS = 8


def report(run: Run) -> Report:
    """The report of the run's kernels."""
    if run.network:
        return layers.report(run, run.network)
    if run.kind == "payoff" and (found := payoff_report.report(run)):
        return found
    return cases.kernel_report(run, _answer(run), _tables(run), lambda: _chart(run))


def _answer(run: Run) -> list[Line]:
    own = [result for result in run.results if OWN in result.case.backend]
    asked = verdict.asked_for(run)
    shown = own or verdict.representatives(run, asked[:1])
    unclear: dict[str, float] = {}
    texts = cases.library_sentences(
        [s for s in verdict.summaries(run) if OWN in s.backend or not own], unclear
    )
    if not own and verdict.compared_with(run):
        texts = [*_one_call(run, unclear), *_gains(run, unclear), *texts]
    elif run.results and not own:
        compared = [*_one_call(run, unclear), *_without_baseline(run, unclear)]
        texts = [*compared, *texts, *([] if compared else _highest(run, unclear))]
    if run.kind == "ceilings" and not run.results:
        texts = cases.peaks(run, "measured")
    if texts:
        first = texts[0].removesuffix(")")
        texts[0] = f"{first}{'; ' if first != texts[0] else ' ('}{_context(run, shown)})"
    if not texts and not own:
        texts = _not_measured(run, asked) if run.results else ["No case was measured"]
    lines = [Line("", text) for text in texts]
    lines += [*cases.why(run, shown), *_copies(run), *([] if own else _do(run))] if texts else []
    return [*lines, *cases.no_verdict(unclear, alone=not texts)]


def _copies(run: Run) -> list[Line]:
    """How much of a batch's products with a bias is the copy of the bias before them."""
    shares: dict[str, list[int]] = {}
    for result in run.results:
        named = zip(result.kernels, result.kernels_s, strict=False)
        copy_s = sum(seconds for name, seconds in named if "elementwise" in name)
        if copy_s and is_library(result.case) and result.case.problem.layout.endswith("-bias"):
            share = round(100 * copy_s / sum(result.kernels_s))
            shares.setdefault(result.variant or "", []).append(share)
    return [
        Line("Why", f"{call} first copies the bias: {ends} % of its time")
        for call, some in shares.items()
        for ends in (" to ".join(dict.fromkeys(map(str, (min(some), max(some))))),)
    ]


def _context(run: Run, shown: Sequence[Result]) -> str:
    """What was measured, in a few words: "NVIDIA H200, GEMM 256..8192, cublas"."""
    measured = sorted((r for r in shown if r.measurement), key=lambda r: r.flops)
    sizes = [fmt.size(result.case) for result in (*measured[:1], *measured[-1:])]
    of = "..".join(dict.fromkeys(sizes))
    ops = {result.case.op for result in measured}
    what = f"{'attention' if 'attention' in ops else 'GEMM'} {of}"
    what = f"convolutions of {of} channels" if "conv" in ops else what
    libraries = dict.fromkeys(r.case.backend for r in measured if is_library(r.case)
                              and not cases.picked(r))  # fmt: skip
    device = run.device_name
    ours = not any(is_library(result.case) for result in measured)
    return ", ".join([device, *([] if ours else [what]), *libraries])


def _others(run: Run) -> list[str]:
    """The back ends that a library's one call is held against: those that it picks from, or
    separate kernels.
    """
    picks = any(map(cases.picked, run.results))
    return list(dict.fromkeys(
        name for result in run.results
        if (name := result.case.backend) == SEPARATE
        or (picks and OWN not in name and not is_library(result.case))
    ))  # fmt: skip


def _calls(run: Run) -> list[Result]:
    """The library's results that one of these was measured beside."""
    asked, others = verdict.asked_for(run), _others(run)
    return [r for r in run.results if is_library(r.case) and r.case.precision_name in asked
            and any(name in r.vs_backend for name in others)]  # fmt: skip


Pair = tuple[Result, str, Ratio]  # a library's call, another back end, the call over that


def _one_call(run: Run, unclear: dict[str, float]) -> list[str]:
    """What one call of a library is held against: what it picks from, or a kernel for each part."""
    calls, pairs = _calls(run), list[Pair]()
    for result in calls:
        ran = result.variant or ""
        for name in _others(run):
            ratio = result.vs_backend.get(name)
            if ratio is None or name == ran:
                continue
            if ruined := max(ratio.ruined_pct, result.ruined_pct):
                unclear[f"{ran} against {name}"] = ruined
            else:
                pairs.append((result, name, ratio))
    return _picks(calls, pairs) if any(map(cases.picked, calls)) else _apart(pairs)


def _picks(calls: Sequence[Result], pairs: Sequence[Pair]) -> list[str]:
    """ "torch picks cudnn, 1.42 to 1.64 times as fast as flash"; how often another is faster."""
    found: dict[str, list[Ratio]] = {}
    faster: dict[str, str] = {}
    for result, name, ratio in pairs:
        found.setdefault(name, []).append(ratio)
        if (ratio.ci95 or (1, 1))[1] < 1 / verdict.MIN_GAIN:
            what = f"{name} at {fmt.problem(result.case)} in {result.case.precision_name}"
            faster.setdefault(result.case.key, what)
    known = len({result.case.key for result, *_ in pairs})
    picks = Counter(cases.picked(result) for result in calls if cases.picked(result))
    named = [name if count == len(calls) else f"{name} in {count} of {len(calls)}"
             for name, count in picks.most_common()]  # fmt: skip
    times = [f"{cases.known_ratio(ratios)} {'as' if i else 'times as fast as'} {name}"
             for i, (name, ratios) in enumerate(found.items())]  # fmt: skip
    text = f"torch picks {', '.join([*named, *times])}"
    if faster:
        first = next(iter(faster.values()))
        text += f"; another is faster in {len(faster)} of {known} cases ({first})"
    return [text]


def _apart(pairs: Sequence[Pair]) -> list[str]:
    """ "bmm is 2.41 times as fast as a kernel for each product in bf16"."""
    found: dict[str, dict[str, list[Ratio]]] = {}
    for result, _, ratio in pairs:
        problem, precision = result.case.problem, result.case.precision_name
        assert isinstance(problem, Gemm)
        calls = found.setdefault(problem.apart, {})
        calls.setdefault(f"{result.variant} {{}} in {precision}", []).append(ratio)
    sentences: list[str] = []
    for apart, calls in found.items():
        texts = [text.format(cases.known_ratio(ratios)) for text, ratios in calls.items()]
        (text, ratios), *_ = calls.items()
        texts[0] = text.format(f"is {cases.known_ratio(ratios)} times as fast as {apart}")
        sentences.append(", ".join(texts))
    return sentences


def _gains(run: Run, unclear: dict[str, float]) -> list[str]:
    """Each precision asked for against the baselines, TF32 first: the range over all sizes.

    Of many, the fastest on average.
    """
    texts: dict[str, str] = {}
    for name in verdict.asked_for(run):
        by_setting = verdict.payoffs(run, name)
        for payoff in by_setting:
            if payoff.uncertain:
                title = filter(None, (payoff.subject, name, "against", payoff.baseline))
                unclear[" ".join(title)] = max(payoff.uncertain.values())
        known: list[str] = []
        for baseline in verdict.compared_with(run):
            clear = [p for p in by_setting if p.baseline == baseline and not p.uncertain]
            if clear:
                known.append(_gain(clear, "as" if known else "times as fast as"))
        if known:
            texts[name] = f"{name} is {', '.join(known)}"
        elif absent := _not_measured(run, [name]):
            texts[name] = absent[0]
    if len(texts) <= cases.MOST_PRECISIONS:
        return list(texts.values())
    first, size = _fastest(run, [*texts])
    if not first:
        return list(texts.values())
    best, *near = first
    also = f"with {fmt.listed(near)} " * bool(near)
    fastest = f"{best}, {also}the fastest of {len(texts)} at {size},"
    return [texts[best].replace(best, fastest, 1)]


def _not_measured(run: Run, names: Sequence[str]) -> list[str]:
    """The precisions that have no figure, each with the reason."""
    by = {name: [r for r in run.results if r.case.precision_name == name] for name in names}
    return [f"{name} was not measured: {cases.reasons(results)}" for name, results in by.items()
            if not any(result.measurement for result in results)]  # fmt: skip


def _fastest(run: Run, names: Sequence[str]) -> tuple[list[str], str]:
    """The precision with the shortest time at the largest size that all have, before those within
    2 % of it; and that size. Nothing where no size has all.
    """
    for group in sorted(verdict.groups_of(run), key=lambda group: -group[0].flops):
        found = {name: verdict.representative(group, [name]) for name in names}
        times = {name: one.median_s for name, one in found.items() if one and one.median_s}
        if len(times) == len(names):
            order = sorted(times, key=lambda name: times[name])
            most_s = verdict.MIN_GAIN * times[order[0]]
            return [name for name in order if times[name] <= most_s], fmt.size(group[0].case)
    return [], ""


def _without_baseline(run: Run, unclear: dict[str, float]) -> list[str]:
    """Without a baseline, the precisions against one that the library has: the first that was asked
    for, or else the last. Of the library's own call where it has one, which took turns with it.
    """
    texts: list[str] = []
    asked = verdict.asked_for(run)
    for base in (asked[0], asked[-1]):
        for name in (name for name in asked if name != base):
            best = [r for r in verdict.representatives(run, [name]) if base in r.speedup]
            found = [result.speedup[base] for result in best]
            others = dict.fromkeys(r.case.backend for r in best if not is_library(r.case))
            by = f" ({', '.join(others)})" * bool(others)
            if known := [ratio for ratio in found if not ratio.ruined_pct]:
                texts.append(f"{name}{by} is {cases.known_ratio(known)} times as fast as {base}")
            elif found:
                unclear[f"{name} against {base}"] = max(ratio.ruined_pct for ratio in found)
        if texts:
            break
    return [", ".join(texts)] if 0 < len(texts) <= cases.MOST_PRECISIONS else []


def _gain(by_setting: Sequence[verdict.Payoff], times: str) -> str:
    """ "1.41 to 1.90 times as fast as tf32 (faster from 64 up)"."""
    baseline = by_setting[0].baseline
    if all(payoff.gains[-1] == "unknown" for payoff in by_setting):
        unknown = "(unknown: one round, raise --budget)"
        return f"perhaps {_range(by_setting)} times as fast as {baseline} {unknown}"
    return f"{_range(by_setting)} {times} {baseline}{_where(by_setting)}"


def _highest(run: Run, unclear: dict[str, float]) -> list[str]:
    """The highest rate of each precision that is known well; of one precision, where."""
    texts: list[str] = []
    asked = verdict.asked_for(run)
    for name in asked:
        rated = [r for r in run.results if r.flop_per_s and r.case.precision_name == name]
        best = max(rated, key=lambda r: (not r.ruined_pct, r.flop_per_s), default=None)
        if best and best.ruined_pct:
            unclear[name] = best.ruined_pct
        elif best:
            unit, problem = verdict.rate_unit([best]), best.case.problem
            at = f" at {problem.size} {problem.layout} by {best.case.backend}" * (len(asked) == 1)
            texts.append(f"{name} {unit.text(best.flop_per_s or 0.0)} {unit.name}{at}")
    return [f"highest rate: {', '.join(texts)}"] if texts else []


def _range(by_setting: Sequence[verdict.Payoff]) -> str:
    """ "1.41 to 1.90" over all sizes that are known well enough; "1.53 ±0.12" of one."""
    known = [
        row.ratio for payoff in by_setting for row in payoff.rows if row.gain != verdict.RUINED
    ]
    return fmt.ratio(known[0]) if len(known) == 1 else fmt.ratios(known)


def _where(by_setting: Sequence[verdict.Payoff]) -> str:
    """ " (faster from 64 up)"; "" at every size, for several settings, which have a table, and at
    multiples of 8, which is what to do.
    """
    payoff = by_setting[0]
    if len(by_setting) > 1 or payoff.start == 0 or _by_eights(payoff):
        return ""
    if payoff.steady:
        return f" (faster from {payoff.first_faster} up)"
    faster = [fmt.size(row.result.case) for row in payoff.rows if row.gain == "faster"]
    at = ", ".join(faster) or "no size"
    if len(faster) > cases.MOST_PRECISIONS:
        at = f"{len(faster)} of {len(payoff.rows)} sizes"
    return f" (faster at {at})"


def _by_eights(payoff: verdict.Payoff) -> bool:
    """Whether it is faster at every multiple of 8, of sizes that have others too."""
    gains = [row.gain for row in payoff.rows if (row.result.case.problem.axis or 1) % 8 == 0]
    return 1 < len(gains) < len(payoff.rows) and set(gains) == {"faster"}


def _do(run: Run) -> list[Line]:
    """Which precision to use, against the fastest baseline, and what it costs in accuracy."""
    advice: dict[str, list[str]] = {}
    for name in verdict.asked_for(run):
        baseline = next((b for b in verdict.compared_with(run) if b != name), "")
        by_setting = [one for one in verdict.payoffs(run, name) if one.baseline == baseline]
        if len(by_setting) != 1:
            continue
        (payoff,) = by_setting
        if payoff.uncertain or payoff.gains[-1] == "unknown":
            continue
        if payoff.steady:
            count, first = len(payoff.rows), payoff.first_faster
            every = {1: f"at {first}", 2: "at both sizes"}.get(count, "at all sizes")
            where = f"from {first} up" if payoff.start else every
            advice.setdefault(f"use {{}} {where}", []).append(name)
        elif _by_eights(payoff):
            advice.setdefault("use {} at multiples of 8", []).append(name)
        elif "faster" not in payoff.gains:
            advice.setdefault(f"stay with {baseline}: {{}} is faster at no size", []).append(name)
    texts = [text.format(fmt.listed(names, 3 if len(names) < 4 else 2))
             for text, names in advice.items()]  # fmt: skip
    useful = [name for text, names in advice.items() if text.startswith("use") for name in names]
    texts += filter(None, (_price(useful, run), cases.channels_last(run)))
    return [Line("Do", "; ".join(texts))] if texts else []


def _price(names: Sequence[str], run: Run) -> str:
    """The relative errors at the largest size: "error 3.6e-04, fp32 1.6e-06".

    Of more than two precisions, the largest.
    """
    for group in sorted(verdict.groups_of(run), key=lambda group: -group[0].flops):
        errors = {
            name: found.total_error
            for name in (*names, "fp32")
            if (found := verdict.representative(group, [name])) and found.total_error is not None
        }
        base = errors.pop("fp32", None)
        if errors and base is not None:
            several = f"up to {fmt.error(max(errors.values()))}"
            own = several if len(errors) > 2 else " and ".join(map(fmt.error, errors.values()))
            return f"error {own}, fp32 {fmt.error(base)}"
    return ""


# ---------------------------------------------------------------- tables


def _tables(run: Run) -> list[Part]:
    """The first is that of the screen: own kernels, else sizes, settings, libraries or rates."""
    own = [result for result in run.results if OWN in result.case.backend]
    asked, maps = verdict.asked_for(run), payoff_report.maps_of(run)
    settings = payoff_report.starts_table(maps) if maps else Part()
    by_setting = verdict.summaries(run, lambda result: verdict.subject_of(result, run))
    others = cases.library_table(by_setting, "setting")
    shown = own or [result for name in asked for result in verdict.representatives(run, [name])]
    one_setting = len({verdict.subject_of(result, run) for result in shown}) == 1
    if (calls := _calls(run)) and not own:
        return [*_shortened(run, calls), replace(settings, level=VERBOSE)]
    if (own and len(own) <= 2 * MOST_ROWS) or (one_setting and len(shown) <= MOST_ROWS):
        return [_sizes(run, shown), replace(others, level=VERBOSE)]
    if maps and not own:
        (*_, first), *_ = maps
        hardest = {key: some for key, some in maps.items() if key[-1] == first}
        cut, *_ = cases.shortened(payoff_report.starts_table(hardest), MOST_SETTINGS)
        return [cut, *(replace(part, level=VERBOSE) for part in (settings, others))]
    if others.rows:
        return cases.shortened(others, MOST_SETTINGS)
    return _shortened(run, shown)


def _shortened(run: Run, results: Sequence[Result]) -> list[Part]:
    """A row a result; of many, on the screen the largest of each setting."""
    kinds: dict[tuple[str, ...], list[Result]] = {}
    for result in sorted(results, key=lambda r: -r.flops):
        case = result.case
        key = case.backend, case.precision_name, verdict.subject_of(result, run)
        kinds.setdefault(key, []).append(result)
    largest = [r for of_size in zip_longest(*kinds.values()) for r in of_size if r]
    few = _sizes(run, largest[: cases.FEW_ROWS])
    return cases.shortened(_sizes(run, results), MOST_ROWS, few.rows)


def _sizes(run: Run, results: Sequence[Result]) -> Part:
    """A row a result; for the user's kernels first their ratio to each library."""
    own = [result for result in results if OWN in result.case.backend]
    libraries = verdict.libraries_beside_own(run) if own else []
    baselines = [] if libraries else verdict.compared_with(run)
    others = [] if own else _others(run)
    precisions = list(dict.fromkeys(r.case.precision_name for r in run.results))

    def block(result: Result) -> tuple[Any, ...]:
        precision = precisions.index(result.case.precision_name)
        return result.case.backend * bool(own), precision, verdict.subject_of(result, run)

    rows = sorted(results, key=lambda r: (*block(r), r.case.problem.flops))
    named = [
        Column("back end", "case.backend", once=True),
        Column("precision", "case.precision_name", once=True),
        Column("setting", "", lambda result: verdict.subject_of(result, run), once=True),
    ]
    unit, compares = verdict.rate_unit(results), bool(others or baselines)
    columns = [
        *(column for i, column in enumerate(named) if len({block(r)[i] for r in rows}) > 1),
        Column("size", "case", fmt.size),
        *([Column("call", "variant")] if others else []),
        Column("time", "median_s", fmt.duration),
        *(Column(f"x {name}", f"vs_backend.{name}", fmt.ratio) for name in libraries),
        *(Column(f"x {name}", f"vs_backend.{name}", fmt.short_ratio) for name in others),
        *(Column(f"x {name}", f"speedup.{name}", fmt.ratio) for name in baselines),
        *([] if own else [Column(unit.name, "flop_per_s", unit.text, 3 * compares)]),
        Column("% of peak", "ceiling_pct", cases.of_peak, 2),
        Column("bottleneck", "bound", drop=1),
    ]  # fmt: skip
    return Part("", columns, cases.rows_of(rows))


def _chart(run: Run) -> Any:
    """The rates; of the user's kernels their ratio to each library."""
    rows: list[Json] = []
    for library in verdict.libraries_beside_own(run):
        for result in sorted(run.results, key=lambda r: r.case.problem.flops):
            ratio = result.vs_backend.get(library) if OWN in result.case.backend else None
            if ratio:
                low, high = ratio.ci95 or (None, None)
                rows.append({
                    "label": fmt.problem(result.case), "ratio": ratio.ratio, "low": low,
                    "high": high, "series": f"{result.case.precision_name} {result.case.backend}",
                    "panel": f"times as fast as {library}",
                })  # fmt: skip
    if not rows:
        return cases.rate_chart(run)
    drawn = charts.ratios(rows, x="", y="times as fast as the library")
    title = f"own kernels on {run.device_name}"
    return charts.titled(drawn, title, [", ".join(cases.conditions(run)), "bars: 95 % interval"])
