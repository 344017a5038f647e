"""Tables of tuned configurations: precision -> section -> key -> label, one file a device.

The repository's tables are in the op's folder tuned/; what a user tunes goes to the user's
cache directory and comes first. A section is a layout or a pass, a key the size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, cast

from kernels.case import Target
from kernels.error_words import first_line
from kernels.files import read_json_file, write_atomically
from kernels.gpus import tuned_alike
from kernels.user_folders import cache_folder, warn

NEAR = 1.5  # a size this many times larger or smaller, all dimensions together, may lend its entry
HALF = 0.5  # what a padding of 0 counts as, among sizes

Table = dict[str, dict[str, dict[str, str]]]
Size = tuple[int, ...]


def slug(device_name: str) -> str:
    """File name of a device's table: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def tables_for(target: Target) -> tuple[str, ...]:
    """The devices whose tables a target uses: similar ones, then its own, which overrides them."""
    return (*tuned_alike(target.capability, target.sm_count), target.name)


def nearest(
    listed: Mapping[str, str], size: Size, usable: Callable[[Size, str], bool], reach: float = NEAR
) -> tuple[Size, str] | None:
    """(size, label) of the nearest usable entry in reach, the exact size first; None if there is
    none.

    `listed` maps keys such as "MxNxK", of whose numbers `size` has as many, to labels; `reach` is
    the most that they may be `apart`. ValueError for a key with another number of numbers.
    """
    labels = {sizes_of(key): label for key, label in listed.items()}
    for other in sorted(labels, key=lambda other: apart(size, other)):
        if apart(size, other) > reach:
            return None
        if usable(other, labels[other]):
            return other, labels[other]
    return None


def sizes_of(key: str) -> Size:
    """The numbers of a key: (256, 56, 56, 64) of "256x56x56-64"."""
    return tuple(map(int, re.findall(r"\d+", key)))


def apart(one: Size, other: Size) -> float:
    """How far apart two sizes are: the ratios of their dimensions (each 1 or more) multiplied.

    A padding of 0 counts as HALF. ValueError for another number of dimensions.
    """
    pairs = ((x or HALF, y or HALF) for x, y in zip(one, other, strict=True))
    return prod(max(x / y, y / x) for x, y in pairs)


@dataclass(frozen=True)
class Tables:
    """The tables of one op: the repository's folder, and the user's folder of that name.

    `key` is the pattern of a size; `parsers` are the modules whose `parse` reads a label, or raises
    ValueError.
    """

    repository: Path
    key: str
    parsers: Sequence[str]
    user_folder: str = "."

    def section(self, device_names: Sequence[str], precision: str, name: str) -> dict[str, str]:
        """Keys -> labels; later devices override earlier ones, the user's tables all of them. A
        file that is missing counts as empty, entries that cannot be read as missing: of those a
        warning names the file.
        """
        found: dict[str, str] = {}
        for folder, device in product((self.repository, self._users()), device_names):
            if folder is not None:
                table = _read(self, folder / f"{slug(device)}.json")
                found.update(table.get(precision, {}).get(name, {}))
        return found

    def save(self, device_name: str, precision: str, name: str, key: str, label: str) -> Path:
        """Record a winner in the user's table; the file's path. OSError if it cannot be written."""
        folder = self._users()
        if folder is None:
            raise FileNotFoundError(2, "no home folder is known")
        path = folder / f"{slug(device_name)}.json"
        _read.cache_clear()
        table = _read(self, path)
        table.setdefault(precision, {}).setdefault(name, {})[key] = label
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(table, indent=1, sort_keys=True) + "\n")
        _read.cache_clear()
        return path

    def check_entry(self, key: str, label: object) -> None:
        """ValueError for a key that is no size, and a label that is no configuration."""
        if not re.fullmatch(self.key, key):
            raise ValueError(f"{key[:40]!r} is no size")
        if not isinstance(label, str):
            raise ValueError(f"{key}: the configuration is no text")
        if not any(_parses(parser, label) for parser in self.parsers):
            raise ValueError(f"{label[:40]!r} is no configuration")

    def _users(self) -> Path | None:
        folder = cache_folder("tuned")
        return folder and folder / self.user_folder


def _parses(module: str, label: str) -> bool:
    try:
        import_module(module).parse(label)
    except ValueError:
        return False
    return True


@cache
def _read(tables: Tables, path: Path) -> Table:
    """The entries of a file that can be read; a warning names the file where some cannot."""
    found: Table = {}
    try:
        for precision, section, key, label in _entries(read_json_file(path)):
            try:
                tables.check_entry(key, label)
                found.setdefault(precision, {}).setdefault(section, {})[key] = label
            except ValueError as error:
                _warn(path, error)
    except (FileNotFoundError, NotADirectoryError):
        pass  # no table is the usual case
    except (OSError, ValueError) as error:
        _warn(path, error)
    return found


def _entries(table: Any) -> Iterator[tuple[str, str, str, Any]]:
    """(precision, section, key, label) of all entries. ValueError for what is no table."""
    for precision, sections in _object(table).items():
        for section, labels in _object(sections).items():
            for key, label in _object(labels).items():
                yield precision, section, key, label


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no table of configurations")
    return cast("dict[str, Any]", value)


def _warn(path: Path, error: Exception) -> None:
    said = error.strerror if isinstance(error, OSError) else first_line(error)
    warn(f"{path} has entries that cannot be read ({said}): they are left out")
