"""What a part may measure: each is a list of columns, read from results in a run file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev
from typing import Any

from e2e.report.figures import BOTTLENECKS
from e2e.report.predictions import error_pct
from e2e.results.baselines import BASELINES
from e2e.results.types import Repeat, Training
from microbench.fmt import number
from microbench.results.values import Ratio

MB = 1e6
MIB = 2**20  # what nvidia-smi calls MB
Read = Callable[[Training], Any]


@dataclass(frozen=True)
class Column:
    """One value of a cell: its raw value, and each repeat's where repeats differ in it.

    `title` is for a table that does not say otherwise; `text` writes the value for a person.
    """

    title: str
    read: Read
    each: Callable[[Repeat], float | None] | None = None
    text: Callable[[Any], str] = lambda value: f"{value:,.0f}" if value >= 1000 else number(value)


@dataclass(frozen=True)
class Measure:
    """A list of columns. `trains`: from scratch, not only timed steps."""

    columns: tuple[str, ...]
    trains: bool = False


def _per_s(step_s: float | None, training: Training) -> float | None:
    return training.step_units / step_s if step_s else None


def _single_steps(training: Training) -> Sequence[float]:
    """Seconds of single steps; those of a case that is fed by the host's clock."""
    if training.steps is None:
        return ()
    return training.steps.wall_times_s if training.case.fed else training.steps.times_s


def _mean(name: str) -> Read:
    """The mean over the repeats."""

    def read(training: Training) -> float | None:
        values = [COLUMNS[name].each(one) for one in training.repeats]  # type: ignore[misc]
        known = [value for value in values if value is not None and math.isfinite(value)]
        return fmean(known) if known else None

    return read


def _deviation(name: str, of: Callable[[list[float]], float], least: int) -> Read:
    def read(training: Training) -> float | None:
        values = [COLUMNS[name].each(one) for one in training.repeats]  # type: ignore[misc]
        known = [value for value in values if value is not None]
        return of(known) if len(known) >= least else None

    return read


