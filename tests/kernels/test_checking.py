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
    RENEWED_BYTES,
    poison,
    random_signs,
    ratio,
    renewal,
    results,
    typical,
    unwritten,
)
from kernels.error_words import first_line, one_line

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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int8, torch.float8_e4m3fn])
def test_new_operands_are_the_values_of_the_old_ones_in_other_places(dtype: torch.dtype) -> None:
    large = torch.arange(4 * 96).reshape(4, 96).to(dtype)
    small = torch.arange(90.0).reshape(9, 10).to(dtype).t()  # its memory runs the other way
    image = small.reshape(1, 10, 3, 3).contiguous(memory_format=torch.channels_last)
    for tensor in (small, image):
        before, place = tensor.double(), tensor.data_ptr()
        seen = {str(before.tolist())}
        renew = renewal((large, tensor))
        for _ in range(8):
            renew()
            seen.add(str(tensor.double().tolist()))
        assert len(seen) > 4
        assert tensor.data_ptr() == place
        assert torch.equal(tensor.double().flatten().sort()[0], before.flatten().sort()[0])
    assert torch.equal(large, torch.arange(4 * 96).reshape(4, 96).to(dtype))


def test_of_a_large_operand_a_part_is_new_and_of_tiny_ones_nothing_need_be() -> None:
    rows = torch.arange(RENEWED_BYTES).reshape(-1, 1024)  # int64: eight times what is renewed
    before = rows.clone()
    renew = renewal((rows, rows))
    renew()
    renew()  # one alone may stay where it is
    changed = (rows != before).any(dim=1)
    assert changed[: len(rows) // 8].all()
    assert not changed[len(rows) // 8 :].any()
    one = torch.ones(1, 1)
    renewal((one, one))()
    assert one.item() == 1


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
        results(returned, [output])
    assert results(None, [output])[0] is output
    assert results(right := torch.ones(2, 4), [output])[0] is right


# ---------------------------------------------------------------- what an exception says, in a line


@pytest.mark.parametrize(
    ("error", "first", "whole"),
    [
        *((NotImplementedError(text), "NotImplementedError", "NotImplementedError")
          for text in ("", "\n", "  \n \n")),
        (ValueError("\nwrong size\nat line 3"), "wrong size", "ValueError: wrong size"),
    ],
)  # fmt: skip
def test_an_error_is_its_first_line_or_its_type(error: Exception, first: str, whole: str) -> None:
    assert (first_line(error), one_line(error)) == (first, whole)
