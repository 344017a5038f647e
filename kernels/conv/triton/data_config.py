"""Configurations of the Triton fprop and dgrad: labels, what a shape allows, which to try.

Nothing here imports torch or triton: tables and rules can be checked on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, gcd, prod

from kernels import cost
from kernels.case import Case
from kernels.conv.shape import ConvShape
from kernels.conv.triton import depthwise_config, gluon_config
from kernels.cost import Kernel, Work, gathered_spread, spread
from kernels.gpus import HOPPER, LINE_BYTES, architecture, has_tma
from kernels.precision import Capability, Precision
from kernels.triton_util import (
    MAX_BOX,
    MAX_INDEX,
    TMA_ALIGNMENT,
    Grammar,
    power_of_two,
    row_for_tma,
)

GATHER, TMA, PERSISTENT = "conv_gather", "conv_tma", "conv_persistent"
ROWS, ROWS_PERSISTENT = "conv_rows", "conv_rows_persistent"
GEMM, GEMM_PERSISTENT, RESIDENT = "conv_gemm", "conv_gemm_persistent", "conv_resident"
GLUON, DEPTHWISE = "conv_gluon", "conv_depthwise"
KERNELS = (
    GATHER, TMA, PERSISTENT, ROWS, ROWS_PERSISTENT, GEMM, GEMM_PERSISTENT, RESIDENT, GLUON,
    DEPTHWISE,
)  # fmt: skip
WALKERS = {PERSISTENT: TMA, ROWS_PERSISTENT: ROWS, GEMM_PERSISTENT: GEMM, RESIDENT: GEMM}
MATRIX_KERNELS = (GEMM, GEMM_PERSISTENT, RESIDENT)
ROW_KERNELS = (ROWS, ROWS_PERSISTENT)
FLOAT8_KERNELS = (GATHER, TMA, PERSISTENT, *MATRIX_KERNELS)  # inputs and outputs of two types
WALKING = (PERSISTENT, ROWS_PERSISTENT, GEMM_PERSISTENT, RESIDENT, GLUON)

LABELS = Grammar("Triton fprop and dgrad", KERNELS, 5, ("s", "w"), ("sub", "p"), "padded")

MAX_ACCUMULATORS = 128  # float32 sums of one thread; more would spill
MAX_RESIDENT_CHANNELS = 256


@dataclass(frozen=True)
class Config:
    """One way to run a kernel.

    `box` is the tile's images, rows and columns; `bk` its output channels; `bc` the channels that
    are added up at a time; `stages` the tiles of the operands that are buffered. `split` is the
    number of parts that a tile is stored in, `per_sm` the programs of a walking kernel on one SM.
    `padded`: conv_gluon reads a copy whose pixels start on lines, or powers of two within one.
    """

    kernel: str
    box: tuple[int, int, int]
    bk: int
    bc: int
    stages: int
    warps: int
    split: int = 1
    per_sm: int = 1
    padded: bool = False

    @property
    def label(self) -> str:
        """Compact name, which `parse` reads: "conv_persistent/8x4x4x128x64/s3/w8/sub2"."""
        numbers = (self.stages, self.warps, self.split, self.per_sm)
        return LABELS.write(self.kernel, (*self.box, self.bk, self.bc), numbers, self.padded)

    @property
    def family(self) -> str:
        """The kernel, walking or not."""
        return WALKERS.get(self.kernel, self.kernel)

    @property
    def pixels(self) -> int:
        """Pixels of a tile: images * rows * columns of `box`."""
        return prod(self.box)

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of the implicit GEMM's tile: pixels, output channels, channels added up."""
        return self.pixels, self.bk, self.bc

    @property
    def accumulators(self) -> int:
        """float32 elements of the tile that one thread adds up."""
        return self.pixels * self.bk // (32 * self.warps)


