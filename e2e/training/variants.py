"""The variants of a comparison on the device: set up, timed, looked at closely, released.

All are resident at once: weights are small beside activations, whose memory the steps of one leave
to the next. Every case becomes a Training, whatever happens to it. Over several ranks each calls
the same methods with the same arguments.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from e2e.case import TrainCase
from e2e.data.datasets.images import InMemory
from e2e.data.types import PREFETCH, Data, LoadSpec
from e2e.networks.network import Network, model_bytes
from e2e.recipes import NO_GRAPHS, cannot_run, recipe_of
from e2e.results.exchange import Exchange
from e2e.results.types import DeviceState, PartGain, SensorStats, StepTimes, Training
from e2e.training.allreduce import (
    all_reduce_of,
    buckets_of,
    copies_of,
    exchange_of,
)
from e2e.training.feeds import Feeds, TimedFeed
from e2e.training.float8 import NothingToConvert, Way, part_gains
from e2e.training.host_speed import SmallStepSpeed, SpeedByTurn
from e2e.training.launch import RanksLost
from e2e.training.ranks import Ranks
from e2e.training.step_timer import (
    HOST_STEPS,
    PHASE_STEPS,
    PROFILE_STEPS,
    CpuSteps,
    CudaSteps,
    StepTimer,
    busy_in,
    host_time,
    time_phases,
)
from e2e.training.store import Store
from e2e.training.timing import SETTLED_STEPS, Announce, Watch, time_interleaved
from e2e.training.trainer import Trainer, capture_stream
from e2e.training.variant import ALONE, LOCAL, TimedPart, Variant
from kernels.case import Target
from kernels.messages import first_line, one_line
from microbench.device.device import held_by_others, memory_of_process
from microbench.device.profiler import record
from microbench.device.telemetry import Telemetry
from microbench.errors import UserError
from microbench.results.types import TIME_DECIMALS, Warning
from microbench.timing.interleave import VariantFailed
from microbench.timing.stats import median, median_interval

WARM_STEPS = 3  # the first ones search algorithms, make optimizer state, and fill the allocator
NOT_OVER_RANKS = "compiled and captured steps are not measured over several GPUs yet"
LOOK_S = 1.0  # for each closer look at steps, where they are long
FEWEST_LOOKED_AT = 3  # of them, on a GPU
CPU_PHASE_STEPS = 2
PROFILER_S = 1.0  # to start and to read it, about; it is said only


@dataclass(frozen=True)
class Task:
    """What all variants of a run share."""

    network: Network
    data: Data
    seed: int
    ranks: Ranks | None = None  # of several GPUs; this process is one of them


class Variants:
    """The variants held on one device, by their case's key.

    They stay set up after their timing, to be trained from scratch. `gains` is what FP8 gains in
    linear layers as it is known, by a name; later runs know what is added.
    """

    def __init__(
        self, task: Task, target: Target, telemetry: Telemetry,
        gains: Store[PartGain] | None = None,
    ) -> None:  # fmt: skip
        self.task, self.target, self._telemetry = task, target, telemetry
        self._gains = gains
        self.device = torch.device(target.torch_device)
        self.ranks = task.ranks or Ranks.alone(self.device)
        self.cuda = target.kind == "cuda"
        self._timer: StepTimer = CpuSteps()
        if self.cuda:
            self._timer = CudaSteps(target.index, target.sm_count)
        self._feeds = Feeds(task.data, self.device, task.seed)
        self.held: dict[str, Variant] = {}
        # What all share is allocated before the first one: resident data, cuBLAS's workspace.
        if isinstance(task.data, InMemory):
            task.data.load(LoadSpec(1, self.device, task.seed)).close()
        if self.cuda:
            self._let_cublas_take_memory()

    def _let_cublas_take_memory(self) -> None:
        """For the current stream: each stream and thread has a workspace of its own."""
        ones = torch.ones(1, 1, device=self.device, requires_grad=True)
        # A kernel first in the backward pass: `mm` alone would run in a thread that has no CUDA
        # context yet.
        torch.mm(ones, ones).exp().backward()  # pyright: ignore[reportUnknownMemberType]

    # ------------------------------------------------------------ setting up

    def set_up(self, cases: Sequence[TrainCase], announce: Announce) -> list[Training]:
        """A Training for each case, "ok" if it can step; variants of other cases are released.

        One that raises is "failed". RuntimeError after a fault that the device does not survive;
        UserError for a broken file of strict data.
        """
        for key in self.held.keys() - {case.key for case in cases}:
            self.drop(key)
        return [
            self.held[case.key].training if case.key in self.held else self._set_up(case, announce)
            for case in cases
        ]

    def _set_up(self, case: TrainCase, announce: Announce) -> Training:
        announce(case.key, "compiling" if case.compile else "setting up")
        network = self.task.network
        units = network.units_per_sample * case.batch * case.accumulate * case.gpus
        blank = Training(case, "ok", unit=network.unit, step_units=units)
        reason = cannot_run(recipe_of(case), self.target.kind, self.target.capability)
        if case.graph and not self.cuda:
            reason = NO_GRAPHS
        if self.ranks.world > 1 and (case.graph or case.compile):
            reason = NOT_OVER_RANKS
        if reason:
            return replace(blank, status="skipped", reason=reason)
        try:
            variant = self._fitted(case, blank, announce)
        except UserError:
            raise  # strict data: the run ends
        except NothingToConvert as error:
            self._free()
            return replace(blank, status="skipped", reason=str(error))
        except Exception as error:
            self.raise_if_dead(error)
            self._free()
            return replace(blank, status="failed", reason=one_line(error))
        if variant is None:
            return self._too_large(blank, announce)
        self.held[case.key] = variant
        return variant.training

    def _fitted(self, case: TrainCase, blank: Training, announce: Announce) -> Variant | None:
        """The variant, or None if the memory is too small; a traceback would keep its tensors."""
        try:
            return self._built(case, blank, announce)
        except torch.OutOfMemoryError:
            return None

    def _built(self, case: TrainCase, blank: Training, announce: Announce) -> Variant:
        began_s = time.perf_counter()
        with self.ranks.fail_together():
            feed = self._feeds.open(case)
        try:
            if case.loads_data:  # the loader's device memory does not count for the variant
                feed.to_device(next(feed))
            if case.graph:
                with torch.cuda.stream(capture_stream(self.device)):
                    self._let_cublas_take_memory()
            gains, chosen = self._gaining(case, feed, announce)
            if gains:
                self._free()  # the network that they were measured in
            held_bytes = torch.cuda.memory_allocated(self.device) if self.cuda else 0
            if self.cuda:
                torch.cuda.empty_cache()
            with self.ranks.fail_together():
                trainer = Trainer(
                    self.task.network, case, recipe_of(case), self.device, seed=self.task.seed,
                    float8=chosen,
                )  # fmt: skip
            variant = Variant(blank, trainer, feed)
            if self.ranks.world > 1:
                trainer.join(self.ranks)
                with self.ranks.fail_together():  # its step is seen to fit on each before any waits
                    self._timer.run(lambda: trainer.try_alone(feed), 1)
            built_s = time.perf_counter() - began_s
            with self.ranks.exchanging():
                first_s, estimate_s = self._warmed(variant, announce)
        except BaseException:
            feed.close()  # its workers would outlive it
            raise
        peak_bytes = self._peak() - held_bytes if self.cuda else None
        float8, linear = trainer.float8_layers or (None, None)
        variant.training = replace(
            blank,
            setup_s=time.perf_counter() - began_s,
            compile_s=first_s if case.compile else None,
            memory_peak_bytes=peak_bytes,
            memory_process_bytes=memory_of_process(self.target.index) if self.cuda else None,
            first_step_s=built_s + first_s,
            model_bytes=model_bytes(trainer.module),
            float8_layers=float8,
            linear_layers=linear,
            fp8_gains=gains,
        )
        variant.parts = (TimedPart(case.key, variant.step, estimate_s),)
        if self.ranks.world > 1:
            with self.ranks.fail_together():
                self._add_exchange(variant)
        return variant

    def _gaining(
        self, case: TrainCase, feed: TimedFeed, announce: Announce
    ) -> tuple[tuple[PartGain, ...], Collection[str] | None]:
        """(What FP8 gains in parts of the network, the names of the layers to convert.)

        Of a recipe that does not choose there are no gains, and no names. Rank 0 measures.
        """
        recipe = recipe_of(case)
        if not recipe.auto:
            return (), None
        assert recipe.float8
        way = Way(
            recipe.float8, case.batch, case.evaluation, case.compile,
            captures=self.cuda and (case.compile or case.graph),
        )  # fmt: skip
        plain = replace(case, recipe="amp-bf16", compile=False, graph=False)
        gains = self._gains
        with self.ranks.fail_together():
            trainer = Trainer(
                self.task.network, plain, recipe_of(plain), self.device, seed=self.task.seed
            )
            inputs, _ = feed.to_device(next(feed), case.layout == "nhwc")
            parts, chosen = part_gains(
                trainer.module, lambda: trainer.forward(inputs), way, self._timer,
                lambda name: gains.get(name) if gains else None,
                lambda doing: announce(case.key, doing),
            )  # fmt: skip
        parts, chosen = self.ranks.from_rank0((parts, chosen))
        if gains and self.ranks.is_rank0:
            gains.add({name: part for name, part in parts.items() if gains.get(name) is None})
        return tuple(parts.values()), chosen

    def _warmed(self, variant: Variant, announce: Announce) -> tuple[float, float]:
        """(seconds of the first step, seconds per later step); peak memory counts after warm-up.

        The first steps search algorithms, which may take more memory than any later step.
        """
        case = variant.training.case
        if not case.compile:
            announce(case.key, "first step")
        first_s = self._seconds(variant, 1)
        announce(case.key, "warming up")
        self._timer.run(variant.step, WARM_STEPS - 1 if self.cuda else 0)
        self._reset_peak()
        if case.graph:
            variant.trainer.capture(variant.feed)
        count = SETTLED_STEPS if self.cuda else 1
        if case.loads_data:
            variant.feed.drop_prefetched()
            count = max(count, case.workers)  # one batch of each
        return first_s, self.ranks.slowest(self._seconds(variant, count) / count)

    def _seconds(self, variant: Variant, steps: int) -> float:
        start_s = time.perf_counter()
        self._timer.run(variant.step, steps)
        return time.perf_counter() - start_s

    def _add_exchange(self, variant: Variant) -> None:
        """What is timed beside a step, to know what exchanging gradients costs it."""
        (whole,), trainer, feed = variant.parts, variant.trainer, variant.feed
        variant.buckets = buckets_of(trainer.ddp_model, trainer.case.compress)
        local = TimedPart(
            whole.key + LOCAL, lambda: trainer.step(feed, exchange=False), whole.estimate_s
        )
        alone = TimedPart(whole.key + ALONE, all_reduce_of(variant.buckets), whole.estimate_s)
        variant.parts = (whole, local, alone)

    def _too_large(self, blank: Training, announce: Announce) -> Training:
        """Out of memory: the bytes used, and the largest half, quarter, ... batch that runs."""
        peak = self._peak()
        self._free()
        case = replace(blank.case, compile=False, graph=False)
        failed = replace(blank, status="failed", memory_peak_bytes=peak)
        others = held_by_others()
        taken = f"out of memory: peak {peak / 1e9:.1f} GB{f', {others}' if others else ''}"
        batch = case.batch // 2
        while batch >= 1:
            announce(blank.case.key, f"out of memory, trying batch {batch}")
            smaller = self._fitted(replace(case, batch=batch), blank, announce)
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
        return replace(failed, reason=f"{taken}; even batch 1 does not fit")

    # ------------------------------------------------------------ timing

    def time(
        self, budget_s: float, announce: Announce, host_speed: SmallStepSpeed | None = None,
        left: Callable[[float], object] = lambda _: None,
    ) -> list[Training]:  # fmt: skip
        """The held variants with times, state and phases; `budget_s` is seconds of timing in all.

        One that raises, or whose weights are not finite afterwards, is "failed", and released; the
        others go on. RuntimeError after a fault that the device does not survive; UserError for a
        broken file of strict data. With a `host_speed`, each variant's slowdown is noted. `left` is
        told about how many seconds are left, from a third of the budget on.
        """
        failed: list[Training] = []
        speeds: SpeedByTurn | None = None

        def with_looks(rest_s: float) -> None:
            left(rest_s + sum(self._look_s(variant) for variant in self.held.values()))

        while self.held:
            speeds = SpeedByTurn(host_speed) if host_speed else None
            watch = Watch(self._telemetry.during, announce, speeds, with_looks)
            try:
                time_interleaved(list(self.held.values()), budget_s, self._timer, self.ranks, watch)
                break
            except VariantFailed as failure:
                failed.append(self._dropped(failure))
            finally:
                if host_speed:
                    host_speed.forget()
        began_s, count = time.perf_counter(), len(self.held)
        for number, (key, variant) in enumerate(list(self.held.items())):
            if number:
                left((time.perf_counter() - began_s) / number * (count - number))
            announce(key, "timing phases")
            untimed = variant.training
            variant.training = self._timed(variant, speeds.of(key) if speeds else None)
            variant.trainer.set_backend_flags()
            try:
                with self.ranks.exchanging():
                    if self.ranks.from_rank0(variant.trainer.is_finite(variant.feed)):
                        variant.training = self._looked_closer(variant)
                        continue
            except UserError:
                raise
            except Exception as error:
                self.raise_if_dead(error)
                unseen = Warning(
                    f"{variant.training.case.recipe}: phases and kernels were not recorded",
                    one_line(error),
                    "the step times are complete; run again for phases and kernels",
                )
                variant.training = replace(variant.training, warnings=(unseen,))
                continue
            failed.append(replace(untimed, status="failed", reason=_not_finite(variant)))
            self.drop(key)
        return [*(variant.training for variant in self.held.values()), *failed]

    def _look_s(self, variant: Variant) -> float:
        """About how long closer looks at a variant take."""
        each_s = median(variant.blocks[-1].times_s)
        refill_s = variant.waits * PREFETCH * variant.training.case.workers * each_s
        if not self.cuda:
            return CPU_PHASE_STEPS * each_s + refill_s
        looks = (PHASE_STEPS, PROFILE_STEPS, HOST_STEPS)
        return (
            PROFILER_S
            + refill_s
            + sum(max(FEWEST_LOOKED_AT * each_s, min(LOOK_S, steps * each_s)) for steps in looks)
        )

    def _dropped(self, failure: VariantFailed) -> Training:
        cause = failure.__cause__
        assert isinstance(cause, Exception)
        self.raise_if_dead(cause)
        variant = next(v for v in self.held.values() if failure.variant in v.parts)
        self.drop(variant.key)
        return replace(variant.training, status="failed", reason=one_line(cause))

    def _timed(self, variant: Variant, host_pace: float | None) -> Training:
        blocks, case = variant.blocks, variant.training.case
        times = [block.times_s for block in blocks]
        wall_steps = sum(block.wall_steps for block in blocks)
        steps = StepTimes(
            times_s=_rounded(t for block in times for t in block),
            wall_times_s=_rounded(t for block in blocks for t in block.wall_times_s),
            blocks=tuple(len(block) for block in times),
            median_s=median([t for block in times for t in block]),
            ci95_s=median_interval(times, self._timer.resolution_s),
            wall_s=sum(block.wall_s for block in blocks),
            wall_steps=wall_steps,
            host_pace=host_pace,
        )
        if case.loads_data:
            steps = replace(steps, wait_s=sum(block.waited_s for block in blocks) / wall_steps)
        clocks = [block.sm_clock_mhz for block in blocks if block.sm_clock_mhz]
        seen = self._telemetry.summary(variant.key)
        busy = seen.utilization_pct
        state = DeviceState(
            gpu_util_pct=SensorStats(sum(busy) / len(busy), min(busy), max(busy)) if busy else None,
            sm_clock_mhz=sum(clocks) / len(clocks) if clocks else seen.sm_clock_mhz,
            # The sensors are those of one GPU.
            power_w=seen.power_w if self.ranks.world == 1 else None,
            temperature_c=seen.temperature_c,
            throttle=seen.throttle,
        )
        skipped = variant.trainer.skipped_steps - variant.skipped_before
        return replace(
            variant.training, steps=steps, state=state, exchange=self._exchange(variant),
            skipped_steps=None if case.evaluation else skipped,
        )  # fmt: skip

    def _exchange(self, variant: Variant) -> Exchange | None:
        """What exchanging gradients costs the variant's step; None for one rank."""
        if self.ranks.world == 1:
            return None
        rounds = [[median(block.times_s) for block in part.blocks] for part in variant.parts]
        _, local, _ = variant.parts
        ranks_s = [median(s) for s in zip(*(b.ranks_s for b in local.blocks), strict=True)]
        sizes = [bucket.nbytes for bucket in variant.buckets]
        return exchange_of(self.ranks.world, sizes, list(zip(*rounds, strict=True)), ranks_s)

    def step_alone(self, key: str) -> Callable[[], object]:
        """A step, call by call and without its loader; the process is switched to its variant."""
        variant = self.held[key]
        variant.trainer.set_backend_flags()
        return variant.step_alone(uncaptured=True)

    def _looked_closer(self, variant: Variant) -> Training:
        """Its training with measurements that would slow the timed steps, taken afterwards."""
        training, trainer = variant.training, variant.trainer
        steps, exchange = training.steps, training.exchange
        assert steps
        count = PHASE_STEPS if self.cuda else CPU_PHASE_STEPS
        fit = int(LOOK_S / (training.step_s or steps.median_s))
        count = max(CPU_PHASE_STEPS, min(count, fit))
        phases = time_phases(lambda clock: trainer.step(variant.feed, clock), self.cuda, count)
        step = variant.step_alone()
        if training.case.loads_data:
            variant.feed.wait_until_full()  # busy workers slow the measurement
            steps = replace(steps, unfed_s=median(self._timer.block(step, count).times_s))
        if self.cuda:
            looked_at = max(FEWEST_LOOKED_AT, min(PROFILE_STEPS, fit))
            kernels = record(lambda: self._timer.run(step, looked_at))
            longest_s = exchange.longest_wait_s if exchange else 0.0
            busy_s, launches = busy_in(kernels, looked_at, longest_s)
            # An unfused optimizer makes the loss scaler wait for the device: no time of its own.
            host_steps = max(FEWEST_LOOKED_AT, min(HOST_STEPS, fit))
            host_s = None if trainer.waits else host_time(step, host_steps)
            steps = replace(steps, busy_s=busy_s, launches=launches, host_s=host_s)
        if exchange:
            weights = [w.detach() for w in trainer.ddp_model.parameters() if w.requires_grad]
            copies = copies_of(weights, variant.buckets, self._timer, self.ranks)
            exchange = replace(exchange, copies=copies)
        return replace(training, phases=phases, steps=steps, exchange=exchange)

    # ------------------------------------------------------------ memory, and the end

    def drop(self, key: str) -> None:
        """Release a variant and its memory."""
        self.held.pop(key).feed.close()
        self._free()

    def end_loading(self) -> None:
        """Close the variants' feeds, before they train on feeds of their own."""
        for variant in self.held.values():
            variant.feed.close()

    def close(self) -> None:
        """Release all variants."""
        for key in list(self.held):
            self.drop(key)

    def raise_if_dead(self, error: Exception) -> None:
        """RuntimeError if the device does not survive the fault, or other ranks do not: only a new
        process helps.
        """
        if isinstance(error, RanksLost):
            raise error
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

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.cuda else 0

    def _reset_peak(self) -> None:
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)


def _not_finite(variant: Variant) -> str:
    if variant.training.case.evaluation:
        return "its outputs are not finite"
    return f"its weights are not finite after {variant.trainer.steps_done} steps"


def _rounded(times: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(t, TIME_DECIMALS) for t in times)
