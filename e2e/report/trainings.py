"""The tables of a run's trainings: a row a variant, beside what it was measured with.

The screen has the recipes asked for; --verbose, Markdown and pages have all of them, the phases of
a step, convergence, and several GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from e2e.report.figures import bottleneck, ratio, spread
from e2e.report.variants import (
    SHORT_MARK,
    SHORT_NOTE,
    Group,
    View,
    grouped,
    is_generated,
    was_run,
)
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


def row_of(view: View, variant: Training) -> Row:
    """A variant and what tables say of it beside its own values; dim where it is a baseline only.

    Its bottleneck is no finding where there is no verdict on its speed.
    """
    lost, ruined = " *" * view.is_lost(variant), bool(view.group_of(variant).ruined_pct)
    unsure = bool(variant.ruined_pct) or (ruined and bool(variant.speedup))
    scaled = [row for row in scaling(view.variants) if row.many is variant]
    of_card = variant.traced and variant.traced.of_card
    item: Json = {
        "where": view.where(variant) or None,
        "place": view.where(variant) + lost,
        "label": view.label(variant) + lost,
        "variant": variant,
        **{f"x {name}": (variant.speedup[name], ruined)
           for name in view.compared if view.is_compared(variant, name)},
        "efficiency": scaled[0].efficiency if scaled else None,
        "busy_pct": busy_pct(variant),
        "of_card_pct": of_card and 100 * of_card,
        "bottleneck": None if unsure else bottleneck(variant.limit) or None,
        "repeats": _repeats(variant),
        "result": {True: "converged", False: "NOT CONVERGED", None: None}[variant.converged],
        "throttle": ", ".join(variant.state.throttle) or None,
        **{f"phase {phase.name}": phase for phase in variant.phases},
    }  # fmt: skip
    style = RED if variant.converged is False else DIM if view.is_baseline(variant) else ""
    if variant.per_s is not None or not was_run(variant):
        return Row(item, style=style)
    failed = RED if variant.status == "failed" else DIM
    return Row(item, MARKS.get(variant.status, variant.status), failed)


def names_of(view: View, shown: Sequence[Training] = ()) -> list[Column]:
    """The columns that name a variant: where it was timed, if that differs, and its recipe or rung,
    which is the first one's title where all `shown` have the same.
    """
    labels = {view.label(t) for t in shown}
    first = "rung" if any(t.rung is not None for t in view.variants) else "recipe"
    if len(view.groups) == 1:
        return [Column(first, "label")]
    if len(labels) == 1:
        return [Column(labels.pop(), "place")]
    return [Column("", "where", once=True), Column(first, "label")]


def variants_part(
    title: str, view: View, shown: View, columns: Sequence[Column], below: Sequence[str] = (),
    topic: Topic = "",
) -> Part:  # fmt: skip
    """A part with a row for each variant of `shown`, under its name in the view."""
    rows = [row_of(view, t) for t in shown.variants]
    return Part(title, [*names_of(view), *columns], rows, below if rows else (), VERBOSE, topic)


# ---------------------------------------------------------------- speed


def recipes_part(view: View) -> Part:
    """The recipes on the screen; of many those that were asked for, or the fastest of a group."""
    ran = view.only(was_run)
    variants = ran.variants
    if len(variants) > MOST_IN_GROUPS and len(ran.groups) > 1:
        recipes = view.only(lambda t: not view.is_baseline(t) and was_run(t))
        variants = recipes.variants or variants
        if len(variants) > MOST_ROWS:
            variants = list(filter(None, map(fastest, recipes.groups))) or variants
    shown = variants[: MOST_IN_GROUPS if len(ran.groups) > 1 else MOST_ROWS]
    notes = [
        f"and {len(variants) - len(shown)} more: --verbose" * (len(variants) > len(shown)),
        *_signs(view, shown),
        *(_chosen(view, t) for t in shown),
        *missing([(ran.named(a), a.reason or "") for a in ran.variants if a.per_s is None]),
    ]
    return Part(
        "",
        [*names_of(ran, shown), *_brief_columns(ran)],
        [row_of(ran, t) for t in shown],
        [note for note in notes if note],
    )


def fastest(group: Group) -> Training | None:
    """The variant of a group with the highest throughput, of those that converged."""
    timed = [t for t in group.variants if t.per_s and t.converged is not False]
    return max(timed, key=lambda t: t.per_s or 0.0, default=None)


def every_recipe_part(view: View) -> Part:
    """All variants that were run, in the order measured, with all that was measured."""
    ran = view.only(was_run)
    variants = ran.variants
    word = "batch" if view.evaluates else "step"
    columns = [
        _rate(ran),
        Column("±", "variant.steps", _half, drop=14),
        Column(f"ms/{word}", "variant.step_s", fmt.milliseconds, drop=11),
        *_ratios(ran),
        Column("efficiency", "efficiency", ratio, drop=7),
        Column("peak\nGB", "variant.memory_peak_bytes", fmt.gigabytes, drop=10),
        Column("W", "variant.state.power_w", "{:.0f}".format, drop=15),
        Column(f"{ran.unit or 'units'}/J", "variant.per_j", fmt.throughput, drop=12),
        Column("GPU\nbusy", "busy_pct", fmt.per_cent, drop=16),
        Column("CPU\nms", "variant.steps.host_s", fmt.milliseconds, drop=17),
        Column("data\nwait ms", "variant.steps.wait_s", fmt.milliseconds, drop=9),
        Column("of the\ncard", "of_card_pct", fmt.per_cent, drop=8),
        Column("throttle", "throttle", drop=15),
        Column("bottleneck", "bottleneck", drop=13),
    ]
    failed = missing([(ran.named(t), t.reason or "") for t in variants if t.per_s is None])
    return variants_part("Every recipe", ran, ran, columns, [*_notes(ran), *failed])


def _rate(view: View) -> Column:
    """Throughput, in the units of all variants."""
    units = dict.fromkeys(t.unit for t in view.variants)
    title, several = " or ".join(units) or "units", len(units) > 1
    return Column(f"{title}/s", "variant.per_s", fmt.throughput, drop=9 * several)


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
    learnt = any(t.repeats for t in view.variants)
    return [
        _rate(view),
        Column("±", "variant.steps", _half, drop=10),
        *_ratios(view),
        Column("efficiency", "efficiency", ratio),
        *([Column("accuracy\n%", "variant", _spread("accuracy", 100), drop=7),
           Column("held-out\nloss", "variant", _spread("loss"), drop=9)] if learnt else []),
        *[Column("peak GB", "variant.memory_peak_bytes", fmt.gigabytes, drop=8)]
        * (len(view.groups) == 1),
        Column("bottleneck", "bottleneck", drop=5),
    ]  # fmt: skip


def _half(steps: StepTimes) -> str:
    return fmt.half_interval(steps.median_s, steps.ci95_s)


def busy_pct(variant: Training) -> float | None:
    """Share of the step in which at least one kernel ran, in per cent; None if not known."""
    steps = variant.steps
    if steps is None or steps.busy_s is None:
        return None
    return 100 * min(1.0, steps.busy_s / (variant.step_s or steps.median_s))


def _signs(view: View, variants: Sequence[Training]) -> list[str]:
    """What the signs in these rows mean, in a line; nothing where there are none."""
    ratios = [ratio for t in variants for ratio in t.speedup.values()]
    signs = [
        ("~1: no difference measured",
         any(ratio.no_difference for t in variants for ratio in t.speedup.values()
             if not view.group_of(t).ruined_pct)),
        ("±?: too few rounds for an interval", any(ratio.ci95 is None for ratio in ratios)),
        (f"{fmt.UNCERTAIN}: beyond ±{RUINED_PCT:.0f} %, or beside a time that is: no verdict",
         any(t.speedup and view.group_of(t).ruined_pct for t in variants)),
        ("*: did not converge", any(map(view.is_lost, variants))),
    ]  # fmt: skip
    short = [SHORT_NOTE] * any(map(view.is_short, view.compared))
    return ["; ".join(text for text, shown in signs if shown), *short]


def _notes(view: View) -> list[str]:
    """How to read the table, and what applies to all of its rows."""
    timed, scaled = [t for t in view.variants if t.steps], bool(scaling(view.variants))
    fp8 = dict.fromkeys(
        f"{view.label(t)}: {t.float8_layers} of {t.linear_layers} linear layers multiply in FP8"
        for t in view.variants
        if t.float8_layers and t.linear_layers and not t.fp8_gains
    )
    lines = [
        "±, [low, high]: 95 % confidence interval" * bool(timed),
        *_signs(view, view.variants),
        f"GPU busy: share of the {view.step} in which a kernel runs; CPU ms: to launch one on an "
        "idle GPU" * any(t.steps and t.steps.busy_s is not None for t in timed),
        "efficiency: throughput over that of one GPU times the number of GPUs" * scaled,
        f"a {view.step} is the mean by the wall clock" * any(t.case.loads_data for t in timed),
        _processes(timed),
        *fp8,
    ]
    return [line for line in lines if line]


def _processes(timed: Sequence[Training]) -> str:
    """How many processes timed each variant; "" where all were timed by one."""
    counts = sorted({max(1, len(t.steps.processes)) for t in timed if t.steps})
    if counts[-1:] in ([], [1]):
        return ""
    ends = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    return f"timed in {ends} processes each: ± is of their mean"


# ---------------------------------------------------------------- layers in FP8


def _bf16_of(view: View, variant: Training) -> Training | None:
    """The variant in bfloat16 that a variant is like in all else."""
    case = replace(variant.case, recipe=BF16)
    return next((other for other in view.variants if other.case == case), None)


def is_bf16_again(view: View, variant: Training) -> bool:
    """Whether no layer of it surely pays, so that it is another variant: they differ by chance."""
    return bool(variant.fp8_gains and not variant.float8_layers and _bf16_of(view, variant))


def _chosen(view: View, variant: Training) -> str:
    """How many layers a variant has in FP8 where it chose, and what that saves as predicted and as
    measured; "" for other variants.
    """
    if not variant.fp8_gains:
        return ""
    label = view.label(variant)
    if not variant.float8_layers:
        return f"{label}: no layer surely pays, so it is {BF16}"
    saved_s = variant.case.accumulate * sum(part.saved_s(part.gain) for part in variant.fp8_gains)
    text = (
        f"{label} converts {variant.float8_layers} of {variant.linear_layers} linear layers; "
        f"predicted {fmt.milliseconds(saved_s)} ms saved"
    )
    plain = _bf16_of(view, variant)
    base = plain.step_s if plain else None
    if base and variant.step_s:
        measured = f"{'-' * (variant.step_s > base)}{fmt.milliseconds(abs(base - variant.step_s))}"
        text += f", measured {measured} of {fmt.milliseconds(base)}"
    return text


def gains_part(view: View) -> Part:
    """What FP8 gains in each shape of linear layer, of the variants that chose by it."""
    rows = [
        {
            "label": view.named(t), "layers": part.places * layer.count, "layer": layer,
            "bf16_ms": 1e3 * part.bf16_s, "fp8": "yes" if layer.converted else "no",
            "saved_ms": 1e3 * t.case.accumulate * part.saved_s(layer.gain),
        }
        for t in view.variants for part in t.fp8_gains for layer in part.layers
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
        *(text for t in view.variants if (text := _chosen(view, t))),
    ]
    title = "Linear layers, and what FP8 gains in them"
    return Part(title, columns, [*map(Row, rows)], below if rows else (), VERBOSE, "ledger")


# ---------------------------------------------------------------- phases


def phases_part(view: View) -> Part:
    """The variants whose phases were timed, a column a phase: ms by the clocks of CPU and GPU."""
    timed = view.only(lambda t: bool(t.phases))
    phases = [phase for t in timed.variants for phase in t.phases]
    clocks = "CPU / GPU" if any(phase.gpu_s is not None for phase in phases) else "CPU"
    names = dict.fromkeys(phase.name for phase in phases)
    longest = sorted(names, key=lambda name: -max(p.host_s for p in phases if p.name == name))
    columns = [Column(name, f"phase {name}", _phase, longest.index(name)) for name in names]
    both = any(t.steps and t.steps.host_s is not None for t in timed.variants)
    return variants_part(
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
    """The variants that were trained for accuracy, with seeds and reasons."""
    trained = view.only(lambda t: bool(t.repeats) or t.converged is not None)
    generated = {is_generated(t.case) for t in trained.variants}
    title = "Convergence"
    if generated != {False}:
        title += f", {'in part ' if len(generated) > 1 else ''}on generated data"
    columns = [
        Column("accuracy\n%", "variant", _spread("accuracy", 100)),
        Column("held-out\nloss", "variant", _spread("loss"), drop=2),
        Column("training\ns", "variant", _spread("train_s"), drop=1),
        Column("repeats", "repeats", drop=4),
        Column("result", "result"),
    ]
    reasons = grouped(
        (t.convergence or "no reason given", view.named(t))
        for t in trained.variants
        if t.converged is False or (t.converged is None and t.convergence)
    )
    notes = [f"{fmt.listed(names)}: {why}" for why, names in reasons.items()]
    return variants_part(title, view, trained, columns, [*notes, *_repeats_note(trained.variants)])


def _repeats_note(variants: Sequence[Training]) -> list[str]:
    parts = ["±: standard deviation of the repeats"] * any(len(t.repeats) > 1 for t in variants)
    chances = {t.chance for t in variants if t.chance is not None}
    if len(chances) == 1:
        parts.append(f"chance level {100 * chances.pop():.3g} %")
    seeds = dict.fromkeys(", ".join(str(r.seed) for r in t.repeats) for t in variants)
    named = " or ".join(filter(None, seeds))  # once, when all variants had the same
    if named:
        parts.append(f"seed{'s' * (',' in named or ' or ' in named)} {named}")
    return ["; ".join(parts)] if parts else []


def _spread(name: str, scale: float = 1.0) -> Callable[[Training], str]:
    """The mean of a variant's repeats, of several with its deviation, times `scale`."""
    return lambda t: spread(getattr(t, name), len(t.repeats) > 1, scale)


