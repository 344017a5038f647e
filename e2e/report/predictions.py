"""Tables of predicted steps, beside measured ones or alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from rich.text import Text

from e2e.report.arms import (
    Group,
    View,
    arms_of,
    grouped,
    in_order,
    in_words,
    is_base,
    is_generated,
    place,
)
from e2e.report.figures import bottleneck, bottleneck_short, signed_pct
from e2e.report.table import BASELINES, arms_table, name_columns, plain_row, raw_pair
from e2e.results.types import BORDER, Predicted, Training
from microbench import fmt
from microbench.report.table import Column, Table, Value, screen
from microbench.results.types import Ratio

BESIDE_TITLE = "Predicted and measured step"
ALONE_TITLE = "Predicted step (not measured)"
MOST_UNCOVERED = 6
MOST_NAMED = 4
MISSING = "missing from the prediction of {arms} (could not be replayed)"
FROM_STEP = "timed in real steps for {arms} (could not be launched in isolation)"
CAPTURED = "captured steps (--graph): not predicted; the graph of their operations was timed"
OF_ONE_GPU = "of one GPU: no exchange of gradients (see --exchange)"
OVER_SEVERAL = (
    "exchange: what is left of it after the backward pass, by the all-reduce times of --exchange; "
    "efficiency: the step of one GPU over that of several"
)
AT_HOST_SPEED = (
    "at CPU speed: error after correcting for the CPU's speed while the step was measured"
)


def is_beside(arm: Training) -> bool:
    """Whether the arm was both predicted and timed."""
    return arm.predicted is not None and arm.steps is not None


def is_alone(arm: Training) -> bool:
    """Whether the arm was predicted but not timed."""
    return arm.predicted is not None and arm.steps is None


def error_pct(arm: Training) -> float | None:
    """Error of the predicted step in per cent (positive: too long); None if not known."""
    if arm.predicted is None or not arm.measured_s:
        return None
    known = arm.predicted.error_pct
    if known is None or arm.case.fed:  # older files have that of the median step
        return off_pct(arm.predicted.step_s, arm.measured_s)
    return known


def host_speed_error_pct(arm: Training) -> float | None:
    """The same for the step predicted at the host speed during its measurement."""
    return off_pct(arm.predicted.paced_s, arm.measured_s) if arm.predicted else None


def off_pct(predicted: float | None, measured: float | None) -> float | None:
    """How much larger the prediction is, in per cent; None unless both are known."""
    return 100 * (predicted / measured - 1) if predicted and measured else None


# ---------------------------------------------------------------- cells


def compared_with(view: View) -> tuple[str, ...]:
    """The baselines of predicted speed-ups, in the order of the columns."""
    return in_order({name: 0 for arm in view.arms for name in _speedup(arm)})


def plain_ratio(value: float) -> str:
    """A ratio without an interval, such as "5.64"."""
    return fmt.short_ratio(Ratio(value, None))


def interval(predicted: Predicted) -> str:
    """The ends of the interval in milliseconds, such as "41.6..44.0"; "" without one."""
    ends = predicted.interval_s
    return f"{fmt.milliseconds(ends[0])}..{fmt.milliseconds(ends[1])}" if ends else ""


def _of(read: Callable[[Predicted], str]) -> Callable[[Training], str]:
    """What a prediction says; "" without one."""
    return lambda arm: read(arm.predicted) if arm.predicted else ""


def _speedup(arm: Training) -> dict[str, float]:
    return dict(arm.predicted.speedup) if arm.predicted else {}


def _ratio_columns(view: View, arms: View, *, measured: bool) -> list[Column[Training]]:
    """A column for each baseline of the `arms`; `measured`: beside the measured ratios."""

    def column(name: str, drop: int) -> Column[Training]:
        def cell(arm: Training) -> str:
            """ "5.64"; "base" or "-" as in the table of measured ones."""
            if name not in _speedup(arm):
                return "base" if is_base(arm, name, arms.group_of(arm)) else "-"
            predicted, found = plain_ratio(_speedup(arm)[name]), arm.speedup.get(name)
            if not measured:
                return predicted
            return _pair(predicted, plain_ratio(found.ratio) if found else "")

        return Column(f"x {view.title(name)}", cell, right=True, drop=drop)

    return [column(name, drop) for drop, name in enumerate(compared_with(arms), 1)]


def _pair(predicted: str, measured: str) -> str:
    return f"{predicted or '?'} / {measured or '?'}" if predicted or measured else ""


def _host_speed_error(arm: Training) -> str:
    """For a CPU-launch bottleneck only: elsewhere the CPU's speed changes nothing."""
    return signed_pct(host_speed_error_pct(arm)) if arm.limit == "host" else ""


