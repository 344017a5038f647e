"""Machines that refuse: full disks, closed outputs, few file handles, little memory, no home."""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from .command_lines import RUN
from .forks import Attempt, Kind
from .judge import DOCUMENTED, Outcome, changed, files_in
from .processes import limited, run
from .scripts import TRAINING
from .traces import SAMPLES

READERS = (
    ("microbench", "show", "run.json"),
    ("microbench", "show", "run.json", "--csv"),
    ("microbench", "show", "run.json", "--html", "new.html"),
    ("microbench", "show", "run.json", "--chart", "new.svg"),
    ("microbench", "compare", "run.json", "run.json", "--json", "new.json"),
    ("microbench", "compare", "run.json", "run.json", "--junit", "new.xml"),
    ("microbench", "compare", "run.json", "run.json", "--html", "new.html"),
    ("microbench", "explain", "run.json"),
    ("e2e", "diagnose", "trace.json.gz", "--json", "new.json"),
    ("e2e", "diagnose", "trace.json.gz", "--html", "new.html"),
    (
        "e2e",
        "diagnose",
        "train.py",
        "--after",
        "1",
        "--bare",
        "2",
        "--traced",
        "1",
        "--keep",
        "new.kept",
        "--json",
        "new.json",
    ),
    ("microbench", "gemm", "--help"),
    ("e2e", "list"),
)
MEASURING = ("microbench", "gemm", "--sizes", "32", "--device", "cpu", "--budget", "0.3")
SCRIPT_FAILED = 3  # the exit code of diagnose then
GIVEN = {RUN: "run.json", SAMPLES / "odd_vocab.json.gz": "trace.json.gz"}
MEASURED = 0.06  # of the cases measure something: that takes ten times as long
# Libraries end the process themselves: V8, which draws charts, where it cannot reserve address
# space, and Intel's MKL where there is no working directory.
BEYOND_US = {"MB": ("--html", "--chart"), "directory": ("e2e", "gemm")}
NO_PLACES = ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "TMPDIR")
MOUNT_PRIVATE, NEW_MOUNTS = 1 << 18 | 1 << 14, 0x20000  # of mount(2) and unshare(2)


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """A command on a machine with one limit."""
    for source, name in GIVEN.items():
        shutil.copy(source, folder / name)
    (folder / "train.py").write_text(TRAINING + "train()\n", encoding="utf-8")
    name, before, out, environment = rng.choice(LIMITS)(rng, folder)
    words = MEASURING if rng.random() < MEASURED else rng.choice(READERS)
    if set(words) & set(BEYOND_US.get(name.split()[-1], ())):
        words = READERS[0]
    if words == MEASURING and rng.random() < 0.8:
        words = (*words, "--json", "new.json")
    kept = files_in(folder.parent)
    try:
        found = run(["-m", *words], folder, before=before, out=out, **environment)
    finally:
        if out is not None:
            os.close(out)
    codes = DOCUMENTED if out is None else (*DOCUMENTED, -13)  # SIGPIPE, where it is the default
    complaints = list(_ours(found.outcome).complaints(codes))
    if name.startswith(("files", "streams")):  # these take no error either
        complaints = [one for one in complaints if "without an error" not in one]
    complaints += [f"a process is left: {command}" for command in found.left]
    may = {word for word in words if word.startswith("new.")} | {"run.json"}
    written = {f"work/{one}" for one in may}
    written |= {"home", "stdout", "stderr", "home/.cache", "home/.local", "home/.cupy",
                "home/.triton", "work/home"}  # fmt: skip
    complaints += changed(kept, files_in(folder.parent), written)
    complaints += _whole(folder, may)
    return Attempt(f"{name}: {shlex.join(words)}", complaints)


def _ours(outcome: Outcome) -> Outcome:
    """Of a script that failed under diagnose, its last line: what it says itself is its own."""
    if outcome.code != SCRIPT_FAILED:
        return outcome
    return Outcome(2, b"", b"".join(outcome.err.splitlines(keepends=True)[-1:]))


def _whole(folder: Path, names: set[str]) -> Iterator[str]:
    for name in names:
        if name.endswith(".json") and (folder / name).exists():
            try:
                json.loads((folder / name).read_text(encoding="utf-8"))
            except ValueError:
                yield f"{name} is not whole"


