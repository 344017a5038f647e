"""A file is replaced at once or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kernels.files import write_atomically


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "run.json"
    found.write_text("before", encoding="utf-8")
    return found


def only_file(folder: Path) -> str:
    """The text of the one file in a folder."""
    (found,) = folder.iterdir()
    return found.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", ["3 µs\n", "3 µs\n".encode()])
def test_text_and_bytes_replace_what_was_there(path: Path, content: str | bytes) -> None:
    write_atomically(path, content)
    assert only_file(path.parent) == "3 µs\n"


@pytest.mark.parametrize(
    ("call", "error"),
    [("fsync", OSError(28, "No space left on device")), ("replace", KeyboardInterrupt())],
)
def test_a_failure_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        write_atomically(path, "after")
    assert only_file(path.parent) == "before"


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_atomically(tmp_path / "gone" / "run.json", "after")


def test_data_is_on_the_disk_before_the_name_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (happened.append("fsync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (happened.append("replace"), replace(a, b)))
    write_atomically(path, "after")
    assert happened == ["fsync", "replace"]
    assert only_file(path.parent) == "after"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(path: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        write_atomically(path, "after")
        assert os.umask(mask) == mask  # and the mask is as it was
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
