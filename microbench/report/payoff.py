"""What `payoff` says: from which width a precision is faster, for each image and batch size; of a
linear layer, for each way to launch it too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from kernels import OPS
from kernels.linear import Linear
from kernels.op import Op
from microbench import fmt
from microbench.report import cases, charts
from microbench.report.parts import VERBOSE, Column, Line, Part, Report, Row
from microbench.results.types import Json, Ratio, Run
from microbench.verdict import RUINED, Payoff, asked_for, payoffs, subject_of

BETWEEN = "nothing between these widths was measured"
# How a linear layer is launched, in words; what is given in FP8 has no casts.
LAUNCHED = {"launched": "as launched", "graph": "as a CUDA graph", "eager": "uncompiled"}
LAUNCHING = 1.3  # times the GPU's time
MOST_ROWS = 12  # of the table of linear layers
Map = tuple[str, str, str]  # setting, precision, baseline


def report(run: Run) -> Report | None:
    """The report of a run over widths, images and batches; None where it has no speed-up."""
    if not (maps := maps_of(run)):
        return None
    if _op(run).problem is Linear:
        answer, tables = _of_layers(run, maps), _layers(maps)
    else:
        answer, tables = _answer(run, maps), [starts_table(maps)]
    return cases.kernel_report(run, answer, tables, partial(_chart, run, maps))


def maps_of(run: Run) -> dict[Map, list[Payoff]]:
    """Each image and batch size with its widths, TF32 first; by setting, precision and baseline."""
    maps: dict[Map, list[Payoff]] = {}
    for name in asked_for(run):
        for payoff in payoffs(run, name):
            subject = subject_of(payoff.rows[0].result, run, without=_op(run).across)
            maps.setdefault((subject, name, payoff.baseline), []).append(payoff)
    ordered = sorted(maps, key=lambda key: key[2], reverse=True)
    return {key: sorted(maps[key], key=_across) for key in ordered}


def _op(run: Run) -> Op:
    return OPS[run.results[0].case.op]


def _across(payoff: Payoff) -> tuple[int, ...]:
    """Its image and batch size, or what the op has across a map."""
    setting = payoff.case.problem.setting
    return tuple(int(setting[name].split("x")[0]) for name in OPS[payoff.case.op].across)


def _area(width: object) -> int:
    """What widths are sorted by: inputs times outputs, of "64" and of "64x256"."""
    ends = [int(end) for end in str(width).split("x")]
    return ends[0] * ends[-1]


def starts_of(of_map: Sequence[Payoff]) -> Counter[str]:
    """From which width it is faster, at how many image and batch sizes; "": at no width."""
    return Counter(payoff.first_faster for payoff in of_map if not payoff.uncertain)


# ---------------------------------------------------------------- the answer


def _answer(run: Run, maps: Mapping[Map, Sequence[Payoff]]) -> list[Line]:
    texts, unclear = list[str](), dict[str, float]()
    first, op = next(iter(maps))[2], _op(run)
    for (subject, name, baseline), cells in maps.items():
        starts = starts_of(cells)
        if doubtful := [pct for payoff in cells for pct in payoff.uncertain.values()]:
            unclear[_title((subject, name, baseline))] = max(doubtful)
        if starts and baseline == first:
            where = f" in {subject}" if subject else ""
            alone = sum(len(payoff.rows) == 1 for payoff in cells if not payoff.uncertain)
            start = _from(starts, op, alone)
            texts.append(f"{name} is faster than {baseline}{where} {start}")
    if texts:
        texts[0] += f" ({run.device_name}, {' and '.join(op.across)} sizes)"
    lines = [Line("", text) for text in texts]
    if texts:
        hardest = [payoff for key, cells in maps.items() if key[2] == first for payoff in cells]
        lines += cases.why(run, [row.result for payoff in hardest for row in payoff.rows])
        lines += [Line("Do", advice)] if (advice := cases.channels_last(run)) else []
    lines += cases.no_verdict(unclear, alone=not texts)
    if any(len(payoff.rows) > 1 for cells in maps.values() for payoff in cells):
        lines.append(Line("Doubt", BETWEEN))
    return lines


def _from(starts: Counter[str], op: Op, alone: int) -> str:
    """ "from 8 channels for 5 of 24 sizes, 16 for 4, at no width for 2"; of many "from 8 to 256
    channels, most often 64 (7 of 24 sizes)".

    At `alone` of them a single width was measured, from which nothing follows for wider ones.
    """
    whole = starts.total()
    never = starts.pop("", 0)
    first, *others = sorted(starts, key=_area) or [""]
    of = f"{starts[first]} of {whole}" if starts[first] < whole else f"all {whole}"
    start = "at" if 2 * alone > whole else "from"
    parts = [f"{start} {first} {op.axis_name} for {of} sizes"] if first else []
    parts += [f"{width} for {starts[width]}" for width in others]
    if len(others) > 2:
        often = max(starts, key=lambda width: starts[width])
        ends = f"from {first} to {others[-1]} {op.axis_name}"
        parts = [f"{ends}, most often {often} ({starts[often]} of {whole} sizes)"]
    parts += [f"at no width for {never}"] if never else []
    parts += [f"no other width measured at {alone} of {whole}"] if alone else []
    return ", ".join(parts)


# ---------------------------------------------------------------- linear layers


def _of_layers(run: Run, maps: Mapping[Map, Sequence[Payoff]]) -> list[Line]:
    """A line a precision, for the most tokens: from which features it pays, by how it is launched,
    and what its products gain without casts.
    """
    pays, gains = dict[str, list[str]](), dict[str, dict[str, str]]()
    unclear: dict[str, float] = {}
    every = [payoff for some in maps.values() for payoff in some]
    most = max(every, key=lambda payoff: (len(payoff.rows) > 1, _across(payoff)))
    for key, payoff in ((key, payoff) for key, some in maps.items() for payoff in some):
        if _across(payoff) != _across(most):
            continue
        if payoff.uncertain:
            unclear[_title(key)] = max(payoff.uncertain.values())
            continue
        name, problem = key[1], payoff.case.problem
        step = "" if problem.setting["pass"] == "step" else f" in {problem.setting['pass']}"
        how = LAUNCHED.get(problem.layout, "without casts") + step
        if problem.layout in LAUNCHED and len(payoff.rows) > 1:
            pays.setdefault(name, []).append(f"{_pays(payoff)} {how}")
        else:
            ratio = cases.known_ratio([row.ratio for row in payoff.rows])
            gains.setdefault(name, {})[how] = ratio
    lines: list[Line] = []
    for name in dict.fromkeys((*pays, *gains)):
        texts = [f"pays {', '.join(pays[name])}"] if name in pays else []
        if name in gains:
            (how, ratio), *more = gains[name].items()
            also = [f", {ratio} {how}" for how, ratio in more]
            texts.append(f"is {ratio} times as fast as {most.baseline} {how}{''.join(also)}")
        lines.append(Line("", f"{name} {'; it '.join(texts)}"))
    if lines:
        device, fewer = run.device_name, len({*map(_across, every)}) > 1
        tokens = f"{_across(most)[0]} tokens{', others below' * fewer}"
        at = "" if len(most.rows) > 1 else f"{fmt.size(most.case)} features, "
        lines[0] = Line("", f"{lines[0].text} ({device}, {at}{tokens})")
        cast, alone = (
            {row.gain for payoff in every for row in payoff.rows
             if (row.result.case.problem.layout in LAUNCHED) == casts} for casts in (True, False)
        )  # fmt: skip
        if "slower" in cast and alone == {"faster"}:
            reason = "where FP8 is slower, its casts and scales cost more than its products gain"
            lines.append(Line("Why", reason))
        lines += _launching(run, most.baseline)
    lines += cases.no_verdict(unclear, alone=not lines)
    return [*lines, *([Line("Doubt", BETWEEN)] if len(most.rows) > 1 else [])]


def _launching(run: Run, baseline: str) -> list[Line]:
    """How much longer the baseline takes as launched, where that is the CPU's time."""
    times = {
        result.case.key.replace("/launched/", "/graph/"): result.median_s or 0.0
        for result in run.results
        if result.case.precision_name == baseline and result.case.problem.layout == "launched"
    }
    ratios = [times[result.case.key] / result.median_s for result in run.results
              if result.case.key in times and result.median_s]  # fmt: skip
    if max(ratios, default=0.0) < LAUNCHING:
        return []
    longer = f"{baseline} takes up to {max(ratios):.1f} times as long as its graph"
    return [Line("Why", f"as launched, one layer at a time, the CPU is the limit: {longer}")]


