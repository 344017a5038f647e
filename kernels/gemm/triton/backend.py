"""GEMM through this project's Triton kernels: which configuration a case gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import torch

from kernels.case import Candidate, Case, Target
from kernels.choosing import Choice, Options
from kernels.gemm import OP
from kernels.gemm.operands import Operands
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton.config import Config, Problem, parse
from kernels.gemm.triton.launch import Launcher
from kernels.tile_model import agree
from kernels.triton_config import bound, candidate, some
from kernels.tuned import NEAR, Size, apart, nearest, tables_for

SEARCHED = 14  # configurations that --autotune times


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
        return alike and target.has(label) and cfg.valid(parse(label), problem, capability)

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
    tile = config.tile if config.slices == 1 else None  # else there are more programs than tiles
    return candidate(config.label, tile, launcher.bind(config))
