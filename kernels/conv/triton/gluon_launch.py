"""The Gluon kernel of fprop and dgrad: binds a configuration to tensors. Views, copies, grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, prod

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.conv.operands import ConvOperands
from kernels.conv.triton import data_kernels as jit
from kernels.conv.triton import gluon_config as cfg
from kernels.conv.triton.data_config import Config, Sum
from kernels.conv.triton.gluon_kernel import conv_gluon
from kernels.conv.triton.padding import padded
from kernels.precision import Precision
from kernels.triton_util import Step

VIEWS = cfg.MOST_STRIDE**2  # arguments that the kernel has for views
SWAP_BLOCK = 32
PACK_BLOCK = 1024
DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32}


def bind(
    config: Config, operands: ConvOperands, precision: Precision, sm_count: int
) -> Sequence[Step]:
    """The launches of one pass, in order; scratch is allocated here (torch.OutOfMemoryError).

    `config` must be valid for the operands' shape and pass. x [N, C, H, W], w [K, C, R, S] and y
    [N, K, P, Q] must be channels_last.
    """
    what = Sum(operands.shape, operands.which, precision.bytes_per_element)
    inputs = _inputs(config, operands, what)
    parities, used, views = inputs.parities, inputs.used, inputs.views
    depth, group_k = what.block(config.bk)
    head, tail = cfg.halves(config.bk)
    thin = tail or cfg.LEAST_WIDTH  # of buffers that no tail uses
    word = cfg.word(what.k, what.element_bytes)
    args = (
        *_four([_view(inputs.x, view, (*config.box, config.bc)) for view in views]),
        *(_filters(inputs, config, width) for width in (head, thin)),
        *_outputs(operands.output, what, parities, (*config.box, head // config.split)),
        *(_outputs(operands.output, what, parities, (*config.box, tail)) if tail else _four([])),
        operands.output, *_tables(parities, used, inputs.x.device),
        *what.whole_output, what.k // (word or 1), *_walk(config, what, len(parities)),
        group_k, depth,
        *config.box, config.bc, *cfg.depths(depth, config.bc, what.element_bytes),
        head, tail, config.stages, config.split, len(used), len(parities), word, inputs.k_major,
    )  # fmt: skip
    options = {"num_warps": config.warps}
    if config.per_sm > 1:
        options["maxnreg"] = cfg.registers(config)
    grid = (min(what.tiles(config), sm_count * config.per_sm),)
    return [*inputs.steps, Step(conv_gluon, grid, args, options)]


@dataclass(frozen=True)
class _Inputs:
    """What the kernel reads, and the launches that prepare it.

    `views` of x are those of the parities `used`, in this order. `weights` are the sizes of
    w; `k_major`: what is added up is adjacent.
    """

    x: torch.Tensor
    views: Sequence[cfg.View]
    parities: Sequence[cfg.Parity]
    used: Sequence[tuple[int, int]]
    w: torch.Tensor
    weights: tuple[int, int, int]  # rows, taps, elements of a tap
    k_major: bool
    steps: Sequence[Step]


def _inputs(config: Config, operands: ConvOperands, what: Sum) -> _Inputs:
    """Pixels and weights as they are, or in padded copies."""
    source = operands.y if what.dgrad else operands.x
    x, apart, copies = padded(source, prod(what.image), what.c, lines=config.padded)
    w, row, k_major, prepared = _weights(operands, what, config.bk)
    parities = cfg.parities(what)
    used = _used(parities)
    step = 1 if what.dgrad else what.shape.stride
    views = [cfg.view(what.image, apart, apart, step, *at) for at in used]
    weights = (what.k if k_major else what.c, what.shape.r * what.shape.s, row)
    return _Inputs(
        x, views, parities, used, w, weights, k_major, (*copies, *prepared)
    )  # fmt: skip


def _used(parities: Sequence[cfg.Parity]) -> list[tuple[int, int]]:
    return list(dict.fromkeys(tap[0] for each in parities for tap in each.taps)) or [(0, 0)]


def _walk(config: Config, what: Sum, parities: int) -> tuple[int, ...]:
    """Tiles in all and of one parity; along output channels, columns and rows."""
    n, h, w = (ceil(size / box) for size, box in zip(what.output, config.box, strict=True))
    k = ceil(what.k / config.bk)
    return n * h * w * k * parities, n * h * w * k, k, w, h


def _weights(
    operands: ConvOperands, what: Sum, bk: int
) -> tuple[torch.Tensor, int, bool, Sequence[Step]]:
    """(weights, elements from row to row, whether what is added up is adjacent, steps): rows of
    [K, taps, C] start on 16 bytes.

    dgrad reads them as they are, [C, taps, K] of its own sum, but in tf32, whose wgmma wants
    operands that are adjacent along what is added up. C is that of a block of groups.
    """
    s, w = what.shape, operands.w
    taps = s.r * s.s
    if what.packs(bk):
        return _packed(w, what, bk)
    if not what.dgrad or what.element_bytes == 2:
        flat, row, steps = padded(w, s.k * taps, s.c // s.groups)
        return flat, row, not what.dgrad, steps
    swapped = torch.empty(s.c * taps * s.k, dtype=w.dtype, device=w.device)
    grid = (ceil(s.k / SWAP_BLOCK), ceil(s.c / SWAP_BLOCK), taps)
    args = (w, swapped, s.k, taps, s.c, SWAP_BLOCK, SWAP_BLOCK)
    swap = Step(jit.swap_filters, grid, args, {"num_warps": 4})
    flat, row, steps = padded(swapped, s.c * taps, s.k)
    return flat, row, True, (swap, *steps)


def _packed(w: torch.Tensor, what: Sum, bk: int) -> tuple[torch.Tensor, int, bool, Sequence[Step]]:
    """What _weights gives where groups are multiplied together, or transposed."""
    s = what.shape
    taps, k, c = s.r * s.s, s.k // s.groups, s.c // s.groups
    transposed = what.dgrad and what.element_bytes > 2
    # Rows and columns of a group, and how far apart they lie in w.
    sizes, apart_in_w = ((c, k), (1, taps * c)) if transposed else ((k, c), (taps * c, 1))
    merged = what.merged(bk)
    elements = s.groups * sizes[0] * taps * merged * sizes[1]
    packed = torch.empty(elements, dtype=w.dtype, device=w.device)
    args = (w, packed, elements, taps, *sizes, *apart_in_w, k * taps * c, c, merged, PACK_BLOCK)
    step = Step(jit.pack_groups, (ceil(elements / PACK_BLOCK),), args, {"num_warps": 4})
    return packed, merged * sizes[1], transposed or not what.dgrad, (step,)


def _filters(inputs: _Inputs, config: Config, width: int) -> TensorDescriptor:
    """The weights in boxes of `width` output channels by bc."""
    _, taps, row = inputs.weights
    box = [width, 1, config.bc] if inputs.k_major else [config.bc, 1, width]
    return _descriptor(inputs.w, inputs.weights, (taps * row, row, 1), box)


def _outputs(
    output: torch.Tensor, what: Sum, parities: Sequence[cfg.Parity], box: Sequence[int]
) -> list[TensorDescriptor | None]:
    """A view for each parity; none where pixels do not start on 16 bytes."""
    if cfg.word(what.k, what.element_bytes):
        return [None] * VIEWS
    flat = output.permute(0, 2, 3, 1).reshape(-1)
    step = what.shape.stride if what.split_output else 1
    return _four([
        _view(flat, cfg.view(what.whole_output, what.k, what.k, step, each.row, each.column), box)
        for each in parities
    ])  # fmt: skip


def _view(base: torch.Tensor, view: cfg.View, box: Sequence[int]) -> TensorDescriptor:
    return _descriptor(base[view.offset :], view.sizes, view.strides, box)


def _descriptor(
    base: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for(list(box), DTYPES[base.dtype])  # pyright: ignore[reportCallIssue]
    return TensorDescriptor(base, list(sizes), list(strides), list(box), layout)


def _tables(
    parities: Sequence[cfg.Parity], used: Sequence[tuple[int, int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's `table` and `starts`."""
    taps = [tap for parity in parities for tap in parity.taps]
    table = [(used.index(at), rows, columns, tap) for at, rows, columns, tap in taps]
    starts = list(accumulate((len(parity.taps) for parity in parities), initial=0))
    starts += starts[-1:] * (VIEWS + 1 - len(starts))
    starts += [2 * parity.row + parity.column for parity in parities]
    return (
        torch.tensor(table, dtype=torch.int32, device=device).reshape(-1),
        torch.tensor(starts, dtype=torch.int32, device=device),
    )


def _four(views: list[TensorDescriptor]) -> list[TensorDescriptor | None]:
    """As many as the kernel has arguments: each descriptor is encoded at each launch."""
    return [*views, *[None] * (VIEWS - len(views))]
