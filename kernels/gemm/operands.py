"""The matrices of a GEMM: made once for all variants of a comparison, and what they are made
from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch

from kernels.case import Case, Target
from kernels.data import choose, draw, storage_factor, store

SAMPLED_ROWS = {"cuda": 256, "cpu": 64}


@dataclass(frozen=True)
class Sample:
    """Rows of A and columns of B to check C by, as drawn: float64, before any rounding.

    `rows` and `columns` are int64 indices; `a` is [rows, K], `b` [K, columns].
    """

    rows: torch.Tensor
    columns: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True)
class Operands:
    """C[M, N] = A[M, K] @ B[K, N]; `a` and `b` are logical views, strided as the layout says.

    `one` is a float32 scalar on the same device, the scale that fp8 GEMMs need. `scale` is the
    ratio of the stored C to that of the values as drawn: int8 stores multiples of the drawn values.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    one: torch.Tensor
    sample: Sample
    scale: float = 1.0

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(A [M, K], B [K, N]), the arguments of a user's function."""
        return self.a, self.b

    @property
    def named(self) -> dict[str, object]:
        """What a user's function may also ask for by name: nothing for a GEMM."""
        return {}

    @property
    def output(self) -> torch.Tensor:
        """C [M, N]."""
        return self.c

    def holding(self, result: torch.Tensor) -> Self:
        """The same with another C."""
        return replace(self, c=result)

    @property
    def mnk(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]


class OperandPool:
    """Operands of one problem. Every precision stores the same drawn matrices.

    Variants with the same storage share memory: two variants of one kernel read the same addresses,
    so that placement in memory cannot look like a difference between kernels.
    """

    def __init__(self, target: Target, seed: int) -> None:
        self.device = torch.device(target.torch_device)
        self.seed = seed
        self.sampled = SAMPLED_ROWS[target.kind]
        self.one = torch.ones((), device=self.device)
        self.clear()

    def clear(self) -> None:
        """Free the matrices; the next problem draws new values."""
        self.group: str | None = None
        self.sample: Sample | None = None
        self.inputs: dict[str, torch.Tensor] = {}
        self.outputs: dict[torch.dtype, torch.Tensor] = {}
        self.seed += 2

    def get(self, case: Case) -> Operands:
        """The operands of the case. Raises torch.OutOfMemoryError when they do not fit."""
        if case.group != self.group:
            self.clear()
            self.group = case.group
        kind = case.precision
        storage, storage_b = kind.torch_dtype(), kind.torch_dtype("storage_b")
        if self.sample is None:
            self.sample = self._sample(case)
        a, b = self._input(case, "a", storage), self._input(case, "b", storage_b)
        output = kind.torch_dtype("output")
        if output not in self.outputs:
            shape = (case.dim("m"), case.dim("n"))
            self.outputs[output] = torch.empty(shape, dtype=output, device=self.device)
        scale = storage_factor(storage, case.data) * storage_factor(storage_b, case.data)
        return Operands(a, b, self.outputs[output], self.one, self.sample, scale)

    def _drawn(self, case: Case, name: str) -> torch.Tensor:
        """The matrix as drawn, in the orientation it is stored in; the same at every call."""
        rows, columns = ("m", "k") if name == "a" else ("k", "n")
        if self._transposed(case, name):
            rows, columns = columns, rows
        shape = (case.dim(rows), case.dim(columns))
        rng = torch.Generator(self.device).manual_seed(self.seed + "ab".index(name))
        return draw(shape, case.data, rng)

    @staticmethod
    def _transposed(case: Case, name: str) -> bool:
        return case.layout["ab".index(name)] == "t"

    def _logical(self, case: Case, name: str, stored: torch.Tensor) -> torch.Tensor:
        return stored.t() if self._transposed(case, name) else stored

    def _input(self, case: Case, name: str, dtype: torch.dtype) -> torch.Tensor:
        key = f"{name}:{dtype}"
        if key not in self.inputs:
            stored = store(self._drawn(case, name), dtype, case.data)
            self.inputs[key] = self._logical(case, name, stored)
        return self.inputs[key]

    def _sample(self, case: Case) -> Sample:
        rows = choose(case.dim("m"), self.sampled, self.device)
        columns = choose(case.dim("n"), self.sampled, self.device)
        a, b = (self._logical(case, name, self._drawn(case, name)) for name in "ab")
        return Sample(rows, columns, a[rows].double(), b[:, columns].double())
