"""The command line: `python -m e2e NETWORK` or a command. Heavy modules load when one runs."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # before anything takes time to load
    from e2e.start import prepare

    prepare()

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

from e2e.commands.record import LAUNCHERS, PYTHON_FILES, Script, arguments_in, script_of
from e2e.options import TrainOptions
from e2e.recipes import RECIPES
from e2e.training.launch import dist_env
from microbench.command_line import (
    FILE,
    NETWORK,
    SETTINGS,
    SHOW,
    Command,
    Outputs,
    Override,
    Program,
    click_options,
    options_of,
)
from microbench.errors import NothingMeasured
from microbench.streams import run_app

OF_ALL = {"Output": "json verbose", "Time": "budget"}  # what most runs need
DEFAULT_COMMAND = "train"  # what the first word means when it is no command: a network to train


class TrainCommand(Command):
    """A command that may go on with a run of training or loading."""

    either = (frozenset({"amp", "recipe", "ladder"}), frozenset({"iterations", "epochs"}))
    values: ClassVar[Mapping[str, Collection[str]]] = {"recipe": RECIPES}


class Commands(Program):
    """Commands, or else the name of a network."""

    command_class = TrainCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the usual command first where none is named."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say that a network may stand where a command does."""
        formatter.write_usage("python -m e2e", "NETWORK [OPTIONS] | COMMAND [ARGS]...")


@click.group(cls=Commands, context_settings=SETTINGS)
def app() -> None:
    """Measure what low precision buys in training: speed, memory, power, accuracy.

    NETWORK is a name (see `list`) or module:function. `train` is the default command.
    """


AT_LEAST_0, AT_LEAST_1, AT_LEAST_2 = (click.IntRange(min=least) for least in range(3))
OUTPUT = (
    "json",
    "overwrite",
    "resume",
    Override("verbose", help="Show all rows and every detail"),
    "quiet",
)
LOADING = (
    Override(
        "data", default="made",
        help="made (synthetic JPEGs), folder:DIR, cifar10:DIR, generated or module:function",
    ),
    Override(
        "workers", type=str, default=None,
        help="Worker processes: 1..16, 2,4,8  [default: 1 to one per core]",
    ),
)  # fmt: skip
# Which command takes which option, in the order of --help.
OPTIONS = {
    "train": (*options_of(TrainOptions), *OUTPUT),
    "predict": ("amp", "recipe", "batch", "input", "layout", "loss", "device", *OUTPUT),
    "stalls": (
        LOADING[0],
        Override(
            "workers", type=str, default=None,
            help="Worker processes: 1..16, 2,4,8  [default: one per core, a quarter of that]",
        ),
        "cpus",
        Override("recipe", help="Recipes to compare, as for train  [default: tf32,amp]"),
        Override("batch", help="Samples per step  [default: by network]"),
        Override("loader", help="Data loader (see `list`)  [default: torchvision]"),
        click.option(
            "--measure", default="some",
            help="Which numbers of workers to measure: some (the most), all or none",
        ),
        "device", Override("budget", help="Seconds of timing per comparison  [default: 5]"),
        *OUTPUT,
    ),
    "loader": (
        *LOADING, *OUTPUT,
        click.option("--backend", default="all", help="Loaders, comma-separated"),
        Override("batch", default="128", help="Samples per batch"),
        Override("input", help="Shape of a sample  [default: 3x224x224, or the data's own]"),
        Override("budget", help="Seconds per loader  [default: 6]"),
        "device",
    ),
}  # fmt: skip


def _options(command: str) -> Callable[..., Any]:
    return click_options(OPTIONS[command], TrainOptions, Outputs)


@app.command(
    first={"What": "amp recipe ladder batch input compile", "Data": "data workers", **OF_ALL}
)
@click.argument("network", **NETWORK)
@_options("train")
def train(network: str, **options: Any) -> None:
    """Compare precisions in training NETWORK.

    NETWORK is a name (see `list`), timm:NAME, hf:path/config.json, or your own module:function:
    mynet:build calls build() of mynet.py in this folder, which returns a torch.nn.Module.

    \b
      halfway train resnet50 --amp
      halfway train mynet:build --input 3x64x64 --recipe fp32,bf16 --compile
    """
    env = dist_env()
    if env and env.rank:  # of torchrun's processes rank 0 has the screen and the files
        from e2e.commands.job import follow

        follow(options["device"])
    _carry_out(network, options)


