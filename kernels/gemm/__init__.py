"""Op gemm: C[M, N] = A[M, K] @ B[K, N].

Layouts name how A and B are stored: "n" row-major as written, "t" transposed. "nt" (the default)
stores B as [N, K], which is what torch.nn.Linear multiplies by, and the only layout that fp8 and
int8 have on every GPU. (BLAS, which thinks in columns, calls it TN.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kernels.precision import Precision
from kernels.problem import Problem, padded

LAYOUTS = ("nn", "nt", "tn", "tt")
PROBED = 128  # at most, of a problem that is tried small


@dataclass(frozen=True)
class Gemm(Problem):
    """C[m, n] = A[m, k] @ B[k, n]. ValueError for a size below 1 or an unknown layout."""

    m: int
    n: int
    k: int
    layout: str = "nt"
    op: ClassVar[str] = "gemm"
    NUMBERS: ClassVar[Sequence[str]] = ("m", "n", "k")
    USUAL: ClassVar[Mapping[str, str]] = {"layout": "nt"}
    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {"layout": LAYOUTS}
    TILE: ClassVar[str] = "nmk"  # BLAS computes the transpose of a row-major C

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.mnk) < 1:
            raise ValueError(f"size {self.size} is below 1")

    @property
    def mnk(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @property
    def dims(self) -> Mapping[str, int | str]:
        return {"m": self.m, "n": self.n, "k": self.k}

    @property
    def size(self) -> str:
        return str(self.m) if self.m == self.n == self.k else f"{self.m}x{self.n}x{self.k}"

    @property
    def setting(self) -> Mapping[str, str]:
        return {"layout": self.layout}

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def min_bytes(self, precision: Precision) -> int:
        inputs = self.m * self.k + self.k * self.n
        return inputs * precision.bytes_per_element + self.m * self.n * precision.output_bytes

    def may_run_exactly(self, precision: Precision, backend: str) -> bool:
        """A product with a vector is left to kernels without Tensor Cores."""
        return precision.multiply == "tf32" and 1 in (self.m, self.n)

    def rows(self, precision: Precision) -> tuple[tuple[str, int], ...]:
        return (
            ("k" if self.layout[0] == "n" else "m", precision.bytes_per_element),
            ("k" if self.layout[1] == "t" else "n", precision.bytes_per_element),
            ("n", precision.output_bytes),
        )

    def aligned(self, precision: Precision) -> Gemm:
        sizes = dict(zip("mnk", self.mnk, strict=True))
        for name, width in self.rows(precision):
            sizes[name] = padded(sizes[name], width)
        return replace(self, **sizes)

    def probe(self, scale: int = 1) -> Gemm:
        m, n, k = (min(size, scale * PROBED) for size in self.mnk)
        return Gemm(m, n, k, self.layout)
