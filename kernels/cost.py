"""A model of a tiled kernel's time on Hopper: waves, Tensor Cores, L2, DRAM, and the ends of tiles.

It ranks configurations and predicts no time. Nothing here imports torch or triton. Its constants
fit some fifty timings of GEMM tiles on one H200, and winners of searches: what two accumulators
cost, and that rows which straddle 128-byte lines load half as much again. The facts of the
GEMM kernels (`kernels.gemm.triton.config.FACTS`) fit 96 more problems, timed on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kernels.gpus import LINE_BYTES, SECTOR_BYTES

WARPGROUP_ROWS = 64  # rows of the first operand of one wgmma; smaller tiles use mma.sync
SHARED_BYTES_PER_CLOCK = 128  # of an SM
EXTRA_PIECE = 0.5  # clocks an element of depth that a second wgmma of a row costs beyond its own
SHARED_SHARE = 0.15  # of the clocks that operands take from shared memory, in those of the products
ONE_ROW_OF_WARPGROUPS = 1.15  # a tile of 64 rows: one warpgroup multiplies, nothing hides its waits
MMA_SYNC_SLOWDOWN = 1.6  # mma.sync reaches 63 % of wgmma's rate on Hopper
L2_BYTES_PER_CLOCK = 56  # of one SM
STRADDLING = 1.5  # bytes that L2 moves for rows that do not start on a line of 128 bytes
SPLIT_SECTORS = 2.0  # and for those that do not even start on a sector of 32
NARROW_LOAD = 8  # bytes that a thread loads at once; fewer take as long
DRAM_BYTES_PER_CLOCK = 2400  # of the GPU
START_CLOCKS = 3000  # launch, and the first loads
LAUNCH_CLOCKS = 4000  # of another kernel
UNHIDDEN = 0.2  # of products and loads, in the time of DRAM, or the other way, by a lone program
STEP_CLOCKS = 50  # a step over the depth: barriers, the loop
OVERLAPPED_STORE = 0.5  # of a store that a neighbour on the SM, or the next tile, does not hide


@dataclass(frozen=True)
class Kernel:
    """What a kind of kernel adds to the model: one row of facts.

    `slowdown` is of its loop, against TMA and wgmma; `start`, the clocks that its launch takes
    longer. `stored` is the share of a tile's store that nothing hides. `rows_first`: the first
    operand of its products has the tile's rows, not its columns.
    """

    slowdown: float = 1.0
    start: float = 0.0
    stored: float = 1.0
    rows_first: bool = True


@dataclass(frozen=True)
class Work:
    """One launch of a configuration, as the model sees it.

    `tiles` counts those of the whole problem, parts of a split sum apart; a tile is `rows` x
    `columns`, added up over `depth` elements (those in the padding too), `step` at a time.
    `flop_per_clock` is an SM's rate. `pieces` are the widths of its products where they are several
    side by side. `resident` programs share an SM. `loaded` scales a tile's loads, where operands
    are kept or overlap; `overfetch` is what L2 moves for a byte of misaligned rows. `moved` is the
    least traffic of the problem in bytes, `extra_moved` that of `launches` further kernels.
    """

    tiles: int
    rows: int
    columns: int
    depth: float
    step: int
    element_bytes: int
    output_bytes: int
    flop_per_clock: float
    pieces: tuple[int, ...] = ()
    resident: int = 1
    loaded: float = 1.0
    overfetch: float = 1.0
    moved: float = 0.0
    launches: float = 0
    extra_moved: float = 0.0


def overfetch(row_bytes: int) -> float:
    """Bytes that L2 moves, in sectors, for a byte of rows `row_bytes` apart, read one by one."""
    if LINE_BYTES % row_bytes == 0 or row_bytes % LINE_BYTES == 0:
        return 1.0
    return STRADDLING if row_bytes % SECTOR_BYTES == 0 else SPLIT_SECTORS


def gathered_overfetch(row_bytes: int) -> float:
    """As `overfetch`, where threads load by the largest power of two that divides a row: 1 from 8
    bytes up. Fitted to 95 convolutions on one H100.
    """
    return max(1.0, NARROW_LOAD / (row_bytes & -row_bytes))


def product_clocks(work: Work, kernel: Kernel) -> float:
    """Clocks of one tile's products: m64nN takes max(N/2, what its operands take) for 16 of depth.

    A, 64 rows, is read from shared memory by every wgmma, B by every 64 rows.
    """
    rows, columns = work.rows, work.columns
    if not kernel.rows_first:
        rows, columns = columns, rows
    read = work.element_bytes / SHARED_BYTES_PER_CLOCK
    clocks = 0.0
    pieces = work.pieces or (columns,)
    for width in pieces:
        multiplied = 2 * WARPGROUP_ROWS * width / work.flop_per_clock
        operands = (WARPGROUP_ROWS + width) * read
        clocks += max(multiplied, operands) + SHARED_SHARE * operands
    clocks += EXTRA_PIECE * (len(pieces) - 1) * read * WARPGROUP_ROWS
    clocks *= max(1.0, rows / WARPGROUP_ROWS)
    if rows < WARPGROUP_ROWS:
        clocks *= MMA_SYNC_SLOWDOWN * rows / WARPGROUP_ROWS
    elif rows == WARPGROUP_ROWS:
        clocks *= ONE_ROW_OF_WARPGROUPS
    return clocks * work.depth


def estimated_clocks(work: Work, kernel: Kernel, sm_count: int) -> float:
    """The model's SM clocks: the busiest SM's tiles or DRAM, whichever is longer, and launches."""
    busiest = ceil(work.tiles / sm_count)  # tiles of the busiest SM
    loads = (work.rows + work.columns) * work.depth * work.element_bytes * work.loaded
    loads *= work.overfetch / L2_BYTES_PER_CLOCK
    tile = max(product_clocks(work, kernel), loads) * kernel.slowdown
    steps = STEP_CLOCKS * ceil(work.depth / work.step) * ceil(busiest / work.resident)
    store = work.rows * work.columns * work.output_bytes / L2_BYTES_PER_CLOCK
    hidden = min(kernel.stored, OVERLAPPED_STORE if work.resident > 1 else 1.0)
    computed = busiest * tile + steps + store * (1 + hidden * (busiest - 1))
    dram = work.moved / DRAM_BYTES_PER_CLOCK
    rest = UNHIDDEN / work.resident * min(computed, dram)
    extra = work.launches * LAUNCH_CLOCKS + work.extra_moved / DRAM_BYTES_PER_CLOCK
    return START_CLOCKS + kernel.start + max(computed, dram) + rest + extra
