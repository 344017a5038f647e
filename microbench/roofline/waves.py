"""How the tiles of a kernel fill the SMs: waves, and how many tiles an SM may hold at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels import is_library
from kernels.gpus import architecture
from microbench.device.profiler import stages_of, threads_of
from microbench.results.types import Result, Run
from microbench.roofline.limits import capability_of

LEAST_THREADS = 128  # a warp group: the fewest that a kernel with a large tile has
MOST_ACCUMULATORS = 192  # registers of a thread: with more, the tile takes more threads


@dataclass(frozen=True)
class Waves:
    """How `tiles` fill the SMs, one each at a time.

    `waves` is how many rounds it takes, `efficiency` the share of their slots that hold a tile.
    """

    tiles: int
    sm_count: int
    waves: int
    efficiency: float


def waves(result: Result, run: Run) -> Waves | None:
    """The tiles of a result; None where the kernel's tile or their number is unknown, and on a CPU.

    Our convolutions' tiles are boxes of images, rows and columns, which cover more than M x N; how
    many are launched is what the back end says, and older files do not.
    """
    sm_count = int(run.device.get("sm_count") or 0)
    if result.tile is None or not sm_count or run.device.get("kind") != "cuda":
        return None
    tiles = result.tiles
    if tiles is None and result.case.op == "conv" and not is_library(result.case):
        return None
    if tiles is None:
        m, n, _ = result.case.problem.mnk
        tiles = math.ceil(m / result.tile[0]) * math.ceil(n / result.tile[1])
    count = math.ceil(tiles / sm_count)
    return Waves(tiles, sm_count, count, tiles / (count * sm_count))


def most_per_sm(result: Result, run: Run) -> int:
    """The most tiles of the result's kernel that an SM may hold at once; it needs a tile.

    By registers and shared memory, as far as the names of kernel and variant state threads and
    pipeline stages. What they do not state counts as the least possible.
    """
    assert result.tile
    tile_m, tile_n, tile_k = result.tile
    kind = result.case.precision
    registers = tile_m * tile_n * kind.accumulator_bytes / 4
    least = LEAST_THREADS * math.ceil(registers / LEAST_THREADS / MOST_ACCUMULATORS)
    threads = threads_of(result) or least
    shared = (stages_of(result) or 1) * (tile_m + tile_n) * tile_k * kind.bytes_per_element
    sm = architecture(capability_of(run))
    return sm.blocks_per_sm(threads, registers / threads, shared)
