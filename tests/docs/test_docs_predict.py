"""Predictions: figures of docs/predict.md and its notes are the run files'."""

from __future__ import annotations

import math
from statistics import median

from samples.pages import Row, run, says, shows, table, trainings
from samples.prediction_errors import error_table, in_step_over_alone, is_within, limits_named

from e2e.results.types import Predicted, Training
from microbench.results.types import METHOD_VERSION

PREDICT, ERRORS = "docs/predict", "docs/notes/prediction-errors"
MODEL, METHOD = "docs/notes/prediction-model", "docs/notes/method"
VALIDATED, OUTSIDE = trainings("predict-validation"), trainings("predict-outside")
ROWS = {  # of the short table of errors, by that of the report
    "step time, bottleneck GPU": "step, bottleneck GPU",
    "step time, predicted bottleneck GPU": "step, bottleneck predicted as GPU",
    "step time, captured: the graph timed, not predicted": "step, timed as a captured graph",
    "step time, bottleneck CPU launch": "step, bottleneck CPU launch",
    "the same, corrected for CPU speed": "the same, corrected for the CPU's speed",
    "AMP speed-up over TF32, bottleneck GPU": "AMP's speed-up over tf32, bottleneck GPU",
    "AMP speed-up over TF32, bottleneck CPU launch": (
        "AMP's speed-up over tf32, bottleneck CPU launch"
    ),
    "peak memory": "peak memory",
}


def predicted(training: Training) -> Predicted:
    assert training.predicted
    return training.predicted


def error(training: Training) -> float:
    """Per cent that the predicted step is too long."""
    return predicted(training).error_pct or 0.0


def held_out() -> list[Training]:
    numbers = ("", *(f"-{number}" for number in range(2, 8)))
    return [t for number in numbers for t in trainings(f"predict-held-out{number}")]


def first_of_each(ran: list[Training]) -> list[Training]:
    return list({training.case.key: training for training in reversed(ran)}.values())


def test_the_short_table_of_errors() -> None:
    lines = [error_table(found) for found in (VALIDATED, OUTSIDE)]
    rows: list[Row] = []
    for row, what in ROWS.items():
        found = [one.get(what) for one in lines]
        rows.append([row, *(
            cell for line in found for cell in
            ([f"{line.count}", f"{line.median_pct:.1f}", f"{line.largest_pct:.1f}"] if line
             else ["", "", ""])
        )])  # fmt: skip
    shows(PREDICT, rows)


def test_bottlenecks_and_intervals() -> None:
    inside, outside = limits_named(VALIDATED), limits_named(OUTSIDE)
    counts = inside[0], inside[2], outside[0], outside[2]
    wrong = [abs(error(t)) for t in VALIDATED if t.limit != predicted(t).limit]
    worst = round(min(wrong)), max(wrong)
    says(PREDICT, "was classified correctly", *counts, *worst)
    assert len(wrong) == 5
    says(ERRORS, "was classified correctly", *counts[:2])
    says(ERRORS, "was classified correctly", *counts[2:])
    assert all(is_within(t) for t in OUTSIDE)
    known = [kept for t in VALIDATED if t.limit == "host" and (kept := is_within(t)) is not None]
    ends = [predicted(t).interval_s or (1, 1) for t in VALIDATED if t.limit == "host"]
    wide = median(high / low for low, high in ends)
    says(PREDICT, "Use the interval where", sum(known), len(known), wide)
    says(ERRORS, "Intervals are wide", sum(known), len(known), wide)
    eager = [t for t in VALIDATED if not t.case.graph]
    agreed = sorted(abs(error(t)) for t in eager if t.limit == "gpu" == predicted(t).limit)
    but_one, within = (math.ceil(10 * one) / 10 for one in agreed[-2:])
    slower = sorted(
        round(-error(t)) for t in eager if (t.limit, predicted(t).limit) == ("host", "gpu")
    )
    says(PREDICT, "Trust a predicted GPU", len(agreed), within, but_one, *slower)
    says(ERRORS, "measured and predicted to be the bottleneck", len(agreed), within, but_one)


