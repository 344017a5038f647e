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
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from .command_lines import RUN, mains
from .ends import picture_folders
from .forks import here
from .processes import Process, run

TRACE = RUN.parents[2] / "tests/samples/traces_h200/fp32_island.json.gz"
TRAINING = """import torch
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(list(torch.randn(400, 16)), batch_size=8, num_workers=1)
for batch in data:
    model(batch).square().mean().backward()
    optimizer.step()
"""
COMMANDS = (
    ("microbench", "gemm", "--sizes", "64,128", "--dtype", "fp32", "--device", "cpu", "--budget",
     "1", "--json", "new.json"),
    ("microbench", "conv", "--channels", "8", "--image", "8", "--batch", "2", "--dtype", "fp32",
     "--device", "cpu", "--budget", "0.5"),
    ("e2e", "cnn-cifar", "--batch", "4", "--iterations", "5", "--device", "cpu", "--budget", "1"),
    ("e2e", "loader", "--workers", "2", "--batch", "4", "--data", "folder:data", "--budget", "0.5",
     "--backend", "torchvision", "--device", "cpu"),
    ("e2e", "make-data", "made", "--images", "40", "--classes", "2"),
    ("e2e", "diagnose", "train.py", "--after", "2", "--bare", "3", "--json", "found.json"),
)  # fmt: skip
WITHIN = (["show", "run.json"], ["show", "run.json", "--csv"], ["show", "run.json", "--verbose"],
          ["show", "run.json", "--html", "page.html"], ["explain", "run.json"],
          ["compare", "run.json", "run.json"], ["show", "nothing.json"], ["gemm", "--sizes", "x"],
          ["show", "run.json", "--chart", "chart.svg"],
          ["diagnose", "trace.json.gz", "--html", "found.html", "--json", "found.json"],
          ["compare", "run.json", "run.json", "--html", "page.html", "--json",
           "compared.json"])  # fmt: skip
FEWEST = 6  # rounds before a trend means something
GROWTH_BYTES = 32 << 20  # of this process that is no leak: caches of imported libraries
DRIFT = 1.1  # of times; smaller ones are no finding
ERRORS = 3.0  # standard errors that a trend must exceed
EVERY = 10  # rounds between two lines of figures
SIZE, LOOKS_S = 128, 0.3  # of the product by which this machine's own speed is known


class Watched:
    """What must not grow, round by round.

    `times` are geometric means of what `gemm` measured, over what the same products took here at
    that time: other programs slow both.
    """

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.handles: list[int] = []
        self.threads: list[int] = []
        self.files: list[int] = []
        self.times: list[float] = []

    def look(self, folder: Path) -> None:
        """Note this process's memory, file handles and threads, and the files that are left."""
        with open("/proc/self/status", encoding="ascii") as file:
            said = dict(line.split(":", 1) for line in file)
        self.bytes.append(int(said["VmRSS"].split()[0]) << 10)
        self.threads.append(int(said["Threads"]))
        self.handles.append(len(os.listdir("/proc/self/fd")))
        self.files.append(sum(1 for path in folder.rglob("*") if path.is_file()))

    def complaints(self) -> Iterator[str]:
        """What grew since the first third, which fills caches; times over all rounds."""
        third = len(self.bytes) // 3
        if len(self.bytes) < FEWEST:
            return
        for name, least in (("bytes", GROWTH_BYTES), ("handles", 1), ("threads", 1), ("files", 1)):
            values = getattr(self, name)[third:]
            if (grown := trend(values)) >= least:
                yield f"{name} grew by {grown:.3g} over {len(values)} rounds"
        drift = math.exp(trend([math.log(one) for one in self.times]))
        if max(drift, 1 / drift) > DRIFT:
            yield f"times drifted by a factor of {drift:.2f}"

    def latest(self) -> str:
        """The figures of the last round, on one line."""
        return ", ".join(f"{name} {values[-1]:g}" for name, values in vars(self).items() if values)


def trend(values: Sequence[float]) -> float:
    """What a straight line through values rises from the first to the last; 0 if that is noise.

    Noise is less than ERRORS standard errors of the slope.
    """
    number = len(values)
    if number < FEWEST:
        return 0.0
    line = statistics.linear_regression(range(number), values)
    rests = [y - line.slope * x - line.intercept for x, y in enumerate(values)]
    spread = number * (number**2 - 1) / 12  # sum of squares of the rounds about their mean
    error = math.sqrt(math.fsum(rest**2 for rest in rests) / (number - 2) / spread)
    return line.slope * (number - 1) if abs(line.slope) > ERRORS * error else 0.0


def soak(minutes: float, seed: int) -> int:
    """Run the loop, print what was watched; 1 where something grew, drifted or failed."""
    rng = random.Random(seed)
    top = Path(tempfile.mkdtemp(prefix="halfway-soak-"))
    until_s = time.monotonic() + 60 * minutes
    watched = Watched()
    failed: list[str] = []
    torch.set_num_threads(1)
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
            if rounds % EVERY == 0:
                print(f"{rounds} rounds: {watched.latest()}", flush=True)
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
    shutil.copy(TRACE, folder / "trace.json.gz")
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    picture_folders(folder / "data")
    wrong: list[str] = []
    for words in rng.sample(COMMANDS, len(COMMANDS)):
        before_s = _own_speed() if words[1] == "gemm" else 1.0
        found: Process = run(["-m", *words], folder, limit_s=150)
        wrong += [f"{words[1]}: {one}" for one in found.outcome.complaints((0,))]
        wrong += [f"{words[1]}: a process is left" for _ in found.left]
        if words[1] == "gemm":
            own_s = math.sqrt(before_s * _own_speed())
            times = [one["median_s"] for one in json.loads(
                (folder / "new.json").read_text("utf-8"))["results"] if one["status"] == "ok"
            ]  # fmt: skip
            watched.times.append(statistics.geometric_mean(times) / own_s)
    with contextlib.chdir(folder):
        for words in WITHIN:
            outcome = here(mains()["halfway"][0], "halfway", list(words))
            wrong += [f"{words[0]}: {one}" for one in outcome.complaints((0, 2))]
    return wrong


def _own_speed() -> float:
    """The median time of a product in this process, now, in seconds."""
    a = torch.ones(SIZE, SIZE)
    times: list[float] = []
    until_s = time.monotonic() + LOOKS_S
    while time.monotonic() < until_s:
        began_s = time.perf_counter()
        torch.mm(a, a)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


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
