"""GEMM through this project's Triton kernels: which configuration a case gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernels.case import Candidate, Case, Target
from kernels.gemm import OP
from kernels.gemm.operands import Operands
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton.config import Config, Problem, parse
from kernels.gemm.triton.launch import Launcher
from kernels.triton_config import candidate, some
from kernels.tuned import Size, nearest, tables_for

SEARCHED = 14  # configurations that --autotune times


def cannot_run(case: Case, target: Target) -> str | None:
    """Why these kernels cannot run the case, or None."""
    if case.precision.storage == "float64":
        return "there is no fp64 Triton kernel"
    if min(case.dim(d) for d in "mnk") < 1:
        return "every dimension must be at least 1"
    return None


def candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """The tuned configuration; where no tuned size is near, the rules' first choice. Raises
    CannotRun where no configuration fits the GPU.
    """
    return (_candidate(configuration(case, target), _launcher(case, operands, target)),)


def tuning_candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """What a search times: the present choice, then the SEARCHED most promising others. Raises
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
    """The configuration that a default run uses. Raises CannotRun where none fits the GPU,
    ValueError for a damaged entry of a tuned table.
    """
    problem, capability = Problem.of(case), target.capability or (0, 0)

    def usable(size: Size, label: str) -> bool:
        lender = replace(case, dims=dict(zip("mnk", size, strict=True)))
        alike = Problem.of(lender).storage_class == problem.storage_class
        return alike and cfg.valid(parse(label), problem, capability)

    listed = OP.tables.section(tables_for(target), case.precision_name, case.layout)
    label = nearest(listed, OP.gemm(case), usable)
    return parse(label) if label else _choices(case, target)[0]


def _choices(case: Case, target: Target) -> Sequence[Config]:
    found = cfg.choices(Problem.of(case), target.capability or (0, 0), target.sm_count)
    return some(found, case, target)


def _launcher(case: Case, operands: Operands, target: Target) -> Launcher:
    return Launcher(Problem.of(case), operands.a, operands.b, operands.c, target.sm_count)


def _candidate(config: Config, launcher: Launcher) -> Candidate:
    return candidate(config.label, config.tile, launcher.bind(config))
