"""The tables of a run's trainings: a row an arm, beside what it was measured with.

The screen has the recipes asked for; --verbose, Markdown and pages have all of them, the phases of
a step, convergence, and several GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from e2e.report.arms import (
    SHORT_MARK,
    SHORT_NOTE,
    Group,
    View,
    grouped,
    is_generated,
    reason,
    was_run,
)
from e2e.report.figures import bottleneck, ratio, spread
from e2e.results.baselines import scaling
from e2e.results.exchange import Exchange
from e2e.results.types import Phase, StepTimes, Training
from microbench import fmt
from microbench.report.parts import VERBOSE, Column, Part, Row, Topic, missing
from microbench.results.types import RUINED_PCT, Json, Ratio

MOST_ROWS, MOST_IN_GROUPS = 8, 6  # of the screen; beyond it baselines of groups are left out
BF16 = "amp-bf16"  # what FP8 is held against: the rest of its steps
MARKS = {"skipped": "skipped", "failed": "FAILED", "ok": "not timed"}
DIM, RED = "dim", "red"


def row_of(view: View, arm: Training) -> Row:
    """An arm and what tables say of it beside its own values; dim where it is a baseline only.

    Its bottleneck is no finding where there is no verdict on its speed.
    """
    lost, ruined = " *" * view.is_lost(arm), bool(view.group_of(arm).ruined_pct)
    unsure = bool(arm.ruined_pct) or (ruined and bool(arm.speedup))
    item: Json = {
        "where": view.where(arm) or None,
        "place": view.where(arm) + lost,
        "label": view.label(arm) + lost,
        "arm": arm,
        **{f"x {name}": (arm.speedup[name], ruined)
           for name in view.compared if view.is_compared(arm, name)},
        "efficiency": next((row.efficiency for row in scaling(view.arms) if row.many is arm), None),
        "busy_pct": busy_pct(arm),
        "of_card_pct": 100 * arm.traced.of_card if arm.traced and arm.traced.of_card else None,
        "bottleneck": None if unsure else bottleneck(arm.limit) or None,
        "repeats": _repeats(arm),
        "result": {True: "converged", False: "NOT CONVERGED", None: None}[arm.converged],
        "throttle": ", ".join(arm.state.throttle) or None,
        **{f"phase {phase.name}": phase for phase in arm.phases},
    }  # fmt: skip
    style = RED if arm.converged is False else DIM if view.is_baseline(arm) else ""
    if arm.per_s is not None or not was_run(arm):
        return Row(item, style=style)
    failed = RED if arm.status == "failed" else DIM
    return Row(item, MARKS.get(arm.status, arm.status), failed)


def names_of(view: View, shown: Sequence[Training] = ()) -> list[Column]:
    """The columns that name an arm: where it was timed, if that differs, and its recipe or rung,
    which is the first one's title where all `shown` have the same.
    """
    labels = {view.label(arm) for arm in shown}
    first = "rung" if any(arm.rung is not None for arm in view.arms) else "recipe"
    if len(view.groups) == 1:
        return [Column(first, "label")]
    if len(labels) == 1:
        return [Column(labels.pop(), "place")]
    return [Column("", "where", once=True), Column(first, "label")]


def arms_part(
    title: str, view: View, shown: View, columns: Sequence[Column], below: Sequence[str] = (),
    topic: Topic = "",
) -> Part:  # fmt: skip
    """A part with a row for each arm of `shown`, under its name in the view."""
    rows = [row_of(view, arm) for arm in shown.arms]
    return Part(title, [*names_of(view), *columns], rows, below if rows else (), VERBOSE, topic)


# ---------------------------------------------------------------- speed


def recipes_part(view: View) -> Part:
    """The recipes on the screen; of many those that were asked for, or the fastest of a group."""
    ran = view.only(was_run)
    arms = ran.arms
    if len(arms) > MOST_IN_GROUPS and len(ran.groups) > 1:
        recipes = view.only(lambda arm: not view.is_baseline(arm) and was_run(arm))
        arms = recipes.arms or arms
        if len(arms) > MOST_ROWS:
            arms = list(filter(None, map(fastest, recipes.groups))) or arms
    shown = arms[: MOST_IN_GROUPS if len(ran.groups) > 1 else MOST_ROWS]
    notes = [
        f"and {len(arms) - len(shown)} more: --verbose" * (len(arms) > len(shown)),
        *_signs(view, shown),
        *(_chosen(view, arm) for arm in shown),
        *missing([(ran.named(a), reason(a)) for a in ran.arms if a.per_s is None]),
    ]
    return Part(
        "",
        [*names_of(ran, shown), *_brief_columns(ran)],
        [row_of(ran, arm) for arm in shown],
        [note for note in notes if note],
    )


def fastest(group: Group) -> Training | None:
    """The arm of a group with the highest throughput, of those that converged."""
    timed = [arm for arm in group.arms if arm.per_s and arm.converged is not False]
    return max(timed, key=lambda arm: arm.per_s or 0.0, default=None)


def every_recipe_part(view: View) -> Part:
    """All arms that were run, in the order measured, with all that was measured."""
    ran = view.only(was_run)
    arms = ran.arms
    word = "batch" if view.evaluates else "step"
    columns = [
        _rate(ran),
        Column("±", "arm.steps", _half, drop=14),
        Column(f"ms/{word}", "arm.step_s", fmt.milliseconds, drop=11),
        *_ratios(ran),
        Column("efficiency", "efficiency", ratio, drop=7),
        Column("peak\nGB", "arm.memory_peak_bytes", fmt.gigabytes, drop=10),
        Column("W", "arm.state.power_w", "{:.0f}".format, drop=15),
        Column(f"{ran.unit or 'units'}/J", "arm.per_j", fmt.throughput, drop=12),
        Column("GPU\nbusy", "busy_pct", fmt.per_cent, drop=16),
        Column("CPU\nms", "arm.steps.host_s", fmt.milliseconds, drop=17),
        Column("data\nwait ms", "arm.steps.wait_s", fmt.milliseconds, drop=9),
        Column("of the\ncard", "of_card_pct", fmt.per_cent, drop=8),
        Column("throttle", "throttle", drop=15),
        Column("bottleneck", "bottleneck", drop=13),
    ]
    failed = missing([(ran.named(arm), reason(arm)) for arm in arms if arm.per_s is None])
    return arms_part("Every recipe", ran, ran, columns, [*_notes(ran), *failed])


def _rate(view: View) -> Column:
    """Throughput, in the units of all arms."""
    units = dict.fromkeys(arm.unit for arm in view.arms)
    title, several = " or ".join(units) or "units", len(units) > 1
    return Column(f"{title}/s", "arm.per_s", fmt.throughput, drop=9 * several)


def _ratios(view: View) -> list[Column]:
    """The first baseline is what matters; the others go before it where there is no room."""
    return [
        Column(f"x {view.title(name, SHORT_MARK)}", f"x {name}", _verdict, drop=place)
        for place, name in enumerate(view.compared)
    ]


def _verdict(pair: tuple[Ratio, bool]) -> str:
    """A ratio; with "?" where there is no verdict on its group."""
    value, ruined = pair
    return fmt.interval(value) + fmt.UNCERTAIN if ruined else ratio(value)


def _brief_columns(view: View) -> list[Column]:
    learnt = any(arm.repeats for arm in view.arms)
    return [
        _rate(view),
        Column("±", "arm.steps", _half, drop=10),
        *_ratios(view),
        Column("efficiency", "efficiency", ratio),
        *([Column("accuracy\n%", "arm", _spread("accuracy", 100), drop=7),
           Column("held-out\nloss", "arm", _spread("loss"), drop=9)] if learnt else []),
        *[Column("peak GB", "arm.memory_peak_bytes", fmt.gigabytes, drop=8)]
        * (len(view.groups) == 1),
        Column("bottleneck", "bottleneck", drop=5),
    ]  # fmt: skip


def _half(steps: StepTimes) -> str:
    return fmt.half_interval(steps.median_s, steps.ci95_s)


def busy_pct(arm: Training) -> float | None:
    """Share of the step in which at least one kernel ran, in per cent; None if not known."""
    steps = arm.steps
    if steps is None or steps.busy_s is None:
        return None
    return 100 * min(1.0, steps.busy_s / (arm.step_s or steps.median_s))


def _signs(view: View, arms: Sequence[Training]) -> list[str]:
    """What the signs in these rows mean, in a line; nothing where there are none."""
    ratios = [ratio for arm in arms for ratio in arm.speedup.values()]
    signs = [
        ("~1: no difference measured",
         any(ratio.no_difference for arm in arms for ratio in arm.speedup.values()
             if not view.group_of(arm).ruined_pct)),
        ("±?: too few rounds for an interval", any(ratio.ci95 is None for ratio in ratios)),
        (f"{fmt.UNCERTAIN}: beyond ±{RUINED_PCT:.0f} %, or beside a time that is: no verdict",
         any(arm.speedup and view.group_of(arm).ruined_pct for arm in arms)),
        ("*: did not converge", any(map(view.is_lost, arms))),
    ]  # fmt: skip
    short = [SHORT_NOTE] * any(map(view.is_short, view.compared))
    return ["; ".join(text for text, shown in signs if shown), *short]


def _notes(view: View) -> list[str]:
    """How to read the table, and what applies to all of its rows."""
    timed, scaled = [arm for arm in view.arms if arm.steps], bool(scaling(view.arms))
    fp8 = dict.fromkeys(
        f"{view.label(arm)}: {arm.float8_layers} of {arm.linear_layers} linear layers multiply in "
        "FP8"
        for arm in view.arms
        if arm.float8_layers and arm.linear_layers and not arm.fp8_gains
    )
    lines = [
        "±, [low, high]: 95 % confidence interval" * bool(timed),
        *_signs(view, view.arms),
        f"GPU busy: share of the {view.step} in which a kernel runs; CPU ms: to launch one on an "
        "idle GPU" * any(arm.steps and arm.steps.busy_s is not None for arm in timed),
        "efficiency: throughput over that of one GPU times the number of GPUs" * scaled,
        f"a {view.step} is the mean by the wall clock" * any(arm.case.loads_data for arm in timed),
        _processes(timed),
        *fp8,
    ]
    return [line for line in lines if line]


def _processes(timed: Sequence[Training]) -> str:
    """How many processes timed each arm; "" where all were timed by one."""
    counts = sorted({max(1, len(arm.steps.processes)) for arm in timed if arm.steps})
    if counts[-1:] in ([], [1]):
        return ""
    ends = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    return f"timed in {ends} processes each: ± is of their mean"


# ---------------------------------------------------------------- layers in FP8


def _bf16_of(view: View, arm: Training) -> Training | None:
    """The arm in bfloat16 that an arm is like in all else."""
    case = replace(arm.case, recipe=BF16)
    return next((other for other in view.arms if other.case == case), None)


def is_bf16_again(view: View, arm: Training) -> bool:
    """Whether no layer of it pays, so that it is another arm's training: they differ by chance."""
    return bool(arm.fp8_gains and not arm.float8_layers and _bf16_of(view, arm))


