"""A training over two ranks, of which rank 1 gets a signal while it is timed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from e2e.results.types import Training
from microbench.results.runfile import read_run
from samples.processes import is_gone, wait_for


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in tasks for word in path.read_text().split()]


def ranks_of(pid: int) -> Iterator[tuple[int, int]]:
    """(rank, process) of what torchrun started below a command."""
    for child in children(pid):
        for one in children(child):
            words = Path(f"/proc/{one}/environ").read_bytes().split(b"\0")
            for word in words:
                if word.startswith(b"RANK="):
                    yield int(word[5:]), one


def ended_by(
    number: int, words: list[str], folder: Path, env: Mapping[str, str]
) -> tuple[Training, ...]:
    """What a run has whose rank 1 got a signal; its ranks end within a minute, and it goes on."""
    path = folder / "run.json"
    ran = subprocess.Popen(
        [*words, "--json", str(path)], env=env, cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert ran.stdout
    for line in ran.stdout:
        if "about" in line:  # the ranks have joined, and set up
            break
    before = dict(ranks_of(ran.pid))
    time.sleep(2)
    os.kill(before[1], number)
    wait_for(lambda: is_gone(before[0]))
    _, errors = ran.communicate(timeout=180)
    assert (ran.returncode, errors) == (0, "")
    return tuple(read_run(path).of(Training))
