"""The command line: `python -m e2e NETWORK` or a command. Heavy modules load when one runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
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


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    flag = click.option
    return with_options(
        (
            flag("--amp", is_flag=True, help="fp32, tf32 and AMP side by side (the default)"),
            option("--recipe", None, "fp32,tf32,amp,amp-bf16,fp16,bf16,O0..O3 (see --explain)"),
            flag("--ladder", is_flag=True, help="From fp32 to a CUDA graph, one change a rung"),
            flag("--explain", is_flag=True, help="Say what each recipe does, and train nothing"),
            option("--batch", None, "Samples in a forward pass: 256, 128..2048 [default: usual]"),
            option("--input", None, "Shape of a sample: 3x512x512, or 512 for tokens"),
            option("--layout", None, "nchw, nhwc (channels_last)  [default: nhwc on a GPU]"),
            option("--data", "synthetic", "synthetic, generated, cifar10:DIR or folder:DIR"),
            flag("--strict", is_flag=True, help="End at the first broken image"),
            option("--workers", "4", "Processes that load a folder's images", type=int),
            option("--iterations", None, "Train so many steps and evaluate", type=int),
            option("--epochs", None, "The same, in passes over the data", type=int),
            option("--repeats", "1", "Trainings of each recipe, from seeds in a row", type=int),
            option("--seed", "1", "The first seed: weights and order of the data", type=int),
            option("--optimizer", None, "sgd, adam or adamw  [default: the network's usual]"),
            option("--lr", None, "Learning rate  [default: the network's usual]", type=float),
            option("--warmup", "0", "Steps in which the rate rises from 0", type=int),
            option("--label-smoothing", "0", "Share of a target spread over classes", type=float),
            option("--accumulate", "1", "Batches a step", type=int),
            option("--loss", None, "module:function, called as loss(output, target)"),
            option("--loss-scale", None, "A static scale in place of the recipe's", type=float),
            flag("--keep-batchnorm-fp32", is_flag=True, help="Whatever the recipe says"),
            flag("--fused/--no-fused", default=True, help="The optimizer in one kernel"),
            flag("--compile", is_flag=True, help="torch.compile, in every recipe"),
            flag("--graph", is_flag=True, help="Capture the step as a CUDA graph, in every recipe"),
            option("--device", "auto", "auto, cuda, cuda:N or cpu"),
            option("--budget", None, "Seconds of timing a comparison  [default: 10 an arm]",
                   type=float),
            option("--json", None, "Run file to write  [default: in the state folder]", type=FILE),
            option("--csv", None, "Also write the results as CSV", type=FILE),
            option("--chart", None, "Also draw a chart: .png, .svg or .html", type=FILE),
            option("--resume", None, "Run file to go on with: does what is missing", type=FILE),
            flag("--verbose", is_flag=True, help="Phases of every arm"),
            flag("--quiet", is_flag=True, help="Print nothing but errors"),
        ),
        command,
    )  # fmt: skip


@app.command()
@click.argument("network", metavar="NETWORK", required=False)
@_options
def train(network: str | None, explain: bool, **options: Any) -> None:
    """Train NETWORK under several precision recipes, in turns, and compare them."""
    if explain:
        from e2e.explain import explain_recipes

        explain_recipes(options["recipe"], quiet=options["quiet"])
        return
    if network is None:
        raise click.UsageError("name a network: python -m e2e resnet50 --amp; `list` shows them")
    from e2e.requests import request_from
    from e2e.run_command import run_training

    run_training(request_from(network, options))


@app.command(name="list")
def list_networks() -> None:
    """The networks that are known by name."""
    from e2e.explain import print_networks

    print_networks()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    return run_app(app, "python -m e2e", arguments)


if __name__ == "__main__":
    sys.exit(main())
