"""Commands are run here many times: their children need not import torch each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from samples.commands import warm_children
from samples.shop import Shop


@pytest.fixture(scope="session", autouse=True)
def _warm() -> Iterator[None]:
    with warm_children():
        yield


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))
