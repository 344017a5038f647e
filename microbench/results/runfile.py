"""The run file on disk: read whole or not at all, replaced at once or not at all.

Nothing in a file is ever executed. A file belongs to one command at a time (`claimed`), as a second
one would lose what the first measured. The lock is on a hidden file beside it, because the run file
itself is replaced at every result. It ends with the process, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from kernels.files import read_json_file, write_atomically
from kernels.messages import first_line
from microbench.errors import UserError
from microbench.results.codec import run_from_json, run_to_json
from microbench.results.kinds import document_of
from microbench.results.types import SCHEMA_VERSION, Json, Run


def read_run(path: Path) -> Run:
    """The run in a file.

    UserError, in one line, for a file that is missing, damaged, newer, or no run.
    """
    return as_run(read_json(path), path)


def as_run(data: Json, path: Path) -> Run:
    """The run in the JSON object of the file at `path`. UserError as in `read_run`."""
    document = document_of(data)
    if document:
        raise UserError(
            f"{path} is not a run file, but the output of {document.written_by}: only show reads it"
        )
    check_version(data, SCHEMA_VERSION, path)
    if "results" not in data:
        raise UserError(f"{path} is not a halfway run file (no results)")
    try:
        return run_from_json(data)
    except (ValueError, OverflowError) as error:
        raise damaged(path, error) from None


def check_version(data: Json, newest: int, path: Path) -> None:
    """UserError where the file's `schema_version` is none, or above the newest that is read."""
    version = data.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise UserError(f"{path} is not a halfway run file (no schema_version)")
    if version > newest:
        raise UserError(
            f"{path} has schema_version {version}; this version reads up to {newest}; "
            "update halfway"
        )


def damaged(path: Path, error: Exception) -> UserError:
    """The UserError, not raised yet, for a file with an invalid field."""
    return UserError(f"{path} is damaged or not a halfway file: {first_line(error)}")


def read_json(path: Path) -> Json:
    """The JSON object in a file.

    UserError, in one line, for a file that is missing or holds none.
    """
    try:
        data: Any = read_json_file(path)
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is not complete JSON ({error}); is the copy cut off?") from None
    except ValueError as error:
        raise UserError(f"{path} is not a run file: {first_line(error)}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is not a run file: no JSON object")
    return cast(Json, data)


def check_writable(
    path: Path, option: str, *, resumes: bool = False, overwrite: bool | None = None
) -> None:
    """UserError unless a new file can be made at `path`: call it before measuring.

    `option` names it; `resumes` where the command can go on with a file. A file that is there may
    be replaced where `overwrite`; None where the command has no option for that.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{option} {path}: {why}") from None
    if mode is not None and stat.S_ISDIR(mode):
        raise UserError(f"{option} {path} is a folder; give a file name")
    if mode is not None and overwrite and not stat.S_ISREG(mode):
        raise UserError(f"{option} {path} is no regular file; choose another file name")
    if mode is not None and not overwrite:
        more = ", replace it with --overwrite" if overwrite is False else ""
        more += f", or add to it with --resume {path}" if resumes else ""
        raise UserError(f"{option} {path} already exists; choose another file name{more}")
    probe(path, option)


def check_apart(paths: Mapping[str, Path | None]) -> None:
    """UserError where two options name one file: the later would overwrite the earlier."""
    seen: dict[str, str] = {}
    for option, path in paths.items():
        if (
            path is not None
            and (first := seen.setdefault(os.path.realpath(path), option)) != option
        ):
            raise UserError(f"{first} and {option} name the same file")


def probe(path: Path, option: str) -> None:
    """UserError unless the folder of `path` takes a new file; the message names `option`."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise UserError(f"{option} {path}: cannot write the file ({error.strerror})") from None


def write_run(run: Run, path: Path) -> None:
    """Write the run file: temporary file, flush, rename, so it is never half written.

    OSError where the disk refuses; ValueError for a NaN or an infinity in the run.
    """
    write_text(json.dumps(run_to_json(run), separators=(",", ":"), allow_nan=False), path)


def write_text(text: str, path: Path) -> None:
    """Replace the file at once by the text and a line break. OSError where the disk refuses."""
    write_atomically(path, text + "\n")


def write_output(option: str, path: Path, content: bytes) -> None:
    """Write the file that an option names, whole or not at all. UserError: the disk refuses."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"{option} {path}: cannot write the file ({error.strerror})") from None


# ---------------------------------------------------------------- one command at a time

# Of file systems without locks, as some of clusters are: a run is not refused there.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def claimed(path: Path, option: str) -> Generator[None]:
    """Hold a file that `option` names while it is written or continued.

    UserError where another command holds it, or its folder takes no file.
    """
    from microbench.stopping import temporary  # of commands: reading a file needs none of it

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


@contextmanager
def claimed_new(
    path: Path, option: str, *, resumes: bool = False, overwrite: bool | None = None
) -> Generator[None]:
    """Hold a file that is to be new, or replaced; errors as of `check_writable` and `claimed`."""
    check_writable(path, option, resumes=resumes, overwrite=overwrite)
    with claimed(path, option):
        # another command may have ended just now
        check_writable(path, option, resumes=resumes, overwrite=overwrite)
        yield


def _locked(lock: Path) -> int:
    """An open handle of the lock's file, locked. BlockingIOError where another has it."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(lock), os.fstat(handle)):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its last owner removed it meanwhile
