"""The command line: `python -m microbench COMMAND`. Heavy modules load when a command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from microbench.command_line import FILE, option, run_app, with_options

DEVICE = click.option(
    "--device", default="auto", show_default=True, help="auto, cuda, cuda:N or cpu"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def app() -> None:
    """Tensor Core TFLOP/s by precision and size, and why. Run files are JSON."""


def conditions(backends: str) -> Callable[..., Any]:
    """The options that every measuring command has."""
    options = (
        option("--dtype", "fp16", "Precisions: fp64,fp32,tf32,fp16,fp16-acc16,bf16,fp8,int8,..."),
        option("--backend", None, backends),
        option("--vs", "fp32,tf32", "Baselines, measured in turns with the rest; none for none"),
        option("--data", "normal", "normal, uniform, integers or zeros"),
        DEVICE,
        option("--l2", "cold", "cold: cache flushed before each launch; warm: back to back"),
        option("--regime", "sustained", "sustained: clocks settled; burst: a rested card"),
        option("--timer", "auto", "auto, events, graph (CUDA graph replay), clock (CPU)"),
        option("--budget", None, "Seconds of sampling in all  [default: by cases]", type=float),
        option("--json", None, "Run file to write  [default: in the state folder]", type=FILE),
        option("--csv", None, "Also write the results as CSV", type=FILE),
        option("--chart", None, "Also draw a chart: .png, .svg or .html", type=FILE),
        option("--resume", None, "Run file to go on with: measures what is missing", type=FILE),
        click.option("--autotune", is_flag=True, help="Search Triton configurations, keep winners"),
        option("--seed", None, "Of the input data  [default: random]", type=int),
        click.option("--verbose", is_flag=True, help="Every case's explanation"),
        click.option("--quiet", is_flag=True, help="Print nothing but errors"),
    )

    return lambda command: with_options(options, command)


def geometry(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every command on convolutions has."""
    options = (
        option("--layout", "nhwc,nchw", "nhwc (torch: channels_last), nchw (torch's default)"),
        option("--stride", "1", "Along both axes", type=int),
        option("--padding", "same", "Along both axes: a number, or same"),
        option("--dilation", "1", "Along both axes", type=int),
        option("--groups", "1", "A number, or depthwise"),
    )
    return with_options(options, command)


@app.command()
@option("--sizes", "256..8192", "256..8192 doubles, 64..1024:+32 steps, 63,64 lists, MxNxK; mix")
@option("--layout", "nt", "nn,nt,tn,tt: t is stored transposed; nt is torch.nn.Linear's")
@conditions("cublas,cublaslt,cupy,triton,cpu  [default: cublas,triton; on CPU cpu]")
def gemm(**options: Any) -> None:
    """Measure C = A @ B by precision, size and back end, and say when low precision pays off."""
    from microbench.requests import GemmRequest, conditions_from
    from microbench.run_command import run_request

    run_request(GemmRequest(conditions_from(options), **options))


@app.command()
@option(
    "--channels",
    "8..2048",
    "8..2048 doubles, 1..72:+1 steps, 64x256 is C to K; mix. Brings padded twins",
)
@option("--pass", "fprop", "fprop,dgrad,wgrad: forward, gradients by x and w", into="passes")
@option("--image", "28", "Height and width of the input: 28, 7..56, 28x56")
@option("--batch", "16", "Images: 16, 8..256")
@option("--kernel", "3", "Height and width of the filters: 3 or 1,3; 1x7 needs --padding")
@geometry
@conditions("cudnn,triton,cpu  [default: cudnn; on CPU cpu]")
def conv(**options: Any) -> None:
    """Measure convolution by channel width, pass and layout, and say from where FP16 pays off."""
    from microbench.requests import ConvRequest, conditions_from
    from microbench.run_command import run_request

    run_request(ConvRequest(conditions_from(options), **options))


