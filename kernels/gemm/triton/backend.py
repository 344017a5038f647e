"""GEMM through this project's Triton kernels: which configuration, and its launches.

Whatever can be done beforehand is, so that a launch does nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf
from pathlib import Path

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.case import Candidate, Case, Target
from kernels.choosing import Choice, Options
from kernels.gemm import OP
from kernels.gemm.operands import Operands
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton import kernels as jit
from kernels.gemm.triton.config import Config, Problem, parse
from kernels.tile_model import agree
from kernels.triton_config import (
    TMA_ALIGNMENT,
    Step,
    bound,
    candidate,
    input_precision,
    options,
    some,
)
from kernels.tuned import NEAR, Size, apart, nearest, tables_for

SEARCHED = 14  # configurations that --autotune times
PACK_ROWS, PACK_COLUMNS, PACK_WARPS = 64, 64, 4
HEAD, TAIL = 128, 64  # the two blocks of a 192-wide tile

_ACCUMULATE = {"float32": tl.float32, "float16": tl.float16, "int32": tl.int32}
_TMA_KERNELS = {
    cfg.TMA: jit.gemm_tma,
    cfg.PERSISTENT: jit.gemm_tma_persistent,
    cfg.WIDE: jit.gemm_tma_192,
}


def cannot_run(case: Case, target: Target) -> str | None:
    """Why these kernels cannot run the case, or None."""
    if case.precision.storage == "float64":
        return "there is no fp64 Triton kernel"
    if min(case.dim(d) for d in "mnk") < 1:
        return "every dimension must be at least 1"
    return None


def candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """What `chosen` says. Raises CannotRun where no configuration fits the GPU."""
    return (bind(configuration(case, target), case, operands, target),)


def bind(config: Config, case: Case, operands: Operands, target: Target) -> Candidate:
    """A configuration, ready to launch. torch.OutOfMemoryError if a copy for TMA does not fit."""
    return _candidate(config, _launcher(case, operands, target))


def quick_candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """What a quick tune times; one where the tables or the user's cache know the case already.
    Raises CannotRun where no configuration fits the GPU.
    """
    launcher = _launcher(case, operands, target)
    tried = options_of(case, target).short_list()
    return bound(tried, lambda config: _candidate(config, launcher))


def tuning_candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """What a wide search times: the present choice, then the SEARCHED most promising others. Raises
    CannotRun where no configuration fits the GPU.
    """
    launcher = _launcher(case, operands, target)
    tried = (configuration(case, target), *_choices(case, target)[:SEARCHED])
    return tuple(_candidate(config, launcher) for config in dict.fromkeys(tried))


def save_tuned(case: Case, target: Target, label: str) -> Path:
    """Record a winner's label for the case in the user's table; the table's path. ValueError for a
    label that is no configuration, OSError where the table cannot be written.
    """
    parse(label)
    return OP.tables.save(target.name, case.precision_name, *OP.tuned_key(case), label)


def configuration(case: Case, target: Target) -> Config:
    """The configuration that runs untimed. Raises CannotRun where none fits the GPU."""
    return chosen(case, target)[0]


def chosen(case: Case, target: Target) -> tuple[Config, Choice]:
    """The configuration that runs untimed, and how it was chosen: tuned, quick-tuned before, lent
    by a near size that agrees with it in waves, or first by the model. Raises CannotRun where none
    fits the GPU.
    """
    return options_of(case, target).chosen()


def options_of(case: Case, target: Target) -> Options[Config]:
    """The configurations that a case may run, by where they come from."""
    problem, capability = Problem.of(case), target.capability or (0, 0)

    def usable(size: Size, label: str) -> bool:
        alike = _sized(problem, size).storage_class == problem.storage_class
        return alike and cfg.valid(parse(label), problem, capability)

    listed = OP.tables.section(tables_for(target), case.precision_name, case.layout)
    size, label = nearest(listed, OP.gemm(case), usable, inf) or (OP.gemm(case), None)
    config = parse(label) if label else None
    exact = size == OP.gemm(case)
    near = config is not None and agree(
        cfg.fit(config, _sized(problem, size)), cfg.fit(config, problem), target.sm_count
    )
    return Options(
        case=case,
        target=target,
        tuned=config if exact else None,
        lent=None if exact else config,
        agrees=near and apart(size, OP.gemm(case)) <= NEAR,
        settled=False,
        rank=lambda: _ranked(config, case, target),
        tile=cfg.tile_kind,
        parse=parse,
        valid=lambda config: cfg.valid(config, problem, capability),
    )


def compiled(case: Case, target: Target, label: str) -> Sequence[object]:
    """The kernels of a configuration, compiled for the driver's target on tensors without memory.

    ValueError for a label that is no configuration; what Triton raises is passed on.
    """
    kinds = ("storage", "storage_b", "output")
    a, b, c = (
        torch.empty(1, dtype=case.precision.torch_dtype(kind), device="meta") for kind in kinds
    )
    steps = Launcher(Problem.of(case), a, b, c, target.sm_count).bind(parse(label))
    return [step.compile() for step in steps]


def _sized(problem: Problem, size: Size) -> Problem:
    return replace(problem, **dict(zip("mnk", size, strict=True)))


def _ranked(lent: Config | None, case: Case, target: Target) -> Sequence[Config]:
    """The catalogue and the one that is lent, in the order of the model."""
    found = _choices(case, target)
    if lent is None or lent in found:
        return found
    problem = Problem.of(case)
    return sorted(
        (*found, lent), key=lambda config: cfg.estimated_clocks(config, problem, target.sm_count)
    )


def _choices(case: Case, target: Target) -> Sequence[Config]:
    found = cfg.choices(Problem.of(case), target.capability or (0, 0), target.sm_count)
    return some(found, case, target)


def _launcher(case: Case, operands: Operands, target: Target) -> Launcher:
    return Launcher(Problem.of(case), operands.a, operands.b, operands.c, target.sm_count)


def _candidate(config: Config, launcher: Launcher) -> Candidate:
    return candidate(config.label, config.tile, launcher.bind(config))


# ------------------------------------------------------------ launches


@dataclass(frozen=True)
class _Matrix:
    """Where rows x K values start, and how they lie: [rows, ld] (K-major) or [K, ld]."""

    base: torch.Tensor
    rows: int
    k: int
    k_major: bool
    ld: int

    def descriptor(self, block_rows: int, block_k: int) -> TensorDescriptor:
        sizes, box = [self.rows, self.k], [block_rows, block_k]
        if not self.k_major:
            sizes, box = sizes[::-1], box[::-1]
        return TensorDescriptor(self.base, sizes, [self.ld, 1], box)


class Launcher:
    """Binds configurations to the matrices of one problem.

    `a`, `b` and `c` give addresses and dtypes; sizes and strides come from the problem. Copies that
    TMA needs are allocated at the first use and shared by all configurations.
    """

    def __init__(
        self, problem: Problem, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, sm_count: int
    ) -> None:
        p = problem
        self.problem, self.c, self.sm_count = problem, c, sm_count
        self.a = _Matrix(a, p.m, p.k, p.a_k_major, p.k if p.a_k_major else p.m)
        self.b = _Matrix(b, p.n, p.k, p.b_k_major, p.k if p.b_k_major else p.n)

    def bind(self, config: Config) -> tuple[Step, ...]:
        """The launches of one GEMM, in order. torch.OutOfMemoryError if a copy for TMA does not
        fit.
        """
        if config.kernel == cfg.POINTER:
            return (self._pointer_step(config),)
        packs = [pack[1] for pack in (self._packed_a, self._packed_b) if pack[1] is not None]
        return (*packs, self._tma_step(config))

    @cached_property
    def _packed_a(self) -> tuple[_Matrix, Step | None]:
        return _pack(self.a) if self.problem.pack_a else (self.a, None)

    @cached_property
    def _packed_b(self) -> tuple[_Matrix, Step | None]:
        return _pack(self.b) if self.problem.pack_b else (self.b, None)

    def _arithmetic(self, config: Config) -> tuple[object, ...]:
        kind = self.problem.precision
        precise = kind.is_float8 and not kind.fast_accumulate
        return input_precision(kind), _ACCUMULATE[kind.accumulate], config.bk if precise else None

    def _pointer_step(self, config: Config) -> Step:
        p = self.problem
        args = (
            self.a.base, self.b.base, self.c, p.m, p.n, p.k, config.group,
            *_strides(self.a), *reversed(_strides(self.b)),
            config.bm, config.bn, config.bk, p.k % config.bk == 0,
            *self._arithmetic(config),
        )  # fmt: skip
        step_options = options(config.stages, config.warps)
        return Step(jit.gemm_pointer, (p.tiles(config),), args, step_options)

    def _tma_step(self, config: Config) -> Step:
        p, tiles = self.problem, self.problem.tiles(config)
        a, b = self._packed_a[0], self._packed_b[0]
        sizes = (p.m, p.n, p.k, config.group)
        tile = (config.bm, config.bn, config.bk, config.split)
        how = (*tile, a.k_major, b.k_major, *self._arithmetic(config))
        a_box = a.descriptor(config.bm, config.bk)
        grid = (tiles if config.kernel == cfg.TMA else min(self.sm_count, tiles),)
        if config.kernel == cfg.WIDE:
            boxes = (a_box, b.descriptor(HEAD, config.bk), b.descriptor(TAIL, config.bk))
            outputs = (self._c_box(config, HEAD), self._c_box(config, TAIL))
            args = (*boxes, *outputs, self.c, *sizes, *how, self.sm_count)
        else:
            boxes = (a_box, b.descriptor(config.bn, config.bk), self._c_box(config, config.bn))
            args = (*boxes, self.c, *sizes, *how)
        if config.kernel == cfg.PERSISTENT:
            args = (*args, self.sm_count)
        return Step(_TMA_KERNELS[config.kernel], grid, args, options(config.stages, config.warps))

    def _c_box(self, config: Config, columns: int) -> TensorDescriptor | None:
        if config.direct:
            return None
        m, n = self.problem.m, self.problem.n
        return TensorDescriptor(self.c, [m, n], [n, 1], [config.bm, columns // config.split])


def _strides(matrix: _Matrix) -> tuple[int, int]:
    """Strides in elements along the rows and along K."""
    return (matrix.ld, 1) if matrix.k_major else (1, matrix.ld)


def _pack(matrix: _Matrix) -> tuple[_Matrix, Step]:
    """A K-major, aligned place for the matrix, and the launch that copies it there."""
    align = TMA_ALIGNMENT // matrix.base.element_size()
    ld = ceil(matrix.k / align) * align
    place = torch.empty((matrix.rows, ld), dtype=matrix.base.dtype, device=matrix.base.device)
    args = (
        matrix.base, place, matrix.rows, matrix.k, *_strides(matrix), ld, PACK_ROWS, PACK_COLUMNS,
    )  # fmt: skip
    grid = (ceil(matrix.k / PACK_COLUMNS), ceil(matrix.rows / PACK_ROWS))
    step = Step(jit.pack_k_major, grid, args, {"num_warps": PACK_WARPS})
    return _Matrix(place, matrix.rows, matrix.k, True, ld), step