def is_within(arm: Training) -> bool | None:
    """Whether the measured step is inside the prediction's interval; None if not known."""
    ends = _interval_s(arm)
    return ends[0] <= arm.measured_s <= ends[1] if ends and arm.measured_s else None


# ---------------------------------------------------------------- tables


def beside_table(view: View) -> Table[Training]:
    """The arms that were predicted and timed, in ms; pairs are predicted / measured."""
    arms = view.only(is_beside)
    columns: list[Column[Training]] = [
        *name_columns(view),
        Column("predicted\nms", _of(lambda p: fmt.milliseconds(p.step_s)), right=True),
        Column("95 %\ninterval", _of(interval), right=True, drop=9),
        Column("measured\nms", lambda arm: fmt.milliseconds(arm.measured_s), right=True),
        Column("error", lambda arm: signed_pct(error_pct(arm)), right=True),
        Column("at CPU\nspeed", _host_speed_error, right=True, drop=10),
        Column("bottleneck", lambda arm: _pair(_limit(arm), bottleneck(arm.limit)), drop=6),
        Column(
            "peak\nGB",
            lambda arm: _pair(_peak(arm), fmt.gigabytes(arm.memory_peak_bytes)),
            right=True,
            drop=7,
        ),
        *_ratio_columns(view, arms, measured=True),
    ]
    return arms_table(arms, columns, plain_row(arms))


def _limit(arm: Training) -> str:
    return bottleneck_short(arm.predicted.limit) if arm.predicted else ""


def _peak(arm: Training) -> str:
    return fmt.gigabytes(arm.predicted.memory_bytes) if arm.predicted else ""


def alone_table(view: View) -> Table[Training]:
    """The arms that were predicted but not timed, in ms."""
    arms = view.only(is_alone)
    unit = arms.unit

    def rate(arm: Training) -> str:
        text = fmt.throughput(arm.predicted_per_s or 0.0)
        return text if unit else f"{text} {fmt.clean(arm.unit)}"

    columns: list[Column[Training]] = [
        *name_columns(view),
        Column(f"{unit}/s" if unit else "per s", rate, right=True),
        Column("ms/step", _of(lambda p: fmt.milliseconds(p.step_s)), right=True, drop=8),
        Column("95 %\ninterval", _of(interval), right=True, drop=9),
        *_exchange_columns(arms),
        *_ratio_columns(view, arms, measured=False),
        Column("bottleneck", _limit, drop=6),
        Column("peak\nGB", _peak, right=True, drop=7),
    ]
    return arms_table(arms, columns, plain_row(arms))


def _exchange_columns(arms: View) -> list[Column[Training]]:
    """What several GPUs add; no column where all arms are of one."""
    if not any(map(_added, arms.arms)):
        return []
    return [
        Column("exchange\nadds ms", _added, right=True),
        Column("efficiency", _efficiency, right=True),
    ]


def _added(arm: Training) -> str:
    added_s = arm.predicted and arm.predicted.exchange_s
    return "" if added_s is None else f"{1e3 * added_s:.2f}"


def _efficiency(arm: Training) -> str:
    share = arm.predicted and arm.predicted.efficiency
    return "" if share is None else fmt.per_cent(100 * share)


def raw_columns() -> list[Column[Training]]:
    """The predictions in CSV: seconds, bytes, per cent."""
    return [
        Column(csv={
            "predicted_step_s": _raw("step_s"), "predicted_error_pct": error_pct,
            "predicted_per_s": attrgetter("predicted_per_s"),
            **raw_pair("predicted_low_s", "predicted_high_s", _interval_s),
            "predicted_at_host_speed_s": _raw("paced_s"), "predicted_limit": _raw("limit"),
            "predicted_memory_peak_bytes": _raw("memory_bytes"),
            **{f"predicted_speedup_{name}": _raw_speedup(name) for name in BASELINES},
        })
    ]  # fmt: skip