def test_what_was_validated() -> None:
    eager = [t for t in VALIDATED if not t.case.graph]
    networks = {t.case.network for t in eager}
    assert len(networks) == 12
    counts = len(eager), len(VALIDATED) - len(eager)
    says(PREDICT, "twelve networks, four recipes", *counts, len(OUTSIDE))
    says(ERRORS, "the whole matrix", *counts)
    assert not {t.case.network for t in OUTSIDE} & networks
    for name in ("predict-validation", "predict-outside"):
        assert run(name).method_version == 1 < METHOD_VERSION
    says(PREDICT, "Older than this code", 1)
    captured = error_table(VALIDATED)["step, timed as a captured graph"]
    assert captured.worst == "resnet50 tf32 nhwc batch 8 graph"
    says(ERRORS, "The worst error is that of ResNet-50", captured.largest_pct)


def test_the_last_of_all_validations_is_this_one() -> None:
    lines = error_table(VALIDATED)
    found = [lines[ROWS[name]] for name in (
        "step time, bottleneck GPU", "step time, bottleneck CPU launch",
        "the same, corrected for CPU speed",
    )]  # fmt: skip
    cells = [f"{line.median_pct:.1f} / {line.largest_pct:.1f}" for line in found]
    right, _, count = limits_named(VALIDATED)
    last = table(METHOD, "since", "GPU bottleneck")[-1]
    assert last[1:4] == cells
    assert last[-1] == f"{right} of {count}"


def test_what_predicting_took() -> None:
    stages: dict[str, float] = {}
    for found in (t.predicted for t in trainings("verify-resnet50") if t.predicted):
        for stage, seconds in found.took_s.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    whole = sum(stages.values()) - stages["host"]
    says(MODEL, "How long it takes.", whole, stages["operations"], stages["host"])
    fp32 = trainings("verify-resnet50")[0]
    says(MODEL, "take most of the time", predicted(fp32).took_s["operations"],
         round(stages["tracing"]))  # fmt: skip
    longest_s = max(t.setup_s or 0 for t in VALIDATED)
    says(MODEL, "Threads.", fp32.setup_s or 0, math.ceil(10 * longest_s) / 10)


def test_held_out_networks() -> None:
    again = held_out()
    ran = first_of_each(again)
    assert len(again) - len(ran) == 4
    says(PREDICT, "of four steps that ran twice the first counts")
    batches = {t.case.network: set[int]() for t in ran}
    for training in ran:
        batches[training.case.network].add(training.case.batch)
    whole = sum(len(found) == 3 for found in batches.values())
    assert not batches.keys() & {t.case.network for t in (*VALIDATED, *OUTSIDE)}
    says(PREDICT, "predicts and measures sixteen", len(ran), 96, len(batches), whole)
    lines = error_table(ran)
    sure, gpu, cpu, paced = (lines[ROWS[name]] for name in (
        "step time, predicted bottleneck GPU", "step time, bottleneck GPU",
        "step time, bottleneck CPU launch", "the same, corrected for CPU speed",
    ))  # fmt: skip
    says(PREDICT, "Predicted as GPU-bound", sure.count, sure.median_pct, sure.largest_pct,
         gpu.count, gpu.median_pct, gpu.largest_pct)  # fmt: skip
    says(PREDICT, "CPU-bound: ", cpu.count, cpu.median_pct, cpu.largest_pct,
         paced.median_pct, paced.largest_pct)  # fmt: skip
    right, border, count = limits_named(ran)
    says(PREDICT, "Bottleneck: ", right, border, 100 * border / count, count - right - border)
    inside = sum(is_within(t) is True for t in ran)
    says(PREDICT, "Interval: it held", inside, len(ran), 100 * inside / len(ran))
    ratios = in_step_over_alone(ran)
    less, most, more = (
        round(100 * abs(one - 1)) for one in (median(ratios), min(ratios), max(ratios))
    )
    says(ERRORS, "take 6 % less time in place", less, len(ratios), most, more)
