"""Writing files atomically."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace a file atomically: readers see the old content or the new, never a part.

    The content is flushed to disk before the rename. Text is written in UTF-8; permissions follow
    the umask. OSError where the disk refuses; no temporary file is left then.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with draft.open("xb") as file:
        try:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
