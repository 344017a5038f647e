"""GEMM through this project's Triton kernels: which configuration a case gets."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.case import Candidate, Case, Target
from kernels.gemm import check_plain
from kernels.gemm.operands import Operands
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton.config import GemmConfig, GemmProblem, parse
from kernels.gemm.triton.launch import Launcher
from kernels.triton_util import bound, candidate
from kernels.tune import NONE, Configurations


def check(case: Case, target: Target) -> None:
    """CannotRun for a batch or an epilogue. These kernels run every size and layout of one product,
    on what `Precision.min_capability` says.
    """
    check_plain(case, "this project's kernels")


def candidates(
    case: Case, operands: Operands, target: Target, search: int = NONE
) -> Sequence[Candidate]:
    """What a search times, one for NONE. CannotRun where no configuration fits the GPU."""
    tried = configurations(case, target).tried(search)
    return bind(tried, case, operands, target)


def bind(
    configs: Sequence[GemmConfig], case: Case, operands: Operands, target: Target
) -> Sequence[Candidate]:
    """Configurations, ready to launch: those that fit the free memory. torch.OutOfMemoryError where
    none does.
    """
    a, b, c = operands.a, operands.b, operands.c
    launcher = Launcher(GemmProblem.of(case), a, b, c, target.sm_count)

    def candidate_of(config: GemmConfig) -> Candidate:
        # With split-K there are more programs than tiles.
        tile = config.tile if config.split_k == 1 else None
        return candidate(config.label, tile, launcher.bind(config))

    return bound(configs, candidate_of)


def configurations(case: Case, target: Target) -> Configurations:
    problem, capability = GemmProblem.of(case), target.capability or (0, 0)
    return Configurations(
        case=case,
        target=target,
        rank=lambda: cfg.choices(problem, capability, target.sm_count),
        tile=cfg.tile_kind,
        parse=parse,
        valid=lambda config: cfg.valid(config, problem, capability),
    )


def compiled(case: Case, target: Target, label: str) -> Sequence[object]:
    """The kernels of a configuration, compiled for the driver's target on tensors without memory.

    ValueError for a label that is no configuration; what Triton raises is passed on.
    """
    uses = ("storage", "storage_b", "output")
    a, b, c = (torch.empty(1, dtype=case.precision.torch_dtype(use), device="meta") for use in uses)
    steps = Launcher(GemmProblem.of(case), a, b, c, target.sm_count).bind(parse(label))
    return [step.compile() for step in steps]