@app.command(first={"What": "amp recipe batch input layout", **OF_ALL})
@click.argument("network", **NETWORK)
@_options("predict")
def predict(network: str, **options: Any) -> None:
    """Predict the GPU time and memory of a training step of NETWORK.

    It traces one step with fake tensors, benchmarks each operation in isolation, and sums them.
    The network itself does not run. NETWORK is as for `train`.

    \b
      halfway predict resnet50 --amp --batch 64..1024
      halfway predict hf:path/config.json --recipe fp32,bf16
    """
    _carry_out(network, options, train=False)


def _carry_out(network: str, options: dict[str, Any], **instead: Any) -> None:
    from e2e.commands.train import run_training
    from e2e.results.types import Training

    done = run_training(TrainOptions.of(network, options, **instead))
    done.report()
    if not any(training.predicted or training.steps for training in done.run.of(Training)):
        raise NothingMeasured


@app.command(first={"What": "recipe batch measure", "Data": "data workers loader cpus", **OF_ALL})
@click.argument("network", **NETWORK)
@_options("stalls")
def stalls(network: str, workers: str | None, measure: str, **options: Any) -> None:
    """Find how many data-loader workers low precision needs.

    Training and loading are benchmarked separately, then together with the most workers; other
    numbers of workers are predicted. NETWORK is as for `train`.

    \b
      halfway stalls resnet50
      halfway stalls resnet50 --data folder:DIR --workers 1..16 --loader dali
    """
    from e2e.commands.stalls import run_stalls

    run_stalls(network, workers, measure, options).report()


@app.command(first={"What": "backend batch input", "Data": "data workers", **OF_ALL})
@_options("loader")
def loader(backend: str, workers: str | None, **options: Any) -> None:
    """Measure data loaders alone, without training.

    \b
      halfway loader --workers 1..16
      halfway loader --data folder:DIR --backend torchvision,dali
    """
    from e2e.commands.stalls import run_loaders

    run_loaders(backend, workers, options).report()


class Diagnose(Command):
    """A command whose script has options too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set apart what starts the script. UsageError for an option that may be the script's."""
        names_script = "-m" in args or any(word.endswith(".py") for word in args)
        try:
            return super().parse_args(ctx, _script_apart(args))
        except click.NoSuchOption as error:
            if SHOW in error.message or not names_script:
                raise
            raise click.UsageError(
                f"no such option {error.option_name}; options of the script come after --"
            ) from None


def _script_apart(args: list[str]) -> list[str]:
    """The words with -m MODULE, or with a launcher and all that follows, after "--".

    UsageError for an interpreter in front of the script.
    """
    end = args.index("--") if "--" in args else len(args)
    for place, word in enumerate(args[:end]):
        if re.fullmatch(r"python[\d.]*", Path(word).name) and args[place - 1] != "--python":
            script, *its = [part for part in args[place + 1 :] if part != "--"] or ["SCRIPT.py"]
            its = ["--", *its] if its and script.endswith(PYTHON_FILES) else its
            command = shlex.join([*args[:place], script, *its])
            raise click.UsageError(f"leave out {word}: halfway diagnose {command}")
        if word in LAUNCHERS:
            return [*args[:place], "--", *args[place:end], *args[end + 1 :]]
        if word == "-m":
            ours = [*args[:place], *args[place + 2 : end]]
            return [*ours, "--", *args[place : place + 2], *args[end + 1 :]]
    return args


