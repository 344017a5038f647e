"""Commands as processes of their own that a signal ends, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samples.commands import ROOT, environment
from samples.processes import is_gone

MARK = "HALFWAY_TEST_MARK"  # in the environment of a command and of all its descendants
STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@dataclass(frozen=True)
class Ending:
    """How a command ended after a signal, and what was alive some seconds later."""

    code: int
    seconds: float
    out: str
    errors: str
    left: tuple[str, ...]


def marked(mark: str) -> list[tuple[int, str]]:
    """(pid, command line) of the processes that have the mark and have not ended."""
    found: list[tuple[int, str]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            has = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if has and not is_gone(int(folder.name)):
            found.append((int(folder.name), line))
    return found


def ended(
    words: Sequence[object], number: signal.Signals, after_s: float, *, cwd: Path = ROOT,
    to_all: bool = True, left_s: float = 5.0, within_s: float = 60.0, **more: str,
) -> Ending:  # fmt: skip
    """Python with these words, signalled after some seconds; also its process group if `to_all`.

    Output goes to files: whoever holds a pipe open would be waited for. What still lives `left_s`
    after its end is named, and ended.
    """
    mark = uuid.uuid4().hex
    names = [cwd / f".{mark}-{name}" for name in ("out", "err")]
    with names[0].open("w") as out, names[1].open("w") as err:
        process = subprocess.Popen(
            [sys.executable, *map(str, words)], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            cwd=cwd, env=environment(**{MARK: mark}, **more), start_new_session=True,
        )  # fmt: skip
    try:
        time.sleep(after_s)
        began_s = time.monotonic()
        if process.poll() is None:
            (os.killpg if to_all else os.kill)(process.pid, number)
        process.wait(within_s)
        seconds = time.monotonic() - began_s
        while marked(mark) and time.monotonic() - began_s < seconds + left_s:
            time.sleep(0.1)
        left = tuple(line for _, line in marked(mark))
        said = [name.read_text() for name in names]
    finally:
        for pid, _ in marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait(10)
        for name in names:
            name.unlink()
    return Ending(process.returncode, seconds, said[0], said[1], left)
