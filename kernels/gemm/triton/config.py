"""The configurations of the Triton GEMM: labels, which a problem may run, and what each costs.

Nothing here imports torch or triton: rules can be checked on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import ceil

from kernels import cost
from kernels.case import Case
from kernels.cost import STRADDLING, Kernel, Work
from kernels.gpus import HOPPER, LINE_BYTES, architecture, has_tma
from kernels.precision import PRECISIONS, Capability, Precision
from kernels.triton_util import TMA_ALIGNMENT, LabelFormat, power_of_two, split_n

KERNELS = ("pointer", "tma", "tma_persistent", "split_k", "odd_width")
POINTER, TMA, PERSISTENT, SPLIT_K, ODD_WIDTH = KERNELS
EITHER_WAY = (SPLIT_K, ODD_WIDTH)  # either operand may be wgmma's first; C is stored by pointers
LABELS = LabelFormat(
    "Triton GEMM", KERNELS, ("bm", "bn", "bk"), {"s": "stages", "w": "warps", "g": "group_m"},
    {"sub": "epilogue_subtiles", "k": "split_k"}, ("direct", "swapped"),
)  # fmt: skip
GROUP_M = 8  # as a rule


@dataclass(frozen=True)
class GemmConfig:
    """One way to run a kernel. A tile is `bm` x `bn` of C, added up `bk` of K at a time, by `warps`
    warps, with `stages` tiles of the operands buffered.

    Tiles are rasterised in bands of `group_m` rows, for L2; a tile is stored in `epilogue_subtiles`
    parts; `direct` stores registers to memory without TMA. `split_k` programs share the K of a tile
    of SPLIT_K; with `swapped` the second operand is wgmma's first, which is for a narrow M.
    """

    kernel: str
    bm: int
    bn: int
    bk: int
    stages: int
    warps: int
    group_m: int = GROUP_M
    epilogue_subtiles: int = 1
    direct: bool = False
    split_k: int = 1
    swapped: bool = False

    @property
    def label(self) -> str:
        """Compact name, which `parse` reads: "tma_persistent/128x256x64/s4/w8/g8/sub2"."""
        return LABELS.write(self)

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.bm, self.bn, self.bk

    @property
    def pieces(self) -> tuple[int, ...]:
        """The widths of ODD_WIDTH's two sums; none of others."""
        return split_n(self.bm if self.swapped else self.bn) if self.kernel == ODD_WIDTH else ()

    @property
    def accumulators(self) -> int:
        """Elements of the tile, in the accumulator's dtype, that one thread adds up."""
        return self.bm * self.bn // (32 * self.warps)


def parse(label: str) -> GemmConfig:
    return GemmConfig(**LABELS.read(label))


def shared_memory(config: GemmConfig, precision: Precision) -> int:
    """Estimated bytes of shared memory of one program, seldom too few: operands times stages, and
    the tile on its way to C. Only the compiler knows the exact number.
    """
    rows = config.bm * precision.bytes_per_element + config.bn * precision.bytes_of("storage_b")
    buffers = config.stages * config.bk * rows
    staged = config.bm * config.bn * precision.output_bytes // config.epilogue_subtiles
    if config.kernel == POINTER:
        return max(buffers, staged)
    barriers = 1024
    if config.kernel == SPLIT_K:
        return max(buffers, config.bm * config.bn * precision.accumulator_bytes) + barriers
    narrowed = precision.output_bytes == 2  # C is made after the loop
    if config.kernel == ODD_WIDTH:
        return max(buffers, staged) + barriers
    if config.kernel == TMA and (narrowed or config.epilogue_subtiles > 1 or config.direct):
        return max(buffers, staged) + barriers
    return buffers + staged + barriers


# ---------------------------------------------------------------- the catalogue

LARGE_ACCUMULATORS = 128

