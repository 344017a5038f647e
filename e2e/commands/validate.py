"""`python -m e2e validate`: predictions beside measurements, over a matrix of networks."""

from __future__ import annotations

from typing import Any

from e2e.commands.requests import request_of
from e2e.commands.train import run_requests
from e2e.networks import find
from microbench.errors import UserError

# What a default validation trains: networks of different kinds at batches from 1 to 512, four of
# them where the host is the limit and where the device is.
MATRIX = {
    "resnet18": "16,128",
    "wrn-16-4": "32,512",
    "gpt": "1,8",
    "vit_b_16": "8,64",
    "densenet121": "8",
    "swin_t": "64",
    "convnext_tiny": "64",
    "resnet50": "128",
    "resnext50_32x4d": "64",
    "mobilenet_v2": "128",
    "efficientnet_b0": "64",
    "vgg16": "32",
}
RECIPES = "fp32,tf32,amp,amp-bf16"


def run_validation(networks: str | None, batch: str | None, options: dict[str, Any]) -> None:
    """Predict and train every network of the matrix, and print how far apart they are."""
    batches = _batches(networks, batch)
    requests = [
        request_of(
            name, options | {"batch": sizes}, recipe=RECIPES, workers=0, predict=True,
            allow_run=True,
        )
        for name, sizes in batches.items()
    ]  # fmt: skip
    for name in batches:
        find(name)  # a wrong name is an error before hours of work
    run_requests(requests, "validate")


def _batches(networks: str | None, batch: str | None) -> dict[str, str]:
    if networks is None:
        return {name: batch or sizes for name, sizes in MATRIX.items()}
    names = [name.strip() for name in networks.split(",") if name.strip()]
    if not names:
        raise UserError("--networks is empty; name some, or leave it out for the usual ones")
    return {name: batch or MATRIX.get(name, "8,64") for name in dict.fromkeys(names)}