def _pays(payoff: Payoff) -> str:
    """ "from 2048x8192 features on and at 2048", "at every width"."""
    if payoff.start == 0:
        return "at every width"
    before = payoff.rows[: payoff.start]
    below = [fmt.size(row.result.case) for row in before if row.gain == "faster"]
    parts = [f"from {payoff.first_faster} features on"] if payoff.first_faster else []
    parts += [f"at {fmt.listed(below)}"] if below else []
    return fmt.joined(parts) or "at no width"


def _layers(maps: Mapping[Map, Sequence[Payoff]]) -> list[Part]:
    """A table a precision, the one that gains most first: a row for each number of tokens and
    features, a column for each way to launch.
    """
    by_name: dict[str, dict[tuple[int, str], dict[str, Any]]] = {}
    ends: dict[str, dict[int, list[str]]] = {}
    for (subject, name, _), some in maps.items():
        for one in some:
            (tokens,) = _across(one)
            if len(one.rows) > 1:
                even = _break_even(one).replace("-", "not seen")
                even = "none, faster at every width" if one.start == 0 else even
                ends.setdefault(name, {}).setdefault(tokens, []).append(f"{subject} {even}".strip())
            for result, ratio, _ in one.rows:
                size = fmt.size(result.case)
                row = by_name.setdefault(name, {}).setdefault((tokens, size), {})
                row |= {"tokens": tokens, "size": size, subject or "gain": ratio}
    subjects = dict.fromkeys(subject or "gain" for subject, *_ in maps)
    columns = [
        Column("tokens", "tokens", once=True),
        Column("features", "size"),
        *(Column(way.replace("gain", "times as fast"), way, fmt.ratio) for way in subjects),
    ]
    parts: list[Part] = []
    names = sorted(by_name, key=lambda name: -_mean(by_name[name].values()))
    for name in names:
        rows = by_name[name]
        every = [Row(rows[key]) for key in sorted(rows, key=lambda key: (-key[0], _area(key[1])))]
        found = sorted(ends.get(name, {}).items(), reverse=True)
        below = [f"break-even, by in x out, at {n} tokens: {', '.join(ways)}" for n, ways in found]
        whole = Part(f"{name}: times as fast as bf16", columns, every, below)
        parts += [replace(whole, level=VERBOSE)] if parts else cases.shortened(whole, MOST_ROWS)
    if len(names) > 1:
        more = f"tables of {fmt.listed(names[1:])}: --verbose"
        parts[0] = replace(parts[0], below=[*parts[0].below, more])
    return parts


