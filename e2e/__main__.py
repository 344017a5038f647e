"""The command line: `python -m e2e NETWORK` or a command. Heavy modules load when one runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from e2e.case import SCHEMAS
from microbench.command_line import (
    FILE,
    REST,
    Command,
    Named,
    Outputs,
    click_options,
    run_app,
    said,
)
from microbench.errors import UserError

FIRST = "train"  # what the first word means when it is no command: a network to train


class TrainCommand(Command):
    """A command that may go on with a run of training or loading."""

    either = (frozenset({"amp", "recipe", "ladder"}), frozenset({"iterations", "epochs"}))

    def check_taken(self, path: Path, name: str, value: Any) -> None:
        """UserError for a folder or file of which the run file has the name only."""
        kind, colon, place = str(value).partition(":")
        places = {"data": ("folder", "cifar10"), "network": ("hf",)}
        if colon and kind in places.get(name, ()) and not Path(place).exists():
            option = "--data" if name == "data" else "NETWORK"
            raise UserError(f"--resume {path} keeps no paths: give {option} {kind}:PATH/{place}")


class Commands(click.Group):
    """Commands, or else the name of a network."""

    command_class = TrainCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the usual command first where none is named."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [FIRST, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say that a network may stand where a command does."""
        formatter.write_usage("python -m e2e", "NETWORK [OPTIONS] | COMMAND [ARGS]...")


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def app() -> None:
    """What low precision buys in training: throughput, memory, power, convergence, side by side.

    NETWORK is a name (`list` shows them) or module:function; `train --help` has all its options.
    """


OUTPUT = (
    "json",
    "csv",
    "chart",
    "html",
    "resume",
    said("verbose", help="Phases of every arm"),
    "quiet",
)
LOADING = (
    said("data", default="made", help="made, folder:DIR, cifar10:DIR or generated"),
    said(
        "workers", type=str, default=None,
        help="Processes that load: 1..16, 2,4,8  [default: 1 to one a core]",
    ),
    "prefetch",
    "cpus",
    "on_worker_death",
)  # fmt: skip
ARMS = (
    "amp", "recipe", "ladder", "batch", "input", "layout", "optimizer", "label_smoothing",
    "accumulate", "loss", "loss_scale", "keep_batchnorm_fp32", "fused", "compile", "graph", REST,
    "device",
)  # fmt: skip
# Which command takes which option, in the order of --help.
OPTIONS = {
    "train": (
        *ARMS,
        click.option(
            "--explain", is_flag=True, help="Say what each recipe does, and train nothing"
        ),
        "data", "strict", "loader", "workers", "prefetch", "cpus", "on_worker_death", "iterations",
        "epochs", "repeats", "seed", "lr", "warmup", "predict", "verify", "budget", *OUTPUT,
    ),
    "predict": (*ARMS, *OUTPUT, "allow_run"),
    "validate": (
        said("recipe", help="Recipes of every network  [default: fp32,tf32,amp,amp-bf16]"),
        said("batch", help="Batches of every network  [default: one or two, by the network]"),
        "layout",
        said("graph", help="Capture the steps as CUDA graphs"),
        said("verify", help="Measure proposed fixes too"),
        "cpus", "device", "budget", *OUTPUT,
    ),
    "stalls": (
        *LOADING,
        said("recipe", default="fp32,amp", help="What is compared, as for train"),
        said("batch", help="Samples in a step  [default: the network's usual]"),
        said("layout", help="nchw or nhwc (channels_last)  [default: nhwc on a GPU]"),
        said("loader", help="What loads (`list` names them)  [default: torchvision]"),
        "compile", "graph",
        click.option(
            "--measure", default="some", show_default=True,
            help="Of what is foretold, measure some, all or none",
        ),
        "device", "budget", *OUTPUT,
    ),
    "loader": (
        *LOADING, *OUTPUT,
        click.option(
            "--backend", default="all", show_default=True, help="Loaders by name, by commas"
        ),
        said("batch", default="128", help="Samples in a batch"),
        said("input", help="Shape of a sample  [default: 3x224x224, or the data's own]"),
        click.option("--cold", is_flag=True, help="Also with files that are not in memory"),
        said("budget", help="Seconds of loading each  [default: 6]"),
        "device",
    ),
}  # fmt: skip


def _options(command: str) -> Callable[..., Any]:
    return click_options(command, OPTIONS, *SCHEMAS, Outputs)


@app.command()
@click.argument("network", metavar="NETWORK", required=False)
@_options("train")
def train(network: str | None, explain: bool, **options: Any) -> None:
    """Train NETWORK under several precision recipes, in turns, and compare them."""
    if explain:
        from e2e.commands.list import explain_recipes

        explain_recipes(options["recipe"], quiet=options["quiet"])
        return
    if network is None:
        raise click.UsageError("name a network: python -m e2e resnet50 --amp; `list` shows them")
    from e2e.commands.requests import request_of
    from e2e.commands.train import check_known, run_training

    # What is going to run anyway may run to be recorded.
    done = run_training(request_of(network, options, allow_run=True))
    done.report()
    check_known(done)


@app.command()
@click.argument("network", metavar="NETWORK", cls=Named)
@_options("predict")
def predict(network: str, **options: Any) -> None:
    """Predict NETWORK's steps without running it: trace it, measure its operations one by one."""
    from e2e.commands.requests import request_of
    from e2e.commands.train import check_known, run_training

    done = run_training(request_of(network, options, train=False))
    done.report()
    check_known(done)


@app.command()
@click.option("--networks", help="Names, by commas  [default: twelve of different kinds]")
@_options("validate")
def validate(networks: str | None, batch: str | None, **options: Any) -> None:
    """Predict and measure a matrix of networks, recipes and batches: the error table."""
    from e2e.commands.train import run_validation

    run_validation(networks, batch, options).report()


@app.command()
@click.argument("network", metavar="NETWORK", cls=Named)
@_options("stalls")
def stalls(network: str, workers: str | None, measure: str, **options: Any) -> None:
    """Say from how many workers on low precision pays: precision x workers, by difference."""
    from e2e.commands.stalls import run_stalls

    run_stalls(network, workers, measure, options).report()


@app.command()
@_options("loader")
def loader(backend: str, workers: str | None, cold: bool, **options: Any) -> None:
    """Measure loaders alone: images a second, and a second and core."""
    from e2e.commands.stalls import run_loaders

    run_loaders(backend, workers, cold, options).report()


@app.command(name="make-data")
@click.argument("folder", metavar="DIR", type=FILE)
@click.option("--images", default=20_000, show_default=True, help="How many, held-out ones too")
@click.option("--classes", default=100, show_default=True, help="In how many classes")
@click.option("--seed", default=1, show_default=True, help="Another seed makes other images")
@click.option("--shards", default=0, show_default=True, help="Pack them into tar files too")
@click.option("--workers", type=int, help="Processes  [default: one a core]")
@click.option("--quiet", is_flag=True, help="Print nothing but errors")
def make_data(folder: Path, **options: Any) -> None:
    """Make photo-like JPEGs in class folders, for who has no photographs to train on."""
    from e2e.commands.make_data import run_make_data

    run_make_data(folder, **options)


@app.command(name="list")
def list_networks() -> None:
    """The networks and the loaders that are known by name."""
    from e2e.commands.list import print_names

    print_names()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    return run_app(app, "python -m e2e", arguments)


if __name__ == "__main__":
    sys.exit(main())