def _chosen(view: View, arm: Training) -> str:
    """How many layers an arm has in FP8 where it chose, and what that saves as predicted and as
    measured; "" for other arms.
    """
    if not arm.fp8_gains:
        return ""
    label = view.label(arm)
    if not arm.float8_layers:
        return f"{label}: no layer pays, so it is {BF16}"
    saved_s = arm.case.accumulate * sum(part.saved_s(part.gain) for part in arm.fp8_gains)
    text = (
        f"{label} converts {arm.float8_layers} of {arm.linear_layers} linear layers; predicted "
        f"{fmt.milliseconds(saved_s)} ms saved"
    )
    plain = _bf16_of(view, arm)
    base = plain.step_s if plain else None
    if base and arm.step_s:
        measured = f"{'-' * (arm.step_s > base)}{fmt.milliseconds(abs(base - arm.step_s))}"
        text += f", measured {measured} of {fmt.milliseconds(base)}"
    return text


def gains_part(view: View) -> Part:
    """What FP8 gains in each shape of linear layer, of the arms that chose by it."""
    rows = [
        {
            "label": view.named(arm), "layers": part.places * layer.count, "layer": layer,
            "bf16_ms": 1e3 * part.bf16_s, "fp8": "yes" if layer.converted else "no",
            "saved_ms": 1e3 * arm.case.accumulate * part.saved_s(layer.gain),
        }
        for arm in view.arms for part in arm.fp8_gains for layer in part.layers
    ]  # fmt: skip
    columns = [
        Column("", "label", once=True),
        Column("layers", "layers"),
        Column("rows", "layer.rows", drop=1),
        Column("K", "layer.k"),
        Column("N", "layer.n"),
        Column("block in\nBF16 ms", "bf16_ms", "{:.3f}".format),
        Column("with it in FP8\ntimes as fast", "layer.gain", ratio),
        Column("saves\nms/step", "saved_ms", "{:+.2f}".format),
        Column("in FP8", "fp8"),
    ]
    below = [
        "each shape was timed in FP8 alone, in the block around it; in FP8 are those that gain, or "
        "all of a block, whichever is faster together",
        *(text for arm in view.arms if (text := _chosen(view, arm))),
    ]
    title = "Linear layers, and what FP8 gains in them"
    return Part(title, columns, [*map(Row, rows)], below if rows else (), VERBOSE, "ledger")


