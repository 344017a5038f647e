"""The tensors of a convolution: made once for all variants of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from kernels.case import Case, Target
from kernels.conv.shape import LEAST_BY_AXIS, ConvShape, by_axis
from kernels.data import choose, draw, storage_factor, store

OUTPUT = {"fprop": "y", "dgrad": "x", "wgrad": "w"}
INPUTS = {"fprop": ("x", "w"), "dgrad": ("w", "y"), "wgrad": ("x", "y")}
SAMPLED_IMAGES = {"cuda": 4, "cpu": 2}
SAMPLED_CHANNELS = {"cuda": 32, "cpu": 8}  # of a dimension of the output, or groups


@dataclass(frozen=True)
class Sample:
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
    sample: Sample | None = None
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
        """What the pass writes: y [N, K, P, Q], x [N, C, H, W] or w [K, C/groups, R, S]."""
        return getattr(self, OUTPUT[self.which])

    def holding(self, result: torch.Tensor) -> Self:
        """The same with another output."""
        return replace(self, **{OUTPUT[self.which]: result})


class OperandPool:
    """Operands of one problem. Every precision stores the same drawn tensors.

    Variants with the same storage share memory, so that placement cannot look like a difference
    between kernels.
    """

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.device = torch.device(target.torch_device)
        self.seed = seed
        self.clear()

    def clear(self) -> None:
        """Free the tensors; the next problem draws new values."""
        self.group: str | None = None
        self.sample: Sample | None = None
        self.tensors: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self.seed += 3

    def get(self, case: Case) -> ConvOperands:
        """The operands of the case. Raises torch.OutOfMemoryError when they do not fit."""
        if case.group != self.group:
            self.clear()
            self.group = case.group
        which, shape = str(case.dims["pass"]), ConvShape.of(case)
        if self.sample is None:
            self.sample = self._sample(case, which, shape)
        storage, output = case.precision.torch_dtype(), case.precision.torch_dtype("output")
        tensors = {name: self._input(case, name, shape, storage) for name in INPUTS[which]}
        tensors[OUTPUT[which]] = self._output(case, OUTPUT[which], shape, output)
        scale = storage_factor(storage, case.data) ** 2
        return ConvOperands(**tensors, shape=shape, which=which, sample=self.sample, scale=scale)

    def _input(self, case: Case, name: str, shape: ConvShape, dtype: torch.dtype) -> torch.Tensor:
        key = (name, dtype)
        if key not in self.tensors:
            stored = store(self._drawn(case, name, shape), dtype, case.data)
            self.tensors[key] = stored.contiguous(memory_format=memory_format(case.layout))
        return self.tensors[key]

    def _output(self, case: Case, name: str, shape: ConvShape, dtype: torch.dtype) -> torch.Tensor:
        key = (name, dtype)
        if key not in self.tensors:
            form = memory_format(case.layout)
            self.tensors[key] = torch.empty(
                sizes(name, shape), dtype=dtype, device=self.device, memory_format=form
            )
        return self.tensors[key]

    def _drawn(self, case: Case, name: str, shape: ConvShape) -> torch.Tensor:
        """The tensor as drawn, the same at every call."""
        rng = torch.Generator(self.device).manual_seed(self.seed + "xwy".index(name))
        return draw(sizes(name, shape), case.data, rng)

    def _sample(self, case: Case, which: str, shape: ConvShape) -> Sample:
        images, ks, cs, w_cs, groups = _choose_part(which, shape, self.target.kind, self.device)
        part = replace(shape, n=len(images), c=len(cs), k=len(ks), groups=groups)
        sample = Sample(images, ks, cs, w_cs, part, {})
        for name in INPUTS[which]:
            sample.drawn[name] = sample.part(name, self._drawn(case, name, shape))
        return sample


def without_memory(case: Case) -> ConvOperands:
    """Operands of the case on torch's meta device: sizes and strides, to compile for."""
    which, shape, kind = str(case.dims["pass"]), ConvShape.of(case), case.precision

    def tensor(name: str) -> torch.Tensor:
        dtype = kind.torch_dtype("output" if name == OUTPUT[which] else "storage")
        form = memory_format(case.layout)
        return torch.empty(sizes(name, shape), dtype=dtype, device="meta", memory_format=form)

    return ConvOperands(tensor("x"), tensor("w"), tensor("y"), shape, which)


def memory_format(layout: str) -> torch.memory_format:
    """torch's memory format of a layout: channels_last for "nhwc", contiguous for "nchw"."""
    return torch.channels_last if layout == "nhwc" else torch.contiguous_format


def sizes(name: str, shape: ConvShape) -> Sequence[int]:
    """The sizes of "x" (N, C, H, W), "w" (K, C/groups, R, S) or "y" (N, K, P, Q)."""
    return {
        "x": (shape.n, shape.c, shape.h, shape.w),
        "w": (shape.k, shape.c // shape.groups, shape.r, shape.s),
        "y": (shape.n, shape.k, shape.p, shape.q),
    }[name]


def _choose_part(
    which: str, shape: ConvShape, kind: str, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """(images, ks, cs, w_cs, groups) of a sample; what is summed over is taken whole."""
    few, every = SAMPLED_CHANNELS[kind], torch.arange
    images = (
        every(shape.n, device=device)
        if which == "wgrad"
        else choose(shape.n, SAMPLED_IMAGES[kind], device)
    )
    if shape.groups > 1:
        chosen = choose(shape.groups, few, device)
        per_group = {name: getattr(shape, name) // shape.groups for name in ("c", "k")}
        cs, ks = (
            (chosen[:, None] * size + every(size, device=device)).flatten()
            for size in per_group.values()
        )
        return images, ks, cs, every(per_group["c"], device=device), len(chosen)
    ks = every(shape.k, device=device) if which == "dgrad" else choose(shape.k, few, device)
    cs = every(shape.c, device=device) if which == "fprop" else choose(shape.c, few, device)
    return images, ks, cs, cs, 1
