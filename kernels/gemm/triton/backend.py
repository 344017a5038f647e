"""GEMM through this project's Triton kernels: which configuration, and ready to launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernels.case import Candidate, Case, Target
from kernels.gemm.operands import Operands
from kernels.gemm.triton.config import Config, Problem, choices, parse, valid
from kernels.gemm.triton.launch import Launcher
from kernels.triton_config import candidate, some
from kernels.tuned import Size, Tables, nearest, tables_for

SEARCHED = 14  # configurations that --autotune times
TABLES = Tables(Path(__file__).parents[1] / "tuned")  # precision -> layout -> "MxNxK" -> label


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
    tried = (configuration(case, target), *_choices(case, target)[:SEARCHED])
    return tuple(_candidate(config, launcher) for config in dict.fromkeys(tried))


def save_tuned(case: Case, target: Target, label: str) -> Path:
    """Record a winner's label for the case in the user's table; the table's path."""
    parse(label)
    key = "x".join(map(str, _size(case)))
    return TABLES.save(target.name, case.precision_name, case.layout, key, label)


def configuration(case: Case, target: Target) -> Config:
    """The configuration that a default run uses. Raises CannotRun."""
    problem, capability = Problem.of(case), target.capability or (0, 0)

    def usable(size: Size, label: str) -> bool:
        lender = Case(
            case.op, dict(zip("mnk", size, strict=True)), case.precision_name, "triton", case.layout
        )
        alike = Problem.of(lender).storage_class == problem.storage_class
        return alike and valid(parse(label), problem, capability)

    listed = TABLES.section(tables_for(target), case.precision_name, case.layout)
    label = nearest(listed, _size(case), usable)
    return parse(label) if label else _choices(case, target)[0]


def _choices(case: Case, target: Target) -> Sequence[Config]:
    found = choices(Problem.of(case), target.capability or (0, 0), target.sm_count)
    return some(found, case, target)


def _size(case: Case) -> Size:
    return case.dim("m"), case.dim("n"), case.dim("k")


def _launcher(case: Case, operands: Operands, target: Target) -> Launcher:
    return Launcher(Problem.of(case), operands.a, operands.b, operands.c, target.sm_count)


def _candidate(config: Config, launcher: Launcher) -> Candidate:
    return candidate(config.label, config.tile, launcher.bind(config))
