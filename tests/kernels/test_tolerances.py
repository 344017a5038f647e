"""What a precision asks of its results and of the GPU, against a second statement of both."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.case import Case, Target
from kernels.gemm.check import relative_error, total_error
from kernels.gemm.operands import OperandPool, Operands
from kernels.precision import PRECISIONS, precision

CPU = Target("cpu", "a CPU", None, 2)
SIZE = 64  # the sample is the whole matrix
# Of an output in 2, 3, 8 or 10 bits of mantissa the rounding is 2**-bits / 2. Where it is all that
# happens, it may be twice that; sums in the same precision over thousands of terms need more.
TOLERANCE_BITS = {
    "fp64": -39.9, "fp32": -17.6, "tf32": -9.4, "fp16": -10.0, "fp16-acc16": -5.6, "bf16": -7.0,
    "fp8-e4m3": -6.6, "fp8-e4m3-precise": -7.0, "fp8-e5m2": -6.6,
}  # fmt: skip
FLOATS = list(TOLERANCE_BITS)

# What arithmetic each generation has, of the CUDA C++ Programming Guide and Triton's README.
SINCE = {
    (5, 0): {"fp64", "fp32"},
    (7, 0): {"fp16", "fp16-acc16"},
    (7, 5): {"int8"},
    (8, 0): {"tf32", "bf16"},
    (8, 9): {"fp8-e4m3", "fp8-e4m3-precise", "fp8-e5m2"},
}
GENERATIONS = [(5, 0), (6, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)]


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
@pytest.mark.parametrize("error", [0.03, 0.3])
def test_the_errors_size_is_what_was_planted(name: str, error: float) -> None:
    wrong = operands(name, error)
    product = wrong.a.double() @ wrong.b.double()
    exact = float((wrong.c.double() - product).norm() / product.norm())
    assert exact == pytest.approx(error, rel=0.05)
    assert relative_error(wrong) == pytest.approx(exact, rel=1e-9)
    total = total_error(wrong)
    drawn = wrong.sample.a @ wrong.sample.b
    assert total == pytest.approx(
        float((wrong.c.double() / wrong.scale - drawn).norm() / drawn.norm())
    )


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


@pytest.mark.parametrize("capability", GENERATIONS)
@pytest.mark.parametrize("backend", ["cublas", "cublaslt", "cupy", "cudnn", "triton"])
def test_a_generation_runs_what_it_has_arithmetic_for(
    backend: str, capability: tuple[int, int]
) -> None:
    has = set().union(*(names for since, names in SINCE.items() if since <= capability))
    lacks = {
        "cudnn": {"int8", "fp8-e4m3", "fp8-e4m3-precise", "fp8-e5m2"},
        "cupy": {"fp8-e4m3", "fp8-e4m3-precise", "fp8-e5m2"},
        "triton": {"fp64"} if capability >= (7, 0) else has,  # Triton begins with Volta
    }
    runs = {
        name for name, kind in PRECISIONS.items()
        if backend in kind.min_capability and capability >= kind.min_capability[backend]
    }  # fmt: skip
    assert runs == has - lacks.get(backend, set())


def test_lanes_without_tensor_cores_do_what_the_storage_allows() -> None:
    """Multiply-adds of a lane and clock, and the datasheets' rate that they are multiples of."""
    lanes = {name: kind.simt_twin for name, kind in PRECISIONS.items() if kind.simt_twin}
    packed = {name: 4 // PRECISIONS[name].bytes_per_element for name in ("tf32", "int8")}
    assert lanes.pop("tf32") == ("fp32", packed["tf32"])
    assert lanes.pop("int8") == ("fp32", packed["int8"])
    assert set(lanes.values()) == {("fp16", 1)}
    assert set(lanes) == {"fp16-acc16", "fp8-e4m3", "fp8-e4m3-precise", "fp8-e5m2"}


def test_precisions_share_a_rate_where_they_differ_in_range_only() -> None:
    for name, kind in PRECISIONS.items():
        assert kind.rate_name == ("fp8" if name.startswith("fp8") else name)
        assert precision(name) is kind
