"""The arms of a comparison on the device: set up, warmed up, held, released.

All arms are resident at once: weights are small beside activations, whose memory one arm's steps
leave to the next. Every case becomes a Training, whatever happens to it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from e2e.case import TrainCase
from e2e.data.datasets.images import InMemory
from e2e.data.loaders import LOADERS
from e2e.data.types import Data, LoadSpec
from e2e.networks.network import Network
from e2e.networks.weights import model_bytes, saved_bytes
from e2e.recipes import NO_GRAPHS, cannot_run, recipe_of
from e2e.results.types import Training
from e2e.training.distributed.exchange import all_reduce_of, buckets_of
from e2e.training.distributed.ranks import Ranks, RanksLost
from e2e.training.feeds import Feeds, TimedFeed
from e2e.training.float8 import NothingToConvert
from e2e.training.step_timer import CpuSteps, CudaSteps, StepBlock, StepTimer
from e2e.training.trainer import Trainer, capture_stream
from kernels.case import Target
from kernels.error_words import first_line, one_line
from microbench.device.device import held_by_others, memory_of_process
from microbench.errors import UserError
from microbench.timing.interleave import Arm, ArmFailed

WARM_STEPS = 3  # the first ones search algorithms, make optimizer state, and fill the allocator
SETTLED_STEPS = 2  # after those: measures the memory and the time of a step
MOST_SAVED = 1 << 30  # bytes of a network: reading back the state of a larger one takes seconds
BATCHES_HELD = 4  # that a loader which makes them on the GPU has there at most, and one more
NOT_OVER_RANKS = "compiled and captured steps are not measured over several GPUs yet"
LOCAL, ALONE = "/local", "/alone"  # what keys of arms beside a step end in
WAITS_SHARE = 0.02  # of the time: with more of it in any block, steps wait for their loader

Announce = Callable[[str, str], None]


@dataclass(frozen=True)
class Task:
    """What all arms of a run share."""

    network: Network
    data: Data
    seed: int
    ranks: Ranks | None = None  # of several GPUs; this process is one of them


@dataclass
class Exchanging:
    """What is timed beside an arm's step over several ranks: it without the exchange of gradients,
    and the exchange alone, of `buckets` like those of a step.
    """

    buckets: Sequence[Tensor]
    local: Arm
    alone: Arm


@dataclass
class Held:
    """An arm that is set up: its trainer, its feed and its results so far."""

    training: Training
    trainer: Trainer
    feed: TimedFeed
    arm: Arm = field(init=False)
    exchange: Exchanging | None = None
    skipped_before: int = 0  # updates that were skipped before timing began

    def step(self) -> object:
        """Launch one step; returns the loss, a scalar on the device."""
        return self.trainer.step(self.feed)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """What takes turns: its step, and what is timed to know its exchange."""
        more = (self.exchange.local, self.exchange.alone) if self.exchange else ()
        return (self.arm, *more)

    @property
    def waits(self) -> bool:
        """Whether it waited for its loader in any block; True until a block has been timed.

        The first block begins without ready batches.
        """
        blocks = [block for block in self.arm.blocks if isinstance(block, StepBlock)]
        waited = (block.waited_s > WAITS_SHARE * block.wall_s for block in blocks)
        return not blocks or any(waited)


class Arms:
    """The arms held on one device, by their case's key."""

    def __init__(self, task: Task, target: Target) -> None:
        self.task, self.target, self.ranks = task, target, task.ranks
        self.device = torch.device(target.torch_device)
        self.cuda = target.kind == "cuda"
        self.timer: StepTimer = CpuSteps()
        if self.cuda:
            self.timer = CudaSteps(target.index, target.sm_count)
        self.feeds = Feeds(task.data, self.device, task.seed)
        self.held: dict[str, Held] = {}
        self._take_shared_memory()

    def _take_shared_memory(self) -> None:
        """Allocate what all arms share before the first one: resident data, cuBLAS's workspace."""
        if isinstance(self.task.data, InMemory):
            self.task.data.load(LoadSpec(1, self.device, self.task.seed))
        if self.cuda:
            self._let_cublas_take_memory()

    def _let_cublas_take_memory(self) -> None:
        """For the current stream: each stream and thread has a workspace of its own."""
        one = torch.ones(1, 1, device=self.device, requires_grad=True)
        # A kernel first in the backward pass, or cuBLAS finds no context.
        torch.mm(one, one).exp().backward()  # pyright: ignore[reportUnknownMemberType]

    def set_up(self, cases: Sequence[TrainCase], announce: Announce) -> list[Training]:
        """A Training for each case, "ok" if it can step; arms of other cases are released.

        An arm that raises is "failed". RuntimeError after a fault that the device does not survive;
        UserError for broken strict data.
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
        if self.ranks and (case.graph or case.compile):
            reason = NOT_OVER_RANKS
        if reason:
            return replace(blank, status="skipped", reason=reason)
        try:
            held = self._fitted(case, blank, announce)
        except UserError:
            raise  # strict data: the run ends
        except NothingToConvert as error:
            self._free()
            return replace(blank, status="skipped", reason=str(error))
        except Exception as error:
            self.raise_if_dead(error)
            self._free()
            return replace(blank, status="failed", reason=one_line(error))
        if held is None:
            return self._too_large(blank, announce)
        self.held[case.key] = held
        return held.training

    def _fitted(self, case: TrainCase, blank: Training, announce: Announce) -> Held | None:
        """The arm, or None if the memory is too small; a traceback would keep its tensors alive."""
        try:
            return self._built(case, blank, announce)
        except torch.OutOfMemoryError:
            return None

    def _built(self, case: TrainCase, blank: Training, announce: Announce) -> Held:
        began_s = time.perf_counter()
        with self._part():
            feed = self.feeds.open(case)
        try:
            if case.fed:  # the loader's device memory does not count for the arm
                on_gpu = LOADERS[case.loader].on_gpu
                for _ in range(BATCHES_HELD if on_gpu else 1):
                    feed.to_device(next(feed))
                if on_gpu:
                    feed.refill()
            if case.graph:
                with torch.cuda.stream(capture_stream(self.device)):
                    self._let_cublas_take_memory()
            held_bytes = torch.cuda.memory_allocated(self.device) if self.cuda else 0
            reserved_bytes = self._reserved()
            with self._part():
                trainer = Trainer(
                    self.task.network, case, recipe_of(case), self.device, seed=self.task.seed
                )
            held = Held(blank, trainer, feed)
            self._join(held)
            built_s = time.perf_counter() - began_s
            with self._part(exchanges=True):
                first_s, estimate_s = self._warmed(held, announce)
        except BaseException:
            feed.close()  # its workers would outlive it
            raise
        held.training = replace(
            blank,
            setup_s=time.perf_counter() - began_s,
            compile_s=first_s if case.compile else None,
            memory_peak_bytes=self._peak() - held_bytes if self.cuda else None,
            memory_process_bytes=memory_of_process(self.target.index) if self.cuda else None,
            first_step_s=built_s + first_s,
        )
        size = model_bytes(trainer.module)
        float8, linear = trainer.float8_layers or (None, None)
        held.training = replace(
            held.training,
            memory_reserved_bytes=self._reserved_since(reserved_bytes, held.training),
            model_bytes=size,
            float8_layers=float8,
            linear_layers=linear,
            checkpoint_bytes=saved_bytes(trainer.checkpoint()) if size <= MOST_SAVED else None,
        )
        held.arm = Arm(case.key, held.step, estimate_s)
        if self.ranks:
            with self._part():
                held.exchange = _exchanging(held)
        return held

    def _part(self, *, exchanges: bool = False) -> AbstractContextManager[object]:
        """A part of the work that all ranks do, if there are several; see `Ranks.part`."""
        return self.ranks.part(exchanges=exchanges) if self.ranks else nullcontext()

    def _join(self, held: Held) -> None:
        """Have the arm train with the other ranks, once its step is seen to fit on each."""
        if self.ranks:
            held.trainer.join(self.ranks)
            with self._part():
                self.timer.run(lambda: held.trainer.try_alone(held.feed), 1)

    def _warmed(self, held: Held, announce: Announce) -> tuple[float, float]:
        """(seconds of the first step, seconds per later step); peak memory counts after warm-up.

        The first steps search algorithms, which may take more memory than any later step.
        """
        if not held.training.case.compile:
            announce(held.training.case.key, "first step")
        first_s = self._seconds(held, 1)
        announce(held.training.case.key, "warming up")
        self.timer.run(held.step, WARM_STEPS - 1 if self.cuda else 0)
        self._reset_peak()
        if held.trainer.case.graph:
            held.trainer.capture(held.feed)
        count = SETTLED_STEPS if self.cuda else 1
        if held.training.case.fed:
            held.feed.skip_ready()
            count = max(count, held.training.case.workers)  # one batch of each
        return first_s, self._seconds(held, count) / count

    def start_loading(self) -> None:
        """Start the loaders whose batches are discarded; steps beside them take longer.

        ArmFailed for whatever fails, as in a turn.
        """
        for held in self.held.values():
            if not held.training.case.cached:
                continue
            try:
                held.trainer.switch()
                held.feed.start()
                held.arm.estimate_s = self._seconds(held, SETTLED_STEPS) / SETTLED_STEPS
            except Exception as error:
                raise ArmFailed(held.arm) from error

    def _seconds(self, held: Held, steps: int) -> float:
        start_s = time.perf_counter()
        self.timer.run(held.step, steps)
        return time.perf_counter() - start_s

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

    # ------------------------------------------------------------ memory, and the end

    def drop(self, key: str) -> None:
        """Release an arm and its memory."""
        self.held.pop(key).feed.close()
        self._free()

    def end_loading(self) -> None:
        """Close the arms' feeds, before they train on feeds of their own."""
        for held in self.held.values():
            held.feed.close()

    def close(self) -> None:
        """Release all arms."""
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

    def _reserved(self) -> int:
        """Bytes that torch keeps for what is there now: its cache is emptied."""
        if not self.cuda:
            return 0
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self.device)

    def _reserved_since(self, before: int, training: Training) -> int | None:
        """The most that torch kept beyond `before`; no less than was allocated.

        What it kept for the arms before may have had room left.
        """
        if not self.cuda:
            return None
        more = torch.cuda.max_memory_reserved(self.device) - before
        return max(more, training.memory_peak_bytes or 0)

    def _reset_peak(self) -> None:
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)


def _exchanging(held: Held) -> Exchanging:
    trainer, key, estimate_s = held.trainer, held.arm.key, held.arm.estimate_s
    buckets = buckets_of(trainer.spread, trainer.case.compress)
    return Exchanging(
        buckets,
        Arm(key + LOCAL, lambda: trainer.step(held.feed, exchange=False), estimate_s),
        Arm(key + ALONE, all_reduce_of(buckets), estimate_s),
    )
