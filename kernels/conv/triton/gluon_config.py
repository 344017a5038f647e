"""What the Gluon kernel of fprop and dgrad needs to know of a shape: views, taps, tiles.

Nothing here imports torch or triton: tables and rules can be checked on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from kernels.gpus import HOPPER
from kernels.precision import Capability
from kernels.triton_util import TMA_ALIGNMENT, gluon_missing, power_of_two

if TYPE_CHECKING:
    from kernels.conv.triton.data_config import Config, Sum

MOST_STRIDE = 2  # a view of the tensor for each parity of rows and columns: four
LEAST_WIDTH = 16  # output channels of an accumulator
LEAST_GROUP = 4  # channels of a group: fewer would be multiplied with too many zeros
WIDEST_MERGED = 32  # channels of groups that are multiplied together for longer rows alone
WGMMA_BYTES = 32  # of the channels that one wgmma multiplies
BARRIERS = 1024  # bytes beside the buffers
LINE = 128  # bytes of a pixel's channels that a stage holds at most: TMA's widest swizzle


@dataclass(frozen=True)
class View:
    """Every step-th row and column of an image [N, H, W, C], from (row, column): a descriptor.

    `offset` is that of the first element, `sizes` and `strides` are of [N, rows, columns, C].
    """

    offset: int
    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]


def view(
    image: tuple[int, int, int], channels: int, apart: int, step: int, row: int, column: int
) -> View:
    """The view of an image (N, H, W) whose pixels lie `apart` elements from one another."""
    n, h, w = image
    sizes = (n, ceil((h - row) / step), ceil((w - column) / step), channels)
    strides = (h * w * apart, step * w * apart, step * apart, 1)
    return View((row * w + column) * apart, sizes, strides)


@dataclass(frozen=True)
class Parity:
    """The outputs that are computed alike: pixels (row, column), (row + step, column), ...

    Each of `taps` is (parity of the input, rows and columns to move there, number of the tap): the
    output (i, j) of the parity meets the pixel (i + rows, j + columns) of that view of the input.
    A parity is (row, column).
    """

    row: int
    column: int
    taps: tuple[tuple[tuple[int, int], int, int, int], ...]


def parities(what: Sum) -> list[Parity]:
    """The sub-convolutions of a pass, the one of most taps first: one, or dgrad's stride**2.

    Their order spreads the work: programs take tiles one after another, the long ones first.
    """
    step = what.shape.stride if what.split_output else 1
    found = [
        Parity(row, column, tuple(_taps(what, row, column)))
        for row in range(step)
        for column in range(step)
        if row < what.whole_output[1] and column < what.whole_output[2]
    ]
    return sorted(found, key=lambda parity: -len(parity.taps))


def _taps(what: Sum, row: int, column: int) -> Iterator[tuple[tuple[int, int], int, int, int]]:
    s = what.shape
    for tap in range(s.r * s.s):
        down, right = (s.dilation * i for i in divmod(tap, s.s))
        if what.dgrad:
            down, right = row + s.padding - down, column + s.padding - right
            if down % s.stride == right % s.stride == 0:
                yield (0, 0), down // s.stride, right // s.stride, tap
        else:
            (rows, row_parity), (columns, column_parity) = (
                divmod(reach - s.padding, s.stride) for reach in (down, right)
            )
            if row_parity < s.h and column_parity < s.w:  # a view that has pixels
                yield (row_parity, column_parity), rows, columns, tap


def halves(bk: int) -> tuple[int, int]:
    """(HEAD, TAIL) of a tile's output channels: powers of two, TAIL may be none."""
    head = 1 << (bk.bit_length() - 1)
    return head, bk - head


def depths(channels: int, bc: int, element_bytes: int) -> tuple[int, int]:
    """(steps of bc channels, channels that the last of them multiplies, in whole wgmmas)."""
    steps, fine = ceil(channels / bc), WGMMA_BYTES // element_bytes
    return steps, ceil((channels - (steps - 1) * bc) / fine) * fine


def _power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def multiplied(what: Sum, bk: int, bc: int) -> int:
    """Channels that are multiplied for each tap, those of other groups and past the last with
    them.
    """
    steps, last = depths(what.block(bk)[0], bc, what.element_bytes)
    return (steps - 1) * bc + last


def missing(what: Sum, capability: Capability) -> str | None:
    """Why the Gluon kernel cannot run a pass on a GPU of this capability, or None."""
    if capability != (9, 0):
        return "it multiplies by wgmma, which Hopper alone has"
    if what.shape.stride > MOST_STRIDE:
        return f"it has descriptors for strides up to {MOST_STRIDE}"
    if what.shape.groups > 1 and (what.group_c % LEAST_GROUP or what.group_k % LEAST_GROUP):
        return f"a group's channels must be multiples of {LEAST_GROUP}"
    return gluon_missing()


