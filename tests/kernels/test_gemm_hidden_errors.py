"""Errors that a norm would drown, against the same sums in NumPy's float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.case import Candidate, Case, Target
from kernels.checking import CHECKSUM_SLACK, random_signs
from kernels.gemm import check
from kernels.gemm.check import checksum_error, hidden_error, launch_poisoned
from kernels.gemm.operands import OperandPool, Operands

CPU = Target("cpu", "a CPU", None, 2)
SEED = 7
sizes = st.integers(1, 40)


def wrong(m: int, n: int, k: int, planted: float, column: bool) -> Operands:
    """Operands whose C is off by `planted` in its last row, or column."""
    case = Case("gemm", {"m": m, "n": n, "k": k}, "fp64", "cpu")
    made = OperandPool(CPU, 0).get(case)
    product = made.a @ made.b
    product[(slice(None), -1) if column else (-1, slice(None))] += planted
    return replace(made, c=product)


def expected_checksum(operands: Operands, size: float, transposed: bool) -> float:
    a, b, c = (matrix.numpy() for matrix in (operands.a, operands.b, operands.c))
    if transposed:
        a, b, c = b.T, a.T, c.T
    torch.manual_seed(SEED)
    signs = random_signs(c.shape[1], torch.device("cpu")).numpy()
    return float(np.abs(c @ signs - a @ b @ signs).max() / (size * np.sqrt(c.shape[1])))


@given(sizes, sizes, sizes, st.floats(0.5, 10.0), st.booleans(), st.booleans(), st.floats(0.1, 9.0))
def test_a_checksum_is_relative_to_what_such_sums_come_to(
    m: int, n: int, k: int, planted: float, column: bool, transposed: bool, size: float
) -> None:
    operands = wrong(m, n, k, planted, column)
    expected = expected_checksum(operands, size, transposed)
    torch.manual_seed(SEED)
    assert checksum_error(operands, size, transposed) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("chunk", [1, 30, 100, 10**6])
def test_bands_change_no_checksum(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = wrong(23, 41, 9, 3.0, column=False)
    expected = [expected_checksum(operands, 1.0, transposed) for transposed in (False, True)]
    monkeypatch.setattr(check, "CHUNK_ELEMENTS", chunk)
    for transposed in (False, True):
        torch.manual_seed(SEED)
        found = checksum_error(operands, 1.0, transposed)
        assert found == pytest.approx(expected[transposed])


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize(("m", "n"), [(64, 64), (16, 64), (64, 16), (9, 9)])
def test_the_worst_line_counts_over_what_chance_allows(m: int, n: int, column: bool) -> None:
    right = wrong(m, n, 32, 0.0, column)
    operands = wrong(m, n, 32, 20.0, column)
    reference, got = right.c, operands.c
    lines = got.numpy() - reference.numpy(), reference.numpy()
    worst = max(
        np.sqrt((lines[0] ** 2).sum(axis)).max() / np.sqrt((lines[1] ** 2).sum(axis).mean())
        for axis in (0, 1)
    )
    # No checksum sees it: C itself is right, and only the sample's elements are wrong.
    found = hidden_error(right, got, reference)
    assert found == pytest.approx(worst / (1 + CHECKSUM_SLACK / min(m, n) ** 0.5))


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize(("m", "n"), [(200, 8), (8, 200), (64, 64)])
def test_what_no_sampled_line_shows_is_found_by_either_checksum(
    m: int, n: int, column: bool
) -> None:
    operands = wrong(m, n, 32, 50.0, column)
    reference = wrong(m, n, 32, 0.0, column).c
    size = float(np.sqrt((reference.numpy() ** 2).mean()))
    torch.manual_seed(SEED)
    signs = [random_signs(each, torch.device("cpu")).numpy() for each in (n, m)]
    difference = operands.c.numpy() - reference.numpy()
    sums = [
        np.abs(difference @ signs[0]).max() / n**0.5,
        np.abs(difference.T @ signs[1]).max() / m**0.5,
    ]
    torch.manual_seed(SEED)
    found = hidden_error(operands, reference, reference)
    assert found == pytest.approx(max(sums) / size / CHECKSUM_SLACK)


@pytest.mark.parametrize("allocates", [False, True])
def test_a_result_of_its_own_memory_is_allocated_where_poison_was_left(
    allocates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = wrong(8, 8, 8, 0.0, column=False)
    poisoned: list[int] = []
    monkeypatch.setattr(check, "poison", lambda tensor: poisoned.append(tensor.data_ptr()))
    product = operands.a @ operands.b
    candidate = Candidate("torch", lambda: product, allocates=allocates)
    assert torch.equal(launch_poisoned(operands, candidate).c, product)
    own, *others = poisoned
    assert own == operands.c.data_ptr()
    assert len(others) == allocates
    assert own not in others
