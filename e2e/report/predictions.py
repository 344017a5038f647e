"""What was predicted of steps: the GPU's time from their operations or, in older files, steps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from e2e.report.answer import where_of
from e2e.report.arms import (
    SHORT_MARK,
    SHORT_NOTE,
    View,
    grouped,
    in_order,
    is_base,
)
from e2e.report.figures import bottleneck, is_clear
from e2e.report.trainings import MOST_ROWS, names_of
from e2e.results.types import Predicted, Training
from microbench import fmt
from microbench.report.parts import VERBOSE, Column, Line, Part, Row
from microbench.results.types import Json, Ratio, Run
from microbench.verdict import load_warnings

# A CPU that needs this share of the GPU's time to launch may limit the step: in nine of ten steps
# the estimate is at most a quarter off, and a shared CPU's speed changes by half.
MAY_LIMIT = 0.6
MOST_NAMED = 4
SAID = ("predicted.interval_s", "launches")  # columns that the answer has for the screen
MISSING = "missing from the prediction of {arms} (could not be replayed): too short"
FROM_STEP = "timed in real steps for {arms} (could not be launched in isolation)"


def of_operations(arm: Training) -> bool:
    """Whether the GPU's time was predicted, the sum of operations."""
    return arm.predicted is not None and arm.predicted.of_operations


def error_pct(arm: Training) -> float | None:
    """Error in per cent (positive: too long) of the GPU's time, or of the step; None: unknown."""
    predicted, steps = arm.predicted, arm.steps
    if predicted is None or steps is None:
        return None
    if predicted.of_operations:
        return off_pct(predicted.gpu_s, steps.busy_s)
    if predicted.error_pct is None or arm.case.loads_data:  # older files: of the median step
        return off_pct(predicted.step_s, arm.step_s)
    return predicted.error_pct


def off_pct(predicted: float | None, measured: float | None) -> float | None:
    """How much larger the prediction is, in per cent; None unless both are known."""
    return 100 * (predicted / measured - 1) if predicted and measured else None


# ---------------------------------------------------------------- the table


def prediction_parts(view: View, *, screen: bool) -> list[Part]:
    """A row for each prediction, in ms, beside what was measured; `screen`: also on the screen."""
    arms = view.only(lambda arm: arm.predicted is not None)
    alone = any(map(of_operations, arms.arms))
    of_gpu = "GPU time\n" * alone
    names = in_order({name: 0 for arm in arms.arms for name in _of(arm).speedup})
    columns = [
        *names_of(arms),
        Column("predicted\nms", "predicted.step_s", fmt.milliseconds),
        Column("interval", "predicted.interval_s", _interval, drop=9),
        Column("measured\nms", "measured_s", fmt.milliseconds),
        Column("error", "error_pct", fmt.signed_pct),
        *(Column(f"{of_gpu}x {view.title(name, SHORT_MARK)}", f"x {name}", _ratio)
          for name in names),
        Column("exchange\nadds ms", "predicted.exchange_s", fmt.milliseconds, drop=5),
        Column("launches", "launches", drop=6),
        Column("CPU launch\nms, about", "predicted.host_s", fmt.milliseconds, drop=4),
        Column("bottleneck", "limit", drop=7),
        Column("peak\nGB", "predicted.memory_bytes", fmt.gigabytes, drop=8),
    ]  # fmt: skip
    rows: list[Json] = [
        {
            "where": view.where(arm) or None, "label": view.label(arm),
            "predicted": _of(arm), "error_pct": error_pct(arm),
            **{f"x {name}": ratio for name, ratio in _of(arm).speedup.items()
               if not _launches_longer(view, arm, name)},
            "measured_s": (arm.steps and arm.steps.busy_s) if of_operations(arm) else arm.step_s,
            "launches": _of(arm).launches or None, "limit": bottleneck(_of(arm).limit) or None,
        }
        for arm in arms.arms
    ]  # fmt: skip
    unsaid = not view.compared and any(map(view.is_short, names))  # below the table of speed
    every = Part(
        "Predicted GPU time of a step (operations alone)" if alone else "Predicted step",
        columns,
        [*map(Row, rows)],
        [line for line in (*_calls(arms), *[SHORT_NOTE] * unsaid, _predicting(arms)) if line],
        VERBOSE,
    )
    if not screen:
        return [every]
    more = len(rows) - MOST_ROWS
    notes = [*[SHORT_NOTE] * unsaid, *[f"and {more} more: --verbose"] * (more > 0)]
    shown = [column for column in columns if column.path not in SAID]
    return [Part("", shown, every.rows[:MOST_ROWS], notes), every]


def _of(arm: Training) -> Predicted:
    assert arm.predicted is not None
    return arm.predicted


def _ratio(value: float) -> str:
    """A ratio without an interval, such as "5.64"."""
    return fmt.short_ratio(Ratio(value, None))


def _interval(ends: tuple[float, float]) -> str:
    """In milliseconds, such as "41.6..44.0"."""
    return f"{fmt.milliseconds(ends[0])}..{fmt.milliseconds(ends[1])}"


def _predicting(view: View) -> str:
    """How long predicting took, over all arms, such as "prediction took 31 s: ..."."""
    took = [stage for arm in view.arms if arm.predicted for stage in arm.predicted.took_s.items()]
    stages = {name: sum(seconds) for name, seconds in grouped(took).items()}
    if not stages:
        return ""
    parts = [f"{name} {fmt.duration(s)}" for name, s in stages.items() if s]
    return f"prediction took {fmt.duration(sum(stages.values()))}: {', '.join(parts)}"


