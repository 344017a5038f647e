"""GEMM through torch: cuBLAS on a GPU (what a user gets), oneDNN or MKL on a CPU.

A batch is one bmm, groups are one grouped_mm, which has kernels of its own, and an epilogue is
cuBLASLt's. `separate` does the same with a kernel for each product, the bias, and the GELU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from kernels.case import Candidate, CannotRun, Case, Target, try_on_cpu
from kernels.gemm import BIAS, BROADCAST, GELU, RAGGED, gemm_of
from kernels.gemm.cublaslt import check_8bit
from kernels.gemm.operands import BatchOperands, Operands, Product
from kernels.op import SEPARATE
from kernels.precision import Precision

GROUPS_IN_ONE_KERNEL = (9, 10)  # major compute capabilities where grouped_mm does not wait for each
MOST_SEPARATE = 900  # kernels before a stream makes the CPU wait, which no timer can tell apart
matmul_switches = torch.backends.cuda.matmul
CPU_TRIAL_SIZE = 64


def check(case: Case, target: Target) -> None:
    """CannotRun, with the reason, where torch cannot multiply this."""
    precision, problem = case.precision, gemm_of(case)
    if case.backend == SEPARATE and problem.plain:
        raise CannotRun("a single product is one kernel: nothing is separate")
    if case.backend == SEPARATE and problem.batch > MOST_SEPARATE:
        raise CannotRun(f"a stream queues {MOST_SEPARATE} products at most, not {problem.batch}")
    if problem.form in (BIAS, GELU) and precision.storage == "int8":
        raise CannotRun("an int32 product gets no bias and no GELU")
    if case.backend != SEPARATE and not problem.plain:
        _check_one_call(case, target)
    if target.kind == "cpu" and precision.accumulate == "float16":
        raise CannotRun("torch has no float16 accumulation on a CPU")
    if target.kind == "cpu":
        return
    check_8bit(case, "torch", int8_multiple=8)
    if precision.storage == "int8" and problem.m <= 16:
        raise CannotRun(f"int8 in torch needs M above 16, not {problem.m}")


def _check_one_call(case: Case, target: Target) -> None:
    """CannotRun where torch has no single call for a batch or an epilogue."""
    name, precision, problem = case.precision_name, case.precision, gemm_of(case)
    if problem.form == GELU and (precision.is_float8 or problem.batch > 1):
        of = name if precision.is_float8 else "a batch"
        raise CannotRun(f"torch has no product of {of} with GELU in one kernel")
    if problem.form not in RAGGED:
        if precision.bytes_per_element == 1 and problem.batch > 1:
            raise CannotRun(f"torch has no batched product in {name}; try --layout nt-grouped")
        return
    public = "scaled_grouped_mm" if precision.is_float8 else "grouped_mm"
    if precision.is_float8 and target.kind == "cpu":
        raise CannotRun(f"torch has {public} on a GPU alone")
    if precision.storage not in ("bfloat16", "float8_e4m3fn"):
        raise CannotRun(f"torch multiplies groups in bf16 and fp8, not in {name}")
    if off := problem.misaligned(precision):
        raise CannotRun(f"{public} needs rows on 16 bytes, not of {off[1]} ({off[0]})")
    if target.kind == "cuda" and (target.capability or (0, 0))[0] not in GROUPS_IN_ONE_KERNEL:
        raise CannotRun(f"{public} has a kernel for compute capability 9 and 10 alone")


def candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """The one call that torch offers for this case, or the separate ones. On a CPU a corner of a
    single GEMM, at most 64 in each dimension, is tried first, or all of a batch: CannotRun where
    torch refuses it.
    """
    if not isinstance(operands, BatchOperands):
        precision, a, b, c, one = case.precision, operands.a, operands.b, operands.c, operands.one
        if target.kind == "cpu":
            m, n, k = (min(size, CPU_TRIAL_SIZE) for size in operands.mnk)
            corner = a[:m, :k], b[:k, :n], c[:m, :n].contiguous(), None
            try_on_cpu(case, _multiply(precision, corner, one))
        return (Candidate("torch", _multiply(precision, (a, b, c, None), one)),)
    if case.backend == SEPARATE:
        found = Candidate(SEPARATE, _separate(case, operands), queued=operands.problem.batch + 2)
    else:
        label, call = _batched(case, operands)
        found = Candidate(label, call, allocates="grouped" in label)
    if target.kind == "cpu":
        try_on_cpu(case, found.call)
    return (found,)


def _separate(case: Case, operands: BatchOperands) -> Callable[[], object]:
    """A kernel for each product, then one for the bias, then one for GELU."""
    one, whole, bias = operands.one, operands.c, operands.bias
    products = [_multiply(case.precision, (a, b, c, None), one)
                for a, b, c, _ in operands.products()]  # fmt: skip
    gelu = torch.ops.aten.gelu_.default
    last = operands.approximate if operands.problem.form == GELU else None

    def call() -> None:
        for product in products:
            product()
        if bias is not None:
            whole.add_(bias)
        if last is not None:
            gelu(whole, approximate=last)

    return call


def _batched(case: Case, operands: BatchOperands) -> tuple[str, Callable[[], object]]:
    """torch's name of the one call for a batch or an epilogue, and the call."""
    a, b, c, one, bias = operands.a, operands.b, operands.c, operands.one, operands.bias
    precision, form, batch = case.precision, operands.problem.form, operands.problem.batch
    if form in RAGGED:
        return _grouped(precision, operands)
    if batch > 1:
        b = b.expand(batch, *b.shape) if form == BROADCAST else b
        if bias is not None:
            return "baddbmm", _switched(precision, lambda: torch.baddbmm(bias, a, b, out=c))
        return "bmm", _switched(precision, lambda: torch.bmm(a, b, out=c))
    assert bias is not None
    if precision.is_float8:
        return "scaled_mm", _multiply(precision, (a, b, c, bias), one)
    if form == BIAS:
        return "addmm", _switched(precision, lambda: torch.addmm(bias, a, b, out=c))
    fused: Any = torch._addmm_activation  # pyright: ignore[reportPrivateImportUsage]
    return "addmm_activation", _switched(precision, lambda: fused(bias, a, b, use_gelu=True, out=c))


