"""What halfway prints of the committed run files is what it printed before.

A difference that is meant is kept by `python tests/samples/golden.py --write`, and its commit says
why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from samples import golden


@pytest.fixture(autouse=True)
def _nothing_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)


def names(*starts: str) -> list[str]:
    """The kept names that begin so, whole up to a space or a number of options."""
    return [name for name in golden.kept() if name.startswith(starts)]


@pytest.mark.parametrize("path", golden.run_files(), ids=golden.name_of)
def test_a_run_file_is_shown_as_before(path: Path) -> None:
    found = list(golden.screens(path))
    assert golden.differences(found, [name for name, _ in found]) == []


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("help/", golden.helps),
        ("compare/", golden.comparisons),
        ("keys/", golden.case_keys),
        ("labels/", golden.labels),
        ("variants/", golden.variants),
    ],
)
def test_so_is_all_that_follows_from_the_files(
    kind: str, items: Callable[[], Iterator[golden.Item]]
) -> None:
    assert golden.differences(items(), names(kind)) == []


def test_no_run_file_has_gone() -> None:
    shown = {golden.name_of(path) for path in golden.run_files()}
    assert {name.split()[0].removeprefix("show/") for name in names("show/")} == shown


def of_this_torch() -> bool:
    """Whether recorded calls of this version of torch are kept."""
    return bool(names(golden.ops_of("")))


@pytest.mark.slow
@pytest.mark.skipif(not of_this_torch(), reason="kept for another version of torch")
@pytest.mark.parametrize("network", golden.VALIDATED)
def test_a_network_s_step_is_recorded_as_before(network: str) -> None:
    found = list(golden.op_lists([network]))
    assert golden.differences(found, names(golden.ops_of(network) + " ")) == []


@pytest.mark.slow
@pytest.mark.skipif(not of_this_torch(), reason="kept for another version of torch")
@pytest.mark.parametrize("network", golden.IMAGES)
def test_a_network_s_products_are_found_as_before(network: str) -> None:
    found = list(golden.product_lists([network]))
    assert golden.differences(found, [name for name, _ in found]) == []