def _over(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _overlapped(training: Training) -> float | None:
    found = training.exchange and training.exchange.overlapped
    return None if found is None else 100 * found


def _phase(name: str) -> Read:
    def read(training: Training) -> float | None:
        found = next((p for p in training.phases if p.name == name), None)
        seconds = found and (found.host_s if found.gpu_s is None else found.gpu_s)
        return 1e3 * seconds if seconds is not None else None

    return read


def _losses(training: Training) -> str | None:
    """ "4.8026 (5.1898)": the last loss and the average."""
    last, average = (COLUMNS[name].read(training) for name in ("last_loss", "mean_loss"))
    return None if last is None or average is None else f"{last:.4f} ({average:.4f})"


def seconds_to(training: Training, target: float) -> float | None:
    """Mean seconds of training until held-out data were right to `target`, 0 to 1.

    None where a repeat never was, or was evaluated at its end only.
    """
    found = training.seconds_to(target) if training.repeats else None
    return found and found[0]


def clock(seconds: float) -> str:
    """ "57min 17s", "1h 43min 7s", "3.42 s": a duration as the authors write it."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h " * bool(hours) + f"{minutes}min {rest:02d}s"


def fixed(decimals: int) -> Callable[[Any], str]:
    """Writes a number with this many decimals."""
    return lambda value: f"{value:.{decimals}f}"


def gain_of(training: Training) -> Ratio | None:
    """Times faster than float32 (fp32 or O0), else than TF32; None for float32 itself."""
    if training.case.recipe in BASELINES["fp32"]:
        return None
    return training.speedup.get("fp32") or training.speedup.get("tf32")


COLUMNS: dict[str, Column] = {
    "per_s": Column("img/s", lambda t: t.per_s),
    "step_ms": Column("ms/step", lambda t: t.measured_s and 1e3 * t.measured_s),
    "limit": Column("bottleneck", lambda t: t.limit, text=BOTTLENECKS.__getitem__),
    "why": Column("why", lambda t: t.why, text=str),
    "wait_ms": Column("waits for data, ms", lambda t: t.data_wait_s and 1e3 * t.data_wait_s),
    "slowest_per_s": Column("min", lambda t: _per_s(max(_single_steps(t), default=None), t)),
    "fastest_per_s": Column("max", lambda t: _per_s(min(_single_steps(t), default=None), t)),
    "iterations_s": Column(
        "training s", lambda t: _mean("iterations_s")(t), lambda r: r.train_s, text=fixed(2)
    ),
    "iterations_std": Column(
        "±", _deviation("iterations_s", pstdev, 2), text=fixed(2)
    ),
    "hundred_s": Column(
        "s of 100 steps", lambda t: _mean("hundred_s")(t),
        lambda r: 100 * r.train_s / r.steps if r.steps else None, text=fixed(2),
    ),
    "hundred_std": Column("±", _deviation("hundred_s", pstdev, 2), text=fixed(2)),
    "accuracy_pct": Column(
        "accuracy, %", lambda t: _mean("accuracy_pct")(t),
        lambda r: None if r.accuracy is None else 100 * r.accuracy, text=fixed(2),
    ),
    "accuracy": Column(
        "accuracy", lambda t: _mean("accuracy")(t), lambda r: r.accuracy, text=fixed(3)
    ),
    "accuracy_std": Column(
        "±", _deviation("accuracy_pct", pstdev, 2), text=fixed(2)
    ),
    "accuracy_sample_std": Column(
        "± (sample)", _deviation("accuracy_pct", stdev, 2), text=fixed(2)
    ),
    "converged": Column("converged", lambda t: t.converged, text=lambda v: "yes" if v else "no"),
    "skipped_steps": Column(
        "skipped steps", lambda t: sum(r.skipped_steps for r in t.repeats) if t.repeats else None,
        text=str,
    ),
    "last_loss": Column(
        "last loss", lambda t: _mean("last_loss")(t), lambda r: r.last_loss, text=fixed(4)
    ),
    "mean_loss": Column(
        "average loss", lambda t: _mean("mean_loss")(t), lambda r: r.mean_loss, text=fixed(4)
    ),
    "zero_pct": Column(
        "zero gradients, %", lambda t: _mean("zero_pct")(t),
        lambda r: None if r.zero_gradients is None else 100 * r.zero_gradients,
    ),
    "infinite_pct": Column(
        "infinite gradients, %", lambda t: _mean("infinite_pct")(t),
        lambda r: None if r.infinite_gradients is None else 100 * r.infinite_gradients,
    ),
    "losses": Column("last (average) loss", lambda t: _losses(t), text=str),
    # It takes the study's own number of epochs: the cell fills it in.
    "projected_s": Column("all epochs, s (projected)", lambda t: None, text=clock),
    "exchange_mb": Column(
        "gradients, MB", lambda t: t.exchange and t.exchange.bytes / MB, text=fixed(1)
    ),
    "exposed_ms": Column(
        "exchange adds ms", lambda t: t.exchange and 1e3 * t.exchange.exposed_s, text=fixed(2)
    ),
    "alone_ms": Column(
        "exchange alone ms", lambda t: t.exchange and 1e3 * t.exchange.alone_s, text=fixed(2)
    ),
    "overlapped_pct": Column("exchange hidden, %", lambda t: _overlapped(t), text=fixed(0)),
    "bandwidth": Column(
        "bus GB/s", lambda t: t.exchange and _over(t.exchange.bus_bytes_per_s, 1e9)
    ),
    "allocated_mb": Column(
        "allocated MB", lambda t: _over(t.memory_peak_bytes, MB), text=fixed(0)
    ),
    "reserved_mb": Column(
        "reserved MB", lambda t: _over(t.memory_reserved_bytes, MB), text=fixed(0)
    ),
    "nvml_mb": Column("NVML MiB", lambda t: _over(t.memory_process_bytes, MIB), text=fixed(0)),
    "setup_s": Column("start-up s", lambda t: t.setup_s),
    "gpu_util_pct": Column(
        "GPU utilisation, %", lambda t: t.state.gpu_util_pct and t.state.gpu_util_pct.mean,
        text=fixed(0),
    ),
    "fits_batch": Column("batch that fits", lambda t: t.fits_batch, text=str),
    "predicted_ms": Column("predicted ms", lambda t: t.predicted and 1e3 * t.predicted.step_s),
    "error_pct": Column("error, %", error_pct),
    "model_mb": Column("model MB", lambda t: _over(t.model_bytes, MB), text=fixed(2)),
    "checkpoint_mb": Column(
        "checkpoint MB", lambda t: _over(t.checkpoint_bytes, MB), text=fixed(2)
    ),
    "data_ms": Column("data ms", _phase("data")),
    "copy_ms": Column("copy ms", _phase("copy")),
    "forward_ms": Column("forward ms", _phase("forward")),
    "backward_ms": Column("backward ms", _phase("backward")),
}  # fmt: skip

MEASURES: dict[str, Measure] = {
    "speed": Measure(("per_s", "step_ms", "limit", "wait_ms", "why")),
    "step-range": Measure(("slowest_per_s", "fastest_per_s")),
    "train": Measure(
        ("iterations_s", "iterations_std", "hundred_s", "hundred_std", "accuracy", "accuracy_pct",
         "accuracy_std", "accuracy_sample_std", "converged", "skipped_steps", "last_loss",
         "mean_loss", "losses", "projected_s"),
        trains=True,
    ),
    "memory3": Measure(("allocated_mb", "reserved_mb", "nvml_mb")),
    "ledger": Measure(()),
    "predict": Measure(("predicted_ms", "error_pct")),
    "loader-alone": Measure(("per_s",)),
    "stalls": Measure(("per_s", "step_ms", "limit", "wait_ms")),
    "utilisation": Measure(("gpu_util_pct",)),
    "start-up": Measure(("setup_s",)),
    "fits": Measure(("fits_batch", "allocated_mb")),
    "phases": Measure(("data_ms", "copy_ms", "forward_ms", "backward_ms")),
    "model-size": Measure(("model_mb",)),
    "checkpoint": Measure(("checkpoint_mb",)),
    # Its columns are named by the study's targets: `seconds_to`.
    "time-to-accuracy": Measure((), trains=True),
    "zero-gradients": Measure(("zero_pct", "infinite_pct"), trains=True),
    "exchange": Measure(("exchange_mb", "exposed_ms", "alone_ms", "overlapped_pct", "bandwidth")),
}  # fmt: skip
