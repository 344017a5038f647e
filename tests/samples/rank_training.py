"""What the ranks of a torchrun do in tests: each writes what it found to FOLDER/RANK.pt.

`torchrun -m samples.rank_training FOLDER`
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from e2e.case import TrainCase
from e2e.data.datasets.synthetic import Synthetic
from e2e.data.types import LoadSpec, Options
from e2e.networks.losses import classification_loss, count_right
from e2e.networks.network import Network
from e2e.recipes import RECIPES
from e2e.training.launch import dist_env
from e2e.training.ranks import Ranks, device_of
from e2e.training.trainer import Trainer
from microbench.errors import UserError
from samples.feeding import Batch, noise

FEATURES, CLASSES, BATCH, STEPS = 12, 5, 16, 5
CASES = {
    "fp32": {},
    "adam": {"optimizer": "adam"},
    "accumulate": {"accumulate": 2},
    "amp-bf16": {"recipe": "amp-bf16"},
    "clip": {"clip": 0.1},
    "bf16 gradients": {"compress": "bf16"},
    "fp16 gradients": {"compress": "fp16"},
}


def perceptron() -> nn.Module:
    """Three layers without batch-norm."""
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, CLASSES)
    )


NETWORK = Network(
    name="own", build=perceptron, input=(FEATURES,), classes=CLASSES,
    loss=classification_loss, accuracy=count_right,
    optimizer="sgd", lr=0.05, weight_decay=0.01, batch=8, cpu_batch=8,
)  # fmt: skip
CASE = TrainCase("own", "fp32", BATCH, str(FEATURES), "")


def trained(
    changes: dict[str, Any], device: torch.device, ranks: Ranks | None, batch: int = BATCH
) -> dict[str, Any]:
    """Weights and held-out results after STEPS steps; a local step, and what equalising undoes."""
    case = replace(CASE, **{**changes, "batch": batch})
    trainer = Trainer(NETWORK, case, RECIPES[case.recipe], device, seed=1)
    share = (ranks.rank, ranks.world) if ranks else (0, 1)
    data = Synthetic(Options((FEATURES,), CLASSES, share=share))
    feed = data.load(LoadSpec(batch, device, 7))
    if ranks:
        trainer.join(ranks)
    for _ in range(STEPS):
        trainer.step(feed)
    own = slice(ranks.rank, None, ranks.world) if ranks else slice(None)
    held_out = trainer.evaluate(iter(held_out_on(device)[own]))
    found = {"weights": weights_of(trainer), "held out": held_out}
    if ranks:
        trainer.step(feed, exchange=False)
        found["apart"] = weights_of(trainer)
        trainer.broadcast_state()
        found["again"] = weights_of(trainer)
    return found


def held_out_on(device: torch.device) -> list[Batch]:
    """Four batches, the same for all ranks."""
    return [(inputs.to(device), classes.to(device)) for inputs, classes in noise(NETWORK)]


def weights_of(trainer: Trainer) -> torch.Tensor:
    """All weights as one vector on the CPU."""
    return torch.cat([w.detach().float().flatten().cpu() for w in trainer.module.parameters()])


def of_one_batch(device: torch.device, ranks: Ranks | None) -> tuple[float | None, float | None]:
    """(loss, accuracy) of a network without accuracy on one batch, which is of rank 0 alone."""
    network = replace(NETWORK, accuracy=None)
    trainer = Trainer(network, CASE, RECIPES["fp32"], device, seed=1)
    if ranks:
        trainer.join(ranks)
    batches = held_out_on(device)[: 0 if ranks and ranks.rank else 1]
    return trainer.evaluate(iter(batches))


def masks(device: torch.device, ranks: Ranks) -> list[torch.Tensor]:
    """Masks of dropout after joining, and after each of two new beginnings."""
    trainer = Trainer(NETWORK, CASE, RECIPES["fp32"], device, seed=1)
    trainer.join(ranks)
    drop, ones = nn.Dropout(0.5), torch.ones(64, device=device)
    found = [drop(ones)]
    for seed in (1, 2):
        trainer.restart(seed)
        found.append(drop(ones))
    return [mask.cpu() for mask in found]


def agreement(ranks: Ranks) -> dict[str, str]:
    """What each rank sees where the last one alone fails, and where none does."""
    last = ranks.rank == ranks.world - 1
    with ranks.fail_together():
        found = {"none": "fine"}
    planted = {
        "memory": torch.OutOfMemoryError("planted"),
        "error": ValueError("planted"),
        "mistake": UserError("planted"),
    }
    for name, error in planted.items():
        try:
            with ranks.fail_together():
                if last:
                    raise error
        except Exception as raised:
            found[name] = f"{type(raised).__name__}: {raised}"
    return found


def main(folder: Path) -> None:
    """Join, train, and write."""
    env = dist_env()
    asked = "auto" if torch.cuda.is_available() else "cpu"
    device = device_of(env, os.environ.get("RANK_DEVICE", asked))
    ranks = Ranks.join(env, device)
    found: dict[str, Any] = {
        name: trained(changes, device, ranks) for name, changes in CASES.items()
    }
    found |= {"one batch": of_one_batch(device, ranks), "masks": masks(device, ranks)}
    found |= {"agreement": agreement(ranks), "same": ranks.from_rank0(env.rank)}
    found |= {"slowest": ranks.slowest(float(env.rank))}
    torch.save(found, folder / f"{env.rank}.pt")
    ranks.leave()
    os._exit(0)  # now and then torch's threads of gloo abort a process that ends by itself


if __name__ == "__main__":
    main(Path(sys.argv[1]))
