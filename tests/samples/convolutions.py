"""Operands of convolutions, and launches of the Gluon kernels carried out by torch on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

from kernels.conv import OUTPUT, Conv
from kernels.conv.operands import ConvOperands
from kernels.conv.shape import ConvShape
from kernels.precision import Precision
from kernels.triton_util import Step


def operands(shape: ConvShape, which: str, kind: Precision) -> ConvOperands:
    """Drawn, the output NaN."""
    torch.manual_seed(0)
    x, w, y = (
        torch.randn(Conv(shape, which).stored(name))
        .to(kind.torch_dtype("output" if name == OUTPUT[which] else "storage"))
        .contiguous(memory_format=torch.channels_last)
        for name in "xwy"
    )
    found = ConvOperands(x, w, y, shape, which)
    found.output.fill_(float("nan"))
    return found


def by_torch(drawn: ConvOperands) -> Tensor:
    """What torch makes of the inputs in float64."""
    shape, x, w, y = drawn.shape, drawn.x.double(), drawn.w.double(), drawn.y.double()
    how = (shape.strides, shape.paddings, shape.dilations, shape.groups)
    if drawn.which == "fprop":
        return conv2d(x, w, None, *how)
    if drawn.which == "dgrad":
        return conv2d_input(x.shape, w, y, *how)
    return conv2d_weight(x, w.shape, y, *how)


def carry_out(steps: Sequence[Step]) -> None:
    """Run the steps of a bound configuration. KeyError for a kernel that is not known here."""
    for step in steps:
        names = step.kernel.arg_names  # type: ignore[attr-defined]
        arguments = SimpleNamespace(**dict(zip(names, step.args, strict=True)))
        KERNELS[step.kernel.__name__](arguments, step)


def _pad_pixels(a: Any, step: Step) -> None:
    a.copied.zero_()
    a.copied.view(-1, a.APART)[:, : a.CHANNELS] = a.source.reshape(-1, a.CHANNELS)
    assert a.words == a.copied.numel()
    assert step.grid[0] * a.BLOCK >= a.words


def _swap_filters(a: Any, step: Step) -> None:
    w = a.w.permute(0, 2, 3, 1).reshape(a.K, a.TAPS, a.C)
    a.swapped.copy_(w.permute(2, 1, 0).reshape(-1))


def _conv_gluon(a: Any, step: Step) -> None:
    table = a.table.view(-1, 4).tolist()
    starts = a.starts.tolist()
    xs = [a.x0, a.x1, a.x2, a.x3][: a.VIEWS]
    assert a.tiles == a.of_parity * a.PARITIES
    for tile in range(a.tiles):
        parity, place = divmod(tile, a.of_parity)
        place, k = divmod(place, a.tiles_k)
        place, w = divmod(place, a.tiles_w)
        n, h = divmod(place, a.tiles_h)
        at = (n * a.BN, h * a.BH, w * a.BW, k * (a.N0 + a.N1))
        sums = torch.zeros(a.BN * a.BH * a.BW, a.N0 + a.N1, dtype=torch.float64)
        for entry in table[starts[parity] : starts[parity + 1]]:
            sums += _tap(a, xs, entry, at)
        _store(a, sums, parity, starts[5 + parity], at)


def _tap(a: Any, xs: Sequence[Any], entry: Sequence[int], at: Sequence[int]) -> torch.Tensor:
    view, row, column, tap = entry
    total = torch.zeros((), dtype=torch.float64)
    for block in range(a.STEPS):
        c, depth = block * a.BC, a.LAST if block == a.STEPS - 1 else a.BC
        pixels = _box(xs[view], (at[0], at[1] + row, at[2] + column, c))
        columns = [
            _box(w, (at[3] + first, tap, c)).squeeze(1).T
            if a.K_MAJOR
            else _box(w, (c, tap, at[3] + first)).squeeze(1)
            for w, first in ((a.w0, 0), (a.w1, a.N0))[: 1 + (a.N1 > 0)]
        ]
        total = total + pixels.reshape(-1, a.BC)[:, :depth] @ torch.cat(columns, 1)[:depth]
    return total


def _box(descriptor: Any, at: Sequence[int]) -> torch.Tensor:
    """What TMA loads, as float64. RuntimeError for a descriptor that leaves its memory."""
    d = descriptor
    whole = torch.as_strided(d.base, d.shape, d.strides, d.base.storage_offset())
    box = torch.zeros(d.block_shape, dtype=torch.float64)
    inside = _inside(d, at)
    box[tuple(slice(lo - i, hi - i) for i, (lo, hi) in zip(at, inside, strict=True))] = whole[
        tuple(slice(lo, hi) for lo, hi in inside)
    ].double()
    return box


def _inside(d: Any, at: Sequence[int]) -> list[tuple[int, int]]:
    """The part of a box that lies in the tensor, from and to along each dimension."""
    found = []
    for i, block, size in zip(at, d.block_shape, d.shape, strict=True):
        low = min(max(i, 0), i + block)
        found.append((low, max(low, min(i + block, size))))
    return found


def _store(a: Any, sums: torch.Tensor, parity: int, start: int, at: Sequence[int]) -> None:
    if a.WORD == 0:
        parts = ("y", 0, a.N0), ("t", a.N0, a.N1)
        for name, first, width in parts[: 1 + (a.N1 > 0)]:
            d = getattr(a, f"{name}{parity}")
            assert d.block_shape[-1] == width
            box = sums[:, first : first + width].reshape(d.block_shape)
            corner = (*at[:3], at[3] + first)
            inside = _inside(d, corner)
            whole = torch.as_strided(d.base, d.shape, d.strides, d.base.storage_offset())
            whole[tuple(slice(lo, hi) for lo, hi in inside)] = box[
                tuple(slice(lo - i, hi - i) for i, (lo, hi) in zip(corner, inside, strict=True))
            ].to(whole.dtype)
        return
    channels = a.words * a.WORD
    out = a.out.permute(0, 2, 3, 1).reshape(a.N, a.H, a.W, channels)
    assert out.data_ptr() == a.out.data_ptr()
    stride = 2 if a.PARITIES > 1 else 1
    boxes = product(range(a.BN), range(a.BH), range(a.BW))
    for pixel, (i, j, m) in enumerate(boxes):
        n, h, w = at[0] + i, (at[1] + j) * stride + start // 2, (at[2] + m) * stride + start % 2
        if n < a.N and h < a.H and w < a.W:
            last = min(channels, at[3] + a.N0 + a.N1)
            out[n, h, w, at[3] : last] = sums[pixel, : last - at[3]].to(out.dtype)


KERNELS = {"pad_pixels": _pad_pixels, "swap_filters": _swap_filters, "conv_gluon": _conv_gluon}
