"""Triton fprop and dgrad: binds a configuration to tensors. Descriptors, scratch, grids.

Whatever can be done beforehand is done here, so that a launch does nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.conv.operands import ConvOperands
from kernels.conv.triton import data_config as cfg
from kernels.conv.triton import data_kernels as jit
from kernels.conv.triton import depthwise_launch
from kernels.conv.triton.data_config import Config, Sum
from kernels.conv.triton.padding import as_bits
from kernels.gemm.triton import kernels as gemm_jit
from kernels.precision import Precision
from kernels.triton_util import MAX_BOX, MAX_INDEX, Step, input_precision, options

PACK_ROWS, PACK_ELEMENTS, SWAP_BLOCK = 4, 1024, 32


def bind(
    config: Config, operands: ConvOperands, precision: Precision, sm_count: int
) -> Sequence[Step]:
    """The launches of one pass, in order; scratch is allocated here (torch.OutOfMemoryError).

    `config` must be valid for the operands' shape and pass. x [N, C, H, W], w [K, C, R, S] and y
    [N, K, P, Q] must be channels_last.
    """
    if config.kernel == cfg.GLUON:
        from kernels.conv.triton import gluon_launch  # only where this Triton has Gluon

        return gluon_launch.bind(config, operands, precision, sm_count)
    if config.kernel == cfg.DEPTHWISE:
        return depthwise_launch.bind(config, operands, precision)
    return _Binder(config, operands, precision, sm_count).steps()


class _Binder:
    def __init__(
        self, config: Config, operands: ConvOperands, precision: Precision, sm_count: int
    ) -> None:
        self.config, self.shape, self.sm_count = config, operands.shape, sm_count
        self.sum = Sum(operands.shape, operands.which, precision.bytes_per_element)
        # wgmma reads operands of other than 16 bits K-major only.
        self.k_major_only = precision.bytes_per_element != 2
        self.mode = input_precision(precision)
        self.w = operands.w
        self.source = operands.y if self.sum.dgrad else operands.x
        self.output = operands.output
        self.options = options(config.stages, config.warps)

    def steps(self) -> list[Step]:
        kernel = self.config.kernel
        if kernel == cfg.GATHER:
            return [self._gather()]
        if kernel in cfg.ROW_KERNELS:
            return self._rows()
        weights, before = self._weights()
        if kernel == cfg.RESIDENT:
            return [*before, self._resident(weights)]
        if kernel in cfg.MATRIX_KERNELS:
            return [*before, self._matrix(weights)]
        if self.sum.split_output:
            return [*before, self._strided_dgrad(weights)]
        s, what, config = self.shape, self.sum, self.config
        source = (
            _view(self.source, what.image, what.c, s.stride, config.box, config.bc)
            if s.stride > 1
            else _nhwc(self.source, what.image, what.c, config.box, config.bc)
        )
        geometry = (s.r, s.s, ceil(what.c / config.bc), s.stride, s.dilation, *what.pads)
        return [*before, self._taps(source, weights, what.c, geometry)]

    @property
    def _k_major(self) -> bool:
        return self.k_major_only or not self.sum.dgrad

    def _weights(self) -> tuple[TensorDescriptor, list[Step]]:
        """The weights as a matrix, [k, taps*c] or, in a 16-bit dgrad, [c, taps*k]."""
        s, what = self.shape, self.sum
        if not what.dgrad:
            return self._weight_box(self.w, what.k, s.r * s.s * what.c), []
        if not self.k_major_only:
            width = s.r * s.s * what.k
            box = [min(self.config.bc, MAX_BOX), self.config.bk]
            return TensorDescriptor(self.w, [what.c, width], [width, 1], box), []
        swapped = torch.empty(s.c * s.r * s.s * s.k, dtype=self.w.dtype, device=self.w.device)
        grid = (ceil(s.k / SWAP_BLOCK), ceil(s.c / SWAP_BLOCK), s.r * s.s)
        args = (as_bits(self.w), as_bits(swapped), s.k, s.r * s.s, s.c, SWAP_BLOCK, SWAP_BLOCK)
        swap = Step(jit.swap_filters, grid, args, {"num_warps": 4})
        return self._weight_box(swapped, what.k, s.r * s.s * what.c), [swap]

    def _weight_box(self, w: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
        return TensorDescriptor(w, [rows, width], [width, 1], [self.config.bk, self.config.bc])

    def _stored_box(self) -> tuple[int, int, int]:
        """The part of a tile's box that is stored at a time."""
        n, h, w = self.config.box
        parts = self.config.split
        while parts > 1:
            n, h, w = (n // 2, h, w) if n > 1 else (n, h // 2, w) if h > 1 else (n, h, w // 2)
            parts //= 2
        return n, h, w

    def _tiles(self) -> tuple[int, int, int]:
        """Tiles along output channels, columns and rows."""
        _, h, w = self.sum.output
        c = self.config
        return ceil(self.sum.k / c.bk), ceil(w / c.box[2]), ceil(h / c.box[1])

    def _programs(self) -> int:
        return self.sm_count * self.config.per_sm

    def _taps(
        self, source: TensorDescriptor, weights: TensorDescriptor, c: int,
        geometry: tuple[int, ...],
    ) -> Step:  # fmt: skip
        what, config = self.sum, self.config
        _, h, w = what.image
        output = _nhwc(self.output, what.whole_output, what.k, self._stored_box(), config.bk)
        args = (
            source, weights, output, *self._tiles(), h, w, c, what.k, *geometry,
            *config.box, config.bk, config.bc, self._k_major, what.dgrad, what.skips(config),
            self.mode, config.split,
        )  # fmt: skip
        tiles = what.tiles(config)
        if config.kernel in (cfg.PERSISTENT, cfg.ROWS_PERSISTENT):
            programs = self._programs()
            args = (*args, tiles, programs)
            return Step(jit.conv_persistent, (min(tiles, programs),), args, self.options)
        return Step(jit.conv_tma, (tiles,), args, self.options)

    def _strided_dgrad(self, weights: TensorDescriptor) -> Step:
        what, config, s = self.sum, self.config, self.shape
        source = _nhwc(self.source, what.image, what.c, config.box, config.bc)
        output = _view(
            self.output, what.whole_output, what.k, s.stride, self._stored_box(), config.bk
        )
        args = (
            source, weights, output, *self._tiles(), what.c, what.k, s.r, s.s,
            ceil(what.c / config.bc), s.stride, s.padding, *config.box, config.bk, config.bc,
            self._k_major, self.mode, config.split,
        )  # fmt: skip
        return Step(jit.conv_strided_dgrad, (what.tiles(config),), args, self.options)

    def _matrix(self, weights: TensorDescriptor) -> Step:
        what, config = self.sum, self.config
        pixels, tiles = what.image[2], what.tiles(config)
        group = 1  # the tiles of one block of pixels follow one another and share it in L2
        args = (
            *self._matrices(weights), self.output, pixels, what.k, what.c, group,
            config.pixels, config.bk, config.bc, config.split, True, self._k_major, self.mode,
            tl.float32,
        )  # fmt: skip
        if config.kernel == cfg.GEMM_PERSISTENT:
            programs = self._programs()
            grid = (min(tiles, programs),)
            return Step(gemm_jit.gemm_tma_persistent, grid, (*args, programs), self.options)
        return Step(gemm_jit.gemm_tma, (tiles,), args, self.options)

    def _matrices(self, weights: TensorDescriptor) -> tuple[TensorDescriptor, ...]:
        """Input, weights and output of a GEMM [pixels, c] x [c, k]."""
        what, config = self.sum, self.config
        pixels, split = what.image[2], config.bk // config.split
        source = ([pixels, what.c], [what.c, 1], [config.pixels, config.bc])
        output = ([pixels, what.k], [what.k, 1], [config.pixels, split])
        x, y = TensorDescriptor(self.source, *source), TensorDescriptor(self.output, *output)
        return x, weights, y

    def _resident(self, weights: TensorDescriptor) -> Step:
        what, config = self.sum, self.config
        pixels = what.image[2]
        blocks, columns = ceil(pixels / config.pixels), ceil(what.k / config.bk)
        walkers = min(blocks, max(1, self._programs() // columns))
        args = (
            *self._matrices(weights), columns, blocks, config.pixels, config.bk, config.stages,
            self._k_major, self.mode, config.split,
        )  # fmt: skip
        return Step(jit.conv_resident, (walkers * columns,), args, self.options)

    def _rows(self) -> list[Step]:
        """fprop of few channels: rows of taps, packed so that each is one run of memory."""
        s, what, config = self.shape, self.sum, self.config
        channels, length = what.packed_channels, what.row_length
        height = ceil(s.h / s.stride) * s.stride
        width = ceil((s.stride * (s.q - 1) + length // channels) / 4) * 4
        row = width * channels
        packed = torch.empty(s.n * height * row, dtype=self.w.dtype, device=self.w.device)
        filters = torch.empty(s.k * s.r * length, dtype=self.w.dtype, device=self.w.device)
        pack_x = _pack(
            self.source, packed, s.n * height, (s.h, s.w, s.c), (height, row), s.padding, channels
        )
        pack_w = _pack(self.w, filters, s.k * s.r, (1, s.s, s.c), (1, length), 0, channels)
        n, h, w = config.box
        apart = s.stride * channels
        if s.stride == 1:
            view = [s.n, height, s.q, length], [height * row, row, apart, 1], [n, h, w, length]
        else:
            view = (
                [s.n, height // s.stride, s.stride, s.q, length],
                [height * row, s.stride * row, row, apart, 1],
                [n, h, 1, w, length],
            )
        weights = self._weight_box(filters, s.k, s.r * length)
        geometry = (s.r, 1, 1, s.stride, 1, s.padding, 0)
        taps = self._taps(TensorDescriptor(packed, *view), weights, length, geometry)
        return [pack_x, pack_w, taps]

    def _gather(self) -> Step:
        """The kernel that loads through pointers."""
        what, config, s = self.sum, self.config, self.shape
        x, y = (s.h, s.w), (s.p, s.q)
        image, out = (y, x) if what.dgrad else (x, y)
        pixels = s.n * out[0] * out[1]
        most = max(self.source.numel(), self.w.numel(), self.output.numel())
        index = tl.int32 if most + config.pixels * what.k <= MAX_INDEX else tl.int64
        args = (
            self.source, self.w, self.output, pixels, *image, *out, what.k, what.c,
            s.r, s.s, s.stride, s.dilation, s.padding, *config.tile, what.dgrad, index, self.mode,
        )  # fmt: skip
        return Step(jit.conv_gather, (what.tiles(config),), args, self.options)


def _nhwc(
    base: torch.Tensor, image: tuple[int, int, int], channels: int,
    box: tuple[int, int, int], block: int,
) -> TensorDescriptor:  # fmt: skip
    n, h, w = image
    strides = [h * w * channels, w * channels, channels, 1]
    return TensorDescriptor(base, [n, h, w, channels], strides, [*box, block])


def _view(
    base: torch.Tensor, image: tuple[int, int, int], channels: int, stride: int,
    box: tuple[int, int, int], block: int,
) -> TensorDescriptor:  # fmt: skip
    """[N, H/stride, stride, W/stride, stride*C] of a tensor stored [N, H, W, C]."""
    n, h, w = image
    row = w * channels
    return TensorDescriptor(
        base,
        [n, h // stride, stride, w // stride, stride * channels],
        [h * row, stride * row, row, stride * channels, 1],
        [box[0], box[1], 1, box[2], block],
    )


def _pack(
    source: torch.Tensor, packed: torch.Tensor, rows: int, image: tuple[int, int, int],
    to: tuple[int, int], left: int, channels: int,
) -> Step:  # fmt: skip
    grid = (ceil(rows / PACK_ROWS), ceil(to[1] / PACK_ELEMENTS))
    args = (source, packed, rows, *image, *to, left, channels, PACK_ROWS, PACK_ELEMENTS)
    return Step(jit.pack_rows, grid, args, {"num_warps": 4})
