"""What a precision asks of its results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.case import Case, Target
from kernels.gemm.check import relative_error, total_error
from kernels.gemm.operands import OperandPool, Operands
from kernels.precision import PRECISIONS

CPU = Target("cpu", "a CPU", None, 2)
SIZE = 64  # the sample is the whole matrix
# Of an output in 2, 3, 8 or 10 bits of mantissa the rounding is 2**-bits / 2. Where it is all that
# happens, it may be twice that; sums in the same precision over thousands of terms need more.
TOLERANCE_BITS = {
    "fp64": -39.9, "fp32": -17.6, "tf32": -9.4, "fp16": -10.0, "fp16-acc16": -5.6, "bf16": -7.0,
    "fp8-e4m3": -6.6, "fp8-e4m3-precise": -7.0, "fp8-e5m2": -6.6,
}  # fmt: skip
FLOATS = list(TOLERANCE_BITS)


def operands(name: str, error: float = 0.0, seed: int = 1) -> Operands:
    """Operands whose C is the product with a random error of this relative size."""
    case = Case("gemm", {"m": SIZE, "n": SIZE, "k": SIZE}, name, "cpu")
    made = OperandPool(CPU, seed).get(case)
    product = made.a.double() @ made.b.double()
    noise = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed)).double()
    wrong = product + noise * (error * product.norm() / noise.norm())
    return replace(made, c=wrong.to(made.c.dtype))


@pytest.mark.parametrize("name", FLOATS)
def test_an_error_is_found_from_the_tolerance_on(name: str) -> None:
    kind, tolerance = PRECISIONS[name], 2.0 ** TOLERANCE_BITS[name]
    rounding = relative_error(operands(name))
    assert rounding < 0.5 * tolerance
    for size, passes in ((0.8, True), (1.2, False)):
        planted = (max(0.0, (size * tolerance) ** 2 - rounding**2)) ** 0.5
        found = relative_error(operands(name, planted))
        assert found == pytest.approx(size * tolerance, rel=0.03)
        assert (found <= kind.rel_tolerance) == passes


@pytest.mark.parametrize("name", [*FLOATS, "int8"])
def test_the_errors_size_is_what_was_planted(name: str) -> None:
    wrong = operands(name, 0.3)
    product = wrong.a.double() @ wrong.b.double()
    exact = float((wrong.c.double() - product).norm() / product.norm())
    assert exact == pytest.approx(0.3, rel=0.05)
    assert relative_error(wrong) == pytest.approx(exact, rel=1e-9)
    drawn = wrong.sample.a @ wrong.sample.b
    total = float((wrong.c.double() / wrong.scale - drawn).norm() / drawn.norm())
    assert total_error(wrong) == pytest.approx(total)


def test_integers_may_differ_by_nothing() -> None:
    right = operands("int8")
    assert relative_error(right) == PRECISIONS["int8"].rel_tolerance == 0
    right.c[3, 5] += 1
    assert relative_error(right) > PRECISIONS["int8"].rel_tolerance


@pytest.mark.parametrize("name", [*FLOATS, "int8"])
def test_only_another_arithmetic_is_below_the_least_error(name: str) -> None:
    """TF32 keeps 10 bits of the operands' mantissas; a product without that rounding is fp32's."""
    made = operands(name)
    if name != "tf32":
        assert PRECISIONS[name].least_error == 0
        return
    a, b = (_rounded_to_tf32(matrix) for matrix in (made.a, made.b))
    rounded = relative_error(replace(made, c=(a.double() @ b.double()).float()))
    assert relative_error(made) < PRECISIONS[name].least_error / 100
    assert 10 * PRECISIONS[name].least_error < rounded < PRECISIONS[name].rel_tolerance / 4


def _rounded_to_tf32(matrix: torch.Tensor) -> torch.Tensor:
    bits = matrix.contiguous().view(torch.int32)
    return ((bits + (1 << 12)) & -(1 << 13)).view(torch.float32)
