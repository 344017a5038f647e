"""Configurations of the Triton fprop and dgrad: labels, what a shape allows, which to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from kernels import cost, triton_util
from kernels.conv.triton.problem import ImplicitGemm
from kernels.cost import Work, gathered_overfetch, overfetch
from kernels.gpus import HOPPER, LINE_BYTES, architecture, has_tma
from kernels.precision import Capability
from kernels.triton_util import MAX_BOX, MAX_INDEX, TMA_ALIGNMENT, power_of_two, split_n

KERNELS = GATHER, PERSISTENT, GLUON = "conv_gather", "conv_persistent", "conv_gluon"
LABELS = triton_util.LabelFormat(
    "Triton fprop and dgrad", KERNELS, ("images", "rows", "columns", "bk", "bc"),
    {"s": "stages", "w": "warps"}, {"sub": "epilogue_subtiles", "p": "per_sm"}, ("padded",),
)  # fmt: skip

MAX_ACCUMULATORS = 128  # float32 sums of one thread; more would spill
MIN_ROW_BYTES = 32  # the least inner box worth a swizzle
MIN_DEPTH = 16  # elements that a product adds up at least, in Triton
BARRIERS = 1024  # bytes beside the buffers


@dataclass(frozen=True)
class DataConfig:
    """One way to run a kernel.

    A tile, or `box`, has these images, rows and columns, and `bk` output channels; `bc` channels
    are added up at a time; `stages` the tiles of the operands that are buffered. conv_persistent
    stores a tile in `epilogue_subtiles` parts; `per_sm` programs share an SM. `padded`: conv_gluon
    reads a copy whose pixels start on lines, or powers of two within one.
    """

    kernel: str
    images: int
    rows: int
    columns: int
    bk: int
    bc: int
    stages: int
    warps: int
    epilogue_subtiles: int = 1
    per_sm: int = 1
    padded: bool = False

    @property
    def label(self) -> str:
        """Compact name, which `parse` reads: "conv_persistent/8x4x4x128x64/s3/w8/sub2"."""
        return LABELS.write(self)

    @property
    def box(self) -> tuple[int, int, int]:
        return self.images, self.rows, self.columns

    @property
    def pixels(self) -> int:
        return prod(self.box)

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of the implicit GEMM's tile: pixels, output channels, channels added up."""
        return self.pixels, self.bk, self.bc

    @property
    def accumulators(self) -> int:
        """float32 elements of the tile that one thread adds up."""
        return self.pixels * self.bk // (32 * self.warps)


def parse(label: str) -> DataConfig:
    return DataConfig(**LABELS.read(label))


def tiles(config: DataConfig, problem: ImplicitGemm) -> int:
    """How many tiles cover the output, all parities together."""
    blocks_k = ceil(problem.k / config.bk)
    if config.kernel == GATHER:
        return ceil(prod(problem.whole_output) / config.pixels) * blocks_k
    boxes = (ceil(size / box) for size, box in zip(problem.output, config.box, strict=True))
    parities = 1
    if problem.split_output:  # those that have pixels
        sizes = zip(problem.shape.strides, problem.whole_output[1:], strict=True)
        parities = prod(min(stride, size) for stride, size in sizes)
    return prod(boxes) * blocks_k * parities


def skips(config: DataConfig, problem: ImplicitGemm) -> bool:
    """Whether some tiles have taps that meet only padding, and the kernel leaves them out."""
    return config.kernel == PERSISTENT and any(
        pad > box - 1 for pad, box in zip(problem.pads, config.box[1:], strict=True)
    )


def products(config: DataConfig, problem: ImplicitGemm) -> float:
    """Multiply-adds that a configuration does, over those that the shape needs.

    The surplus is pixels and channels past the edge, and taps in the padding.
    """
    s = problem.shape
    if config.kernel == GATHER:
        steps = ceil(s.r * s.s * problem.c / config.bc)
        return 2 * tiles(config, problem) * prod(config.tile) * steps / s.flops
    wasted = ceil(problem.k / config.bk) * config.bk / problem.k
    wasted *= ceil(problem.output[0] / config.box[0]) * config.box[0] / problem.output[0]
    if config.kernel == GLUON:
        steps, last = depths(problem.c, config.bc, problem.element_bytes)
        wasted *= ((steps - 1) * config.bc + last) / problem.c
    else:
        wasted *= ceil(problem.c / config.bc) * config.bc / problem.c
    for axis, taps in ((1, s.r), (2, s.s)):
        size, box = problem.output[axis], config.box[axis]
        met = ceil(size / box) * taps
        if skips(config, problem):
            met = sum(_taps_met(problem, axis, start, taps, box) for start in range(0, size, box))
        wasted *= met * box / (size * taps)
    return wasted


