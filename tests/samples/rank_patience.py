"""Ranks of which one is slow, with limits of seconds.

`torchrun -m samples.rank_patience FOLDER`: each writes what it found to FOLDER/RANK.pt.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from e2e.recipes import RECIPES
from e2e.training import ranks as limits
from e2e.training.place import place_of
from e2e.training.ranks import Ranks, RanksLost
from e2e.training.trainer import Trainer
from samples.rank_training import CASE, NETWORK, perceptron, weights_of

EXCHANGE_S, MEET_S, SLOW_S = 1.0, 2.0, 3.0
CPU = torch.device("cpu")


def slow(folder: Path) -> None:
    """Be late where nothing is exchanged, then where something is."""
    limits.EXCHANGE_S = EXCHANGE_S
    place = place_of(os.environ)
    assert place

    def late(rank: int) -> None:
        if place.rank == rank:
            time.sleep(SLOW_S)

    def build() -> nn.Module:
        late(1)
        return perceptron()

    late(0)
    ranks = Ranks.join(place, CPU)
    with ranks.together():
        trainer = Trainer(replace(NETWORK, build=build), CASE, RECIPES["fp32"], CPU, seed=1)
    trainer.join(ranks)
    trainer.restart(2)
    lost = False
    try:
        late(1)
        ranks.gather(None, MEET_S)
    except RanksLost:
        lost = True
    torch.save({"weights": weights_of(trainer), "lost": lost}, folder / f"{place.rank}.pt")
    os._exit(0)  # as the ranks have lost each other


if __name__ == "__main__":
    slow(Path(sys.argv[1]))
