"""The cupy back end: what gemmEx is asked, answered by a stand-in."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch
from samples.blas import memory, operand
from samples.measuring import refusal

from kernels.case import CannotRun, Case, Target
from kernels.gemm import LAYOUTS, Gemm, cupy_blas
from kernels.gemm import cublaslt_api as api
from kernels.op import Session
from kernels.precision import PRECISIONS

pytestmark = pytest.mark.usefixtures("quick_collection")

CPU = Target("cpu", "stand-in", capability=(9, 0))
H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
DIMS = {"m": 48, "n": 32, "k": 64}
STREAM = 0x5EED
CUPY = [name for name, kind in PRECISIONS.items() if "cupy" in kind.min_capability]


def case(precision: str, layout: str = "nt", **dims: int) -> Case:
    return Case(Gemm(**{**DIMS, **dims}, layout=layout), precision, "cupy")


# --- What can run -------------------------------------------------------------------------------


@pytest.fixture
def cupy_installed() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("no CuPy")


@pytest.mark.usefixtures("cupy_installed")
def test_what_cannot_run_has_a_reason() -> None:
    def reason(precision: str, layout: str = "nt", **dims: int) -> str:
        return refusal(cupy_blas.check, case(precision, layout, **dims), H200)

    for name, kind in PRECISIONS.items():
        if kind.is_float8:
            assert reason(name) == f"cublasGemmEx has no {name}; use --backend cublaslt"
        elif name != "int8":
            assert not reason(name, "tn", m=3, n=5, k=7)
    assert not reason("int8", m=7)
    assert "use --layout nt" in reason("int8", "nn")
    assert "multiples of 4, not 32 and 66" in reason("int8", k=66)


def test_a_cupy_that_is_not_there_or_does_not_load_is_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy_backends.cuda.libs", None)
    with pytest.raises(CannotRun, match="CuPy cannot be imported"):
        cupy_blas._binding.__wrapped__()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install cupy" in refusal(cupy_blas.check, case("fp16"), H200)


# --- gemmEx, with a stand-in for cuBLAS ---------------------------------------------------------


def stored(op: int, rows: int, columns: int, ld: int) -> api.Stored:
    """A matrix that is rows x columns after the operation."""
    swapped = op == api.CUBLAS_OP_T
    return api.Stored(op, *((columns, rows) if swapped else (rows, columns)), ld)


class StandIn:
    """cuBLAS as CuPy binds it; multiplies in float64 what the addresses point at."""

    class CUBLASError(RuntimeError):
        pass

    NAMES: ClassVar = {number: name for name, number in api.DATA_TYPES.items()}
    SCALES: ClassVar = {64: api.CUDA_R_16F, 70: api.CUDA_R_64F, 72: api.CUDA_R_32I}

    def __init__(self) -> None:
        self.mode = 0
        self.compute = 0
        self.stream = 0
        self.refusal = ""

    def create(self) -> int:
        return 0xC0DE

    def setMathMode(self, handle: int, mode: int) -> None:
        assert handle == 0xC0DE
        self.mode = mode

    def gemmEx(self, handle: int, *arguments: int) -> None:
        if self.refusal:
            raise self.CUBLASError(self.refusal)
        op_a, op_b, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta = arguments[:13]
        c, c_type, ldc, compute, algo = arguments[13:]
        assert (handle, algo, self.stream) == (0xC0DE, -1, STREAM)
        self.compute = compute
        held, one = api._ONE_IN[self.SCALES.get(compute, api.CUDA_R_32F)]
        assert held.from_address(alpha).value == one
        assert held.from_address(beta).value == 0
        sides = (op_a, m, k, lda, a, a_type), (op_b, k, n, ldb, b, b_type)
        first, second = (
            operand(data, getattr(torch, self.NAMES[kind]), stored(op, rows, columns, ld))
            for op, rows, columns, ld, data, kind in sides
        )
        dtype = getattr(torch, self.NAMES[c_type])
        memory(c, dtype, (m, n), ldc)[:] = (first @ second).to(dtype)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    library = StandIn()

    @contextmanager
    def stream(address: int) -> Iterator[None]:
        library.stream = address
        yield
        library.stream = 0

    monkeypatch.setattr(cupy_blas, "_binding", lambda: library)
    monkeypatch.setattr(cupy_blas, "_handle", cupy_blas._handle.__wrapped__)
    monkeypatch.setattr(cupy_blas, "_cupy_stream", stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    return library


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", CUPY)
def test_gemm_ex_is_asked_for_the_right_product(
    stand_in: StandIn, precision: str, layout: str
) -> None:
    prepared = Session(CPU, seed=1).prepare(case(precision, layout))
    gc.collect()  # what a launch points at must be alive by its own doing
    (candidate,) = prepared.candidates
    assert prepared.rel_error(candidate) <= PRECISIONS[precision].rel_tolerance
    assert stand_in.compute == api.arithmetic(PRECISIONS[precision]).compute
    assert stand_in.mode == 16  # the default, TF32 off, and no reductions in the output's type


def test_a_refusal_is_a_reason(stand_in: StandIn) -> None:
    stand_in.refusal = "CUBLAS_STATUS_NOT_SUPPORTED"
    with pytest.raises(CannotRun, match=r"rejects gemm/.*/int8/cupy: CUBLAS_STATUS_NOT_SUPPORTED"):
        Session(CPU, 1).prepare(case("int8"))


@pytest.mark.usefixtures("cupy_installed")
def test_the_constants_are_cupy_s_and_it_reads_a_stream_s_address() -> None:
    binding = cupy_blas._binding()
    names = [name for name in vars(api) if name.startswith("CUBLAS_") and hasattr(binding, name)]
    assert len(names) >= 8
    assert {n: getattr(api, n) for n in names} == {n: getattr(binding, n) for n in names}
    assert cupy_blas._cupy_stream(STREAM).ptr == STREAM
    assert cupy_blas._cupy_stream(0).ptr == 0