def parse(label: str) -> Config:
    """The configuration a label names. Raises ValueError for any other text."""
    kernel, (n, h, w, bk, bc), (stages, warps, split, per_sm), padded = LABELS.read(label)
    return Config(kernel, (n, h, w), bk, bc, stages, warps, split, per_sm, padded)


@dataclass(frozen=True)
class Sum:
    """fprop or dgrad as the kernels see it: out[n, rows, columns, k] += in[n, h, w, c] * weight.

    `split_output` says that the stride is a view of the output (dgrad) instead of the input; rows
    and columns are then those of one parity. A 1x1 kernel of stride 1 is one image of one row.
    """

    shape: ConvShape
    which: str
    element_bytes: int

    @classmethod
    def of(cls, case: Case) -> Sum:
        """The sum of a case. ValueError for no convolution."""
        bytes_per_element = case.precision.bytes_per_element
        return cls(ConvShape.of(case), str(case.dims["pass"]), bytes_per_element)

    @property
    def dgrad(self) -> bool:
        """Whether the weights are used with filters and channels exchanged."""
        return self.which == "dgrad"

    @property
    def split_output(self) -> bool:
        """Whether the output is stored one parity (pixels a stride apart) at a time."""
        return self.dgrad and self.shape.stride > 1

    @property
    def c(self) -> int:
        """Channels added up: C of fprop, K of dgrad."""
        return self.shape.k if self.dgrad else self.shape.c

    @property
    def k(self) -> int:
        """Channels of the output: K of fprop, C of dgrad."""
        return self.shape.c if self.dgrad else self.shape.k

    @property
    def group_c(self) -> int:
        """Channels added up of one group."""
        return self.c // self.shape.groups

    @property
    def group_k(self) -> int:
        """Channels of the output of one group."""
        return self.k // self.shape.groups

    def merged(self, bk: int) -> int:
        """Groups that a tile of bk output channels multiplies together, with zeros for the weights
        from one to another: a block of whole wgmmas, which holds bk channels or whole tiles.
        """
        if self.shape.groups == 1:
            return 1
        width = gluon_config.LEAST_WIDTH
        least = width // gcd(width, self.group_c, self.group_k)
        return least * ceil(bk / (least * self.group_k))

    def block(self, bk: int) -> tuple[int, int]:
        """(channels added up, channels of the output) of the groups that are multiplied together:
        all channels where there is one group.
        """
        return self.merged(bk) * self.group_c, self.merged(bk) * self.group_k

    def packs(self, bk: int) -> bool:
        """Whether the weights are copied to blocks: with zeros, or transposed for tf32's wgmma."""
        transposed = self.dgrad and self.shape.groups > 1 and self.element_bytes > 2
        return transposed or self.merged(bk) > 1

    @property
    def image(self) -> tuple[int, int, int]:
        """Images, rows and columns of the input: (N, H, W) of fprop, (N, P, Q) of dgrad."""
        s = self.shape
        if self.shape.flat:
            return 1, 1, s.n * s.h * s.w
        return (s.n, s.p, s.q) if self.dgrad else (s.n, s.h, s.w)

    @property
    def whole_output(self) -> tuple[int, int, int]:
        """Images, rows and columns of the output: (N, P, Q) of fprop, (N, H, W) of dgrad."""
        s = self.shape
        if self.shape.flat:
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
        """Pixels of padding before the first row and column, for a cross-correlation."""
        s = self.shape
        if self.dgrad and s.stride == 1:
            return s.dilation * (s.r - 1) - s.padding, s.dilation * (s.s - 1) - s.padding
        return s.padding, s.padding

    def pixel(self, padded: bool) -> int:
        """Elements from one pixel of the input to the next, as conv_gluon reads it."""
        return row_for_tma(self.c * self.element_bytes, padded) // self.element_bytes

    @cached_property
    def packed_channels(self) -> int:
        """Channels that the row kernels pad x to, 4 or 8: windows start on 16 bytes."""
        aligned = self.shape.stride * 4 * self.element_bytes % TMA_ALIGNMENT == 0
        return 4 if self.shape.c <= 4 and aligned else 8

    @cached_property
    def row_length(self) -> int:
        """Elements of the power of two that holds one row of taps, all channels."""
        return power_of_two(max(16, self.shape.s * self.packed_channels))

    def tiles(self, config: Config) -> int:
        """How many tiles cover the output, all parities together."""
        if config.kernel == GATHER:
            return ceil(prod(self.whole_output) / config.pixels) * ceil(self.k / config.bk)
        boxes = (ceil(size / box) for size, box in zip(self.output, config.box, strict=True))
        parities = self.shape.stride**2 if self.split_output else 1
        return prod(boxes) * ceil(self.k / config.bk) * parities

    def skips(self, config: Config) -> bool:
        """Whether some tiles have taps that meet only padding, and the kernel leaves them out."""
        if self.split_output or config.kernel not in (TMA, PERSISTENT):
            return False
        return any(
            pad > (box - 1) * self.shape.stride
            for pad, box in zip(self.pads, config.box[1:], strict=True)
        )

    def products(self, config: Config) -> float:
        """Multiply-adds that a configuration does, over those that the shape needs.

        The surplus is pixels and channels past the edge, and taps in the padding.
        """
        s = self.shape
        if config.kernel == GATHER:
            steps = ceil(s.r * s.s * self.c / config.bc)
            return 2 * self.tiles(config) * prod(config.tile) * steps / s.flops
        wasted = ceil(self.k / config.bk) * config.bk / self.k
        wasted *= ceil(self.output[0] / config.box[0]) * config.box[0] / self.output[0]
        if config.kernel in ROW_KERNELS:
            wasted *= self.row_length / (s.s * s.c)
        elif config.kernel == GLUON:
            wasted *= gluon_config.multiplied(self, config.bk, config.bc) / self.group_c
        elif config.kernel != DEPTHWISE:
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


