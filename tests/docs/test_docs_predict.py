"""Predictions: figures of docs/predict.md and its notes are the run files'."""

from __future__ import annotations

import json
from statistics import median, quantiles

from samples.pages import ROOT, says, table, trainings
from samples.prediction_errors import error_table, in_step_over_alone, limits_named

from e2e.prediction.predictor import GPU_ERROR, MEMORY_ERROR, REFERENCE_LAUNCHES
from e2e.report.predictions import MAY_LIMIT
from e2e.results.types import Training
from e2e.training.host_speed import REFERENCE_S
from microbench.errors import UserError
from microbench.results.runfile import read_run
from tests.validation.predict import MEDIAN_PCT, NETWORKS, WORST_PCT

PREDICT, ERRORS = "docs/predict", "docs/notes/prediction-errors"
METHOD = "docs/notes/method"
VALIDATED, OUTSIDE = trainings("predict-validation"), trainings("predict-outside")


def held_out() -> list[Training]:
    numbers = ("", *(f"-{number}" for number in range(2, 8)))
    found = [t for number in numbers for t in trainings(f"predict-held-out{number}")]
    return list({t.case.key: t for t in reversed(found)}.values())


def published() -> list[Training]:
    """Of all run files of the H200."""
    found: list[Training] = []
    for file in sorted((ROOT / "results/nvidia-h200").glob("*.json")) + sorted(
        (ROOT / "results/nvidia-h200/timm").glob("*.json")
    ):
        try:
            found += read_run(file).of(Training)
        except (UserError, json.JSONDecodeError):
            continue
    return found


def test_what_a_cpu_bound_step_launches_in_the_time_of_the_small_step() -> None:
    launches = [
        t.steps.launches * t.steps.host_pace * REFERENCE_S / t.steps.median_s
        for t in published()
        if t.limit == "host" and t.steps and t.steps.host_pace and t.steps.launches
        and not (t.case.graph or t.case.compile or t.case.fed)
    ]  # fmt: skip
    assert round(median(launches)) == REFERENCE_LAUNCHES
    twentieths = quantiles(launches, n=20)
    says(PREDICT, "A small training step is timed", REFERENCE_LAUNCHES, len(launches),
         round(twentieths[0]), round(twentieths[-1]))  # fmt: skip


def test_what_is_allowed_and_said() -> None:
    says(PREDICT, "twelve networks that nothing was tuned on", MEDIAN_PCT, WORST_PCT)
    assert len(NETWORKS) == 12
    assert not NETWORKS.keys() & {t.case.network for t in published()}, "no file has one"
    says(PREDICT, "GPU time is the sum", 100 * GPU_ERROR)
    says(PREDICT, "Peak memory. A step that needs", 100 * MEMORY_ERROR)
    says(PREDICT, "may be the limit", 100 * MAY_LIMIT)


def test_older_versions() -> None:
    lines = error_table(held_out())
    sure, cpu = lines["step, bottleneck predicted as GPU"], lines["step, bottleneck CPU launch"]
    memory = error_table(VALIDATED)["peak memory"]
    says("README", "Predictions are of", sure.count, sure.median_pct, sure.largest_pct)
    says(PREDICT, "Older versions predicted whole steps", sure.count, sure.median_pct,
         sure.largest_pct, memory.count, memory.median_pct, memory.largest_pct,
         round(cpu.median_pct), round(cpu.largest_pct))  # fmt: skip


def test_the_notes_of_older_versions() -> None:
    right, _, count = limits_named(VALIDATED)
    says(ERRORS, "was classified correctly", right, count)
    outside = limits_named(OUTSIDE)
    says(ERRORS, "was classified correctly", outside[0], outside[2])
    lines = error_table(VALIDATED)
    found = [lines[name] for name in (
        "step, bottleneck GPU", "step, bottleneck CPU launch",
        "the same, corrected for the CPU's speed",
    )]  # fmt: skip
    last = table(METHOD, "since", "GPU bottleneck")[-1]
    assert last[1:4] == [f"{line.median_pct:.1f} / {line.largest_pct:.1f}" for line in found]
    assert last[-1] == f"{right} of {count}"
    ratios = in_step_over_alone(held_out())
    less, most, more = (
        round(100 * abs(one - 1)) for one in (median(ratios), min(ratios), max(ratios))
    )
    says(ERRORS, "take 6 % less time in place", less, len(ratios), most, more)
