"""A file is replaced at once or not at all, and read within bounds."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from kernels.files import MAX_BYTES, open_regular, read_json_file, read_regular, write_atomically


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "run.json"
    found.write_text("before", encoding="utf-8")
    return found


def only_file(folder: Path) -> str:
    """The text of the one file in a folder."""
    (found,) = folder.iterdir()
    return found.read_text(encoding="utf-8")


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


def test_a_folder_that_is_not_there_and_a_loop_of_links_are_errors(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_atomically(tmp_path / "gone" / "run.json", "after")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links") as raised:
        write_atomically(loop, "after")
    assert raised.value.filename == str(loop)
    assert loop.is_symlink()


@pytest.mark.parametrize("content", ["3 µs\n", "3 µs\n".encode()])
def test_text_and_bytes_are_on_the_disk_before_they_replace_what_was_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes
) -> None:
    happened: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (happened.append("fsync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (happened.append("replace"), replace(a, b)))
    write_atomically(path, content)
    assert happened == ["fsync", "replace"]
    assert only_file(path.parent) == "3 µs\n"


def test_a_file_keeps_its_permissions_and_those_of_a_new_one_follow_the_umask(path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_atomically(path.with_name("new.json"), "after")
        assert os.umask(0o027) == 0o027  # and the mask is as it was
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.with_name("new.json").stat().st_mode) == 0o640
    path.chmod(0o604)
    write_atomically(path, "after")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_file_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "run.json", tmp_path / "run.json"
    if there:
        target.write_text("before")
    link.symlink_to("far/run.json")
    write_atomically(link, "after")
    assert link.is_symlink()
    assert only_file(target.parent) == "after"


def test_only_regular_files_and_json_within_bounds_are_read(tmp_path: Path, path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for odd in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"regular|directory") as raised:
            read_regular(odd)
        assert raised.value.filename == str(odd)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # it has no blocks, so that the test needs no disk
    for read in (read_regular, open_regular):
        with pytest.raises(OSError, match="128 MiB"):
            read(large)
    for content in (b"", b"{", b"[" * 100_000, b"1" * 5000, b"1e999", b"NaN",
                    b'{"a": [Infinity]}', b"\xff\xfe{}"):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"."):
            read_json_file(path)
    deep = "[" * 99 + "1" + "]" * 99
    for value in (2**63, 1e300, [], {"a": [None, True, "x"]}, json.loads(deep)):
        path.write_text(json.dumps(value))
        assert read_json_file(path) == value
    path.write_text("[" * 5000 + "]" * 5000)
    with pytest.raises(ValueError, match="deep"):
        read_json_file(path)