def _grouped(precision: Precision, operands: BatchOperands) -> tuple[str, Callable[[], object]]:
    """Groups; of fp8 with a scale a row of A and a column of B, the only ones that torch takes."""
    a, b, ends = operands.a, operands.b, operands.ends
    public: Any = functional
    if not precision.is_float8:
        return "grouped_mm", lambda: public.grouped_mm(a, b, offs=ends)
    rows, columns = (operands.one.expand(sizes).contiguous()
                     for sizes in ((a.shape[0],), (b.shape[0], b.shape[2])))  # fmt: skip
    by_row = public.ScalingType.RowWise
    return "scaled_grouped_mm", lambda: public.scaled_grouped_mm(
        a, b, rows, by_row, columns, by_row, offs=ends, output_dtype=operands.c.dtype,
        use_fast_accum=precision.fast_accumulate,
    )  # fmt: skip


def _multiply(precision: Precision, product: Product, one: torch.Tensor) -> Callable[[], object]:
    """One product by torch; with its bias, which only that of fp8 may have."""
    a, b, c, bias = product
    if precision.is_float8:
        return lambda: torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            a, b, one, one, bias=bias, out_dtype=c.dtype, use_fast_accum=precision.fast_accumulate,
            out=c,
        )  # fmt: skip
    if precision.storage == "int8":
        return lambda: torch._int_mm(a, b, out=c)  # pyright: ignore[reportPrivateImportUsage]
    if precision.widens:
        return lambda: torch.mm(a, b.to(a.dtype), out=c)  # by two calls
    return _switched(precision, lambda: torch.mm(a, b, out=c))


def _switched(precision: Precision, launch: Callable[[], object]) -> Callable[[], object]:
    """Variants are interleaved in one process: each launch sets the switch that it depends on."""
    if precision.storage == "float32":
        name, value = "fp32_precision", precision.multiply
    elif precision.storage == "float16":
        name, value = "allow_fp16_accumulation", precision.accumulate == "float16"
    else:
        return launch

    def call() -> object:
        setattr(matmul_switches, name, value)
        return launch()

    return call
