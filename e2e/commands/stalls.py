"""`python -m e2e stalls` and `python -m e2e loader`: their words, and the run that they ask for."""

from __future__ import annotations

from typing import Any

from e2e.commands.requests import checked_prefetch, training_request
from e2e.commands.train import Procedure, TrainRequest, carry_out, check_words
from e2e.data.loaders import LOADERS
from e2e.input_stalls.procedure import LOAD_BUDGET_S, MEASURED, Loaders, Stalls
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.report.screen import make_console
from microbench.results.runfile import read_run
from microbench.run_output import report, run_path
from microbench.sweep import parse_names, parse_numbers

SMALL = ("generated", "cifar10")  # data of 3x32x32
# What trains has more options than what loads.
NOT_ASKED: dict[str, Any] = {
    "amp": False, "recipe": "fp32,amp", "ladder": False, "input": None, "layout": None,
    "optimizer": None, "label_smoothing": 0.0, "accumulate": 1, "loss": None, "loss_scale": None,
    "keep_batchnorm_fp32": False, "fused": True, "compile": False, "graph": False,
    "iterations": None, "epochs": None, "repeats": 1, "seed": 1, "lr": None, "warmup": 0,
    "strict": False, "on_worker_death": "stop", "predict": False, "verify": False, "budget": None,
}  # fmt: skip


def run_stalls(network: str, workers: str | None, measure: str, words: dict[str, Any]) -> None:
    """Measure recipes and loader apart, foretell them together, and measure some of that."""
    if measure not in MEASURED:
        raise UserError(f"--measure takes one of {', '.join(MEASURED)}, not {measure!r}")
    request = _request(network, {**words, "loader": words["loader"] or "torchvision"})
    loader = request.options.loader
    fitting = [name for name, one in LOADERS.items() if one.trains and one.processes]
    if loader not in fitting:
        fit = ", ".join(fitting)
        raise UserError(f"--loader {loader} loads nothing while it trains; take one of {fit}")
    counts = _counts(workers, request)
    budget_s = min(LOAD_BUDGET_S, request.budget or LOAD_BUDGET_S)
    ahead = checked_prefetch(words["prefetch"])
    name = f"stalls-{network.replace(':', '-')}"
    _carry_out(request, Stalls(counts, ahead, measure, budget_s), name)


def run_loaders(backend: str, workers: str | None, cold: bool, words: dict[str, Any]) -> None:
    """Measure loaders alone."""
    names = list(LOADERS) if backend == "all" else parse_names(backend, list(LOADERS), "--backend")
    data = str(words["data"]).partition(":")[0]
    if data == "synthetic":
        raise UserError("synthetic data is one batch: there is nothing to load")
    network = "cnn-cifar" if data in SMALL else "resnet50"
    request = _request(network, {**words, "loader": None})
    counts = _counts(workers, request)
    budget_s = request.budget or LOAD_BUDGET_S
    ahead = checked_prefetch(words["prefetch"])
    _carry_out(request, Loaders(names, counts, ahead, cold, budget_s), "loader")


def _counts(workers: str | None, request: TrainRequest) -> list[int]:
    """The numbers of workers; unless they are given, doubled from one to one a core."""
    return parse_numbers(workers or f"1..{request.options.cpus or usable_cores()}", "--workers")


def _request(network: str, words: dict[str, Any]) -> TrainRequest:
    given = words.items()
    asked = {name: value for name, value in given if value is not None or name not in NOT_ASKED}
    request = training_request(network, {**NOT_ASKED, "workers": 0, **asked})
    check_words(request)
    return request


def _carry_out(request: TrainRequest, procedure: Procedure, name: str) -> None:
    outputs = request.outputs
    before = read_run(outputs.resume) if outputs.resume else None
    path = run_path(outputs, name)
    console = make_console(quiet=outputs.quiet)
    run = carry_out(request, before, path, console, procedure)
    report(run, path, outputs, console)
