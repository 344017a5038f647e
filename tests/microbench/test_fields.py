"""Values of JSON as the types that a dataclass declares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from microbench.results.fields import as_float, as_object, decode


@dataclass(frozen=True)
class Inner:
    size: int
    share: float | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    pair: tuple[int, float]
    many: tuple[Inner, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    either: int | str | None = None
    anything: Any = None
    on: bool = False


WHOLE = {
    "name": "a", "inner": {"size": 1, "share": 2}, "pair": [3, 4],
    "many": [{"size": 5}, {"size": 6, "share": None}], "rates": {"x": 7}, "either": "b",
    "anything": [1, "2", None], "on": True, "unknown": 1,
}  # fmt: skip
READ = Outer(
    "a", Inner(1, 2.0), (3, 4.0), (Inner(5), Inner(6)), {"x": 7.0}, "b", [1, "2", None], True
)


def test_a_document_becomes_what_is_declared() -> None:
    found = decode(Outer, WHOLE, "")
    assert found == READ
    assert isinstance(found.pair[1], float)
    assert isinstance(found.pair[0], int)
    least = {"name": "a", "inner": {"size": 1}, "pair": [3, 4.0]}
    assert decode(Outer, least, "") == Outer("a", Inner(1), (3, 4.0))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": 1}, "name"), ({"name": None}, "name"),
        ({"inner": []}, "inner"), ({"inner": {}}, "inner.size"),
        ({"inner": {"size": 1.0}}, "inner.size"), ({"inner": {"size": True}}, "inner.size"),
        ({"inner": {"size": 1, "share": "2"}}, "inner.share"),
        ({"inner": {"size": 1, "share": False}}, "inner.share"),
        ({"pair": [3]}, "pair"), ({"pair": [3, 4, 5]}, "pair"), ({"pair": {}}, "pair"),
        ({"pair": [3.5, 4]}, "pair[0]"), ({"pair": [3, "4"]}, "pair[1]"),
        ({"many": [{"size": 5}, {"size": "6"}]}, "many[1].size"), ({"many": [5]}, "many[0]"),
        ({"rates": {"x": "7"}}, "rates.x"), ({"rates": []}, "rates"),
        ({"either": 1.5}, "either"), ({"on": 1}, "on"),
    ],
)  # fmt: skip
def test_another_type_is_refused_by_the_name_of_its_place(
    change: dict[str, Any], place: str
) -> None:
    for where, full in (("", place), ("results[3]", f"results[3].{place}")):
        with pytest.raises(ValueError, match=r"is|has") as raised:
            decode(Outer, WHOLE | change, where)
        assert str(raised.value).split(" ")[0] == full


@pytest.mark.parametrize("name", ["name", "inner", "pair"])
def test_what_has_no_default_must_be_there(name: str) -> None:
    for where in ("", "x"):
        with pytest.raises(ValueError, match="missing") as raised:
            decode(Outer, {key: value for key, value in WHOLE.items() if key != name}, where)
        assert str(raised.value).split(" ")[0] == (f"{where}.{name}" if where else name)


@given(st.integers(-(2**64), 2**64))
@example(2**63)
@example(-(2**63))
@example(2**64)
@example(2**63 - 1)
def test_whole_numbers_are_sizes_of_63_bits(value: int) -> None:
    if abs(value) < 2**63:
        assert decode(int, value, "x") == value
        return
    with pytest.raises(ValueError, match="large"):
        decode(int, value, "x")


@given(st.floats() | st.integers(-(2**70), 2**70) | st.booleans() | st.none() | st.text())
def test_a_float_is_a_finite_number(value: object) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        found = as_float(value, "x")
        assert type(found) is float
        assert found == float(value)
        return
    with pytest.raises(ValueError, match="x is"):
        as_float(value, "x")


def test_a_number_of_hundreds_of_digits_overflows() -> None:
    with pytest.raises(OverflowError):
        as_float(10**400, "x")


def test_an_object_is_a_dictionary() -> None:
    assert as_object({"a": 1}, "x") == {"a": 1}
    for value in ([], None, "a", 1):
        with pytest.raises(ValueError, match="x is"):
            as_object(value, "x")
