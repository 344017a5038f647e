"""Sizes at the limits of what one run takes, and of fewer than three dimensions."""

from __future__ import annotations

import pytest

from microbench.errors import UserError
from microbench.sweep import parse_numbers, parse_sizes

MOST = 4096


@pytest.mark.parametrize("before", ["", "1,", "1..1:+1,"])
def test_a_run_takes_4096_sizes_and_no_more(before: str) -> None:
    """Repeated ones are read too, before they are left out."""
    last = MOST - bool(before)
    assert parse_numbers(f"{before}1..{last}:+1", "--batch") == list(range(1, last + 1))
    with pytest.raises(UserError, match=str(MOST)):
        parse_numbers(f"{before}1..{last + 1}:+1", "--batch")


@pytest.mark.parametrize(
    ("text", "rank", "sizes"),
    [
        ("64x256", 2, [(64, 256)]), ("8,64x256", 2, [(8, 8), (64, 256)]), ("3", 1, [(3,)]),
        ("2x3x4,5", 3, [(2, 3, 4), (5, 5, 5)]), ("1..4", 2, [(1, 1), (2, 2), (4, 4)]),
    ],
)  # fmt: skip
def test_a_size_has_as_many_numbers_as_its_rank(
    text: str, rank: int, sizes: list[tuple[int, ...]]
) -> None:
    assert parse_sizes(text, "--channels", rank) == sizes


@pytest.mark.parametrize(("text", "rank"), [("2x3", 1), ("2x3", 3), ("2x3x4", 2)])
def test_no_other_number_of_dimensions_is_read(text: str, rank: int) -> None:
    with pytest.raises(UserError, match=text):
        parse_sizes(text, "--channels", rank)
