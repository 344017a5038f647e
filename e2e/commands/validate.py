"""`python -m e2e validate`: predictions beside measurements, over a matrix of networks."""

from __future__ import annotations

from typing import Any

from e2e.commands.requests import training_request
from e2e.commands.train import TrainRequest, carry_out, check_words
from e2e.networks import find
from microbench.errors import UserError
from microbench.report.screen import make_console
from microbench.results.runfile import read_run
from microbench.run_output import report, run_path

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
    requests = [_request(name, sizes, options) for name, sizes in batches.items()]
    for request in requests:
        check_words(request)
        find(request.network)  # a wrong name is told before hours of work
    outputs = requests[0].outputs
    path = run_path(outputs, "validate")
    console = make_console(quiet=outputs.quiet)
    run = read_run(outputs.resume) if outputs.resume else None
    for request in requests:
        run = carry_out(request, run, path, console, whole=request is requests[-1])
    assert run is not None
    report(run, path, outputs, console)


def _batches(networks: str | None, batch: str | None) -> dict[str, str]:
    if networks is None:
        return {name: batch or sizes for name, sizes in MATRIX.items()}
    names = [name.strip() for name in networks.split(",") if name.strip()]
    if not names:
        raise UserError("--networks is empty; name some, or leave it out for the usual ones")
    return {name: batch or MATRIX.get(name, "8,64") for name in dict.fromkeys(names)}


def _request(network: str, batch: str, options: dict[str, Any]) -> TrainRequest:
    usual: dict[str, Any] = {
        "amp": False, "recipe": RECIPES, "ladder": False, "input": None, "layout": None,
        "data": "synthetic", "loader": None, "workers": 0, "cpus": None, "iterations": None,
        "epochs": None, "repeats": 1, "predict": True, "on_worker_death": "stop", "prefetch": None,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    nothing = {name: None for name in options}
    return training_request(network, {**nothing, **usual, **given, "batch": batch})
