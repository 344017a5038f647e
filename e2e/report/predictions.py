"""What was predicted of steps: the GPU's time, from their operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from e2e.report.answer import where_of
from e2e.report.trainings import MOST_ROWS, names_of
from e2e.report.variants import SHORT_MARK, SHORT_NOTE, View, in_order, is_base
from e2e.results.types import Predicted, Training
from microbench import fmt
from microbench.report.parts import DEFAULT, VERBOSE, Column, Line, Part, Row
from microbench.results.types import Json, Ratio, Run

# A CPU that needs this share of the GPU's time to launch may limit the step: in nine of ten steps
# the estimate is at most a quarter off, and a shared CPU's speed changes by half.
MAY_LIMIT = 0.6
MOST_NAMED = 4


def of_operations(variant: Training) -> bool:
    """Whether the GPU's time was predicted, the sum of operations."""
    return variant.predicted is not None and variant.predicted.of_operations


def error_pct(variant: Training) -> float | None:
    """Error in per cent (positive: too long) of the GPU's time, or of the step; None: unknown."""
    predicted, steps = variant.predicted, variant.steps
    if predicted is None or steps is None:
        return None
    if predicted.of_operations:
        return off_pct(predicted.gpu_s, steps.busy_s)
    if predicted.error_pct is None or variant.case.loads_data:  # older files: of the median step
        return off_pct(predicted.step_s, variant.step_s)
    return predicted.error_pct


def off_pct(predicted: float | None, measured: float | None) -> float | None:
    """How much larger the prediction is, in per cent; None unless both are known."""
    return 100 * (predicted / measured - 1) if predicted and measured else None


def _of(variant: Training) -> Predicted:
    assert variant.predicted is not None
    return variant.predicted


def _may_wait(variant: Training) -> bool:
    """Whether CPU launch may be its bottleneck: then a ratio of GPU times says nothing of steps."""
    return of_operations(variant) and (_of(variant).host_s or 0.0) > MAY_LIMIT * _of(variant).step_s


def _ratios(view: View, variant: Training) -> Mapping[str, float]:
    """How many times as long its baselines keep the GPU busy; none that say nothing of steps."""
    group = view.group_of(variant)
    return {
        name: ratio
        for name, ratio in _of(variant).speedup.items()
        if not any(
            _may_wait(one) for one in group.variants if one is variant or is_base(one, name, group)
        )
    }


# ---------------------------------------------------------------- the table


def prediction_parts(view: View, *, screen: bool) -> list[Part]:
    """A row for each prediction, in ms, beside what was measured; `screen`: also on the screen."""
    view = view.only(of_operations)
    names = in_order({name: 0 for t in view.variants for name in _of(t).speedup})
    time = "GPU time" if any(_of(t).launches for t in view.variants) else "time"
    columns = [
        *names_of(view),
        Column("predicted\nms", "predicted.step_s", fmt.milliseconds),
        Column("interval", "predicted.interval_s", _interval, drop=9),
        Column("measured\nms", "measured_s", fmt.milliseconds),
        Column("error", "error_pct", fmt.signed_pct),
        *(Column(f"{time}\nx {view.title(name, SHORT_MARK)}", f"x {name}", _ratio)
          for name in names),
        Column("launches", "predicted.launches", lambda n: f"{n:,}" * (n > 0), drop=6),
        Column("CPU launch\nms, about", "predicted.host_s", fmt.milliseconds, drop=4),
        Column("peak\nGB", "predicted.memory_bytes", fmt.gigabytes, drop=8),
    ]  # fmt: skip
    rows: list[Json] = [
        {
            "where": view.where(t) or None, "label": view.label(t), "predicted": _of(t),
            "error_pct": error_pct(t), "measured_s": t.steps.busy_s if t.steps else None,
            **{f"x {name}": ratio for name, ratio in _ratios(view, t).items()},
        }
        for t in view.variants
    ]  # fmt: skip
    short = [SHORT_NOTE] * any(map(view.is_short, names))
    title = f"Predicted {time} of a step (operations alone)"
    notes = [*_unknown(view, view.variants), *short]
    every = Part(title, columns, [*map(Row, rows)], notes, VERBOSE)
    if not screen:
        return [every]
    more = len(rows) - MOST_ROWS
    below = [*short, *[f"and {more} more: --verbose"] * (more > 0)]
    first = replace(every, title="", rows=every.rows[:MOST_ROWS], below=below, level=DEFAULT)
    return [first, every]