# ---------------------------------------------------------------- phases


def phases_part(view: View) -> Part:
    """The arms whose phases were timed, a column a phase: ms by the clocks of CPU and GPU."""
    timed = view.only(lambda arm: bool(arm.phases))
    phases = [phase for arm in timed.arms for phase in arm.phases]
    clocks = "CPU / GPU" if any(phase.gpu_s is not None for phase in phases) else "CPU"
    names = dict.fromkeys(phase.name for phase in phases)
    longest = sorted(names, key=lambda name: -max(p.host_s for p in phases if p.name == name))
    columns = [Column(name, f"phase {name}", _phase, longest.index(name)) for name in names]
    both = any(arm.steps and arm.steps.host_s is not None for arm in timed.arms)
    return arms_part(
        f"Phases of a {view.step}, timed in a separate pass (ms: {clocks})", view, timed, columns,
        ["CPU times of phases include waits while the GPU's launch queue is full; CPU ms does not"]
        * both, "phases",
    )  # fmt: skip


def _phase(phase: Phase) -> str:
    """ "0.20 / 12.0": the CPU's and the GPU's ms, to a hundredth where there are few."""
    times = (took_s for took_s in (phase.host_s, phase.gpu_s) if took_s is not None)
    return " / ".join(f"{1e3 * s:.2f}" if s < 1e-3 else fmt.milliseconds(s) for s in times)


