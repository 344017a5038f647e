"""Configurations of the Triton fprop and dgrad: their labels, and what a shape allows.

Nothing here imports torch or triton: tables and rules can be checked on any machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from kernels.conv.shape import ConvShape
from kernels.gemm.triton_configs import TMA_ALIGNMENT, shared_memory_limit
from kernels.precision import Capability, Precision

POINTER, TMA, PERSISTENT = "conv_pointer", "conv_tma", "conv_persistent"
ROWS, ROWS_PERSISTENT = "conv_rows", "conv_rows_persistent"
GEMM, GEMM_PERSISTENT, RESIDENT = "conv_gemm", "conv_gemm_persistent", "conv_resident"
KERNELS = (
    POINTER, TMA, PERSISTENT, ROWS, ROWS_PERSISTENT, GEMM, GEMM_PERSISTENT, RESIDENT,
)  # fmt: skip
MATRIX_KERNELS = (GEMM, GEMM_PERSISTENT, RESIDENT)
ROW_KERNELS = (ROWS, ROWS_PERSISTENT)
WALKING = (PERSISTENT, ROWS_PERSISTENT, GEMM_PERSISTENT, RESIDENT)

MAX_BOX = 256  # elements along one axis; CUDA driver API, cuTensorMapEncodeTiled
MAX_COORDINATE = 2**31 - 1
MAX_ACCUMULATORS = 128  # float32 sums of one thread; more would spill
MAX_RESIDENT_CHANNELS = 256


@dataclass(frozen=True)
class Config:
    """One way to run a kernel.

    `box` is the tile's images, rows and columns; `bk` its output channels; `bc` the channels that
    are added up at a time. `split` is the number of parts that a tile is stored in, `per_sm` the
    programs of a walking kernel on one SM.
    """

    kernel: str
    box: tuple[int, int, int]
    bk: int
    bc: int
    stages: int
    warps: int
    split: int = 1
    per_sm: int = 1

    @property
    def label(self) -> str:
        """Compact name, which `parse` reads: "conv_persistent/8x4x4x128x64/s3/w8/sub2"."""
        sizes = "x".join(map(str, (*self.box, self.bk, self.bc)))
        parts = [self.kernel, sizes, f"s{self.stages}", f"w{self.warps}"]
        parts += [f"sub{self.split}"] * (self.split > 1)
        parts += [f"p{self.per_sm}"] * (self.per_sm > 1)
        return "/".join(parts)

    @property
    def pixels(self) -> int:
        """Pixels of a tile."""
        return prod(self.box)

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of the implicit GEMM's tile: pixels, output channels, channels added up."""
        return self.pixels, self.bk, self.bc

    @property
    def accumulators(self) -> int:
        """Elements of the tile that a thread adds up."""
        return self.pixels * self.bk // (32 * self.warps)


_LABEL = re.compile(
    rf"(?P<kernel>{'|'.join(KERNELS)})/(?P<sizes>(?:\d+x){{4}}\d+)/s(?P<stages>\d+)"
    r"/w(?P<warps>\d+)(/sub(?P<split>\d+))?(/p(?P<per_sm>\d+))?"
)


def parse(label: str) -> Config:
    """The configuration a label names. Raises ValueError."""
    found = _LABEL.fullmatch(label)
    if found is None:
        raise ValueError(f"not a configuration of the Triton fprop and dgrad: {label!r}")
    n, h, w, bk, bc = map(int, found["sizes"].split("x"))
    return Config(
        found["kernel"], (n, h, w), bk, bc, int(found["stages"]), int(found["warps"]),
        int(found["split"] or 1), int(found["per_sm"] or 1),
    )  # fmt: skip


