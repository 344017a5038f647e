"""Whether made data is as it was made: every file's bytes against their checksum."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.data.synthetic_jpeg.folder import files_in
from e2e.data.synthetic_jpeg.manifest import (
    FILES,
    digest_of,
    read_entries,
    read_manifest,
    size_of_file,
)
from microbench.device.host import usable_cores
from microbench.errors import UserError


def check(folder: Path) -> list[str]:
    """What is wrong, a line for each file: "missing: ...", "changed: ...", "not made: ...".

    Reads everything. UserError when the folder holds no made data.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(f"{folder} holds no made data")
    plan = manifest.plan
    entries = read_entries(folder, plan)
    if manifest.files_sha256 is None:
        return [f"not finished: {len(entries):,} of {plan.images:,} images are made"]
    troubles = [
        f"not listed: {plan.path(index)}" for index in range(plan.images) if index not in entries
    ]
    if size_of_file(folder / FILES) is None or digest_of(folder / FILES) != manifest.files_sha256:
        troubles.append(f"changed: {FILES}")
    listed = [
        (plan.path(index), entry.size_bytes, entry.sha256) for index, entry in entries.items()
    ]
    with ThreadPoolExecutor(usable_cores()) as threads:  # checksums let go of the interpreter
        troubles += filter(None, threads.map(_judge(folder), [*listed, *manifest.shards]))
    strange = [path for path in files_in(folder)[0] if plan.index_of(path) is None]
    return troubles + [f"not made: {path}" for path in strange]


def _judge(folder: Path) -> Callable[[tuple[str, int, str]], str | None]:
    def trouble(listed: tuple[str, int, str]) -> str | None:
        name, size_bytes, sha256 = listed
        path = folder / name
        found_bytes = size_of_file(path)
        if found_bytes is None:
            return f"missing: {name}"
        if found_bytes != size_bytes:
            return f"changed: {name} ({found_bytes:,} bytes, not {size_bytes:,})"
        return None if digest_of(path) == sha256 else f"changed: {name} (its checksum differs)"

    return trouble
