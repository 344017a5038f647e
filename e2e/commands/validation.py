"""`python -m e2e validate`: predict and train many networks, for the error tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.case import TrainRequest
from e2e.commands.requests import request_of
from e2e.commands.train import run_requests
from e2e.networks import find
from e2e.recipes import parse_recipes
from e2e.validation_sets import (
    HELD_OUT,
    HELD_OUT_RECIPES,
    MATRIX,
    MATRIX_RECIPES,
    PREDICTING_S,
    seen,
)
from microbench import fmt
from microbench.errors import UserError
from microbench.run_output import Done, run_console
from microbench.sweep import parse_numbers

ARM_BUDGET_S = 10.0  # seconds of timing an arm gets here: errors are as good as what is measured
USUAL_BATCHES, HELD_OUT_BATCHES = "8,64", "8,32,128"  # of networks that no list has


def run_validation(
    networks: str | None, batch: str | None, options: dict[str, Any], held_out: Path | None = None
) -> Done:
    """Predict and train every network of the matrix, or those `held_out` into that file.

    UserError for a wrong network or option.
    """
    if held_out is None:
        batches = _batches(networks, batch, MATRIX, USUAL_BATCHES)
        recipes = MATRIX_RECIPES
    else:
        batches = _batches(networks, batch, HELD_OUT, HELD_OUT_BATCHES)
        recipes, options = HELD_OUT_RECIPES, _into(held_out, options)
        _check_unseen(batches)
    budget_s = ARM_BUDGET_S * len(parse_recipes(options.get("recipe") or recipes))
    options = {**options, "budget": options.get("budget") or budget_s}
    requests = [  # each network is predicted, then trained
        request_of(
            name, options | {"batch": sizes}, recipe=recipes, workers=0, train=trains,
            allow_run=True,
        )
        for name, sizes in batches.items()
        for trains in (False, True)
    ]  # fmt: skip
    for name in batches:
        find(name)  # a wrong name is an error before hours of work
    if held_out is not None:
        run_console(requests[0].outputs).print(
            _how_long([one for one in requests if one.train]), highlight=False
        )
    return run_requests(requests, "validate")


def _batches(
    networks: str | None, batch: str | None, usual: dict[str, str], others: str
) -> dict[str, str]:
    """Network -> batches: `usual`, or those named, with `others` for what it does not list."""
    if networks is None:
        return {name: batch or sizes for name, sizes in usual.items()}
    names = [name.strip() for name in networks.split(",") if name.strip()]
    if not names:
        raise UserError("--networks is empty; name networks, or leave it out for the default ones")
    return {name: batch or usual.get(name, others) for name in dict.fromkeys(names)}


def _into(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The options with this run file: a new one, or the one to go on with. --resume names it too,
    and then decides: a run file keeps the name of it, not the folder.
    """
    if options.get("json") is not None:
        raise UserError(f"--held-out {path} is the run file; leave out --json")
    if options.get("resume") is not None:
        return options
    return options | {"resume" if path.exists() else "json": path}


def _check_unseen(networks: dict[str, str]) -> None:
    known = seen(networks)
    if known:
        raise UserError(
            f"--held-out: {fmt.listed(known)} cannot be held out: the method was developed or is "
            "calibrated on it; name other networks"
        )


def _how_long(requests: list[TrainRequest]) -> str:
    """How long it takes, from what predicting took for the published validations."""
    each = [_expected_s(request) for request in requests]
    count = sum(map(_comparisons, requests))
    return (
        f"{fmt.count(len(requests), 'network')}, {fmt.count(count, 'comparison')}: about "
        f"{fmt.duration(sum(each) / len(each))} a network, {fmt.duration(sum(each))} in all on an "
        f"H200. --budget SECONDS shortens the timing of a comparison, now "
        f"{fmt.duration(_timing_s(requests[0]))}. The same command goes on with an unfinished file."
    )


def _comparisons(request: TrainRequest) -> int:
    return len(parse_numbers(request.arms.batch or "1", "--batch"))


def _timing_s(request: TrainRequest) -> float:
    """Seconds of timing per comparison, on a GPU."""
    assert request.budget is not None
    return request.budget


def _expected_s(request: TrainRequest) -> float:
    recipes = parse_recipes(request.arms.recipe or "")
    return _comparisons(request) * (len(recipes) * PREDICTING_S + _timing_s(request))
