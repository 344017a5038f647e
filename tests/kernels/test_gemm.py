"""GEMM on the CPU: operands, the check against float64, work and skips."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.measuring import ready_or_why, refusal

from kernels import OPS, checking
from kernels.case import Candidate, CannotRun, Case, Target
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
from kernels.gemm import ALL_LAYOUTS, LAYOUTS, OF_BATCHES, Gemm
from kernels.gemm.operands import BatchOperands, Operands
from kernels.op import Session
from kernels.precision import PRECISIONS, Precision

CPU = Target("cpu", "a CPU", None, 2)


def case(
    m: int, n: int, k: int, precision: str = "fp32", *,
    backend: str = "cpu", layout: str = "nt", data: str = "normal",
) -> Case:  # fmt: skip
    return Case(Gemm(m, n, k, layout), precision, backend, data)


def float_operands(m: int, n: int, k: int, kind: Precision, data: str = "normal") -> Operands:
    """Operands whose C is the exact product, rounded once."""
    made = OperandPool(CPU, 1).get(case(m, n, k, kind.name, data=data))
    return replace(made, c=(made.a.double() @ made.b.double()).to(made.c.dtype))


# ---------------------------------------------------------------- right


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", list(PRECISIONS))
def test_every_precision_and_layout_is_right_or_says_why_not(name: str, layout: str) -> None:
    what = case(48, 80, 96, name, layout=layout)
    ready, _ = ready_or_why(Session(CPU, 0), what)
    if ready:
        assert ready.rel_error(ready.candidates[0]) <= what.precision.rel_tolerance
    else:
        assert name not in ("fp64", "fp32", "fp16", "bf16")


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 3), (65, 1, 129), (200, 3, 1), (63, 64, 65)])
def test_odd_shapes_are_right_and_an_output_that_is_not_written_is_not(
    shape: tuple[int, int, int],
) -> None:
    ready = Session(CPU, 0).prepare(case(*shape))
    assert ready.rel_error(ready.candidates[0]) <= PRECISIONS["fp32"].rel_tolerance
    assert ready.rel_error(replace(ready.candidates[0], call=lambda: None)) == math.inf


def test_layouts_are_how_operands_are_stored_and_work_is_as_the_field_counts_it() -> None:
    for layout in LAYOUTS:
        operands = OperandPool(CPU, 0).get(case(16, 32, 48, layout=layout))
        assert operands.mnk == (16, 32, 48)
        assert operands.a.stride() == ((1, 16) if layout[0] == "t" else (48, 1))
        assert operands.b.stride() == ((1, 48) if layout[1] == "t" else (32, 1))
        assert operands.c.is_contiguous()
    assert case(3, 5, 7).problem.flops == 2 * 3 * 5 * 7
    assert case(3, 5, 7, "fp32").min_bytes == 4 * (21 + 35 + 15)
    assert case(3, 5, 7, "int8").min_bytes == 21 + 35 + 4 * 15
    assert case(3, 5, 7, "fp8-e4m3").min_bytes == 21 + 35 + 2 * 15
    assert case(3, 5, 7, "fp8-weights").min_bytes == 2 * 21 + 35 + 2 * 15


# ---------------------------------------------------------------- batches and epilogues

FORMS = [
    Gemm(40, 24, 32, layout, batch)
    for layout in ALL_LAYOUTS
    for batch in (1, 3)
    if not (layout in LAYOUTS or layout[3:] in OF_BATCHES) or batch > 1
]


def product_of(of: BatchOperands) -> torch.Tensor:
    """C by its definition, in float64."""
    a, b, batch = of.a.double(), of.b.double(), of.problem.batch
    if of.a.ndim == 2 < of.b.ndim:  # groups: each row has a B of its own
        sizes = torch.diff(of.ends, prepend=of.ends.new_zeros(1))
        c = torch.einsum("mk,mkn->mn", a, b.repeat_interleave(sizes, 0))
    else:
        c = a @ b if batch == 1 else torch.einsum("bmk,bkn->bmn", a, b.expand(batch, 32, 24))
    if of.bias is not None:
        c = c + of.bias.double()
    return 0.5 * c * (1 + torch.erf(c / math.sqrt(2))) if of.problem.form == "gelu" else c


@pytest.mark.parametrize("problem", FORMS, ids=lambda one: f"{one.layout}-{one.batch}")
def test_a_batch_or_an_epilogue_is_by_each_back_end_what_its_definition_gives(
    problem: Gemm,
) -> None:
    for name, backend in itertools.product(("fp64", "bf16", "fp8-e4m3"), ("cpu", "separate")):
        what = Case(problem, name, backend)
        ready, reason = ready_or_why(Session(CPU, 0), what)
        assert ready or (name, backend) != ("bf16", "separate"), reason
        if ready is None:
            continue
        (candidate,) = ready.candidates
        assert ready.rel_error(candidate) <= what.tolerance
        assert ready.total_error() <= {"fp64": 1e-15, "bf16": 5e-3}.get(name, 0.05)
        ready.renew()
        assert ready.rel_error_again(candidate, lambda launch: launch()) <= what.tolerance
        unwritten = replace(candidate, call=lambda: None, allocates=False)
        assert ready.rel_error(unwritten) == math.inf


@pytest.mark.parametrize("problem", FORMS, ids=lambda one: f"{one.layout}-{one.batch}")
def test_what_is_wrong_in_a_batch_or_an_epilogue_is_seen(problem: Gemm) -> None:
    made = OperandPool(CPU, 1).get(Case(problem, "bf16", "cpu"))
    right, tolerance = product_of(made), PRECISIONS["bf16"].rel_tolerance

    def error(c: torch.Tensor) -> float:
        return relative_error(made.holding(c.bfloat16()))

    assert error(right) <= tolerance
    lines = right.reshape(-1, right.shape[-1])
    for wrong in (lines.clone() for _ in range(3)):
        wrong[5, 7] += 0.5 * lines.std()
        assert error(wrong.view_as(right)) > tolerance
    assert error(lines.roll(40 if problem.batch > 1 else 1, 0).view_as(right)) > tolerance
    if made.bias is not None:
        assert error(product_of(replace(made, bias=torch.zeros_like(made.bias)))) > tolerance


def test_groups_share_the_rows_by_zipfs_law_and_a_single_product_is_named_as_ever() -> None:
    skewed, even = (Gemm(512, 64, 32, layout, 8) for layout in ("nt-skewed", "nt-grouped"))
    sizes = np.diff([0, *skewed.ends])
    assert even.ends == [512 * i for i in range(1, 9)]
    assert sizes.sum() == 8 * 512
    assert [sizes[0] / size for size in sizes] == pytest.approx(range(1, 9), rel=0.01)
    assert Gemm(1, 64, 32, "nt-skewed", 64).ends[-1] == 64, "some groups are empty"
    assert skewed.flops == even.flops == 8 * Gemm(512, 64, 32).flops
    bf16 = PRECISIONS["bf16"]
    bytes_of = {one: Gemm(512, 64, 32, one, 8).min_bytes(bf16) for one in ALL_LAYOUTS}
    assert bytes_of["nt"] == bytes_of["nt-skewed"] == 8 * Gemm(512, 64, 32).min_bytes(bf16)
    assert bytes_of["nt"] - bytes_of["nt-broadcast"] == 7 * 2 * 64 * 32
    assert bytes_of["nt-bias"] - bytes_of["nt"] == 8 * 2 * 64
    assert case(3, 5, 7).key == "gemm/m=3,n=5,k=7/nt/normal/fp32/cpu"
    assert Gemm(3, 5, 7, batch=2).key == "gemm/batch=2,m=3,n=5,k=7/nt"
    assert [Gemm(8, 8, 8, layout, 2).size for layout in ("nt", "nt-skewed")] == ["2x8x8x8"] * 2
    assert Gemm(128, 128, 64, batch=9).tiles((128, 64, 64)) == 18
    assert Gemm(128, 128, 64, "nt-grouped", 9).tiles((128, 64, 64)) is None
    for layout, batch in (("nt-strided", 1), ("tn-grouped", 2), ("nt-relu", 1), ("nt", 0)):
        with pytest.raises(ValueError, match=r"layout|at least 1"):
            Gemm(8, 8, 8, layout, batch)


@pytest.mark.parametrize(
    ("layout", "precision", "backend", "capability", "why"),
    [
        ("nt", "bf16", "triton", 9, "single products"), ("nt", "fp8", "cublas", 9, "nt-grouped"),
        ("nt", "bf16", "cublaslt", 9, "single products"), ("nt-skewed", "fp8", "cublas", 9, ""),
        ("nt-gelu", "bf16", "cupy", 9, "single products"),
        ("nt-bias", "int8", "separate", 9, "no bias"),
        ("nt-skewed", "fp16", "cublas", 9, "not in fp16"), ("nt-strided", "fp8", "separate", 9, ""),
        ("nt-gelu", "bf16", "cublas", 9, "a batch"), ("nt-grouped", "bf16", "cublas", 9, ""),
        ("nt-grouped", "bf16", "cublas", 8, "9 and 10"), ("nt-gelu", "bf16", "separate", 8, ""),
    ],
)  # fmt: skip
def test_what_a_library_has_no_single_call_for_is_skipped_with_the_reason(
    layout: str, precision: str, backend: str, capability: int, why: str
) -> None:
    target = Target("cuda", "a GPU", (capability, 0), 132)
    with pytest.raises(CannotRun, match=why) if why else contextlib.nullcontext():
        OPS["gemm"].check(Case(Gemm(64, 64, 64, layout, 4), precision, backend), target)


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


def test_the_price_counts_the_rounding_of_inputs_and_products_of_zeros_are_zero() -> None:
    """Expected sizes: sqrt(2) x the rounding of one operand, u/sqrt(3) of a binade on average."""
    prices = {}
    for name in ("fp32", "fp16", "bf16", "fp8-e4m3", "int8"):
        prices[name] = total_error(float_operands(256, 256, 256, PRECISIONS[name]))
    assert prices["fp32"] < 1e-6
    assert 2e-4 < prices["fp16"] < 6e-4
    assert 2e-3 < prices["bf16"] < 5e-3
    assert 2e-2 < prices["fp8-e4m3"] < 6e-2
    assert 5e-3 < prices["int8"] < 3e-2
    right = float_operands(8, 8, 8, PRECISIONS["fp32"], "zeros")
    assert relative_error(right) == 0.0
    assert relative_error(replace(right, c=right.c + 1)) > PRECISIONS["fp32"].rel_tolerance
    assert checking.ratio(right.c + 1, right.c) == 8
    operands = float_operands(64, 64, 64, PRECISIONS["bf16"])
    swapped = replace(operands, c=(operands.b.double() @ operands.a.double()).bfloat16())
    assert relative_error(swapped) > 0.5


# ---------------------------------------------------------------- what cannot run


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
