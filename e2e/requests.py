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


def request_from(network: str, words: dict[str, Any]) -> TrainRequest:
    """The request that these options make; UserError for a shape that cannot be read."""
    words = {**words, "input": parse_shape(words["input"])}
    outputs = outputs_from(words)
    loader, _, _ = words["data"].partition(":")
    made = {"network": network, "loader": loader}
    if words["workers"] < 0:
        raise UserError(f"--workers starts at 0, not {words['workers']}")
    if loader != "folder":  # nothing else has processes that load
        words["workers"] = 0
    options = Options(**_those(Options, words | made))
    settings = TrainSettings(**_those(TrainSettings, words | made))
    return TrainRequest(
        network=network,
        options=options,
        settings=settings,
        iterations=words["iterations"],
        epochs=words["epochs"],
        repeats=words["repeats"],
        budget=words["budget"],
        outputs=outputs,
    )


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
