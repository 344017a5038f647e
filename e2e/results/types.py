"""The types of a training measurement: a network trained under one recipe, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

from e2e.case import TrainCase
from microbench.results.values import Interval, ProcessTime, Ratio, Warning

LIMITS = ("gpu", "host", "data")  # bottlenecks: GPU, CPU launch, data loading
PREDICTED = "predicted"  # the status of a training that was predicted and never run
# Terms of a ledger: what the Tensor Cores compute, and what the other terms do not explain.
PRODUCT_TERMS = ("convolutions", "matrix products", "attention", "products")
RESIDUAL = "residual"

Setting = str | int | float | bool | None  # a field of a case


@dataclass(frozen=True)
class StepTimes:
    """Timed steps of one arm, interleaved with the others; all times are seconds per step.

    `times_s` are from one step's end to the next one's: on a GPU by its own clock, so that they
    hold the waiting for the host too. Of a case that is `fed` they are means of whole blocks, one a
    block: batches come in bursts, and no median of single steps is what an epoch takes.
    `wall_times_s` are the host's clock when a step was launched, to the next launch; a host that
    runs ahead waits at the end of a block, so the last one of each holds the wait, and the sums
    agree. `blocks` says how many of `times_s` each round has. `wall_s` is the host's clock over
    whole blocks, synchronised at both ends, for `wall_steps` steps. `busy_s` is the time in which
    at least one kernel ran (by the profiler), `host_s` what the host needs to launch a step on an
    idle GPU, `launches` its kernels and copies. `wait_s` is how long the host waited for the data
    of a step, `unfed_s` the median step on a batch that is there already, `loaded_per_s` how many
    images came meanwhile that were thrown away: of cases that are `fed`. `host_pace` is how many
    times longer than at pace 1 the host took to launch in between (see
    `e2e.prediction.host_speed`), where steps were predicted.
    """

    times_s: tuple[float, ...]
    wall_times_s: tuple[float, ...]
    blocks: tuple[int, ...]
    median_s: float
    ci95_s: Interval | None
    wall_s: float
    wall_steps: int
    busy_s: float | None = None
    host_s: float | None = None
    launches: int | None = None
    wait_s: float | None = None
    unfed_s: float | None = None
    loaded_per_s: float | None = None
    host_pace: float | None = None

    @property
    def blocks_s(self) -> list[tuple[float, ...]]:
        """The times, round by round."""
        ends = [sum(self.blocks[: i + 1]) for i in range(len(self.blocks))]
        return [self.times_s[end - n : end] for end, n in zip(ends, self.blocks, strict=True)]


@dataclass(frozen=True)
class Phase:
    """One part of a step, timed in a pass of its own: on the GPU's clock, and on the host's."""

    name: str  # "data", "copy", "forward", "backward", "optimizer"
    gpu_s: float | None
    host_s: float


@dataclass(frozen=True)
class Spread:
    """Mean, minimum and maximum of a sensor while the arm ran."""

    mean: float
    min: float
    max: float


@dataclass(frozen=True)
class State:
    """The device while the arm ran; None where it is not known. Clocks are in MHz, power in W."""

    gpu_util_pct: Spread | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repeat:
    """One training from scratch. `train_s` is wall time without set-up and evaluation.

    `train_loss` is the mean over the last tenth of the steps, `first_loss` over the first tenth;
    `loss` and `accuracy` (0 to 1) are of held-out data. NaN and infinity are written as None.
    """

    seed: int
    steps: int
    train_s: float
    first_loss: float | None
    train_loss: float | None
    loss: float | None
    accuracy: float | None
    skipped_steps: int = 0


@dataclass(frozen=True)
class Predicted:
    """A step as predicted without running it: from its operations, or, of a case that is fed, from
    what its recipe and its loader do alone.

    `limit` is one of LIMITS, None on a CPU; `speedup` is by what it is compared with, as in
    `Training`, of predicted steps; `memory_bytes` the peak. `uncovered` names, in words, what could
    not be replayed: its time is missing; `from_step` what a real step has timed instead: its time
    is in it. `error_pct` is how much longer the predicted step is than the measured one, in per
    cent (negative: shorter); None when it was not measured. `took_s` is what predicting took, by
    stage: "tracing", "operations" (those that were not known from an earlier prediction), "real
    steps", "host". `paced_s` is the step for a host that launches as fast as it did while the step
    was measured, where that is known: what it is off by is not the host's.
    """

    step_s: float
    interval_s: Interval | None
    limit: str | None
    speedup: Mapping[str, float]
    memory_bytes: int | None = None
    uncovered: tuple[str, ...] = ()
    error_pct: float | None = None
    took_s: Mapping[str, float] = field(default_factory=dict[str, float])
    paced_s: float | None = None
    from_step: tuple[str, ...] = ()

    def beside(self, step_s: float | None) -> Predicted:
        """With its error against a step that was measured; None: it was not."""
        return replace(self, error_pct=100 * (self.step_s / step_s - 1) if step_s else None)


@dataclass(frozen=True)
class LedgerLine:
    """One line of the account of what a recipe changes in a step; see `Training.ledger`.

    `source` is where the number comes from: "measured", "replayed" or "predicted".
    """

    term: str
    ms: float
    source: str
    detail: str = ""


@dataclass(frozen=True)
class Cause:
    """One thing that limits a step, in a sentence with numbers.

    `fix` is what to do, "" where nothing is proposed. Gains are of throughput, in per cent:
    `predicted_gain_pct` is None where there is no prediction, `measured_gain_pct` where no training
    used the fix.
    `case_change` is what the fix changes in the case (TrainCase's fields), None where it changes
    the network or nothing.
    """

    title: str
    why: str
    fix: str = ""
    predicted_gain_pct: float | None = None
    case_change: Mapping[str, Setting] | None = None
    measured_gain_pct: float | None = None


@dataclass(frozen=True)
class TimedStep:
    """Seconds of a step, or of an image: what a comparison of two runs judges (see `Timed`)."""

    median_s: float
    ci95_s: Interval | None
    sm_clock_mhz: float | None = None
    cpu_bound: bool = False
    host_pace: float | None = None
    processes: tuple[ProcessTime, ...] = ()


@dataclass(frozen=True)
class Training:
    """What became of one case.

    `unit` is what throughput counts ("img", "tok", "sample"), `step_units` how many of them a step
    has. `setup_s` is building, compiling and autotuning, outside all other numbers; `compile_s` the
    part of it before the first step was through. `chance` is the accuracy of guessing. `fits_batch`
    is a batch that ran when the case's did not fit the memory. `speedup` is by what it is compared
    with: "fp32", "tf32", or (a ladder) "previous" and "first".

    `ledger` leads from the step of the recipe `ledger_base` to this one's: its first and last lines
    are those whole steps, the lines between are changes (negative: time saved), and
    first + sum(between) == last. `bound` is Amdahl's: how many times faster the base's step would
    be if its products took no time. `causes` say what would make the step faster and why it is no
    faster. A status of PREDICTED has `predicted` and no `steps`.
    """

    case: TrainCase
    status: str
    reason: str | None = None
    unit: str = "img"
    step_units: int = 0
    steps: StepTimes | None = None
    phases: tuple[Phase, ...] = ()
    state: State = field(default_factory=State)
    setup_s: float | None = None
    compile_s: float | None = None
    memory_peak_bytes: int | None = None
    fits_batch: int | None = None
    skipped_steps: int | None = None
    speedup: Mapping[str, Ratio] = field(default_factory=dict[str, Ratio])
    repeats: tuple[Repeat, ...] = ()
    chance: float | None = None
    converged: bool | None = None
    convergence: str | None = None
    limit: str | None = None
    why: str | None = None
    rung: str | None = None  # a ladder's step: what this arm adds to the one before
    warnings: tuple[Warning, ...] = ()
    predicted: Predicted | None = None
    ledger: tuple[LedgerLine, ...] = ()
    ledger_base: str | None = None
    bound: float | None = None
    causes: tuple[Cause, ...] = ()

    @property
    def timed(self) -> TimedStep | None:
        """Its median step, when timed."""
        steps = self.steps
        if steps is None:
            return None
        return TimedStep(
            steps.median_s, steps.ci95_s, self.state.sm_clock_mhz, self.limit == "host",
            steps.host_pace,
        )  # fmt: skip

    def caveat(self, other: Training) -> str:
        """What to know of the times when only one of the two trainings converged."""
        if None in (self.converged, other.converged) or self.converged == other.converged:
            return ""
        lost, name = (self, "A") if other.converged else (other, "B")
        return f"{name} did not converge ({lost.convergence or 'no reason given'})"

    @property
    def step_s(self) -> float | None:
        """Median seconds per step; None if not timed."""
        return self.steps.median_s if self.steps else None

    @property
    def per_s(self) -> float | None:
        """Throughput in `unit` per second at the median step; None if not timed."""
        return self.step_units / self.steps.median_s if self.steps else None

    @property
    def predicted_per_s(self) -> float | None:
        """Throughput in `unit` per second at the predicted step; None if not predicted."""
        return self.step_units / self.predicted.step_s if self.predicted else None

    @property
    def wall_per_s(self) -> float | None:
        """Wall-clock throughput in `unit` per second over whole blocks; None if not timed."""
        if self.steps is None or self.steps.wall_s <= 0:
            return None
        return self.step_units * self.steps.wall_steps / self.steps.wall_s

    @property
    def per_j(self) -> float | None:
        """Units per joule of the whole board; None if its power is not known."""
        power_w = self.state.power_w
        return self.per_s / power_w if self.per_s and power_w else None

    @property
    def data_wait_s(self) -> float | None:
        """Seconds per step in which the CPU waits for data; None if not known."""
        if self.steps and self.steps.wait_s is not None:
            return self.steps.wait_s
        return next((phase.host_s for phase in self.phases if phase.name == "data"), None)

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """(mean, deviation) of held-out accuracy over the repeats; deviation 0 for one."""
        return _mean_and_deviation([r.accuracy for r in self.repeats])

    @property
    def loss(self) -> tuple[float, float] | None:
        """(mean, deviation) of held-out loss over the repeats."""
        return _mean_and_deviation([r.loss for r in self.repeats])

    @property
    def train_s(self) -> tuple[float, float] | None:
        """(mean, deviation) of the wall time of a training."""
        return _mean_and_deviation([r.train_s for r in self.repeats])


def _mean_and_deviation(values: list[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    return fmean(known), stdev(known) if len(known) > 1 else 0.0
