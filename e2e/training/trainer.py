"""A network under a recipe: weights, master weights, optimizer, loss scale, and one step of it.

Every recipe goes through the same `step`; nothing in it waits for the device, except torch's loss
scaler with an unfused optimizer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from e2e.case import TrainCase
from e2e.data.loaders.device_copy import FixedBatch
from e2e.data.types import Loader
from e2e.networks.network import Network
from e2e.recipes import Recipe, algorithms_timed
from e2e.training.allreduce import wrap_ddp
from e2e.training.float8 import convert
from e2e.training.optimizer import RecipeOptimizer
from e2e.training.ranks import Ranks
from kernels.data import memory_format
from microbench.network.networks import tensors_in

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SEEDS_APART = 1_000_003  # the seeds of two ranks; those of repeats are 1 apart
PRE_CAPTURE_STEPS = 3  # on a side stream: workspaces and optimizer state must exist before capture

_numbers = itertools.count()


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures in a process: cuBLAS keeps memory for each stream used."""
    return torch.cuda.Stream(device)


Mark = Callable[[str], object]  # called with the name of each phase as it ends


def _unmarked(_: str) -> None:
    """No phases are timed."""


class Trainer:
    """One variant: `step(feed)` trains on the next batch and returns its loss, on the device.

    An evaluation has no optimizer; its step is the forward pass alone, and returns the output.
    Random numbers come from `seed`, so two variants of one network start from the same weights.
    `module` is the network if it exists already: on the device, in layout and storage.
    `float8` names the linear layers that FP8 is for, None all of them; NothingToConvert where the
    network has none.
    """

    def __init__(
        self,
        network: Network,
        case: TrainCase,
        recipe: Recipe,
        device: torch.device,
        *,
        seed: int,
        module: nn.Module | None = None,
        float8: Collection[str] | None = None,
    ) -> None:
        self.case, self.recipe, self.device, self.network = case, recipe, device, network
        self.steps_done, self._seed = 0, seed
        self._channels_last = case.layout == "nhwc"
        self.float8_layers: tuple[int, int] | None = None  # in FP8, and linear ones
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        self.set_backend_flags()
        if module is None:
            module = _in_layout(network.build(), case.layout).to(device)
            _store(module, recipe)
            if recipe.float8:
                module, self.float8_layers = convert(module, recipe.float8, case.batch, float8)
        self.module = self._called = module
        self._optimizer: RecipeOptimizer | None = None
        eager: Callable[..., Any] = Trainer._eager_output
        if case.evaluation:
            module.eval()
        else:
            eager = Trainer._eager_loss
            self._optimizer = RecipeOptimizer(
                [weight for weight in self.module.parameters() if weight.requires_grad],
                case, recipe,
                lr=network.lr if case.lr is None else case.lr, weight_decay=network.weight_decay,
            )  # fmt: skip
        self._run: Callable[[Tensor, Tensor], Any] = MethodType(eager, self)
        if case.compile:
            self._run = torch.compile(MethodType(_with_code_of_its_own(eager), self), dynamic=False)
        self._captured: _Captured | None = None
        self.ranks = Ranks.alone(device)
        self.ddp_model: Any = None  # the module as DistributedDataParallel has it

    # ------------------------------------------------------------ a step

    @property
    def optimizer(self) -> RecipeOptimizer:
        """Of a training; an evaluation has none."""
        assert self._optimizer is not None
        return self._optimizer

    def step(
        self,
        feed: Loader,
        mark: Mark = _unmarked,
        *,
        uncaptured: bool = False,
        exchange: bool = True,
    ) -> Any:
        """Train on the next `accumulate` batches; the mean loss, a scalar on the device.

        `uncaptured`: launch it call by call even where it has been captured. Over several ranks the
        loss is that of this rank's batches. Without `exchange` its gradients are too: ranks differ
        then until `broadcast_state`.
        """
        if self._optimizer:
            self._optimizer.set_rate(self.steps_done)
        if self._captured is None or uncaptured:
            result = self._launch(feed, mark, exchange)
        else:
            result = self._replay(feed, mark)
        self.steps_done += 1
        return result

    def _launch(self, feed: Loader, mark: Mark, exchange: bool = True) -> Any:
        if self.case.evaluation:
            inputs, targets = self._next_batch(feed, mark)
            # torchao's layers do not run in inference mode
            with torch.no_grad() if self.recipe.float8 else torch.inference_mode():
                output = self._run(inputs, targets)
            mark("forward")
            return output
        self.optimizer.clear()
        total: Tensor | None = None
        for left in reversed(range(self.case.accumulate)):
            inputs, targets = self._next_batch(feed, mark)
            with self._exchanging(exchange and not left):
                loss = self._run(inputs, targets) / self.case.accumulate
                mark("forward")
                self.optimizer.backward(loss)
                mark("backward")
            total = loss.detach() if total is None else total + loss.detach()
        self.optimizer.apply()
        mark("optimizer")
        return total

    def _next_batch(self, feed: Loader, mark: Mark = _unmarked) -> tuple[Tensor, Tensor]:
        batch = next(feed)
        mark("data")
        placed = feed.to_device(batch, self._channels_last)
        mark("copy")
        return placed

    def _exchanging(self, exchange: bool) -> AbstractContextManager[object]:
        """Where gradients of several ranks are added up, unless not: of a step's last batch."""
        return nullcontext() if self.ddp_model is None or exchange else self.ddp_model.no_sync()

    def _eager_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        output = self.forward(inputs, self._called)
        return self.network.loss(output, targets)

    def _eager_output(self, inputs: Tensor, _targets: Tensor) -> Any:
        return self.forward(inputs)

    def forward(self, inputs: Tensor, through: nn.Module | None = None) -> Any:
        """The network's output, in the recipe's precision, for a feed's inputs [batch, ...].

        `through` is what is called in the module's place.
        """
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=memory_format(self.case.layout))
        if inputs.is_floating_point():
            inputs = inputs.to(DTYPES[self.recipe.weights])
        with self._autocast():
            return (self.module if through is None else through)(inputs)

    def _autocast(self) -> Any:
        if self.recipe.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, DTYPES[self.recipe.autocast])

    # ------------------------------------------------------------ over several ranks

    def join(self, ranks: Ranks) -> None:
        """From now on its steps are of all ranks, from the weights of rank 0. All ranks call it."""
        self.ranks = ranks
        if ranks.world == 1:
            return
        self.broadcast_state()
        self.ddp_model = self._called = wrap_ddp(self.module, ranks, self.case.compress)
        self._draw_apart()

    def try_alone(self, feed: Loader) -> None:
        """Forward and backward of this rank's batch, without an exchange and without an update.

        Whether it fits the memory is seen before other ranks wait for it.
        """
        with self._exchanging(exchange=False):
            self.optimizer.backward(self._run(*self._next_batch(feed)))
        self.optimizer.clear()

    def _draw_apart(self) -> None:
        """From now on each rank draws random numbers of its own, such as masks of dropout."""
        if self.ranks.rank:
            seed = self._seed + self.ranks.rank * SEEDS_APART
            torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]

    def broadcast_state(self) -> None:
        """Give all ranks the weights, buffers, masters and optimizer state of rank 0."""
        self.ranks.broadcast_state(self.module.parameters())
        self.ranks.broadcast_state(self.module.buffers())
        self.ranks.broadcast_state(self.optimizer.state())

    # ------------------------------------------------------------ a captured step

    def capture(self, feed: Loader) -> None:
        """Record a whole step as a CUDA graph; later steps replay it on new data.

        Takes PRE_CAPTURE_STEPS steps. RuntimeError where something in the step cannot be captured.
        """
        assert self.case.accumulate == 1, "refused when planned"
        source, targets = self._next_batch(feed)
        repeat = FixedBatch(source.clone(memory_format=torch.preserve_format), targets.clone())
        batch = repeat.to_device(None, self._channels_last)  # laid out: what the graph reads
        side = capture_stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(PRE_CAPTURE_STEPS):
                self.step(repeat)
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # A loader's threads go on decoding and pinning memory, which "global" would forbid them.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            result = self._launch(repeat, _unmarked)
        self._captured = _Captured(graph, batch, result, source)

    def _replay(self, feed: Loader, mark: Mark) -> Any:
        captured = self._captured
        assert captured is not None
        fetched = next(feed)
        mark("data")
        placed = feed.to_device(fetched, self._channels_last)
        if placed[0] is not captured.placed:  # a fixed batch is already in place
            captured.placed = placed[0]
            for fixed, fresh in zip(captured.batch, placed, strict=True):
                fixed.copy_(fresh)
        mark("copy")
        captured.graph.replay()
        mark("graph")
        return captured.result

    # ------------------------------------------------------------ around steps

    @property
    def skipped_steps(self) -> int:
        """The number of updates that the loss scale skipped so far. Waits for the device."""
        return self._optimizer.skipped if self._optimizer else 0

    @property
    def waits(self) -> bool:
        """Whether a step waits for the device; see `RecipeOptimizer.waits`."""
        return self._optimizer is not None and self._optimizer.waits

    @torch.no_grad()
    def is_finite(self, feed: Loader) -> bool:
        """Whether all weights are finite, or of an evaluation an output. Waits for the device."""
        values = self.step(feed) if self.case.evaluation else list(self.module.parameters())
        tensors = [tensor for tensor in tensors_in(values) if tensor.is_floating_point()]
        return bool(torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all().item())

    def set_backend_flags(self) -> None:
        """Set this process's TF32 and cuDNN switches for the recipe: variants share the process."""
        set_backend_flags(self.recipe, self.device.type, self.case.search)

    @torch.no_grad()
    def restart(self, seed: int, steps: int | None = None) -> None:
        """Begin again from the weights of a seed, in place: what was compiled or captured stays.

        A schedule of the learning rate is over `steps` steps; without them the rate is constant.
        """
        self._seed = seed
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        with self.ranks.fail_together():
            fresh = _in_layout(self.network.build(), self.case.layout).state_dict()
        for name, value in self.module.state_dict().items():
            value.copy_(fresh[name])
        self.optimizer.restart(steps)
        self.broadcast_state()
        self._draw_apart()
        self.steps_done = 0

    @torch.no_grad()
    def evaluate(
        self, batches: Iterator[tuple[Tensor, Tensor]]
    ) -> tuple[float | None, float | None]:
        """(mean loss, accuracy from 0 to 1) over held-out batches, in the recipe's precision.

        The accuracy is None for a network without one, the loss where it is not finite. Of several
        ranks each gives its own batches, and all have the buffers of rank 0.
        """
        self.ranks.broadcast_state(self.module.buffers())
        self.module.eval()
        count = self.network.accuracy
        try:
            loss = torch.zeros((), dtype=torch.float64, device=self.device)
            # Samples, and those of them that were right, or have no right and wrong.
            seen, right, neither = torch.zeros(3, dtype=torch.int64, device=self.device)
            for inputs, targets in batches:
                output = self.forward(inputs)
                seen += len(inputs)
                loss += self.network.loss(output, targets).double() * len(inputs)
                hits = count and count(output, targets)
                if hits is None:
                    neither += len(inputs)
                else:
                    right += hits
            self.ranks.sums(loss, seen, right, neither)  # also on one without a batch
        finally:
            self.module.train()
        mean = loss.item() / seen.item()
        share = None if neither.item() else right.item() / seen.item()
        return (mean if math.isfinite(mean) else None), share


