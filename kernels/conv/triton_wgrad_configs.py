"""Configurations of the Triton weight gradient: labels, what a shape allows, what one takes.

Nothing here imports torch or triton.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil

from kernels.conv.shape import ConvShape
from kernels.precision import Capability, Precision

TMA, FOLD, POINTER = "wgrad_tma", "wgrad_fold", "wgrad_pointer"
KERNELS = (TMA, FOLD, POINTER)
PRECISIONS = ("fp16", "bf16", "tf32")
HOPPER: Capability = (9, 0)
TMA_ALIGNMENT = 16  # bytes, of every stride but the last; CUDA driver API, cuTensorMapEncodeTiled
MAX_BOX = 256  # elements along one dimension of a TMA box; the same source
MAX_INDEX = 2**31 - 1

# Bytes and registers of a Hopper SM, and of shared memory that one block may have; CUDA C++
# Programming Guide, "Technical Specifications per Compute Capability".
SHARED_LIMIT, SM_SHARED, BLOCK_RESERVE, SM_REGISTERS = 232448, 233472, 1024, 65536
OLDER_SHARED_LIMIT = 101376
BARRIERS = 512  # bytes beside the buffers
MAX_ACCUMULATORS = 192  # registers of a thread
FOLDED_CHANNELS = 8  # C above this fills tiles of its own


@dataclass(frozen=True)
class Config:
    """One way to run a pass.

    A product is bk filters x bc channels (wgrad_fold: taps x channels of a kernel row;
    wgrad_pointer: columns of R*S*C) over images*columns pixels of one row. A step takes `rows`
    rows and `taps` kernel rows. `splits` programs share the pixels of a tile of dw.
    """

    kernel: str
    images: int
    columns: int
    bk: int
    bc: int
    taps: int
    rows: int
    stages: int
    warps: int
    splits: int

    @property
    def label(self) -> str:
        """Compact name, which `parse` reads: "wgrad_tma/8x8x64x64/t3/r2/s2/w4/x44"."""
        return (
            f"{self.kernel}/{self.images}x{self.columns}x{self.bk}x{self.bc}/t{self.taps}"
            f"/r{self.rows}/s{self.stages}/w{self.warps}/x{self.splits}"
        )

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of the implicit GEMM tile: filters, taps*channels, pixels of a step."""
        return self.bk, self.taps * self.bc, self.rows * self.pixels

    @property
    def pixels(self) -> int:
        """Pixels of one product."""
        return self.images * self.columns

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums."""
        return self.taps * self.bk * self.bc // (32 * self.warps)


_LABEL = re.compile(
    rf"({'|'.join(KERNELS)})/(\d+)x(\d+)x(\d+)x(\d+)/t(\d+)/r(\d+)/s(\d+)/w(\d+)/x(\d+)"
)


def parse(label: str) -> Config:
    """The configuration a label names. Raises ValueError."""
    found = _LABEL.fullmatch(label)
    if found is None:
        raise ValueError(f"not a configuration of the Triton weight gradient: {label!r}")
    return Config(found[1], *(int(number) for number in found.groups()[1:]))


def flat(shape: ConvShape) -> bool:
    """Whether x and dy are plain [pixels, C] and [pixels, K] matrices."""
    return shape.r == shape.s == shape.stride == 1 and shape.padding == 0


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`."""
    return 1 << (least - 1).bit_length()


@dataclass(frozen=True)
class Fold:
    """x with its channels filled up, so that the taps of a kernel row lie side by side.

    channels: C filled up; window: elements that hold S*channels; width: padded columns of x.
    """

    channels: int
    window: int
    width: int

    @classmethod
    def of(cls, shape: ConvShape, element_bytes: int) -> Fold:
        """The fold of a shape: strides between windows and rows are multiples of 16 bytes."""
        step = TMA_ALIGNMENT // element_bytes
        channels = power_of_two(shape.c)
        while channels * shape.stride % step:
            channels *= 2
        window = max(32, power_of_two(shape.s * channels))
        width = (shape.q - 1) * shape.stride + ceil(window / channels)
        width = max(width, shape.w + shape.padding)
        while width * channels % step:
            width += 1
        return cls(channels, window, width)


