"""Configurations of the Triton weight gradient: labels, what a shape allows, which to try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil, prod

from kernels import cost
from kernels.conv.shape import ConvShape, of_axes
from kernels.conv.triton.problem import ImplicitGemm
from kernels.cost import WARPGROUP_ROWS, Work
from kernels.gpus import HOPPER, architecture, has_tma
from kernels.precision import Capability
from kernels.triton_util import MAX_BOX, MAX_INDEX, LabelFormat, power_of_two, row_for_tma

KERNELS = TMA, GATHER, EXCHANGED = "wgrad_tma", "wgrad_gather", "wgrad_exchanged"
LABELS = LabelFormat(
    "Triton weight gradient", KERNELS, ("images", "columns", "bk", "bc"),
    {"t": "taps", "r": "rows", "s": "stages", "w": "warps", "x": "split_k"}, flags=("padded",),
)  # fmt: skip

MAX_SPLIT_K = 65535
BARRIERS = 512  # bytes beside the buffers
LEAST_SIDE = 16  # of a multiplication
MAX_ACCUMULATORS = 192  # registers of a thread
MOST_ODD_STRIDE = 2  # that does not divide W: wgrad_tma has a view of even and one of odd columns
FEW_CHANNELS = 8  # fill no tile of wgrad_tma


@dataclass(frozen=True)
class WgradConfig:
    """One way to run a pass.

    A multiplication is bk filters x bc channels (wgrad_gather: columns of R*S*C) over
    images*columns pixels of one row. A step takes `rows` rows and `taps` kernel rows; `stages`
    steps are buffered. `split_k` programs share the pixels of a tile of dw. wgrad_exchanged is
    wgrad_gather with x and dy, and so filters and channels, exchanged. `padded`: TMA reads copies
    whose pixels start on lines, or powers of two within one.
    """

    kernel: str
    images: int
    columns: int
    bk: int
    bc: int
    taps: int
    rows: int
    stages: int
    warps: int
    split_k: int
    padded: bool = False

    @property
    def label(self) -> str:
        """Compact name, which `parse` reads: "wgrad_tma/8x8x64x64/t3/r2/s2/w4/x44"."""
        return LABELS.write(self)

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of the implicit GEMM tile: filters, taps*channels, pixels of a step."""
        return self.bk, self.taps * self.bc, self.rows * self.pixels

    @property
    def pixels(self) -> int:
        return self.images * self.columns

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold float32 sums."""
        return self.taps * self.bk * self.bc // (32 * self.warps)


def parse(label: str) -> WgradConfig:
    return WgradConfig(**LABELS.read(label))


def exchangeable(shape: ConvShape) -> bool:
    """Whether the pass is also that of a convolution with x and y exchanged."""
    plain = (shape.stride, shape.dilation) == (1, 1)
    return plain and shape.r == shape.s and max(shape.paddings) < shape.r


def seen(config: WgradConfig, shape: ConvShape) -> ConvShape:
    """The convolution whose gradient the kernels compute; wgrad_exchanged exchanges x and y."""
    if config.kernel != EXCHANGED:
        return shape
    rows, columns = shape.paddings
    padding = of_axes(shape.r - 1 - rows, shape.s - 1 - columns)
    return replace(shape, c=shape.k, h=shape.p, w=shape.q, k=shape.c, padding=padding)


def _pixels_apart(config: WgradConfig, problem: ImplicitGemm) -> tuple[int, int]:
    """Elements from one pixel to the next of x and dy, as the kernel reads them."""
    widths = problem.shape.c, problem.shape.k
    if config.kernel != TMA:
        return widths
    size = problem.element_bytes
    x, y = (row_for_tma(width * size, config.padded) // size for width in widths)
    return x, y


def _copies_differ(config: WgradConfig, problem: ImplicitGemm) -> bool:
    """Whether `padded` makes other copies than are made anyway."""
    plain = replace(config, padded=False)
    return _pixels_apart(config, problem) != _pixels_apart(plain, problem)


def _valid(config: WgradConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    """What all kernels need: Tensor Cores, powers of two, registers, shared memory."""
    sizes = (config.pixels, config.bk, config.bc, config.warps)
    powers = not any(size & (size - 1) for size in sizes) and min(sizes[:3]) >= LEAST_SIDE
    fits = config.split_k <= MAX_SPLIT_K and config.accumulators <= MAX_ACCUMULATORS
    copied = not config.padded or _copies_differ(config, problem)
    room = shared_memory(config, problem) <= architecture(capability).block_shared_bytes
    runs = capability >= (8, 0) and not problem.precision.is_float8
    return runs and powers and fits and copied and room


def _gather_valid(config: WgradConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    one_row = config.images == config.taps == config.rows == 1
    possible = config.kernel == GATHER or exchangeable(problem.shape)
    return one_row and possible and _valid(config, problem, capability)


def _tma_valid(config: WgradConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    shape = problem.shape
    if not has_tma(capability) or shape.r % config.taps:
        return False
    if max(config.images, config.columns, config.bk, config.bc) > MAX_BOX:
        return False
    if max(shape.n * shape.p * shape.q, shape.n * shape.h * shape.w) > MAX_INDEX:
        return False
    if shape.flat and (config.images > 1 or config.rows > 1):
        return False
    if isinstance(shape.stride, str) or isinstance(shape.dilation, str):
        return False  # the kernel has one of each
    if shape.w % shape.stride and (shape.stride > MOST_ODD_STRIDE or shape.w < shape.stride):
        return False
    return _valid(config, problem, capability)


def _step_bytes(config: WgradConfig, problem: ImplicitGemm) -> int:
    """Of `rows` rows of dy, and of the rows of x that they meet with `taps` kernel rows."""
    stride, dilation = problem.shape.strides[0], problem.shape.dilations[0]
    image_rows = (config.rows - 1) * stride + (config.taps - 1) * dilation + 1
    columns = config.rows * config.bk + image_rows * config.bc
    return config.pixels * columns * problem.element_bytes


def shared_memory(config: WgradConfig, problem: ImplicitGemm) -> int:
    return config.stages * _step_bytes(config, problem) + BARRIERS


def weight_tiles(config: WgradConfig, problem: ImplicitGemm) -> int:
    """Tiles of dw [K, R, S, C]."""
    shape = seen(config, problem.shape)
    filters = ceil(shape.k / config.bk)
    if config.kernel != TMA:
        return filters * ceil(shape.c * shape.r * shape.s / config.bc)
    return filters * (shape.r // config.taps) * shape.s * ceil(shape.c / config.bc)


def tiles(config: WgradConfig, problem: ImplicitGemm) -> int:
    """All programs: each part of the pixels has all tiles of dw."""
    return weight_tiles(config, problem) * config.split_k


def steps(config: WgradConfig, problem: ImplicitGemm) -> int:
    """Steps over the pixels, of all programs of a tile."""
    shape = seen(config, problem.shape)
    if config.kernel != TMA or shape.flat:
        return ceil(shape.n * shape.p * shape.q / config.pixels)
    row_blocks = ceil(shape.p / config.rows) * ceil(shape.q / config.columns)
    return ceil(shape.n / config.images) * row_blocks


def _resident(config: WgradConfig, problem: ImplicitGemm) -> int:
    """Programs that fit an SM of Hopper at once, by shared memory and registers."""
    shared = shared_memory(config, problem)
    return HOPPER.blocks_per_sm(32 * config.warps, config.accumulators, shared)


# ------------------------------------------------------------ what a configuration costs

REGISTERS_SLOWDOWN = 1.3  # dy through registers: a step of several images and columns
SCATTERED = 1.3  # of DRAM: single pixels of few channels, each from another page


def _cost(config: WgradConfig, problem: ImplicitGemm, sm_count: int) -> float:
    shape, size, split = problem.shape, problem.element_bytes, config.split_k > 1
    by_registers = config.kernel == TMA and min(config.images, config.columns) > 1
    slowdown = REGISTERS_SLOWDOWN if by_registers else 1.0
    depth = config.rows * config.pixels
    loaded = _step_bytes(config, problem) / (depth * (config.bk + config.taps * config.bc))
    apart = _pixels_apart(config, problem)
    copies = sum(pixel != width for pixel, width in zip(apart, (shape.c, shape.k), strict=True))
    overfetch = cost.overfetch if config.kernel == TMA else cost.gathered_overfetch
    scattered = config.columns == 1 and min(shape.c, shape.k) <= 128
    work = Work(
        tiles=tiles(config, problem),
        rows=config.bk,
        columns=config.taps * config.bc,
        depth=ceil(steps(config, problem) / config.split_k) * depth,
        step=depth,
        element_bytes=size,
        output_bytes=4 if split else problem.precision.output_bytes,
        flop_per_clock=HOPPER.flop_per_clock[problem.precision.rate_name],
        pieces=(config.bc,) * config.taps,
        resident=_resident(config, problem),
        loaded=loaded / size,
        overfetch=max(overfetch(pixel * size) for pixel in apart),
        moved=_traffic(config, problem) * (SCATTERED if scattered else 1.0),
        launches=int(split) + copies,
        extra_moved=8 * config.split_k * shape.elements("w") if split else 0,
    )
    return cost.estimated_clocks(work, cost.Kernel(slowdown), sm_count)


def _traffic(config: WgradConfig, problem: ImplicitGemm) -> float:
    shape = problem.shape
    elements = shape.elements("x") + shape.elements("y")
    sizes = (("x", shape.c), ("y", shape.k))
    for (name, width), pixel in zip(sizes, _pixels_apart(config, problem), strict=True):
        if pixel != width:
            elements += shape.elements(name) * (width + pixel) // width
    return elements * problem.element_bytes


# ------------------------------------------------------------ wgrad_gather

LEAST_COLUMNS = 32  # of a tile of the gathering kernels
# Of the gathering kernels: pixels, filters, columns, stages, warps.
GATHER_TILES = (
    (32, 64, 32, 4, 4), (64, 64, 32, 4, 4), (64, 64, 64, 4, 4), (32, 64, 128, 4, 4),
    (64, 64, 128, 4, 4), (64, 128, 64, 4, 4), (64, 128, 64, 4, 8), (32, 128, 128, 4, 8),
    (64, 128, 128, 4, 8), (64, 128, 128, 3, 4), (64, 64, 256, 4, 8), (64, 128, 256, 4, 8),
    (64, 256, 128, 4, 8),
)  # fmt: skip


def _gather(kernel: str, problem: ImplicitGemm) -> Iterator[WgradConfig]:
    for pixels, bk, bc, stages, warps in GATHER_TILES:
        config = WgradConfig(kernel, 1, pixels, bk, bc, 1, 1, stages, warps, 1)
        shape = seen(config, problem.shape)
        filters, columns = map(power_of_two, (shape.k, shape.r * shape.s * shape.c))
        if bk <= max(WARPGROUP_ROWS, filters) and bc <= max(LEAST_COLUMNS, columns):
            yield config


def _exchanged(problem: ImplicitGemm) -> Iterator[WgradConfig]:
    if problem.shape.k < problem.shape.c and exchangeable(problem.shape):
        yield from _gather(EXCHANGED, problem)


# ------------------------------------------------------------ wgrad_tma

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


def _tma(problem: ImplicitGemm) -> Iterator[WgradConfig]:
    shape = problem.shape
    if shape.c <= FEW_CHANNELS and shape.r * shape.s > 1:
        return
    k, c = power_of_two(shape.k), power_of_two(shape.c)
    for (images, columns, rows), taps in product(_steps_of_pixels(problem), TILES):
        if (taps > 1 and shape.r != taps) or (taps == 1 < rows and columns > 16):
            continue
        for bk, bc, warps in (REGISTER_TILES if min(images, columns) > 1 else TILES)[taps]:
            if bk > max(64, k) or bc > max(64, c):
                continue
            base = WgradConfig(TMA, images, columns, bk, bc, taps, rows, 1, warps, 1)
            for config in _staged(base, problem):
                yield config
                padded = replace(config, padded=True)
                if _copies_differ(padded, problem):
                    yield padded


def _staged(base: WgradConfig, problem: ImplicitGemm) -> Iterator[WgradConfig]:
    """The base with as many stages as one, two or three programs on an SM have room for."""
    depths: set[int] = set()
    by_registers = HOPPER.blocks_per_sm(32 * base.warps, base.accumulators, 0)
    for programs in range(1, min(3, by_registers) + 1):
        limit = HOPPER.sm_shared_bytes // programs - HOPPER.block_reserve_bytes
        stages = MOST_STAGES
        while shared_memory(replace(base, stages=stages), problem) > limit:
            stages -= 1
        if stages > 1:
            depths.add(stages)
    for stages in sorted(depths, reverse=True):
        yield replace(base, stages=stages)


def _steps_of_pixels(problem: ImplicitGemm) -> Iterator[tuple[int, int, int]]:
    """(images, columns, rows) of a step: columns of one image, one column of many images, or both.

    At most MOST_WASTE times the pixels that exist are computed, where that can be.
    """
    shape = problem.shape
    line = 128 // problem.element_bytes  # pixels of a multiplication
    if shape.flat:
        yield from ((1, line, 1), (1, 2 * line, 1))
        return
    boxes = [(1, line // 4), (1, line // 2), (1, line), (1, 2 * line), (line // 2, 1), (line, 1)]
    if shape.n <= line // 4:
        boxes.append((line // 4, 1))
    fitting = [columns for columns in (2, 4, 8, 16) if shape.q % columns == 0]
    boxes += [(line // columns, columns) for columns in fitting[-2:]]
    computed: dict[tuple[int, int, int], float] = {}
    whole = [(images, columns) for images, columns in boxes if images * columns >= LEAST_SIDE]
    for (images, columns), rows in product(whole, (1, 2, 4, 7)):
        if line // 2 <= images * columns * rows <= LONGEST_STEP:
            parts = ((shape.n, images), (shape.p, rows), (shape.q, columns))
            waste = prod(ceil(size / part) * part / size for size, part in parts)
            computed[images, columns, rows] = waste
    least = min(computed.values())
    most = MOST_WASTE if least <= MOST_WASTE else 2 * least
    yield from (pixels for pixels, waste in computed.items() if waste <= most)


# ------------------------------------------------------------ the list

# What of a kernel is worth a try, and what it can run.
RULES = {
    GATHER: (partial(_gather, GATHER), _gather_valid),
    EXCHANGED: (_exchanged, _gather_valid),
    TMA: (_tma, _tma_valid),
}


def valid(config: WgradConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    """Whether a GPU of this capability can run the pass with it."""
    _, runs = RULES[config.kernel]
    return problem.weights and runs(config, problem, capability)


SPLIT_K_KEPT = 3  # of one tile
LATER_SPLIT_K = 1.15  # clocks of a tile's second-best split count this much more
ALIKE = 0.02  # and those of each further configuration of a kind
MOST_WAVES = 4
SCRATCH_BYTES = 64 << 20  # partial sums may take this much, or as much as the inputs


def ranked(problem: ImplicitGemm, capability: Capability, sm_count: int) -> Sequence[WgradConfig]:
    """All valid configurations of the catalogue, the most promising first.

    Configurations similar to one further up come later than their clocks alone would put them, so
    that a search over the first ones tries every kind of tile.
    """
    clocks: dict[WgradConfig, float] = {}
    for catalogue, _ in RULES.values():
        for base in catalogue(problem):
            if not valid(base, problem, capability):
                continue
            of_base = {
                config: _cost(config, problem, sm_count)
                for config in _with_split_k(base, problem, sm_count)
                if valid(config, problem, capability)
            }
            best = sorted(of_base, key=of_base.__getitem__)[:SPLIT_K_KEPT]
            for rank, config in enumerate(best):
                clocks[config] = of_base[config] * LATER_SPLIT_K**rank
    alike: Counter[tuple[object, ...]] = Counter()
    for config in sorted(clocks, key=clocks.__getitem__):
        family = (config.kernel, config.taps, min(config.images, 2), min(config.columns, 2))
        clocks[config] *= 1 + ALIKE * alike[family]
        alike[family] += 1
    return sorted(clocks, key=clocks.__getitem__)


def _with_split_k(base: WgradConfig, problem: ImplicitGemm, sm_count: int) -> Iterator[WgradConfig]:
    """The base with one program a tile, and with as many as fill whole waves."""
    shape = problem.shape
    slots, of_one = sm_count * _resident(base, problem), weight_tiles(base, problem)
    fills = {waves * slots // of_one for waves in range(1, MOST_WAVES + 1)}
    inputs = (shape.elements("x") + shape.elements("y")) * problem.element_bytes
    most = max(SCRATCH_BYTES, inputs) // (4 * shape.elements("w"))
    most = min(steps(base, problem), most)
    for split_k in sorted({1} | {fill for fill in fills if 1 < fill <= most}):
        yield replace(base, split_k=split_k)
