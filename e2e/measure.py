"""Measures one comparison of training arms: set up, warm up, take turns, look closer.

Runs in the child process. All arms are resident at once: weights are small beside activations,
which one arm's steps leave to the next. Every case comes out as a Training, whatever happens to it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from e2e.datasets import Data, Feed
from e2e.datasets.resident import Resident
from e2e.learner import Learner
from e2e.networks import Network
from e2e.recipes import adapted, cannot_run
from e2e.steps import (
    PHASE_STEPS,
    CpuSteps,
    CudaSteps,
    StepBlock,
    StepTimer,
    busy_time,
    host_time,
    time_phases,
)  # fmt: skip
from kernels.case import Target
from microbench.errors import UserError
from microbench.interleave import FEWEST_ROUNDS, LOOKS, Arm, ArmFailed, Pace, Turns
from microbench.measure import first_line
from microbench.results import TIME_DECIMALS
from microbench.stats import median, median_interval
from microbench.telemetry import Telemetry
from microbench.train_results import Spread, State, StepTimes, TrainCase, Training
from microbench.values import Warning

WARM_STEPS = 3  # the first ones search algorithms, make optimizer state, and fill the allocator
SETTLED_STEPS = 2  # after those: what memory a step takes, and how long it is
# Of a turn's seconds: at most 0.6 of timed steps after 0.2 to warm up, which is enough for the
# median of a turn to be known to a fraction of a per cent; less when the budget is short.
TURN_S, WARM_SHARE = 0.8, 0.25
ROUNDS = LOOKS[0]  # that a budget is meant to last for
CPU_BLOCK_S = 2.0
CPU_PHASE_STEPS = 2

Announce = Callable[[str, str], None]


@dataclass(frozen=True)
class Task:
    """What every arm of a run shares. `lr` None: the network's own."""

    network: Network
    data: Data
    seed: int
    lr: float | None
    warmup: int


@dataclass
class Held:
    """An arm that is set up: its learner and feed, and what is known of it so far."""

    training: Training
    learner: Learner
    feed: Feed
    arm: Arm = field(init=False)
    skipped_before: int = 0  # updates that were skipped before timing began

    def step(self) -> object:
        """Launch one step."""
        return self.learner.step(self.feed)


