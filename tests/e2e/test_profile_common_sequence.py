"""A longest common sequence is in both lists, in order, and none is longer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.profile import aligned
from e2e.profile.aligned import in_common

lists = st.lists(st.integers(0, 3), max_size=14)


def is_within(some: Sequence[int], whole: Sequence[int]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in some)


@settings(max_examples=300, deadline=None)
@given(one=lists, other=lists)
def test_it_is_common_and_the_longest(one: list[int], other: list[int]) -> None:
    @cache
    def longest(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        if one[i] == other[j]:
            return 1 + longest(i + 1, j + 1)
        return max(longest(i + 1, j), longest(i, j + 1))

    places = in_common(one, other)
    assert places == sorted(set(places))
    assert is_within([one[place] for place in places], other)
    assert len(places) == longest(0, 0) == len(in_common(other, one))


def test_layers_that_repeat_match_but_for_what_is_missing() -> None:
    one = list(range(20)) * 100
    other = [item for place, item in enumerate(one) if place % 37]
    assert len(in_common(one, other)) == len(other)


def test_lists_with_little_in_common_are_matched_in_part(monkeypatch: Any) -> None:
    monkeypatch.setattr(aligned, "MOST_EDITS", 2)
    assert in_common([1, 2, 3, 9, 4, 5], [1, 7, 8, 3, 4, 6]) == [0, 2, 4]


@pytest.mark.parametrize(("one", "other"), [([], []), ([1], []), ([], [1]), ([1], [2])])
def test_nothing_in_common(one: list[int], other: list[int]) -> None:
    assert in_common(one, other) == []