def _calls(view: View) -> list[str]:
    """The calls missing from predictions, and those timed in a real step, with their arms."""
    by_text = grouped(
        ((text, tuple(op or "-" for op in calls)), view.named(arm))
        for arm in view.arms
        if arm.predicted
        for text, calls in (
            (MISSING, arm.predicted.uncovered), (FROM_STEP, arm.predicted.from_step),
        )
        if calls
    )  # fmt: skip
    return [
        f"{text.format(arms=fmt.listed(names))}: {', '.join(ops)}."
        for (text, ops), names in by_text.items()
    ]


# ---------------------------------------------------------------- the answer


def predicted_answer(run: Run, view: View, device: str) -> list[Line]:
    """What was predicted, what launching may change, and how far it is from what was measured."""
    arms = list(filter(of_operations, view.arms))
    main = [arm for arm in arms if not view.is_baseline(arm)] or arms
    errors = [(abs(error), arm) for arm in arms if (error := error_pct(arm)) is not None]
    off = ""
    if errors:
        middle = median(error for error, _ in errors)
        worst, arm = max(errors, key=lambda pair: pair[0])
        off = f"{middle:.1f} % off in the median, {worst:.1f} % at worst ({view.named(arm)})"
    if len(view.groups) > 1:
        finding = f"{fmt.count(len(arms), 'step')} predicted ({where_of(view, arms, device)})"
        if off:
            finding += f": the GPU's time is {off}, of {fmt.count(len(errors), 'measured step')}"
        lines = [Line("", finding)]
        for name in in_order({name: 0 for arm in main for name in arm.speedup}):
            ratios = [arm.speedup[name] for arm in main if name in arm.speedup]
            clear = sum(is_clear(ratio) and ratio.ratio > 1 for ratio in ratios)
            often = f"in {clear} of {len(ratios)}"
            faster = f"A measured step is clearly faster than {view.title(name)} {often}"
            lines.append(Line("", faster))
    else:
        lines = [Line("", _sentence(view, main[-1], device))]
    waits = [arm for arm in main if (_of(arm).host_s or 0.0) > MAY_LIMIT * _of(arm).step_s]
    first = (waits or main)[-1]
    predicted = _of(first)
    if predicted.launches:
        whose = f" of {view.named(first)}" * (len(main) > 1)
        text = f"{predicted.launches:,} launches{whose}"
        if predicted.host_s:
            text += f" take about {fmt.milliseconds(predicted.host_s)} ms of this CPU"
        if waits:
            text += ": CPU launch may be the bottleneck, then a step takes longer"
        lines.append(Line("Why", text))
    case = main[-1].case
    measure = f"halfway train {case.network} --recipe {case.recipe} measures the step"
    lines.append(Line("Do", f"a larger batch; {measure}" if waits else measure))
    return [*lines, *(Line("Doubt", sentence) for sentence in _doubts(run, view, arms, off))]


def _launches_longer(view: View, arm: Training, name: str) -> bool:
    """Whether it or its baseline is launched in more time than the GPU needs: then a ratio of GPU
    times says nothing of steps.
    """
    group = view.group_of(arm)
    ones = [arm, *(other for other in group.arms if is_base(other, name, group))]
    known = [other.predicted for other in ones if other.predicted and other.predicted.of_operations]
    return any(predicted.host_s and predicted.host_s > predicted.step_s for predicted in known)


def _sentence(view: View, arm: Training, device: str) -> str:
    """ "amp: 22.1 ms of the GPU a step (21.0..23.2); tf32 takes 1.17 times as long (...)"."""
    predicted = _of(arm)
    what = "of operations" if predicted.gpu_s is None else "of the GPU"
    least = "at least " * bool(predicted.uncovered)
    text = f"{view.label(arm)}: {least}{fmt.milliseconds(predicted.step_s)} ms {what} a step"
    if predicted.interval_s:
        text += f" ({_interval(predicted.interval_s)})"
    for name in in_order(predicted.speedup):
        if _launches_longer(view, arm, name):
            continue
        longer = _ratio(predicted.speedup[name])
        text += f"; {view.title(name)} takes {longer} times as long"
    return f"{text} ({where_of(view, [arm], device)})"


def _doubts(run: Run, view: View, arms: Sequence[Training], off: str) -> list[str]:
    sentences = ["operations alone, nothing that Python does between them"]
    if off and len(view.groups) == 1:
        sentences = [f"operations alone; beside the measured GPU time {off}"]
    on_cpu = run.device.get("kind") == "cpu"
    if any(_of(arm).gpu_s is None for arm in arms):
        sentences[0] = (
            "rough on a CPU: operations alone, nothing that Python does between them; steps of "
            "small networks were 30 to 70 % off"
        )
    if on_cpu and load_warnings(run.settings):
        sentences.append(
            "the machine was busy: it may be many times too slow; repeat it on an idle machine, or "
            "with OMP_NUM_THREADS=1"
        )
    unknown = [(view.named(arm), _of(arm).uncovered) for arm in arms if _of(arm).uncovered]
    if unknown:
        label, calls = unknown[-1]
        names = fmt.listed([line.split(":")[0] for line in calls], MOST_NAMED)
        sentences.append(f"no time is known of {names} ({label}): too short")
    return sentences
