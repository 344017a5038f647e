"""GEMM through torch: cuBLAS on a GPU (what a user gets), oneDNN or MKL on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from kernels.case import Candidate, CannotRun, Case, Target
from kernels.error_words import first_line
from kernels.gemm.cublaslt import check_8bit
from kernels.gemm.operands import Operands

matmul_switches = torch.backends.cuda.matmul
CPU_TRIAL_SIZE = 64


def check(case: Case, target: Target) -> None:
    """CannotRun, with the reason, where torch cannot multiply this."""
    kind = case.precision
    if target.kind == "cpu" and kind.multiply == "tf32":
        raise CannotRun("tf32 is a Tensor Core mode; a CPU has none")
    if target.kind == "cpu" and kind.accumulate == "float16":
        raise CannotRun("torch has no float16 accumulation on a CPU")
    if target.kind == "cpu":
        return
    check_8bit(case, "torch", int8_multiple=8)
    m = case.problem.mnk[0]
    if kind.storage == "int8" and m <= 16:
        raise CannotRun(f"int8 in torch needs M above 16, not {m}")


def candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """The one call that torch offers for this case. On a CPU a corner of the GEMM, at most 64 in
    each dimension, is tried first: CannotRun where torch refuses it.
    """
    if target.kind == "cpu":
        _try_on_cpu(case, operands)
    return (Candidate("torch", _call(case, operands)),)


def _try_on_cpu(case: Case, operands: Operands) -> None:
    """Try a corner of the GEMM, at no cost. CannotRun where torch on this CPU lacks it."""
    m, n, k = (min(size, CPU_TRIAL_SIZE) for size in operands.mnk)
    a, b, c = operands.a[:m, :k], operands.b[:k, :n], operands.c[:m, :n].contiguous()
    try:
        _call(case, replace(operands, a=a, b=b, c=c))()
    except (RuntimeError, ValueError) as error:
        raise CannotRun(
            f"torch on this CPU has no {case.precision_name}: {first_line(error)}"
        ) from error


def _call(case: Case, operands: Operands) -> Callable[[], object]:
    a, b, c, one = operands.a, operands.b, operands.c, operands.one
    kind = case.precision
    if kind.is_float8:
        return lambda: torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            a, b, one, one, out_dtype=c.dtype, use_fast_accum=kind.fast_accumulate, out=c
        )
    if kind.storage == "int8":
        return lambda: torch._int_mm(a, b, out=c)  # pyright: ignore[reportPrivateImportUsage]
    if kind.storage == "float32":
        return _with_switch("fp32_precision", kind.multiply, lambda: torch.mm(a, b, out=c))
    if kind.storage == "float16":
        half_accumulate = kind.accumulate == "float16"
        return _with_switch(
            "allow_fp16_accumulation", half_accumulate, lambda: torch.mm(a, b, out=c)
        )
    return lambda: torch.mm(a, b, out=c)


def _with_switch(name: str, value: object, launch: Callable[[], object]) -> Callable[[], object]:
    # Variants are interleaved in one process: every launch sets the switch that it depends on.
    def call() -> object:
        setattr(matmul_switches, name, value)
        return launch()

    return call
