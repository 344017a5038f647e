"""Ctrl-C, SIGTERM, SIGHUP and SIGKILL, at moments that a command itself marks."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from samples import judge
from samples.commands import MARK, environment, marked, wait_for
from samples.feeding import flat_folder

CPU = ("--device", "cpu")
E2E, MICROBENCH = ("-m", "e2e"), ("-m", "microbench")
HALFWAY = ("-c", "import sys; from e2e.start import main; sys.exit(main())")
COMMANDS: dict[str, tuple[str, ...]] = {
    "gemm": (*MICROBENCH, "gemm", "--sizes", "64,128,256,512", *CPU, "--budget", "20",
             "--processes", "2"),
    "halfway": (*HALFWAY, "conv", "--channels", "8..64", "--image", "14", "--batch", "4", *CPU),
    "payoff": (*MICROBENCH, "payoff", "--channels", "8..64", "--image", "7..14", *CPU),
    "train": (*E2E, "cnn-cifar", "--batch", "8", "--iterations", "9999", *CPU),
    "predict": (*E2E, "predict", "cnn-cifar", "--batch", "8", *CPU),
    "stalls": (*E2E, "stalls", "resnet18", "--batch", "2", "--workers", "1,2", *CPU),
    "loader": (*E2E, "loader", "--workers", "2,1", "--batch", "8", "--data", "folder:made",
               "--backend", "torchvision", "--budget", "2", *CPU),
    "made": (*E2E, "loader", "--backend", "torchvision", "--data", "made", "--workers", "1", *CPU),
}  # fmt: skip
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -9}
RESULT = re.compile(r"^\[\d+/\d+\] .*: (.*)$", re.MULTILINE)  # of several kinds: "fp32 1, fp16 2"
LEFT_S = 20.0  # that what a command started may outlive it, on a busy machine


class Running:
    """A command as a process of its own, with all that it starts; killed at the end of the block.

    Output goes to files: whoever holds a pipe open would be waited for.
    """

    def __init__(self, words: tuple[str, ...], folder: Path, **more: str) -> None:
        self.mark = uuid.uuid4().hex
        self.files = [folder.parent / f"{self.mark}-{name}" for name in ("out", "errors")]
        self.run_file = folder / "run.json"
        with self.files[0].open("wb") as out, self.files[1].open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                cwd=folder, env=environment(**{MARK: self.mark}, **more), start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        for pid, _line in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> tuple[str, str]:
        """Standard output and error so far."""
        out, errors = (file.read_bytes().decode("utf-8", "surrogateescape") for file in self.files)
        return out, errors

    def loads(self) -> bool:
        """Whether it has started a process, which imports torch for some seconds."""
        return len(marked(self.mark)) > 1

    def speaks(self) -> bool:
        """Whether it has printed a line: a plan, or a sign of progress."""
        return any("\n" in text for text in self.said())

    def results(self) -> int:
        """How many results are on disk."""
        file = self.run_file
        return len(json.loads(file.read_text())["results"]) if file.exists() else 0

    def end(
        self, when: Callable[[Running], object], number: signal.Signals, to_all: bool,
        later_s: float = 0,
    ) -> Ending:  # fmt: skip
        """How it ends by a signal that it gets then, as its process group does if `to_all`."""
        wait_for(lambda: when(self) or self.process.poll() is not None)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(later_s)
        assert self.process.poll() is None, self.said()
        (os.killpg if to_all else os.kill)(self.process.pid, number)
        code = self.process.wait(180)
        until_s = time.monotonic() + LEFT_S
        while (left := marked(self.mark)) and time.monotonic() < until_s:
            time.sleep(0.05)
        return Ending(code, *self.said(), [line for _, line in left])


@dataclass(frozen=True)
class Ending:
    """How a command ended, and the command lines of what outlived it."""

    code: int
    out: str
    errors: str
    left: list[str]


Moment = tuple[str, Callable[[Running], object], signal.Signals, bool, float]
MOMENTS: list[Moment] = [
    ("gemm", Running.loads, signal.SIGINT, True, 0),
    ("halfway", Running.loads, signal.SIGTERM, False, 0),
    ("stalls", Running.loads, signal.SIGHUP, True, 0.5),
    ("made", Running.loads, signal.SIGTERM, False, 0.5),
    ("train", Running.speaks, signal.SIGHUP, True, 0.1),
    ("loader", Running.results, signal.SIGINT, True, 0),
    ("gemm", Running.results, signal.SIGTERM, False, 0),
    ("gemm", Running.results, signal.SIGKILL, False, 0),
]


def drawn(number: int) -> Moment:
    """A moment at random, when a command loads or has just printed or saved something."""
    rng = random.Random(number)
    name = rng.choice(list(COMMANDS))
    events = [Running.loads, Running.speaks, Running.results]
    when = rng.choice(events[: 2 if name in ("made", "predict") else 3])
    return name, when, rng.choice(list(CODES)), rng.random() < 0.5, rng.uniform(0, 1)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, which the loader reads."""
    return flat_folder(tmp_path_factory.mktemp("pictures"))


