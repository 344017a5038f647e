"""What can be measured of a device's ceilings, and the kernels that may reach each.

A `Probe` is one ceiling. Its `Variant`s differ in shape: which is fastest differs between devices,
so all are tried and the best counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernels.case import Target
from kernels.ceilings import products, traffic
from kernels.ceilings.products import INSTRUCTION_BYTES, ROW_BYTES, STEPS_PER_TILE, Operands
from kernels.gpus import KIB, architecture, has_tma
from kernels.precision import Capability, Precision, precision

WGMMA: Capability = (9, 0)  # Hopper alone has it
MMA_SINCE: Capability = (8, 0)
# Whose products all run on one of these instructions: a later architecture may have a faster one.
ROOFED: tuple[Capability, ...] = ((8, 0), (8, 6), (8, 9), (9, 0))
FP64_SHAPES_SINCE: Capability = (9, 0)  # m16n8k4 to k16; before it m8n8k4 alone
TENSOR_PRECISIONS = ("fp16", "bf16", "fp16-acc16", "fp8-e4m3", "fp8-e5m2", "int8", "tf32", "fp64")
MIB = 1 << 20
WORKING_SETS = tuple(2 * MIB << i for i in range(9))  # 2 to 512 MiB
SWIZZLE_ALIGNMENT = 1024
SHARED_RATE = 128  # bytes per clock and SM that shared memory gives, on all GPUs since Kepler
# What is tried, the one that is expected to be best first.
WGMMA_SHAPES = (  # n, warpgroups, instructions committed together, commits in flight
    (256, 2, 16, 0), (256, 2, 4, 1), (256, 3, 8, 0), (128, 4, 8, 0), (128, 2, 16, 0),
)  # fmt: skip
MMA_SHAPES = (  # accumulators of a warp (down, across), threads, blocks an SM
    ((2, 4), 256, 2), ((2, 4), 256, 1), ((2, 8), 256, 1), ((4, 4), 128, 2), ((2, 2), 512, 2),
)  # fmt: skip
FMA_SHAPES = ((512, 2), (1024, 1), (256, 4), (512, 4))  # threads, blocks an SM
DRAM_CACHES = {"read": (".L1::no_allocate", ".cs"), "write": ("", ".cs"), "copy": (".cs", "")}
# Threads, words a thread in flight, blocks an SM (0: a block a tile).
DRAM_SHAPES = ((512, 4, 0), (512, 8, 0), (256, 8, 0), (1024, 4, 2), (512, 4, 4), (256, 4, 8))
L2_SHAPES = ((512, 4, 4), (1024, 4, 2), (256, 8, 4))
BULK_SHAPES = ((16, 12, 1), (8, 24, 1), (8, 8, 3), (4, 16, 3))  # KiB of a tile, in flight, blocks
SHARED_SHAPES = ((512, 128, 1), (256, 64, 2), (256, 64, 1), (128, 32, 4))  # threads, KiB, blocks


@dataclass(frozen=True)
class Probe:
    """One ceiling: an instruction in a precision, a kind of memory traffic, or a launch.

    `working_set` is the number of bytes that are read again and again, where the size matters.
    """

    name: str
    precision_name: str | None = None
    working_set: int | None = None

    op = "ceiling"  # the kind of result, as the run file names it

    @cached_property
    def key(self) -> str:
        """Identity, the same in every run and version."""
        of = self.precision_name or (f"{self.working_set // MIB}MiB" if self.working_set else "")
        return f"{self.op}/{self.name}/{of}"

    @property
    def precision(self) -> Precision | None:
        """The entry of PRECISIONS; None for a probe that multiplies nothing. ValueError for an
        unknown name.
        """
        return precision(self.precision_name) if self.precision_name else None


@dataclass(frozen=True)
class Variant:
    """A kernel for a probe and how it is launched: `threads` of a block, `shared_bytes` of its
    shared memory, `blocks_per_sm` (0: as many blocks as tiles).

    `specific`: the code is for this very architecture ("sm_90a").
    """

    label: str
    source: str
    threads: int = 1
    blocks_per_sm: int = 1
    shared_bytes: int = 0
    specific: bool = False


@dataclass(frozen=True)
class Product(Variant):
    """Multiplies A [rows[0], k] by B [rows[1], k] transposed, `repeats` times in a pass.

    `flops_per_pass` are the operations of one block in one pass.
    """

    rows: tuple[int, int] = (0, 0)
    k: int = 0
    repeats: int = 1
    flops_per_pass: int = 0


@dataclass(frozen=True)
class Traffic(Variant):
    """Moves `tile_bytes` a step; `what` is "read", "write", "copy" or "shared"."""

    what: str = "read"
    tile_bytes: int = 0


@dataclass(frozen=True)
class Loaded:
    """A kernel ready to launch: `flops` (operations) and `bytes` of a launch, 0 where it does none.

    `rel_error()` launches it once on known data. It is the relative error against float64; for
    memory traffic, whose integer sums are exact, 0 if right and 1 if wrong.
    """

    launch: Callable[[], object]
    flops: int
    bytes: int
    rel_error: Callable[[], float]


SIMT = "FFMA"
DRAM = ("DRAM read", "DRAM write", "DRAM copy")
L2 = "L2 read"
SHARED = "shared memory read"
LAUNCHES = {"stream launch": "events", "graph launch": "graph"}  # and the timer of each
INSTRUCTIONS = ("wgmma", "mma.sync", SIMT)


def all_probes() -> list[Probe]:
    """Every ceiling, in the order of reports."""
    return [
        *(Probe("wgmma", name) for name in TENSOR_PRECISIONS if name != "fp64"),
        *(Probe("mma.sync", name) for name in TENSOR_PRECISIONS),
        Probe(SIMT, "fp32"),
        *(Probe(name) for name in DRAM),
        *(Probe(L2, working_set=size) for size in WORKING_SETS),
        Probe(SHARED),
        *(Probe(name) for name in LAUNCHES),
    ]


def instruction_probe(precision_name: str, target: Target) -> Probe | None:
    """The fastest instruction for a precision on a device; None where it is not known."""
    if target.capability not in ROOFED:
        return None
    name = {"fp8-e4m3-precise": "fp8-e4m3"}.get(precision_name, precision_name)
    if name == "fp32":
        return Probe(SIMT, name)
    found = [Probe(way, name) for way in ("wgmma", "mma.sync") if name in TENSOR_PRECISIONS]
    return next((probe for probe in found if cannot_run(probe, target) is None), None)


def cannot_run(probe: Probe, target: Target) -> str | None:
    """Why the device cannot run it; None where it can."""
    capability = target.capability or (0, 0)
    if probe.name == "wgmma":
        if capability != WGMMA:
            return f"wgmma is Hopper's (9.0); this GPU has {capability[0]}.{capability[1]}"
        return "wgmma multiplies no fp64" if probe.precision_name == "fp64" else None
    if probe.name == "mma.sync":
        needed = max(MMA_SINCE, (8, 9) if probe.precision and probe.precision.is_float8 else (0, 0))
        if capability < needed:
            return f"needs compute capability {needed[0]}.{needed[1]}"
    return None


def tolerance(probe: Probe) -> float:
    """The largest relative error with which a kernel counts as right; 0 for memory traffic."""
    return probe.precision.rel_tolerance if probe.precision else 0.0


def variants(probe: Probe, target: Target) -> Sequence[Variant]:
    """The kernels to try, the one expected to be best first. KeyError for a probe of unknown
    name.
    """
    if probe.name == "wgmma":
        return [_wgmma(probe, *shape) for shape in WGMMA_SHAPES]
    if probe.name == "mma.sync":
        return _mma_sync(probe, target)
    if probe.name == SIMT:
        return [_fma(*shape) for shape in FMA_SHAPES]
    if probe.name == SHARED:
        return _shared(target)
    if probe.name in LAUNCHES:
        return [Variant("empty kernel", traffic.EMPTY)]
    if probe.name == L2:
        return [_traffic("read", ".cg", *shape) for shape in L2_SHAPES]
    what = probe.name.removeprefix("DRAM ")
    found = [_traffic(what, cache, *s) for cache in DRAM_CACHES[what] for s in DRAM_SHAPES]
    return [*found, *(_bulk_reads(target) if what == "read" else ())]


def _wgmma(probe: Probe, n: int, groups: int, steps: int, in_flight: int) -> Product:
    precision = _tensor_precision(probe)
    k = INSTRUCTION_BYTES // precision.bytes_per_element
    return Product(
        f"m64n{n}k{k}, {groups} warpgroups, {steps} a commit, {in_flight} in flight",
        products.wgmma(Operands.of(precision), k, n, groups, steps, in_flight),
        threads=128 * groups,
        shared_bytes=(64 * groups + n) * ROW_BYTES + SWIZZLE_ALIGNMENT,
        specific=True,
        rows=(64 * groups, n),
        k=k * STEPS_PER_TILE,
        repeats=steps // STEPS_PER_TILE,
        flops_per_pass=2 * 64 * n * k * groups * steps,
    )


def _mma_sync(probe: Probe, target: Target) -> list[Product]:
    precision = _tensor_precision(probe)
    rows, words, ks = 16, INSTRUCTION_BYTES // 4, [INSTRUCTION_BYTES // precision.bytes_per_element]
    if precision.name == "fp64":
        modern = (target.capability or (0, 0)) >= FP64_SHAPES_SINCE
        rows, ks = (16, [16, 8, 4]) if modern else (8, [4])
    found: list[Product] = []
    for k in ks:
        for (down, across), threads, blocks in MMA_SHAPES:
            source = products.mma_sync(
                Operands.of(precision), rows, k if precision.name == "fp64" else words, k,
                (down, across),
            )  # fmt: skip
            found.append(
                Product(
                    f"m{rows}n8k{k}, {down * across} a warp, {blocks} x {threads // 32} warps",
                    source, threads, blocks, rows=(rows * down, 8 * across), k=k,
                    flops_per_pass=2 * rows * down * 8 * across * k * threads // 32,
                )
            )  # fmt: skip
    return found


def _fma(threads: int, blocks: int) -> Product:
    chains, unroll = products.FMA_CHAINS, products.FMA_UNROLL
    return Product(
        f"{chains} a thread, {blocks} x {threads // 32} warps", products.FMA, threads, blocks,
        repeats=unroll, flops_per_pass=2 * threads * chains * unroll,
    )  # fmt: skip


def _traffic(what: str, cache: str, threads: int, unroll: int, blocks: int) -> Traffic:
    return Traffic(
        f"{unroll} x 16 B, {threads} threads, {_in_words(blocks)}, {cache.strip('.') or 'plain'}",
        traffic.traffic(what, threads, unroll, cache), threads, blocks,
        what=what, tile_bytes=threads * unroll * traffic.WORD_BYTES,
    )  # fmt: skip


def _bulk_reads(target: Target) -> list[Traffic]:
    if not has_tma(target.capability or (0, 0)):
        return []
    return [
        Traffic(
            f"copy engine, {stages} x {kib} KiB, {_in_words(blocks)}",
            traffic.bulk_read(kib * KIB, stages), 32, blocks,
            stages * kib * KIB + traffic.BULK_ALIGNMENT, what="read", tile_bytes=kib * KIB,
        )
        for kib, stages, blocks in BULK_SHAPES
    ]  # fmt: skip


def _shared(target: Target) -> list[Traffic]:
    room = architecture(target.capability)
    found: list[Traffic] = []
    for threads, kib, blocks in SHARED_SHAPES:
        of_sm = blocks * (kib * KIB + room.block_reserve_bytes)
        if kib * KIB <= room.block_shared_bytes and of_sm <= room.sm_shared_bytes:
            found.append(
                Traffic(
                    f"{traffic.SHARED_UNROLL} x 16 B, {blocks} x {threads} threads",
                    traffic.shared(threads, kib * KIB), threads, blocks, kib * KIB,
                    what="shared", tile_bytes=threads * traffic.SHARED_UNROLL * traffic.WORD_BYTES,
                )
            )  # fmt: skip
    return found


def _in_words(blocks: int) -> str:
    return f"{blocks} an SM" if blocks else "a block a tile"


def _tensor_precision(probe: Probe) -> Precision:
    assert probe.precision
    return probe.precision
