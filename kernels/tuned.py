"""Tables of tuned configurations: precision -> section -> key -> label, one file a device.

The repository's tables are in the op's folder tuned/; what a user tunes goes to the user's
cache directory and comes first. A section is a layout or a pass, a key the size.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

from kernels.case import Target
from kernels.files import write_atomically
from kernels.gpus import tuned_alike

NEAR = 1.5  # a size this many times larger or smaller, all dimensions together, may lend its entry

Table = dict[str, dict[str, dict[str, str]]]
Size = tuple[int, ...]


def slug(device_name: str) -> str:
    """File name of a device's table: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def user_directory(name: str = "tuned") -> Path:
    """The user's cache folder for tables, or for what else `name` says:
    $XDG_CACHE_HOME/halfway/NAME, or ~/.cache/halfway/NAME. It need not exist.
    """
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "halfway" / name


def tables_for(target: Target) -> tuple[str, ...]:
    """The devices whose tables a target uses: similar ones, then its own, which overrides them."""
    return (*tuned_alike(target.capability, target.sm_count), target.name)


def nearest(
    listed: Mapping[str, str], size: Size, usable: Callable[[Size, str], bool]
) -> str | None:
    """The label for the exact size, else that of the nearest usable one in reach, else None.

    `listed` maps "MxNxK" to labels. Sizes are as far apart as the ratios of their dimensions (each
    1 or more) multiplied; the reach is NEAR = 1.5 times. ValueError for a key that is not numbers
    joined by "x", or has another number of them than `size`.
    """
    labels = {tuple(map(int, key.split("x"))): label for key, label in listed.items()}

    def distance(other: Size) -> float:
        return sum(abs(log2(x / y)) for x, y in zip(size, other, strict=True))

    for other in sorted(labels, key=distance):
        if distance(other) > log2(NEAR):
            return None
        if usable(other, labels[other]):
            return labels[other]
    return None


@cache
def _read(path: Path) -> Table:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # no table is the usual case; a damaged cache costs its entries, not the run
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True)
class Tables:
    """The tables of one op: the repository's folder, and the user's folder of that name."""

    repository: Path
    user_folder: str = "."

    def _directories(self) -> tuple[Path, Path]:
        return self.repository, user_directory() / self.user_folder

    def section(self, device_names: Sequence[str], precision: str, name: str) -> dict[str, str]:
        """Keys -> labels; later devices override earlier ones, the user's tables all of them. A
        file that is missing or damaged counts as empty.
        """
        found: dict[str, str] = {}
        for directory, device in product(self._directories(), device_names):
            table = _read(directory / f"{slug(device)}.json")
            found.update(table.get(precision, {}).get(name, {}))
        return found

    def save(self, device_name: str, precision: str, name: str, key: str, label: str) -> Path:
        """Record a winner in the user's table; the file's path. OSError if it cannot be written."""
        path = self._directories()[1] / f"{slug(device_name)}.json"
        _read.cache_clear()
        table = _read(path)
        table.setdefault(precision, {}).setdefault(name, {})[key] = label
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(table, indent=1, sort_keys=True) + "\n")
        _read.cache_clear()
        return path
