"""Files that are never seen half written."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace a file at once: it is the old one or the new one, never half of either.

    The content is on the disk before the name is, text in UTF-8; permissions follow the umask.
    Raises OSError, and leaves nothing behind, where the disk does not take it.
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
