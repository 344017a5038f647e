"""What a folder of made data says of itself: manifest.json, and files.tsv with every image.

manifest.json is there from the first moment, so that what is half made is known for what it is;
files.tsv grows while images are made, and manifest.json has its checksum when all are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import PIL
from PIL import features

from e2e.data.synthetic_jpeg.plan import Plan
from microbench.errors import UserError

FORMAT = 1  # raised when other pixels or other files are made
WHAT = "images made by halfway"
MANIFEST, FILES = "manifest.json", "files.tsv"
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


class Entry(NamedTuple):
    """An image's file: its number, bytes, checksum, and pixels."""

    number: int
    size_bytes: int
    sha256: str
    width: int
    height: int


class Shard(NamedTuple):
    """A tar file: its name, bytes and checksum."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What was to be made, and by which encoder; `files_sha256` is None until all is there."""

    plan: Plan
    software: Mapping[str, str]
    files_sha256: str | None = None
    shards: tuple[Shard, ...] = ()


def software() -> dict[str, str]:
    """Versions that the files' bytes depend on."""
    turbo = features.version_feature("libjpeg_turbo")
    jpeg = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {features.version_codec('jpg')}"
    return {"pillow": PIL.__version__, "jpeg": jpeg}


def read_manifest(folder: Path) -> Manifest | None:
    """None where there is no manifest; UserError when it is another program's or damaged."""
    path = folder / MANIFEST
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if content["what"] != WHAT:
            raise ValueError(content["what"])
        version = content["format"]
        if version != FORMAT:
            raise UserError(
                f"{folder} was made by another version (format {version}, not {FORMAT}); "
                "name another folder"
            )
        return Manifest(
            Plan(content["images"], content["classes"], content["seed"]), content["software"],
            content["files_sha256"], tuple(Shard(**shard) for shard in content["shards"]),
        )  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path} is not of made data, or damaged; name another folder") from None


def write_manifest(folder: Path, manifest: Manifest, entries: Iterable[Entry] = ()) -> None:
    """Replace the manifest; the entries are what was measured."""
    content = {
        "what": WHAT,
        "format": FORMAT,
        **asdict(manifest.plan),
        "software": dict(manifest.software),
        "files_sha256": manifest.files_sha256,
        "shards": [shard._asdict() for shard in manifest.shards],
        "measured": measured(list(entries)),
    }
    put(folder / MANIFEST, f"{json.dumps(content, indent=1)}\n".encode())


def measured(entries: list[Entry]) -> dict[str, dict[str, float]]:
    """Mean, spread and percentiles of bytes, width and height."""
    columns = {
        "bytes": [entry.size_bytes for entry in entries],
        "width": [entry.width for entry in entries],
        "height": [entry.height for entry in entries],
    }
    return {name: _spread(values) for name, values in columns.items() if values}


def _spread(values: list[int]) -> dict[str, float]:
    levels = np.percentile(values, PERCENTILES)
    return {
        "mean": round(fmean(values), 1),
        "std": round(float(np.std(values)), 1),
        "min": min(values),
        **{f"p{at}": round(float(level)) for at, level in zip(PERCENTILES, levels, strict=True)},
        "max": max(values),
    }


def line_of(plan: Plan, entry: Entry) -> str:
    """An image's line in files.tsv: path, bytes, sha256, width, height."""
    return "\t".join(map(str, (plan.path(entry.number), *entry[1:]))) + "\n"


def read_entries(folder: Path, plan: Plan) -> dict[int, Entry]:
    """What files.tsv lists, by the image's number; torn and foreign lines are left out."""
    try:
        text = (folder / FILES).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[int, Entry] = {}
    for line in text.splitlines():
        path, *rest = line.split("\t")
        index = plan.index_of(path)
        if index is not None and len(rest) == 4 and len(rest[1]) == 64:
            size, digest, width, height = rest
            if size.isdecimal() and width.isdecimal() and height.isdecimal():
                found[index] = Entry(index, int(size), digest, int(width), int(height))
    return found


def put(path: Path, raw: bytes) -> None:
    """Write a file that is never seen half written."""
    part = part_of(path)
    try:
        part.write_bytes(raw)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def part_of(path: Path) -> Path:
    """What a file is called until it is whole."""
    return path.with_name(f".{path.name}.part")


def is_part(name: str) -> bool:
    """Whether a file was left half written."""
    return name.startswith(".") and name.endswith(".part")


def digest_of(path: Path) -> str:
    """A file's sha256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of_file(path: Path) -> int | None:
    """Bytes; None when there is no such file."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None
