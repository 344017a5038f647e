"""`python -m e2e validate`: predictions beside measurements, over a matrix of networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from e2e.networks import find
from e2e.predict.validation import MATRIX, RECIPES, Hits, error_table, intervals_kept, limits_named
from e2e.requests import training_request
from e2e.run_command import TrainRequest, carry_out, check_words
from microbench.errors import UserError
from microbench.report import words
from microbench.report.grid import Column, Grid, Row
from microbench.report.screen import make_console
from microbench.results import Run
from microbench.run_output import report, run_path
from microbench.runfile import read_run


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
        run = carry_out(request, run, path, console)
    assert run is not None
    report(run, path, outputs, console)
    print_errors(run, console)


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
        "epochs": None, "repeats": 1, "predict": True, "on_worker_death": "stop",
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    nothing = {name: None for name in options}
    return training_request(network, {**nothing, **usual, **given, "batch": batch})


def print_errors(run: Run, console: Console) -> None:
    """The error table of a run, and how often the limit was named right."""
    lines = error_table(run.trainings)
    if not lines:
        console.print("Nothing was both predicted and measured.")
        return
    console.print("\nPredicted against measured, absolute errors in per cent")
    for line in _grid(lines).lines(console.width)[0]:
        console.print(line)
    named = limits_named(run.trainings)
    if named.count:
        console.print(f"The limit was named right in {_share(named)}.")
    for limit, who in (("gpu", "GPU"), ("host", "host")):
        kept = intervals_kept(run.trainings, limit)
        if kept.count:
            console.print(
                f"Limited by the {who}: the step was within the predicted interval in "
                f"{_share(kept)}."
            )


def _share(hits: Hits) -> str:
    return f"{hits.right} of {hits.count} ({hits.right / hits.count:.0%})"


def _grid(lines: Sequence[Any]) -> Grid:
    grid = Grid(
        [
            Column("error of the"), Column("cases", right=True), Column("median", right=True),
            Column("largest", right=True), Column("target"), Column("furthest off", drop=1),
        ]
    )  # fmt: skip
    for line in lines:
        target = f"{line.target[0]:g} / {line.target[1]:g} {'met' if line.met else 'missed'}"
        grid.rows.append(
            Row(
                [
                    line.what, str(line.count), f"{line.median_pct:.1f}",
                    f"{line.largest_pct:.1f}", target, words.clean(line.worst),
                ]
            )
        )  # fmt: skip
    return grid
