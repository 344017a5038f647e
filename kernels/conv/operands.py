"""The tensors of a convolution, and how `kernels.data` makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch

from kernels.case import Case
from kernels.conv import OUTPUT, Conv
from kernels.conv.shape import LEAST_BY_AXIS, ConvShape, by_axis
from kernels.data import choose, empty, scale

SAMPLED_IMAGES = {"cuda": 4, "cpu": 2}
SAMPLED_CHANNELS = {"cuda": 32, "cpu": 8}  # of a dimension of the output, or groups


@dataclass(frozen=True)
class SampledPart:
    """Part of a convolution to check the whole by: `images`, filters `ks`, channels `cs`, all
    indices.

    `w_cs` are the same channels as w counts them, within a group. `shape` is that of the part.
    `drawn` holds the part's two inputs as drawn, float32, before any rounding.
    """

    images: torch.Tensor
    ks: torch.Tensor
    cs: torch.Tensor
    w_cs: torch.Tensor
    shape: ConvShape
    drawn: dict[str, torch.Tensor]

    def part(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The sampled part of "x" [N, C, H, W], "w" [K, C/groups, R, S] or "y" [N, K, P, Q]."""
        if name == "w":
            return tensor[self.ks][:, self.w_cs]
        channels = self.cs if name == "x" else self.ks
        chosen = tensor if len(self.images) == tensor.shape[0] else tensor[self.images]
        return chosen[:, channels]


@dataclass(frozen=True)
class ConvOperands:
    """x[N, C, H, W], w[K, C/groups, R, S], y[N, K, P, Q]; stored as the layout says.

    In layout "nhwc" all three are torch channels_last, so that x is [N][H][W][C] in memory and w
    [K][R][S][C]. Two of them are inputs; the third is the output of the pass: y of fprop, x (the
    gradient) of dgrad, w (the gradient) of wgrad. `scale` is the ratio of the stored result to that
    of the values as drawn.
    """

    x: torch.Tensor
    w: torch.Tensor
    y: torch.Tensor
    shape: ConvShape
    which: str
    sample: SampledPart | None = None
    scale: float = 1.0

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The arguments of a user's function: (x, w), (dy, w) or (x, dy) by the pass."""
        return {"fprop": (self.x, self.w), "dgrad": (self.y, self.w), "wgrad": (self.x, self.y)}[
            self.which
        ]

    @property
    def named(self) -> dict[str, object]:
        """What a user's function may also ask for by name: `which` (the pass), `shape` (the
        ConvShape), and its stride, padding, dilation (a number, or rows and columns where they
        differ) and groups.
        """
        shape = self.shape
        both = {name: by_axis(getattr(shape, name)) for name in LEAST_BY_AXIS}
        numbers = {name: (rows, columns) if rows != columns else rows
                   for name, (rows, columns) in both.items()}  # fmt: skip
        return {"which": self.which, "shape": shape, **numbers, "groups": shape.groups}

    @property
    def output(self) -> torch.Tensor:
        return getattr(self, OUTPUT[self.which])

    @property
    def outputs(self) -> tuple[torch.Tensor]:
        return (self.output,)

    @property
    def convolutions(self) -> tuple[Self]:
        """What is checked: itself."""
        return (self,)

    def holding(self, result: torch.Tensor) -> Self:
        return replace(self, **{OUTPUT[self.which]: result})


def sample(problem: Conv, drawn: Callable[[str], torch.Tensor]) -> SampledPart:
    """What the output is checked by; `drawn` gives an input as drawn."""
    which, shape = problem.which, problem.shape
    inputs = {name: drawn(name) for name in problem.inputs}
    device = next(iter(inputs.values())).device
    few, groups = SAMPLED_CHANNELS[device.type], 1

    def part(size: int, count: int, whole: bool) -> torch.Tensor:  # what is summed over is whole
        return choose(size, size if whole else count, device)

    images = part(shape.n, SAMPLED_IMAGES[device.type], which == "wgrad")
    if shape.groups > 1:
        chosen = choose(shape.groups, few, device)
        groups = len(chosen)
        w_cs, w_ks = (
            torch.arange(size // shape.groups, device=device) for size in (shape.c, shape.k)
        )
        cs, ks = ((chosen[:, None] * len(own) + own).flatten() for own in (w_cs, w_ks))
    else:
        ks = part(shape.k, few, which == "dgrad")
        cs = w_cs = part(shape.c, few, which == "fprop")
    sizes = replace(shape, n=len(images), c=len(cs), k=len(ks), groups=groups)
    sampled = SampledPart(images, ks, cs, w_cs, sizes, {})
    sampled.drawn.update((name, sampled.part(name, tensor)) for name, tensor in inputs.items())
    return sampled


def operands(
    case: Case, tensors: dict[str, torch.Tensor], sample: SampledPart | None = None
) -> ConvOperands:
    problem = case.problem
    assert isinstance(problem, Conv)
    return ConvOperands(
        **tensors, shape=problem.shape, which=problem.which, sample=sample, scale=scale(case)
    )


def unfilled(case: Case, device: str) -> ConvOperands:
    """Operands of the case without values; on "meta" they have no memory either."""
    return operands(case, {name: empty(case, name, torch.device(device)) for name in "xwy"})
