"""Configurations of the Triton weight gradient: labels, what a shape allows, which to try.

Nothing here imports torch or triton: tables and rules can be checked on any machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

from kernels import cost
from kernels.conv.shape import ConvShape
from kernels.conv.triton import PRECISIONS, depthwise_config
from kernels.cost import WARPGROUP_ROWS, Kernel, Work
from kernels.gpus import HOPPER, architecture, has_tma
from kernels.precision import Capability, Precision
from kernels.triton_util import (
    MAX_BOX,
    MAX_INDEX,
    Grammar,
    power_of_two,
    row_for_tma,
)

TMA, GATHER, EXCHANGED = "wgrad_tma", "wgrad_gather", "wgrad_exchanged"
DEPTHWISE = "wgrad_depthwise"
KERNELS = (TMA, GATHER, EXCHANGED, DEPTHWISE)
GATHERING = (GATHER, EXCHANGED)
LABELS = Grammar("Triton weight gradient", KERNELS, 4, ("t", "r", "s", "w", "x"), flag="padded")

MAX_SPLITS = 65535
BARRIERS = 512  # bytes beside the buffers
LEAST_SIDE = 16  # of a multiplication
MAX_ACCUMULATORS = 192  # registers of a thread
MOST_ODD_STRIDE = 2  # that does not divide W: wgrad_tma has a view of even and one of odd columns
FEW_CHANNELS = 8  # fill no tile of wgrad_tma
BLOCK = 64  # rows of a wgmma, and channels of a line: groups that are smaller share them


@dataclass(frozen=True)
class Config:
    """One way to run a pass.

    A multiplication is bk filters x bc channels (wgrad_gather: columns of R*S*C; wgrad_depthwise:
    kernel columns) over images*columns pixels of one row. A step takes `rows` rows and `taps`
    kernel rows; `stages` steps are buffered. `splits` programs share the pixels of a tile of dw.
    wgrad_exchanged is wgrad_gather with x and dy, and so filters and channels, exchanged. `padded`:
    TMA reads copies whose pixels start on lines, or powers of two within one.
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
    padded: bool = False

    @property
    def family(self) -> str:
        """The kernel."""
        return self.kernel

    @property
    def label(self) -> str:
        """Compact name, which `parse` reads: "wgrad_tma/8x8x64x64/t3/r2/s2/w4/x44"."""
        sizes = (self.images, self.columns, self.bk, self.bc)
        numbers = (self.taps, self.rows, self.stages, self.warps, self.splits)
        return LABELS.write(self.kernel, sizes, numbers, self.padded)

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of the implicit GEMM tile: filters, taps*channels, pixels of a step."""
        return self.bk, self.taps * self.bc, self.rows * self.pixels

    @property
    def pixels(self) -> int:
        """Pixels of one multiplication: images * columns."""
        return self.images * self.columns

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold float32 sums."""
        sums = self.taps * self.bk * self.bc
        if self.kernel == DEPTHWISE:  # which adds up the pixels of a step last
            sums *= self.pixels
        return sums // (32 * self.warps)


def parse(label: str) -> Config:
    """The configuration a label names. Raises ValueError for any other text."""
    kernel, sizes, numbers, padded = LABELS.read(label)
    images, columns, bk, bc = sizes
    taps, rows, stages, warps, splits = numbers
    return Config(kernel, images, columns, bk, bc, taps, rows, stages, warps, splits, padded)


def exchangeable(shape: ConvShape) -> bool:
    """Whether the pass is also that of a convolution with x and y exchanged."""
    plain = (shape.stride, shape.dilation, shape.groups) == (1, 1, 1)
    return plain and shape.r == shape.s and shape.padding < shape.r


def seen(config: Config, shape: ConvShape) -> ConvShape:
    """The convolution whose gradient the kernels compute; wgrad_exchanged exchanges x and y."""
    if config.kernel != EXCHANGED:
        return shape
    padding = shape.r - 1 - shape.padding
    return replace(shape, c=shape.k, h=shape.p, w=shape.q, k=shape.c, padding=padding)