@app.command()
@click.option("--op", type=click.Choice(["conv"]), default="conv", show_default=True)
@option("--channels", "8..512", "Widths that may be measured: 8..512 doubles")
@option("--pass", "fprop", "fprop,dgrad,wgrad", into="passes")
@option("--image", "7..56", "Height and width of the input: 7..56 doubles")
@option("--batch", "8..256", "Images: 8..256 doubles")
@option("--kernel", "3", "Height and width of the filters")
@geometry
@conditions("cudnn,triton,cpu  [default: cudnn; on CPU cpu]")
def payoff(op: str, **options: Any) -> None:
    """The break-even map of FP16 over channels, image and batch, measured around the boundary."""
    from microbench.requests import PayoffRequest, conditions_from
    from microbench.run_command import run_request

    run_request(PayoffRequest(conditions_from(options), **options))


@app.command()
@click.argument("network_name", metavar="NETWORK")
@option("--batch", "32", "Images in a step", type=int)
@option("--image", None, "Height and width  [default: the network's usual]", type=int)
@option("--layout", "nhwc", "nhwc (torch: channels_last) or nchw (torch's default)")
@conditions("library,triton  [default: library: cuDNN and cuBLAS]")
def layers(**options: Any) -> None:
    """Every distinct conv and GEMM of a network's step, by precision: which gain, which lose.

    NETWORK is a torchvision model's name, or module:function that returns a torch module.
    """
    from microbench.requests import LayersRequest, conditions_from
    from microbench.run_command import run_request

    run_request(LayersRequest(conditions_from(options), **options))


@app.command()
@click.argument("file", type=FILE)
@click.option("--csv", "form", flag_value="csv", help="As CSV")
@click.option("--markdown", "form", flag_value="markdown", help="As a Markdown table")
@click.option("--verbose", is_flag=True, help="Every case's explanation")
@option("--chart", None, "Draw a chart instead: .png, .svg or .html", type=FILE)
def show(file: Path, form: str | None, verbose: bool, chart: Path | None) -> None:
    """Print a run file again."""
    from microbench.commands import show_run

    show_run(file, form=form, verbose=verbose, chart=chart)


@app.command()
@click.argument("file", type=FILE)
def explain(file: Path) -> None:
    """Work out again what bounds each case of a run file, with this version's causes."""
    from microbench.commands import explain_again

    explain_again(file)


@app.command()
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@option("--fail-on", None, "Exit with 1 on these verdicts: slower,faster,cannot-tell")
@option("--json", None, "Also write the comparison, case by case", type=FILE)
def compare(a: Path, b: Path, fail_on: str | None, json: Path | None) -> int:
    """Say for each case whether B is faster, slower, the same as A, or that one cannot tell."""
    from microbench.commands import compare_runs

    return compare_runs(a, b, fail_on, json)


@app.command()
@DEVICE
def doctor(device: str) -> None:
    """Say what this machine is and what will spoil numbers, each with a remedy."""
    from microbench.commands import examine_machine

    examine_machine(device)


@app.command()
@click.argument("what", type=click.Choice(["timer", "aa"]))
@option("--json", None, "File to write", type=FILE, required=True)
@DEVICE
@option("--tries", "100", "aa: how many comparisons", type=int)
def validate(what: str, json: Path, device: str, tries: int) -> None:
    """Check the method: timer against Nsight Compute; aa, the same kernel as two arms."""
    from microbench.selftest.run import validate_method

    validate_method(what, json, device, tries)


@app.command()
@option("--json", None, "Also write every plant, what was named, and the numbers", type=FILE)
@DEVICE
@option("--budget", None, "Seconds of sampling in all  [default: by cases]", type=float)
@click.option("--quiet", is_flag=True, help="Print nothing but errors")
def selftest(json: Path | None, device: str, budget: float | None, quiet: bool) -> int:
    """Plant known conditions and count how many the diagnosis names right."""
    from microbench.selftest.run import run_selftest

    return run_selftest(json_path=json, device=device, budget=budget, quiet=quiet)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    return run_app(app, "python -m microbench", arguments)


if __name__ == "__main__":
    sys.exit(main())