def shared_memory(config: Config, kind: Precision) -> int:
    """Estimated bytes of shared memory of one program; only the compiler knows the exact number."""
    element_bytes = kind.bytes_per_element
    if config.kernel == DEPTHWISE:
        return 0
    if config.kernel == GLUON:
        tile = (config.pixels, config.bk, config.bc, config.stages, config.split)
        return gluon_config.shared_memory(*tile, element_bytes)
    staged = config.pixels * config.bk * kind.output_bytes // config.split
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
    """Whether the configuration can run a pass ("fprop" or "dgrad") on a GPU of this capability:
    TMA's limits, strides of 16 bytes, shared memory. GATHER runs all sizes without groups.
    """
    alone = shape.groups == 1 and not config.padded
    if which not in ("fprop", "dgrad") or not (alone or config.kernel in (GLUON, DEPTHWISE)):
        return False
    if precision.is_float8 and config.kernel not in FLOAT8_KERNELS:
        return False
    shared = config.per_sm * shared_memory(config, precision)
    if shared > architecture(capability).block_shared_bytes:
        return False
    if config.kernel == GATHER:
        return _gather_fits(config, Sum(shape, which, precision.bytes_per_element))
    return _fits(config, shape, which, precision, capability)


def _gather_fits(config: Config, what: Sum) -> bool:
    s = what.shape
    powers = all(size & (size - 1) == 0 for size in config.tile)
    plain = config.split == config.per_sm == 1 and config.pixels == config.box[2]
    reach = s.dilation * ((s.r - 1) * what.image[2] + s.s - 1) * what.c  # offsets of taps: 32 bits
    return powers and plain and config.bc >= _least_depth(what) and reach <= MAX_INDEX


