"""What `payoff` says: from which width a precision is faster, for each image and batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kernels import OPS
from microbench import fmt
from microbench.report import charts
from microbench.report.cases import (
    channels_last,
    conditions,
    example,
    no_verdict,
    of_every_case,
    raw,
    title_of,
    warnings_of,
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
from microbench.results.types import Json, Result, Run
from microbench.verdict import Payoff, arms_of, payoffs, subject_of

ACROSS = ("image", "batch")  # a row of the map
# A letter a cause, beside the number.
CAUSES = {"launch": "l", "memory": "m", "layout": "t", "alignment": "a", "waves": "w",
          "compute": "c", "power": "p", "mixed": "-", "no hardware": "n"}  # fmt: skip
Map = tuple[str, str, str]  # setting, precision, baseline


def report(run: Run) -> Report | None:
    """The report of a run over widths, images and batches; None where it has no speed-up."""
    maps, found = maps_of(run), warnings_of(run.results)
    if not maps:
        return None
    doubtful = [one for one in found if not one[0].remedy.startswith("none needed")]
    answer = [*_answer(run, maps), *doubts(doubtful, len(run.results), most=1)]
    parts = [_table(maps), *(_map(*one) for one in maps.items()), *of_every_case(run)]
    return Report("", answer, [*parts, warnings_part(found)], conditions(run), raw=[raw(run)],
                  chart=lambda: _chart(run, maps))  # fmt: skip


def maps_of(run: Run) -> dict[Map, list[Payoff]]:
    """Each image and batch size with its widths, TF32 first; by setting, precision and baseline."""
    found: dict[Map, list[Payoff]] = {}
    for name in arms_of(run).asked:
        for one in payoffs(run, name):
            subject = subject_of(one.rows[0][0], run, without=ACROSS)
            found.setdefault((subject, name, one.baseline), []).append(one)
    ordered = sorted(found, key=lambda key: key[2], reverse=True)
    return {key: sorted(found[key], key=_place) for key in ordered}


def _place(one: Payoff) -> tuple[int, int]:
    setting = one.rows[0][0].case.problem.setting
    image, batch = (_number(setting[name]) for name in ACROSS)
    return image, batch


def _number(text: str) -> int:
    return int(text.split("x")[0])


def starts_of(some: Sequence[Payoff]) -> Counter[int]:
    """From which width it is faster, at how many image and batch sizes; 0: at no width."""
    clear = [one for one in some if not one.uncertain]
    return Counter(
        _number(fmt.size(one.from_start[0][0].case)) if one.from_start else 0 for one in clear
    )


# ---------------------------------------------------------------- the answer


def _answer(run: Run, maps: Mapping[Map, Sequence[Payoff]]) -> list[Line]:
    said: list[str] = []
    unclear: dict[str, float] = {}
    first = next(iter(maps))[2]
    for (subject, name, baseline), some in maps.items():
        title = " ".join(filter(None, (subject, name, "against", baseline)))
        worst = max((pct for one in some for pct in one.uncertain.values()), default=0.0)
        unclear |= {title: worst} if worst else {}
        starts = starts_of(some)
        if starts and baseline == first:
            where = f"in {subject} " if subject else ""
            what = f"{name} is faster than {baseline} " if not said or not where else ""
            said.append(f"{what}{where}{_from(starts)}")
    if said:
        device = run.device.get("name") or "unknown device"
        said[0] += f" ({device}, image and batch sizes)"
    lines = [Line(ANSWER, text) for text in said]
    lines += _why(run, maps) if said else []
    advice = channels_last(run)
    lines += [Line(DO, advice)] if advice and said else []
    lines += no_verdict(unclear, alone=not said)
    return [*lines, Line(DOUBT, "nothing between these widths was measured")]


def _from(starts: Counter[int]) -> str:
    """ "from 8 channels for 5 of 24 sizes, 16 for 4, at no width for 2"."""
    whole = starts.total()
    never = starts.pop(0, 0)
    first, *others = sorted(starts) or [0]
    of = f"{starts[first]} of {whole}" if starts[first] < whole else f"all {whole}"
    parts = [f"from {first} channels for {of} sizes"] if first else []
    parts += [f"{width} for {starts[width]}" for width in others]
    return ", ".join([*parts, *([f"at no width for {never}"] if never else [])])


def _why(run: Run, maps: Mapping[Map, Sequence[Payoff]]) -> list[Line]:
    """The most common bottleneck of each setting, with a case that shows it."""
    said: dict[str, str] = {}
    for (subject, _, _), some in maps.items():
        results = _results(some)
        (bound, count), *_ = Counter(result.bound or "" for result in results).most_common(1)
        if bound and subject not in said:
            shown = [result for result in results if result.bound == bound]
            title = f"{subject}: " if subject else ""
            said[subject] = f"{title}{bound} in {count} of {len(results)} cases{example(shown)}"
    return [Line(WHY, "; ".join(said.values()))] if said else []


def _results(some: Sequence[Payoff]) -> list[Result]:
    return sorted((result for one in some for result, _ in one.rows), key=lambda r: r.flops)


# ---------------------------------------------------------------- tables


def _table(maps: Mapping[Map, Sequence[Payoff]]) -> Part:
    rows: list[Row] = []
    for (subject, name, baseline), some in maps.items():
        starts = starts_of(some)
        never = starts.pop(0, 0)
        widths = " to ".join(dict.fromkeys(map(str, (min(starts), max(starts))))) if starts else "-"
        bounds = Counter(result.bound for result in _results(some) if result.bound)
        rows.append(Row({
            "setting": subject, "precision": name, "against": baseline, "from": widths,
            "sizes": f"{starts.total()}/{len(some)}",
            "unclear": (len(some) - starts.total() - never) or None,
            "bounds": ", ".join(f"{bound} {count}" for bound, count in bounds.most_common(2)),
        }))  # fmt: skip
    order = list(dict.fromkeys(row.item["setting"] for row in rows))
    rows.sort(key=lambda row: (order.index(row.item["setting"]), row.item["precision"]))
    several = len({precision for _, precision, _ in maps}) > 1
    columns = [
        Column("setting", "setting", once=True),
        *([Column("precision", "precision", once=True)] if several else []),
        Column("against", "against"),
        Column("faster from\nchannels", "from"),
        Column("at sizes of\nimage, batch", "sizes"),
        Column("no\nverdict", "unclear"),
        Column("bottlenecks", "bounds", drop=1),
    ]
    return Part("", columns, rows)


def _widths(some: Sequence[Payoff]) -> list[str]:
    """The channels that the map has, narrowest first."""
    return sorted({fmt.size(r.case) for one in some for r, _ in one.rows}, key=_number)


def _map(key: Map, some: Sequence[Payoff]) -> Part:
    """Times as fast by channels, with a letter for the bottleneck."""
    subject, name, baseline = key
    rows: list[Row] = []
    for one in some:
        cells = {width: "." for width in _widths(some)}
        for result, ratio in one.rows:
            mark = fmt.UNCERTAIN if ratio.ruined_pct else ""
            sign = "=" if ratio.no_difference and not mark else ""
            cause = CAUSES.get(result.bound or "", "")
            text = f"{sign}{ratio.ratio:.2g}{mark}{f'/{cause}' if cause else ''}"
            cells[fmt.size(result.case)] = text
        rows.append(Row({"place": _place(one), "cells": cells}))
    columns = [
        *(Column(name, f"place.{i}") for i, name in enumerate(ACROSS)),
        *(Column(width, f"cells.{width}", drop=1) for width in _widths(some)),
    ]
    letters = ", ".join(f"{letter} {cause}" for cause, letter in CAUSES.items())
    below = f"times as fast by channels; = no difference seen; . not measured; /: {letters}"
    title = " ".join(filter(None, (subject, name, "against", baseline)))
    return Part(title, columns, rows, [below], VERBOSE)


# ---------------------------------------------------------------- the chart


def _chart(run: Run, maps: Mapping[Map, Sequence[Payoff]]) -> Any:
    rows: list[Json] = []
    for (subject, name, baseline), some in maps.items():
        panel = " ".join(filter(None, (subject, name, "against", baseline)))
        placed = {str(width): list[Json]() for width in reversed(_widths(some))}
        for one in some:
            place = "/".join(map(str, _place(one)))
            for result, ratio in one.rows:
                unclear = ratio.no_difference or ratio.ruined_pct
                low, high = ratio.ci95 or (None, None)
                placed[fmt.size(result.case)].append({
                    "panel": panel, "x": place, "y": fmt.size(result.case),
                    "text": fmt.short_ratio(ratio), "ratio": 1.0 if unclear else ratio.ratio,
                    "low": low, "high": high, "small": fmt.clean(result.bound or ""),
                    "note": fmt.clean(result.why or ""),
                })  # fmt: skip
        rows += [row for line in placed.values() for row in line]
    drawn = charts.cells(rows, x="image (pixels), batch", y=OPS["conv"].axis_name)
    below = ["times as fast, and the bottleneck; ~1: no difference seen; grey: not measured"]
    return charts.titled(drawn, title_of(run), below)