def _mean(rows: Iterable[Mapping[str, Any]]) -> float:
    return fmean(ratio.ratio for row in rows for ratio in row.values() if isinstance(ratio, Ratio))


# ---------------------------------------------------------------- tables


def starts_table(maps: Mapping[Map, Sequence[Payoff]]) -> Part:
    """From which width or size a precision is faster, for each setting and baseline."""
    rows: list[Row] = []
    for (subject, name, baseline), some in maps.items():
        starts = starts_of(some)
        never = starts.pop("", 0)
        ends = sorted(starts, key=_area)
        every = [row for payoff in some for row in payoff.rows]
        known = [row.ratio.ratio for row in every if row.gain != RUINED]
        faster = sum(row.gain == "faster" for row in every)
        widths = f"at {faster} of {len(every)}" if faster else "none"
        if starts and all(one.steady for one in some if one.first_faster):
            widths = " to ".join(dict.fromkeys(map(str, (ends[0], ends[-1]))))
        unclear = len(some) - starts.total() - never
        rows.append(Row({
            "setting": subject, "precision": name, "against": baseline,
            "from": fmt.UNCERTAIN if unclear == len(some) else widths,
            "gain": fmt.span(known) if known else None,
            "sizes": f"{starts.total()}/{len(some)}" if len(some) > 1 else None,
            "unclear": (unclear if len(some) > 1 else 0) or None, "bounds": cases.bottlenecks(some),
        }))  # fmt: skip
    order = list(dict.fromkeys(row.item["setting"] for row in rows))
    rows.sort(key=lambda row: (order.index(row.item["setting"]), row.item["precision"]))
    (first, *_), *_ = maps.values()
    op = OPS[first.case.op]
    several, baselines = len({key[1] for key in maps}) > 1, list({key[2]: None for key in maps})
    than = f" than {baselines[0]}" * (len(baselines) == 1)
    columns = [
        Column("setting", "setting", once=True),
        *([Column("precision", "precision", once=True)] if several else []),
        *([Column("against", "against")] if len(baselines) > 1 else []),
        Column(f"faster from\n{op.axis_name}", "from"),
        *(
            [Column(f"at sizes of\n{', '.join(op.across)}", "sizes")]
            if any(row.item["sizes"] for row in rows)
            else []
        ),
        Column("no\nverdict", "unclear"),
        Column("times as fast", "gain"),
        Column("bottlenecks", "bounds", drop=1),
    ]
    return Part(f"Where a precision is faster{than}, by more than 2 %", columns, rows)


