"""The table of a run's trainings: one row per arm, one block per group of arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from rich.text import Text

from e2e.case import OP, TrainCase
from e2e.report.arms import SHORT_MARK, SHORT_NOTE, View, is_base, reason, was_run
from e2e.report.figures import bottleneck, ratio
from e2e.results.types import MAX_WALL_GAP, Training
from microbench import fmt
from microbench.report.table import DIM, MISSING, Column, Part, Row, Screen, Table, Value, screen
from microbench.results.types import RUINED_PCT

R = TypeVar("R")
BASELINES = ("fp32", "tf32", "previous", "first")  # whose speed-ups CSV has
JOIN = "; "  # between the values of a list in CSV
NOT_CONVERGED = " *"


def arms_table(
    view: View, shown: View, columns: Sequence[Column[Training]], *,
    title: str = "recipe", mark: Callable[[Training], str] | None = None,
    row: Callable[[Training, View], Row[Training]] | None = None,
) -> Table[Training]:  # fmt: skip
    """One row per arm of `shown`, in blocks by group, under its name in the view; `mark` follows.

    The group is in Markdown only, which has no headings.
    """
    names = [
        Column[Training]("", key=True, markdown=lambda arm: view.group_of(arm).title),
        Column(title, lambda arm: view.label(arm) + (mark(arm) if mark else ""), key=True,
               markdown=view.label),
    ]  # fmt: skip
    table = Table([*names, *columns])
    for group in shown.groups:
        table.block(group.title, [(row or _plain_row)(arm, view) for arm in group.arms])
    return table


def _plain_row(arm: Training, view: View) -> Row[Training]:
    """Dim of a baseline, red where the arm did not converge."""
    style = DIM if view.is_baseline(arm) else ""
    return Row(arm, style="red" if arm.converged is False else style)


def train_table(view: View, more: Sequence[Column[Training]] = ()) -> Table[Training]:
    """The arms that were run, or the reason why they have no times; `more` columns come last."""
    ran = view.only(was_run)
    return arms_table(
        ran, ran, [*speed_columns(ran), *more], title=ran.first_title, row=_row,
        mark=lambda arm: NOT_CONVERGED * (arm.converged is False),
    )  # fmt: skip


def _row(arm: Training, view: View) -> Row[Training]:
    if arm.per_s is None:
        style = "red" if arm.status == "failed" else DIM
        said = MISSING.get(arm.status, "not timed")
        if arm.status == "ok":
            return Row(arm, said, style, markdown=arm.status)
        return Row(arm, f"{said}: {reason(arm)}", style, f"{arm.status}: {reason(arm)}")
    return _plain_row(arm, view)


def speed_columns(view: View) -> list[Column[Training]]:
    """Throughput, step time, speed-ups, memory, power, bottleneck; in CSV seconds and bytes."""
    unit = view.unit
    return [
        Column(
            f"{unit}/s" if unit else "per s",
            lambda arm: fmt.throughput(arm.per_s or 0.0) + f" {fmt.clean(arm.unit)}" * (not unit),
            right=True, csv=raw("", images_per_s="per_s"),
        ),
        Column("±", lambda arm: fmt.half_interval(arm.steps.median_s, arm.steps.ci95_s)
               if arm.steps else "", right=True, drop=19, csv={
            **raw_pair("ci95_low_s", "ci95_high_s",
                       lambda arm: arm.steps.ci95_s if arm.steps else None),
            "samples": lambda arm: len(arm.steps.times_s) if arm.steps else None,
        }),
        Column(f"ms/{view.per_step}", lambda arm: fmt.milliseconds(arm.step_s), right=True, drop=16,
               csv=raw("steps", step_s="median_s")),
        *_ratio_columns(view),
        Column("peak\nGB", lambda arm: fmt.gigabytes(arm.memory_peak_bytes), right=True, drop=15,
               csv=raw("", "memory_peak_bytes")),
        Column("power\nW",
               lambda arm: f"{arm.state.power_w:.0f}" if arm.state.power_w is not None else "",
               right=True, drop=20, markdown_title="W", csv=raw("state", "power_w")),
        Column(f"{unit}/J" if unit else "per J",
               lambda arm: fmt.throughput(arm.per_j) if arm.per_j else "",
               right=True, drop=17, csv=raw("", images_per_j="per_j")),
        Column("GPU\nbusy", lambda arm: fmt.per_cent(busy_pct(arm)), right=True, drop=21,
               csv=raw("steps", "busy_s")),
        Column("CPU\nms", _step_ms("host_s"), right=True, drop=22, csv=raw("steps", "host_s")),
        Column("data\nwait ms", _step_ms("wait_s") if any(a.case.fed for a in view.arms) else None,
               right=True, drop=14, csv=raw("steps", "wait_s")),
        Column("of the\ncard", lambda arm: fmt.per_cent(of_card_pct(arm)), right=True, drop=13),
        Column("bottleneck", lambda arm: bottleneck(arm.limit), drop=18,
               csv=raw("", "limit")),
    ]  # fmt: skip


def part_lines(part: Part, width: int) -> list[Text]:
    """A part on the screen, at most `width` columns wide, without its title; empty without rows."""
    if part.table is not None and not part.table.rows:
        return []
    shown = screen(part.table, width) if part.table else None
    notes = [*part.notes, shown.left_out_note(width) if shown else ""]
    lines = shown.lines if shown else []
    return [*lines, *(Text(note, DIM) for note in notes if note), *map(Text, part.below)]


def raw_columns() -> list[Column[Training]]:
    """Columns for CSV only: the case, its status, and the state of the device."""
    utilisation = {f"gpu_util_{name}_pct": name for name in ("mean", "min", "max")}
    return [
        Column(csv={"op": lambda _: OP, **raw("case", *(one.name for one in fields(TrainCase)))}),
        Column(csv={
            **raw("", "rung", "status", "reason", "unit", "step_units", "wall_per_s", "fits_batch",
                  "setup_s", "compile_s", "skipped_steps", "why"),
            **raw("steps", "launches"),
            **raw("state", "sm_clock_mhz", "temperature_c"),
            **raw("", "memory_reserved_bytes", "memory_process_bytes", "model_bytes",
                  "checkpoint_bytes", "first_step_s", "float8_layers", "linear_layers"),
            **raw_pair("step_min_s", "step_max_s", attrgetter("step_range_s")),
            "throttle": lambda arm: JOIN.join(arm.state.throttle),
            **raw("state.gpu_util_pct", **utilisation),
        }),
        *(Column(csv=_speedup(name)) for name in BASELINES),
    ]  # fmt: skip


def raw(of: str, *names: str, **renamed: str) -> dict[str, Callable[[Any], Value]]:
    """CSV columns of these names: attributes of a row's `of` ("": of the row itself).

    None where `of` is None. `renamed` are called otherwise in CSV: name of the column=attribute.
    """

    def read(name: str, row: Any) -> Value:
        found = attrgetter(of)(row) if of else row
        return None if found is None else getattr(found, name)

    columns = dict(zip(names, names, strict=True)) | renamed
    return {column: partial(read, name) for column, name in columns.items()}


def raw_pair(
    first: str, second: str, read: Callable[[R], tuple[float, float] | None]
) -> dict[str, Callable[[R], Value]]:
    """Two CSV columns: the ends of an interval, or a mean and a deviation."""
    return {
        first: lambda row: found[0] if (found := read(row)) else None,
        second: lambda row: found[1] if (found := read(row)) else None,
    }


def _speedup(name: str) -> dict[str, Callable[[Training], Value]]:
    """A ratio and the ends of its interval."""

    def interval(arm: Training) -> tuple[float, float] | None:
        return arm.speedup[name].ci95 if name in arm.speedup else None

    return {
        f"speedup_{name}": lambda arm: arm.speedup[name].ratio if name in arm.speedup else None,
        **raw_pair(f"speedup_{name}_low", f"speedup_{name}_high", interval),
    }


# ---------------------------------------------------------------- cells


def _step_ms(name: str) -> Callable[[Training], str]:
    return lambda arm: fmt.milliseconds(getattr(arm.steps, name)) if arm.steps else ""


def _ratio_columns(view: View) -> list[Column[Training]]:
    def cell(name: str, arm: Training) -> str:
        if view.is_compared(arm, name):
            short = name == "previous" and view.follows_short(arm)
            return ratio(arm.speedup[name]) + SHORT_MARK * short
        is_own = name not in arm.speedup and is_base(arm, name, view.group_of(arm))
        return "base" if is_own else "-"

    return [
        Column(f"x {view.title(name, SHORT_MARK)}", partial(cell, name), right=True, drop=place)
        for place, name in enumerate(view.compared, 1)
    ]


def busy_pct(arm: Training) -> float | None:
    """Share of the step in which at least one kernel ran, in per cent; None if not known."""
    steps = arm.steps
    if steps is None or steps.busy_s is None:
        return None
    return 100 * min(1.0, steps.busy_s / (arm.step_s or steps.median_s))


def of_card_pct(arm: Training) -> float | None:
    """What its work takes at the card's rates, in per cent of the step; None if not known."""
    share = arm.traced.of_card if arm.traced else None
    return 100 * share if share else None


