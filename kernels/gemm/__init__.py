"""Op gemm: C[M, N] = A[M, K] @ B[K, N]; a batch of them; one with an epilogue.

Layouts name how A and B are stored: "n" row-major as written, "t" transposed. "nt" (the default)
stores B as [N, K], which is what torch.nn.Linear multiplies by, and the only layout that fp8 and
int8 have on every GPU. (BLAS, which thinks in columns, calls it TN.) A form may follow, "nt-gelu":
see FORMS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

from kernels.case import CannotRun, Case
from kernels.precision import Precision
from kernels.problem import Problem

LAYOUTS = ("nn", "nt", "tn", "tt")
# What a layout may say besides. Of a batch: rows of all matrices in turn, as attention's heads
# have them; one B for all; A's rows in consecutive groups, as many each or by Zipf's law, which
# torch's grouped_mm multiplies. Of one product and of a batch: C + bias; GELU(C + bias).
STRIDED, BROADCAST, GROUPED, SKEWED, BIAS, GELU = FORMS = (
    "strided", "broadcast", "grouped", "skewed", "bias", "gelu"
)  # fmt: skip
OF_BATCHES, RAGGED = FORMS[:4], (GROUPED, SKEWED)
ALL_LAYOUTS = (
    *LAYOUTS,
    *(f"{layout}-{form}" for layout in ("nt", "nn") for form in FORMS),
    *(f"{layout}-{form}" for layout in ("tn", "tt") for form in FORMS if form not in RAGGED),
)
# cuBLASLt's GELU has 0.79788456 for the root of 2/pi. Its result is at most this wrong for it, of a
# positive element; float64 alone sees that.
GELU_CONSTANT = 5e-10
PROBED, FEW = 128, 4  # at most, of a problem that is tried small: sizes, and products


@dataclass(frozen=True)
class Gemm(Problem):
    """C[m, n] = A[m, k] @ B[k, n], `batch` times. ValueError for a size below 1 or an unknown
    layout.
    """

    m: int
    n: int
    k: int
    layout: str = "nt"
    batch: int = 1
    op: ClassVar[str] = "gemm"
    NUMBERS: ClassVar[Sequence[str]] = ("m", "n", "k")
    USUAL: ClassVar[Mapping[str, str]] = {"layout": "nt", "batch": "1"}
    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {"layout": ALL_LAYOUTS}
    TILE: ClassVar[str] = "nmk"  # BLAS computes the transpose of a row-major C

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, not {self.batch}")
        if self.batch == 1 and self.form in OF_BATCHES:
            raise ValueError(f"layout {self.layout} is of a batch, BxMxNxK, not of {self.size}")

    @property
    def form(self) -> str:
        """One of FORMS, or "" for none."""
        return self.layout[3:]

    @property
    def plain(self) -> bool:
        """Whether it is one product, without an epilogue."""
        return self.batch == 1 and not self.form

    @property
    def apart(self) -> str:
        """What it is without a call for all of it, in words."""
        if self.form in RAGGED or self.batch > 1:
            return f"a kernel for each {'group' if self.form in RAGGED else 'product'}"
        return f"kernels for product{', bias and GELU' if self.form == GELU else ' and bias'}"

    @property
    def ends(self) -> Sequence[int]:
        """Of grouped and skewed: where each group's rows end, of the batch times m in all. Groups
        of a skewed batch have rows in proportion to 1, 1/2, 1/3 and so on.
        """
        sizes = [1 / (i + 1 if self.form == SKEWED else 1) for i in range(self.batch)]
        whole = math.fsum(sizes)
        return [round(self.batch * self.m * part / whole) for part in accumulate(sizes)]

    @property
    def mnk(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @property
    def dims(self) -> Mapping[str, int | str]:
        batch = {"batch": self.batch} if self.batch > 1 else {}
        return {**batch, "m": self.m, "n": self.n, "k": self.k}

    @property
    def size(self) -> str:
        if self.batch == 1 and self.m == self.n == self.k:
            return str(self.m)
        return "x".join(map(str, self.dims.values()))

    @property
    def title(self) -> str:
        return f"{self.size} {self.layout}" if self.form else self.size

    @property
    def setting(self) -> Mapping[str, str]:
        return {"layout": self.layout}

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def inputs(self) -> Sequence[str]:
        return ("a", "b", "bias") if self.form in (BIAS, GELU) else ("a", "b")

    @property
    def outputs(self) -> Sequence[str]:
        return ("c",)

    def stored(self, name: str) -> Sequence[int]:
        batch, m, n, k = self.batch, *self.mnk
        rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n), "bias": (1, n)}[name]
        if self._transposed(name):
            rows, columns = columns, rows
        if batch == 1 or (self.form == BROADCAST and name == "b"):
            return (columns,) if name == "bias" else (rows, columns)
        if self.form in RAGGED and name != "b":
            return batch * rows, columns
        strided = self.form == STRIDED and name != "c"
        return (rows, batch, columns) if strided else (batch, rows, columns)

    def viewed(self, name: str, tensor: Any) -> Any:
        """A [M, K] or B [K, N], of a batch [batch, ...]."""
        if self.form == STRIDED:
            tensor = tensor.transpose(0, 1)
        return tensor.mT if self._transposed(name) else tensor

    def _transposed(self, name: str) -> bool:
        return name in "ab" and self.layout["ab".index(name)] == "t"

    def tiles(self, tile: Sequence[int]) -> int | None:
        one = super().tiles(tile)
        return one * self.batch if one and self.form not in RAGGED else None

    def may_run_exactly(self, precision: Precision, backend: str) -> str:
        vector = precision.multiply == "tf32" and 1 in (self.m, self.n)
        return "a product with a vector is left to kernels without Tensor Cores" * vector

    def tolerance(self, precision: Precision) -> float:
        return precision.rel_tolerance + (GELU_CONSTANT if self.form == GELU else 0.0)

    def rows(self, precision: Precision) -> tuple[tuple[str, int], ...]:
        return (
            ("k" if self.layout[0] == "n" else "m", precision.bytes_per_element),
            ("k" if self.layout[1] == "t" else "n", precision.bytes_of("storage_b")),
            ("n", precision.output_bytes),
        )

    def probe(self, scale: int = 1) -> Gemm:
        m, n, k = (min(size, scale * PROBED) for size in self.mnk)
        return replace(self, m=m, n=n, k=k, batch=min(self.batch, FEW))


def gemm_of(case: Case) -> Gemm:
    assert isinstance(case.problem, Gemm)
    return case.problem


def check_plain(case: Case, library: str) -> None:
    """CannotRun for a batch and an epilogue."""
    if not gemm_of(case).plain:
        raise CannotRun(f"{library}: single products only here; use --backend cublas,separate")
