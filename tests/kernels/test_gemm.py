"""GEMM on the CPU: operands, the check against float64, work and skips."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.measuring import refusal

from kernels import OPS, checking
from kernels.case import Candidate, CannotRun, Case, Prepared, Target
from kernels.checking import (
    CHECKSUM_SLACK,
    CHECKSUMS,
    checksum_error,
    launch_poisoned,
    poison,
    random_signs,
    relative_error,
    total_error,
    worst_channel,
)
from kernels.data import FP64_FACTOR, OperandPool
from kernels.gemm import LAYOUTS, Gemm
from kernels.gemm.operands import Operands
from kernels.op import Session
from kernels.precision import PRECISIONS, Precision

CPU = Target("cpu", "a CPU", None, 2)


def case(
    m: int, n: int, k: int, precision: str = "fp32", *,
    backend: str = "cpu", layout: str = "nt", data: str = "normal",
) -> Case:  # fmt: skip
    return Case(Gemm(m, n, k, layout), precision, backend, data)


def prepared(what: Case, seed: int = 0) -> Prepared:
    return Session(CPU, seed).prepare(what)


def float_operands(m: int, n: int, k: int, kind: Precision, data: str = "normal") -> Operands:
    """Operands whose C is the exact product, rounded once."""
    made = OperandPool(CPU, 1).get(case(m, n, k, kind.name, data=data))
    return replace(made, c=(made.a.double() @ made.b.double()).to(made.c.dtype))


# ---------------------------------------------------------------- right


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", list(PRECISIONS))
def test_every_precision_and_layout_is_right_or_says_why_not(name: str, layout: str) -> None:
    what = case(48, 80, 96, name, layout=layout)
    reason, ready = "", None
    try:
        OPS["gemm"].check(what, CPU)
        ready = prepared(what)
    except CannotRun as error:
        reason = str(error)
    if ready:
        assert ready.rel_error(ready.candidates[0]) <= what.precision.rel_tolerance
        return
    assert name not in ("fp64", "fp32", "fp16", "bf16")
    assert reason
    assert "\n" not in reason


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 3), (65, 1, 129), (200, 3, 1), (63, 64, 65)])
def test_odd_shapes_are_right_and_an_output_that_is_not_written_is_not(
    shape: tuple[int, int, int],
) -> None:
    ready = prepared(case(*shape))
    assert ready.rel_error(ready.candidates[0]) <= PRECISIONS["fp32"].rel_tolerance
    assert ready.rel_error(replace(ready.candidates[0], call=lambda: None)) == math.inf


def test_layouts_are_how_the_operands_are_stored() -> None:
    for layout in LAYOUTS:
        operands = OperandPool(CPU, 0).get(case(16, 32, 48, layout=layout))
        assert operands.mnk == (16, 32, 48)
        assert operands.a.stride() == ((1, 16) if layout[0] == "t" else (48, 1))
        assert operands.b.stride() == ((1, 48) if layout[1] == "t" else (32, 1))
        assert operands.c.is_contiguous()


def test_work_is_counted_as_the_field_counts_it() -> None:
    assert case(3, 5, 7).problem.flops == 2 * 3 * 5 * 7
    assert case(3, 5, 7, "fp32").min_bytes == 4 * (21 + 35 + 15)
    assert case(3, 5, 7, "int8").min_bytes == 21 + 35 + 4 * 15
    assert case(3, 5, 7, "fp8-e4m3").min_bytes == 21 + 35 + 2 * 15


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize("name", list(PRECISIONS))
@pytest.mark.parametrize("data", ["normal", "uniform", "integers", "zeros"])
def test_inputs_are_finite_and_spread_as_named(name: str, data: str) -> None:
    values = OperandPool(CPU, 3).get(case(128, 8, 256, name, data=data)).a.double()
    if name == "fp64":
        values = values / FP64_FACTOR
    assert torch.isfinite(values).all()
    scale = {"normal": 32.0, "uniform": 127.0}.get(data, 1.0) if name == "int8" else 1.0
    if data == "zeros":
        assert not values.any()
    elif data == "integers":
        torch.testing.assert_close(values, values.round())
        assert 2 < values.abs().max() <= 16
    elif data == "uniform":
        assert values.abs().max() <= scale
        assert values.std() == pytest.approx(scale / math.sqrt(3), rel=0.03)
    else:
        assert values.std() == pytest.approx(scale, rel=0.03)
        assert values.abs().max() > 2.5 * scale
    if data != "zeros":
        assert abs(values.mean()) < 0.05 * max(1.0, values.std())
        assert not torch.equal(values[0], values[1])


def test_the_seed_decides_the_inputs_and_arms_that_store_alike_share_them() -> None:
    first, again, other = (OperandPool(CPU, seed).get(case(8, 8, 8)).a for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    pool = OperandPool(CPU, 0)
    fp32, tf32 = pool.get(case(8, 8, 8, "fp32")), pool.get(case(8, 8, 8, "tf32"))
    assert fp32.a.data_ptr() == tf32.a.data_ptr()
    assert fp32.c.data_ptr() == tf32.c.data_ptr()
    assert pool.get(case(8, 8, 8, "fp16")).a.dtype == torch.float16
    assert pool.get(case(8, 8, 16, "fp32")).mnk == (8, 8, 16)


# ---------------------------------------------------------------- the check

FLOATS = ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8-e4m3", "fp8-e4m3-precise", "fp8-e5m2"]


@pytest.mark.parametrize("name", [*FLOATS, "int8"])
def test_one_wrong_element_in_a_small_matrix_is_caught(name: str) -> None:
    kind = PRECISIONS[name]
    for where in ((0, 0), (7, 9), (15, 15)):
        operands = float_operands(16, 16, 16, kind)
        assert relative_error(operands) <= kind.rel_tolerance
        operands.c[where] = operands.c[where] + operands.c.double().std().to(operands.c.dtype)
        assert not relative_error(operands) <= kind.rel_tolerance


@pytest.mark.parametrize("name", [*FLOATS, "fp16-acc16", "int8"])
@pytest.mark.parametrize("size", [16, 300])
def test_an_unwritten_element_nan_and_infinity_are_caught_wherever_they_are(
    name: str, size: int
) -> None:
    kind = PRECISIONS[name]
    for where in ((0, 0), (size // 2, size // 3), (size - 1, size - 1)):
        operands = float_operands(size, size, 16, kind)
        hole = torch.empty(1, 1, dtype=operands.c.dtype)
        poison(hole)
        operands.c[where] = hole[0, 0]
        assert relative_error(operands) == math.inf
        for value in (math.nan, math.inf, -math.inf) if hole.is_floating_point() else ():
            operands.c[where] = value
            assert not relative_error(operands) <= kind.rel_tolerance


@pytest.mark.parametrize("name", [*FLOATS, "fp16-acc16", "int8"])
def test_a_zero_tile_row_or_column_of_a_large_matrix_is_caught(name: str) -> None:
    kind = PRECISIONS[name]
    everywhere, tile = slice(None), (slice(512, 640), slice(128, 256))
    for hole in (tile, (700, everywhere), (everywhere, 3), (-1, everywhere), (everywhere, -1)):
        operands = float_operands(1023, 1023, 32, kind)
        assert relative_error(operands) <= kind.rel_tolerance
        operands.c[hole] = 0
        assert relative_error(operands) > kind.rel_tolerance, hole


def test_the_price_counts_the_rounding_of_the_inputs() -> None:
    """Expected sizes: sqrt(2) x the rounding of one operand, u/sqrt(3) of a binade on average."""
    prices = {}
    for name in ("fp32", "fp16", "bf16", "fp8-e4m3", "int8"):
        prices[name] = total_error(float_operands(256, 256, 256, PRECISIONS[name]))
    assert prices["fp32"] < 1e-6
    assert 2e-4 < prices["fp16"] < 6e-4
    assert 2e-3 < prices["bf16"] < 5e-3
    assert 2e-2 < prices["fp8-e4m3"] < 6e-2
    assert 5e-3 < prices["int8"] < 3e-2


def test_products_of_zeros_must_be_zero_and_operands_in_order() -> None:
    right = float_operands(8, 8, 8, PRECISIONS["fp32"], "zeros")
    assert relative_error(right) == 0.0
    assert relative_error(replace(right, c=right.c + 1)) > PRECISIONS["fp32"].rel_tolerance
    operands = float_operands(64, 64, 64, PRECISIONS["bf16"])
    swapped = replace(operands, c=(operands.b.double() @ operands.a.double()).bfloat16())
    assert relative_error(swapped) > 0.5


# ---------------------------------------------------------------- what cannot run


@pytest.mark.parametrize(
    ("precision", "capability", "said"),
    [("fp8-e4m3", (8, 0), "8.9"), ("bf16", (7, 5), "8.0"), ("fp16", (6, 1), "7.0")],
)
def test_an_old_gpu_says_what_is_needed_and_what_it_has(
    precision: str, capability: tuple[int, int], said: str
) -> None:
    gpu = Target("cuda", "a GPU", capability, 80)
    for backend in PRECISIONS[precision].min_capability.keys() & OPS["gemm"].backends.keys():
        reason = refusal(OPS["gemm"].check, case(64, 64, 64, precision, backend=backend), gpu)
        assert said in reason
        assert "{}.{}".format(*capability) in reason


def test_a_precision_that_a_back_end_has_not_and_a_missing_gpu_are_named() -> None:
    gpu = Target("cuda", "a GPU", (9, 0), 80)
    reason = refusal(OPS["gemm"].check, case(64, 64, 64, "fp64", backend="triton"), gpu)
    assert {"triton", "fp64"} <= set(re.findall(r"\w+", reason))
    for backend in ("triton", "cublas", "cublaslt", "cupy"):
        here = case(64, 64, 64, "fp16", backend=backend)
        assert "CUDA" in refusal(OPS["gemm"].check, here, CPU)
    for precision, said in (("tf32", "Tensor Core"), ("fp16-acc16", "accumul")):
        assert said in refusal(OPS["gemm"].check, case(64, 64, 64, precision), CPU)


# ---------------------------------------------------------------- gemm hidden errors


SEED = 7
sizes = st.integers(1, 40)


def wrong(m: int, n: int, k: int, planted: float, column: bool) -> Operands:
    """Operands whose C is off by `planted` in its last row, or column."""
    case = Case(Gemm(m, n, k), "fp64", "cpu")
    made = OperandPool(CPU, 0).get(case)
    product = made.a @ made.b
    product[(slice(None), -1) if column else (-1, slice(None))] += planted
    return replace(made, c=product)


def expected_checksum(operands: Operands, size: float, transposed: bool) -> float:
    a, b, c = (matrix.numpy() for matrix in (operands.a, operands.b, operands.c))
    if transposed:
        a, b, c = b.T, a.T, c.T
    columns = c.shape[1]
    torch.manual_seed(SEED)
    signs = random_signs(columns, torch.device("cpu")).numpy()
    if columns <= CHECKSUMS:  # each column by itself
        signs, columns = np.eye(columns), 1
    return float(np.abs(c @ signs - a @ b @ signs).max() / (size * np.sqrt(columns)))


@given(
    sizes, sizes, sizes, st.floats(0.5, 10.0), st.booleans(), st.booleans(), st.floats(0.1, 9.0),
    st.sampled_from([1, 30, 100, 10**6]),
)  # fmt: skip
def test_a_checksum_is_relative_to_what_such_sums_come_to_whatever_the_bands(
    m: int, n: int, k: int, planted: float, column: bool, transposed: bool, size: float, chunk: int
) -> None:
    operands = wrong(m, n, k, planted, column)
    expected = expected_checksum(operands, size, transposed)
    torch.manual_seed(SEED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "CHUNK_ELEMENTS", chunk)
        found = checksum_error(operands.convolutions[transposed], size)
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("m", "n"), [(64, 64), (16, 64), (64, 16), (9, 9)])
def test_the_worst_line_counts_over_what_chance_allows(m: int, n: int, axis: int) -> None:
    right, off = (wrong(m, n, 32, planted, column=axis == 1).c for planted in (0.0, 20.0))
    lines = off.numpy() - right.numpy(), right.numpy()
    norms = [np.sqrt((each**2).sum(1 - axis)) for each in lines]
    worst = norms[0].max() / np.sqrt((norms[1] ** 2).mean())
    found = worst_channel(off[:, :, None, None], right[:, :, None, None], axis)
    assert found == pytest.approx(worst / (1 + CHECKSUM_SLACK / (n, m)[axis] ** 0.5))


@pytest.mark.parametrize("allocates", [False, True])
def test_a_result_of_its_own_memory_is_allocated_where_poison_was_left(
    allocates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = wrong(8, 8, 8, 0.0, column=False)
    poisoned: list[int] = []
    monkeypatch.setattr(checking, "poison", lambda tensor: poisoned.append(tensor.data_ptr()))
    product = operands.a @ operands.b
    candidate = Candidate("torch", lambda: product, allocates=allocates)
    assert torch.equal(launch_poisoned(operands, candidate).c, product)
    own, *others = poisoned
    assert own == operands.c.data_ptr()
    assert len(others) == allocates
    assert own not in others
