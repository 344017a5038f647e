"""Files: read within bounds, written atomically; and the user's folders for what is kept between
runs, with what takes their place: containers have no home, cluster jobs one that takes no files.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

PROGRAM = "halfway"

MAX_BYTES = 128 << 20  # of a file that is read: 25 times the largest published run file
MAX_DIGITS = 40  # of an integer: no size, count or seed has more


def read_regular(path: Path) -> bytes:
    """The content of a regular file. OSError as of `open_regular`, before a byte is read."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:  # it grew, or its size is not known, as below /proc
        raise _too_large(path, MAX_BYTES)
    return content


def open_regular(path: Path, most: int = MAX_BYTES) -> int:
    """A handle of a regular file of at most `most` bytes, to read it. OSError for any other."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # else a pipe waits for a writer
    facts = os.fstat(fd)
    if stat.S_ISREG(facts.st_mode) and facts.st_size <= most:
        return fd
    os.close(fd)
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    raise _too_large(path, most)


def _too_large(path: Path, most: int) -> OSError:
    return OSError(errno.EFBIG, f"Larger than {most >> 20} MiB", str(path))


def read_json_file(path: Path) -> Any:
    """The JSON value in a file.

    OSError as of `read_regular`. ValueError for what is not JSON in UTF-8, for a number that is too
    large, and for lists and objects that are nested too deep.
    """
    try:
        return msgspec.json.decode(read_regular(path))
    except RecursionError:
        raise ValueError("its lists and objects are nested too deep") from None


def bounded_int(digits: str) -> int:
    """The integer. ValueError for more than MAX_DIGITS digits."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace a file atomically: readers see the old content or the new, never a part.

    The content is flushed to disk before the rename. Text is written in UTF-8. A file that exists
    keeps its permissions, and its owner where this user may set it; a new one follows the umask. A
    symbolic link stays, and the file that it names is replaced. OSError with the path where the
    disk refuses; no temporary file is left then.
    """
    try:
        _replace(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:  # of writing and flushing, it names no file
        raise OSError(error.errno, error.strerror, str(path)) from None


def _replace(path: Path, content: bytes) -> None:
    try:
        before = os.stat(path)
    except FileNotFoundError:
        before = None
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    with draft.open("xb") as file:
        try:
            file.write(content)
            file.flush()
            if before is not None:
                with suppress(PermissionError):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            os.fsync(file.fileno())
            os.replace(draft, target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


# ---------------------------------------------------------------- the user's folders


def cache_folder(name: str) -> Path | None:
    """$XDG_CACHE_HOME/halfway/NAME, or ~/.cache/halfway/NAME. It need not exist, or be writable.

    None where neither that variable nor a home folder is known.
    """
    return _folder("XDG_CACHE_HOME", ".cache", name)


def state_folder(name: str) -> Path | None:
    """$XDG_STATE_HOME/halfway/NAME, or ~/.local/state/halfway/NAME. As `cache_folder`."""
    return _folder("XDG_STATE_HOME", ".local/state", name)


def _folder(variable: str, below_home: str, name: str) -> Path | None:
    root, home = os.environ.get(variable), os.environ.get("HOME")
    if root:
        return Path(root, PROGRAM, name)
    if not home:
        with suppress(KeyError):  # a container's user may have no entry
            home = pwd.getpwuid(os.getuid()).pw_dir
    return Path(home, below_home, PROGRAM, name) if home else None


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


_said: set[str] = set()


def warn(text: str) -> None:
    """Log a warning, once a process, as one line of what prints: to standard error, where a program
    does nothing else with Python's log.
    """
    if text not in _said:
        _said.add(text)
        shown = "".join(c if c.isprintable() else " " for c in text)
        logging.getLogger(PROGRAM).warning("warning: %s", shown)