def _fits(
    config: Config, shape: ConvShape, which: str, precision: Precision, capability: Capability
) -> bool:
    """What kernels other than GATHER ask of sizes and strides."""
    size = precision.bytes_per_element
    what = Sum(shape, which, size)
    if config.kernel == DEPTHWISE:
        return depthwise_config.fits(config, what)
    boxes = (*config.box, config.bk, config.bc)
    if not has_tma(capability) or max(boxes) > MAX_BOX or max(what.output) > MAX_INDEX:
        return False
    if config.kernel == GLUON:
        return gluon_config.fits(config, what) and not gluon_config.missing(what, capability)
    if config.kernel in ROW_KERNELS:
        return _rows_fit(config, what)
    if any(channels * size % TMA_ALIGNMENT for channels in (shape.c, shape.k)):
        return False
    if config.kernel == RESIDENT:
        return what.shape.flat and config.bc >= what.c
    return what.shape.flat if config.kernel in MATRIX_KERNELS else _taps_fit(config, what)


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


# Tiles of the TMA kernels: pixels, output channels, 128-byte lines of input channels, stages,
# warps, parts stored by a plain and by a walking kernel.
_TILES = (
    (64, 64, 1, 6, 4, 1), (64, 128, 1, 5, 4, 1), (128, 64, 1, 4, 4, 1), (128, 64, 1, 6, 4, 1),
    (256, 64, 1, 3, 4, 2), (256, 64, 1, 4, 4, 2), (64, 256, 1, 4, 8, 1),
    (128, 128, 1, 3, 4, 2), (128, 128, 1, 3, 8, 1), (128, 128, 1, 4, 8, 1), (128, 128, 1, 6, 8, 1),
    (256, 128, 1, 3, 8, 2), (256, 128, 1, 4, 8, 4), (128, 256, 1, 3, 8, 2), (128, 256, 1, 4, 8, 4),
    (64, 64, 2, 3, 4, 1), (128, 64, 2, 3, 4, 1), (128, 128, 2, 3, 8, 2),
)  # fmt: skip
# Tiles of conv_gather: pixels, elements added up at a time, stages, warps.
_GATHER_TILES = (  # of odd channels some spill, and are the fastest even so where taps are few
    (64, 64, 4, 4), (128, 32, 3, 4), (128, 64, 3, 4), (128, 64, 4, 8), (128, 128, 2, 4),
    (256, 32, 3, 8), (256, 64, 3, 8),
)  # fmt: skip
_GATHER_WIDTHS = (16, 32, 64, 128, 256)  # output channels of a tile
_RESIDENT_TILES = (
    (64, 64, 4, 4, 1), (128, 64, 3, 4, 1), (128, 64, 4, 4, 1), (64, 128, 4, 4, 1),
    (128, 128, 3, 8, 1), (128, 128, 4, 8, 2), (128, 256, 2, 8, 2), (128, 256, 3, 8, 2),
    (64, 256, 3, 8, 1), (256, 64, 3, 8, 1), (256, 128, 2, 8, 2),
)  # fmt: skip
NEAR_LEAST, CLEARLY_LESS = 1.15, 0.96  # of the multiply-adds of the least wasteful box
MIN_ROW_BYTES = 32  # the least inner box worth a swizzle
MIN_DEPTH = 16  # elements that a product adds up at least, in Triton


