"""The command line: `python -m e2e NETWORK` or a command. Heavy modules load when one runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from microbench.command_line import FILE, option, run_app, with_options

FIRST = "train"  # what the first word means when it is no command: a network to train


class Commands(click.Group):
    """Commands, or else the name of a network."""

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


flag = click.option
ARMS = (
    flag("--amp", is_flag=True, help="fp32, tf32 and AMP side by side (the default)"),
    option("--recipe", None, "fp32,tf32,amp,amp-bf16,fp16,bf16,O0..O3 (see train --explain)"),
    flag("--ladder", is_flag=True, help="From fp32 to a CUDA graph, one change a rung"),
    option("--batch", None, "Samples in a forward pass: 256, 128..2048 [default: usual]"),
    option("--input", None, "Shape of a sample: 3x512x512, or 512 for tokens"),
    option("--layout", None, "nchw, nhwc (channels_last)  [default: nhwc on a GPU]"),
    option("--optimizer", None, "sgd, adam or adamw  [default: the network's usual]"),
    option("--label-smoothing", "0", "Share of a target spread over classes", type=float),
    option("--accumulate", "1", "Batches a step", type=int),
    option("--loss", None, "module:function, called as loss(output, target)"),
    option("--loss-scale", None, "A static scale in place of the recipe's", type=float),
    flag("--keep-batchnorm-fp32", is_flag=True, help="Whatever the recipe says"),
    flag("--fused/--no-fused", default=True, help="The optimizer in one kernel"),
    flag("--compile", is_flag=True, help="torch.compile, in every recipe"),
    flag("--graph", is_flag=True, help="Capture the step as a CUDA graph, in every recipe"),
    option("--device", "auto", "auto, cuda, cuda:N or cpu"),
)
TRAINING = (
    flag("--explain", is_flag=True, help="Say what each recipe does, and train nothing"),
    option("--data", "synthetic", "synthetic, generated, cifar10:DIR or folder:DIR"),
    flag("--strict", is_flag=True, help="End at the first broken image"),
    option("--loader", None, "What turns data into batches  [default: usual; see `list`]"),
    option("--workers", "4", "Processes that load images", type=int),
    option("--prefetch", None, "Batches that each of them is ahead  [default: 2]", type=int),
    option("--cpus", None, "Cores the run may use  [default: all]", type=int),
    option("--on-worker-death", "stop", "stop, or restart the loader's processes"),
    option("--iterations", None, "Train so many steps and evaluate", type=int),
    option("--epochs", None, "The same, in passes over the data", type=int),
    option("--repeats", "1", "Trainings of each recipe, from seeds in a row", type=int),
    option("--seed", "1", "The first seed: weights and order of the data", type=int),
    option("--lr", None, "Learning rate  [default: the network's usual]", type=float),
    option("--warmup", "0", "Steps in which the rate rises from 0", type=int),
    flag(
        "--predict/--no-predict",
        default=None,
        help="Predict each step before it is timed; a ledger  [default: on a GPU]",
    ),
    flag("--verify", is_flag=True, help="Measure the fixes that the prediction proposes"),
    option("--budget", None, "Seconds of timing a comparison  [default: 10 an arm]", type=float),
)  # fmt: skip
LOADING = (
    option("--data", "made", "made, folder:DIR, cifar10:DIR or generated"),
    option("--workers", None, "Processes that load: 1..16, 2,4,8  [default: 1 to one a core]"),
    option("--prefetch", None, "Batches that each of them is ahead  [default: 2]", type=int),
    option("--cpus", None, "Cores the run may use  [default: all]", type=int),
    option("--on-worker-death", "stop", "stop, or restart the loader's processes"),
)
STALLING = (
    option("--recipe", "fp32,amp", "What is compared, as for train"),
    option("--batch", None, "Samples in a step  [default: the network's usual]"),
    option("--layout", None, "nchw or nhwc (channels_last)  [default: nhwc on a GPU]"),
    option("--loader", None, "What loads (`list` names them)  [default: torchvision]"),
    flag("--compile", is_flag=True, help="torch.compile, in every recipe"),
    flag("--graph", is_flag=True, help="Capture the step as a CUDA graph, in every recipe"),
    option("--measure", "some", "Of what is foretold, measure some, all or none"),
    option("--device", "auto", "auto, cuda, cuda:N or cpu"),
    option("--budget", None, "Seconds of timing a comparison  [default: 10 an arm]", type=float),
)
VALIDATION = (
    option("--recipe", None, "Recipes of every network  [default: fp32,tf32,amp,amp-bf16]"),
    option("--batch", None, "Batches of every network  [default: one or two, by the network]"),
    option("--layout", None, "nchw, nhwc (channels_last)  [default: nhwc on a GPU]"),
    flag("--graph", is_flag=True, help="Capture the steps as CUDA graphs"),
    flag("--verify", is_flag=True, help="Measure proposed fixes too"),
    option("--cpus", None, "Cores the run may use  [default: all]", type=int),
    option("--device", "auto", "auto, cuda, cuda:N or cpu"),
    option("--budget", None, "Seconds of timing a comparison  [default: 10 an arm]", type=float),
)
OUTPUT = (
    option("--json", None, "Run file to write  [default: in the state folder]", type=FILE),
    option("--csv", None, "Also write the results as CSV", type=FILE),
    option("--chart", None, "Also draw a chart: .png, .svg or .html", type=FILE),
    option("--resume", None, "Run file to go on with: does what is missing", type=FILE),
    flag("--verbose", is_flag=True, help="Phases of every arm"),
    flag("--quiet", is_flag=True, help="Print nothing but errors"),
)


def _options(*groups: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    return lambda command: with_options([one for group in groups for one in group], command)


@app.command()
@click.argument("network", metavar="NETWORK", required=False)
@_options(ARMS, TRAINING, OUTPUT)
def train(network: str | None, explain: bool, **options: Any) -> None:
    """Train NETWORK under several precision recipes, in turns, and compare them."""
    if explain:
        from e2e.commands.list import explain_recipes

        explain_recipes(options["recipe"], quiet=options["quiet"])
        return
    if network is None:
        raise click.UsageError("name a network: python -m e2e resnet50 --amp; `list` shows them")
    from e2e.commands.requests import training_request
    from e2e.commands.train import run_training

    run_training(training_request(network, options))


@app.command()
@click.argument("network", metavar="NETWORK")
@_options(ARMS, OUTPUT)
@click.option(
    "--allow-run", is_flag=True, help="Run real steps for what can be told by nothing else"
)
def predict(network: str, **options: Any) -> None:
    """Predict NETWORK's steps without running it: trace it, measure its operations one by one."""
    from e2e.commands.requests import prediction_request
    from e2e.commands.train import run_training

    run_training(prediction_request(network, options))