def _break_even(payoff: Payoff) -> str:
    """Between the last width at which it is slower, and the first from which it stays faster, each
    by the whole interval: "64..128"; "<= 8" or "> 512" where the other end was not measured.
    """
    before = payoff.rows[: payoff.start]
    slower = [fmt.size(row.result.case) for row in before if row.gain == "slower"]
    if not payoff.first_faster:
        return f"> {slower[-1]}" if slower else "-"
    return f"{slower[-1]}..{payoff.first_faster}" if slower else f"<= {payoff.first_faster}"


def _title(key: Map) -> str:
    subject, name, baseline = key
    return " ".join(filter(None, (subject, name, "against", baseline)))


# ---------------------------------------------------------------- the chart


def _chart(run: Run, maps: Mapping[Map, Sequence[Payoff]]) -> Any:
    rows: list[Json] = []
    for key, some in maps.items():
        widths = {fmt.size(row.result.case) for one in some for row in one.rows}
        for width in sorted(sorted(widths), key=_area)[::-1]:
            for one in some:
                rows += [{
                    "panel": _title(key), "x": "/".join(map(str, _across(one))), "y": width,
                    "text": fmt.short_ratio(ratio), "small": result.bound or "",
                    "ratio": 1.0 if ratio.no_difference or ratio.ruined_pct else ratio.ratio,
                    "low": ratio.ci95 and ratio.ci95[0], "high": ratio.ci95 and ratio.ci95[1],
                    "note": result.why or "",
                } for result, ratio, _ in one.rows if fmt.size(result.case) == width]  # fmt: skip
    places = sorted({_across(one) for some in maps.values() for one in some})
    across = ["/".join(map(str, place)) for place in places]
    op = _op(run)
    drawn = charts.cells(rows, x=", ".join(op.across.values()), across=across, y=op.axis_name)
    shown = "times as fast, and the bottleneck" if op.explained else "times as fast"
    below = [f"{shown}; ~1: no difference seen; grey: not measured"]
    return charts.titled(drawn, cases.title_of(run), below)
