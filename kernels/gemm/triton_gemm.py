"""GEMM through this project's Triton kernels: which configuration, and ready to launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernels.case import Candidate, CannotRun, Case, Target
from kernels.gemm import triton_tuned as tuned
from kernels.gemm.operands import Operands
from kernels.gemm.triton_configs import Config, Problem, choices, parse, valid
from kernels.gemm.triton_launch import Launcher, Step

SEARCHED = 14  # configurations that --autotune times
LIKE_H200 = "NVIDIA H200"  # whose table starts off other GPUs with as many SMs
H200_SMS = 132


def cannot_run(case: Case, target: Target) -> str | None:
    """Why these kernels cannot run the case, or None."""
    if case.precision.storage == "float64":
        return "no fp64 Triton kernel: Tensor Core fp64 is not what this project measures"
    if min(case.dim(d) for d in "mnk") < 1:
        return "every dimension must be at least 1"
    return None


def candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """The tuned configuration; where none is near, the rules' first choice."""
    return (_candidate(configuration(case, target), _launcher(case, operands, target)),)


def tuning_candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """What a search times: the present choice, then the most promising others."""
    launcher = _launcher(case, operands, target)
    first = configuration(case, target)
    ranked = _choices(case, target)[:SEARCHED]
    return tuple(_candidate(c, launcher) for c in dict.fromkeys((first, *ranked)))


def save_tuned(case: Case, target: Target, label: str) -> Path:
    """Record a winner's label for the case in the user's table; the table's path."""
    parse(label)
    return tuned.save(target.name, case.precision_name, case.layout, _size(case), label)


def configuration(case: Case, target: Target) -> Config:
    """The configuration that a default run uses. Raises CannotRun."""
    problem, capability = Problem.of(case), target.capability or (0, 0)

    def usable(size: tuple[int, int, int], label: str) -> bool:
        lender = Case(
            case.op, dict(zip("mnk", size, strict=True)), case.precision_name, "triton", case.layout
        )
        alike = Problem.of(lender).storage_class == problem.storage_class
        return alike and valid(parse(label), problem, capability)

    listed = tuned.entries(_tables(target), case.precision_name, case.layout)
    label = tuned.nearest(listed, _size(case), usable)
    return parse(label) if label else _choices(case, target)[0]


def _tables(target: Target) -> tuple[str, ...]:
    like_h200 = target.capability == (9, 0) and target.sm_count == H200_SMS
    return (LIKE_H200, target.name) if like_h200 else (target.name,)


def _choices(case: Case, target: Target) -> Sequence[Config]:
    found = choices(Problem.of(case), target.capability or (0, 0), target.sm_count)
    if not found:
        raise CannotRun(f"no Triton configuration for {case.precision_name} fits {target.name}")
    return found


def _size(case: Case) -> tuple[int, int, int]:
    return case.dim("m"), case.dim("n"), case.dim("k")


def _launcher(case: Case, operands: Operands, target: Target) -> Launcher:
    return Launcher(Problem.of(case), operands.a, operands.b, operands.c, target.sm_count)


def _candidate(config: Config, launcher: Launcher) -> Candidate:
    steps = launcher.bind(config)

    def call() -> None:
        for step in steps:
            step.launch()

    return Candidate(config.label, call, (config.bm, config.bn, config.bk), _names(steps))


def _names(steps: Sequence[Step]) -> str:
    return "+".join(dict.fromkeys(step.kernel.__name__ for step in steps))
