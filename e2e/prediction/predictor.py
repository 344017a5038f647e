"""Predicts steps that were never run: trace one, time its distinct calls alone, add them up."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from e2e.aten import CannotReplay, kind_of, why_not
from e2e.case import FULL, TrainCase
from e2e.data.loaders.device_copy import FixedBatch
from e2e.data.types import laid_out
from e2e.networks.network import Network
from e2e.prediction.padding import CONVOLUTIONS
from e2e.prediction.recorder import BACKWARD, Recorder, TracedOp, cache_bytes
from e2e.prediction.timer import CallTime, PlacedCall, time_calls
from e2e.recipes import DYNAMIC, Recipe, algorithms_timed, cannot_run, recipe_of
from e2e.results.types import PREDICTED, Predicted, Training
from e2e.training.host_speed import REFERENCE_S, SmallStepSpeed
from e2e.training.store import Store
from e2e.training.trainer import Trainer, set_backend_flags, storage
from kernels.case import Target
from kernels.data import memory_format
from kernels.messages import one_line
from microbench.network.networks import BuildMode, silent

SEED = 1


@dataclass(frozen=True)
class Trace:
    """One step: its calls in order of launch.

    `held_bytes` are allocated before the step: weights, optimizer state, the batch, gradients of
    the last step.
    """

    case: TrainCase
    ops: tuple[TracedOp, ...]
    held_bytes: int

    @cached_property
    def launched(self) -> tuple[TracedOp, ...]:
        """The calls that launch something: no views."""
        return tuple(op for op in self.ops if kind_of(op.call) != "view")

    def peak_bytes(self, scratch: Mapping[str, int] | None = None) -> int:
        """The most that is allocated at once, in bytes.

        `scratch` has what calls allocate beside their results (workspaces), by key: it is measured,
        because the trace cannot know it.
        """
        scratch = scratch or {}
        alive = peak = self.held_bytes
        for op in self.ops:
            alive -= op.freed
            peak = max(peak, alive + op.allocated + scratch.get(op.call.key, 0))
            alive += op.allocated
        return peak


class CannotPredict(Exception):
    """The message is the reason shown to the user."""


def trace(network: Network, case: TrainCase, device: torch.device, classes: int) -> Trace:
    """Record a step without running it. CannotPredict where only a real step can tell."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with silent():
        try:
            module = _built(network, fake)
            # torch asks where the weights of cuDNN's recurrent layers lie, and copies them where
            # that is not in one piece; and it keeps their dropout's state for the whole process.
            recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
            if recurrent and device.type == "cuda":
                raise CannotReplay("cuDNN's recurrent layers need weights that are in memory")
            # One thread: fake tensors live in the mode of the thread that made them.
            with torch.autograd.set_multithreading_enabled(False), fake:
                _move(module, case, recipe_of(case), device)
                return record_step(network, case, device, classes, module)
        except Exception as error:
            why = str(error) if isinstance(error, CannotReplay) else one_line(error)
            raise CannotPredict(f"the step cannot be traced: {why}; train it instead") from error


def _built(network: Network, fake: FakeTensorMode) -> nn.Module:
    """The network with fake weights; with real ones on the CPU where its builder needs them."""
    try:
        with BuildMode(fake):
            return network.build()
    except Exception:
        return network.build()


def record_step(
    network: Network, case: TrainCase, device: torch.device, classes: int,
    module: nn.Module | None = None,
) -> Trace:  # fmt: skip
    """Record the second step: the first one creates state that later steps find. It runs, unless
    the weights of `module` are fake. Raises what it raises.
    """
    trainer = Trainer(network, case, recipe_of(case), device, seed=SEED, module=module)
    recorder = Recorder(
        device.type, scaled=recipe_of(case).scale == DYNAMIC, cache_bytes=cache_bytes(device)
    )
    feed = fixed_feed(network, case, device, classes)
    weights = list(trainer.module.parameters())
    recorder.hold((*weights, *trainer.module.buffers(), *trainer.optimizer.tensors()))
    recorder.hold(feed.to_device(None, case.layout == "nhwc"))
    gc.collect()
    gc.disable()  # it would free memory at arbitrary moments
    try:
        with recorder:
            trainer.step(feed, recorder.mark)
            held_bytes = recorder.begin()
            trainer.step(feed, recorder.mark)
            return Trace(case, recorder.end(), held_bytes)
    finally:
        gc.enable()


