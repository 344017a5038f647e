"""Which configurations of the Triton weight gradient suit a shape, and the order to try them.

Nothing here imports torch or triton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil

from kernels.conv.shape import ConvShape
from kernels.conv.triton_wgrad_configs import (
    BLOCK_RESERVE,
    FOLD,
    FOLDED_CHANNELS,
    POINTER,
    SHARED_LIMIT,
    SM_SHARED,
    TMA,
    Config,
    Fold,
    blocks_per_sm,
    flat,
    power_of_two,
    registers_allow,
    shared_memory,
    step_bytes,
    steps,
    tiles,
    valid,
)
from kernels.precision import Capability, Precision

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
POINTER_TILES = (
    (32, 32, 32, 4), (32, 64, 64, 4), (32, 128, 64, 4), (32, 64, 128, 4), (32, 128, 128, 8),
)  # fmt: skip


def choices(
    shape: ConvShape, which: str, kind: Precision, cap: Capability, sm_count: int
) -> Sequence[Config]:
    """All valid configurations of the catalogue, the most promising first.

    Those that resemble one further up come later than their clocks alone would have it, so that a
    search over the front sees every family of tiles.
    """
    ranked: dict[Config, float] = {}
    for base in catalogue(shape, kind):
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
    elements = shape.elements("w")
    inputs = (shape.elements("x") + shape.elements("y")) * kind.bytes_per_element
    most = min(steps(base, shape), max(SCRATCH_BYTES, inputs) // (4 * elements))
    for splits in sorted({1} | {fill for fill in fills if 1 < fill <= most}):
        yield replace(base, splits=splits)


# Dense FLOP per clock and SM; NVIDIA's H100 whitepaper, "H100 SM". The rest are a model's
# constants, not measurements.
FLOP_PER_CLOCK = {2: 4096, 4: 2048}
L2_BYTES_PER_CLOCK = 48  # of one SM
DRAM_BYTES_PER_CLOCK = 2400  # of the GPU
START_CLOCKS, LAUNCH_CLOCKS = 3000, 4000
POINTER_SLOWDOWN = 2.5
TRANSPOSED_SLOWDOWN = 2.0  # tf32 through registers
NARROW_SLOWDOWN = 1.25  # 64 x 64 products: shared memory feeds wgmma too slowly
SCATTERED_SLOWDOWN = 1.3  # single pixels of few channels, each from another page of DRAM
ALONE_SLOWDOWN = 1.2  # a single warpgroup on an SM waits for its own loads


def estimated_clocks(config: Config, shape: ConvShape, kind: Precision, sm_count: int) -> float:
    """A model's SM clocks of a pass: steps of the busiest SM, or DRAM; and the reduction."""
    resident = blocks_per_sm(config, shape, kind)
    programs = tiles(config, shape) * config.splits
    waves = ceil(programs / (sm_count * resident))
    busiest = ceil(programs / sm_count) if waves == 1 else waves * resident
    m, n, k = config.tile
    products = 2 * m * n * k / FLOP_PER_CLOCK[kind.bytes_per_element]
    if max(config.bk, config.bc) < 128:
        products *= NARROW_SLOWDOWN
    if kind.bytes_per_element > 2:
        products *= TRANSPOSED_SLOWDOWN
    loads = step_bytes(config, shape, kind) / L2_BYTES_PER_CLOCK
    step = max(products, loads) * (POINTER_SLOWDOWN if config.kernel == POINTER else 1)
    if busiest == 1 and config.warps == 4:
        step *= ALONE_SLOWDOWN
    computed = busiest * ceil(steps(config, shape) / config.splits) * step + waves * START_CLOCKS
    scattered = SCATTERED_SLOWDOWN if config.columns == 1 and min(shape.c, shape.k) <= 128 else 1
    traffic = scattered * _traffic(config, shape, kind)
    return max(computed, traffic) + _reduction(config, shape)


