"""Values of JSON as the types that a dataclass declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from microbench.results.codec import decode
from microbench.results.types import Amount, AtLeastOne, Count, Json, Positive, Share


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
        ({"inner": []}, "inner"), ({"inner": {}}, "inner.size is missing"),
        ({"inner": {"size": 1.0}}, "inner.size"), ({"inner": {"size": True}}, "inner.size"),
        ({"inner": {"size": 1, "share": "2"}}, "inner.share"),
        ({"inner": {"size": 1, "share": False}}, "inner.share"),
        ({"pair": [3]}, "pair"), ({"pair": [3, 4, 5]}, "pair"), ({"pair": {}}, "pair"),
        ({"pair": [3.5, 4]}, "pair[0]"), ({"pair": [3, "4"]}, "pair[1]"),
        ({"many": [{"size": 5}, {"size": "6"}]}, "many[1].size"), ({"many": [5]}, "many[0]"),
        ({"rates": {"x": "7"}}, "rates[...]"), ({"rates": []}, "rates"),
        ({"either": 1.5}, "either"), ({"on": 1}, "on"),
    ],
)  # fmt: skip
def test_another_type_is_refused_by_the_name_of_its_place(
    change: dict[str, Any], place: str
) -> None:
    said = place if "missing" in place else f"{place}: expected "
    for where, full in (("", said), ("results[3]", f"results[3].{said}")):
        with pytest.raises(ValueError, match=r"expected|missing") as raised:
            decode(Outer, WHOLE | change, where)
        assert str(raised.value).startswith(full)
        assert "`" not in str(raised.value)


def test_an_object_is_a_dictionary() -> None:
    assert decode(Json, {"a": 1}, "x") == {"a": 1}
    for value, place in ((None, "x"), ("a", "x"), ([], "")):
        with pytest.raises(ValueError, match=f"{place or 'the file'}: expected object"):
            decode(Json, value, place)


@pytest.mark.parametrize(
    ("kind", "least", "below", "beyond"),
    [
        (Positive, 5e-324, 0, None), (Amount, 0, -5e-324, None), (Share, 0, -1e-9, 1.0000001),
        (Count, 0, -1, 2**63), (AtLeastOne, 1, 0, 10**400),
    ],
)  # fmt: skip
def test_numbers_of_a_file_have_bounds(kind: Any, least: Any, below: Any, beyond: Any) -> None:
    assert decode(kind, least, "x") == least
    for wrong in (below, beyond, "1"):
        with pytest.raises(ValueError, match="x: expected"):
            decode(kind, wrong, "x")
