"""conv_gluon: binds a configuration to tensors. Views, the table of taps, copies, grids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, prod

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.conv.operands import ConvOperands
from kernels.conv.triton import data_configs
from kernels.conv.triton.copies import padded, weights_of
from kernels.conv.triton.data_configs import LEAST_WIDTH, DataConfig, depths, tiles, word
from kernels.conv.triton.gluon_kernel import conv_gluon
from kernels.conv.triton.problem import ImplicitGemm
from kernels.gpus import HOPPER
from kernels.triton_util import Step, split_n

VIEWS = data_configs.MOST_STRIDE**2  # arguments that the kernel has for views
DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}

Tap = tuple[tuple[int, int], int, int, int]


def bind(
    config: DataConfig, operands: ConvOperands, problem: ImplicitGemm, sm_count: int
) -> Sequence[Step]:
    """The launches of one pass: `kernels.conv.triton.backend.bind`."""
    s, source = operands.shape, operands.y if problem.dgrad else operands.x
    x, apart, copies = padded(source, prod(problem.image), problem.c, lines=config.padded)
    w, (outer, inner), k_major, before = weights_of(operands, problem)
    w, row, prepared = padded(w, outer * s.r * s.s, inner)
    parts = parities(problem)
    used = list(dict.fromkeys(tap[0] for part in parts for tap in part.taps)) or [(0, 0)]
    stride = s.strides[0]  # along both axes
    in_step, out_step = (1, stride) if problem.split_output else (stride, 1)
    box = (*config.box, config.bc)
    inputs = [_view(x, problem.image, apart, apart, in_step, at, box) for at in used]
    n0, n1 = split_n(config.bk)
    single = word(problem.k, problem.element_bytes)
    flat = operands.output.permute(0, 2, 3, 1).reshape(-1)

    def weights(width: int) -> TensorDescriptor:
        """In boxes of `width` output channels by bc."""
        taps = s.r * s.s
        sizes = (outer, taps, row)
        box = [width, 1, config.bc] if k_major else [config.bc, 1, width]
        return _descriptor(w, sizes, (taps * row, row, 1), box)

    def stored(width: int) -> list[TensorDescriptor | None]:
        """A view for each parity; none where pixels do not start on 16 bytes."""
        box, k = (*config.box, width), problem.k
        views = [
            _view(flat, problem.whole_output, k, k, out_step, (part.row, part.column), box)
            for part in ([] if single or not width else parts)
        ]
        return _four(views)

    blocks_n, blocks_h, blocks_w = (
        ceil(size / box) for size, box in zip(problem.output, config.box, strict=True)
    )
    blocks_k, count = ceil(problem.k / config.bk), tiles(config, problem)
    args = (
        *_four(inputs),
        weights(n0), weights(n1 or LEAST_WIDTH),
        *stored(n0), *stored(n1),
        operands.output, *_tables(parts, used, x.device),
        *problem.whole_output, problem.k // (single or 1),
        count, blocks_n * blocks_h * blocks_w * blocks_k, blocks_k, blocks_w, blocks_h,
        *config.box, config.bc, *depths(problem.c, config.bc, problem.element_bytes),
        n0, n1, config.stages, len(used), len(parts), single, k_major,
    )  # fmt: skip
    options = {"num_warps": config.warps}
    if config.per_sm > 1:
        # Registers with which so many programs fit an SM; the compiler shares them out. The warp
        # that loads has those of a whole warpgroup.
        threads = 32 * (config.warps + 4) * config.per_sm
        options["maxnreg"] = HOPPER.sm_registers // threads // 8 * 8
    grid = (min(count, sm_count * config.per_sm),)
    return [*copies, *before, *prepared, Step(conv_gluon, grid, args, options)]


# ------------------------------------------------------------ views and taps


def _view(
    base: torch.Tensor, image: tuple[int, int, int], channels: int, apart: int, step: int,
    at: tuple[int, int], box: Sequence[int],
) -> TensorDescriptor:  # fmt: skip
    """Every step-th row and column from (row, column) on of an image (N, H, W) whose pixels lie
    `apart` elements from one another, in a flat tensor; read or written in boxes.
    """
    (n, h, w), (row, column) = image, at
    sizes = (n, ceil((h - row) / step), ceil((w - column) / step), channels)
    strides = (h * w * apart, step * w * apart, step * apart, 1)
    return _descriptor(base[(row * w + column) * apart :], sizes, strides, box)


@dataclass(frozen=True)
class Parity:
    """The outputs that are computed alike: pixels (row, column), (row + step, column), ...

    Each of `taps` is (parity of the input, rows and columns to move there, number of the tap): the
    output (i, j) of the parity meets the pixel (i + rows, j + columns) of that view of the input.
    A parity is (row, column).
    """

    row: int
    column: int
    taps: tuple[Tap, ...]


def parities(problem: ImplicitGemm) -> list[Parity]:
    """The sub-convolutions of a pass, the one of most taps first: one, or dgrad's stride**2.

    Their order spreads the work: programs take tiles one after another, the long ones first.
    """
    step = problem.shape.strides[0] if problem.split_output else 1
    parts = [
        Parity(row, column, tuple(_taps(problem, row, column)))
        for row in range(step)
        for column in range(step)
        if row < problem.whole_output[1] and column < problem.whole_output[2]
    ]
    return sorted(parts, key=lambda parity: -len(parity.taps))


def _taps(problem: ImplicitGemm, row: int, column: int) -> Iterator[Tap]:
    s, stride = problem.shape, problem.shape.strides[0]
    for tap in range(s.r * s.s):
        away = zip(divmod(tap, s.s), s.dilations, s.paddings, strict=True)
        down, right = (number * dilation - padding for number, dilation, padding in away)
        if problem.dgrad:
            down, right = row - down, column - right
            if down % stride == right % stride == 0:
                yield (0, 0), down // stride, right // stride, tap
        else:
            (rows, row_parity), (columns, column_parity) = (
                divmod(down, stride),
                divmod(right, stride),
            )
            if row_parity < s.h and column_parity < s.w:  # a view that has pixels
                yield (row_parity, column_parity), rows, columns, tap


def _tables(
    parts: Sequence[Parity], used: Sequence[tuple[int, int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    taps = [tap for part in parts for tap in part.taps]
    table = [(used.index(at), rows, columns, tap) for at, rows, columns, tap in taps]
    starts = list(accumulate((len(part.taps) for part in parts), initial=0))
    starts += starts[-1:] * (VIEWS + 1 - len(starts))
    starts += [2 * part.row + part.column for part in parts]
    return (
        torch.tensor(table, dtype=torch.int32, device=device).reshape(-1),
        torch.tensor(starts, dtype=torch.int32, device=device),
    )


def _descriptor(
    base: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for(list(box), DTYPES[base.dtype])  # pyright: ignore[reportCallIssue]
    return TensorDescriptor(base, list(sizes), list(strides), list(box), layout)


def _four(views: list[TensorDescriptor]) -> list[TensorDescriptor | None]:
    """As many as the kernel has arguments: each descriptor is encoded at each launch."""
    return [*views, *[None] * (VIEWS - len(views))]
