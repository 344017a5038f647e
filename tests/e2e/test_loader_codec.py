"""What a loader's measurement says, and that a run file keeps all of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.results.loader_types import LoadBlock, LoadCase, Loading, from_json, to_json
from microbench.results.codec import run_from_json, run_to_json
from microbench.results.types import Run

CASE = LoadCase("made", "torchvision", 128, "3x224x224", workers=4)
seconds = st.floats(1e-6, 1e6)
blocks = st.builds(
    LoadBlock, images=st.integers(1, 10**9), wall_s=seconds, cpu_s=st.none() | seconds,
    read_bytes=st.none() | st.integers(0, 10**15),
)  # fmt: skip
loadings = st.builds(
    Loading, case=st.builds(LoadCase, st.text(), st.text(), st.integers(1, 10**6), st.text(),
                            st.integers(0, 99), st.booleans(), st.integers(0, 99)),
    status=st.just("ok"), reason=st.none() | st.text(),
    blocks=st.lists(blocks, min_size=1, max_size=5).map(tuple), first_s=st.none() | seconds,
)  # fmt: skip


def as_file(document: Any) -> Any:
    return json.loads(json.dumps(document, allow_nan=False))


@given(loadings)
def test_a_loading_comes_back_from_its_file(loading: Loading) -> None:
    assert from_json(as_file(to_json(loading)), "results[0]") == loading


@given(st.lists(loadings, max_size=3, unique_by=lambda loading: loading.case.key))
def test_a_run_keeps_its_loadings(found: list[Loading]) -> None:
    run = Run(("loader",), "now", {"name": "x", "kind": "cpu"}, {}, others=tuple(found))
    assert run_from_json(as_file(run_to_json(run))) == run
    assert [run.find(Loading, loading.case.key) for loading in found] == found


@given(st.lists(blocks, min_size=1, max_size=6))
def test_the_rate_is_between_those_of_its_blocks(found: list[LoadBlock]) -> None:
    loading = Loading(CASE, "ok", blocks=tuple(found))
    rates = [block.images / block.wall_s for block in found]
    assert min(rates) * 0.999999 <= (loading.per_s or 0) <= max(rates) * 1.000001


def test_a_rate_has_an_interval_and_a_cost() -> None:
    found = tuple(LoadBlock(400, wall_s, 2 * wall_s, 10**8) for wall_s in (0.9, 1.0, 1.1))
    loading = Loading(CASE, "ok", blocks=found)
    assert loading.per_s == pytest.approx(400)
    low, high = loading.ci95_per_s or (0, 0)
    assert 250 < low < 400 < high < 700
    assert loading.per_s_per_core == pytest.approx(200)
    assert loading.bytes_per_s == pytest.approx(1e8)
    assert Loading(CASE, "ok", blocks=found[:1]).ci95_per_s is None
    assert Loading(CASE, "skipped", "no DALI here").per_s is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "fine"}, "status is 'fine'"),
        ({"blocks": []}, "is ok and has no blocks"),
        ({"blocks": [{"images": 0, "wall_s": 1.0}]}, "no images"),
        ({"blocks": [{"images": 1, "wall_s": 0.0}]}, "no time above zero"),
        ({"blocks": [{"images": 1, "wall_s": 1.0, "cpu_s": -1.0}]}, "under zero"),
        ({"first_s": -1.0}, "first_s is -1.0"),
        ({"case": {"data": "made"}}, "case.loader is missing"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    good = as_file(to_json(Loading(CASE, "ok", blocks=(LoadBlock(4, 1.0),))))
    with pytest.raises(ValueError, match=said):
        from_json({**good, **change}, "results[0]")
