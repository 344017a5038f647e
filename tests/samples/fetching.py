"""What tests of data and loaders do with feeds and with errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from e2e.data.datasets import Options, open_data
from e2e.data.types import Data, Loader
from microbench.errors import UserError


def message(act: Callable[[], object]) -> str:
    """The one line of the UserError that this raises."""
    with pytest.raises(UserError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def drawn(feed: Loader, count: int, channels_last: bool = False) -> list[tuple[Tensor, Tensor]]:
    """The next batches of a loader, which is closed then."""
    try:
        return [feed.to_device(next(feed), channels_last) for _ in range(count)]
    finally:
        feed.close()


def same(one: Iterable[tuple[Tensor, Tensor]], other: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Whether these are the same batches."""
    pairs = list(zip(one, other, strict=True))
    return all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


def opened(root: Path, loader: str = "", *, size: int = 16, **options: Any) -> Data:
    """The data of a folder, for a network that takes square images."""
    return open_data(f"folder:{root}", Options((3, size, size), loader=loader, **options))
