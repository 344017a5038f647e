"""Commands as processes of their own: limited, ended by signals, and what is left of them."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .judge import Outcome

ROOT = Path(__file__).resolve().parents[2]
MARK = "HALFWAY_FAULTS"  # in the environment of a command and of all its descendants
LEFT_S = 5.0  # that what a command started may outlive it
ENDED = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -9}


@dataclass(frozen=True)
class Signal:
    """A signal to send so many seconds after the start, to the whole group as a terminal does.

    With `lines`, a number and a pattern, so many seconds after as many lines of that pattern.
    """

    number: signal.Signals
    after_s: float
    to_all: bool
    lines: tuple[int, re.Pattern[bytes]] | None = None


@dataclass(frozen=True)
class Process:
    """How a command ended, how long after the signal, and which programs outlived it."""

    outcome: Outcome
    seconds: float
    left: tuple[str, ...]


def run(
    words: Sequence[str], folder: Path, *, sent: Signal | None = None, limit_s: float = 100.0,
    before: Callable[[], None] = lambda: None, out: int | None = None, **environment: str | None,
) -> Process:  # fmt: skip
    """Python with these words in a folder; `before` runs in the process before it starts.

    Output goes to files beside the folder, or to `out`: whoever holds a pipe open would be waited
    for.
    """
    mark = uuid.uuid4().hex
    names = [folder.parent / name for name in ("stdout", "stderr")]
    changed = {MARK: mark, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    env = {k: v for k, v in {**os.environ, **changed}.items() if v is not None}
    with names[0].open("wb") as stdout, names[1].open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.DEVNULL, start_new_session=True, env=env,
            stdout=stdout if out is None else out, stderr=stderr, cwd=folder,
            preexec_fn=lambda: _begin(before),
        )  # fmt: skip
    began_s = time.monotonic()
    try:
        if sent:
            if sent.lines:
                _wait_for(*sent.lines, names[0], process, limit_s)
            with suppress(subprocess.TimeoutExpired):
                process.wait(sent.after_s)
            began_s = time.monotonic()
            with suppress(ProcessLookupError):
                if process.poll() is None:
                    (os.killpg if sent.to_all else os.kill)(process.pid, sent.number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
        seconds = time.monotonic() - began_s
        until_s = time.monotonic() + LEFT_S
        while process.poll() is not None and list(marked(mark)) and time.monotonic() < until_s:
            time.sleep(0.05)
        left = tuple(_name(line) for _, line in marked(mark))
    finally:
        for pid, _ in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    return Process(Outcome(process.returncode, *(n.read_bytes() for n in names)), seconds, left)


def _begin(before: Callable[[], None]) -> None:
    """In the process: signals as in a terminal. A bench in the background (`&`, nohup) ignores
    some, and what is ignored at its start a command goes on to ignore.
    """
    for number in ENDED:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
    before()


def _wait_for(
    number: int, pattern: re.Pattern[bytes], file: Path, process: subprocess.Popen[bytes],
    limit_s: float,
) -> None:  # fmt: skip
    """Wait until a file has as many lines of a pattern, or the process has ended."""
    until_s = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < until_s:
        if len(pattern.findall(file.read_bytes())) >= number:
            return
        time.sleep(0.01)


def _name(line: str) -> str:
    """Of a command line, what is the same for the same defect."""
    words = line.split()
    return " ".join(words[-1:])[:40] if words else "?"


def marked(mark: str) -> Iterator[tuple[int, str]]:
    """(pid, command line) of the processes that have the mark and have not ended."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                wanted in (folder / "environ").read_bytes()
                and b") Z " not in (folder / "stat").read_bytes()
            ):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(folder.name), line.decode(errors="replace")


def limited(which: int, amount: int) -> Callable[[], None]:
    """What limits a resource (RLIMIT_*) of the process that calls it."""
    return lambda: resource.setrlimit(which, (amount, amount))
