"""Runs that a signal ends at any moment: nothing announced is lost, and nothing is left."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .forks import Attempt, Kind
from .judge import DOCUMENTED, Outcome
from .processes import ENDED, Process, Signal, run

CPU = ("--device", "cpu")
COMMANDS = {
    "gemm": ("microbench", "gemm", "--sizes", "32,48,64,96", *CPU, "--budget", "3"),
    "processes": ("microbench", "gemm", "--sizes", "32,64", *CPU, "--budget", "2", "--processes",
                  "2"),
    "conv": ("microbench", "conv", "--channels", "8,16", "--image", "8", "--batch", "2", *CPU,
             "--budget", "2"),
    "train": ("e2e", "cnn-cifar", "--batch", "4", "--iterations", "20", *CPU, "--budget", "4"),
    "predict": ("e2e", "predict", "cnn-cifar", "--batch", "4", *CPU),
    "loader": ("e2e", "loader", "--workers", "1,2", "--batch", "8", "--data", "folder:data",
               "--budget", "1", *CPU),
    "make-data": ("e2e", "make-data", "made", "--images", "400", "--classes", "4"),
}  # fmt: skip
SECONDS = 3.0  # after the signal: two, and one for a busy machine
LONGEST_S = 14.0  # before the signal
RESUMED = 0.1  # of the runs that have results are gone on with
ANNOUNCED = re.compile(rb"^(?:process \d+ of \d+: )?\[(\d+)/\d+\]", re.MULTILINE)


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """A run, a moment, a signal."""
    name = rng.choice(list(COMMANDS))
    words = ["-m", *COMMANDS[name]]
    if name == "loader":
        picture_folders(folder / "data")
    if name != "make-data":
        words += ["--json", "run.json"]
    number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
    sent = Signal(number, rng.uniform(0.3, rng.choice((2, LONGEST_S))), rng.random() < 0.5)
    found = run(words, folder, sent=sent)
    complaints = list(_wrong(found, sent, folder))
    file = folder / "run.json"
    if file.exists() and not complaints and rng.random() < RESUMED:
        complaints += _resumed(name, file)
    sent_when = f"{number.name} after {sent.after_s:.2f} s, to {'all' if sent.to_all else 'one'}"
    return Attempt(f"{sent_when}: {shlex.join(words)}", complaints)


def _wrong(found: Process, sent: Signal, folder: Path) -> Iterator[str]:
    outcome, name = found.outcome, sent.number.name
    yield from outcome.complaints((*DOCUMENTED[:2], ENDED[sent.number], 130))
    if b"Exception ignored" in outcome.err:
        yield "an exception is ignored"
    if found.seconds > SECONDS and outcome.code not in DOCUMENTED:
        yield f"more than {SECONDS:g} s after {name}"
    for line in found.left:
        yield f"a process is left after {name}: {line.split(' ')[-2][:40]}"
    if not (folder / "made").exists():  # images are no results
        yield from _lost(outcome, folder / "run.json")
    if sent.number != signal.SIGKILL:  # then what it was writing stays
        yield from _left(folder.parent)


def _lost(outcome: Outcome, file: Path) -> Iterator[str]:
    """Results that were announced and are not in the run file."""
    try:
        results = len(_results(file)) if file.exists() else 0
    except (ValueError, KeyError) as error:
        yield f"the run file is not whole: {error}"
        return
    announced = [int(k) for k in ANNOUNCED.findall(outcome.out + outcome.err)]
    if results < max(announced, default=0):
        yield "results are lost"


def _left(folder: Path) -> Iterator[str]:
    """Temporary files: hidden ones, and those where such files are; not torch's caches."""
    for root, _, names in os.walk(folder):
        within = root.removeprefix(str(folder))
        for name in names:
            if (name.startswith(".") or within.startswith("/tmp")) and "inductor" not in within:
                yield f"a temporary file is left: {re.sub('[0-9a-f]{8}', '*', name)}"


def _results(file: Path) -> list[Any]:
    return json.loads(file.read_text(encoding="utf-8"))["results"]


def _resumed(name: str, file: Path) -> list[str]:
    """The run gone on with must end, with no fewer results than it had."""
    before = _results(file)
    package = COMMANDS[name][0]
    program = COMMANDS[name][1] if COMMANDS[name][1] in ("gemm", "conv", "predict", "loader") else (
        "train"
    )  # fmt: skip
    found = run(["-m", package, program, "--resume", file.name], file.parent)
    complaints = [f"resumed: {one}" for one in found.outcome.complaints((0, 1))]
    if not complaints and len(_results(file)) < len(before):
        complaints.append("resumed: results are lost")
    return complaints


def picture_folders(folder: Path, classes: int = 2, images: int = 12) -> None:
    """Folders with small pictures, a class each."""
    from PIL import Image

    for one in range(classes):
        (folder / f"class{one}").mkdir(parents=True)
        for number in range(images):
            picture = Image.new("RGB", (40, 40), (number * 20, one * 100, 90))
            picture.save(folder / f"class{one}" / f"{number}.jpg")


ENDS = Kind("random ends", attempt, limit_s=200.0, share=0.18)
