"""A user's folder, and commands that are run in it once for all tests that look at them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.halfway import main as halfway
from microbench.results.runfile import read_run
from samples.commands import Main, Ran, run_here
from samples.feeding import put, random_image, save

PROGRESS = re.compile(r"\[\d+/\d+\] ")
MODULE = """
import torch
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )

def layers():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1, stride=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10),
    )
"""
COMMANDS = {
    "gemm": "gemm --dtype fp16 --vs fp32 --sizes 16,24x32x40 --budget 0.2",
    "conv": "conv --channels 8,4x6 --pass fprop,wgrad --layout nhwc --image 6 --batch 2 "
            "--dtype bf16 --vs fp32 --seed 3 --budget 0.2",
    "attention": "attention --sizes 16,24 --heads 4x2x8 --batch 1 --pass bprop --dtype bf16 "
                 "--vs fp32 --budget 0.2",
    "payoff": "payoff --channels 8..32 --image 4,6 --batch 1,2 --dtype bf16 --vs fp32 "
              "--layout nhwc --budget 0.2",
    "layers": "layers shop:layers --batch 2 --image 16 --dtype fp32 --vs none --budget 0.2",
    "train": "train cnn-cifar --amp --batch 2,4 --seed 3 --budget 0.2",
    "learn": "train cnn-cifar --recipe fp32,amp-bf16 --data generated --iterations 6 --batch 16 "
             "--seed 5 --repeats 2 --budget 0.2",
    "predict": "predict shop:build --input 3x8x8 --amp --batch 4",
    "stalls": "stalls cnn-cifar --data folder:images --recipe fp32,amp-bf16 --batch 4 "
              "--workers 1,2 --measure all --budget 0.2",
    "loader": "loader --backend torchvision,dali --data generated --workers 1 --batch 4 "
              "--budget 0.2",
}  # fmt: skip


def words_of(name: str) -> list[str]:
    """The words of one of COMMANDS, on the CPU."""
    return [*COMMANDS[name].split(), "--device", "cpu"]


@dataclass(frozen=True)
class Kept:
    """A command that ran once, and what it left."""

    name: str
    ran: Ran
    file: Path

    @property
    def document(self) -> dict[str, Any]:
        """The run file, as it is written."""
        read_run(self.file)
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    @property
    def report(self) -> str:
        """What was printed, without progress and the line that names the file."""
        lines = self.ran.stdout.splitlines()
        first = max((i for i, line in enumerate(lines) if PROGRESS.match(line)), default=-1)
        last = next(i for i, line in enumerate(lines) if line.startswith("Run file: "))
        return "\n".join(lines[first + 1 : last]).strip()


class Shop:
    """A user's folder, with a module, images and a state of its own; each command runs once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(MODULE)
        images = folder / "images" / "train"
        for i in range(16):
            save(random_image(i, (48, 40)), images / f"class{i % 2}" / f"{i}.jpg")
        put(images / "class0" / "broken.jpg", b"\xff\xd8\xff no more than this")
        self._kept: dict[str, Kept] = {}

    def run(self, *words: object, main: Main = halfway, **environment: str) -> Ran:
        """A command in this folder."""
        here = {"XDG_STATE_HOME": str(self.folder / "state"), "COLUMNS": "100",
                "XDG_CACHE_HOME": str(self.folder / "cache")}  # fmt: skip
        return run_here(main, "halfway", *words, cwd=self.folder, **here, **environment)

    def kept(self, name: str) -> Kept:
        """One of COMMANDS."""
        if name not in self._kept:
            file = self.folder / f"{name}.json"
            ran = self.run(*words_of(name), "--json", file)
            self._kept[name] = Kept(name, ran, file)
        return self._kept[name]
