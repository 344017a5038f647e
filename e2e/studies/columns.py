"""The columns of a cell: what is read from a training in a run file, and how it is written."""

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
from microbench.results.types import Ratio
from microbench.timing.stats import t_quantile

HERE = "here"  # the machine, where the author's are keys
MB = 1e6
MIB = 2**20  # what nvidia-smi calls MB
DEVIATION, HALF = "_std", "_ci95"  # of a column's repeats: endings of its name
Read = Callable[[Training], Any]


@dataclass(frozen=True)
class Column:
    """One value of a cell; `text` writes it for a person."""

    title: str
    read: Read
    text: Callable[[Any], str] = lambda value: f"{value:,.0f}" if value >= 1000 else number(value)


def fixed(decimals: int) -> Callable[[Any], str]:
    """Writes a number with this many decimals."""
    return lambda value: f"{value:.{decimals}f}"


def clock(seconds: float) -> str:
    """ "57min 17s", "1h 43min 7s", "3.42 s": a duration as the authors write it."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h " * bool(hours) + f"{minutes}min {rest:02d}s"


def half_interval(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean of repeats, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None
    return t_quantile(0.95, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def gain_of(training: Training) -> Ratio | None:
    """Times faster than float32 (fp32 or O0), else than TF32; None for float32 itself."""
    if training.case.recipe in BASELINES["fp32"]:
        return None
    return training.speedup.get("fp32") or training.speedup.get("tf32")


def _repeated(
    name: str, title: str, each: Callable[[Repeat], float | None], text: Callable[[Any], str]
) -> dict[str, Column]:
    """The mean over the repeats, their population deviation, and the half interval of the mean.

    None where a repeat has no finite value: a mean of the others would be of those that went well.
    """

    def over(of: Callable[[list[float]], float | None], least: int) -> Read:
        def read(training: Training) -> float | None:
            values = [each(one) for one in training.repeats]
            known = [value for value in values if value is not None and math.isfinite(value)]
            return of(known) if len(known) == len(values) >= least else None

        return read

    return {
        name: Column(title, over(fmean, 1), text),
        name + DEVIATION: Column("deviation", over(pstdev, 2), text),
        name + HALF: Column("± (95 %)", over(half_interval, 2), text),
    }


def _per_s(end: int) -> Read:
    """Throughput of the shortest (0) or longest (-1) single step."""
    return lambda t: t.step_units / t.step_range_s[end] if t.step_range_s else None


def _share_pct(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _over(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _phase_ms(name: str) -> Read:
    def read(training: Training) -> float | None:
        found = next((p for p in training.phases if p.name == name), None)
        seconds = found and (found.host_s if found.gpu_s is None else found.gpu_s)
        return 1e3 * seconds if seconds is not None else None

    return read


def _losses(training: Training) -> str | None:
    """ "4.8026 (5.1898)": the last loss and the average."""
    last, average = (COLUMNS[name].read(training) for name in ("last_loss", "mean_loss"))
    return None if last is None or average is None else f"{last:.4f} ({average:.4f})"


COLUMNS: dict[str, Column] = {
    "per_s": Column("img/s", lambda t: t.per_s),
    "step_ms": Column("ms/step", lambda t: t.step_s and 1e3 * t.step_s),
    "speedup": Column("speedup", lambda t: (gain := gain_of(t)) and gain.ratio),
    "limit": Column("bottleneck", lambda t: t.limit, text=BOTTLENECKS.__getitem__),
    "why": Column("why", lambda t: t.why, text=str),
    "wait_ms": Column("waits for data, ms", lambda t: t.data_wait_s and 1e3 * t.data_wait_s),
    "slowest_per_s": Column("min", _per_s(-1)),
    "fastest_per_s": Column("max", _per_s(0)),
    **_repeated("iterations_s", "training s", lambda r: r.train_s, fixed(2)),
    **_repeated("hundred_s", "s of 100 steps",
                lambda r: 100 * r.train_s / r.steps if r.steps else None, fixed(2)),
    **_repeated("accuracy_pct", "accuracy, %", lambda r: _share_pct(r.accuracy), fixed(2)),
    "converged": Column("converged", lambda t: t.converged, text=lambda v: "yes" if v else "no"),
    "skipped_steps": Column(
        "skipped steps", lambda t: sum(r.skipped_steps for r in t.repeats) if t.repeats else None,
        text=str,
    ),
    **_repeated("last_loss", "last loss", lambda r: r.last_loss, fixed(4)),
    **_repeated("mean_loss", "average loss", lambda r: r.mean_loss, fixed(4)),
    "losses": Column("last (average) loss", _losses, text=str),
    **_repeated("zero_pct", "zero gradients, %", lambda r: _share_pct(r.zero_gradients), number),
    **_repeated("infinite_pct", "infinite gradients, %",
                lambda r: _share_pct(r.infinite_gradients), number),
    # The cell fills these in: they take the options of its run.
    "epochs": Column("epochs", lambda _: None, text=str),
    "projected_s": Column("all epochs, s (projected)", lambda _: None, text=clock),
    "exchange_mb": Column(
        "gradients, MB", lambda t: t.exchange and t.exchange.bytes / MB, text=fixed(1)
    ),
    "exposed_ms": Column(
        "exchange adds ms", lambda t: t.exchange and 1e3 * t.exchange.exposed_s, text=fixed(2)
    ),
    "alone_ms": Column(
        "exchange alone ms", lambda t: t.exchange and 1e3 * t.exchange.alone_s, text=fixed(2)
    ),
    "overlapped_pct": Column(
        "exchange hidden, %", lambda t: t.exchange and _share_pct(t.exchange.overlapped),
        text=fixed(0),
    ),
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
    **{f"{name}_ms": Column(f"{name} ms", _phase_ms(name))
       for name in ("data", "copy", "forward", "backward")},
}  # fmt: skip
