"""The types of a training's results: a network trained under one recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev, stdev
from typing import Annotated

from msgspec import Meta

from e2e.case import TrainCase
from e2e.results.exchange import Exchange
from e2e.results.terms import TracedStep
from microbench.results.types import (
    NOT_EMPTY,
    STATUSES,
    Amount,
    AtLeastOne,
    Count,
    Interval,
    Positive,
    ProcessTime,
    Ratio,
    Sampled,
    Share,
    Timed,
    Warning,
)

LIMITS = ("gpu", "host", "data")  # bottlenecks: GPU, CPU launch, data loading
BORDER = "border"  # a predicted one only: GPU or CPU launch, too close to call
PREDICTED = "predicted"  # the status of a training that was predicted and never run
Status = Annotated[str, Meta(pattern=f"^({'|'.join((*STATUSES, PREDICTED))})\\Z")]
Limit = Annotated[str, Meta(pattern=f"^({'|'.join(LIMITS)})\\Z")]
PredictedLimit = Annotated[str, Meta(pattern=f"^({'|'.join((*LIMITS, BORDER))})\\Z")]
Gain = Annotated[float, Meta(ge=-100)]  # of throughput, in per cent
Milliseconds = Annotated[float, Meta(ge=-1e15, le=1e15)]  # thirty thousand years: more is an error
MAX_WALL_GAP = 0.03  # where wall clock and median step differ by more, both are named
FEWEST_FED_ROUNDS = 5  # of what a loader feeds: of three blocks the median is hardly known

Setting = str | int | float | bool | None  # a field of a case


@dataclass(frozen=True)
class StepTimes(Sampled):
    """Timed steps of one variant, interleaved with the others; all times are seconds per step.

    `times_s` are from one step's end to the next one's, on a GPU by its own clock, of a case that
    loads data means of blocks, as batches come in bursts. `wall_times_s` are by the host's clock
    from launch to launch. `blocks` is how many of `times_s` each round has. `wall_s` is by the
    host's clock over the same `wall_steps` steps, without the first of each block on a GPU (up to
    method 1 with it).

    `busy_s` is the time in which a kernel ran, by the profiler; `host_s` what the host needs to
    launch a step on an idle GPU, `launches` its kernels and copies. Of cases that load data:
    `wait_s` is the host's wait for data, `unfed_s` the median step on a preloaded batch,
    in older files `loaded_per_s` the samples per second of a loader whose batches were discarded.
    `host_pace` is the host's slowdown in between, a ratio (`e2e.training.host_speed`).

    Of several `processes` the blocks stand one after another, `median_s` is the geometric mean of
    their medians, `ci95_s` the interval of that mean; the rest are sums or means over processes.
    """

    times_s: Annotated[tuple[Positive, ...], NOT_EMPTY]
    wall_times_s: tuple[Positive, ...]
    blocks: tuple[AtLeastOne, ...]
    median_s: Positive
    ci95_s: Interval | None
    wall_s: Amount
    wall_steps: Count
    busy_s: Amount | None = None
    host_s: Amount | None = None
    launches: Count | None = None
    wait_s: Amount | None = None
    unfed_s: Amount | None = None
    loaded_per_s: Amount | None = None
    host_pace: Amount | None = None
    processes: tuple[ProcessTime, ...] = ()


@dataclass(frozen=True)
class Phase:
    """One part of a step, timed in a separate pass: seconds on the GPU's and the host's clock."""

    name: str  # "data", "copy", "forward", "backward", "optimizer"
    gpu_s: Amount | None
    host_s: Amount


@dataclass(frozen=True)
class SensorStats:
    """Mean, minimum and maximum of a sensor while the variant ran, in its own unit."""

    mean: Amount
    min: Amount
    max: Amount


@dataclass(frozen=True)
class DeviceState:
    """The device while the variant ran: clocks in MHz, power in W, temperature in °C.

    None where it is not known.
    """

    gpu_util_pct: SensorStats | None = None
    sm_clock_mhz: Amount | None = None
    power_w: Amount | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy (0 to 1) on held-out data after `steps` steps and `train_s` of training.

    `train_s` is in seconds, without evaluations. NaN and infinity are written as None.
    """

    steps: Count
    train_s: Amount
    loss: float | None
    accuracy: Share | None


