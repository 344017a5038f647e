"""What `payoff` says: from which width a precision is faster, for each image and batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kernels import OPS
from kernels.op import Op
from microbench import fmt
from microbench.report import charts
from microbench.report.cases import channels_last, made, no_verdict, title_of, why
from microbench.report.parts import VERBOSE, Column, Line, Part, Report, Row
from microbench.results.types import Json, Run
from microbench.verdict import Payoff, payoffs, precisions_of, subject_of

# A letter a cause, beside the number.
CAUSES = {"launch": "l", "memory": "m", "layout": "t", "alignment": "a", "waves": "w",
          "compute": "c", "power": "p", "mixed": "-", "no hardware": "n"}  # fmt: skip
Map = tuple[str, str, str]  # setting, precision, baseline


def report(run: Run) -> Report | None:
    """The report of a run over widths, images and batches; None where it has no speed-up."""
    if not (maps := maps_of(run)):
        return None
    tables = [_table(maps), *(_map(*one) for one in maps.items())]
    return made(run, _answer(run, maps), tables, partial(_chart, run, maps))


def maps_of(run: Run) -> dict[Map, list[Payoff]]:
    """Each image and batch size with its widths, TF32 first; by setting, precision and baseline."""
    found: dict[Map, list[Payoff]] = {}
    for name in precisions_of(run).asked:
        for one in payoffs(run, name):
            subject = subject_of(one.rows[0][0], run, without=_op(run).across)
            found.setdefault((subject, name, one.baseline), []).append(one)
    ordered = sorted(found, key=lambda key: key[2], reverse=True)
    return {key: sorted(found[key], key=_place) for key in ordered}


def _op(run: Run) -> Op:
    return OPS[run.results[0].case.op]


def _place(one: Payoff) -> tuple[int, ...]:
    """Its image and batch size, or what the op has across a map."""
    case = one.rows[0][0].case
    return tuple(int(case.problem.setting[name].split("x")[0]) for name in OPS[case.op].across)


def _area(width: object) -> int:
    """What widths are sorted by: inputs times outputs, of "64" and of "64x256"."""
    ends = [int(end) for end in str(width).split("x")]
    return ends[0] * ends[-1]


def starts_of(some: Sequence[Payoff]) -> Counter[int | str]:
    """From which width it is faster, at how many image and batch sizes; 0: at no width."""
    found: Counter[int | str] = Counter()
    for one in some:
        if not one.uncertain:
            case = one.from_start[0][0].case if one.from_start else None
            found[(case.problem.axis or fmt.size(case)) if case else 0] += 1
    return found


# ---------------------------------------------------------------- the answer


def _answer(run: Run, maps: Mapping[Map, Sequence[Payoff]]) -> list[Line]:
    said: dict[str, list[str]] = {}  # of a setting each; of several precisions, of a precision
    unclear: dict[str, float] = {}
    first = next(iter(maps))[2]
    op, several = _op(run), len({name for _, name, _ in maps}) > 1
    for (subject, name, baseline), some in maps.items():
        starts = starts_of(some)
        if doubtful := [pct for one in some for pct in one.uncertain.values()]:
            unclear[_title((subject, name, baseline))] = max(doubtful)
        if starts and baseline == first:
            where = f"in {subject} " if subject else ""
            key = name if several else subject
            what = f"{name} is faster than {baseline} "
            what = "" if where and (said if not several else key in said) else what
            alone = sum(len(one.rows) == 1 for one in some if not one.uncertain)
            said.setdefault(key, []).append(f"{what}{where}{_from(starts, op, alone)}")
    lines = [Line("", "; ".join(texts)) for texts in said.values()]
    if said:
        sizes = f"{' and '.join(op.across)} sizes"
        device = run.device.get("name") or "unknown device"
        lines[0] = Line("", f"{lines[0].text} ({device}, {sizes})")
        hardest = [one for key, some in maps.items() if key[2] == first for one in some]
        lines += why(run, [result for one in hardest for result, _ in one.rows])
        lines += [Line("Do", advice)] if (advice := channels_last(run)) else []
    lines += no_verdict(unclear, alone=not said)
    if any(len(one.rows) > 1 for some in maps.values() for one in some):
        lines.append(Line("Doubt", "nothing between these widths was measured"))
    return lines


def _from(starts: Counter[int | str], op: Op, alone: int) -> str:
    """ "from 8 channels for 5 of 24 sizes, 16 for 4, at no width for 2".

    At `alone` of them a single width was measured, from which nothing follows for wider ones.
    """
    whole = starts.total()
    never = starts.pop(0, 0)
    first, *others = sorted(starts, key=_area) or [0]
    of = f"{starts[first]} of {whole}" if starts[first] < whole else f"all {whole}"
    start = "at" if 2 * alone > whole else "from"
    parts = [f"{start} {first} {op.axis_name} for {of} sizes"] if first else []
    parts += [f"{width} for {starts[width]}" for width in others]
    parts += [f"at no width for {never}"] if never else []
    parts += [f"no other width measured at {alone} of {whole}"] if alone else []
    return ", ".join(parts)


# ---------------------------------------------------------------- tables


def _table(maps: Mapping[Map, Sequence[Payoff]]) -> Part:
    rows: list[Row] = []
    (first, *_), *_ = maps.values()
    op = OPS[first.rows[0][0].case.op]
    for (subject, name, baseline), some in maps.items():
        starts = starts_of(some)
        never = starts.pop(0, 0)
        ends = sorted(starts, key=_area)
        known = [ratio.ratio for one in some for _, ratio in one.rows if not ratio.ruined_pct]
        widths = " to ".join(dict.fromkeys(map(str, (ends[0], ends[-1])))) if starts else "-"
        bounds = Counter(r.bound for one in some for r, _ in one.rows if r.bound)
        rows.append(Row({
            "setting": subject, "precision": name, "against": baseline, "from": widths,
            "gain": fmt.span(known) if known else None,
            "sizes": f"{starts.total()}/{len(some)}",
            "unclear": (len(some) - starts.total() - never) or None,
            "bounds": ", ".join(f"{bound} {count}" for bound, count in bounds.most_common(2)),
        }))  # fmt: skip
    order = list(dict.fromkeys(row.item["setting"] for row in rows))
    rows.sort(key=lambda row: (order.index(row.item["setting"]), row.item["precision"]))
    several = len({name for _, name, _ in maps}) > 1
    columns = [
        Column("setting", "setting", once=True),
        *([Column("precision", "precision", once=True)] if several else []),
        Column("against", "against"),
        Column(f"faster from\n{op.axis_name}", "from"),
        Column(f"at sizes of\n{', '.join(op.across)}", "sizes"),
        Column("no\nverdict", "unclear"),
        Column("times as fast", "gain"),
        Column("bottlenecks", "bounds", drop=1),
    ]
    return Part("", columns, rows)


def _widths(some: Sequence[Payoff]) -> list[str]:
    """The channels that the map has, narrowest first."""
    return sorted({fmt.size(r.case) for one in some for r, _ in one.rows}, key=_area)


def _map(key: Map, some: Sequence[Payoff]) -> Part:
    """Times as fast by channels, with a letter for the bottleneck."""
    rows: list[Row] = []
    for one in some:
        cells = {width: "." for width in _widths(some)}
        for result, ratio in one.rows:
            mark = fmt.UNCERTAIN if ratio.ruined_pct else ""
            sign = "=" if ratio.no_difference and not mark else ""
            cause = CAUSES.get(result.bound or "", "")
            text = f"{sign}{ratio.ratio:.2g}{mark}{f'/{cause}' if cause else ''}"
            cells[fmt.size(result.case)] = text
        rows.append(Row({"place": _place(one), "cells": cells, "even": _break_even(one)}))
    op = OPS[some[0].rows[0][0].case.op]
    columns = [
        *(Column(name, f"place.{i}") for i, name in enumerate(op.across)),
        Column("break-even", "even"),
        *(Column(width, f"cells.{width}", drop=1) for width in _widths(some)),
    ]
    letters = ", ".join(f"{letter} {cause}" for cause, letter in CAUSES.items())
    below = f"times as fast by {op.axis_name}; = no difference seen; . not measured"
    below += f"; /: {letters}" if op.explained else ""
    return Part(_title(key), columns, rows, [below], VERBOSE)


def _break_even(one: Payoff) -> str:
    """Between the last width at which it is slower, and the first from which it stays faster, each
    by the whole interval: "64..128"; "<= 8" or "> 512" where the other end was not measured.
    """
    widths = [fmt.size(result.case) for result, _ in one.rows]
    slower = [width for width, gain in zip(widths[: one.start], one.gains, strict=False)
              if gain == "slower"]  # fmt: skip
    if not one.from_start:
        return f"> {slower[-1]}" if slower else "-"
    return f"{slower[-1]}..{widths[one.start]}" if slower else f"<= {widths[one.start]}"


def _title(key: Map) -> str:
    subject, name, baseline = key
    return " ".join(filter(None, (subject, name, "against", baseline)))


# ---------------------------------------------------------------- the chart


def _chart(run: Run, maps: Mapping[Map, Sequence[Payoff]]) -> Any:
    rows: list[Json] = []
    for key, some in maps.items():
        for width in reversed(_widths(some)):
            for one in some:
                rows += [{
                    "panel": _title(key), "x": "/".join(map(str, _place(one))), "y": width,
                    "text": fmt.short_ratio(ratio), "small": result.bound or "",
                    "ratio": 1.0 if ratio.no_difference or ratio.ruined_pct else ratio.ratio,
                    "low": ratio.ci95 and ratio.ci95[0], "high": ratio.ci95 and ratio.ci95[1],
                    "note": result.why or "",
                } for result, ratio in one.rows if fmt.size(result.case) == width]  # fmt: skip
    places = sorted({_place(one) for some in maps.values() for one in some})
    across = ["/".join(map(str, place)) for place in places]
    op = _op(run)
    drawn = charts.cells(rows, x=", ".join(op.across.values()), across=across, y=op.axis_name)
    below = ["times as fast, and the bottleneck; ~1: no difference seen; grey: not measured"]
    return charts.titled(drawn, title_of(run), below)