@app.command(
    cls=Diagnose,
    first={"What": "base base_args python prove", "Output": "json_path fail_on keep verbose",
           "Time": "after bare traced"},
    epilog="Exit codes: 0 diagnosed, 1 no diagnosis, 2 a mistake, 3 SCRIPT failed, 4 --fail-on.",
)  # fmt: skip
@click.argument(
    "words", metavar="[SCRIPT.py | -m MODULE | LAUNCHER ... [-- ARGS] | TRACE...]", nargs=-1,
    type=click.Path(),
)  # fmt: skip
@click.option("--base", type=FILE, metavar="TRACE", help="A trace to compare it with: fp32, say")
@click.option(
    "--base-args", metavar="ARGS", help="Compare with SCRIPT run with these arguments instead"
)
@click.option("--python", type=click.Path(), help="The interpreter for SCRIPT  [default: this one]")
@click.option("--after", default=Script.after, help="Steps of warm-up", type=AT_LEAST_0)
@click.option(
    "--bare",
    default=Script.bare,
    help="Steps timed without the profiler",
    type=AT_LEAST_2,
)
@click.option("--traced", default=Script.traced, help="Steps recorded", type=AT_LEAST_1)
@click.option("--prove", is_flag=True, help="Also measure what fixes gain, in a few hundred steps")
@click.option("--keep", type=FILE, metavar="DIR", help="Keep the traces in this folder")
@click.option(
    "--fail-on",
    metavar="WHAT",
    help="Exit with 4 where this holds: busy<70 or casts>5 (%)",
)
@click.option(
    "--json",
    "json_path",
    type=FILE,
    help="File to write; - is stdout  [default: in the state folder]",
)
@click.option("--print-recorder", is_flag=True, help="Print halfway_watch.py, which records traces")
@click.option("--verbose", is_flag=True, help="Show every term")
@click.option("--quiet", is_flag=True, help="Print nothing but errors")
def diagnose(
    words: tuple[str, ...],
    print_recorder: bool,
    base: Path | None,
    base_args: str | None,
    keep: Path | None,
    python: str | None,
    prove: bool,
    **rest: Any,
) -> int:
    """Explain your own training: a script, or a recorded trace.

    SCRIPT runs unchanged, until some of its steps have been timed and recorded. Elsewhere, as on a
    cluster, record with the file that --print-recorder prints: it needs torch alone.

    \b
      halfway diagnose train.py -- --your --arguments
      halfway diagnose train.py --base-args "" -- --amp
      halfway diagnose --keep DIR torchrun --nproc_per_node 2 train.py
      halfway diagnose -m package.module
      halfway diagnose amp.json.gz --base fp32.json.gz
    """  # fmt: skip
    from e2e.commands import diagnose as command

    if print_recorder:
        command.print_recorder(prove)
        return 0
    steps = {name: rest.pop(name) for name in ("after", "bare", "traced")}
    report = command.Report(**rest, prove=prove)
    with report.held():
        script = script_of(words, python, prove=prove, quiet=rest["quiet"], **steps)
        if script is None:
            if base_args is not None:
                raise click.UsageError("--base-args is for a script; a trace has --base")
            return command.diagnose_traces(report, [Path(word) for word in words], base)
        if base is not None:
            raise click.UsageError("--base names a trace; for a script take --base-args ARGS")
        against = None if base_args is None else arguments_in("--base-args", base_args)
        return command.diagnose_script(report, script, against, keep)


@app.command()
@click.argument("words", metavar="[list | show NAME | report DIR | NAME | FILE.toml]", nargs=-1)
@click.option("--profile", help="Size of the study: full, short or smoke  [default: short]")
@click.option(
    "--out", type=FILE, metavar="DIR", help="Folder to write; goes on with a run that is there"
)
@click.option(
    "--set", "sets", multiple=True, metavar="OPTION=VALUE",
    help="Replace an option of every run that has it: data=cifar10:DIR",
)  # fmt: skip
def study(words: tuple[str, ...], **options: Any) -> None:
    """Repeat a published experiment, or run your own.

    \b
      halfway study list
      halfway study show wrn-levels
      halfway study wrn-levels --profile smoke
      halfway study mine.toml
      halfway study report DIR

    The report is report.html in the folder that --out names. The same command goes on with a run
    that was stopped.
    """  # fmt: skip
    from e2e.studies.run import run_study

    run_study(words, app.commands, **options)


@app.command(name="list")
def list_networks() -> None:
    """List the known networks and data loaders."""
    from e2e.commands.list import print_names

    print_names()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    return run_app(app, "python -m e2e", arguments)


if __name__ == "__main__":
    sys.exit(main())