# ---------------------------------------------------------------- convergence


def convergence_part(view: View) -> Part:
    """The arms that were trained for accuracy, with seeds and reasons."""
    trained = view.only(lambda arm: bool(arm.repeats) or arm.converged is not None)
    generated = {is_generated(arm.case) for arm in trained.arms}
    title = "Convergence"
    if generated != {False}:
        title += f", {'in part ' if len(generated) > 1 else ''}on generated data"
    columns = [
        Column("accuracy\n%", "arm", _spread("accuracy", 100)),
        Column("held-out\nloss", "arm", _spread("loss"), drop=2),
        Column("training\ns", "arm", _spread("train_s"), drop=1),
        Column("repeats", "repeats", drop=4),
        Column("result", "result"),
    ]
    reasons = grouped(
        (arm.convergence or "no reason given", view.named(arm))
        for arm in trained.arms
        if arm.converged is False or (arm.converged is None and arm.convergence)
    )
    notes = [f"{fmt.listed(names)}: {why}" for why, names in reasons.items()]
    return arms_part(title, view, trained, columns, [*notes, *_repeats_note(trained.arms)])


def _repeats_note(arms: Sequence[Training]) -> list[str]:
    parts = ["±: standard deviation of the repeats"] * any(len(arm.repeats) > 1 for arm in arms)
    chances = {arm.chance for arm in arms if arm.chance is not None}
    if len(chances) == 1:
        parts.append(f"chance level {100 * chances.pop():.3g} %")
    seeds = dict.fromkeys(", ".join(str(r.seed) for r in arm.repeats) for arm in arms)
    named = " or ".join(filter(None, seeds))  # once, when all arms had the same
    if named:
        parts.append(f"seed{'s' * (',' in named or ' or ' in named)} {named}")
    return ["; ".join(parts)] if parts else []