def _traffic(config: Config, shape: ConvShape, kind: Precision) -> float:
    elements = shape.elements("x") + shape.elements("y")
    if config.kernel == FOLD:
        fold = Fold.of(shape, kind.bytes_per_element)
        elements += 2 * shape.n * shape.h * fold.width * fold.channels
    return elements * kind.bytes_per_element / DRAM_BYTES_PER_CLOCK


def _reduction(config: Config, shape: ConvShape) -> float:
    if config.splits == 1 and config.kernel != FOLD:
        return 0
    return LAUNCH_CLOCKS + 8 * config.splits * shape.elements("w") / DRAM_BYTES_PER_CLOCK


def catalogue(shape: ConvShape, kind: Precision) -> Iterator[Config]:
    """Every configuration worth considering for a shape, of one split each."""
    for pixels, bk, bc, warps in POINTER_TILES:
        yield Config(POINTER, 1, pixels, bk, bc, 1, 1, 3, warps, 1)
    if shape.c <= FOLDED_CHANNELS:
        yield from _folded(shape, kind)
    else:
        yield from _tma(shape, kind)


def _tma(shape: ConvShape, kind: Precision) -> Iterator[Config]:
    for (images, columns, rows), taps in product(places(shape, kind), TILES):
        if (taps > 1 and shape.r != taps) or (taps == 1 < rows and columns > 16):
            continue
        for bk, bc, warps in _tiles(images, columns, taps, kind):
            if bk > max(64, power_of_two(shape.k)) or bc > max(64, power_of_two(shape.c)):
                continue
            base = Config(TMA, images, columns, bk, bc, taps, rows, 1, warps, 1)
            yield from _staged(base, shape, kind)


def _tiles(images: int, columns: int, taps: int, kind: Precision) -> Sequence[tuple[int, int, int]]:
    if kind.bytes_per_element > 2:
        return TRANSPOSED_TILES if taps == 1 else ()
    return (REGISTER_TILES if min(images, columns) > 1 else TILES)[taps]


def _folded(shape: ConvShape, kind: Precision) -> Iterator[Config]:
    window = Fold.of(shape, kind.bytes_per_element).window
    for (images, columns, rows), taps in product(places(shape, kind), {1, shape.r}):
        base = Config(FOLD, images, columns, 64, window, taps, rows, 1, 4, 1)
        yield from _staged(base, shape, kind)


def _staged(base: Config, shape: ConvShape, kind: Precision) -> Iterator[Config]:
    """The base with as many stages as one, two or three programs on an SM have room for."""
    found = set()
    for programs in range(1, min(3, registers_allow(base)) + 1):
        limit = min(SHARED_LIMIT, SM_SHARED // programs - BLOCK_RESERVE)
        stages = MOST_STAGES
        while shared_memory(replace(base, stages=stages), shape, kind) > limit:
            stages -= 1
        if stages > 1:
            found.add(stages)
    for stages in sorted(found, reverse=True):
        yield replace(base, stages=stages)


def places(shape: ConvShape, kind: Precision) -> Iterator[tuple[int, int, int]]:
    """(images, columns, rows) of a step that little overhangs the images.

    Columns of one image, one column of many images, or some of both.
    """
    line = 128 // kind.bytes_per_element  # pixels of a product
    if flat(shape):
        yield from ((1, line, 1), (1, 2 * line, 1))
        return
    found = [(1, line // 4), (1, line // 2), (1, line), (1, 2 * line), (line // 2, 1), (line, 1)]
    fitting = [columns for columns in (2, 4, 8, 16) if shape.q % columns == 0]
    found += [(line // columns, columns) for columns in fitting[-2:]]
    for (images, columns), rows in product(found, (1, 2, 4, 7)):
        computed = 1.0
        for size, part in ((shape.n, images), (shape.p, rows), (shape.q, columns)):
            computed *= ceil(size / part) * part / size
        if computed <= MOST_WASTE and line // 2 <= images * columns * rows <= LONGEST_STEP:
            yield images, columns, rows
