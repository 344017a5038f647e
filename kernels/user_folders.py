"""The user's folders for what is kept between runs, and what takes their place where there are
none: containers have no home, cluster jobs one that cannot be written.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

PROGRAM = "halfway"

_said: set[str] = set()


def cache_folder(name: str) -> Path | None:
    """$XDG_CACHE_HOME/halfway/NAME, or ~/.cache/halfway/NAME. It need not exist, or be writable.

    None where neither that variable nor a home folder is known.
    """
    return _folder("XDG_CACHE_HOME", ".cache", name)


def state_folder(name: str) -> Path | None:
    """$XDG_STATE_HOME/halfway/NAME, or ~/.local/state/halfway/NAME. As `cache_folder`."""
    return _folder("XDG_STATE_HOME", ".local/state", name)


def _folder(variable: str, below_home: str, name: str) -> Path | None:
    root = os.environ.get(variable)
    if root:
        return Path(root, PROGRAM, name)
    home = _home()
    return home / below_home / PROGRAM / name if home else None


def _home() -> Path | None:
    home = os.environ.get("HOME")
    if not home:
        with suppress(KeyError):  # a container's user may have no entry
            home = pwd.getpwuid(os.getuid()).pw_dir
    return Path(home) if home else None


def made_writable(folder: Path | None) -> str:
    """Make the folder if needed; "" where it takes files, else why it takes none."""
    if folder is None:
        return "no home folder is known"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder}: {error.strerror}"


def temporary_folder(name: str) -> Path:
    """A folder for what has no other place: halfway-UID/NAME where temporary files are.

    OSError where it cannot be made, or belongs to another user.
    """
    root = Path(tempfile.gettempdir(), f"{PROGRAM}-{os.getuid()}")
    root.mkdir(mode=0o700, exist_ok=True)
    facts = os.lstat(root)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise PermissionError(1, "Belongs to another user", str(root))
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def warn_not_kept(what: str, error: OSError) -> None:
    """Warn that the disk refuses a result that later runs could use."""
    where = f"{error.filename}: " if error.filename else ""
    warn(f"{what} cannot be kept ({where}{error.strerror or error})")


def warn(text: str) -> None:
    """Print a warning to standard error, once a process, as one line of what prints."""
    if text not in _said:
        _said.add(text)
        shown = "".join(c if c.isprintable() else " " for c in text)
        print(f"warning: {shown}", file=sys.stderr, flush=True)
