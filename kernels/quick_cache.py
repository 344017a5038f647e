"""What quick tunes found, in the user's cache: one file a device, Triton version and kernel source.

A file maps "precision/layout/dimensions" to [label, candidates]. A change of a kernel, or another
Triton, starts another file, so that nothing is taken over from kernels that are no more.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, cast

from kernels.case import Case, Target
from kernels.error_words import first_line
from kernels.files import read_json_file, write_atomically
from kernels.tuned import slug
from kernels.user_folders import cache_folder, warn

FOLDER = "quick-tuned"
MOST_CANDIDATES = 1000  # that an entry may claim
SOURCES = (  # below this package
    "gemm/triton/*.py", "conv/triton/*.py", "tile_model.py", "choosing.py", "triton_config.py",
)  # fmt: skip
HASH_LETTERS = 12
RUN_AS = {"nchw": "nhwc"}  # our convolutions copy to this layout first: one winner serves both

Found = tuple[str, int]

_found_here: dict[tuple[str, Target, str], Found] = {}  # in this process, kept on disk or not


def key(case: Case, target: Target) -> str:
    """Identity of what is tuned: precision, layout, every dimension, and what was left out; the
    data do not matter.
    """
    dims = ",".join(f"{name}={value}" for name, value in case.dims.items())
    without = f"/without {','.join(target.without)}" if target.without else ""
    layout = RUN_AS.get(case.layout, case.layout)
    return f"{case.precision_name}/{layout}/{dims}{without}"


def path(case: Case, target: Target) -> Path | None:
    """The file of a case's op on a device; None where the user has no cache folder."""
    folder = cache_folder(FOLDER)
    if folder is None:
        return None
    device = f"{slug(target.name)}-{target.sm_count}sm"
    return folder / f"{case.op}-{device}-triton{triton_version()}-{source_hash()}.json"


def find(case: Case, target: Target) -> Found | None:
    """(label, how many candidates were timed) of a case; None where it was not tuned, or its entry
    cannot be read. A warning names a file that is damaged.
    """
    own, file = _found_here.get(_here(case, target)), path(case, target)
    return own or (None if file is None else _read(file).get(key(case, target)))


def save(case: Case, target: Target, label: str, candidates: int) -> None:
    """Keep a winner. OSError where the file cannot be written; this process knows it even so."""
    _found_here[_here(case, target)] = (label, candidates)
    file = path(case, target)
    if file is None:
        raise FileNotFoundError(2, "no home folder is known")
    _read.cache_clear()  # another process may have written meanwhile
    found = {**_read(file), key(case, target): (label, candidates)}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(found, indent=0, sort_keys=True) + "\n")
    _read.cache_clear()


def forget() -> None:
    """Know only what is on disk: as a process that starts now."""
    _found_here.clear()
    _read.cache_clear()


def _here(case: Case, target: Target) -> tuple[str, Target, str]:
    return case.op, target, key(case, target)


@cache
def source_hash() -> str:
    """A hash of the kernels' source, and of what chooses among them."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for file in sorted(package.glob(pattern)):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:HASH_LETTERS]


@cache
def triton_version() -> str:
    """The installed Triton's version; "unknown" where it is not installed as a package."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("triton")
    except PackageNotFoundError:
        return "unknown"


@cache
def _read(file: Path) -> dict[str, Found]:
    try:
        value: Any = read_json_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        return _damaged(file, error)
    if not isinstance(value, dict):
        return _damaged(file, ValueError("it is no object"))
    found: dict[str, Found] = {}
    for name, entry in cast("dict[str, Any]", value).items():
        match entry:
            case [str(label), int(candidates)] if 1 <= candidates <= MOST_CANDIDATES:
                found[name] = label, candidates
            case _:
                pass  # as if it were not there
    return found


def _damaged(file: Path, error: Exception) -> dict[str, Found]:
    said = error.strerror if isinstance(error, OSError) else first_line(error)
    warn(f"{file} cannot be read ({said}): shapes are tuned again")
    return {}