def _boxes(pixels: int, what: Sum, kernel: str) -> list[tuple[int, int, int]]:
    """Boxes of `pixels` pixels: two squarish ones of little waste, and any that wastes far less.

    Large squares come first: their windows overlap within an image, which L2 then serves.
    """
    if what.shape.flat:
        return [(1, 1, pixels)]
    powers = [1 << i for i in range(pixels.bit_length())]
    found = [
        (pixels // (h * w), h, w)
        for h in powers
        for w in (h, 2 * h)
        if h * w <= pixels and max(pixels // (h * w), w) <= MAX_BOX
    ]

    def cost(box: tuple[int, int, int]) -> float:
        return what.products(Config(kernel, box, 64, 64, 1, 4))

    least = min(found, key=cost)
    near = sorted(
        (box for box in found if cost(box) <= NEAR_LEAST * cost(least)),
        key=lambda box: -box[1] * box[2],
    )
    clear = [least] * (cost(least) < CLEARLY_LESS * cost(near[0]))
    return list(dict.fromkeys((*near[:2], *clear)))


def _catalogue(what: Sum) -> Iterator[Config]:
    line = 128 // what.element_bytes
    wide = max(1, what.element_bytes // 2)
    widest = max(64, power_of_two(what.k))
    yield from _gather(what)
    for pixels, bk, lines, stages, warps, split in _TILES:
        bc = lines * line
        if bk > widest or (lines > 1 and bc > what.c):
            continue
        for box in _boxes(pixels, what, TMA):
            plain = Config(TMA, box, bk, min(bc, _channels(what)), stages, warps)
            yield from _both(plain, PERSISTENT, split * wide)
        for box in _boxes(pixels, what, ROWS):
            rows = Config(ROWS, box, bk, what.row_length, stages, warps)
            yield from _both(rows, ROWS_PERSISTENT, split * wide)
        matrix = Config(GEMM, (1, 1, pixels), bk, bc, stages, warps)
        serialized = warps == 8  # by ptxas, in Triton 3.6's plain kernel
        yield from list(_both(matrix, GEMM_PERSISTENT, split * wide))[serialized:]
    if what.shape.flat and what.c <= MAX_RESIDENT_CHANNELS:
        yield from _resident(what, widest, wide)
    yield from _gluon(what)


def _gather(what: Sum) -> Iterator[Config]:
    depth = power_of_two(max(_least_depth(what), what.shape.r * what.shape.s * what.c))
    widest = power_of_two(max(min(_GATHER_WIDTHS), what.k))
    widths = dict.fromkeys(min(width, widest) for width in _GATHER_WIDTHS)
    for pixels, bd, stages, warps in _GATHER_TILES:
        for bk in widths:
            yield Config(GATHER, (1, 1, pixels), bk, min(bd, depth), stages, warps)


def _gluon(what: Sum) -> Iterator[Config]:
    for pixels, bk, bc, stages, warps, split, per_sm in gluon_config.tiles(what):
        for box in _boxes(pixels, what, GLUON):
            plain = Config(GLUON, box, bk, bc, stages, warps, split, per_sm)
            yield plain
            if what.pixel(padded=True) != what.pixel(padded=False):
                yield replace(plain, padded=True)


def _depthwise(what: Sum) -> Iterator[Config]:
    for box, bk in depthwise_config.tiles(what):
        yield Config(DEPTHWISE, box, bk, 1, 1, depthwise_config.WARPS)


def _channels(what: Sum) -> int:
    """The most channels at a time: a power of two, that divides what are views of rank five."""
    if what.shape.stride > 1 and not what.dgrad:
        return max(1, what.c & -what.c)
    return power_of_two(what.c)


def _both(plain: Config, walking: str, split: int) -> Iterator[Config]:
    yield plain
    yield replace(plain, kernel=walking, split=split)
    if plain.warps == 4:
        yield replace(plain, kernel=walking, split=split, per_sm=2, stages=min(plain.stages, 4))


def _resident(what: Sum, widest: int, wide: int) -> Iterator[Config]:
    bc = max(16, power_of_two(what.c))
    for pixels, bk, stages, warps, split in _RESIDENT_TILES:
        if bk <= widest:
            config = Config(RESIDENT, (1, 1, pixels), bk, bc, stages, warps, split * wide)
            yield config
            yield replace(config, per_sm=2)


def _least_depth(what: Sum) -> int:
    """Elements that a step of Triton's kernels adds up at least."""
    return max(MIN_DEPTH, MIN_ROW_BYTES // what.element_bytes)


def choices(
    shape: ConvShape, which: str, precision: Precision, capability: Capability, sm_count: int
) -> Sequence[Config]:
    """All valid configurations of the catalogue, the most promising first."""
    what = Sum(shape, which, precision.bytes_per_element)
    least = _least_depth(what)
    listed = _depthwise if shape.depthwise else _catalogue
    found: Iterable[Config] = dict.fromkeys(listed(what))
    possible = [
        config
        for config in found
        if valid(config, shape, which, precision, capability)
        and (config.accumulators <= MAX_ACCUMULATORS or config.kernel == GLUON)
        and (config.kernel in (GLUON, DEPTHWISE) or config.bc >= least)
    ]
    return sorted(possible, key=lambda config: estimated_clocks(config, what, precision, sm_count))


WEIGHTS_FIRST = Kernel(rows_first=False)  # operand A: activations would go through registers
FACTS: Mapping[str, Kernel] = {
    GATHER: Kernel(slowdown=1.25),  # addresses and masks
    TMA: WEIGHTS_FIRST,
    ROWS: WEIGHTS_FIRST,
    PERSISTENT: replace(WEIGHTS_FIRST, stored=0.3),  # the next tile's loads are under way
    ROWS_PERSISTENT: replace(WEIGHTS_FIRST, stored=0.3),
    GEMM: Kernel(),
    GEMM_PERSISTENT: Kernel(stored=0.3),
    RESIDENT: Kernel(stored=0.3),
    GLUON: Kernel(slowdown=1.05, stored=0.3),  # its warps meet at a barrier in each step
    DEPTHWISE: Kernel(),
}


def estimated_clocks(config: Config, what: Sum, kind: Precision, sm_count: int) -> float:
    """The tile model's clocks for one launch; see `kernels.cost`. It only ranks."""
    kernel = FACTS.get(config.kernel, WEIGHTS_FIRST)
    return cost.estimated_clocks(_work(config, what, kind), kernel, sm_count)


def _work(config: Config, what: Sum, kind: Precision) -> Work:
    if config.kernel == DEPTHWISE:
        return depthwise_config.work(config, what, kind)
    size, tiles = what.element_bytes, what.tiles(config)
    flops = what.shape.flops * what.products(config) / tiles
    gluon = config.kernel == GLUON
    pixel = what.pixel(config.padded) if gluon else what.c
    copied = pixel != what.c
    launches = int(copied) + int(gluon and what.packs(config.bk))
    if config.kernel in ROW_KERNELS:
        pixel, copied, launches = what.packed_channels, True, 2
    return Work(
        tiles=tiles,
        rows=config.pixels,
        columns=config.bk,
        depth=flops / (2 * config.pixels * config.bk),
        step=config.bc,
        element_bytes=size,
        output_bytes=kind.output_bytes,
        flop_per_clock=HOPPER.flop_per_clock[kind.rate_name],
        pieces=tuple(filter(None, gluon_config.halves(config.bk))) if gluon else (),
        resident=_together(config, kind),
        loaded=_loaded(config, size),
        spread=_spread(config, what, pixel * size),
        moved=size * prod(what.image) * what.c
        + kind.output_bytes * prod(what.whole_output) * what.k,
        launches=launches,
        extra_moved=size * prod(what.image) * (what.c + pixel) if copied else 0,
    )


def _spread(config: Config, what: Sum, pixel_bytes: int) -> float:
    """The factor on the time of loads from the alignment of pixels."""
    if config.kernel in ROW_KERNELS:
        return 1.0
    if config.kernel == GATHER:
        return gathered_spread(pixel_bytes)
    return spread(pixel_bytes)


def _loaded(config: Config, element_bytes: int) -> float:
    """What scales a tile's loads: RESIDENT keeps the weights. TMA reads pixel by pixel, and takes
    as long for a part of a line as for a whole one.
    """
    if config.kernel == RESIDENT:
        return config.pixels / (config.pixels + config.bk)
    by_tma = config.kernel != GATHER
    return max(1.0, LINE_BYTES / (config.bc * element_bytes)) if by_tma else 1.0


def _together(config: Config, kind: Precision) -> int:
    """Programs that share an SM."""
    if config.kernel in WALKING:
        return config.per_sm
    shared = shared_memory(config, kind)
    return min(4, HOPPER.blocks_per_sm(32 * config.warps, config.accumulators, shared))
