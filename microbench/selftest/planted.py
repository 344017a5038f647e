"""The planted cases: their bottleneck is known by construction.

Each says why by sizes, strides, tiles and bytes, independent of the diagnosis. Controls are cases
without a condition by construction; to diagnose it there is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from kernels import OPS, size_of
from kernels.case import Case, Target
from kernels.gemm import ALIGNMENT_BYTES
from microbench.selftest import tiles
from microbench.selftest.independent import independent_plants
from microbench.selftest.plant import (
    Absent,
    Plant,
    Tile,
    TileOf,
    control,
    conv,
    gemm,
    min_bytes,
    planted,
)

L2_SHARE = 3.5  # a cache plant's tensors fit the L2 this many times, as its halves may hold copies
MEMORY_SHARE = 0.25  # of the device's memory that the tensors of a plant may take


def plan(device: dict[str, Any], tile_of: TileOf) -> tuple[list[Plant], list[Absent]]:
    """The plants for a device, as a run file has it, and the conditions that it cannot have.

    A plant whose tensors take more than MEMORY_SHARE of the device's memory is left out.
    """
    if device["kind"] == "cpu":
        return _on_a_cpu(), [Absent(c, why) for c, why in NOT_ON_A_CPU]
    waves = wave_plants(int(device["sm_count"]), tile_of)
    plants = [*_launch(), *_memory(), *_alignment(), *waves, *_layout(), *_power(),
              *_cache(int(device["l2_bytes"])), *independent_plants()]  # fmt: skip
    absent: list[Absent] = []
    if not waves:
        absent.append(Absent("waves", "no Triton GEMM tile leaves SMs idle on this device"))
    if device.get("power_limit_w") is None:
        plants = [plant for plant in plants if plant.condition != "power"]
        absent.append(Absent("power", "the card reports no power limit"))
    room = MEMORY_SHARE * float(device["memory_bytes"])
    large = [plant for plant in plants if min_bytes(plant.subject) > room]
    absent += [Absent(p.condition, f"{p.name}: too large for this device") for p in large]
    return [plant for plant in plants if plant not in large], absent


NOT_ON_A_CPU = (
    ("alignment", "a CPU loads unaligned data as fast as aligned data"),
    ("waves", "a CPU has no SMs"),
    ("layout", "a CPU library does not report its layout changes"),
    ("power", "this program reads no power sensor here"),
    ("cache", "other processes share a CPU's last-level cache"),
    ("mixed", "the defects are planted in CUDA kernels"),
)


# ---------------------------------------------------------------- on a CPU


def _on_a_cpu() -> list[Plant]:
    large = control(
        "launch",
        "a billion multiply-adds: thousands of times as many as a 64x64x64 GEMM has",
        gemm(1024, 1024, 1024, "fp32", "cpu"),
        "launch",
        "memory",
        companions=tuple(gemm(n, n, n, "fp32", "cpu") for n in (128, 256, 512)),
    )
    return [
        large,
        *(_tiny(gemm(n, n, n, "fp32", "cpu")) for n in (4, 8, 16, 24)),
        *(_thin(gemm(1, n, 4096, "fp32", "cpu")) for n in (4096, 8192)),
    ]


# ---------------------------------------------------------------- launch


def _launch() -> list[Plant]:
    tiny = [
        gemm(16, 16, 16, "fp16"), gemm(64, 64, 64, "bf16"), gemm(128, 128, 128, "fp16"),
        gemm(64, 64, 64, "tf32"), gemm(128, 128, 128, "tf32"),
        gemm(128, 128, 128, "fp16", "triton"), gemm(64, 64, 64, "tf32", "triton"),
        conv((16, 16), "fprop", "fp16", batch=1, image=8),
        conv((16, 16), "fprop", "bf16", batch=1, image=8),
    ]  # fmt: skip
    return [_tiny(case) for case in tiny]


def _tiny(case: Case) -> Plant:
    return planted(
        "launch",
        f"{OPS[case.op].flops(case):,} operations and {min_bytes(case):,} bytes: at this device's "
        "measured peaks they take less than 5 % of the launch latency",
        case,
    )


# ---------------------------------------------------------------- memory


def _memory() -> list[Plant]:
    thin = [
        gemm(16, 16384, 8192, "fp16"), gemm(32, 16384, 8192, "bf16"), gemm(16, 16384, 8192, "tf32"),
        conv((64, 256), "fprop", "fp16", batch=256, taps=1),
        conv((256, 64), "fprop", "bf16", batch=256, taps=1),
        conv((64, 64), "fprop", "fp16", batch=256, taps=1),
        conv((64, 64), "fprop", "tf32", batch=256, taps=1),
    ]  # fmt: skip
    return [_thin(case) for case in thin]


def _thin(case: Case) -> Plant:
    intensity = OPS[case.op].flops(case) / min_bytes(case)
    return planted(
        "memory",
        f"{intensity:.1f} FLOP/byte: at this device's measured peaks arithmetic takes less than "
        f"half as long as moving {min_bytes(case) / 1e6:.0f} MB",
        case,
    )


# ---------------------------------------------------------------- alignment


def _alignment() -> list[Plant]:
    off = [
        *(gemm(4096, 4096, 4095, p) for p in ("fp16", "bf16", "tf32")),
        gemm(1024, 1024, 1025, "fp16"), gemm(2049, 2049, 2049, "bf16"),
        gemm(4095, 4095, 4095, "fp16", "triton"),
        conv((60, 60), "fprop", "fp16", batch=64), conv((60, 60), "dgrad", "fp16", batch=64),
        conv((61, 61), "fprop", "tf32", batch=64),
    ]  # fmt: skip
    never = ("alignment", "launch", "memory", "waves", "layout")
    whole = "every row is whole 16-byte words, its tiles fill the SMs many times, its arithmetic "
    return [
        *(_misaligned(case) for case in off),
        *(
            control("alignment", f"{whole}takes tens of times as long as its bytes", case, *never)
            for case in (gemm(4096, 4096, 4096, p) for p in ("fp16", "bf16", "tf32"))
        ),
    ]


def _misaligned(case: Case) -> Plant:
    what, stride = OPS[case.op].misaligned(case) or ("", 0)
    twin = OPS[case.op].aligned(case)
    short = -stride % ALIGNMENT_BYTES
    return planted(
        "alignment",
        f"{what} makes rows of {stride} bytes, {short} short of whole {ALIGNMENT_BYTES}-byte "
        f"words; the same padded to {size_of(twin)} is measured beside it",
        case,
        companions=(twin,),
    )


# ---------------------------------------------------------------- layout


def _layout() -> list[Plant]:
    plain = [
        conv((64, 64), "fprop", "fp16", "nchw"), conv((128, 128), "fprop", "fp16", "nchw"),
        conv((128, 128), "fprop", "bf16", "nchw"), conv((64, 64), "fprop", "tf32", "nchw"),
        conv((64, 64), "dgrad", "fp16", "nchw"), conv((128, 128), "dgrad", "bf16", "nchw"),
    ]  # fmt: skip
    twins = {case.key: replace(case, layout="nhwc") for case in plain}
    return [
        *(
            planted(
                "layout",
                "the same convolution in nhwc, measured beside it, is faster: the tensors and the "
                "arithmetic are the same, only their layout differs",
                case,
                companions=(twins[case.key],),
            )
            for case in plain
        ),
        *(
            control("layout", "nhwc is what the Tensor Core kernels take as it is", case)
            for case in twins.values()
        ),
    ]


# ---------------------------------------------------------------- power


def _power() -> list[Plant]:
    hot = [
        gemm(8192, 8192, 8192, "fp16"), gemm(8192, 8192, 8192, "bf16"),
        gemm(4096, 4096, 4096, "fp16"), gemm(4096, 4096, 4096, "tf32"),
        conv((512, 512), "fprop", "fp16"),
    ]  # fmt: skip
    return [
        planted(
            "power",
            "the card names its power cap while it runs, and the same kernel on zeros, which "
            "switches fewer transistors for the same instructions and bytes, is faster",
            case,
            apart=(case, replace(case, data="zeros")),
        )
        for case in hot
    ]


# ---------------------------------------------------------------- cache


def _cache(l2_bytes: int) -> list[Plant]:
    """Thin GEMMs that mostly read weights, which the L2 holds since the last launch, or not."""
    fits = [
        _weights(l2_bytes / L2_SHARE, 16, 8192, "fp16"),
        _weights(l2_bytes / L2_SHARE, 16, 16384, "bf16"),
        _weights(l2_bytes / L2_SHARE, 16, 8192, "tf32"),
        _weights(l2_bytes / L2_SHARE, 64, 8192, "fp16"),
    ]
    streams = _weights(4 * l2_bytes, 16, 16384, "fp16")
    heavy = gemm(2048, 2048, 2048, "bf16")
    held = f"the L2 holds {l2_bytes / 1e6:.0f} MB"
    emptied = "the cold timing empties it before each launch"
    streamed = "what a launch leaves is overwritten before it is read again"
    intensity = OPS["gemm"].flops(heavy) / min_bytes(heavy)
    busy = f"{intensity:.0f} FLOP/byte: memory traffic takes far less time than the arithmetic"
    return [
        *(planted("cache", f"{_size(c)}, {held}, {emptied}", c, apart=(c,)) for c in fits),
        control("cache", f"{_size(streams)}, {held}: {streamed}", streams, apart=(streams,)),
        control("cache", busy, heavy, apart=(heavy,)),
    ]


def _size(case: Case) -> str:
    return f"its tensors are {min_bytes(case) / 1e6:.0f} MB"


def _weights(size_bytes: float, m: int, n: int, precision: str) -> Case:
    """A GEMM by weights of n columns and about this many bytes, aligned."""
    row = n * gemm(m, n, 64, precision).precision.bytes_per_element
    return gemm(m, n, max(64, int(size_bytes / row) // 64 * 64), precision)


# ---------------------------------------------------------------- waves

# Tiles that leave no room for a second on an SM, and their number, in full waves: so few that no
# higher clock compensates for the idle SMs. Few kernels are compiled for many plants.
PAST, FURTHER, HALF, WHOLE = (1.0, 1.05), (1.05, 1.1), (0.5, 0.55), (0.95, 1.0)
WIDE: Tile = (128, 256)
NARROW: Tile = (128, 192)
BACKENDS: Mapping[Tile, str] = {
    WIDE: f"{tiles.__name__}:wide", NARROW: f"{tiles.__name__}:narrow"
}  # fmt: skip
IDLE = (
    ("fp16", WIDE, PAST), ("fp16", WIDE, FURTHER), ("fp16", NARROW, PAST), ("fp16", NARROW, HALF),
    ("bf16", WIDE, PAST), ("bf16", WIDE, FURTHER), ("tf32", NARROW, PAST), ("tf32", NARROW, HALF),
)  # fmt: skip
DEPTHS = (2048, 1536, 4096)  # of K: a launch takes much less than a tile does
SQUARE = 3  # M and N differ by no more than this factor: a thin GEMM's bottleneck would be memory


def wave_plants(sm_count: int, tile_of: TileOf) -> list[Plant]:
    """The plants with idle SMs and their controls; [] where no kernel has such a tile."""
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
    """The first GEMM with this number of tiles whose kernel uses that tile."""
    for k, count in product(DEPTHS, counts):
        for rows in (n for n in range(count, 0, -1) if count % n == 0):
            m, n = rows * tile[0], count // rows * tile[1]
            case = gemm(m, n, k, precision, BACKENDS[tile])
            if max(m, n) <= SQUARE * min(m, n) and tile_of(case) == tile:
                return case
    return None


def count_tiles(case: Case, tile: Tile) -> int:
    """Number of tiles (M, N elements) that cover C[M, N], partial ones counted whole."""
    return -(-case.dim("m") // tile[0]) * -(-case.dim("n") // tile[1])


def _idle(case: Case, tile: Tile, sm_count: int) -> Plant:
    count = count_tiles(case, tile)
    slots = -(-count // sm_count) * sm_count
    return planted(
        "waves",
        f"{count} tiles of {tile[0]}x{tile[1]}, one an SM, on {sm_count} SMs: "
        f"{slots - count} of {slots} slots stay idle",
        case,
        tile=tile,
    )


def triton_tile(target: Target) -> TileOf:
    """A function of a case: the (M, N) tile of its kernel, or None if that cannot run."""

    def tile(case: Case) -> Tile | None:
        back_end = OPS[case.op].entry(case.backend)
        reason = back_end.cannot_run(case, target)
        return None if reason else next(t for t, name in BACKENDS.items() if name == case.backend)

    return tile
