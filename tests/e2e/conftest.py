"""Stores of measured times and images on a disk of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples.feeding import flat_folder

from e2e.prediction.timer import CallTime
from e2e.training.store import Store


@pytest.fixture
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store[CallTime]:
    """Nothing is known; other stores of the test are beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Store({"name": "a CPU"}, {}, "calls", CallTime)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store[CallTime]:
    """Of all tests of a file: calls are measured once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return Store({"name": "a CPU"}, {}, "calls", CallTime)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of flat images."""
    return flat_folder(tmp_path / "pictures")
