"""GEMM by cuBLAS's gemmEx, called through CuPy's binding: no torch between the call and cuBLAS.

The handle is this module's own: CuPy's shared one and torch's keep their math mode, and neither can
switch TF32 on under a float32 case. With the math mode at its default the compute type alone
decides: 68 is IEEE float32, 77 is TF32. The one flag set makes split-K add its partial sums in the
accumulator's type, as the cublaslt back end does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from kernels.case import Candidate, CannotRun, Case, Target
from kernels.gemm import check_plain
from kernels.gemm import cublaslt_api as api
from kernels.gemm.cublaslt import check_8bit, require_current_device
from kernels.gemm.operands import Operands
from kernels.messages import first_line
from kernels.precision import Precision

MATH_MODE = api.CUBLAS_DEFAULT_MATH | api.CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION


def check(case: Case, target: Target) -> None:
    """CannotRun, with the reason, where gemmEx cannot multiply this."""
    check_plain(case, "cublasGemmEx")
    if case.precision.is_float8:
        raise CannotRun(f"cublasGemmEx has no {case.precision_name}; use --backend cublaslt")
    check_8bit(case, "cublasGemmEx")


def candidates(case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
    """The one gemmEx call for this case; `target` must be the current device, or CannotRun.

    Launches it once, so that cuBLAS's refusal is a CannotRun with its own status. CannotRun too
    where CuPy cannot be imported.
    """
    require_current_device(target)
    binding = _binding()
    call = _launcher(case.precision, operands, target.index)
    try:
        call()
    except binding.CUBLASError as error:
        raise CannotRun(f"cublasGemmEx rejects {case.key}: {error}") from error
    return (Candidate("gemmEx", call),)


@cache
def _binding() -> Any:
    """CuPy's cublas module. Raises CannotRun with the reason it cannot be imported."""
    try:
        from cupy_backends.cuda.libs import cublas
    except Exception as error:  # CuPy fails in many ways where its CUDA libraries do not load
        raise CannotRun(f"CuPy cannot be imported: {first_line(error)}") from error
    return cublas


@cache
def _handle(index: int) -> int:
    """The process's cuBLAS handle for the (current) device; never destroyed."""
    binding = _binding()
    handle = binding.create()
    assert handle, f"no handle for cuda:{index}"
    binding.setMathMode(handle, MATH_MODE)
    return handle


class _Stream:
    """A CUDA stream by its address, in the protocol that CuPy reads (`__cuda_stream__`)."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


@cache
def _cupy_stream(address: int) -> Any:
    import cupy

    return cupy.cuda.Stream.from_external(_Stream(address))


def _launcher(precision: Precision, operands: Operands, index: int) -> Callable[[], None]:
    """One cublasGemmEx on torch's current stream, its arguments bound beforehand."""
    alpha, beta = api.arithmetic(precision).scalars()
    a, b, c = operands.a, operands.b, operands.c
    blas = api.column_major(operands.mnk, a.stride(), b.stride(), c.stride())
    stored, output = api.DATA_TYPES[precision.storage], api.DATA_TYPES[precision.output]
    keep = (operands, alpha, beta)  # what the addresses in `arguments` point at
    gemm_ex: Callable[..., object] = _binding().gemmEx
    arguments = (
        *(_handle(index), blas.first.op, blas.second.op, blas.m, blas.n, blas.k),
        *(ctypes.addressof(alpha), b.data_ptr(), stored, blas.first.ld),
        *(a.data_ptr(), stored, blas.second.ld, ctypes.addressof(beta)),
        *(c.data_ptr(), output, blas.out.ld),
        *(api.arithmetic(precision).compute, api.CUBLAS_GEMM_DEFAULT),
    )

    def launch(keep: object = keep) -> None:
        # gemmEx sets the handle's stream to CuPy's current one, whatever it was set to before.
        with _cupy_stream(torch._C._cuda_getCurrentRawStream(index)):
            gemm_ex(*arguments)

    return launch
