"""The matrices of a GEMM: made once for all arms of a comparison, and checked against float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.case import Case, Target
from kernels.precision import Precision

SAMPLED_ROWS = {"cuda": 256, "cpu": 64}
INT8_STD = 32.0  # standard deviation of normal int8 data; +-127 is four of them
INT_POISON = torch.iinfo(torch.int32).min  # a value that no product of int8 matrices can have


@dataclass(frozen=True)
class Operands:
    """C[M, N] = A[M, K] @ B[K, N]; `a` and `b` are logical views, strided as the layout says.

    `one` is a float32 scalar on the same device, the scale that fp8 products ask for.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    one: torch.Tensor

    @property
    def mnk(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]


def _values(
    shape: tuple[int, int], dtype: torch.dtype, data: str, generator: torch.Generator
) -> torch.Tensor:
    device = generator.device
    if data == "zeros":
        return torch.zeros(shape, dtype=dtype, device=device)
    if data == "integers":
        return torch.randint(-8, 9, shape, generator=generator, device=device).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if data == "uniform":
        values = torch.rand(shape, generator=generator, device=device, dtype=wide) * 2 - 1
        return (values * 127).round().to(dtype) if dtype == torch.int8 else values.to(dtype)
    values = torch.randn(shape, generator=generator, device=device, dtype=wide)
    if dtype == torch.int8:
        return (values * INT8_STD).round().clamp(-127, 127).to(dtype)
    return values.to(dtype)


def make_input(
    rows: int, columns: int, dtype: torch.dtype, data: str, transposed: bool, rng: torch.Generator
) -> torch.Tensor:
    """A logical rows x columns matrix, stored transposed when asked; fresh values each call."""
    if transposed:
        return _values((columns, rows), dtype, data, rng).t()
    return _values((rows, columns), dtype, data, rng)


class OperandPool:
    """Operands of one problem, shared by the arms that store them alike.

    Sharing makes two arms of one kernel read the very same addresses: placement in memory can not
    pass for a difference between kernels.
    """

    def __init__(self, target: Target, seed: int) -> None:
        self.device = torch.device(target.torch_device)
        self.rng = torch.Generator(self.device).manual_seed(seed)
        self.one = torch.ones((), device=self.device)
        self.group: str | None = None
        self.inputs: dict[str, torch.Tensor] = {}
        self.outputs: dict[str, torch.Tensor] = {}

    def get(self, case: Case) -> Operands:
        """The operands of the case. Raises torch.OutOfMemoryError when they do not fit."""
        if case.group != self.group:
            self.clear()
            self.group = case.group
        m, n, k = (case.dim(d) for d in "mnk")
        kind = case.precision
        storage, storage_b = kind.torch_dtype(), kind.torch_dtype("storage_b")
        a = self._input(f"a:{storage}", m, k, storage, case.data, case.layout[0] == "t")
        b = self._input(f"b:{storage_b}", k, n, storage_b, case.data, case.layout[1] == "t")
        output = kind.torch_dtype("output")
        if str(output) not in self.outputs:
            self.outputs[str(output)] = torch.empty(m, n, dtype=output, device=self.device)
        return Operands(a, b, self.outputs[str(output)], self.one)

    def _input(
        self, key: str, rows: int, columns: int, dtype: torch.dtype, data: str, transposed: bool
    ) -> torch.Tensor:
        if key not in self.inputs:
            self.inputs[key] = make_input(rows, columns, dtype, data, transposed, self.rng)
        return self.inputs[key]

    def clear(self) -> None:
        """Free the matrices."""
        self.group = None
        self.inputs.clear()
        self.outputs.clear()


def poison(c: torch.Tensor) -> None:
    """Fill an output with what no product can leave there."""
    c.fill_(float("nan") if c.dtype.is_floating_point else INT_POISON)


def unwritten(c: torch.Tensor) -> int:
    """How many elements still hold the poison (NaN counts, wherever it came from)."""
    bad = torch.isnan(c) if c.dtype.is_floating_point else c == INT_POISON
    return int(bad.sum().item())


def _sample(size: int, count: int, device: torch.device) -> torch.Tensor:
    """Sorted indices: all of them, or a random choice that has the first and last in it."""
    if size <= count:
        return torch.arange(size, device=device)
    chosen = torch.randperm(size, device=device)[:count]
    chosen[0], chosen[1] = 0, size - 1
    return chosen.unique()


def relative_error(operands: Operands, kind: Precision, sampled: int) -> float:
    """||C - A@B|| / ||A@B|| in float64, over random rows and columns, the outermost among them.

    The whole of C is searched for poison; any left makes the error infinite. Where the exact
    product is zero, the error is ||C||.
    """
    a, b, c = operands.a, operands.b, operands.c
    if unwritten(c):
        return float("inf")
    rows = _sample(c.shape[0], sampled, c.device)
    columns = _sample(c.shape[1], sampled, c.device)
    reference = _float64_rows(a, rows, kind) @ _float64_rows(b.t(), columns, kind).t()
    error = (c[rows][:, columns].double() - reference).norm()
    norm = reference.norm()
    return float((error / norm if norm > 0 else error).item())


def _float64_rows(matrix: torch.Tensor, rows: torch.Tensor, kind: Precision) -> torch.Tensor:
    # Indexing is not implemented for float8: gather the bytes, then look at them as float8 again.
    if kind.is_float8:
        return matrix.view(torch.uint8)[rows].view(matrix.dtype).double()
    return matrix[rows].double()