def _repeats(variant: Training) -> str | int | None:
    """How many, and how many of them ended with a finite loss where not all did."""
    finite = sum(repeat.train_loss is not None for repeat in variant.repeats)
    count = len(variant.repeats)
    return f"{finite} of {count}" if finite < count else count or None


def mean_of(variant: Training, name: str) -> float | None:
    """The mean of a number over the repeats, when every one has it and it is finite."""
    known = [number for repeat in variant.repeats if (number := getattr(repeat, name)) is not None]
    return fmean(known) if known and len(known) == len(variant.repeats) else None


# ---------------------------------------------------------------- several GPUs


def exchange_part(view: View) -> Part:
    """The variants whose exchange was measured: MB, milliseconds and rates."""
    seen = view.only(lambda t: t.exchange is not None)
    columns = [
        Column("MB", "variant.exchange.bytes", lambda size: f"{size / 1e6:.1f}"),
        Column("adds ms", "variant.exchange", exposed),
        Column(
            "copies ms",
            "variant.exchange",
            lambda e: fmt.milliseconds(e.copies_s) if e.copies else "",
        ),
        Column("alone ms", "variant.exchange.alone_s", fmt.milliseconds),
        Column("hidden", "variant.exchange", _hidden),
        Column(
            "bus\nGB/s", "variant.exchange.bus_bytes_per_s", lambda rate: fmt.number(rate / 1e9)
        ),
    ]
    notes = (
        "adds: step less step without exchange (no_sync); copies: of gradients into buckets and "
        "back, alone: all-reduce of the same buckets, both with nothing beside them",
        "hidden: share of the all-reduce behind the backward pass, ? where it is not known; "
        "bus: 2 (N-1)/N x bytes / alone; one GPU exchanges nothing",
    )
    return variants_part("Exchange of gradients", view, seen, columns, notes)


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
