"""Input data: how values are drawn, how a precision stores them, and who shares them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from kernels.case import Case, Target

INT8_STD = 32.0  # standard deviation of normal int8 data; +-127 is four of them
# float64 inputs are the float32 master times this, which fills all their bits: short mantissas
# would switch fewer transistors.
FP64_FACTOR = math.pi / 3


def draw(shape: Sequence[int], data: str, rng: torch.Generator) -> torch.Tensor:
    """Random float32 values [*shape] on the generator's device.

    `data` is "normal" (mean 0, standard deviation 1), "uniform" in [-1, 1), "integers" -8..8,
    "zeros".
    """
    device = rng.device
    if data == "zeros":
        return torch.zeros(*shape, device=device)
    if data == "integers":
        return torch.randint(-8, 9, tuple(shape), generator=rng, device=device).float()
    if data == "uniform":
        return torch.rand(*shape, generator=rng, device=device) * 2 - 1
    return torch.randn(*shape, generator=rng, device=device)


def storage_factor(dtype: torch.dtype, data: str) -> float:
    """What drawn values are multiplied by before they are rounded to a storage dtype: pi/3 for
    float64, 32 (normal) or 127 (uniform) for int8, else 1.
    """
    if dtype == torch.float64:
        return FP64_FACTOR
    if dtype == torch.int8 and data in ("normal", "uniform"):
        return INT8_STD if data == "normal" else 127.0
    return 1.0


def scale(case: Case) -> float:
    """The ratio of a stored product to that of the values as drawn."""
    dtypes = (case.precision.torch_dtype(which) for which in ("storage", "storage_b"))
    return math.prod(storage_factor(dtype, case.data) for dtype in dtypes)


def store(drawn: torch.Tensor, dtype: torch.dtype, data: str) -> torch.Tensor:
    """Drawn float32 values in a storage dtype, times `storage_factor`; strides are kept. int8 is
    rounded to the nearest and clamped to +-127.
    """
    factor = storage_factor(dtype, data)
    if dtype == torch.float64:
        return drawn.double() * factor
    if dtype == torch.int8:
        return (drawn * factor).round().clamp(-127, 127).to(dtype)
    return drawn.to(dtype)


def memory_format(layout: str) -> torch.memory_format:
    """torch's memory format of a layout: channels_last for "nhwc", contiguous for others."""
    return torch.channels_last if layout == "nhwc" else torch.contiguous_format


def empty(case: Case, name: str, device: torch.device) -> torch.Tensor:
    """Memory for a tensor of a case, as its layout and precision store it."""
    problem = case.problem
    dtype, form = case.precision.torch_dtype(problem.held(name)), memory_format(problem.layout)
    return torch.empty(problem.stored(name), dtype=dtype, device=device, memory_format=form)


def choose(size: int, count: int, device: torch.device) -> torch.Tensor:
    """At most `count` sorted int64 indices below `size`: all, or random with the first and last."""
    if size <= count:
        return torch.arange(size, device=device)
    chosen = torch.randperm(size, device=device)[:count]
    chosen[0], chosen[-1] = 0, size - 1
    return chosen.unique()


class OperandPool:
    """Operands of one problem. Every precision stores the same drawn tensors.

    Variants with the same storage share memory: two variants of one kernel read the same addresses,
    so that placement in memory cannot look like a difference between kernels.
    """

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.device = torch.device(target.torch_device)
        self.seed = seed
        self.clear()

    def clear(self) -> None:
        """Free the tensors; the next problem draws new values."""
        self.group: str | None = None
        self.sample: Any = None
        self.tensors: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self.seed += 3

    def get(self, case: Case) -> Any:
        """The operands of the case, of the class that its op has. Raises torch.OutOfMemoryError
        when they do not fit.
        """
        if case.group != self.group:
            self.clear()
            self.group = case.group
        rules, problem = import_module(f"kernels.{case.op}.operands"), case.problem
        if self.sample is None:
            self.sample = rules.sample(problem, lambda name: self._drawn(case, name))
        tensors: dict[str, torch.Tensor] = {}
        for name in (*problem.inputs, *problem.outputs):
            kept = name, case.precision.torch_dtype(problem.held(name))
            if kept not in self.tensors:
                self.tensors[kept] = (
                    empty(case, name, self.device)
                    if name in problem.outputs
                    else store(self._drawn(case, name), kept[1], case.data)
                )
            tensors[name] = self.tensors[kept]
        return rules.operands(case, tensors, self.sample)

    def _drawn(self, case: Case, name: str) -> torch.Tensor:
        """The tensor as drawn, as the layout stores it; the same at every call."""
        problem, rng = case.problem, torch.Generator(self.device)
        rng.manual_seed(self.seed + list(problem.inputs).index(name))
        drawn = draw(problem.stored(name), case.data, rng)
        return problem.viewed(name, drawn.contiguous(memory_format=memory_format(problem.layout)))