@app.command()
@click.option("--networks", help="Names, by commas  [default: twelve of different kinds]")
@_options(VALIDATION, OUTPUT)
def validate(networks: str | None, batch: str | None, **options: Any) -> None:
    """Predict and measure a matrix of networks, recipes and batches: the error table."""
    from e2e.commands.validate import run_validation

    run_validation(networks, batch, options)


@app.command()
@click.argument("network", metavar="NETWORK")
@_options(LOADING, STALLING, OUTPUT)
def stalls(network: str, workers: str | None, measure: str, **options: Any) -> None:
    """Say from how many workers on low precision pays: precision x workers, by difference."""
    from e2e.commands.stalls import run_stalls

    run_stalls(network, workers, measure, options)


@app.command()
@_options(LOADING, OUTPUT)
@click.option("--backend", default="all", show_default=True, help="Loaders by name, by commas")
@click.option("--batch", default="128", show_default=True, help="Samples in a batch")
@click.option("--input", help="Shape of a sample  [default: 3x224x224, or the data's own]")
@click.option("--cold", is_flag=True, help="Also with files that are not in memory")
@click.option("--budget", type=float, help="Seconds of loading each  [default: 6]")
@click.option("--device", default="auto", show_default=True, help="auto, cuda, cuda:N or cpu")
def loader(backend: str, workers: str | None, cold: bool, **options: Any) -> None:
    """Measure loaders alone: images a second, and a second and core."""
    from e2e.commands.stalls import run_loaders

    run_loaders(backend, workers, cold, options)


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
    from e2e.commands.list import print_loaders, print_networks

    print_networks()
    print_loaders()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    return run_app(app, "python -m e2e", arguments)


if __name__ == "__main__":
    sys.exit(main())