# (M, N, 128-byte lines of K, stages, warps)
_POINTER_TILES = (
    (32, 32, 1, 4, 4), (32, 64, 1, 4, 4), (64, 64, 1, 4, 4), (64, 128, 1, 4, 4),
    (128, 64, 1, 4, 4), (128, 128, 1, 3, 8), (128, 256, 1, 3, 8),
)  # fmt: skip
_TMA_TILES = (
    (64, 32, 1, 6, 4), (64, 32, 2, 4, 4), (64, 64, 1, 4, 4), (64, 64, 1, 6, 4), (64, 64, 2, 4, 4),
    (64, 128, 1, 4, 4), (64, 128, 1, 6, 4), (128, 64, 1, 4, 4), (128, 64, 1, 6, 4),
    (128, 64, 2, 4, 4), (64, 128, 2, 4, 4), (128, 128, 1, 3, 4), (128, 128, 1, 4, 4),
    (128, 128, 1, 5, 8), (64, 256, 1, 4, 4), (128, 256, 1, 3, 8), (128, 256, 1, 4, 8),
    (256, 128, 1, 3, 8), (256, 128, 1, 4, 8),
)  # fmt: skip
# (rows of the long matrix, 128-byte lines of K, stages)
_LONG_SIDES = ((32, 4, 4), (64, 2, 5), (64, 1, 8), (128, 2, 4))
# (M, N, 128-byte lines of K, stages, warps)
_SPLIT_TILES = ((64, 128, 1, 5, 4), (128, 128, 1, 4, 8))
# Widths between powers of two, and programs on an SM; the other side is long.
_ODD_WIDTHS = ((80, 2), (96, 2), (144, 1), (160, 1), (192, 1), (272, 1), (288, 1), (320, 1))
_ODD_LONG, _ODD_STAGES = 128, (3, 6)  # stages at least, at most
# Programs that share a tile's K: of 25 tiles 5 each fill 132 SMs, 4 or 8 do not.
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


@cache
def catalogue(precision_name: str) -> tuple[GemmConfig, ...]:
    """Every configuration that the rules choose from, for one precision. KeyError for no
    precision.
    """
    precision = PRECISIONS[precision_name]
    line = 128 // precision.bytes_per_element  # elements of K in a 128-byte swizzled row
    if precision.widens:  # in registers, which hold wgmma's first operand alone
        return tuple(config for config in _split_k(line) if config.swapped)
    configs = [
        GemmConfig(kernel, bm, bn, lines * line, stages, warps)
        for kernel, tiles in ((POINTER, _POINTER_TILES), (TMA, _TMA_TILES))
        for bm, bn, lines, stages, warps in tiles
    ]
    configs += _persistent(line, precision.output_bytes)
    direct = [_direct(config) for config in configs if config.kernel != POINTER]
    return (*configs, *_split_k(line), *_odd_width(line), *direct)


def _split_k(line: int) -> Iterator[GemmConfig]:
    for narrow, (long, lines, stages), split_k in product((16, 32, 64), _LONG_SIDES, _SPLITS):
        if long < narrow:
            continue
        plain = GemmConfig(SPLIT_K, long, narrow, lines * line, stages, 4, split_k=split_k)
        yield replace(plain, bm=narrow, bn=long, swapped=True)
        yield plain
    for (bm, bn, lines, stages, warps), split_k in product(_SPLIT_TILES, _SPLITS[1:]):
        yield GemmConfig(SPLIT_K, bm, bn, lines * line, stages, warps, split_k=split_k)


