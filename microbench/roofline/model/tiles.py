"""Compute time of a GEMM that is cut into tiles and spread over SMs in waves.

The library's tile is not known before it is run: the tile, and the number of parts that the
reduction is cut into, are those that make this estimate least, as a library's own heuristic would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

TILE_EDGES = (32, 64, 96, 128, 192, 256)  # of a work-group's tile of the output
FULL_TILE = (128, 256)  # what the largest products run on, and so what the ceiling was measured on
LARGEST_TILE = 128 * 256  # elements: more accumulators do not fit an SM's registers
ON_CHIP = 4.0  # bytes that the L2 cache hands the SMs in the time of one from device memory
FILL_STEPS = 4  # of the main loop: what filling its pipeline and writing the tile out cost
MOST_SPLITS = 64  # parts that the reduction is cut into
LEAST_PART = 256  # elements of the reduction: a shorter part is all prologue
PARTIAL_BYTES = 4  # partial sums are float32, whatever the precision


@dataclass(frozen=True)
class Machine:
    """A device as a product meets it.

    Measured FLOP/s of the precision and bytes/s of the memory, number of SMs, bytes of an operand's
    element, and `step`: the elements that the reduction is padded to whole steps of.
    """

    flop_per_s: float
    byte_per_s: float
    sm_count: int
    element_bytes: int
    step: int

    @property
    def load_share(self) -> float:
        """Of a full tile's time, what loading its operands through the L2 cache takes."""
        tile_m, tile_n = FULL_TILE
        flop_per_byte = 2 * tile_m * tile_n / ((tile_m + tile_n) * self.element_bytes)
        return min(1.0, self.flop_per_s / (ON_CHIP * self.byte_per_s * flop_per_byte))


@cache
def tiled_seconds(m: int, n: int, k: int, batch: int, machine: Machine) -> float:
    """Least seconds over tiles and splits of `batch` products [m, k] x [k, n].

    ceil(tiles / SMs) rounds, each as long as one SM takes for a tile at its share of the measured
    rate, longer where small tiles load operands more often. Never less than the FLOPs over that
    rate.
    """
    return min(
        _seconds(m, n, k, batch, (tile_m, tile_n), splits, machine)
        for tile_m in TILE_EDGES
        for tile_n in TILE_EDGES
        if tile_m * tile_n <= LARGEST_TILE
        for splits in _splits(k)
    )


def _splits(k: int) -> tuple[int, ...]:
    most = min(MOST_SPLITS, k // LEAST_PART)
    return (1, *(2**i for i in range(1, most.bit_length()) if 2**i <= most))


def _seconds(
    m: int, n: int, k: int, batch: int, tile: tuple[int, int], splits: int, machine: Machine
) -> float:
    tile_m, tile_n = tile
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n) * splits * batch
    rounds = math.ceil(tiles / machine.sm_count)
    steps = FILL_STEPS + math.ceil(math.ceil(k / splits) / machine.step)
    flops = 2 * tile_m * tile_n * steps * machine.step
    reload = (1 / tile_m + 1 / tile_n) / (1 / FULL_TILE[0] + 1 / FULL_TILE[1])
    slower = 1 + machine.load_share * max(0.0, reload - 1)
    one = flops * slower * machine.sm_count / machine.flop_per_s
    partial = 2 * splits * batch * m * n * PARTIAL_BYTES if splits > 1 else 0
    return rounds * one + partial / machine.byte_per_s