# ---------------------------------------------------------------- limits

Limit = tuple[str, Callable[[], None], int | None, dict[str, str | None]]


def _nothing() -> None:
    pass


def _file_size(rng: random.Random, folder: Path) -> Limit:
    size = rng.choice((0, 1, 100, 4096, 20_000))
    return f"files of {size} bytes", limited(resource.RLIMIT_FSIZE, size), None, {}


def _handles(rng: random.Random, folder: Path) -> Limit:
    number = rng.randint(12, 48)
    return f"{number} file handles", limited(resource.RLIMIT_NOFILE, number), None, {}


def _memory(rng: random.Random, folder: Path) -> Limit:
    megabytes = rng.randint(400, 3000)
    return f"{megabytes} MB", limited(resource.RLIMIT_AS, megabytes << 20), None, {}


def _full_output(rng: random.Random, folder: Path) -> Limit:
    return "a full output", _nothing, os.open("/dev/full", os.O_WRONLY), {}


def _no_reader(rng: random.Random, folder: Path) -> Limit:
    read, write = os.pipe()
    os.close(read)
    return "a pipe without a reader", _nothing, write, {}


def _closed(rng: random.Random, folder: Path) -> Limit:
    numbers = rng.choice(((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)))

    def close() -> None:
        for number in numbers:
            os.close(number)

    return f"streams {numbers} closed", close, None, {}


def _full_disk(rng: random.Random, folder: Path) -> Limit:
    """A file system of its own over the folder, in a namespace of the command's."""
    size = rng.choice((4096, 16_384, 65_536, 131_072))
    contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    where = str(folder).encode()
    calls = ctypes.CDLL(None, use_errno=True)

    def mount() -> None:
        if calls.unshare(NEW_MOUNTS) or calls.mount(b"none", b"/", None, MOUNT_PRIVATE, None):
            return  # not allowed here
        calls.mount(b"tmpfs", where, b"tmpfs", 0, f"size={size}".encode())
        os.chdir(folder)
        try:
            for name, content in sorted(contents.items(), key=lambda item: len(item[1])):
                with open(name, "wb") as file:
                    file.write(content[:size])
        except OSError:
            pass

    return f"a disk of {size} bytes", mount, None, {}


def _no_home(rng: random.Random, folder: Path) -> Limit:
    name = rng.choice(NO_PLACES)
    (folder.parent / "file").touch()
    where = rng.choice((None, "", "/proc/no", "/dev/null", str(folder.parent / "file"),
                        str(folder / "home"), "relative", "\udcff"))  # fmt: skip
    return f"{name}={where!a}", _nothing, None, {name: where}


def _surroundings(rng: random.Random, folder: Path) -> Limit:
    name, value = rng.choice((
        ("COLUMNS", "0"), ("COLUMNS", "1"), ("COLUMNS", "-5"), ("COLUMNS", "9" * 30),
        ("COLUMNS", "x"), ("LC_ALL", "C"), ("PYTHONIOENCODING", "ascii"), ("TERM", "dumb"),
        ("PYTHONIOENCODING", "latin-1"), ("PYTHONUTF8", "0"), ("NO_COLOR", "1"), ("TERM", ""),
        ("PYTHONWARNINGS", "error"), ("PYTHONOPTIMIZE", "2"), ("PYTHONUNBUFFERED", "1"),
        ("TZ", "nowhere"), ("PATH", ""), ("LANG", "x\udcff"),
    ))  # fmt: skip
    return f"{name}={value[:9]!a}", _nothing, None, {name: value}


def _no_folder(rng: random.Random, folder: Path) -> Limit:
    """The working directory is gone."""

    def leave() -> None:
        gone = f"{folder}-gone"
        os.mkdir(gone)
        os.chdir(gone)
        os.rmdir(gone)

    return "no working directory", leave, None, {}


LIMITS = (_file_size, _handles, _memory, _full_output, _no_reader, _closed, _full_disk, _no_home,
          _surroundings, _no_folder)  # fmt: skip
LIMITED = Kind("limits", attempt, limit_s=150.0, share=0.08)
