"""Trainings as rows of CSV: every unit in its column's name, names that do not change."""

from __future__ import annotations

from dataclasses import asdict, fields

from e2e.report.predictions import error_pct
from e2e.results.types import TrainCase, Training
from microbench.report.table_csv import JOIN, Cell, speedup

BASELINES = ("fp32", "tf32", "previous", "first")
PHASES = ("data", "copy", "forward", "backward", "optimizer")
CASE = tuple(field.name for field in fields(TrainCase))
COLUMNS = (
    "op", *CASE, "rung", "status", "reason", "unit", "step_units", "images_per_s", "step_s",
    "ci95_low_s", "ci95_high_s", "samples", "wall_per_s", "busy_s", "host_s", "launches",
    *(f"{phase}_{clock}_s" for phase in PHASES for clock in ("host", "gpu")),
    "memory_peak_bytes", "fits_batch", "gpu_util_mean_pct", "gpu_util_min_pct", "gpu_util_max_pct",
    "sm_clock_mhz", "power_w", "images_per_j", "temperature_c", "throttle", "setup_s", "compile_s",
    "skipped_steps", "accuracy_mean", "accuracy_std", "loss_mean", "loss_std", "train_mean_s",
    "train_std_s", "repeats", "seeds", "chance", "converged", "convergence", "limit", "why",
    *(f"speedup_{name}{end}" for name in BASELINES for end in ("", "_low", "_high")),
    "predicted_step_s", "predicted_error_pct",
)  # fmt: skip
PLAIN = (
    "rung", "status", "reason", "unit", "step_units", "step_s", "memory_peak_bytes", "fits_batch",
    "setup_s", "compile_s", "skipped_steps", "chance", "converged", "convergence", "limit", "why",
)  # fmt: skip


def training_row(training: Training) -> dict[str, Cell]:
    """The training by column; what is not known is None or missing."""
    return {
        "op": "train",
        **asdict(training.case),
        **{name: getattr(training, name) for name in PLAIN},
        **_steps(training),
        **_state(training),
        **_learning(training),
        **_speedups(training),
        "predicted_step_s": training.predicted.step_s if training.predicted else None,
        "predicted_error_pct": error_pct(training),
    }


def _steps(training: Training) -> dict[str, Cell]:
    row: dict[str, Cell] = {}
    for phase in training.phases:
        row |= {f"{phase.name}_host_s": phase.host_s, f"{phase.name}_gpu_s": phase.gpu_s}
    steps = training.steps
    if steps is None:
        return row
    low, high = steps.ci95_s or (None, None)
    return row | {
        "images_per_s": training.per_s,
        "ci95_low_s": low,
        "ci95_high_s": high,
        "samples": len(steps.times_s),
        "wall_per_s": training.wall_per_s,
        "busy_s": steps.busy_s,
        "host_s": steps.host_s,
        "launches": steps.launches,
    }


def _state(training: Training) -> dict[str, Cell]:
    state = training.state
    row: dict[str, Cell] = {
        "sm_clock_mhz": state.sm_clock_mhz,
        "power_w": state.power_w,
        "images_per_j": training.per_j,
        "temperature_c": state.temperature_c,
        "throttle": JOIN.join(state.throttle),
    }
    if state.gpu_util_pct:
        row |= {f"gpu_util_{end}_pct": value for end, value in asdict(state.gpu_util_pct).items()}
    return row


def _learning(training: Training) -> dict[str, Cell]:
    row: dict[str, Cell] = {
        "repeats": len(training.repeats),
        "seeds": JOIN.join(str(repeat.seed) for repeat in training.repeats),
    }
    for name, unit, pair in (("accuracy", "", training.accuracy), ("loss", "", training.loss),
                             ("train", "_s", training.train_s)):  # fmt: skip
        mean, deviation = pair or (None, None)
        row |= {f"{name}_mean{unit}": mean, f"{name}_std{unit}": deviation}
    return row


def _speedups(training: Training) -> dict[str, Cell]:
    row: dict[str, Cell] = {}
    for name in BASELINES:
        row |= speedup(name, training.speedup.get(name))
    return row