def _raw(name: str) -> Callable[[Training], Value]:
    return lambda arm: getattr(arm.predicted, name) if arm.predicted else None


def _raw_speedup(name: str) -> Callable[[Training], Value]:
    return lambda arm: _speedup(arm).get(name)


def _interval_s(arm: Training) -> tuple[float, float] | None:
    return arm.predicted.interval_s if arm.predicted else None


# ---------------------------------------------------------------- the screen


def beside_lines(view: View, width: int, *, details: bool = False) -> list[Text]:
    """The predicted and timed arms, with notes; empty without any."""
    outside = [view.label(arm) for arm in view.only(is_beside).arms if is_within(arm) is False]
    notes = [
        "two values: predicted / measured; error: of the predicted step",
        f"measured step outside the predicted interval: {fmt.listed(outside, 4)}" * bool(outside),
    ]
    return _lines(beside_table(view), notes, view.only(is_beside), width, details)


def alone_lines(view: View, width: int, *, details: bool = False) -> list[Text]:
    """The arms that were predicted but not timed, with notes; empty without any."""
    notes = [OVER_SEVERAL if any(map(_added, view.arms)) else OF_ONE_GPU]
    return _lines(alone_table(view), notes, view.only(is_alone), width, details)


def _lines(
    table: Table[Training], notes: Sequence[str], view: View, width: int, details: bool
) -> list[Text]:
    if not table.rows:
        return []
    shown = screen(table, width)
    ranges = any(map(_interval_s, view.arms))
    at_host_speed = any(map(_host_speed_error, view.arms))
    notes = [
        *notes,
        "95 % interval: of the prediction, in ms"
        * (ranges and "95 % interval" not in shown.left_out),
        AT_HOST_SPEED * (at_host_speed and "at CPU speed" not in shown.left_out),
        CAPTURED * any(arm.case.graph for arm in view.arms),
        *calls_named(view, details),
        predicting(view),
        shown.left_out_note(width),
    ]
    return [*shown.lines, *(Text(note, "dim") for note in notes if note)]


def predicting(view: View) -> str:
    """How long predicting took, over all arms, such as "prediction took 31 s: ..."."""
    took = [stage for arm in view.arms if arm.predicted for stage in arm.predicted.took_s.items()]
    stages = {name: sum(found) for name, found in grouped(took).items()}
    if not stages:
        return ""
    parts = [f"{fmt.clean(name)} {fmt.duration(s)}" for name, s in stages.items() if s]
    return f"prediction took {fmt.duration(sum(stages.values()))}: {', '.join(parts)}"


def calls_named(view: View, details: bool) -> list[str]:
    """The calls missing from predictions, and those timed in a real step, with their arms.

    Each list once; all calls with `details`.
    """
    found = grouped(
        ((said, tuple(fmt.clean(op) or "-" for op in calls)), view.full_label(arm))
        for arm in view.arms
        if arm.predicted
        for said, calls in (
            (MISSING, arm.predicted.uncovered), (FROM_STEP, arm.predicted.from_step),
        )
        if calls
    )  # fmt: skip
    return [
        f"{said.format(arms=fmt.listed(names))}: "
        f"{fmt.listed(list(ops), len(ops) if details else MOST_UNCOVERED)}"
        for (said, ops), names in found.items()
    ]


# ---------------------------------------------------------------- sentences


def prediction_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """Predictions that were not run, errors of the others, and missing operations."""
    lines: list[str] = []
    for label, arms in view.curves(family).items():
        alone = [arm for arm in arms if is_alone(arm)]
        if alone and not view.is_baseline(alone[0]):
            lines.append(_predicted(view, label, alone))
    lines += _error_sentences(view, family)
    return [*lines, *_not_covered(view, family)]


def _predicted(view: View, label: str, arms: Sequence[Training]) -> str:
    """ "amp is predicted to train 5.64 times as fast as fp32 (resnet50, batch 256): 5,967 img/s,
    42.9 ms/step, 11.6 GB, bottleneck: GPU"; the ends of a range of batches."""
    names = compared_with(view)
    gains = [gain for name in names if (gain := _gain(view, name, arms))]
    verb = f"is predicted to train {fmt.joined(gains)}" if gains else "is predicted"
    if arms[0].case.graph:
        verb = ", ".join(["was timed as a graph of its operations", *gains])
    if len(arms) > 1:
        where = ["network", *(["data"] if is_generated(arms[0].case) else [])]
        ends = [f"at batch {arm.case.batch} {_figures(arm)}" for arm in (arms[0], arms[-1])]
        return f"{label} {verb} ({', '.join(in_words(arms[0].case, where))}); {'; '.join(ends)}."
    return f"{label} {verb} ({place(arms[0])}): {_figures(arms[0])}."


