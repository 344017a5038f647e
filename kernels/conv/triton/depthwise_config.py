"""What the depthwise kernels need to know of a shape: which tiles fit, which are worth a try.

Their configurations are those of the other kernels, with one channel added up. Nothing here imports
torch or triton: tables and rules can be checked on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod
from typing import TYPE_CHECKING

from kernels.conv.shape import ConvShape
from kernels.cost import Work, spread
from kernels.gpus import HOPPER
from kernels.precision import Precision
from kernels.triton_util import MAX_INDEX, power_of_two

if TYPE_CHECKING:
    from kernels.conv.triton.data_config import Config, Sum

WARPS = 4
CHANNELS = (64, 32)  # of a tile; with 128 Triton passes the weights through shared memory
LOADED_BYTES = (16, 8)  # of a row, by one thread
ROWS = (1, 2, 4, 8)
MOST_UNROLLED_TAPS = 9  # of a kernel that is unrolled whole; of a larger one, a column at a time
MOST_UNROLLED = 64  # tile rows * kernel rows: a kernel column takes so many products
MOST_SUMS = 32  # of one thread
MOST_HELD = 190  # sums and a kernel column's weights of one thread
MOST_WGRAD_HELD = 140  # sums and pixels of dy of one thread
WGRAD_ROWS = (1, 2, 4)


def span(what: Sum) -> int:
    """Kernel columns that are unrolled at a time: one of each parity of the output, at least."""
    if what.shape.r * what.shape.s <= MOST_UNROLLED_TAPS:
        return what.shape.s
    return what.shape.stride if what.dgrad else 1


def fits(config: Config, what: Sum) -> bool:
    """Whether the kernel of fprop and dgrad can run the configuration."""
    whole = (config.box[0], config.bc, config.split, config.per_sm) == (1, 1, 1, 1)
    powers = all(size & (size - 1) == 0 for size in (config.box[2], config.bk, config.warps))
    small = config.accumulators <= MOST_SUMS and what.tiles(config) <= MAX_INDEX
    return what.shape.depthwise and whole and powers and small and not config.padded


def columns_and_channels(channels: int, element_bytes: int) -> Iterator[tuple[int, int]]:
    """(columns, channels) of a row of a tile: a thread loads 16 bytes of it, or 8; 8 alone where
    it must load them by elements, whose addresses take registers.
    """
    aligned = channels * element_bytes % LOADED_BYTES[0] == 0
    most = power_of_two(channels)
    for bk in sorted({min(bk, most) for bk in CHANNELS}):
        for loaded in LOADED_BYTES if aligned else LOADED_BYTES[1:]:
            yield 32 * WARPS * loaded // element_bytes // bk, bk


def tiles(what: Sum) -> Iterator[tuple[tuple[int, int, int], int]]:
    """(box, channels) of the tiles worth a try."""
    for columns, bk in columns_and_channels(what.k, what.element_bytes):
        loaded, r = columns * bk // (32 * WARPS), what.shape.r
        least = LOADED_BYTES[-1] // what.element_bytes
        for rows in ROWS:
            few = rows * r <= MOST_UNROLLED and (rows + r) * loaded <= MOST_HELD
            if few or (rows == 1 and loaded == least):
                yield (1, rows, columns), bk


def wgrad_tiles(shape: ConvShape, element_bytes: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(columns, channels, kernel columns, kernel rows, rows of dy) of the tiles worth a try.

    The taps that a program adds up are as many as registers allow: each other program reads x and
    dy again.
    """
    for columns, bk in columns_and_channels(shape.k, element_bytes):
        loaded = columns * bk // (32 * WARPS)
        for taps, bc in dict.fromkeys(((shape.r, shape.s), (shape.r, 1), (1, 1))):
            for rows in WGRAD_ROWS:
                sums = loaded * taps * bc
                few = sums + rows * loaded <= MOST_WGRAD_HELD
                if few and (rows == 1 or rows * taps <= MOST_UNROLLED):
                    yield columns, bk, bc, taps, rows


def work(config: Config, what: Sum, kind: Precision) -> Work:
    """A launch of fprop or dgrad as the tile model sees it: float32 by the SM's plain units."""
    size, s, tiles = what.element_bytes, what.shape, what.tiles(config)
    outputs = config.pixels * config.bk
    depth = s.flops * what.products(config) / tiles / (2 * outputs)

    def met(outputs: int, taps: int) -> int:
        """Pixels of the input along one side of a tile."""
        reach = s.dilation * (taps - 1)
        side = outputs + reach // s.stride if what.dgrad else (outputs - 1) * s.stride + reach + 1
        return min(side, outputs * taps)

    loaded = met(config.box[1], s.r) * met(config.box[2], s.s) * config.bk
    held = config.accumulators + config.accumulators // config.box[1] * s.r  # sums, weights
    return Work(
        tiles=tiles,
        rows=config.pixels,
        columns=config.bk,
        depth=depth,
        step=ceil(depth),
        element_bytes=size,
        output_bytes=kind.output_bytes,
        flop_per_clock=HOPPER.flop_per_clock["fp32"],
        resident=HOPPER.blocks_per_sm(32 * config.warps, held, 0),
        loaded=loaded / ((config.pixels + config.bk) * depth),
        spread=max(spread(width * size) for width in (what.c, config.bk)),
        moved=size * (prod(what.image) + prod(what.whole_output)) * what.k,
        launches=1,  # the weights are transposed
    )