@dataclass(frozen=True)
class Sum:
    """fprop or dgrad as the kernels see it: out[n, rows, columns, k] += in[n, h, w, c] * weight.

    `pads` are the paddings along rows and columns that make an output's first tap; `split_output`
    says that the stride is a view of the output (dgrad) instead of the input. rows and columns are
    those of one parity then. A 1x1 kernel of stride 1 is one image of one row.
    """

    shape: ConvShape
    which: str
    element_bytes: int

    @property
    def matrix(self) -> bool:
        """Whether the convolution is a plain product [pixels, c] x [c, k]."""
        s = self.shape
        return (s.r, s.s, s.stride, s.padding) == (1, 1, 1, 0)

    @property
    def dgrad(self) -> bool:
        """Whether the weights are used with filters and channels exchanged."""
        return self.which == "dgrad"

    @property
    def split_output(self) -> bool:
        """Whether the output is stored one parity at a time."""
        return self.dgrad and self.shape.stride > 1

    @property
    def c(self) -> int:
        """Channels added up."""
        return self.shape.k if self.dgrad else self.shape.c

    @property
    def k(self) -> int:
        """Channels of the output."""
        return self.shape.c if self.dgrad else self.shape.k

    @property
    def image(self) -> tuple[int, int, int]:
        """Images, rows and columns of the input."""
        s = self.shape
        if self.matrix:
            return 1, 1, s.n * s.h * s.w
        return (s.n, s.p, s.q) if self.dgrad else (s.n, s.h, s.w)

    @property
    def whole_output(self) -> tuple[int, int, int]:
        """Images, rows and columns of the output."""
        s = self.shape
        if self.matrix:
            return self.image
        return (s.n, s.h, s.w) if self.dgrad else (s.n, s.p, s.q)

    @property
    def output(self) -> tuple[int, int, int]:
        """Images, rows and columns that tiles cover: of one parity where there are several."""
        n, h, w = self.whole_output
        step = self.shape.stride if self.split_output else 1
        return n, ceil(h / step), ceil(w / step)

    @property
    def pads(self) -> tuple[int, int]:
        """Padding before the first row and column, as a cross-correlation with tap 0 first."""
        s = self.shape
        if self.dgrad and s.stride == 1:
            return s.dilation * (s.r - 1) - s.padding, s.dilation * (s.s - 1) - s.padding
        return s.padding, s.padding

    @cached_property
    def packed_channels(self) -> int:
        """Channels that the row kernels pad an image to: neighbours 16 bytes apart, at least 4."""
        aligned = self.shape.stride * 4 * self.element_bytes % TMA_ALIGNMENT == 0
        return 4 if self.shape.c <= 4 and aligned else 8

    @cached_property
    def row_length(self) -> int:
        """Elements of the power of two that holds one row of taps, all channels."""
        return power_of_two(max(16, self.shape.s * self.packed_channels))

    def tiles(self, config: Config) -> int:
        """How many tiles cover the output, all parities together."""
        boxes = (ceil(size / box) for size, box in zip(self.output, config.box, strict=True))
        parities = self.shape.stride**2 if self.split_output else 1
        return prod(boxes) * ceil(self.k / config.bk) * parities

    def skips(self, config: Config) -> bool:
        """Whether some tiles have taps that see nothing but padding."""
        if self.split_output or config.kernel not in (TMA, PERSISTENT):
            return False
        return any(
            pad > (box - 1) * self.shape.stride
            for pad, box in zip(self.pads, config.box[1:], strict=True)
        )

    def products(self, config: Config) -> float:
        """Multiply-adds that a configuration does, over those that the shape needs.

        What lies between: pixels and channels past the edge, and taps in the padding.
        """
        s = self.shape
        wasted = ceil(self.k / config.bk) * config.bk / self.k
        wasted *= ceil(self.output[0] / config.box[0]) * config.box[0] / self.output[0]
        if config.kernel in ROW_KERNELS:
            wasted *= self.row_length / (s.s * s.c)
        else:
            wasted *= ceil(self.c / config.bc) * config.bc / self.c
        for axis, taps in ((1, s.r), (2, s.s)):
            size, box = self.output[axis], config.box[axis]
            met = ceil(size / box) * taps
            if self.skips(config):
                met = sum(self._taps(axis, start, taps, box) for start in range(0, size, box))
            wasted *= met * box / (size * taps)
        return wasted

    def _taps(self, axis: int, start: int, taps: int, box: int) -> int:
        near = start * self.shape.stride - self.pads[axis - 1]
        first = max(0, ceil((-near - (box - 1) * self.shape.stride) / self.shape.dilation))
        last = min(taps - 1, (self.image[axis] - 1 - near) // self.shape.dilation)
        return max(1, last - min(first, taps - 1) + 1)


def power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def shared_memory(config: Config, element_bytes: int) -> int:
    """Estimated bytes of shared memory; the compiler has the last word."""
    staged = config.pixels * config.bk * element_bytes // config.split
    x, w = config.pixels * config.bc * element_bytes, config.bk * config.bc * element_bytes
    barriers = 1024
    if config.kernel == RESIDENT:
        return w + config.stages * x + staged + barriers
    buffers = config.stages * (x + w)
    if config.kernel in WALKING:
        return buffers + staged + barriers
    return max(buffers, staged) + barriers


def valid(
    config: Config, shape: ConvShape, which: str, precision: Precision, capability: Capability
) -> bool:
    """Whether the configuration can run a pass ("fprop" or "dgrad") on such a GPU."""
    if which not in ("fprop", "dgrad") or shape.groups != 1:
        return False
    size = precision.bytes_per_element
    if config.per_sm * shared_memory(config, size) > shared_memory_limit(capability):
        return False
    if config.kernel == POINTER:
        return True
    what = Sum(shape, which, size)
    boxes = (*config.box, config.bk, config.bc)
    if capability < (9, 0) or max(boxes) > MAX_BOX or max(what.output) > MAX_COORDINATE:
        return False
    if config.kernel in ROW_KERNELS:
        return _rows_fit(config, what)
    if any(channels * size % TMA_ALIGNMENT for channels in (shape.c, shape.k)):
        return False
    if config.kernel == RESIDENT:
        return what.matrix and config.bc >= what.c
    return what.matrix if config.kernel in MATRIX_KERNELS else _taps_fit(config, what)


def _rows_fit(config: Config, what: Sum) -> bool:
    s = what.shape
    stored = s.k * what.element_bytes % TMA_ALIGNMENT == 0
    small = s.c <= what.packed_channels and s.dilation == 1 and not what.dgrad
    return stored and small and config.bc == what.row_length


def _taps_fit(config: Config, what: Sum) -> bool:
    s = what.shape
    if s.stride == 1:
        return True
    # In the view of rank five a box past the last channel would meet the next parity's first.
    whole = s.h % s.stride == s.w % s.stride == 0
    if what.dgrad:
        return whole and s.dilation == 1 and config.kernel == TMA and what.k % config.bk == 0
    return whole and what.c % config.bc == 0
