"""The parts of every check: relative sizes, poison, random signs and the slack that they need."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.checking import (
    CHECKSUM_SLACK,
    CHECKSUMS,
    filled,
    poison,
    random_signs,
    ratio,
    spoil,
    typical,
    unwritten,
)

CPU = torch.device("cpu")
numbers = st.lists(st.floats(-1e3, 1e3).filter(lambda x: x == 0 or abs(x) > 1e-3), min_size=1)


@given(numbers, st.floats(-2.0, 2.0).filter(lambda x: abs(x) > 1e-3))
def test_a_ratio_is_of_the_norms(values: list[float], factor: float) -> None:
    reference = torch.tensor(values, dtype=torch.float64)
    norm = float(np.linalg.norm(values))
    found = ratio(factor * reference, reference)
    assert found == pytest.approx(abs(factor) if norm else 0.0)
    zero = torch.zeros_like(reference)
    assert ratio(reference, zero) == pytest.approx(norm)
    assert ratio(zero, reference) == 0


@example([0.25, 0.25])
@example([0.0, 0.0])
@given(numbers)
def test_the_typical_size_is_the_root_mean_square(values: list[float]) -> None:
    found = float(typical(torch.tensor(values, dtype=torch.float64)))
    assert found == pytest.approx(float(np.sqrt(np.mean(np.square(values)))) or 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32])
def test_what_was_not_written_is_counted(dtype: torch.dtype) -> None:
    output = torch.zeros(6, 7, dtype=dtype)
    poison(output)
    assert unwritten(output) == 42
    output[1:3, 2:5] = 1
    assert unwritten(output) == 36
    output[:] = torch.arange(-21, 21).reshape(6, 7)
    assert unwritten(output) == 0


def test_what_a_launch_returned_in_memory_of_its_own_is_poisoned() -> None:
    output, *others = (torch.ones(2, 3) for _ in range(4))
    before, own, after = sorted(others, key=lambda tensor: tensor.data_ptr())
    spoil(own, output, (before, after))
    assert unwritten(own) == own.numel()
    double = before.double()
    for kept in (before, after[1:], double, None, 3):
        spoil(kept, output, (before, after))
    assert unwritten(before) == unwritten(after) == unwritten(double) == unwritten(output) == 0


def test_signs_are_plus_and_minus_one_and_as_many_of_each() -> None:
    torch.manual_seed(0)
    signs = random_signs(20_000, CPU)
    assert signs.shape == (20_000, CHECKSUMS)
    assert signs.dtype == torch.float64
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert float(signs.mean(0).abs().max()) < 0.03
    assert all(not torch.equal(a, b) for a, b in pairwise(signs.t()))


def test_the_slack_is_a_little_more_than_the_largest_of_many_sums() -> None:
    """Sums of a right product's rounding, over thousands of rows, in units of their spread."""
    rows = 10_000 * CHECKSUMS
    largest = [
        float(np.abs(np.random.default_rng(i).standard_normal(rows)).max()) for i in range(9)
    ]
    assert 1.25 * np.median(largest) < CHECKSUM_SLACK < 1.5 * np.median(largest)
    assert max(largest) < CHECKSUM_SLACK


@pytest.mark.parametrize(
    "returned",
    [torch.zeros(3, 4), torch.zeros(2, 5), torch.zeros(2, 3), torch.zeros(2), torch.zeros(1, 4),
     torch.zeros(2, 4, 1), torch.zeros(2, 4, dtype=torch.float16),
     torch.zeros(2, 4, dtype=torch.int32)],
)  # fmt: skip
def test_another_shape_or_type_is_refused(returned: torch.Tensor) -> None:
    output = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="returned"):
        filled(returned, output)
    assert filled(None, output) is output
    assert filled(right := torch.ones(2, 4), output) is right