def fixed_feed(network: Network, case: TrainCase, device: torch.device, classes: int) -> FixedBatch:
    """A feed of one batch, made on the device, fake or real; `classes` is ignored for tokens.

    Images are float32 [batch, 3, H, W] with classes int64 [batch]; tokens int64 [batch, T].
    """
    shape = (case.batch, *network.input)
    if network.tokens is not None:
        tokens = torch.randint(network.tokens, shape, device=device)
        return FixedBatch(tokens, tokens)
    images = laid_out(torch.randn(shape, device=device), case.layout == "nhwc")
    return FixedBatch(images, torch.randint(classes, (case.batch,), device=device))


def _move(module: nn.Module, case: TrainCase, recipe: Recipe, device: torch.device) -> None:
    """Put fake weights on the device, in the case's layout and the recipe's storage.

    `nn.Module.to` cannot swap fake tensors, so each is made anew; shared ones stay shared.
    """
    made: dict[int, Any] = {}

    def moved(tensor: Tensor, layer: nn.Module) -> Tensor:
        dtype = storage(layer, recipe) if tensor.is_floating_point() else tensor.dtype
        order = memory_format(case.layout) if tensor.dim() == 4 else torch.contiguous_format
        return torch.empty(tensor.shape, dtype=dtype, device=device, memory_format=order)

    for layer in module.modules():
        for name, weight in layer.named_parameters(recurse=False):
            if id(weight) not in made:
                made[id(weight)] = nn.Parameter(moved(weight, layer), weight.requires_grad)
            layer.register_parameter(name, made[id(weight)])
        for name, buffer in layer.named_buffers(recurse=False):
            if id(buffer) not in made:
                made[id(buffer)] = moved(buffer, layer)
            setattr(layer, name, made[id(buffer)])


GPU_ERROR = 0.07  # of the GPU's time: tests/validation found 6.4 % at worst
MEMORY_ERROR = 0.05  # of a peak: the most that is allowed there
# Quartiles of a call's rounds further apart than this share of the median: not kept on disk.
MAX_SPREAD = {"cuda": 0.05, "cpu": 0.3}
# What a CPU-bound step launches while the small step of `host_speed` takes REFERENCE_S: the median
# of 106 published steps at the CPU speed that each had, 138 to 213 in nine of ten of them.
REFERENCE_LAUNCHES = 167
NO_KERNELS = "a compiled or captured step is not predicted: a trace shows the kernels of neither"
FLOAT8 = "steps with FP8 are not predicted: their products are not measured alone"

Announce = Callable[[str, str], None]