def _odd_width(line: int) -> Iterator[GemmConfig]:
    for width, programs in _ODD_WIDTHS:
        room = HOPPER.sm_shared_bytes // programs - HOPPER.block_reserve_bytes
        stages = min(_ODD_STAGES[1], room // ((_ODD_LONG + width) * LINE_BYTES))
        warps = 8 if programs == 1 else 4
        plain = GemmConfig(ODD_WIDTH, _ODD_LONG, width, line, stages, warps)
        yield plain
        yield replace(plain, bm=width, bn=_ODD_LONG, swapped=True)


def _direct(config: GemmConfig) -> GemmConfig:
    # Addresses take registers too: a large tile stored in one part spills.
    parts = 4 if config.accumulators >= LARGE_ACCUMULATORS else 2
    return replace(config, direct=True, epilogue_subtiles=max(config.epilogue_subtiles, parts))


def _persistent(line: int, output_bytes: int) -> Iterator[GemmConfig]:
    wide = output_bytes // 2  # parts for a 32-bit C, so that four stages still fit
    for warps in (4, 8):
        yield GemmConfig(PERSISTENT, 128, 128, line, 4, warps, epilogue_subtiles=wide)
    # Of 34 searches at 4096 and above, 21 ended with 16 rows of tiles together. None is compiled:
    # `group_m` is an argument of the kernel.
    for (bm, bn), group_m in product(((128, 256), (256, 128)), (GROUP_M, 16)):
        yield GemmConfig(PERSISTENT, bm, bn, line, 3, 8, group_m, epilogue_subtiles=wide)
        yield GemmConfig(PERSISTENT, bm, bn, line, 4, 8, group_m, epilogue_subtiles=2 * wide)


# ---------------------------------------------------------------- what a problem may run


KNOWN_DIVISOR = 16  # of a row's elements: all that Triton knows of it, which it compiles for
FEW_BYTES = LINE_BYTES // 4  # of a row, whose copy would be four times as large or more


@dataclass(frozen=True)
class Stored:
    """An operand in memory: [rows, K] (K-major) or [K, rows]."""

    rows: int
    k: int
    k_major: bool
    element_bytes: int

    @property
    def sizes(self) -> tuple[int, int]:
        """As it is stored: how many rows, and the elements of one."""
        return (self.rows, self.k) if self.k_major else (self.k, self.rows)

    @property
    def row_bytes(self) -> int:
        return self.sizes[1] * self.element_bytes

    @property
    def packed(self) -> bool:
        """Whether TMA needs a copy: rows on 16 bytes, or K-major."""
        readable = self.k_major or self.element_bytes == 2
        return not readable or bool(self.row_bytes % TMA_ALIGNMENT)

    @property
    def copy(self) -> Stored:
        """The copy for TMA, K-major where wgmma reads only 16-bit types with K outermost (PTX ISA,
        "Strides", wgmma descriptors), or a row of few bytes would fill a line.
        """
        few = self.row_bytes <= FEW_BYTES
        return replace(self, k_major=self.k_major or self.element_bytes != 2 or few)

    @property
    def copied_bytes(self) -> int:
        """What the copy moves; its rows are whole lines."""
        outer, written = self.copy.sizes[0], ceil(self.copy.row_bytes / LINE_BYTES) * LINE_BYTES
        return self.rows * self.k * self.element_bytes + outer * written


@dataclass(frozen=True)
class GemmProblem:
    """A GEMM as the kernels see it: C[m, n] = A[m, k] @ B[k, n]."""

    m: int
    n: int
    k: int
    precision: Precision
    a: Stored
    b: Stored

    @classmethod
    def of(cls, case: Case) -> GemmProblem:
        """The problem of a case: layout letter "n" of A and "t" of B keep K contiguous."""
        (m, n, k), (a, b) = case.problem.mnk, case.problem.layout
        size = case.precision.bytes_per_element
        # A vector has its elements along K one after the other, whatever its layout is called.
        first = Stored(m, k, a == "n" or m == 1, size)
        second = Stored(n, k, b == "t" or n == 1, case.precision.bytes_of("storage_b"))
        return cls(m, n, k, case.precision, first, second)

    @property
    def copied(self) -> Sequence[Stored]:
        """The operands that TMA needs a copy of."""
        return [operand for operand in (self.a, self.b) if operand.packed]

    @property
    def c_misaligned(self) -> bool:
        """Whether the rows of C do not start on 16 bytes, which TMA cannot store."""
        return bool(self.n * self.precision.output_bytes % TMA_ALIGNMENT)

    def unit(self, size: int) -> int:
        """The elements of 16 bytes, where a size is a multiple of them and Triton does not know;
        else 1.
        """
        wide = TMA_ALIGNMENT // self.precision.bytes_per_element
        return wide if size % KNOWN_DIVISOR and size % wide == 0 else 1

    def straddles(self, packed: bool) -> bool:
        """Whether rows of A or B do not start on the 128 bytes of a cache line; `packed`: as TMA
        reads them, from copies that do.
        """
        read = (operand for operand in (self.a, self.b) if not (packed and operand.packed))
        return any(operand.row_bytes % LINE_BYTES for operand in read)

    def tiles(self, config: GemmConfig) -> int:
        """How many tiles cover C [m, n]."""
        return ceil(self.m / config.bm) * ceil(self.n / config.bn)


def valid(config: GemmConfig, problem: GemmProblem, capability: Capability) -> bool:
    """Whether a GPU of this capability can run it: TMA, alignment of C, split-K, shared memory."""
    if config.kernel != POINTER and not has_tma(capability):
        return False
    if config.swapped and config.kernel not in EITHER_WAY:
        return False
    if config.kernel in (TMA, PERSISTENT) and config.direct < problem.c_misaligned:
        return False
    if config.split_k > ceil(problem.k / config.bk):
        return False
    needed = shared_memory(config, problem.precision)
    return needed <= architecture(capability).block_shared_bytes


def choices(problem: GemmProblem, capability: Capability, sm_count: int) -> Sequence[GemmConfig]:
    """All valid configurations of the catalogue, the most promising first; of odd widths only the
    one that is the most promising of all, if one is.
    """
    possible = [
        config
        for config in catalogue(problem.precision.name)
        if valid(config, problem, capability)
        and (config.direct == problem.c_misaligned or config.kernel in (POINTER, *EITHER_WAY))
        and _suits(config, problem)
    ]
    ranked = sorted(possible, key=lambda config: estimated_clocks(config, problem, sm_count))
    return [*ranked[:1], *(config for config in ranked[1:] if config.kernel != ODD_WIDTH)]


NARROWEST = 16  # rows of the narrow side of a tile
LEAST_STEPS = 2  # over K, of one program
LEAST_GENERAL = 32  # columns of a tile that any problem may be cut into
WIDENED = 64  # rows of activations, at most, of a tile whose weights are widened


def _suits(config: GemmConfig, problem: GemmProblem) -> bool:
    """Whether split-K is made for the problem, one side so narrow, K so long; an odd width for its
    shorter side; and whether there are more rows of tiles than the band of a larger group_m.
    """
    if config.kernel == ODD_WIDTH:
        return config.swapped == (problem.m < problem.n)
    if config.kernel != SPLIT_K:
        return config.group_m <= GROUP_M or problem.m > config.group_m * config.bm
    narrow, rows = (config.bm, problem.m) if config.swapped else (config.bn, problem.n)
    if config.split_k * LEAST_STEPS > ceil(problem.k / config.bk):
        return False
    general = not config.swapped and narrow >= LEAST_GENERAL
    most = WIDENED if problem.precision.widens else rows
    return general or narrow == max(NARROWEST, power_of_two(min(rows, most)))


# ---------------------------------------------------------------- what it costs

FACTS: Mapping[str, Kernel] = {
    # Address arithmetic and register pressure, but no descriptors to fetch: good in short launches.
    POINTER: Kernel(slowdown=1.3, start=-700),
    TMA: Kernel(),
    # The next tile's loads are under way while this one is stored.
    PERSISTENT: Kernel(slowdown=0.96, start=300, stored=0.5),
    SPLIT_K: Kernel(),
    ODD_WIDTH: Kernel(slowdown=1.15),  # timed: 1.3 times as fast at 257 rows, 0.93 at 1536
}
MOST_FLOP_PER_CLOCK = max(HOPPER.flop_per_clock.values())
REDUCED = 0.5  # of a launch: what a tile's last program waits for, and adds up
NARROW_SLOWDOWN = 3.0  # of POINTER, where elements are loaded one by one


def estimated_clocks(config: GemmConfig, problem: GemmProblem, sm_count: int) -> float:
    """The cost model's clocks for one launch; see `kernels.cost`. It only ranks."""
    kernel = replace(FACTS[config.kernel], rows_first=not config.swapped)
    rows = problem.a.sizes[1], problem.b.sizes[1]
    single = any(row % KNOWN_DIVISOR and problem.unit(row) == 1 for row in rows)
    if config.kernel == POINTER and single:
        kernel = replace(kernel, slowdown=NARROW_SLOWDOWN * kernel.slowdown)
    return cost.estimated_clocks(_work(config, problem), kernel, sm_count)


def tile_kind(config: GemmConfig) -> tuple[int, ...]:
    """What a short list holds few of: the tile, or its transpose, with its group_m; and tiles
    of ODD_WIDTH, which differ little.
    """
    if config.kernel == ODD_WIDTH:
        return (config.bk,)
    return min(config.bm, config.bn), max(config.bm, config.bn), config.bk, config.group_m


def _work(config: GemmConfig, problem: GemmProblem) -> Work:
    p, precision, split_k = problem, problem.precision, config.split_k
    by_tma = config.kernel != POINTER
    # One launch for each operand that is transposed, one for the others.
    copied = p.copied if by_tma else ()
    transposed = [operand.copy.k_major != operand.k_major for operand in copied]
    copies = transposed.count(True) + (False in transposed)
    threads, shared = 32 * config.warps, shared_memory(config, precision)
    return Work(
        tiles=p.tiles(config) * split_k,
        rows=config.bm,
        columns=config.bn,
        depth=ceil(ceil(p.k / config.bk) / split_k) * config.bk,
        step=config.bk,
        element_bytes=precision.bytes_per_element,
        # A tile's last program reads every partial sum again.
        output_bytes=precision.output_bytes
        + (split_k > 1) * (1 + split_k) * precision.accumulator_bytes,
        flop_per_clock=HOPPER.flop_per_clock.get(precision.rate_name, MOST_FLOP_PER_CLOCK),
        pieces=config.pieces,
        resident=1
        if config.kernel == PERSISTENT
        else HOPPER.blocks_per_sm(threads, config.accumulators, shared),
        overfetch=STRADDLING if p.straddles(packed=by_tma) else 1.0,
        moved=p.k * (p.m * p.a.element_bytes + p.n * p.b.element_bytes)
        + p.m * p.n * precision.output_bytes,
        launches=copies + (REDUCED if split_k > 1 else 0),
        extra_moved=sum(operand.copied_bytes for operand in copied),
    )
