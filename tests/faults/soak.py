"""Mixed commands in a loop under load: nothing grows, and results do not drift beyond noise."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .command_lines import RUN, mains
from .ends import picture_folders
from .forks import here
from .processes import Process, run

COMMANDS = (
    ("microbench", "gemm", "--sizes", "64,128", "--dtype", "fp32", "--device", "cpu", "--budget",
     "1", "--json", "new.json"),
    ("microbench", "conv", "--channels", "8", "--image", "8", "--batch", "2", "--dtype", "fp32",
     "--device", "cpu", "--budget", "0.5"),
    ("e2e", "cnn-cifar", "--batch", "4", "--iterations", "5", "--device", "cpu", "--budget", "1"),
    ("e2e", "loader", "--workers", "2", "--batch", "4", "--data", "folder:data", "--budget", "0.5",
     "--backend", "torchvision", "--device", "cpu"),
    ("e2e", "make-data", "made", "--images", "40", "--classes", "2"),
)  # fmt: skip
WITHIN = (["show", "run.json"], ["show", "run.json", "--csv"], ["show", "run.json", "--verbose"],
          ["show", "run.json", "--html", "page.html"], ["explain", "run.json"],
          ["compare", "run.json", "run.json"], ["show", "nothing.json"], ["gemm", "--sizes", "x"],
          ["show", "run.json", "--chart", "chart.svg"])  # fmt: skip
FEWEST = 6  # rounds before a trend means something
GROWTH_BYTES = 32 << 20  # of this process that is no leak: caches of imported libraries
DRIFT = 1.1  # of times; smaller ones are no finding
ERRORS = 3.0  # standard errors that a drift must exceed


class Watched:
    """What must not grow, round by round."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.handles: list[int] = []
        self.threads: list[int] = []
        self.files: list[int] = []
        self.times_s: list[float] = []

    def look(self, folder: Path) -> None:
        """Note this process's memory, file handles and threads, and the files that are left."""
        with open("/proc/self/status", encoding="ascii") as file:
            said = dict(line.split(":", 1) for line in file)
        self.bytes.append(int(said["VmRSS"].split()[0]) << 10)
        self.threads.append(int(said["Threads"]))
        self.handles.append(len(os.listdir("/proc/self/fd")))
        self.files.append(sum(1 for path in folder.rglob("*") if path.is_file()))

    def complaints(self) -> Iterator[str]:
        """What grew from the second third to the last: the first one fills caches."""
        third = len(self.bytes) // 3
        if len(self.bytes) < FEWEST:
            return
        for name in ("handles", "threads", "files"):
            values = getattr(self, name)
            if min(values[-third:]) > max(values[third : 2 * third]):
                yield f"{name} grew from {values[third]} to {values[-1]}"
        middle = (statistics.median(part) for part in (self.bytes[third : 2 * third],
                                                       self.bytes[-third:]))  # fmt: skip
        before, after = middle
        if after - before > GROWTH_BYTES:
            yield f"memory grew from {before / 1e6:.0f} to {after / 1e6:.0f} MB"
        yield from self._drift()

    def _drift(self) -> Iterator[str]:
        third = len(self.times_s) // 3
        if third < 3:
            return
        first, last = ([math.log(t) for t in part] for part in (self.times_s[:third],
                                                                self.times_s[-third:]))  # fmt: skip
        shift = statistics.mean(last) - statistics.mean(first)
        error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / third)
        if abs(shift) > max(math.log(DRIFT), ERRORS * error):
            yield f"times drifted by a factor of {math.exp(shift):.2f}"


def soak(minutes: float, seed: int) -> int:
    """Run the loop, print what was watched; 1 where something grew, drifted or failed."""
    rng = random.Random(seed)
    top = Path(tempfile.mkdtemp(prefix="halfway-soak-"))
    until_s = time.monotonic() + 60 * minutes
    watched, failed = Watched(), []
    for name, below in (("HOME", "home"), ("TMPDIR", "tmp")):
        (top / below).mkdir()
        os.environ[name] = str(top / below)
    rounds = 0
    with _load():
        while time.monotonic() < until_s:
            folder = top / "work"
            folder.mkdir()
            failed += _round(rng, folder, watched)
            shutil.rmtree(folder)
            for path in (top / "home/.local/state/halfway/runs").glob("*.json"):
                path.unlink()  # one a run that names none: meant to be kept
            watched.look(top)
            rounds += 1
    failed += watched.complaints()
    print(f"{rounds} rounds of {len(COMMANDS)} commands and {len(WITHIN)} in one process")
    for name, values in vars(watched).items():
        if values:
            print(f"{name:8} first {values[0]:g}, middle {values[len(values) // 2]:g}, last "
                  f"{values[-1]:g}")  # fmt: skip
    for complaint in dict.fromkeys(failed):
        print(f"FAILED {complaint}")
    shutil.rmtree(top, ignore_errors=True)
    return 1 if failed else 0


def _round(rng: random.Random, folder: Path, watched: Watched) -> list[str]:
    """Every command once, in another order each time."""
    shutil.copy(RUN, folder / "run.json")
    picture_folders(folder / "data")
    wrong: list[str] = []
    for words in rng.sample(COMMANDS, len(COMMANDS)):
        found: Process = run(["-m", *words], folder, limit_s=150)
        wrong += [f"{words[1]}: {one}" for one in found.outcome.complaints((0,))]
        wrong += [f"{words[1]}: a process is left" for _ in found.left]
    times = [one["median_s"] for one in json.loads((folder / "new.json").read_text("utf-8"))[
        "results"] if one["status"] == "ok"]  # fmt: skip
    watched.times_s.append(statistics.geometric_mean(times))
    with contextlib.chdir(folder):
        for words in WITHIN:
            outcome = here(mains()["halfway"][0], "halfway", list(words))
            wrong += [f"{words[0]}: {one}" for one in outcome.complaints((0, 2))]
    return wrong


@contextlib.contextmanager
def _load() -> Iterator[None]:
    """Another program that computes for a second and rests for a second, on one core."""
    text = "import time\nwhile True:\n    until = time.time() + 1\n"
    text += "    while time.time() < until: pass\n    time.sleep(1)"
    other = subprocess.Popen([sys.executable, "-c", text])
    try:
        yield
    finally:
        other.kill()
        other.wait()
