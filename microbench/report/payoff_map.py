"""The map of `payoff`: times faster, by channels, image and batch; as text and as a chart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.text import Text

from kernels import OPS
from microbench import fmt
from microbench.errors import UserError
from microbench.report.charts import (
    INK,
    PALE,
    check_panels,
    heading,
    library,
    panel_title,
    styled,
)
from microbench.report.table import Column, Table, screen
from microbench.report.table import Row as TableRow
from microbench.results.types import Json, Run
from microbench.verdict import Payoff, Row, arms_of, payoffs, subject_of, uncertain

ACROSS = ("image", "batch")  # a row of the table, a column of the chart
# A letter a cause, beside the number.
CAUSES = {"launch": "l", "memory": "m", "layout": "t", "alignment": "a", "waves": "w",
          "compute": "c", "power": "p", "mixed": "-", "no hardware": "n"}  # fmt: skip
CELL = (50, 36)  # width and height of a cell of the chart, pixels
MOST_BESIDE = 12  # columns of cells: wider panels are stacked
MOST = 4.0  # times faster or slower: from here on the colour stays
DARK = 2.4  # times: from here on text is white
SLOWER, SAME, FASTER = "#d55e00", "#ffffff", "#0072b2"  # of Okabe and Ito's palette


def is_map(run: Run) -> bool:
    """Whether the run is shown as a map."""
    return run.kind == "payoff"


def _maps(run: Run) -> dict[str, list[Payoff]]:
    """By title of a map, each image and batch size with its widths."""
    found: dict[str, list[Payoff]] = {}
    for name in arms_of(run).asked:
        for one in payoffs(run, name):
            subject = subject_of(one.rows[0][0], run, without=ACROSS)
            title = f"{subject} {name} against {one.baseline}".strip()
            found.setdefault(title, []).append(one)
    return {title: sorted(some, key=_place) for title, some in found.items()}


def _place(one: Payoff) -> tuple[int, int]:
    setting = one.rows[0][0].case.problem.setting
    image, batch = (_number(setting[name]) for name in ACROSS)
    return image, batch


def _number(text: str) -> int:
    return int(text.split("x")[0])


def _widths(some: Sequence[Payoff]) -> list[str]:
    """The channels that the map has, narrowest first."""
    return sorted({fmt.size(r.case) for one in some for r, _ in one.rows}, key=_number)


def map_tables(run: Run, width: int) -> list[Text]:
    """Tables of times faster, with a letter for the bottleneck, at most `width` characters wide."""
    lines: list[Text] = []
    for title, some in _maps(run).items():
        columns: list[Column[Payoff]] = [
            Column(name, lambda one, i=i: str(_place(one)[i]), right=True, bold=True)
            for i, name in enumerate(ACROSS)
        ]
        columns += [Column(size, _cell(size), right=True, drop=1) for size in _widths(some)]
        found = screen(Table(columns, list(map(TableRow, some))), width)
        lines += [Text(fmt.clean(title), "bold"), *found.lines]
        lines += [Text(note, "dim") for note in (found.left_out_note(width), "") if note] + [Text()]
    key = ", ".join(f"{letter} {cause}" for cause, letter in CAUSES.items())
    notes = (
        "times faster by channels; = no difference seen; . not measured; after the slash:",
        key,
    )
    return [*lines, *(Text(note, "dim") for note in notes if lines)]


def _cell(size: str) -> Callable[[Payoff], str]:
    def text(one: Payoff) -> str:
        for result, ratio in one.rows:
            if fmt.size(result.case) == size:
                mark = fmt.UNCERTAIN if ratio.ruined_pct else ""
                sign = "=" if ratio.no_difference and not mark else ""
                cause = CAUSES.get(result.bound or "", "")
                return f"{sign}{ratio.ratio:.2g}{mark}{f'/{cause}' if cause else ''}"
        return "."

    return text


def map_verdict(run: Run) -> list[str]:
    """The break-even width of each precision, over all image and batch sizes."""
    lines: list[str] = []
    doubt: dict[str, float] = {}
    for title, some in _maps(run).items():
        known = [one for one in some if not one.uncertain]
        for one in some:
            if one.uncertain:
                doubt[title] = max(doubt.get(title, 0), *one.uncertain.values())
        if known:
            subject = title.removesuffix(f"{known[0].precision} against {known[0].baseline}")
            more = f" ({len(some) - len(known)} more: see below)" if len(known) < len(some) else ""
            lines.append(f"{subject.strip()}: " * bool(subject) + _summary(known) + more)
    return lines + uncertain(doubt)


def _summary(known: Sequence[Payoff]) -> str:
    starts = [_number(fmt.size(one.from_start[0][0].case)) for one in known if one.from_start]
    never = len(known) - len(starts)
    parts = [f"from {width} channels up for {starts.count(width)}" for width in sorted(set(starts))]
    if never:
        parts.append(f"at no width for {never}")
    parts[0] += f" of {len(known)} image and batch sizes"
    return f"{known[0].precision} is faster than {known[0].baseline} {'; '.join(parts)}."


# ---------------------------------------------------------------- the chart


def payoff_chart(run: Run) -> Any:
    """A panel a map; an Altair chart. UserError for a run without speed-ups, or too many panels."""
    maps = _maps(run)
    if not maps:
        raise UserError("nothing to draw: the run has no speed-up over fp32 or tf32")
    check_panels(f"a map of {len(maps)} panels", len(maps))
    alt = library()
    drawn = [result for some in maps.values() for one in some for result, _ in one.rows]
    wide = max(map(len, maps.values())) > MOST_BESIDE
    panels = [_panel(alt, title, some) for title, some in maps.items()]
    chart = alt.concat(*panels, columns=1 if wide else 2, spacing=24)
    reading = ("in a cell: times faster (below 1: slower) and the bottleneck; ~1: no difference "
               "seen; grey: not measured",)  # fmt: skip
    return styled(chart.properties(title=heading(run, drawn, reading)))


def _panel(alt: Any, title: str, some: Sequence[Payoff]) -> Any:
    """The cells as squares of colour, with their texts."""
    places = [_label(one) for one in some]
    widths = _widths(some)
    cells = [_drawn(row, _label(one)) for one in some for row in one.rows]
    scale = alt.Scale(type="log", domain=[1 / MOST, 1, MOST], range=[SLOWER, SAME, FASTER],
                      clamp=True, interpolate="rgb")  # fmt: skip
    base = alt.Chart(alt.InlineData(values=cells)).encode(
        x=alt.X("place:N", title="image (pixels), batch", scale=alt.Scale(domain=places),
                axis=alt.Axis(labelAngle=0, labelExpr="split(datum.label, '/')")),
        y=alt.Y("size:N", title=OPS["conv"].axis_name, scale=alt.Scale(domain=widths[::-1])),
        tooltip=[*(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("ratio", "low", "high")),
                 *(alt.Tooltip(f"{name}:N") for name in ("bottleneck", "why", "size", "place"))],
    )  # fmt: skip
    colour = alt.Color("shade:Q", title="times faster", scale=scale)
    far = f"datum.shade > {DARK} || datum.shade < {1 / DARK}"
    text = base.encode(color=alt.condition(far, alt.value("white"), alt.value(INK)))
    layers = (
        base.mark_rect(stroke="white", strokeWidth=1).encode(color=colour),
        text.mark_text(fontSize=13, fontWeight="bold", dy=-6).encode(text="text:N"),
        text.mark_text(fontSize=9, dy=9).encode(text="bottleneck:N"),
    )
    return alt.layer(*layers).properties(
        width=CELL[0] * len(places), height=CELL[1] * len(widths),
        title=panel_title(alt, fmt.clean(title)), view=alt.ViewConfig(fill=PALE),
    )  # fmt: skip


def _label(one: Payoff) -> str:
    return "/".join(map(str, _place(one)))


def _drawn(row: Row, place: str) -> Mapping[str, Json | str | float | None]:
    result, ratio = row
    low, high = ratio.ci95 or (None, None)
    return {
        "place": place, "size": fmt.size(result.case), "text": fmt.short_ratio(ratio),
        "shade": 1.0 if ratio.no_difference or ratio.ruined_pct else ratio.ratio,
        "ratio": ratio.ratio, "low": low, "high": high,
        "bottleneck": fmt.clean(result.bound or ""), "why": fmt.clean(result.why or ""),
    }  # fmt: skip