def _gain(view: View, name: str, arms: Sequence[Training]) -> str:
    """ "5.64 times as fast as fp32", or the ends over the batches."""
    known = [
        (arm.predicted.speedup[name], arm.case.batch)
        for arm in arms
        if arm.predicted and name in arm.predicted.speedup
    ]
    if not known:
        return ""
    gains = dict.fromkeys(plain_ratio(gain) for gain, _ in known)
    ends = [f"{plain_ratio(gain)} (batch {batch})" for gain, batch in (min(known), max(known))]
    return f"{' to '.join(ends if len(gains) > 1 else gains)} times as fast as {view.title(name)}"


def _figures(arm: Training) -> str:
    predicted = arm.predicted
    assert predicted is not None
    memory = _peak(arm)
    parts = [
        f"{fmt.throughput(arm.predicted_per_s or 0.0)} {fmt.clean(arm.unit)}/s",
        f"{fmt.milliseconds(predicted.step_s)} ms/step",
        _of_exchange(arm),
        f"{memory} GB" if memory else "",
        _bottleneck(predicted),
    ]
    return ", ".join(filter(None, parts))


def _of_exchange(arm: Training) -> str:
    """ "of which the exchange adds 1.20, an efficiency of 96 %"; "" for one GPU."""
    added = _added(arm)
    return f"of which the exchange adds {added} (efficiency {_efficiency(arm)})" if added else ""


def _bottleneck(predicted: Predicted) -> str:
    """Such as "bottleneck: GPU".

    On the border both are named: "bottleneck on the border: GPU 54.6 ms, CPU launch 58.2 ms, so the
    step is 53.0..66.1 ms".
    """
    if predicted.limit != BORDER:
        return f"bottleneck: {bottleneck(predicted.limit)}" if predicted.limit else ""
    needs = (
        f"GPU {fmt.milliseconds(predicted.gpu_s)} ms, "
        f"CPU launch {fmt.milliseconds(predicted.host_s)} ms"
    )
    return f"bottleneck on the border: {needs}, so the step is {interval(predicted)} ms"


def _error_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """How far predicted steps are from the measured ones, and limits that were not predicted."""
    arms = list(filter(is_beside, arms_of(family)))
    lines: list[str] = []
    for graph, what in ((False, "Prediction error of the step time"),
                        (True, "Error of the timed graph of the operations")):  # fmt: skip
        errors = [
            (error_pct(arm) or 0.0, view.label_among(arm, family))
            for arm in arms
            if arm.case.graph == graph
        ]
        worst = sorted(errors, key=lambda pair: -abs(pair[0]))[:MOST_NAMED]
        if worst:
            named = ", ".join(f"{name} {fmt.signed_pct(error)}" for error, name in worst)
            text = f"{what} is at most {abs(worst[0][0]):.1f} %"
            lines.append(f"{text}: {named}{' at worst' * (len(errors) > len(worst))}.")
    for arm in arms:
        predicted = arm.predicted.limit if arm.predicted else None
        if predicted not in (None, BORDER, arm.limit) and arm.limit:
            expected, found = bottleneck(predicted), bottleneck(arm.limit)
            lines.append(f"  The bottleneck of {view.label_among(arm, family)} was predicted to be "
                         f"{expected}; it is {found}.")  # fmt: skip
    return lines


def _not_covered(view: View, family: Sequence[Group]) -> list[str]:
    """The arms whose predictions are short of something."""
    seen = grouped(
        (tuple(fmt.clean(op).split(": ")[0] or "-" for op in arm.predicted.uncovered),
         view.label_among(arm, family))
        for arm in arms_of(family)
        if arm.predicted and arm.predicted.uncovered
    )  # fmt: skip
    return [
        f"The prediction of {fmt.listed(names, MOST_NAMED)} is too short by an unknown amount: it "
        f"lacks operations that could not be replayed: {fmt.listed(list(ops), MOST_NAMED)}."
        for ops, names in seen.items()
    ]