def _taps_met(problem: ImplicitGemm, axis: int, start: int, taps: int, box: int) -> int:
    """Taps along an axis that meet the image from a box of outputs; stride 1."""
    near, dilation = start - problem.pads[axis - 1], problem.shape.dilations[axis - 1]
    first = max(0, ceil((-near - (box - 1)) / dilation))
    last = min(taps - 1, (problem.image[axis] - 1 - near) // dilation)
    return max(1, last - min(first, taps - 1) + 1)


def _least_depth(problem: ImplicitGemm) -> int:
    return max(MIN_DEPTH, MIN_ROW_BYTES // problem.element_bytes)


def shared_memory(config: DataConfig, problem: ImplicitGemm) -> int:
    """Estimated bytes of shared memory of one program."""
    if config.kernel == GLUON:
        return _gluon_shared_memory(config, problem)
    size = problem.element_bytes
    buffers = config.stages * (config.pixels + config.bk) * config.bc * size
    staged = config.pixels * config.bk * problem.precision.output_bytes // config.epilogue_subtiles
    if config.kernel == PERSISTENT:  # loads the next tile while this one is stored
        return buffers + staged + BARRIERS
    return max(buffers, staged) + BARRIERS


def _room(config: DataConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    taken = config.per_sm * shared_memory(config, problem)
    return taken <= architecture(capability).block_shared_bytes


def _for_tma(config: DataConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    """TMA's limits: boxes, and coordinates."""
    boxes = (*config.box, config.bk, config.bc)
    return has_tma(capability) and max(boxes) <= MAX_BOX and max(problem.output) <= MAX_INDEX


def _cost(config: DataConfig, problem: ImplicitGemm, sm_count: int) -> float:
    size, count = problem.element_bytes, tiles(config, problem)
    flops = problem.shape.flops * products(config, problem) / count
    by_gluon = config.kernel == GLUON
    pixel = problem.pixel(config.padded) if by_gluon else problem.c
    copied = pixel != problem.c
    # TMA reads pixel by pixel, and takes as long for a part of a line as for a whole one.
    loaded = max(1.0, LINE_BYTES / (config.bc * size))
    resident = config.per_sm
    if config.kernel == GATHER:
        loaded = 1.0
        shared = shared_memory(config, problem)
        resident = min(4, HOPPER.blocks_per_sm(32 * config.warps, config.accumulators, shared))
    work = Work(
        tiles=count,
        rows=config.pixels,
        columns=config.bk,
        depth=flops / (2 * config.pixels * config.bk),
        step=config.bc,
        element_bytes=size,
        output_bytes=problem.precision.output_bytes,
        flop_per_clock=HOPPER.flop_per_clock[problem.precision.rate_name],
        pieces=tuple(filter(None, split_n(config.bk))) if by_gluon else (),
        resident=resident,
        loaded=loaded,
        overfetch=(gathered_overfetch if config.kernel == GATHER else overfetch)(pixel * size),
        moved=_moved(problem),
        launches=int(copied),
        extra_moved=size * prod(problem.image) * (problem.c + pixel) if copied else 0,
    )
    return cost.estimated_clocks(work, FACTS[config.kernel], sm_count)


def _moved(problem: ImplicitGemm) -> int:
    read = problem.element_bytes * prod(problem.image) * problem.c
    return read + problem.precision.output_bytes * prod(problem.whole_output) * problem.k


# ------------------------------------------------------------ conv_gather

# Pixels, elements added up at a time, stages, warps.
_GATHER_TILES = (  # of odd channels some spill, and are the fastest even so where taps are few
    (64, 64, 4, 4), (128, 32, 3, 4), (128, 64, 3, 4), (128, 64, 4, 8), (128, 128, 2, 4),
    (256, 32, 3, 8), (256, 64, 3, 8),
)  # fmt: skip
_GATHER_WIDTHS = (16, 32, 64, 128, 256)  # output channels of a tile


def _gather(problem: ImplicitGemm) -> Iterator[DataConfig]:
    s = problem.shape
    depth = power_of_two(max(_least_depth(problem), s.r * s.s * problem.c))
    widest = power_of_two(max(min(_GATHER_WIDTHS), problem.k))
    widths = dict.fromkeys(min(width, widest) for width in _GATHER_WIDTHS)
    for pixels, bd, stages, warps in _GATHER_TILES:
        for bk in widths:
            yield DataConfig(GATHER, 1, 1, pixels, bk, min(bd, depth), stages, warps)


def _gather_valid(config: DataConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    s = problem.shape
    powers = all(map(_power, config.tile))
    plain = (config.epilogue_subtiles, config.per_sm, config.padded) == (1, 1, False)
    in_a_row = config.pixels == config.box[2]
    # Offsets of taps have 32 bits.
    down, right = s.dilations
    reach = (down * (s.r - 1) * problem.image[2] + right * (s.s - 1)) * problem.c
    deep = config.bc >= _least_depth(problem) and reach <= MAX_INDEX
    return powers and plain and in_a_row and deep and _room(config, problem, capability)


# ------------------------------------------------------------ conv_persistent

# Pixels, output channels, 128-byte lines of input channels, stages, warps, parts stored.
_TILES = (
    (64, 64, 1, 6, 4, 1), (64, 128, 1, 5, 4, 1), (128, 64, 1, 4, 4, 1), (128, 64, 1, 6, 4, 1),
    (256, 64, 1, 3, 4, 2), (256, 64, 1, 4, 4, 2), (64, 256, 1, 4, 8, 1),
    (128, 128, 1, 3, 4, 2), (128, 128, 1, 3, 8, 1), (128, 128, 1, 4, 8, 1), (128, 128, 1, 6, 8, 1),
    (256, 128, 1, 3, 8, 2), (256, 128, 1, 4, 8, 4), (128, 256, 1, 3, 8, 2), (128, 256, 1, 4, 8, 4),
    (64, 64, 2, 3, 4, 1), (128, 64, 2, 3, 4, 1), (128, 128, 2, 3, 8, 2),
)  # fmt: skip
NEAR_LEAST, CLEARLY_LESS = 1.15, 0.96  # of the multiply-adds of the least wasteful box


def boxes(pixels: int, problem: ImplicitGemm, kernel: str) -> list[tuple[int, int, int]]:
    """Boxes of `pixels` pixels: two squarish ones of little waste, and any that wastes far less.

    Large squares come first: their windows overlap within an image, which L2 then serves.
    """
    if problem.shape.flat:
        return [(1, 1, pixels)]
    powers = [1 << i for i in range(pixels.bit_length())]
    shapes = [
        (pixels // (h * w), h, w)
        for h in powers
        for w in (h, 2 * h)
        if h * w <= pixels and max(pixels // (h * w), w) <= MAX_BOX
    ]

    def work(box: tuple[int, int, int]) -> float:
        return products(DataConfig(kernel, *box, 64, 64, 1, 4), problem)

    least = min(shapes, key=work)
    near = sorted(
        (box for box in shapes if work(box) <= NEAR_LEAST * work(least)),
        key=lambda box: -box[1] * box[2],
    )
    clear = [least] * (work(least) < CLEARLY_LESS * work(near[0]))
    return list(dict.fromkeys((*near[:2], *clear)))


def _persistent(problem: ImplicitGemm) -> Iterator[DataConfig]:
    line = LINE_BYTES // problem.element_bytes
    widest = max(64, power_of_two(problem.k))
    for pixels, bk, lines, stages, warps, epilogue_subtiles in _TILES:
        bc = lines * line
        if bk > widest or (lines > 1 and bc > problem.c):
            continue
        bc = min(bc, power_of_two(problem.c))
        if bc < _least_depth(problem):
            continue
        for box in boxes(pixels, problem, PERSISTENT):
            config = DataConfig(PERSISTENT, *box, bk, bc, stages, warps, epilogue_subtiles)
            yield config
            if warps == 4:
                yield replace(config, per_sm=2, stages=min(stages, 4))


def _persistent_valid(config: DataConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    s, size = problem.shape, problem.element_bytes
    aligned = all(channels * size % TMA_ALIGNMENT == 0 for channels in (s.c, s.k))
    return (
        s.stride == 1
        and aligned
        and not config.padded
        and _for_tma(config, problem, capability)
        and _room(config, problem, capability)
    )


# ------------------------------------------------------------ conv_gluon

MOST_STRIDE = 2  # a view of the tensor for each parity of rows and columns: four
LEAST_WIDTH = 16  # output channels of an accumulator
WGMMA_BYTES = 32  # of the channels that one wgmma multiplies
# Pixels, warps, programs on an SM; then stages are those that fit.
GLUON_TILES = ((128, 8, 1), (256, 8, 1), (64, 4, 2), (128, 8, 2))
WIDTHS = (16, 32, 48, 64, 80, 96, 128, 144, 160, 192, 256)  # output channels of a tile
WIDTHS_KEPT, WORST_WIDTH = 4, 1.35  # of the clocks of the best
STAGES = (6, 3)  # at most, at least
MOST_ACCUMULATORS = 160  # float32 sums of one thread, which may have 240 registers
MOST_ACCUMULATORS_OF_SINGLES = 128  # where pixels are stored by elements: addresses take registers
MOST_ACCUMULATORS_OF_TWO = 64  # with two programs of 8 warps on an SM


def depths(channels: int, bc: int, element_bytes: int) -> tuple[int, int]:
    """(steps of bc channels, channels that the last of them multiplies, in whole wgmmas)."""
    steps, fine = ceil(channels / bc), WGMMA_BYTES // element_bytes
    return steps, ceil((channels - (steps - 1) * bc) / fine) * fine


def word(channels: int, element_bytes: int) -> int:
    """Channels that one store may write where pixels do not start on 16 bytes; 0 where they do."""
    length = channels * element_bytes
    return 0 if length % TMA_ALIGNMENT == 0 else (length & -length) // element_bytes


def _power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def gluon_runs(problem: ImplicitGemm, capability: Capability) -> bool:
    """Whether conv_gluon can run a pass: it multiplies by wgmma, which Hopper alone has, has
    descriptors for strides up to MOST_STRIDE, the same along both axes, and one type for all.
    """
    strided = problem.shape.stride not in range(1, MOST_STRIDE + 1)
    one_type = not problem.precision.is_float8
    return capability == (9, 0) and not strided and one_type and not triton_util.gluon_missing()


def _gluon_valid(config: DataConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    if not gluon_runs(problem, capability) or not _for_tma(config, problem, capability):
        return False
    first, second = split_n(config.bk)
    widths = first >= LEAST_WIDTH and (second == 0 or (_power(second) and second >= LEAST_WIDTH))
    line = config.bc * problem.element_bytes
    deep = _power(config.bc) and WGMMA_BYTES <= line <= LINE_BYTES
    rows = 16 * config.warps  # of a wgmma of each warpgroup
    whole = all(map(_power, config.box)) and config.pixels % rows == 0
    shared = config.warps in (4, 8) and config.epilogue_subtiles == 1
    copied = not config.padded or problem.pixel(padded=True) != problem.pixel(padded=False)
    return widths and deep and whole and shared and copied and _room(config, problem, capability)


def _gluon_shared_memory(config: DataConfig, problem: ImplicitGemm) -> int:
    first, second = split_n(config.bk)
    stage = (config.pixels + config.bk) * config.bc
    idle = LEAST_WIDTH * config.bc if not second else 0  # the kernel has a buffer even for none
    staged = config.pixels * (first + max(second, LEAST_WIDTH))
    return (config.stages * stage + idle + staged) * problem.element_bytes + BARRIERS


def _product_clocks(bk: int) -> float:
    """SM clocks of one wgmma step of 64 pixels (32 bytes deep) by bk output channels.

    Tensor Cores take half a clock a column. Shared memory gives 128 bytes a clock: 16 clocks for
    the pixels, which each accumulator reads again, and a quarter of one for each column.
    """
    return sum(max(width / 2, 16 + width / 4) for width in split_n(bk) if width)


def _widths(problem: ImplicitGemm) -> list[int]:
    """The widths of tiles that take the output channels in the fewest clocks, the widest first."""
    clocks = {bk: ceil(problem.k / bk) * _product_clocks(bk) for bk in WIDTHS}
    best = sorted(clocks, key=lambda bk: (clocks[bk], -bk))[:WIDTHS_KEPT]
    return sorted((bk for bk in best if clocks[bk] <= WORST_WIDTH * clocks[best[0]]), reverse=True)


def _gluon(problem: ImplicitGemm) -> Iterator[DataConfig]:
    size = problem.element_bytes
    copies = problem.pixel(padded=True) != problem.pixel(padded=False)
    bc = min(LINE_BYTES // size, max(WGMMA_BYTES // size, power_of_two(problem.c)))
    for bk in _widths(problem):
        for pixels, warps, per_sm in GLUON_TILES:
            sums = pixels * bk // (32 * warps)
            most = MOST_ACCUMULATORS if warps == 4 or per_sm == 1 else MOST_ACCUMULATORS_OF_TWO
            if word(problem.k, size) == 1:
                most = min(most, MOST_ACCUMULATORS_OF_SINGLES)
            if sums > most:
                continue
            empty = DataConfig(GLUON, 1, 1, pixels, bk, bc, 0, warps, per_sm=per_sm)
            left = HOPPER.sm_shared_bytes // per_sm - HOPPER.block_reserve_bytes
            left -= _gluon_shared_memory(empty, problem)
            stages = left // ((pixels + bk) * bc * size)
            if stages < STAGES[1]:
                continue
            for images, rows, columns in boxes(pixels, problem, GLUON):
                config = replace(empty, images=images, rows=rows, columns=columns)
                config = replace(config, stages=min(stages, STAGES[0]))
                yield config
                if copies:
                    yield replace(config, padded=True)


# ------------------------------------------------------------ the list

FACTS: Mapping[str, cost.Kernel] = {
    GATHER: cost.Kernel(slowdown=1.25),  # addresses and masks
    # Operand A is the weights; the next tile's loads are under way while one is stored.
    PERSISTENT: cost.Kernel(rows_first=False, stored=0.3),
    GLUON: cost.Kernel(slowdown=1.05, stored=0.3),  # its warps meet at a barrier each step
}
# What of a kernel is worth a try, and what it can run.
RULES = {
    GATHER: (_gather, _gather_valid),
    PERSISTENT: (_persistent, _persistent_valid),
    GLUON: (_gluon, _gluon_valid),
}


def valid(config: DataConfig, problem: ImplicitGemm, capability: Capability) -> bool:
    """Whether a GPU of this capability can run the pass with it."""
    _, runs = RULES[config.kernel]
    return not problem.weights and runs(config, problem, capability)


# Clocks of the model over those that arithmetic or memory take at least. On an H200 gradients of
# the input at stride 2 took 1.3 to 2.5 times the least, by cuDNN and by conv_gluon, which the
# model puts at 1.1 to 1.6: at 4 in the model ours is likely below 0.6 of cuDNN's speed. A 4x4
# kernel of stride 4 and 3 channels is at 69; it was measured at 0.07 of cuDNN's speed.
MOST_SURPLUS = 4.0


def too_slow(problem: ImplicitGemm, capability: Capability, sm_count: int) -> str | None:
    """Why our kernels would stay far below the library, or None: conv_gather multiplies each pixel
    of a strided gradient of the input with all taps, also those that it does not meet.
    """
    configs = ranked(problem, capability, sm_count) if problem.split_output else []
    if not configs or configs[0].kernel != GATHER:
        return None
    s = problem.shape
    rate = sm_count * HOPPER.flop_per_clock[problem.precision.rate_name]
    least = max(s.flops / rate, _moved(problem) / cost.DRAM_BYTES_PER_CLOCK) + cost.START_CLOCKS
    times = _cost(configs[0], problem, sm_count) / least
    if times < MOST_SURPLUS:
        return None
    return (
        f"it has no fast gradient of the input at stride {s.stride}: each pixel is multiplied with "
        f"all {s.r * s.s} taps and meets 1 of {prod(s.strides)}, which takes about "
        f"{times:.0f} times as long as needed, by our model"
    )


def ranked(problem: ImplicitGemm, capability: Capability, sm_count: int) -> list[DataConfig]:
    """All valid configurations of the catalogue, the most promising first."""
    configs = [
        config
        for catalogue, _ in RULES.values()
        for config in dict.fromkeys(catalogue(problem))
        if valid(config, problem, capability)
        and (config.kernel == GLUON or config.accumulators <= MAX_ACCUMULATORS)
    ]
    return sorted(configs, key=lambda config: _cost(config, problem, sm_count))
