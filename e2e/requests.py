"""The command line's words as a request."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from e2e.plans import Options
from e2e.run_command import TrainRequest
from e2e.worker import TrainSettings
from microbench.errors import UserError
from microbench.run_output import outputs_from

MAX_SIDES = 4


def training_request(network: str, words: dict[str, Any]) -> TrainRequest:
    """The training that these options ask for; UserError for a shape that cannot be read."""
    # What is going to run anyway may run to be recorded.
    return _request(network, {**words, "allow_run": True})


def prediction_request(network: str, words: dict[str, Any]) -> TrainRequest:
    """The same without training: what `predict` has no options for is as usual."""
    usual = {
        "data": "synthetic", "workers": 0, "iterations": None, "epochs": None, "repeats": 1,
        "budget": None,
    }  # fmt: skip
    return _request(network, {**usual, **words, "train": False})


def _request(network: str, words: dict[str, Any]) -> TrainRequest:
    words = {**words, "input": parse_shape(words["input"])}
    outputs = outputs_from(words)
    loader, _, _ = words["data"].partition(":")
    if words["workers"] < 0:
        raise UserError(f"--workers starts at 0, not {words['workers']}")
    if loader != "folder":  # nothing else has processes that load
        words["workers"] = 0
    made = words | {"network": network, "loader": loader, "outputs": outputs}
    made["options"] = Options(**_those(Options, made))
    made["settings"] = TrainSettings(**_those(TrainSettings, made))
    return TrainRequest(**_those(TrainRequest, made))


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
