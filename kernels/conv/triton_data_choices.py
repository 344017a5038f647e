"""Which configurations of the Triton fprop and dgrad to try: a catalogue, ranked by a cost model.

Nothing here imports torch or triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, prod

from kernels.conv.shape import ConvShape
from kernels.conv.triton_data_configs import (
    GEMM,
    GEMM_PERSISTENT,
    MAX_ACCUMULATORS,
    MAX_BOX,
    MAX_RESIDENT_CHANNELS,
    PERSISTENT,
    POINTER,
    RESIDENT,
    ROWS,
    ROWS_PERSISTENT,
    TMA,
    WALKING,
    Config,
    Sum,
    power_of_two,
    shared_memory,
    valid,
)
from kernels.gemm.triton_configs import shared_memory_limit
from kernels.precision import Capability, Precision

# Tiles of the TMA kernels: pixels, output channels, 128-byte lines of input channels, stages,
# warps, parts stored by a plain and by a walking kernel.
_TILES = (
    (64, 64, 1, 6, 4, 1), (64, 128, 1, 5, 4, 1), (128, 64, 1, 4, 4, 1), (128, 64, 1, 6, 4, 1),
    (256, 64, 1, 3, 4, 2), (256, 64, 1, 4, 4, 2), (64, 256, 1, 4, 8, 1),
    (128, 128, 1, 3, 4, 2), (128, 128, 1, 3, 8, 1), (128, 128, 1, 4, 8, 1), (128, 128, 1, 6, 8, 1),
    (256, 128, 1, 3, 8, 2), (256, 128, 1, 4, 8, 4), (128, 256, 1, 3, 8, 2), (128, 256, 1, 4, 8, 4),
    (64, 64, 2, 3, 4, 1), (128, 64, 2, 3, 4, 1), (128, 128, 2, 3, 8, 2),
)  # fmt: skip
_POINTER_TILES = ((32, 32, 4, 4), (64, 64, 4, 4), (128, 64, 4, 4), (128, 128, 3, 8))
_RESIDENT_TILES = (
    (64, 64, 4, 4, 1), (128, 64, 3, 4, 1), (128, 64, 4, 4, 1), (64, 128, 4, 4, 1),
    (128, 128, 3, 8, 1), (128, 128, 4, 8, 2), (128, 256, 2, 8, 2), (128, 256, 3, 8, 2),
    (64, 256, 3, 8, 1), (256, 64, 3, 8, 1), (256, 128, 2, 8, 2),
)  # fmt: skip
NEAR_LEAST, CLEARLY_LESS = 1.15, 0.96  # of the products that the least wasteful box does
MIN_ROW_BYTES = 32  # the least inner box worth a swizzle


def _boxes(pixels: int, what: Sum, kernel: str) -> list[tuple[int, int, int]]:
    """Boxes of so many pixels: two squarish ones of little waste, and any that wastes far less.

    Large squares come first: their windows overlap within an image, which L2 then serves.
    """
    if what.matrix:
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
    wide = what.element_bytes // 2
    widest = max(64, power_of_two(what.k))
    for pixels, bk, stages, warps in _POINTER_TILES:
        bc = min(line, max(16, power_of_two(what.c)))
        yield Config(POINTER, (1, 1, pixels), bk, bc, stages, warps)
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
    if what.matrix and what.c <= MAX_RESIDENT_CHANNELS:
        yield from _resident(what, widest, wide)


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


def choices(
    shape: ConvShape, which: str, precision: Precision, capability: Capability, sm_count: int
) -> Sequence[Config]:
    """All valid configurations of the catalogue, the most promising first."""
    what = Sum(shape, which, precision.bytes_per_element)
    least = MIN_ROW_BYTES // what.element_bytes
    found: Iterable[Config] = dict.fromkeys(_catalogue(what))
    possible = [
        config
        for config in found
        if valid(config, shape, which, precision, capability)
        and config.accumulators <= MAX_ACCUMULATORS
        and (config.kernel == POINTER or config.bc >= least)
    ]
    return sorted(possible, key=lambda config: estimated_clocks(config, what, sm_count))


# Per SM and clock. Products: NVIDIA's H100 whitepaper, "H100 SM", dense, multiply-adds count two.
FLOP_PER_CLOCK = {2: 4096, 4: 2048}
L2_BYTES_PER_CLOCK = 42  # about 10 TB/s over 132 SMs; a model's constant, not a measurement
MEMORY_BYTES_PER_CLOCK = 18  # about 4.2 TB/s at 1.75 GHz; likewise
START_CLOCKS = 3000  # launch, first loads
POINTER_SLOWDOWN = 2.0  # masks and 64-bit addresses, against TMA
NARROW_SLOWDOWN = 1.15  # 64 wide: shared memory feeds wgmma too slowly


def estimated_clocks(config: Config, what: Sum, sm_count: int) -> float:
    """A model's SM clocks for one launch: waves x (products or loads), or memory alone."""
    size = what.element_bytes
    tiles = what.tiles(config)
    together = _together(config, size)
    waves = ceil(tiles / (sm_count * together)) * together if tiles > sm_count else 1
    flops = what.shape.flops * what.products(config) / tiles
    narrow = NARROW_SLOWDOWN if min(config.pixels, config.bk) < 128 else 1.0
    products = flops * narrow / FLOP_PER_CLOCK[size]
    pixels, channels = config.pixels, config.bk
    read = flops / (2 * pixels * channels) * (pixels + channels) * size
    if config.kernel == RESIDENT:
        read = pixels * config.bc * size
    store = pixels * channels * size / L2_BYTES_PER_CLOCK
    hidden = config.kernel in WALKING or together > 1
    per_tile = max(products, read / L2_BYTES_PER_CLOCK) + store * (0.3 if hidden else 1)
    moved = size * (prod(what.image) * what.c + prod(what.whole_output) * what.k)
    memory = moved / MEMORY_BYTES_PER_CLOCK / sm_count
    slow = POINTER_SLOWDOWN if config.kernel == POINTER else 1.0
    return START_CLOCKS + max(memory, waves * per_tile) * slow + 0.05 * waves * per_tile


def _together(config: Config, element_bytes: int) -> int:
    """Programs that share an SM."""
    if config.kernel in WALKING:
        return config.per_sm
    fit = shared_memory_limit((9, 0)) // shared_memory(config, element_bytes)
    registers = 65536 // (32 * config.warps * (config.accumulators + 48))
    return max(1, min(fit, registers, 4))
