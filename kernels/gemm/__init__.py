"""Op gemm: C[M, N] = A[M, K] @ B[K, N].

Layouts name how A and B are stored: "n" row-major as written, "t" transposed. "nt" (the default)
stores B as [N, K], which is what torch.nn.Linear multiplies by, and the only layout that fp8 and
int8 have on every GPU. (BLAS, which thinks in columns, calls it TN.)
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from kernels.case import Candidate, Case, Prepared, Target
from kernels.precision import Capability

if TYPE_CHECKING:
    from kernels.gemm.operands import Operands

LAYOUTS = ("nn", "nt", "tn", "tt")

# name -> (module, what it is, kind of device)
_BACKENDS: Mapping[str, tuple[str, str, str]] = {
    "cublas": ("torch_blas", "cuBLAS as torch calls it: what a user gets", "cuda"),
    "cublaslt": ("cublaslt", "the best of cuBLASLt's own candidates, timed", "cuda"),
    "cupy": ("cupy_blas", "cuBLAS gemmEx called directly through CuPy", "cuda"),
    "triton": ("triton_gemm", "this project's Triton kernels", "cuda"),
    "cpu": ("torch_blas", "torch on the CPU (oneDNN, MKL)", "cpu"),
}


class Backend(Protocol):
    """What a back end's module offers."""

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """Why it cannot run the case, or None."""
        ...

    def candidates(self, case: Case, operands: Operands, target: Target) -> Sequence[Candidate]:
        """The ways to run it. Raises CannotRun."""
        ...


def _module(backend: str) -> Backend:
    return cast(Backend, importlib.import_module(f"kernels.gemm.{_BACKENDS[backend][0]}"))


class Gemm:
    """The op: how much work a case is, whether it can run, and how to run it."""

    name = "gemm"
    dims: tuple[str, ...] = ("m", "n", "k")
    backends: Mapping[str, str] = {name: entry[1] for name, entry in _BACKENDS.items()}

    def default_backends(self, kind: str) -> tuple[str, ...]:
        """What is measured when the user names no back end."""
        return ("cublas", "triton") if kind == "cuda" else ("cpu",)

    def library_backend(self, kind: str) -> str:
        """The back end that baselines are measured with."""
        return "cublas" if kind == "cuda" else "cpu"

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """Why the case cannot run on the target, or None."""
        wanted = _BACKENDS[case.backend][2]
        if wanted != target.kind:
            device = "a CUDA GPU" if wanted == "cuda" else "--device cpu"
            return f"back end {case.backend} needs {device}"
        if target.kind == "cuda":
            reason = _below_capability(case, target)
            if reason:
                return reason
        return _module(case.backend).cannot_run(case, target)

    def flops(self, case: Case) -> int:
        """2*M*N*K operations."""
        return 2 * case.dim("m") * case.dim("n") * case.dim("k")

    def min_bytes(self, case: Case) -> int:
        """A and B read once, C written once."""
        m, n, k = (case.dim(d) for d in "mnk")
        kind = case.precision
        return (m * k + k * n) * kind.bytes_per_element + m * n * kind.output_bytes

    def session(self, target: Target, seed: int) -> GemmSession:
        """A session that shares operands between arms."""
        return GemmSession(self, target, seed)


def _below_capability(case: Case, target: Target) -> str | None:
    have: Capability = target.capability or (0, 0)
    need = case.precision.min_capability.get(case.backend)
    if need is None:
        return f"{case.backend} has no {case.precision_name}"
    if have < need:
        return (
            f"{case.precision_name} needs compute capability {need[0]}.{need[1]}, "
            f"this GPU has {have[0]}.{have[1]}"
        )
    return None


class GemmSession:
    """Prepares GEMM cases on one target."""

    def __init__(self, op: Gemm, target: Target, seed: int) -> None:
        from kernels.gemm.operands import OperandPool

        self.op = op
        self.target = target
        self.pool = OperandPool(target, seed)

    def prepare(self, case: Case, *, tune: bool = False) -> Prepared:
        """Allocate, fill and bind; raises CannotRun or torch.OutOfMemoryError."""
        from kernels.gemm import check

        operands = self.pool.get(case)
        module = _module(case.backend)
        if tune and hasattr(module, "tuning_candidates"):
            found = module.tuning_candidates(case, operands, self.target)  # type: ignore[attr-defined]
        else:
            found = module.candidates(case, operands, self.target)

        def rel_error(candidate: Candidate) -> float:
            check.poison(operands.c)
            candidate.call()
            return check.relative_error(operands)

        return Prepared(
            tuple(found),
            rel_error,
            lambda: check.total_error(operands),
            self.op.flops(case),
            self.op.min_bytes(case),
        )

    def close(self) -> None:
        """Free the matrices."""
        self.pool.clear()