def pixels_of(config: Config, shape: ConvShape, kind: Precision) -> tuple[int, int]:
    """Elements from one pixel to the next of x and dy, as the kernel reads them."""
    if config.kernel != TMA:
        return shape.c, shape.k
    size = kind.bytes_per_element
    x, y = (row_for_tma(width * size, config.padded) // size for width in (shape.c, shape.k))
    return x, y


def valid(config: Config, shape: ConvShape, which: str, kind: Precision, cap: Capability) -> bool:
    """Whether the configuration can run the pass on a GPU of this capability: TMA's limits,
    registers, shared memory. Without groups GATHER runs all sizes.
    """
    if which != "wgrad" or kind.name not in PRECISIONS or kind.is_float8:
        return False
    if shape.depthwise or config.kernel == DEPTHWISE:
        return _depthwise_valid(config, shape)
    if cap < (8, 0) or (shape.groups > 1 and config.kernel != TMA):
        return False
    if config.splits > MAX_SPLITS or config.accumulators > MAX_ACCUMULATORS:
        return False
    if config.padded and not _pays(config, shape, kind):
        return False
    sizes = (config.pixels, config.bk, config.bc, config.warps)
    if any(size & (size - 1) for size in sizes) or min(sizes[:3]) < LEAST_SIDE:
        return False
    if config.kernel in GATHERING:
        one_row = config.images == config.taps == config.rows == 1
        possible = config.kernel == GATHER or exchangeable(shape)
        return one_row and possible and _fits(config, shape, kind, cap)
    return _tma_valid(config, shape, kind, cap)


def _pays(config: Config, shape: ConvShape, kind: Precision) -> bool:
    """Whether `padded` makes other copies than are made anyway."""
    plain = replace(config, padded=False)
    return pixels_of(config, shape, kind) != pixels_of(plain, shape, kind)


def _depthwise_valid(config: Config, shape: ConvShape) -> bool:
    whole = config.kernel == DEPTHWISE and config.images == 1 and not config.padded
    powers = all(size & (size - 1) == 0 for size in (config.columns, config.bk, config.warps))
    divides = shape.r % config.taps == shape.s % config.bc == 0
    small = config.splits <= MAX_SPLITS and config.accumulators <= MAX_ACCUMULATORS
    return (
        shape.depthwise
        and whole
        and powers
        and divides
        and small
        and (steps(config, shape) <= MAX_INDEX)
    )


def _tma_valid(config: Config, shape: ConvShape, kind: Precision, cap: Capability) -> bool:
    if not has_tma(cap) or shape.r % config.taps:
        return False
    if max(config.images, config.columns, config.bk, config.bc) > MAX_BOX:
        return False
    if max(shape.n * shape.p * shape.q, shape.n * shape.h * shape.w) > MAX_INDEX:
        return False
    if shape.flat and (config.images > 1 or config.rows > 1):
        return False
    if shape.w % shape.stride and (shape.stride > MOST_ODD_STRIDE or shape.w < shape.stride):
        return False
    return _fits(config, shape, kind, cap)


def _fits(config: Config, shape: ConvShape, kind: Precision, cap: Capability) -> bool:
    return shared_memory(config, shape, kind) <= architecture(cap).block_shared_bytes


def blocks(shape: ConvShape) -> tuple[int, int, int, int]:
    """(groups of a block, blocks, filters of one, channels of one).

    Groups that follow one another share the rows of a wgmma and a line of channels. Of the products
    only those within a group are kept.
    """
    groups, k, c = shape.groups, shape.k // shape.groups, shape.c // shape.groups
    merged = 1
    while groups > 1 and not shape.depthwise and 2 * merged * max(c, k) <= BLOCK:
        merged *= 2
    return merged, ceil(groups / merged), merged * k, merged * c


def part_elements(shape: ConvShape) -> int:
    """Elements of the sums of one split: what blocks compute, more than dw has."""
    _, count, k, c = blocks(shape)
    return count * k * shape.r * shape.s * c


def image_rows(config: Config, shape: ConvShape) -> int:
    """Rows of x that a step reads, with `rows` rows of dy and `taps` kernel rows."""
    return (config.rows - 1) * shape.stride + (config.taps - 1) * shape.dilation + 1


def step_bytes(config: Config, shape: ConvShape, kind: Precision) -> int:
    """Bytes of x and dy that a step loads."""
    width = config.bk if config.kernel == DEPTHWISE else config.bc
    columns = config.rows * config.bk + image_rows(config, shape) * width
    return config.pixels * columns * kind.bytes_per_element


def shared_memory(config: Config, shape: ConvShape, kind: Precision) -> int:
    """Estimated bytes of shared memory of one program; only the compiler knows the exact number."""
    if config.kernel == DEPTHWISE:  # the warps' sums meet
        return 4 * config.warps * config.bk
    buffers = config.stages * step_bytes(config, shape, kind)
    if config.kernel == TMA and kind.bytes_per_element > 2:  # transposed for wgmma, by registers
        buffers += config.pixels * config.bc * config.taps * kind.bytes_per_element
    return buffers + BARRIERS


def in_parts(config: Config, shape: ConvShape) -> bool:
    """Whether the sums go to scratch, from which a second launch makes dw."""
    return config.splits > 1 or blocks(shape)[0] > 1


def tiles(config: Config, shape: ConvShape) -> int:
    """Tiles of dw [K, R, S, C], which is the number of programs of one split."""
    if config.kernel == DEPTHWISE:
        return ceil(shape.k / config.bk) * (shape.r // config.taps) * (shape.s // config.bc)
    shape = seen(config, shape)
    _, count, k, c = blocks(shape)
    filters = count * ceil(k / config.bk)
    if config.kernel in GATHERING:
        return filters * ceil(shape.c * shape.r * shape.s / config.bc)
    return filters * (shape.r // config.taps) * shape.s * ceil(c / config.bc)


def steps(config: Config, shape: ConvShape) -> int:
    """Steps over the pixels, of all splits together."""
    shape = seen(config, shape)
    if config.kernel in GATHERING or (config.kernel == TMA and shape.flat):
        return ceil(shape.n * shape.p * shape.q / config.pixels)
    row_blocks = ceil(shape.p / config.rows) * ceil(shape.q / config.columns)
    return ceil(shape.n / config.images) * row_blocks


def registers_allow(config: Config) -> int:
    """Programs whose registers fit an SM of Hopper, by an estimate."""
    return HOPPER.blocks_per_sm(32 * config.warps, config.accumulators, 0)


def blocks_per_sm(config: Config, shape: ConvShape, kind: Precision) -> int:
    """Programs that fit an SM of Hopper at once, by shared memory and registers."""
    shared = shared_memory(config, shape, kind)
    return HOPPER.blocks_per_sm(32 * config.warps, config.accumulators, shared)


SPLITS_KEPT = 3  # of one tile
LATER_SPLIT = 1.15  # clocks of a tile's second-best split count this much more
ALIKE = 0.02  # and those of each further configuration of a family
MOST_WAVES = 4
SCRATCH_BYTES = 64 << 20  # partial sums may take this much, or as much as the inputs
MOST_STAGES = 6
MOST_WASTE = 1.2  # pixels computed for one that exists
LONGEST_STEP = 256  # pixels

# (bk, bc, warps) with one tap and with a column of three. A tile of several images and columns
# takes dy through registers, where ptxas serializes wgmma unless one warpgroup has 64 filters.
TILES = {
    1: (
        (64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 128, 4), (128, 128, 8), (64, 256, 4),
        (256, 64, 8), (128, 256, 8), (256, 128, 8),
    ),
    3: ((64, 64, 4), (64, 128, 4), (128, 64, 8), (128, 128, 8)),
}  # fmt: skip
REGISTER_TILES = {1: ((64, 64, 4), (64, 128, 4)), 3: ((64, 64, 4),)}
TRANSPOSED_TILES = ((64, 64, 4), (128, 64, 4), (128, 64, 8))  # tf32
LEAST_COLUMNS = 32  # of a tile of the gathering kernels
# Of the gathering kernels: pixels, filters, columns, stages, warps.
GATHER_TILES = (
    (32, 64, 32, 4, 4), (64, 64, 32, 4, 4), (64, 64, 64, 4, 4), (32, 64, 128, 4, 4),
    (64, 64, 128, 4, 4), (64, 128, 64, 4, 4), (64, 128, 64, 4, 8), (32, 128, 128, 4, 8),
    (64, 128, 128, 4, 8), (64, 128, 128, 3, 4), (64, 64, 256, 4, 8), (64, 128, 256, 4, 8),
    (64, 256, 128, 4, 8),
)  # fmt: skip


def choices(
    shape: ConvShape, which: str, kind: Precision, cap: Capability, sm_count: int
) -> Sequence[Config]:
    """All valid configurations of the catalogue, the most promising first.

    Configurations similar to one further up come later than their clocks alone would put them, so
    that a search over the first ones tries every family of tiles.
    """
    ranked: dict[Config, float] = {}
    for base in _with_copies(shape, kind):
        if not valid(base, shape, which, kind, cap):
            continue
        found = [
            config
            for config in _split(base, shape, kind, sm_count)
            if valid(config, shape, which, kind, cap)
        ]
        clocks = {config: estimated_clocks(config, shape, kind, sm_count) for config in found}
        for place, config in enumerate(sorted(found, key=clocks.__getitem__)[:SPLITS_KEPT]):
            ranked[config] = clocks[config] * LATER_SPLIT**place
    alike: Counter[tuple[object, ...]] = Counter()
    for config in sorted(ranked, key=ranked.__getitem__):
        family = (config.kernel, config.taps, min(config.images, 2), min(config.columns, 2))
        ranked[config] *= 1 + ALIKE * alike[family]
        alike[family] += 1
    return sorted(ranked, key=ranked.__getitem__)


def _split(base: Config, shape: ConvShape, kind: Precision, sm_count: int) -> Iterator[Config]:
    """The base with one split, and with those that fill whole waves."""
    slots = sm_count * blocks_per_sm(base, shape, kind)
    fills = {waves * slots // tiles(base, shape) for waves in range(1, MOST_WAVES + 1)}
    elements = part_elements(shape)
    inputs = (shape.elements("x") + shape.elements("y")) * kind.bytes_per_element
    most = min(steps(base, shape), max(SCRATCH_BYTES, inputs) // (4 * elements))
    for splits in sorted({1} | {fill for fill in fills if 1 < fill <= most}):
        yield replace(base, splits=splits)


TRANSPOSED_SLOWDOWN = 2.0  # tf32 through registers
REGISTERS_SLOWDOWN = 1.3  # dy through registers: a step of several images and columns
SCATTERED = 1.3  # of DRAM: single pixels of few channels, each from another page


def estimated_clocks(config: Config, shape: ConvShape, kind: Precision, sm_count: int) -> float:
    """The tile model's clocks of a pass and its reduction; see `kernels.cost`. It only
    ranks.
    """
    slowdown = 1.0
    if kind.bytes_per_element > 2 and config.kernel != DEPTHWISE:
        slowdown *= TRANSPOSED_SLOWDOWN
    if config.kernel == TMA and min(config.images, config.columns) > 1:
        slowdown *= REGISTERS_SLOWDOWN
    return cost.estimated_clocks(_work(config, shape, kind), Kernel(slowdown), sm_count)


def _work(config: Config, shape: ConvShape, kind: Precision) -> Work:
    size, split = kind.bytes_per_element, in_parts(config, shape)
    depth = config.rows * config.pixels
    loaded = step_bytes(config, shape, kind) / (depth * (config.bk + config.taps * config.bc))
    pixels = pixels_of(config, shape, kind)
    copies = sum(pixel != width for pixel, width in zip(pixels, (shape.c, shape.k), strict=True))
    gathers = config.kernel in GATHERING
    spread = cost.gathered_spread if gathers else cost.spread
    scattered = config.columns == 1 and min(shape.c, shape.k) <= 128
    return Work(
        tiles=tiles(config, shape) * config.splits,
        rows=config.bk,
        columns=config.taps * config.bc,
        depth=ceil(steps(config, shape) / config.splits) * depth,
        step=depth,
        element_bytes=size,
        output_bytes=4 if split else kind.output_bytes,
        flop_per_clock=HOPPER.flop_per_clock[
            "fp32" if config.kernel == DEPTHWISE else kind.rate_name
        ],
        pieces=(config.bc,) * config.taps,
        resident=blocks_per_sm(config, shape, kind),
        loaded=loaded / size,
        spread=max(spread(pixel * size) for pixel in pixels),
        moved=_traffic(config, shape, kind) * (SCATTERED if scattered else 1.0),
        launches=int(split) + copies,
        extra_moved=8 * config.splits * part_elements(shape) if split else 0,
    )


def _traffic(config: Config, shape: ConvShape, kind: Precision) -> float:
    elements = shape.elements("x") + shape.elements("y")
    sizes = (("x", shape.c), ("y", shape.k))
    for (name, width), pixel in zip(sizes, pixels_of(config, shape, kind), strict=True):
        if pixel != width:
            elements += shape.elements(name) * (width + pixel) // width
    return elements * kind.bytes_per_element


def catalogue(shape: ConvShape, kind: Precision) -> Iterator[Config]:
    """Every configuration worth considering for a shape, of one split each."""
    if shape.depthwise:
        for columns, bk, bc, taps, rows in depthwise_config.wgrad_tiles(
            shape, kind.bytes_per_element
        ):
            yield Config(DEPTHWISE, 1, columns, bk, bc, taps, rows, 1, depthwise_config.WARPS, 1)
        return
    if shape.groups == 1:
        yield from _gather(shape)
    if shape.c > FEW_CHANNELS or shape.groups > 1 or shape.r * shape.s == 1:
        yield from _tma(shape, kind)


def _gather(shape: ConvShape) -> Iterator[Config]:
    kernels = (GATHER, EXCHANGED) if shape.k < shape.c and exchangeable(shape) else (GATHER,)
    for kernel, (pixels, bk, bc, stages, warps) in product(kernels, GATHER_TILES):
        config = Config(kernel, 1, pixels, bk, bc, 1, 1, stages, warps, 1)
        what = seen(config, shape)
        filters, columns = map(power_of_two, (what.k, what.r * what.s * what.c))
        if bk <= max(WARPGROUP_ROWS, filters) and bc <= max(LEAST_COLUMNS, columns):
            yield config


def _with_copies(shape: ConvShape, kind: Precision) -> Iterator[Config]:
    for base in catalogue(shape, kind):
        yield base
        if base.kernel == TMA and _pays(padded := replace(base, padded=True), shape, kind):
            yield padded


def _tma(shape: ConvShape, kind: Precision) -> Iterator[Config]:
    for (images, columns, rows), taps in product(places(shape, kind), TILES):
        if (taps > 1 and shape.r != taps) or (taps == 1 < rows and columns > 16):
            continue
        k, c = map(power_of_two, blocks(shape)[2:])
        tiles = _tiles(images, columns, taps, kind)
        if shape.groups > 1 and c < 64:  # channels of other groups would only be thrown away
            tiles = [(bk, max(16, c), warps) for bk, bc, warps in tiles if bc == 64]
        for bk, bc, warps in tiles:
            if bk > max(64, k) or bc > max(64, c):
                continue
            base = Config(TMA, images, columns, bk, bc, taps, rows, 1, warps, 1)
            yield from _staged(base, shape, kind)


def _tiles(images: int, columns: int, taps: int, kind: Precision) -> Sequence[tuple[int, int, int]]:
    if kind.bytes_per_element > 2:
        return TRANSPOSED_TILES if taps == 1 else ()
    return (REGISTER_TILES if min(images, columns) > 1 else TILES)[taps]


def _staged(base: Config, shape: ConvShape, kind: Precision) -> Iterator[Config]:
    """The base with as many stages as one, two or three programs on an SM have room for."""
    found = set()
    for programs in range(1, min(3, registers_allow(base)) + 1):
        limit = HOPPER.sm_shared_bytes // programs - HOPPER.block_reserve_bytes
        stages = MOST_STAGES
        while shared_memory(replace(base, stages=stages), shape, kind) > limit:
            stages -= 1
        if stages > 1:
            found.add(stages)
    for stages in sorted(found, reverse=True):
        yield replace(base, stages=stages)


def places(shape: ConvShape, kind: Precision) -> Iterator[tuple[int, int, int]]:
    """(images, columns, rows) of a step: columns of one image, one column of many images, or both.

    At most MOST_WASTE times the pixels that exist are computed, where that can be.
    """
    line = 128 // kind.bytes_per_element  # pixels of a multiplication
    if shape.flat:
        yield from ((1, line, 1), (1, 2 * line, 1))
        return
    found = [(1, line // 4), (1, line // 2), (1, line), (1, 2 * line), (line // 2, 1), (line, 1)]
    if shape.n <= line // 4:
        found.append((line // 4, 1))
    fitting = [columns for columns in (2, 4, 8, 16) if shape.q % columns == 0]
    found += [(line // columns, columns) for columns in fitting[-2:]]
    computed: dict[tuple[int, int, int], float] = {}
    whole = [(images, columns) for images, columns in found if images * columns >= LEAST_SIDE]
    for (images, columns), rows in product(whole, (1, 2, 4, 7)):
        if line // 2 <= images * columns * rows <= LONGEST_STEP:
            parts = ((shape.n, images), (shape.p, rows), (shape.q, columns))
            waste = prod(ceil(size / part) * part / size for size, part in parts)
            computed[images, columns, rows] = waste
    least = min(computed.values())
    most = MOST_WASTE if least <= MOST_WASTE else 2 * least
    yield from (place for place, waste in computed.items() if waste <= most)
