"""Runs that a signal ends at any moment: nothing announced is lost, and nothing is left."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
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
    "diagnose": ("e2e", "diagnose", "train.py", "--other", "more", "--after", "3", "--bare", "5",
                 "--keep", "kept"),
}  # fmt: skip
# A script of a user, with loader workers and a child of its own that pay no heed to Ctrl-C.
SCRIPT = """import signal, subprocess, sys, time
import torch
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
try:
    for batch in torch.utils.data.DataLoader(list(torch.randn(4000, 16)), 8, num_workers=2):
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.05)
finally:
    child.kill()
"""
CHILD = "time.sleep(600)"
# Lines that announce results, of each command.
LINES = {"gemm": 4, "processes": 4, "conv": 4, "train": 3, "predict": 1, "loader": 8}
SECONDS = 3.0  # after the signal: two, and one for a busy machine
LONGEST_S = 14.0  # before the signal
RESUMED = 0.15  # of the runs that have results are gone on with
AT_A_RESULT = 0.4  # of the signals come when a result has just been announced
ANNOUNCED = re.compile(rb"^(process \d+ of \d+: )?\[\d+/\d+\] (.*)$", re.MULTILINE)
A_TRAINING = re.compile(rb" seed \d+: ")
Saved = Counter[str]  # kind of a result -> how many


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """A run, a moment, a signal."""
    name = rng.choice(list(COMMANDS))
    words = ["-m", *COMMANDS[name]]
    if name == "loader":
        picture_folders(folder / "data")
    if name == "diagnose":
        (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    if name != "make-data":
        words += ["--json", "run.json"]
    number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
    sent = Signal(number, rng.uniform(0.3, rng.choice((2, LONGEST_S))), rng.random() < 0.5)
    if name in LINES and rng.random() < AT_A_RESULT:
        lines = (rng.randint(1, LINES[name]), ANNOUNCED)
        sent = replace(sent, after_s=rng.uniform(0, 0.3), lines=lines)
    found = run(words, folder, sent=sent)
    complaints = list(wrong(found, sent, folder, name in LINES))
    file = folder / "run.json"
    if file.exists() and name in LINES and not complaints and rng.random() < RESUMED:
        complaints += _resumed(name, file)
    sent_when = f"{number.name} after {sent.after_s:.2f} s, to {'all' if sent.to_all else 'one'}"
    if sent.lines:
        sent_when = sent_when.replace(", ", f" and {sent.lines[0]} results, ")
    return Attempt(f"{sent_when}: {shlex.join(words)}", complaints)


def wrong(found: Process, sent: Signal, folder: Path, has_results: bool = True) -> Iterator[str]:
    """What is wrong with how a command ended; `has_results` of some commands are in run.json."""
    outcome, name = found.outcome, sent.number.name
    yield from outcome.complaints((*DOCUMENTED[:2], ENDED[sent.number]))
    # Others that compute delay its end.
    if found.seconds > SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)):
        late = "goes on" if outcome.code in DOCUMENTED else "ends late"
        yield f"{late}: more than {SECONDS:g} s after {name}"
    for command in found.left:
        if sent.number != signal.SIGKILL or command != CHILD:  # which the script started itself
            yield f"a process is left after {name}: {command}"
    if has_results:
        yield from lost(outcome, folder / "run.json")
    if sent.number != signal.SIGKILL:  # then what it was writing stays
        yield from _left(folder.parent)


def lost(outcome: Outcome, file: Path) -> Iterator[str]:
    """Results that were announced and are not in the run file."""
    try:
        saved = _saved(_results(file)) if file.exists() else Saved()
    except (ValueError, KeyError) as error:
        yield f"the run file is not whole: {error}"
        return
    for kind, number in announced(outcome.out + outcome.err).items():
        if saved[kind] < number:
            yield f"results are lost: {kind}"


def announced(output: bytes) -> Saved:
    """What lines such as "[1/4] 32: fp32 0.606, fp16 0.877 GFLOP/s" say is in the run file."""
    found = Saved()
    for process, line in ANNOUNCED.findall(output):
        if A_TRAINING.search(line):
            found["trainings"] += 1
        else:
            kind = "measured once more" if process else "measured"
            found[kind] += len(line.rpartition(b": ")[2].split(b", "))
    return found


def _saved(results: list[Any]) -> Saved:
    return Saved({
        "measured": len(results),
        "measured once more": sum(len(one.get("processes") or ()) > 1 for one in results),
        "trainings": sum(len(one.get("repeats") or ()) for one in results),
    })  # fmt: skip


def _left(folder: Path) -> Iterator[str]:
    """Temporary files: hidden ones, and all where such files are; none of torch or of a script."""
    others = ("inductor", "pymp-") if (folder / "work/train.py").exists() else ("inductor",)
    for root, folders, names in os.walk(folder):
        within = root.removeprefix(str(folder))
        among = within.startswith("/tmp")
        for name in [*names, *(folders if among else ())]:
            if (name.startswith(".") or among) and not any(map(f"{within}/{name}".count, others)):
                yield f"a temporary file is left: {re.sub('[0-9a-z_]{8}', '*', name)}"


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
    if not complaints and _measured(before) - _measured(_results(file)):
        complaints.append("resumed: results are lost")
    return complaints


def _measured(results: list[Any]) -> Counter[str]:
    """The cases that have been measured."""
    named = ("op", "case", "precision", "backend")
    return Counter(
        json.dumps([one.get(name) for name in named]) for one in results if one["status"] == "ok"
    )


def picture_folders(folder: Path, classes: int = 2, images: int = 12) -> None:
    """Folders with small pictures, a class each."""
    from PIL import Image

    for one in range(classes):
        (folder / f"class{one}").mkdir(parents=True)
        for number in range(images):
            picture = Image.new("RGB", (40, 40), (number * 20, one * 100, 90))
            picture.save(folder / f"class{one}" / f"{number}.jpg")


ENDS = Kind("random ends", attempt, limit_s=200.0, share=0.18)
