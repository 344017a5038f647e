"""Op gemm: C[M, N] = A[M, K] @ B[K, N].

Layouts name how A and B are stored: "n" row-major as written, "t" transposed. "nt" (the default)
stores B as [N, K], which is what torch.nn.Linear multiplies by, and the only layout that fp8 and
int8 have on every GPU. (BLAS, which thinks in columns, calls it TN.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from kernels.case import Case
from kernels.op import BackendEntry, Op

LAYOUTS = ("nn", "nt", "tn", "tt")
ALIGNMENT_BYTES = 16  # what TMA and 128-bit loads ask of a row's stride
PROBED = 128  # at most, of a case that is tried small


class Gemm(Op):
    """The op gemm: how much work a case is, whether it is valid, which back ends run it."""

    name = "gemm"
    entries: ClassVar = {
        "cublas": BackendEntry("kernels.gemm.torch_blas", "cuBLAS as torch calls it", "cuda"),
        "cublaslt": BackendEntry(
            "kernels.gemm.cublaslt", "fastest of cuBLASLt's candidates", "cuda"
        ),
        "cupy": BackendEntry(
            "kernels.gemm.cupy_blas", "cuBLAS gemmEx called directly through CuPy", "cuda"
        ),
        "triton": BackendEntry(
            "kernels.gemm.triton.backend", "this project's Triton kernels", "cuda", tuned=True
        ),
        "cpu": BackendEntry("kernels.gemm.torch_blas", "torch on the CPU (oneDNN, MKL)", "cpu"),
    }
    gpu_defaults = ("cublas", "cublaslt", "triton")
    library = "cublas"
    libraries = ("cublas", "cublaslt")
    dims = ("m", "n", "k")
    layouts = LAYOUTS
    axis_name = "size"

    def flops(self, case: Case) -> int:
        """2*M*N*K floating-point (or int8) operations per launch."""
        return 2 * case.dim("m") * case.dim("n") * case.dim("k")

    def min_bytes(self, case: Case) -> int:
        """Bytes per launch: A [M, K] and B [K, N] read once, C [M, N] written once."""
        m, n, k = (case.dim(d) for d in "mnk")
        kind = case.precision
        return (m * k + k * n) * kind.bytes_per_element + m * n * kind.output_bytes

    def validate(self, case: Case) -> None:
        """ValueError for a size below 1 or an unknown layout; KeyError for a missing dimension."""
        if min(self.gemm(case)) < 1:
            raise ValueError(f"size {self.size(case)} is below 1")
        if case.layout not in LAYOUTS:
            raise ValueError(f"layout is {case.layout!r}")

    def tolerance(self, case: Case) -> float:
        """The precision's `rel_tolerance`, of ||C - ref|| / ||ref|| against float64."""
        return case.precision.rel_tolerance

    def gemm(self, case: Case) -> tuple[int, int, int]:
        """(M, N, K)."""
        return case.dim("m"), case.dim("n"), case.dim("k")

    def misaligned(self, case: Case) -> tuple[str, int] | None:
        """("K=4095", 8190 bytes) when an operand's rows do not start on 16 bytes; None when they
        do.
        """
        for name, width in self._rows(case):
            stride = case.dim(name) * width
            if stride % ALIGNMENT_BYTES:
                return f"{name.upper()}={case.dim(name)}", stride
        return None

    def aligned(self, case: Case) -> Case:
        """The case with the rows of every operand padded to whole 16-byte words."""
        dims = dict(case.dims)
        for name, width in self._rows(case):
            whole = ALIGNMENT_BYTES // min(width, ALIGNMENT_BYTES)
            dims[name] = -(-int(dims[name]) // whole) * whole
        return replace(case, dims=dims)

    @staticmethod
    def _rows(case: Case) -> tuple[tuple[str, int], ...]:
        """(dimension, bytes of an element) along which each matrix lies in memory."""
        kind = case.precision
        return (
            ("k" if case.layout[0] == "n" else "m", kind.bytes_per_element),
            ("k" if case.layout[1] == "t" else "n", kind.bytes_per_element),
            ("n", kind.output_bytes),
        )

    def size(self, case: Case) -> str:
        """ "4096" for a cube, "4096x11008x4096" otherwise."""
        m, n, k = self.gemm(case)
        return str(m) if m == n == k else f"{m}x{n}x{k}"

    def axis(self, case: Case) -> int | None:
        """M of a cubic GEMM (M = N = K); None for others."""
        m, n, k = self.gemm(case)
        return m if m == n == k else None

    def setting(self, case: Case) -> Mapping[str, str]:
        """The layout."""
        return {"layout": case.layout}

    def probe(self, case: Case, scale: int = 1) -> Case:
        """The same GEMM with every dimension at most PROBED times `scale`."""
        most = scale * PROBED
        return replace(case, dims={name: min(case.dim(name), most) for name in self.dims})


OP = Gemm()
