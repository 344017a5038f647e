"""Commands are run here many times: their children need not import torch each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from samples.commands import warm_children


@pytest.fixture(scope="session", autouse=True)
def _warm() -> Iterator[None]:
    with warm_children():
        yield
