"""The tables of tuned configurations: precision -> layout -> "MxNxK" -> label, one file a device.

The repository's tables stand beside this module in tuned/; what a user tunes goes to the user's
cache directory and comes first.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent / "tuned"
NEAR = 1.5  # a size this many times larger or smaller, all dimensions together, may lend its entry

Table = dict[str, dict[str, dict[str, str]]]
Size = tuple[int, int, int]


def slug(device_name: str) -> str:
    """File name of a device's table: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def user_directory() -> Path:
    """Where a user's own tables live."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "halfway" / "tuned"


@cache
def _read(path: Path) -> Table:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # no table is the usual case; a damaged cache costs its entries, not the run
    return content if isinstance(content, dict) else {}


def entries(device_names: Sequence[str], precision: str, layout: str) -> dict[Size, str]:
    """Tuned sizes -> labels; later devices override earlier ones, the user's all of them."""
    found: dict[Size, str] = {}
    for directory, name in product((REPOSITORY, user_directory()), device_names):
        table = _read(directory / f"{slug(name)}.json")
        for key, label in table.get(precision, {}).get(layout, {}).items():
            m, n, k = (int(size) for size in key.split("x"))
            found[m, n, k] = label
    return found


def nearest(
    listed: Mapping[Size, str], size: Size, usable: Callable[[Size, str], bool]
) -> str | None:
    """The label for the exact size, else that of the nearest usable one in reach, else None."""

    def distance(other: Size) -> float:
        return sum(abs(log2(x / y)) for x, y in zip(size, other, strict=True))

    for other in sorted(listed, key=distance):
        if distance(other) > log2(NEAR):
            return None
        if usable(other, listed[other]):
            return listed[other]
    return None


def save(device_name: str, precision: str, layout: str, size: Size, label: str) -> Path:
    """Record a winner in the user's table; the file's path."""
    path = user_directory() / f"{slug(device_name)}.json"
    _read.cache_clear()
    table = _read(path)
    table.setdefault(precision, {}).setdefault(layout, {})["x".join(map(str, size))] = label
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(path)
    _read.cache_clear()
    return path
