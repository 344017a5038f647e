"""Predictions: figures of docs/predict.md are the run files'."""

from __future__ import annotations

import json
from statistics import median, quantiles

from samples.pages import ROOT, says, trainings

from e2e.prediction.predictor import GPU_ERROR, MEMORY_ERROR, REFERENCE_LAUNCHES
from e2e.report.predictions import MAY_LIMIT, error_pct
from e2e.results.types import Training
from e2e.training.host_speed import REFERENCE_S
from microbench.errors import UserError
from microbench.results.runfile import read_run
from tests.validation.predict import MEDIAN_PCT, NETWORKS, WORST_PCT

PREDICT, NEW = "docs/predict", "predict-gpu-time.json"


def held_out() -> list[Training]:
    numbers = ("", *(f"-{number}" for number in range(2, 8)))
    found = [t for number in numbers for t in trainings(f"predict-held-out{number}")]
    return list({t.case.key: t for t in reversed(found)}.values())


def published() -> list[Training]:
    """Of all run files of the H200 but the validation's."""
    found: list[Training] = []
    for file in sorted((ROOT / "results/nvidia-h200").glob("*.json")) + sorted(
        (ROOT / "results/nvidia-h200/timm").glob("*.json")
    ):
        try:
            if file.name == NEW:
                continue
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


def test_gpu_times_of_networks_that_nothing_was_tuned_on() -> None:
    found = trainings(NEW.removesuffix(".json"))
    assert {t.case.network for t in found} <= NETWORKS.keys()
    off_pct = [abs(off) for t in found if (off := error_pct(t)) is not None]
    figures = len(off_pct), median(off_pct), max(off_pct)
    says("README", "Predictions are of", *figures)
    says(PREDICT, "had a median error of 0.5 %", *figures)


def test_older_versions() -> None:
    """Errors of whole steps, by what was predicted as the bottleneck or measured as it."""
    off_pct: dict[str, list[float]] = {"sure": [], "cpu": []}
    for found in held_out():
        if found.predicted and found.measured_s:
            error_pct = 100 * abs(found.predicted.step_s / found.measured_s - 1)
            off_pct["sure"] += [error_pct] * (found.predicted.limit == "gpu")
            off_pct["cpu"] += [error_pct] * (found.limit == "host")
    sure, cpu = off_pct.values()
    figures = len(sure), median(sure), max(sure)
    says(PREDICT, "Older versions predicted whole steps", *figures,
         round(median(cpu)), round(max(cpu)))  # fmt: skip
