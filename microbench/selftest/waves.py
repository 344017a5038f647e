"""Plants of idle SMs: products whose number of tiles leaves about half of them without work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from kernels import OPS
from kernels.case import CannotRun, Case, Target
from microbench.selftest.plant import Plant, Tile, TileOf, control, gemm, planted

# Tiles that leave no room for a second on an SM, and how many of them, in full waves: so few that
# no clock makes up for the SMs that stay idle. Few kernels are compiled for many plants.
PAST, FURTHER, HALF, WHOLE = (1.0, 1.05), (1.05, 1.1), (0.5, 0.55), (0.95, 1.0)
WIDE: Tile = (128, 256)
NARROW: Tile = (128, 192)
IDLE = (
    ("fp16", WIDE, PAST), ("fp16", WIDE, FURTHER), ("fp16", NARROW, PAST), ("fp16", NARROW, HALF),
    ("bf16", WIDE, PAST), ("bf16", WIDE, FURTHER), ("tf32", NARROW, PAST), ("tf32", NARROW, HALF),
)  # fmt: skip
DEPTHS = (2048, 1536, 4096)  # of K: a launch takes much less than a tile does
SQUARE = 3  # M and N differ by no more than this factor: a thin product would be bound by memory


def wave_plants(sm_count: int, tile_of: TileOf) -> list[Plant]:
    """The plants and their controls; none where no kernel takes such a tile."""
    found: list[Plant] = []
    for precision, tile, band in IDLE:
        case = _with_tiles(_counts(band, sm_count), tile, precision, tile_of)
        found += [_idle(case, tile, sm_count)] if case else []
    for precision in ("fp16", "bf16"):
        case = _with_tiles(_counts(WHOLE, sm_count)[::-1], WIDE, precision, tile_of)
        if case:
            why = f"{count_tiles(case, WIDE)} tiles on {sm_count} SMs: one wave, nearly full"
            found.append(control("waves", why, case, tile=WIDE))
    return found


def _counts(band: tuple[float, float], sm_count: int) -> range:
    """Numbers of tiles from above the first share of a wave up to the last."""
    low, high = (int(share * sm_count) for share in band)
    return range(low + 1, high + 1)


def _with_tiles(counts: Sequence[int], tile: Tile, precision: str, tile_of: TileOf) -> Case | None:
    """A product of so many tiles, whose kernel takes that tile; the first of those there are."""
    for k, count in product(DEPTHS, counts):
        for rows in (n for n in range(count, 0, -1) if count % n == 0):
            m, n = rows * tile[0], count // rows * tile[1]
            case = gemm(m, n, k, precision, "triton")
            if max(m, n) <= SQUARE * min(m, n) and tile_of(case) == tile:
                return case
    return None


def count_tiles(case: Case, tile: Tile) -> int:
    """Tiles that cover C, the last of a row or column counted whole."""
    return -(-case.dim("m") // tile[0]) * -(-case.dim("n") // tile[1])


def _idle(case: Case, tile: Tile, sm_count: int) -> Plant:
    tiles = count_tiles(case, tile)
    slots = -(-tiles // sm_count) * sm_count
    return planted(
        "waves",
        f"{tiles} tiles of {tile[0]}x{tile[1]}, one an SM, on {sm_count} SMs: "
        f"{slots - tiles} of {slots} slots stay idle",
        case,
        tile=tile,
    )


def target_of(device: dict[str, Any]) -> Target:
    """What kernels choose by, from a run's device."""
    major, _, minor = str(device.get("capability") or "").partition(".")
    capability = (int(major), int(minor)) if minor else None
    return Target(device["kind"], device["name"], capability, int(device["sm_count"]))


def triton_tile(target: Target) -> TileOf:
    """What the Triton GEMM will choose on a target."""
    from kernels.gemm.triton.backend import configuration

    def tile(case: Case) -> Tile | None:
        if OPS["gemm"].cannot_run(case, target):
            return None
        try:
            found = configuration(case, target)
        except CannotRun:
            return None
        return found.bm, found.bn

    return tile
