"""A run file belongs to one command at a time: a second one would lose what the first measured.

The lock is on a hidden file beside it, as the run file itself is replaced at every result. It ends
with the process, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from microbench.errors import UserError
from microbench.stopping import temporary

# Of file systems without locks, as some of clusters are: a run is not refused there.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def claimed(path: Path, option: str) -> Generator[None]:
    """Hold a file that `option` names while it is written or continued.

    UserError where another command holds it, or its folder takes no file.
    """
    file = Path(os.path.realpath(path))
    lock = file.with_name(f".{file.name}.lock")
    try:
        held = _locked(lock)
    except BlockingIOError:
        raise UserError(
            f"{option} {path}: another command is writing this file; wait until it ends, or "
            "choose another file"
        ) from None
    except OSError as error:
        raise UserError(f"{option} {path}: cannot write the file ({error.strerror})") from None
    try:
        with temporary(lock):  # it goes first, so that nothing waits for a name that goes
            yield
    finally:
        os.close(held)


def _locked(lock: Path) -> int:
    """An open handle of the lock's file, locked. BlockingIOError where another has it."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            with _where_there_are_locks():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(lock, handle):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its last owner removed it meanwhile


@contextmanager
def _where_there_are_locks() -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _is_still(lock: Path, handle: int) -> bool:
    """Whether the name is that of the open file."""
    try:
        return os.path.samestat(os.stat(lock), os.fstat(handle))
    except FileNotFoundError:
        return False