# ---------------------------------------------------------------- below the table


def notes(view: View, table: Screen[Training], width: int) -> list[Text]:
    """How to read the table, and what applies to all of its rows."""
    ran = view.only(was_run)
    arms = ran.arms
    timed = [arm for arm in arms if arm.steps]
    ratios = [found for arm in arms for found in arm.speedup.values()]

    def has(name: str) -> bool:
        return any(getattr(arm.steps, name) is not None for arm in timed)

    signs = [
        ("±, [low, high]: 95 % confidence interval", any(a.steps.ci95_s for a in timed if a.steps)),
        ("~1: no difference measured; under 1: slower", bool(ratios)),
        ("±?: too few rounds for an interval", any(found.ci95 is None for found in ratios)),
        (f"{fmt.UNCERTAIN}: beyond ±{RUINED_PCT:.0f} %, too uncertain for a verdict",
         any(found.ruined_pct for found in ratios)),
    ]  # fmt: skip
    titles = [
        ("GPU busy", f": share of the {view.step} in which a kernel runs", has("busy_s")),
        ("CPU ms", f": to launch one {view.step} on an idle GPU", has("host_s")),
        ("data wait ms", f": per {view.per_step}, on the CPU", any(arm.case.fed for arm in arms)),
        ("of the card", f": share of the {view.step} that its work takes at the card's rates",
         any(of_card_pct(arm) is not None for arm in timed)),
    ]  # fmt: skip
    lost = list(dict.fromkeys(ran.label(arm) for arm in arms if arm.converged is False))
    skipped = [f"{ran.label(arm)} {arm.skipped_steps}" for arm in timed if arm.skipped_steps]
    unfed = [arm for arm in timed if not arm.case.fed and arm.wall_gap is not None]
    gaps = [gap for arm in unfed if (gap := wall_gap(arm)) <= MAX_WALL_GAP]
    apart = [
        f"{ran.full_label(arm)} {fmt.throughput(arm.wall_per_s or 0.0)}"
        for arm in unfed
        if wall_gap(arm) > MAX_WALL_GAP
    ]
    near = [f"{'else ' * bool(apart)}within {100 * max(gaps):.1f} % of these"] if gaps else []
    lines = [
        "; ".join(text for text, said in signs if said),
        "; ".join(title + text for title, text, there in titles
                  if there and title not in table.left_out),
        f"* {fmt.listed(lost)}: did not converge" * bool(lost),
        *short_note(ran),
        f"a {view.step} is the mean by the wall clock" * any(arm.case.fed for arm in timed),
        f"wall-clock throughput: {', '.join([*apart[:4], *near])}" * bool(apart or near),
        processes(timed),
        f"steps skipped by the loss scaler: {fmt.listed(skipped, 6)}" * bool(skipped),
        table.left_out_note(width),
    ]  # fmt: skip
    return [Text(line, "dim") for line in lines if line]


def short_note(view: View) -> list[str]:
    """What the mark of ratios over float32 says, where there are any."""
    return [SHORT_NOTE] if any(map(view.is_short, view.compared)) else []


def processes(timed: Sequence[Training]) -> str:
    """How many processes timed each arm; "" where all were timed by one."""
    counts = sorted({max(1, len(arm.steps.processes)) for arm in timed if arm.steps})
    if counts[-1:] in ([], [1]):
        return ""
    ends = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    return f"timed in {ends} processes each: ± is of their mean"


def wall_gap(arm: Training) -> float:
    """The gap between wall clock and median step as a fraction; 0 if not known."""
    return abs(arm.wall_gap or 0.0)


def reasons(view: View, cut: Sequence[Training]) -> list[Text]:
    """The full reasons of arms whose row was cut to fit."""
    return [item(f"{view.label(arm)}, batch {arm.case.batch}", reason(arm)) for arm in cut]


def item(name: str, text: str) -> Text:
    """A name and what is said of it, as one line."""
    return Text(f"  {name}: ", "bold").append(text, "not bold")
