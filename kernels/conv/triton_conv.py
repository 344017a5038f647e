"""Convolution through this project's Triton kernels: which configuration, and ready to launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kernels.case import Candidate, CannotRun, Case, Target
from kernels.conv import triton_data, triton_wgrad
from kernels.conv.operands import ConvOperands
from kernels.conv.shape import ConvShape
from kernels.tuned import Tables

PRECISIONS = ("fp16", "bf16", "tf32")
LIKE_H200 = "NVIDIA H200"  # whose table starts off other GPUs with as many SMs
H200_SMS = 132
SEARCHED = 24  # configurations that --autotune times
TABLES = Tables(Path(__file__).parent / "tuned", "conv")
LENDERS = {"bf16": "fp16"}  # precisions that lay tensors out alike share tuned configurations


def cannot_run(case: Case, target: Target) -> str | None:
    """Why these kernels cannot run the case, or None."""
    if case.precision_name not in PRECISIONS:
        return f"the Triton convolution computes in {', '.join(PRECISIONS)}"
    if case.layout != "nhwc":
        return "the Triton convolution reads NHWC (channels_last) only"
    if case.dim("groups") > 1:
        return "the Triton convolution has no groups"
    return None


def candidates(case: Case, operands: ConvOperands, target: Target) -> Sequence[Candidate]:
    """The tuned configuration; where there is none, the cost model's first choice."""
    return (_candidate(configuration(case, target), case, operands, target),)


def tuning_candidates(case: Case, operands: ConvOperands, target: Target) -> Sequence[Candidate]:
    """What a search times: the present choice, then the most promising others that compile."""
    first = configuration(case, target)
    ranked = dict.fromkeys([first, *_choices(case, target)[:SEARCHED]])
    return tuple(_candidate(config, case, operands, target) for config in ranked)


def save_tuned(case: Case, target: Target, label: str) -> Path:
    """Record a winner's label for the case in the user's table; the table's path."""
    parse(label)
    return TABLES.save(target.name, case.precision_name, *key_of(case), label)


def configuration(case: Case, target: Target) -> Any:
    """The configuration that a default run uses. Raises CannotRun."""
    which, key = key_of(case)
    names = (target.name,)
    if target.capability == (9, 0) and target.sm_count == H200_SMS:
        names = (LIKE_H200, target.name)
    for precision in (case.precision_name, LENDERS.get(case.precision_name, "")):
        label = TABLES.section(names, precision, which).get(key)
        if label:
            config = parse(label)
            shape, capability = ConvShape.of(case), target.capability or (0, 0)
            if _module(case).valid(config, shape, which, case.precision, capability):
                return config
    return _choices(case, target)[0]


def parse(label: str) -> Any:
    """The configuration a label names. Raises ValueError."""
    for module in (triton_data, triton_wgrad):
        if label.split("/")[0] in module.KERNELS:
            return module.parse(label)
    raise ValueError(f"not a configuration of the Triton convolution: {label!r}")


def key_of(case: Case) -> tuple[str, str]:
    """(pass, size) as the tables write them: "fprop", "256x56x56x64-64x3x3-s1p1d1"."""
    s = ConvShape.of(case)
    size = f"{s.n}x{s.h}x{s.w}x{s.c}-{s.k}x{s.r}x{s.s}-s{s.stride}p{s.padding}d{s.dilation}"
    return str(case.dims["pass"]), size


def _module(case: Case) -> ModuleType:
    return triton_wgrad if case.dims["pass"] == "wgrad" else triton_data


def _choices(case: Case, target: Target) -> Sequence[Any]:
    found = _module(case).choices(
        ConvShape.of(case), str(case.dims["pass"]), case.precision,
        target.capability or (0, 0), target.sm_count,
    )  # fmt: skip
    if not found:
        raise CannotRun(f"no Triton configuration for {case.precision_name} fits {target.name}")
    return found


def _candidate(config: Any, case: Case, operands: ConvOperands, target: Target) -> Candidate:
    steps = _module(case).bind(config, operands, case.precision, target.sm_count)

    def call() -> None:
        for step in steps:
            step.launch()

    names = "+".join(dict.fromkeys(step.kernel.__name__ for step in steps))
    return Candidate(config.label, call, config.tile, names)