class Predictor:
    """Predicts cases of one network on one device; each distinct call is measured once.

    `memory_bytes`: a step that needs more by over MEMORY_ERROR is not measured; None: any is.
    """

    def __init__(
        self, network: Network, target: Target, classes: int, store: Store[CallTime],
        memory_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self._network, self._target, self._classes = network, target, classes
        self._store, self._memory_bytes = store, memory_bytes
        self._device = torch.device(target.torch_device)
        self._fresh: dict[str, CallTime] = {}  # measured by this process, the unsteady ones too

    def predict(self, case: TrainCase, announce: Announce) -> Training:
        """A training of the case, which does not run, with its predicted step; or why it has none.

        Raises what a fault raises that the device does not survive.
        """
        network = self._network
        units = network.units_per_sample * case.batch * case.accumulate
        blank = Training(case, "skipped", unit=network.unit, step_units=units)
        recipe = recipe_of(case)
        reason = cannot_run(recipe, self._target.kind, self._target.capability)
        if case.compile or case.graph:
            reason = NO_KERNELS
        elif recipe.float8:
            reason = FLOAT8
        if reason:
            return replace(blank, reason=reason)
        try:
            return replace(blank, status=PREDICTED, predicted=self._predicted(case, announce))
        except CannotPredict as problem:
            return replace(blank, reason=str(problem))
        except Exception as error:
            if self._target.kind == "cuda":
                torch.cuda.synchronize(self._device)  # raises where the device is of no more use
            return replace(blank, status="failed", reason=one_line(error))
        finally:
            gc.collect()
            if self._target.kind == "cuda":
                torch.cuda.empty_cache()  # leave the memory as it was

    def _predicted(self, case: TrainCase, announce: Announce) -> Predicted:
        began_s = time.perf_counter()
        announce(case.key, "tracing")
        traced = trace(self._network, case, self._device, self._classes)
        traced_s = time.perf_counter() - began_s
        needed, has = traced.peak_bytes(), self._memory_bytes
        if has and needed > (1 + MEMORY_ERROR) * has:
            need_gb, has_gb = needed / 1e9, has / 1e9
            raise CannotPredict(f"it would need {need_gb:,.1f} GB of the device's {has_gb:,.1f}")
        times, problems = self._times(traced, partial(announce, case.key))
        predicted = predicted_of(traced, times, problems)
        if not predicted.step_s:
            why = next(iter(predicted.uncovered), "it launches nothing")
            raise CannotPredict(f"nothing could be timed: {why}")
        if self._target.kind == "cuda":
            announce(case.key, "timing how fast the CPU launches")
            predicted = replace(
                predicted, gpu_s=predicted.step_s, host_s=self._host_s(predicted.launches or 0)
            )
        else:  # neither the error of its time is known, nor what torch keeps of memory
            predicted = replace(predicted, interval_s=None, memory_bytes=None)
        timed_s = time.perf_counter() - began_s - traced_s
        took_s = {"tracing": round(traced_s, 3), "operations": round(timed_s, 3)}
        return replace(predicted, took_s=took_s)

    def _times(
        self, traced: Trace, doing: Callable[[str], object]
    ) -> tuple[dict[str, CallTime], dict[str, str]]:
        """Times of distinct calls by key, known or measured now, and why others have none."""
        case, kind = traced.case, self._target.kind
        set_backend_flags(recipe_of(case), self._device.type, case.search)
        times: dict[str, CallTime] = {}
        problems: dict[str, str] = {}
        missing: dict[str, PlacedCall] = {}
        keys = [key_of(case, op) for op in traced.launched]
        counts = Counter(keys)
        for key, op in zip(keys, traced.launched, strict=True):
            if known := self._fresh.get(key) or self._store.get(key):
                times[key] = known
            elif why := why_not(op.call):
                problems[key] = why.removeprefix(f"{op.call.name}: ")
            elif key not in missing:
                missing[key] = PlacedCall(op.call, counts[key], op.phase == BACKWARD, op.cold)
        measured = time_calls(self._target, list(missing.values()), doing) if missing else []
        for key, measured_time in zip(missing, measured, strict=True):
            if isinstance(measured_time, str):
                problems[key] = measured_time
            else:
                times[key] = self._fresh[key] = measured_time
        new = {key: times[key] for key in missing if key in times}
        self._store.add({key: time for key, time in new.items() if _is_steady(time, kind)})
        return times, problems

    def _host_s(self, launches: int) -> float | None:
        """About the CPU's seconds to launch so many kernels, at its speed now; None if unknown."""
        speed = SmallStepSpeed(self._device)
        try:
            return launches / REFERENCE_LAUNCHES * speed.slowdown() * REFERENCE_S
        except RuntimeError:  # the device has no memory for the small step
            return None
        finally:
            speed.forget()


def predicted_of(
    traced: Trace, times: Mapping[str, CallTime], problems: Mapping[str, str]
) -> Predicted:
    """The sum of a step's calls, of which `times` and `problems` have each by key: seconds, bytes.

    The interval is from the least to the largest round, and GPU_ERROR more; None where calls have
    no time.
    """
    keys = [key_of(traced.case, op) for op in traced.launched]
    launched = list(zip(traced.launched, keys, strict=True))
    known = [times[key] for key in keys if key in times]
    middle_s = math.fsum(median(time.times_s) for time in known)
    rounds_s = [
        math.fsum(time.times_s[number % len(time.times_s)] for time in known)
        for number in range(max((len(time.times_s) for time in known), default=1))
    ]
    ends = ((1 - GPU_ERROR) * min(rounds_s), (1 + GPU_ERROR) * max(rounds_s))
    scratch = {op.call.key: times[key].scratch_bytes for op, key in launched if key in times}
    lost = Counter((op.call.name, problems[key]) for op, key in launched if key in problems)
    return Predicted(
        middle_s,
        None if problems else ends,
        limit=None,
        speedup={},
        memory_bytes=traced.peak_bytes(scratch),
        uncovered=tuple(
            f"{count} x {name}: {why} ({count} of {len(keys)} calls)"
            for (name, why), count in lost.items()
        ),
        launches=round(sum(time.kernels for time in known)),
    )


def key_of(case: TrainCase, op: TracedOp) -> str:
    """The key of a call's time: the call, what the cache does not hold of it, TF32 if on, and the
    search for a convolution's algorithm unless it is the full one.
    """
    recipe = recipe_of(case)
    tf32 = recipe.tf32 and kind_of(op.call) == "product"
    search = ""
    if case.search != FULL and op.call.operator in CONVOLUTIONS:
        search = "short search" if algorithms_timed(recipe, case.search) else "no search"
    return " ".join(filter(None, ("tf32" * tf32, search, op.cold.key, op.call.key)))


def _is_steady(time: CallTime, kind: str) -> bool:
    if len(time.times_s) < 2:
        return False
    low, middle, high = quantiles(time.times_s, n=4)
    return high - low <= MAX_SPREAD[kind] * middle