def valid(config: Config, shape: ConvShape, which: str, kind: Precision, cap: Capability) -> bool:
    """Whether the configuration can run the pass on a GPU of this capability."""
    if which != "wgrad" or shape.groups != 1 or kind.name not in PRECISIONS or cap < (8, 0):
        return False
    blocks = ceil(shape.n * shape.p * shape.q / config.pixels) + config.splits
    if config.splits > 65535 or blocks > MAX_INDEX or config.accumulators > MAX_ACCUMULATORS:
        return False
    sizes = (config.pixels, config.bk, config.bc, config.warps)
    if any(size & (size - 1) for size in sizes) or min(sizes[:3]) < 16:
        return False
    if config.kernel == POINTER:
        one_row = config.images == config.taps == config.rows == 1
        limit = SHARED_LIMIT if cap == HOPPER else OLDER_SHARED_LIMIT
        return one_row and shared_memory(config, shape, kind) <= limit
    return _tma_valid(config, shape, kind, cap)


def _tma_valid(config: Config, shape: ConvShape, kind: Precision, cap: Capability) -> bool:
    size = kind.bytes_per_element
    if cap < HOPPER or shape.k * size % TMA_ALIGNMENT or shape.r % config.taps:
        return False
    if max(config.images, config.columns, config.bk, config.bc) > MAX_BOX:
        return False
    if max(shape.n * shape.p * shape.q, shape.n * shape.h * shape.w) > MAX_INDEX:
        return False
    if flat(shape) and config.kernel == TMA and (config.images > 1 or config.rows > 1):
        return False
    if config.kernel == FOLD:
        if shape.c > FOLDED_CHANNELS or shape.dilation > 1:
            return False
        if config.bc != Fold.of(shape, size).window:
            return False
    elif shape.c * size % TMA_ALIGNMENT or shape.w % shape.stride:
        return False
    return shared_memory(config, shape, kind) <= SHARED_LIMIT


def image_rows(config: Config, shape: ConvShape) -> int:
    """Rows of x that a step reads."""
    return (config.rows - 1) * shape.stride + (config.taps - 1) * shape.dilation + 1


def step_bytes(config: Config, shape: ConvShape, kind: Precision) -> int:
    """Bytes of both operands that a step loads."""
    columns = config.rows * config.bk + image_rows(config, shape) * config.bc
    return config.pixels * columns * kind.bytes_per_element


def shared_memory(config: Config, shape: ConvShape, kind: Precision) -> int:
    """Estimated bytes of shared memory; the compiler has the last word."""
    buffers = config.stages * step_bytes(config, shape, kind)
    if kind.bytes_per_element > 2:  # wgmma wants it transposed: through registers, and back
        buffers += config.pixels * config.bc * config.taps * kind.bytes_per_element
    return buffers + BARRIERS


def tiles(config: Config, shape: ConvShape) -> int:
    """Tiles of dw: programs of one split."""
    filters = ceil(shape.k / config.bk)
    if config.kernel == POINTER:
        return filters * ceil(shape.c * shape.r * shape.s / config.bc)
    groups = shape.r // config.taps
    if config.kernel == FOLD:
        return filters * groups
    return filters * groups * shape.s * ceil(shape.c / config.bc)


def steps(config: Config, shape: ConvShape) -> int:
    """Steps over the pixels, of all splits together."""
    if config.kernel == POINTER or (config.kernel == TMA and flat(shape)):
        return ceil(shape.n * shape.p * shape.q / config.pixels)
    row_blocks = ceil(shape.p / config.rows) * ceil(shape.q / config.columns)
    return ceil(shape.n / config.images) * row_blocks


def registers_allow(config: Config) -> int:
    """Programs that an SM of Hopper has registers for, by an estimate."""
    return max(1, SM_REGISTERS // (min(255, config.accumulators + 56) * 32 * config.warps))


def blocks_per_sm(config: Config, shape: ConvShape, kind: Precision) -> int:
    """Programs that an SM of Hopper holds at once."""
    shared = shared_memory(config, shape, kind) + BLOCK_RESERVE
    return max(1, min(registers_allow(config), SM_SHARED // shared))