@pytest.mark.parametrize(
    ("name", "when", "number", "to_all", "later_s"),
    [*MOMENTS, *map(drawn, range(int(os.environ.get("FAULTS", "0"))))],
)
def test_a_signal_ends_a_command_and_all_that_it_started(
    tmp_path: Path, pictures: Path, name: str, when: Callable[[Running], object],
    number: signal.Signals, to_all: bool, later_s: float,
) -> None:  # fmt: skip
    folder, temporary = tmp_path / "work", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    (folder / "made").symlink_to(pictures)
    cache = {"XDG_CACHE_HOME": str(folder)} if name == "made" else {}
    words = (*COMMANDS[name], "--json", "run.json")
    with Running(words, folder, TMPDIR=str(temporary), **cache) as running:
        end = running.end(when, number, to_all, later_s)
        saved = running.results()
    assert not end.left
    wrong = list(judge.in_ending(end.code, end.out, end.errors, [CODES[number]]))
    assert not wrong, end
    announced = [one for line in RESULT.findall(end.out + end.errors) for one in line.split(", ")]
    if name in ("gemm", "loader", "halfway"):
        assert saved >= len(announced), end
    if when is Running.results:
        assert saved
        assert number == signal.SIGKILL or "--resume run.json" in end.errors
    if number != signal.SIGKILL:  # then what it was writing stays
        # What `--data made` goes on from is hidden.
        kept = (".cache", ".part-", ".lock")
        hidden = [p for p in folder.rglob(".*") if not p.name.startswith(kept)]
        assert not [*hidden, *(p for p in temporary.iterdir() if "inductor" not in p.name)]


def test_a_signal_that_was_ignored_stays_so(tmp_path: Path) -> None:
    """As nohup does it."""
    done = subprocess.run(
        ["nohup", sys.executable, "-c",
         "import os, signal\nfrom microbench.stopping import listen\nlisten()\n"
         "os.kill(os.getpid(), signal.SIGHUP)\nprint('still here')"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "still here" in done.stdout


# ---------------------------------------------------------------- what does not end by itself

LOSING = """
import time
from pathlib import Path
from microbench.results.runfile import claimed
from microbench.stopping import on_interrupt, listen, scratch_folder
listen()
with claimed(Path("run.json"), "--json"), scratch_folder() as folder:
    (folder / "part").touch()
    try:
        with on_interrupt(lambda: print("last words", flush=True)):
            print("ready", flush=True)
            time.sleep(600)
    except BaseException:
        while True:  # the exception is lost
            time.sleep(0.1)
"""


def test_a_command_that_loses_the_exception_ends_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    with Running(("-c", LOSING), folder, TMPDIR=str(folder)) as running:
        end = running.end(Running.speaks, signal.SIGTERM, to_all=False)
    assert (end.code, end.out, end.errors) == (143, "ready\nlast words\n", "")
    assert not list(folder.iterdir())