def _ratio(value: float) -> str:
    """A ratio without an interval, such as "5.64"."""
    return fmt.short_ratio(Ratio(value, None))


def _interval(ends: tuple[float, float]) -> str:
    """In milliseconds, such as "41.6..44.0"."""
    return f"{fmt.milliseconds(ends[0])}..{fmt.milliseconds(ends[1])}"


def _unknown(view: View, variants: Sequence[Training], most: int = 100) -> Iterator[str]:
    """The calls that are missing from predictions."""
    for variant in variants:
        if calls := [line.split(":")[0] or "-" for line in _of(variant).uncovered]:
            named = view.named(variant)
            yield f"no time is known of {fmt.listed(calls, most)} ({named}): too short"


# ---------------------------------------------------------------- the answer


def predicted_answer(run: Run, view: View, device: str) -> list[Line]:
    """Whether launching may limit a step, what was predicted, and how far off it is."""
    variants = list(filter(of_operations, view.variants))
    main = [t for t in variants if not view.is_baseline(t)] or variants
    errors = [(abs(error), t) for t in variants if (error := error_pct(t)) is not None]
    off = ""
    if errors:
        middle = median(error for error, _ in errors)
        worst, variant = max(errors, key=lambda pair: pair[0])
        off = f"{middle:.1f} % off in the median, {worst:.1f} % at worst ({view.named(variant)})"
    waits = list(filter(_may_wait, main))
    lines: list[Line] = []
    if waits:
        named = fmt.listed([view.named(t) for t in waits], 1)
        text = f"CPU launch may be the bottleneck of {named}: then a step takes longer"
        lines.append(Line("", text))
    finding = _sentence(view, main[-1], device)
    if len(view.groups) > 1:
        finding = (
            f"{fmt.count(len(variants), 'step')} predicted ({where_of(view, variants, device)})"
        )
        if off:
            finding += f": the GPU's time is {off}, of {fmt.count(len(errors), 'measured step')}"
    lines.append(Line("", finding))
    first = waits[0] if waits else main[-1]
    if _of(first).launches:
        text = f"{_of(first).launches:,} launches" + f" of {view.named(first)}" * (len(main) > 1)
        if host_s := _of(first).host_s:
            text += f" take about {fmt.milliseconds(host_s)} ms of this CPU"
        lines.append(Line("Why", text))
    case = first.case
    measure = f"halfway train {case.network} --recipe {case.recipe} measures the step"
    lines.append(Line("Do", f"a larger batch; {measure}" if waits else measure))
    doubt = "operations alone, nothing that Python does between them"
    if off and len(view.groups) == 1:
        doubt = f"operations alone; beside the measured GPU time {off}"
    if any(_of(t).gpu_s is None for t in variants):
        doubt = f"rough on a CPU: {doubt}; steps of small networks were 30 to 70 % off"
    doubts = [doubt, *list(_unknown(view, variants, MOST_NAMED))[-1:]]
    return [*lines, *(Line("Doubt", sentence) for sentence in doubts)]


def _sentence(view: View, variant: Training, device: str) -> str:
    """ "amp: 22.1 ms of the GPU a step (21.0..23.2); tf32 takes 1.17 times as long (...)"."""
    predicted = _of(variant)
    what = "of operations" if predicted.gpu_s is None else "of the GPU"
    least = "at least " * bool(predicted.uncovered)
    text = f"{view.label(variant)}: {least}{fmt.milliseconds(predicted.step_s)} ms {what} a step"
    if predicted.interval_s:
        text += f" ({_interval(predicted.interval_s)})"
    ratios = _ratios(view, variant)
    for name in in_order(ratios):
        text += f"; {view.title(name)} takes {_ratio(ratios[name])} times as long"
    return f"{text} ({where_of(view, [variant], device)})"
