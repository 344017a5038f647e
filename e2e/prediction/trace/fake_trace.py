"""The ATen calls of one training step, recorded without running it: under fake tensors.

Nothing is allocated, so a batch larger than the memory can be traced.

Known difference from a real step: a view that is changed in place, as by an in-place dropout after
a flatten. In the backward pass autograd fills zeros and copies into them (`as_strided`) for a real
tensor; for a fake one, a subclass, it only makes the view again. The trace misses these two small
launches.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from e2e.aten import CannotReplay, kind_of
from e2e.case import TrainCase
from e2e.data.loaders.device_copy import FixedBatch
from e2e.data.types import laid_out
from e2e.networks.network import Network
from e2e.prediction.trace.recorder import Recorder, TracedOp, cache_bytes
from e2e.recipes import DYNAMIC, Recipe, recipe_of
from e2e.training.trainer import Trainer, storage
from kernels.conv.operands import memory_format
from kernels.error_words import one_line
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


class CannotTrace(Exception):
    """Fake tensors cannot follow the network; the message is the reason shown to the user."""


def trace(network: Network, case: TrainCase, device: torch.device, classes: int) -> Trace:
    """Record a step without running it. CannotTrace where only a real step can tell."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with silent():
        try:
            module = _built(network, fake)
            # torch asks where the weights of cuDNN's recurrent layers lie, and copies them where
            # that is not in one piece; and it keeps their dropout's state for the whole process.
            recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
            if recurrent and device.type == "cuda":
                raise CannotTrace("cuDNN's recurrent layers need weights that are in memory")
            # One thread: fake tensors live in the mode of the thread that made them.
            with torch.autograd.set_multithreading_enabled(False), fake:
                _move(module, case, recipe_of(case), device)
                return _recorded(network, case, device, classes, module)
        except CannotTrace:
            raise
        except Exception as error:
            told = isinstance(error, CannotReplay)
            raise CannotTrace(str(error) if told else one_line(error)) from error


def _built(network: Network, fake: FakeTensorMode) -> nn.Module:
    """The network with fake weights; with real ones on the CPU where its builder needs them."""
    try:
        with BuildMode(fake):
            return network.build()
    except Exception:
        return network.build()


def trace_real(network: Network, case: TrainCase, device: torch.device, classes: int) -> Trace:
    """Record a step while it runs. Raises what the step raises."""
    return _recorded(network, case, device, classes, None)


def _recorded(
    network: Network, case: TrainCase, device: torch.device, classes: int, module: nn.Module | None
) -> Trace:
    """Record the second step: the first one creates state that later steps find."""
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
