"""The command line's words as a request."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from e2e.case import Options
from e2e.commands.train import TrainRequest
from e2e.commands.worker import TrainSettings
from e2e.results.types import AT_HAND, USUAL_LOADER
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.run_output import outputs_from

MAX_SIDES = 4
ON_DEATH = ("stop", "restart")


def training_request(network: str, words: dict[str, Any]) -> TrainRequest:
    """The training that these options ask for; UserError for a shape that cannot be read."""
    # What is going to run anyway may run to be recorded.
    return _request(network, {**words, "allow_run": True})


def prediction_request(network: str, words: dict[str, Any]) -> TrainRequest:
    """The same without training: what `predict` has no options for is as usual."""
    usual = {
        "data": "synthetic", "loader": None, "workers": 0, "cpus": None, "iterations": None,
        "epochs": None, "repeats": 1, "budget": None, "on_worker_death": "stop", "prefetch": None,
    }  # fmt: skip
    return _request(network, {**usual, **words, "train": False})


def _request(network: str, words: dict[str, Any]) -> TrainRequest:
    words = {**words, "input": parse_shape(words["input"])}
    outputs = outputs_from(words)
    made = words | loading_of(words) | {"network": network, "outputs": outputs}
    made["options"] = Options(**_those(Options, made))
    made["data"] = words["data"]  # with its folder
    if made["on_worker_death"] not in ON_DEATH:
        choices = " or ".join(ON_DEATH)
        raise UserError(f"--on-worker-death takes {choices}, not {made['on_worker_death']!r}")
    made["settings"] = TrainSettings(**_those(TrainSettings, made))
    return TrainRequest(**_those(TrainRequest, made))


def loading_of(words: dict[str, Any]) -> dict[str, Any]:
    """The fields of a case that say how data is loaded; UserError for what cannot be."""
    if words["workers"] < 0:
        raise UserError(f"--workers starts at 0, not {words['workers']}")
    data, _, _ = words["data"].partition(":")
    loader = words["loader"] or USUAL_LOADER.get(data, data)
    if data == "synthetic" and loader not in (data, "pinned"):
        raise UserError(f"synthetic data is one batch: loader {loader} has nothing to load")
    # What is at hand has no processes that load.
    workers = 0 if loader in AT_HAND else words["workers"]
    prefetch = checked_prefetch(words["prefetch"])
    return {
        "data": data,
        "loader": loader,
        "workers": workers,
        "prefetch": prefetch if workers else 0,
        "cpus": checked_cpus(words["cpus"]),
    }


def checked_prefetch(asked: int | None) -> int:
    """--prefetch as a case has it, 0 for the usual; UserError for less than a batch."""
    if asked is not None and asked < 1:
        raise UserError(f"--prefetch starts at 1, not {asked}")
    return asked or 0


def checked_cpus(asked: int | None) -> int:
    """--cpus as a case has it, 0 for all; UserError for more than there are."""
    there = usable_cores()
    if asked is not None and not 1 <= asked <= there:
        raise UserError(f"--cpus {asked}: this process may use 1 to {there} cores")
    return asked or 0


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """ "3x512x512" as numbers; UserError for anything else."""
    if text is None:
        return None
    shape = text.strip().lower()
    if not re.fullmatch(rf"\d{{1,9}}(x\d{{1,9}}){{0,{MAX_SIDES - 1}}}", shape):
        raise UserError(f"--input: cannot read {text!r}; write 3x512x512, or 512 for tokens")
    return tuple(int(side) for side in shape.split("x"))


def _those(kind: type, words: dict[str, Any]) -> dict[str, Any]:
    return {field.name: words[field.name] for field in fields(kind) if field.name in words}