@dataclass
class _Captured:
    """A step as a CUDA graph: it reads `batch`, a copy of what was `placed`; writes `result`."""

    graph: torch.cuda.CUDAGraph
    batch: tuple[Tensor, Tensor]
    result: Any
    placed: Tensor


# ---------------------------------------------------------------- what a recipe sets in its process


def set_backend_flags(recipe: Recipe, kind: str, search: str | None) -> None:
    """Set this process's switches as the recipe wants them, for a kind of device.

    `search` is as for `algorithms_timed`.
    """
    set_tf32(recipe.tf32)
    if kind == "cuda":
        timed = algorithms_timed(recipe, search)
        torch.backends.cudnn.benchmark = timed is not None
        if timed is not None:
            torch.backends.cudnn.benchmark_limit = timed


def set_tf32(on: bool) -> None:
    """Allow or forbid TF32 in this process: in cuBLAS, in cuDNN, and in what torch.compile makes.

    PyTorch's defaults mix the two (cuDNN's on, cuBLAS's off); here both are always set. The older
    switches are used because torch.compile reads them, and refuses a mix of old and new.
    """
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


# ---------------------------------------------------------------- parts


def _with_code_of_its_own(shared: Any) -> FunctionType:
    """The method as a function that no other variant has.

    Dynamo keeps what it compiles by code object, at most eight a piece, and looks through them at
    every call: variants that share one would slow each other, and the ninth would run eagerly.
    """
    code = shared.__code__.replace(co_name=f"{shared.__name__}_{next(_numbers)}")
    return FunctionType(code, shared.__globals__, code.co_name, None, shared.__closure__)


def _in_layout(module: nn.Module, layout: str) -> nn.Module:
    return module.to(memory_format=torch.channels_last) if layout == "nhwc" else module  # type: ignore[call-overload]


def storage(layer: nn.Module, recipe: Recipe) -> torch.dtype:
    """The dtype of a layer's weights and buffers; batch-norm has its own."""
    return DTYPES[recipe.batchnorm if isinstance(layer, _NormBase) else recipe.weights]


@torch.no_grad()
def _store(module: nn.Module, recipe: Recipe) -> None:
    """Weights and buffers in the recipe's storage, never rounded between."""
    if recipe.weights == "fp32":
        return
    for child in module.modules():
        own = (*child.parameters(recurse=False), *child.buffers(recurse=False))
        for tensor in own:
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(storage(child, recipe))