class Trainer:
    """Sets up arms, times them in turns, and keeps them for training to convergence."""

    def __init__(self, task: Task, target: Target, telemetry: Telemetry) -> None:
        self.task, self.target, self.telemetry = task, target, telemetry
        self.device = torch.device(target.torch_device)
        self.cuda = target.kind == "cuda"
        self.timer: StepTimer = CpuSteps()
        if self.cuda:
            self.timer = CudaSteps(target.index, target.sm_count)
        self.held: dict[str, Held] = {}
        self._take_shared_memory()

    def _take_shared_memory(self) -> None:
        """What all arms share must not be charged to the first: resident data, cuBLAS's space."""
        if isinstance(self.task.data, Resident):
            self.task.data.feed(1, self.device, self.task.seed).close()
        if self.cuda:
            one = torch.ones(1, 1, device=self.device)
            torch.mm(one, one)

    # ------------------------------------------------------------ setting up

    def set_up(self, cases: Sequence[TrainCase], announce: Announce) -> list[Training]:
        """A Training for each case: "ok" for those that can step. Other arms are let go."""
        for key in self.held.keys() - {case.key for case in cases}:
            self.drop(key)
        return [
            self.held[case.key].training if case.key in self.held else self._set_up(case, announce)
            for case in cases
        ]

    def _set_up(self, case: TrainCase, announce: Announce) -> Training:
        announce(case.key, "compiling" if case.compile else "setting up")
        network = self.task.network
        units = network.units_per_sample * case.batch * case.accumulate
        blank = Training(case, "ok", unit=network.unit, step_units=units)
        recipe = adapted(
            case.recipe, loss_scale=case.loss_scale, keep_batchnorm_fp32=case.keep_batchnorm_fp32
        )
        reason = cannot_run(recipe, self.target.kind, self.target.capability)
        if case.graph and not self.cuda:
            reason = "CUDA graphs need a CUDA device; a CPU has none"
        if reason:
            return replace(blank, status="skipped", reason=reason)
        try:
            held = self._fitted(case, blank)
        except UserError:
            raise  # strict data: the run ends
        except Exception as error:
            self.raise_if_dead(error)
            self._free()
            return replace(blank, status="failed", reason=describe(error))
        if held is None:
            return self._too_large(blank, announce)
        self.held[case.key] = held
        return held.training

    def _fitted(self, case: TrainCase, blank: Training) -> Held | None:
        """The arm, or None when the memory does not hold it; a traceback would keep it alive."""
        try:
            return self._built(case, blank)
        except torch.OutOfMemoryError:
            return None

    def _built(self, case: TrainCase, blank: Training) -> Held:
        began_s = time.perf_counter()
        held_bytes = self._allocated()
        recipe = adapted(
            case.recipe, loss_scale=case.loss_scale, keep_batchnorm_fp32=case.keep_batchnorm_fp32
        )
        learner = Learner(
            self.task.network, case, recipe, self.device,
            seed=self.task.seed, lr=self.task.lr, warmup=self.task.warmup,
        )  # fmt: skip
        feed = feed_of(self.task.data, case, self.device, self.task.seed)
        held = Held(blank, learner, feed)
        start_s = time.perf_counter()
        self.timer.run(held.step, 1)
        first_s = time.perf_counter() - start_s
        self.timer.run(held.step, WARM_STEPS - 1 if self.cuda else 0)
        self._reset_peak()
        if case.graph:
            learner.capture(feed)
        start_s = time.perf_counter()
        self.timer.run(held.step, SETTLED_STEPS if self.cuda else 1)
        estimate_s = (time.perf_counter() - start_s) / (SETTLED_STEPS if self.cuda else 1)
        held.training = replace(
            blank,
            setup_s=time.perf_counter() - began_s,
            compile_s=first_s if case.compile else None,
            memory_peak_bytes=self._peak() - held_bytes if self.cuda else None,
        )
        held.arm = Arm(case.key, held.step, estimate_s)
        return held

    def _too_large(self, blank: Training, announce: Announce) -> Training:
        """Out of memory: what was taken, and the largest half, quarter, ... that runs."""
        peak = self._peak()
        self._free()
        case = replace(blank.case, compile=False, graph=False)
        failed = replace(blank, status="failed", memory_peak_bytes=peak)
        taken = f"out of memory: peak {peak / 1e9:.1f} GB"
        batch = case.batch // 2
        while batch >= 1:
            announce(blank.case.key, f"out of memory, trying batch {batch}")
            smaller = self._fitted(replace(case, batch=batch), blank)
            if smaller is None:
                self._free()
                batch //= 2
                continue
            needed = smaller.training.memory_peak_bytes or 0
            smaller.feed.close()
            del smaller
            self._free()
            reason = f"{taken}; batch {batch} fits ({needed / 1e9:.1f} GB)"
            return replace(failed, reason=reason, fits_batch=batch)
        return replace(failed, reason=f"{taken}; not even batch 1 fits")

    # ------------------------------------------------------------ timing in turns

    def time(self, budget_s: float, announce: Announce) -> list[Training]:
        """The held arms with their times, state, phases; one that breaks its turn fails alone."""
        failed: list[Training] = []
        while self.held:
            try:
                self._take_turns(budget_s, announce)
                break
            except ArmFailed as failure:
                failed.append(self._dropped(failure))
        for key in list(self.held):
            held = self.held[key]
            announce(key, "timing its phases")
            held.training = self._timed(held)
            try:
                held.training = self._looked_closer(held.training)
            except UserError:
                raise
            except Exception as error:
                self.raise_if_dead(error)
                held.training = replace(held.training, warnings=(_unseen(held.training, error),))
        return [*(held.training for held in self.held.values()), *failed]

    def _take_turns(self, budget_s: float, announce: Announce) -> None:
        def begin(key: str, number: int) -> None:
            self.held[key].learner.switch()
            announce(key, f"timing, round {number}")

        for held in self.held.values():
            held.arm.blocks.clear()
            held.skipped_before = held.learner.skipped_steps
        turns = Turns(
            self.timer, "sustained", budget_s, during=self.telemetry.during, begin=begin,
            own_pace=self._pace(budget_s),
        )  # fmt: skip
        turns.take([held.arm for held in self.held.values()])

    def _pace(self, budget_s: float) -> Pace:
        if not self.cuda:
            block_s = min(CPU_BLOCK_S, budget_s / len(self.held) / FEWEST_ROUNDS)
            return Pace(settle_s=0.0, warm_s=0.0, block_s=block_s, least=1, most=100)
        turn_s = min(TURN_S, budget_s / len(self.held) / ROUNDS)
        warm_s = WARM_SHARE * turn_s
        return Pace(settle_s=TURN_S, warm_s=warm_s, block_s=turn_s - warm_s, least=3, most=400)

    def _dropped(self, failure: ArmFailed) -> Training:
        cause = failure.__cause__
        assert isinstance(cause, Exception)
        if isinstance(cause, UserError):
            raise cause  # strict data: the run ends
        self.raise_if_dead(cause)
        training = replace(
            self.held[failure.arm.key].training, status="failed", reason=describe(cause)
        )
        self.drop(failure.arm.key)
        return training

    def _timed(self, held: Held) -> Training:
        blocks = [block for block in held.arm.blocks if isinstance(block, StepBlock)]
        times = [block.times_s for block in blocks]
        steps = StepTimes(
            times_s=_rounded(t for block in times for t in block),
            wall_times_s=_rounded(t for block in blocks for t in block.wall_times_s),
            blocks=tuple(len(block) for block in times),
            median_s=median([t for block in times for t in block]),
            ci95_s=median_interval(times, self.timer.resolution_s),
            wall_s=sum(block.wall_s for block in blocks),
            wall_steps=sum(block.wall_steps for block in blocks),
        )
        clocks = [block.sm_clock_mhz for block in blocks if block.sm_clock_mhz]
        seen = self.telemetry.summary(held.arm.key)
        busy = seen.utilization_pct
        state = State(
            gpu_util_pct=Spread(sum(busy) / len(busy), min(busy), max(busy)) if busy else None,
            sm_clock_mhz=sum(clocks) / len(clocks) if clocks else seen.sm_clock_mhz,
            power_w=seen.power_w,
            temperature_c=seen.temperature_c,
            throttle=seen.throttle,
        )
        skipped = held.learner.skipped_steps - held.skipped_before
        return replace(held.training, steps=steps, state=state, skipped_steps=skipped)

    def _looked_closer(self, training: Training) -> Training:
        """What is not measured while steps are timed, because it would slow them."""
        held = self.held[training.case.key]
        held.learner.switch()
        count = PHASE_STEPS if self.cuda else CPU_PHASE_STEPS
        phases = time_phases(lambda clock: held.learner.step(held.feed, clock), self.cuda, count)
        training = replace(training, phases=phases)
        if not self.cuda or training.steps is None:
            return training
        busy_s, launches = busy_time(held.step)
        # An unfused optimizer makes the loss scaler wait for the device: no host time of its own.
        host_s = None if held.learner.updates.waits else host_time(held.step)
        steps = replace(training.steps, busy_s=busy_s, launches=launches, host_s=host_s)
        return replace(training, steps=steps)

    # ------------------------------------------------------------ memory, and the end

    def drop(self, key: str) -> None:
        """Let an arm go, and its memory with it."""
        self.held.pop(key).feed.close()
        self._free()

    def close(self) -> None:
        """Let all arms go."""
        for key in list(self.held):
            self.drop(key)

    def raise_if_dead(self, error: Exception) -> None:
        """RuntimeError after a fault that the device does not survive: only a new process helps."""
        if self.cuda:
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                raise RuntimeError(first_line(error)) from error

    def _free(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            self._reset_peak()

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.cuda else 0

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.cuda else 0

    def _reset_peak(self) -> None:
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)


def _unseen(training: Training, error: Exception) -> Warning:
    return Warning(
        f"{training.case.recipe}: its phases and kernels were not seen",
        describe(error),
        "the timed steps above stand; try again for the rest",
    )


def feed_of(data: Data, case: TrainCase, device: torch.device, seed: int) -> Feed:
    """The case's batches, in its layout."""
    return data.feed(case.batch, device, seed, channels_last=case.layout == "nhwc")


def describe(error: Exception) -> str:
    """A failure in one line: an error's kind and first line."""
    return f"{type(error).__name__}: {first_line(error)}"


def _rounded(times: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(t, TIME_DECIMALS) for t in times)
