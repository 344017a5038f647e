"""What the Triton GEMM can run for a problem, and which configuration to prefer.

Nothing here imports torch or triton: tables and rules can be checked on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from kernels import gluon, tile_model
from kernels.case import Case
from kernels.gemm.triton.catalogue import (
    GLUON,
    GLUON_PRECISIONS,
    PERSISTENT,
    POINTER,
    SKINNY,
    SLICED,
    SPLIT_K,
    TMA,
    WALKING,
    WGMMA_CAPABILITY,
    Config,
    catalogue,
    parse,
    shared_memory,
)
from kernels.gpus import HOPPER, LINE_BYTES, architecture, has_tma
from kernels.precision import Capability, Precision
from kernels.tile_model import STRADDLING, Fit, Kernel, Work, pieces
from kernels.triton_config import TMA_ALIGNMENT, power_of_two

__all__ = (
    "GLUON", "PERSISTENT", "POINTER", "SKINNY", "SLICED", "SPLIT_K", "TMA", "WGMMA_CAPABILITY",
    "Config", "Problem", "catalogue", "choices", "estimated_clocks", "fit", "parse",
    "shared_memory", "tile_kind", "valid", "why_not",
)  # fmt: skip

MOST_FLOP_PER_CLOCK = max(HOPPER.flop_per_clock.values())
KNOWN_DIVISOR = 16  # of integer arguments, which Triton compiles for
NARROWEST = 16  # rows of the narrow side of a tile
LEAST_STEPS = 2  # over K, of one slice
LEAST_GENERAL = 32  # columns of a tile that any problem may be cut into


@dataclass(frozen=True)
class Problem:
    """A GEMM as the kernels see it: C[m, n] = A[m, k] @ B[k, n], and whether K is contiguous."""

    m: int
    n: int
    k: int
    precision: Precision
    a_k_major: bool
    b_k_major: bool

    @classmethod
    def of(cls, case: Case) -> Problem:
        """The problem of a case: layout letter "n" of A and "t" of B keep K contiguous. KeyError
        for a missing dimension, ValueError for an unknown precision.
        """
        m, n, k = (case.dim(d) for d in "mnk")
        return cls(m, n, k, case.precision, case.layout[0] == "n", case.layout[1] == "t")

    @property
    def pack_a(self) -> bool:
        """Whether TMA needs a copy of A: rows on 16 bytes, or K-major."""
        return self._pack(self.a_k_major, self.m)

    @property
    def pack_b(self) -> bool:
        """Whether TMA needs a copy of B: rows on 16 bytes, or K-major."""
        return self._pack(self.b_k_major, self.n)

    def _pack(self, k_major: bool, rows: int) -> bool:
        return self.turned(k_major) or bool(
            (self.k if k_major else rows) * self.precision.bytes_per_element % TMA_ALIGNMENT
        )

    @property
    def copies(self) -> int:
        """Launches that pack: one for each operand that is transposed, one for the others."""
        turned = [
            self.turned(k_major) if pack else None
            for pack, k_major in ((self.pack_a, self.a_k_major), (self.pack_b, self.b_k_major))
        ]
        return turned.count(True) + (False in turned)

    def turned(self, k_major: bool) -> bool:
        """Whether the copy for TMA is transposed: wgmma reads only 16-bit types with K outermost
        (PTX ISA, "Strides", wgmma descriptors).
        """
        return not k_major and self.precision.bytes_per_element != 2

    @property
    def c_misaligned(self) -> bool:
        """Whether the rows of C do not start on 16 bytes, which TMA cannot store."""
        return bool(self.n * self.precision.output_bytes % TMA_ALIGNMENT)

    @property
    def loads_are_narrow(self) -> bool:
        """Whether threads that load A or B by pointers take an element at a time: Triton knows of
        a row's length only whether 16 divides its number of elements.
        """
        return any(row % KNOWN_DIVISOR for row in self._rows)

    def straddles(self, packed: bool) -> bool:
        """Whether rows of A or B do not start on the 128 bytes of a cache line; `packed`: as TMA
        reads them, from copies that do.
        """
        copied = (packed and self.pack_a, packed and self.pack_b)
        row_bytes = [row * self.precision.bytes_per_element for row in self._rows]
        rows = zip(row_bytes, copied, strict=True)
        return any(row % LINE_BYTES and not copy for row, copy in rows)

    @property
    def _rows(self) -> tuple[int, int]:
        """Elements of a row of A and of B, as they are stored."""
        return self.k if self.a_k_major else self.m, self.k if self.b_k_major else self.n

    @property
    def storage_class(self) -> tuple[bool, bool, bool]:
        """Problems that agree in these three can share a tuned configuration."""
        return self.pack_a, self.pack_b, self.c_misaligned

    def tiles(self, config: Config) -> int:
        """How many tiles cover C [m, n]."""
        return ceil(self.m / config.bm) * ceil(self.n / config.bn)


def valid(config: Config, problem: Problem, capability: Capability) -> bool:
    """Whether a GPU of this capability can run it; `why_not` says what is in the way."""
    return why_not(config, problem, capability) is None


def why_not(config: Config, problem: Problem, capability: Capability) -> str | None:
    """Why a GPU of this capability cannot run it, or None: TMA, alignment of C, shared memory, and
    for GLUON a Triton that has it, Hopper, and a precision that it multiplies.
    """
    if config.kernel != POINTER and not has_tma(capability):
        return "this GPU has no TMA"
    if config.kernel not in (POINTER, *SLICED) and config.direct < problem.c_misaligned:
        return "the rows of C do not start on 16 bytes"
    if config.slices > ceil(problem.k / config.bk):
        return "it has more slices than steps over K"
    if config.kernel == GLUON and (reason := _no_gluon(problem.precision, capability)):
        return reason
    needed = shared_memory(config, problem.precision)
    if needed > (there := architecture(capability).block_shared_bytes):
        return f"it needs {needed} bytes of shared memory, a block has {there}"
    return None


def _no_gluon(kind: Precision, capability: Capability) -> str | None:
    if capability != WGMMA_CAPABILITY:
        return "this GPU has no wgmma"
    if kind.name not in GLUON_PRECISIONS:
        return f"it does not multiply {kind.name}"
    return gluon.missing()


def choices(problem: Problem, capability: Capability, sm_count: int) -> Sequence[Config]:
    """All valid configurations of the catalogue, the most promising first."""
    kind = problem.precision
    possible = [
        config
        for config in catalogue(kind.name)
        if valid(config, problem, capability)
        and (config.direct == problem.c_misaligned or config.kernel in (POINTER, *SLICED))
        and _suits(config, problem)
    ]
    return sorted(possible, key=lambda config: estimated_clocks(config, problem, sm_count))


def _suits(config: Config, problem: Problem) -> bool:
    """Whether a sliced kernel is made for the problem: one side so narrow, K so long."""
    if config.kernel not in SLICED:
        return True
    narrow, rows = (config.bm, problem.m) if config.kernel == SKINNY else (config.bn, problem.n)
    if config.slices * LEAST_STEPS > ceil(problem.k / config.bk):
        return False
    general = config.kernel == SPLIT_K and narrow >= LEAST_GENERAL
    return general or narrow == max(NARROWEST, power_of_two(rows))


FACTS: Mapping[str, Kernel] = {
    # Address arithmetic and register pressure, but no descriptors to fetch: good in short launches.
    POINTER: Kernel(slowdown=1.3, start=-700),
    TMA: Kernel(),
    # The next tile's loads are under way while this one is stored.
    PERSISTENT: Kernel(slowdown=0.96, start=300, stored=0.5),
    GLUON: Kernel(slowdown=0.92, start=400, stored=0.3),
    SKINNY: Kernel(rows_first=False),
}
REDUCED = 0.5  # of a launch: what a tile's last program waits for, and adds up
NARROW_SLOWDOWN = 3.0  # of POINTER, where elements are loaded one by one


def estimated_clocks(config: Config, problem: Problem, sm_count: int) -> float:
    """The tile model's clocks for one launch; see `kernels.tile_model`. It only ranks."""
    kernel = FACTS.get(config.kernel, Kernel())
    if config.kernel == POINTER and problem.loads_are_narrow:
        kernel = replace(kernel, slowdown=NARROW_SLOWDOWN * kernel.slowdown)
    return tile_model.estimated_clocks(_work(config, problem), kernel, sm_count)