@dataclass(frozen=True)
class Repeat:
    """One training from scratch. `train_s` is wall time without set-up and evaluation.

    `train_loss` is the mean over the last tenth of the steps, `first_loss` over the first tenth,
    `last_loss` of the last step, `mean_loss` over all; `loss` and `accuracy` (0 to 1) are of
    held-out data. `curve` is the training loss: means over stretches of the steps, as equal as can
    be. NaN and infinity are written as None, and older files lack some.

    Older files have `evaluations` after each epoch, and `zero_gradients` and `infinite_gradients`:
    shares (0 to 1) of those counted, where infinite means not finite.
    """

    seed: Count
    steps: Count
    train_s: Amount
    first_loss: float | None
    train_loss: float | None
    loss: float | None
    accuracy: Share | None
    skipped_steps: Count = 0
    curve: tuple[float | None, ...] = ()
    last_loss: float | None = None
    mean_loss: float | None = None
    evaluations: tuple[Evaluation, ...] = ()
    zero_gradients: Share | None = None
    infinite_gradients: Share | None = None


@dataclass(frozen=True)
class Predicted:
    """A step as predicted without running it; times in seconds.

    With `launches`, the kernels of a step (0 on a CPU), it is the sum of the step's operations:
    `step_s` is the GPU's time, there is no `limit`, and `host_s` is about what the CPU needs to
    launch them. Without, it is a fed step from its recipe and its loader measured alone, or of an
    older file: `limit` is one of LIMITS or BORDER, `gpu_s` and `host_s` are what GPU and CPU launch
    need alone, `paced_s` is the step at the host speed during the measured one.

    `speedup` is as in `Training`, of predicted steps; `memory_bytes` is the peak. The time of what
    is `uncovered` is missing, `from_step` was timed in a real step. `error_pct` is predicted over
    measured step less 1, in per cent. `took_s` is how long predicting took by stage. `terms_ms` are
    the operations' milliseconds by term of the ledger. `exchange_s` is what the exchange of
    gradients adds; None for one GPU.
    """

    step_s: Positive
    interval_s: Interval | None
    limit: PredictedLimit | None
    speedup: Mapping[str, Positive]
    memory_bytes: Count | None = None
    uncovered: tuple[str, ...] = ()
    error_pct: float | None = None
    took_s: Mapping[str, Amount] = field(default_factory=dict[str, float])
    paced_s: Amount | None = None
    from_step: tuple[str, ...] = ()
    gpu_s: Amount | None = None
    host_s: Amount | None = None
    terms_ms: Mapping[str, Amount] = field(default_factory=dict[str, float])
    exchange_s: Amount | None = None
    launches: Count | None = None

    @property
    def of_operations(self) -> bool:
        """Whether it is the sum of operations: the GPU's time, less than that of a step."""
        return self.launches is not None

    def beside(self, step_s: float | None) -> Predicted:
        """The same with its error (%) against a measured step in seconds; None: not measured.

        The GPU's time alone is no step, and has none.
        """
        if self.of_operations:
            return self
        return replace(self, error_pct=100 * (self.step_s / step_s - 1) if step_s else None)


@dataclass(frozen=True)
class LedgerLine:
    """One line of what a recipe changes in a step, in milliseconds; see `Training.ledger`.

    `source` is where the number comes from: "measured", "traced" (in the training's own steps),
    "replayed" (operations alone) or "predicted".
    """

    term: str
    ms: Milliseconds
    source: str
    detail: str = ""


@dataclass(frozen=True)
class Cause:
    """One thing that limits a step, in a sentence with numbers.

    `fix` is what to do, "" where nothing is proposed. Gains are of throughput, in per cent:
    `predicted_gain_pct` is None where there is no prediction, `measured_gain_pct` where no training
    used the fix. `case_change` are the fields of TrainCase that the fix sets, None where it changes
    the network or nothing.
    """

    title: str
    why: str
    fix: str = ""
    predicted_gain_pct: Gain | None = None
    case_change: Mapping[str, Setting] | None = None
    measured_gain_pct: Gain | None = None


@dataclass(frozen=True)
class LayerGain:
    """Linear layers of one shape in a part of a network, [rows, k] times [k, n]: by which factor
    FP8 in these `count` layers alone makes the part faster, and whether they were converted.
    """

    rows: AtLeastOne
    k: AtLeastOne
    n: AtLeastOne
    count: AtLeastOne
    gain: Ratio
    converted: bool = False


