"""Ranks of which one is slow, or is stopped, with limits of seconds.

`torchrun -m samples.rank_patience FOLDER`: each writes what it found to FOLDER/RANK.pt.
`torchrun -m samples.rank_patience FOLDER stopped`: rank 0 writes whom it misses to FOLDER/missed.
`torchrun -m samples.rank_patience FOLDER left`: both leave, and rank 0 ends long after rank 1.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from e2e.recipes import RECIPES
from e2e.training.distributed import beats
from e2e.training.distributed import ranks as limits
from e2e.training.distributed.place import place_of
from e2e.training.distributed.ranks import Ranks, RanksLost
from e2e.training.trainer import Trainer
from samples.rank_training import CASE, NETWORK, perceptron, weights_of

EXCHANGE_S, AGREE_S, SLOW_S = 1.0, 2.0, 3.0
CPU = torch.device("cpu")


def watched(folder: Path, looks: int) -> Ranks:
    """Ranks of which rank 0 writes whom it misses, after so many looks."""
    beats.BEAT_S, beats.MISSED = 0.1, looks
    place = place_of(os.environ)
    assert place
    return Ranks.join(place, CPU, (folder / "missed").write_text)


def stopped(folder: Path) -> None:
    """Stop rank 1, and wait for it where each may take long."""
    ranks = watched(folder, 20)
    with ranks.part():
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)


def left(folder: Path) -> None:
    """Leave together, and end at other times."""
    ranks = watched(folder, 10)
    with ranks.part():
        pass
    ranks.leave()
    if ranks.rank == 0:
        time.sleep(SLOW_S)
    (folder / f"{ranks.rank}.ended").touch()
    os._exit(0)


def slow(folder: Path) -> None:
    """Be late where nothing is exchanged, then where something is."""
    limits.EXCHANGE_S, limits.AGREE_S = EXCHANGE_S, AGREE_S
    place = place_of(os.environ)
    assert place

    def late(rank: int) -> None:
        if place.rank == rank:
            time.sleep(SLOW_S)

    def build() -> nn.Module:
        late(1)
        return perceptron()

    late(0)
    ranks = Ranks.join(place, CPU, print)
    with ranks.part():
        trainer = Trainer(replace(NETWORK, build=build), CASE, RECIPES["fp32"], CPU, seed=1)
    trainer.join(ranks)
    trainer.restart(2)
    lost = False
    try:
        with ranks.part(exchanges=True):
            late(1)
    except RanksLost:
        lost = True
    torch.save({"weights": weights_of(trainer), "lost": lost}, folder / f"{place.rank}.pt")
    os._exit(0)  # as the ranks have lost each other


if __name__ == "__main__":
    what = {"stopped": stopped, "left": left}.get("".join(sys.argv[2:]), slow)
    what(Path(sys.argv[1]))