def tile_kind(config: Config) -> tuple[int, int, int]:
    """What a short list holds few of: the tile, or the same one turned."""
    return min(config.bm, config.bn), max(config.bm, config.bn), config.bk


def fit(config: Config, problem: Problem) -> Fit:
    """How the configuration's tiles fit C."""
    tiles = problem.tiles(config)
    return Fit(tiles, tiles * config.bm * config.bn / (problem.m * problem.n))


def _work(config: Config, problem: Problem) -> Work:
    p, kind, slices = problem, problem.precision, config.slices
    shared = shared_memory(config, kind)
    packed = p.k * (p.m * p.pack_a + p.n * p.pack_b) if config.kernel != POINTER else 0
    copies = p.copies if config.kernel != POINTER else 0
    return Work(
        tiles=p.tiles(config) * slices,
        rows=config.bm,
        columns=config.bn,
        depth=ceil(ceil(p.k / config.bk) / slices) * config.bk,
        step=config.bk,
        element_bytes=kind.bytes_per_element,
        # A tile's last program reads every slice again.
        output_bytes=kind.output_bytes + (slices > 1) * (1 + slices) * kind.accumulator_bytes,
        flop_per_clock=HOPPER.flop_per_clock.get(kind.rate_name, MOST_FLOP_PER_CLOCK),
        pieces=pieces(config.bn) if config.kernel == GLUON else (),
        resident=1
        if config.kernel in WALKING
        else HOPPER.blocks_per_sm(32 * config.warps, config.accumulators, shared),
        spread=STRADDLING if p.straddles(packed=config.kernel != POINTER) else 1.0,
        moved=p.k * (p.m + p.n) * kind.bytes_per_element + p.m * p.n * kind.output_bytes,
        launches=copies + (REDUCED if slices > 1 else 0),
        extra_moved=2 * packed * kind.bytes_per_element,
    )