@dataclass(frozen=True)
class PartGain:
    """What FP8 gains in a part that a network has at `places`: forward and backward, which take
    `bf16_s` in bfloat16. `gain` is of the converted layers together; None where none is.
    """

    places: AtLeastOne
    bf16_s: Positive
    layers: Annotated[tuple[LayerGain, ...], NOT_EMPTY]
    gain: Ratio | None

    def saved_s(self, gain: Ratio | None) -> float:
        """Seconds that a gain saves at all places, forward and backward once; below 0: it costs."""
        return self.places * self.bf16_s * (1 - 1 / gain.ratio) if gain else 0.0


@dataclass(frozen=True)
class Training:
    """The result of one case.

    `unit` is what throughput counts ("img", "tok", "sample"), `step_units` how many a step has.
    `setup_s` is building, compiling and autotuning, in no other number; `compile_s` the part before
    the end of the first step, `first_step_s` all until then. `chance` is the accuracy of guessing
    (0 to 1). `fits_batch` is a batch that ran when the case's did not fit the memory. `speedup` is
    by what it is compared with: "fp32", "tf32", or (a ladder) "previous" and "first".

    `ledger` leads from the step of the recipe `ledger_base` to this one's, in ms: first and last
    line are those whole steps, the lines between are changes (negative: time saved) that add up.
    In older files `bound` is the base step's speed-up if its GEMMs and convolutions took no time.
    `causes` say what would make the step faster, and why it is no faster.

    Of memory, None on a CPU: `memory_peak_bytes` is the most that was allocated; the process uses
    `memory_process_bytes` by NVML with all its cases. `model_bytes` are parameters and buffers.
    Older files have `memory_reserved_bytes`, the most that torch kept for itself, and
    `checkpoint_bytes`, a file of the model with the optimizer's state. `float8_layers` of its
    `linear_layers` multiply in FP8; None for other recipes. `fp8_gains` are what those were chosen
    by, where some were.

    `exchange` is what the exchange of gradients costs over several GPUs. `traced` are some of its
    steps in the profiler. A status of PREDICTED has `predicted` and no `steps`.
    """

    case: TrainCase
    status: Status
    reason: str | None = None
    unit: str = "img"
    step_units: Count = 0
    steps: StepTimes | None = None
    phases: tuple[Phase, ...] = ()
    state: DeviceState = field(default_factory=DeviceState)
    setup_s: Amount | None = None
    compile_s: Amount | None = None
    memory_peak_bytes: Count | None = None
    fits_batch: Count | None = None
    skipped_steps: Count | None = None
    speedup: Mapping[str, Ratio] = field(default_factory=dict[str, Ratio])
    repeats: tuple[Repeat, ...] = ()
    chance: Amount | None = None
    converged: bool | None = None
    convergence: str | None = None
    limit: Limit | None = None
    why: str | None = None
    rung: str | None = None  # of a ladder: what this variant adds to the previous one
    warnings: tuple[Warning, ...] = ()
    predicted: Predicted | None = None
    ledger: tuple[LedgerLine, ...] = ()
    ledger_base: str | None = None
    bound: Positive | None = None
    causes: tuple[Cause, ...] = ()
    measured_at: str | None = None  # ISO 8601, UTC; older files do not have it
    traced: TracedStep | None = None
    memory_reserved_bytes: Count | None = None
    memory_process_bytes: Count | None = None
    model_bytes: Count | None = None
    checkpoint_bytes: Count | None = None
    first_step_s: Amount | None = None
    float8_layers: Count | None = None
    linear_layers: Count | None = None
    exchange: Exchange | None = None
    fp8_gains: tuple[PartGain, ...] = ()

    @property
    def timed(self) -> Timed | None:
        """Its step for `compare`; None if not timed."""
        steps, step_s = self.steps, self.step_s
        if steps is None or step_s is None:
            return None
        by, ends = step_s / steps.median_s, steps.ci95_s
        return Timed(
            step_s, ends and (by * ends[0], by * ends[1]), self.state.sm_clock_mhz,
            self.limit == "host", steps.host_pace,
            tuple(replace(process, median_s=by * process.median_s) for process in steps.processes),
        )  # fmt: skip

    @property
    def changed_in(self) -> tuple[int, ...]:
        """Version 2 takes a fed step's time as the mean of its block, which version 4 leads by a
        whole round of the workers. Version 2 also left the first step of a block out of `wall_s`,
        which `compare` does not use of unfed trainings.
        """
        return (2, 4) if self.case.loads_data else ()

    def caveat(self, other: Training) -> str:
        """A remark for the comparison when only one of the two trainings converged, else ""."""
        if None in (self.converged, other.converged) or self.converged == other.converged:
            return ""
        lost, name = (self, "A") if other.converged else (other, "B")
        return f"{name} did not converge ({lost.convergence or 'no reason given'})"

    @property
    def step_s(self) -> float | None:
        """Seconds per step, of which all figures are: the median, where a loader feeds it the wall
        clock. None if not timed.
        """
        if self.steps is None:
            return None
        return (self.wall_step_s if self.case.loads_data else None) or self.steps.median_s

    @property
    def ruined_pct(self) -> float:
        """Half of its step's interval in per cent where that is too wide for a verdict, else 0."""
        steps = self.steps
        return Ratio(steps.median_s, steps.ci95_s).ruined_pct if steps else 0.0

    @property
    def per_s(self) -> float | None:
        """Throughput in `unit` per second; None if not timed."""
        return self.step_units / self.step_s if self.step_s else None

    @property
    def wall_step_s(self) -> float | None:
        """Wall-clock seconds per step over whole blocks; None if not timed."""
        steps = self.steps
        step_s = steps.wall_s / steps.wall_steps if steps and steps.wall_steps else 0.0
        return step_s if 0 < step_s < math.inf else None

    @property
    def wall_gap(self) -> float | None:
        """Throughput by the wall clock over that of the median step, less 1; None if not known."""
        wall_s = self.wall_step_s
        return self.steps.median_s / wall_s - 1 if self.steps and wall_s else None

    @property
    def predicted_per_s(self) -> float | None:
        """Throughput in `unit` per second at the predicted step; None if not predicted."""
        predicted = self.predicted
        if predicted is None or predicted.of_operations:
            return None
        return self.step_units / predicted.step_s

    @property
    def wall_per_s(self) -> float | None:
        """Wall-clock throughput in `unit` per second over whole blocks; None if not timed."""
        return self.step_units / self.wall_step_s if self.wall_step_s else None

    @property
    def per_j(self) -> float | None:
        """Units (`unit`) per joule of the whole board; None if its power is not known."""
        power_w = self.state.power_w
        return self.per_s / power_w if self.per_s and power_w else None

    @property
    def data_wait_s(self) -> float | None:
        """Seconds per step in which the CPU waits for data; None if not known."""
        if self.steps and self.steps.wait_s is not None:
            return self.steps.wait_s
        return next((phase.host_s for phase in self.phases if phase.name == "data"), None)

    @property
    def loader_wait_s(self) -> float:
        """Seconds by which a measured step was longer than on a preloaded batch; at least 0."""
        if self.steps is None or self.steps.unfed_s is None or self.step_s is None:
            return 0.0
        return max(0.0, self.step_s - self.steps.unfed_s)

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """(mean, standard deviation) of held-out accuracy, 0 to 1; deviation 0 for one repeat."""
        return _mean_and_deviation(self._each("accuracy"))

    @property
    def loss(self) -> tuple[float, float] | None:
        """(mean, standard deviation) of held-out loss; deviation 0 for one repeat."""
        return _mean_and_deviation(self._each("loss"))

    @property
    def train_s(self) -> tuple[float, float] | None:
        """(mean, standard deviation) of wall seconds of a training; deviation 0 for one."""
        return _mean_and_deviation(self._each("train_s"))

    @property
    def population_deviations(self) -> dict[str, float | None]:
        """Population deviations of `accuracy`, `loss` and `train_s`, the sample being the whole.

        Published "mean ± std" is often by this one; None where a mean is not known.
        """
        named = {name: self._each(name) for name in ("accuracy", "loss", "train_s")}
        return {name: pstdev(known) if known else None for name, known in named.items()}

    def _each(self, name: str) -> list[float]:
        """Of each repeat in which it is finite."""
        values: list[float | None] = [getattr(repeat, name) for repeat in self.repeats]
        return [value for value in values if value is not None and math.isfinite(value)]

    @property
    def step_range_s(self) -> tuple[float, float] | None:
        """(shortest, longest) single step in seconds; None if not timed.

        Of a case that is fed by the host's clock: `times_s` are means of blocks there.
        """
        if self.steps is None:
            return None
        times = self.steps.wall_times_s if self.case.loads_data else self.steps.times_s
        return (min(times), max(times)) if times else None


def _mean_and_deviation(known: list[float]) -> tuple[float, float] | None:
    if not known:
        return None
    return fmean(known), stdev(known) if len(known) > 1 else 0.0