def fits(config: Config, what: Sum) -> bool:
    """Whether the tile is one of the kernel's: widths of accumulators, depth of a step."""
    head, tail = halves(config.bk)
    widths = head >= LEAST_WIDTH and (tail == 0 or (_power(tail) and tail >= LEAST_WIDTH))
    line = config.bc * what.element_bytes
    deep = _power(config.bc) and WGMMA_BYTES <= line <= LINE
    rows = 16 * config.warps  # of a wgmma of each warpgroup
    whole = all(map(_power, config.box)) and config.pixels % rows == 0
    grouped = what.shape.groups == 1 or _blocks_fit(what, config.bk)
    shared = config.warps in (4, 8) and config.split in (1, 2)
    copied = not config.padded or what.pixel(padded=True) != what.pixel(padded=False)
    return widths and deep and whole and grouped and shared and copied


def _blocks_fit(what: Sum, bk: int) -> bool:
    """Whether tiles stay within a block, and no more groups share one than must or are worth it."""
    wider = what.merged(bk) > what.merged(1) and max(what.block(bk)) > WIDEST_MERGED
    return what.block(bk)[1] % bk == 0 and not wider


def word(channels: int, element_bytes: int) -> int:
    """Channels that one store may write where pixels do not start on 16 bytes; 0 where they do."""
    length = channels * element_bytes
    return 0 if length % TMA_ALIGNMENT == 0 else (length & -length) // element_bytes


def registers(config: Config) -> int:
    """Registers of a thread with which `per_sm` programs fit an SM; the compiler shares them out.

    The warp that loads has those of a whole warpgroup.
    """
    threads = 32 * (config.warps + 4) * config.per_sm
    return HOPPER.sm_registers // threads // 8 * 8


def shared_memory(
    pixels: int, bk: int, bc: int, stages: int, split: int, element_bytes: int
) -> int:
    """Estimated bytes of shared memory of one program."""
    head, tail = halves(bk)
    stage = (pixels + bk) * bc
    idle = LEAST_WIDTH * bc if not tail else 0  # the kernel has a buffer even for no tail
    staged = pixels * (head // split + max(tail, LEAST_WIDTH))
    return (stages * stage + idle + staged) * element_bytes + BARRIERS


# Pixels, warps, parts that a tile is stored in, programs on an SM; then stages are those that fit.
TILES = ((128, 8, 1, 1), (256, 8, 1, 1), (256, 8, 2, 1), (64, 4, 1, 2), (128, 8, 1, 2))
WIDTHS = (16, 32, 48, 64, 80, 96, 128, 144, 160, 192, 256)  # output channels of a tile
WIDTHS_KEPT, WORST_WIDTH = 4, 1.35  # of the clocks of the best
STAGES = (6, 3)  # at most, at least
MOST_ACCUMULATORS = 160  # float32 sums of one thread, which may have 240 registers
MOST_ACCUMULATORS_OF_SINGLES = 128  # where pixels are stored by elements: addresses take registers
MOST_ACCUMULATORS_OF_TWO = 64  # with two programs of 8 warps on an SM


def product_clocks(bk: int) -> float:
    """SM clocks of one wgmma step of 64 pixels (32 bytes deep) by bk output channels.

    Tensor Cores take half a clock a column. Shared memory gives 128 bytes a clock: 16 clocks for
    the pixels, which each accumulator reads again, and a quarter of one for each column.
    """
    return sum(max(width / 2, 16 + width / 4) for width in halves(bk) if width)


def widths(what: Sum) -> list[int]:
    """The widths of tiles that take the output channels in the fewest clocks, the widest first."""
    clocks = {
        bk: ceil(what.k / bk) * product_clocks(bk) * what.block(bk)[0]
        for bk in WIDTHS
        if what.shape.groups == 1 or _blocks_fit(what, bk)
    }
    found = sorted(clocks, key=lambda bk: (clocks[bk], -bk))[:WIDTHS_KEPT]
    return sorted(
        (bk for bk in found if clocks[bk] <= WORST_WIDTH * clocks[found[0]]), reverse=True
    )


def tiles(what: Sum) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """(pixels, output channels, channels, stages, warps, parts, programs on an SM) worth a try."""
    size = what.element_bytes
    for bk in widths(what):
        bc = min(LINE // size, max(WGMMA_BYTES // size, power_of_two(what.block(bk)[0])))
        for pixels, warps, split, per_sm in TILES:
            sums = pixels * bk // (32 * warps)
            most = MOST_ACCUMULATORS if warps == 4 or per_sm == 1 else MOST_ACCUMULATORS_OF_TWO
            if word(what.k, size) == 1:
                most = min(most, MOST_ACCUMULATORS_OF_SINGLES)
            if sums > most or (split > 1 and halves(bk)[0] < 2 * LEAST_WIDTH):
                continue
            left = HOPPER.sm_shared_bytes // per_sm - HOPPER.block_reserve_bytes
            left -= shared_memory(pixels, bk, bc, 0, split, size)
            stages = left // ((pixels + bk) * bc * size)
            if stages >= STAGES[1]:
                yield pixels, bk, bc, min(stages, STAGES[0]), warps, split, per_sm