def _spread(name: str, scale: float = 1.0) -> Callable[[Training], str]:
    """The mean of an arm's repeats, of several with its deviation, times `scale`."""
    return lambda arm: spread(getattr(arm, name), len(arm.repeats) > 1, scale)


def _repeats(arm: Training) -> str | int | None:
    """How many, and how many of them ended with a finite loss where not all did."""
    finite = sum(repeat.train_loss is not None for repeat in arm.repeats)
    count = len(arm.repeats)
    return f"{finite} of {count}" if finite < count else count or None


def mean_of(arm: Training, name: str) -> float | None:
    """The mean of a number over the repeats, when every one has it and it is finite."""
    known = [number for repeat in arm.repeats if (number := getattr(repeat, name)) is not None]
    return fmean(known) if known and len(known) == len(arm.repeats) else None


# ---------------------------------------------------------------- several GPUs


def exchange_part(view: View) -> Part:
    """The arms whose exchange was measured: MB, milliseconds and rates."""
    seen = view.only(lambda arm: arm.exchange is not None)
    columns = [
        Column("MB", "arm.exchange.bytes", lambda size: f"{size / 1e6:.1f}"),
        Column("adds ms", "arm.exchange", exposed),
        Column(
            "copies ms", "arm.exchange", lambda e: fmt.milliseconds(e.copies_s) if e.copies else ""
        ),
        Column("alone ms", "arm.exchange.alone_s", fmt.milliseconds),
        Column("hidden", "arm.exchange", _hidden),
        Column("bus\nGB/s", "arm.exchange.bus_bytes_per_s", lambda rate: fmt.number(rate / 1e9)),
        Column("ranks without it, ms", "arm.exchange.rank_local_s", _ranks, drop=1),
    ]
    notes = (
        "adds: step less step without exchange (no_sync); copies: of gradients into buckets and "
        "back, alone: all-reduce of the same buckets, both with nothing beside them",
        "hidden: share of the all-reduce behind the backward pass, ? where it is not known; "
        "bus: 2 (N-1)/N x bytes / alone; one GPU exchanges nothing",
    )
    return arms_part("Exchange of gradients", view, seen, columns, notes)


def exposed(exchange: Exchange) -> str:
    """What the exchange adds, "1.2 ±0.3", in ms; noise may make it negative."""
    ends = exchange.exposed_ci95_s
    half = f"{1e3 * (ends[1] - ends[0]) / 2:.2f}" if ends else "?"
    return f"{1e3 * exchange.exposed_s:.2f} ±{half}"


def _hidden(exchange: Exchange) -> str:
    """The share that is hidden, "?" where the interval is wider than the exchange itself, or more
    is added than copies and exchange take.
    """
    ends = exchange.exposed_ci95_s
    if exchange.overlapped is None:
        return ""
    known = ends is not None and ends[1] - ends[0] <= exchange.alone_s and exchange.overlapped > 0
    return fmt.per_cent(100 * exchange.overlapped) if known else "?"


def _ranks(times_s: Sequence[float]) -> str:
    """ "12.1 to 12.4": the fastest and the slowest."""
    return " to ".join(map(fmt.milliseconds, (min(times_s), max(times_s)))) if times_s else ""
