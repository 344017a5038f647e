"""The command line: `python -m microbench COMMAND`. Heavy modules load when a command runs."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # before anything takes time to load
    from microbench.own_packages import check_packages
    from microbench.stopping import listen

    check_packages()
    listen()

from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import click

from microbench import command_line, requests
from microbench.command_line import FILE, NETWORK, SETTINGS, Outputs, Override, Program
from microbench.streams import run_app

FLEET_BACKEND, FLEET_S = "cublas", 10.0  # of sampling: power and clock have settled
OF_ALL = {"Output": "json verbose", "Time": "budget processes"}  # what most runs need
# What the other commands take as usual: `gemm` and `conv` are for trying them.
AS_USUAL = frozenset({"data", "timer", "l2", "regime", "tune", "without", "seed"})
NO_AXES = frozenset({"stride", "padding", "dilation", "groups"})  # of a map


@click.group(cls=Program, context_settings=SETTINGS)
def app() -> None:
    """Measure GEMMs and convolutions by precision, and explain their speed."""


def measuring(
    kind: type[command_line.Schema], backends: str, *changed: Override, but: Set[str] = frozenset()
) -> Callable[..., Any]:
    """The options of a measuring command, but some: those of its request, then the conditions."""
    overrides = {row.name: row for row in (Override("backend", help=backends), *changed)}
    schemas = (kind, requests.Conditions, Outputs)
    names = [name for name in command_line.options_of(*schemas) if name not in but]
    return command_line.click_options([overrides.get(name, name) for name in names], *schemas)


def _measure(kind: type[Any], options: dict[str, Any]) -> None:
    from microbench.run import run_request

    run_request(requests.request_of(kind, options)).report()


@app.command(first={"What": "sizes dtype backend vs layout shapes", **OF_ALL})
@measuring(
    requests.GemmRequest,
    "cublas,cublaslt,cupy,triton,separate,cpu  [default: cublas,cublaslt,triton; on CPU cpu]",
)
def gemm(**options: Any) -> None:
    """Measure matrix multiplication by precision and size.

    Reports the break-even size of low precision, and the bottleneck of each case.

    \b
      halfway gemm --dtype fp16,bf16 --sizes 256..8192
      halfway gemm --dtype fp16 --backend my_kernels:gemm
    """
    _measure(requests.GemmRequest, options)


@app.command(first={"What": "channels passes image batch kernel dtype backend vs", **OF_ALL})
@measuring(requests.ConvRequest, "cudnn,triton,cpu  [default: cudnn; on CPU cpu]")
def conv(**options: Any) -> None:
    """Measure convolution by channels, pass and layout.

    Reports from how many channels low precision is faster, and the bottleneck of each case.

    \b
      halfway conv --dtype fp16 --channels 8..2048
      halfway conv --channels 64x256,256 --kernel 1 --pass fprop,dgrad,wgrad
    """
    _measure(requests.ConvRequest, options)


@app.command(first={"What": "sizes heads batch passes layout dtype backend vs shapes", **OF_ALL})
@measuring(
    requests.AttentionRequest,
    "torch,cudnn,flash,efficient,math,cpu  [default: all but cpu; on CPU cpu]",
    but=AS_USUAL,
)
def attention(**options: Any) -> None:
    """Measure attention by sequence length, pass and back end.

    Every back end of torch's scaled_dot_product_attention, and the one that torch picks itself.

    \b
      halfway attention --dtype bf16 --heads 32x8x128 --batch 1
      halfway attention --sizes 2048 --pass bprop --layout causal,full
    """
    _measure(requests.AttentionRequest, options)


@app.command(first={"What": "op channels passes image batch dtype backend", **OF_ALL})
@measuring(
    requests.PayoffRequest,
    "cudnn,triton,cpu; linear: torch,torchao,cpu  [default: cudnn, torch; on CPU cpu]",
    Override("channels", default=None, help="Channels, or features KxN: 8..512, 4096x14336"),
    Override("passes", default=None, help="fprop, dgrad, wgrad; linear: step is all three"),
    Override("image", default=None, help="Input height and width  [default: 7..56]"),
    Override("batch", default=None, help="Batch size, or tokens: 8..256 doubles"),
    Override("kernel", help="Filter height and width"),
    Override("layout", default=None, help="nhwc,nchw; linear: launched,graph,eager,quantised,..."),
    Override("shapes", help="linear: CSV file, or the layers of a network: hf:config.json"),
    Override("dtype", default=None, help="fp16, bf16; linear: fp8-tensor,fp8-row,fp8-block"),
    Override("vs", default=None, help="Baselines: fp32,tf32; linear: bf16"),
    but=AS_USUAL | NO_AXES,
)
def payoff(**options: Any) -> None:
    """Map the break-even of low precision.

    Of convolutions, over channels, image and batch size; of linear layers in FP8, over features
    and tokens, as launched, as a CUDA graph, and with operands already in FP8.

    \b
      halfway payoff --image 7..56 --batch 8..256
      halfway payoff --op linear --shapes hf:config.json --batch 512..16384
    """
    _measure(requests.PayoffRequest, options)


@app.command(first={"What": "batch image tokens dtype backend vs", **OF_ALL})
@click.argument("network_name", **NETWORK)
@measuring(
    requests.LayersRequest,
    "library,triton or module:function  [default: library: cuDNN and cuBLAS]",
    Override("batch", default=None, help="Batch size  [default: 32]"),
    Override("dtype", default=None, help="fp16, bf16, ...; of tokens also fp8, fp8-weights"),
    Override("vs", default=None, help="Baselines  [default: fp32,tf32; of tokens bf16]"),
    but=AS_USUAL,
)  # fmt: skip
def layers(**options: Any) -> None:
    """Measure every conv, GEMM and attention of a network's step.

    NETWORK is a torchvision model name, timm:NAME, hf:path/config.json, or module:function that
    returns a torch module.
    Shows which layers are faster in low precision and which are slower; with --tokens what
    decode's linear layers reach of the memory bandwidth, in bf16, FP8 and with FP8 weights alone.

    \b
      halfway layers resnet50 --batch 256
      halfway layers mynet:build --dtype bf16 --backend library,my_kernels:conv
      halfway layers hf:config.json --tokens 1..256
    """
    _measure(requests.LayersRequest, options)


@app.command()
@click.argument("files", metavar="FILE...", type=FILE, nargs=-1, required=True)
@click.option("--verbose", is_flag=True, help="Show all rows and every explanation")
@click.option("--ledger", "topic", flag_value="ledger", help="Show where the time goes")
@click.option("--phases", "topic", flag_value="phases", help="Show the phases of a step")
@click.option("--causes", "topic", flag_value="causes", help="Show what takes time, and what to do")
@click.option("--html", type=FILE, help="Write an HTML page instead: one file, works offline")
@click.option("--chart", type=FILE, help="Write a chart instead: .png, .svg, .pdf or .html")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown")
@click.option("--csv", "form", flag_value="csv", help="Print CSV")
def show(files: tuple[Path, ...], **options: Any) -> None:
    """Print the report of a run file; of several, a line each.

    \b
      halfway show run.json
      halfway show *.json --html page.html
    """
    for file in files:
        if file.suffix == command_line.PYTHON:
            raise click.UsageError(f"{file} is a script: halfway diagnose {file}")
    from microbench.commands import show_files

    show_files(files, **options)


@app.command()
@click.argument("folder", type=FILE)
@click.option("--html", type=FILE, help="Page to write  [default: FOLDER/overview.html]")
def report(folder: Path, html: Path | None) -> None:
    """Write one page of all run files in a folder.

    A finding a file, then the report of each: one file, works offline.
    """
    from microbench.commands import report_folder

    report_folder(folder, html)


@app.command()
@click.argument("file", type=FILE)
def explain(file: Path) -> None:
    """Recompute the bottlenecks of a run file in place.

    Uses the rules of this version; the measured times do not change.
    """
    from microbench.commands import explain_again

    explain_again(file)


@app.command()
@click.argument("files", metavar="BASE RUN [RUN]...", type=FILE, nargs=-1, required=True)
@click.option("--threshold", help="Least difference that counts: 5%  [default: noise of two runs]")
@click.option("--fail-on", help="Exit with 1 on: slower,faster,cannot-tell,not-measured")
@click.option("--markdown", is_flag=True, help="Print Markdown tables of all cases")
@click.option("--verbose", is_flag=True, help="Show every case")
@click.option("--json", type=FILE, help="Also write the comparison, case by case")
@click.option("--html", type=FILE, help="Also write a page: one file, offline")
def compare(files: tuple[Path, ...], **options: Any) -> int:
    """Compare runs with a baseline, case by case.

    B (each RUN) is faster or slower than A (BASE), the same, or undecided ("cannot tell"). Faster
    and slower need the whole 95 % interval beyond the threshold: 1 % for cases that both runs
    measured in several processes; else 3 % for kernels, whose interval then has in it what
    processes usually differ by, and for trainings, 5 % for loaders, 30 % for CPU-bound steps.
    --threshold replaces these.

    \b
    Exit codes:
      0  the runs were compared
      1  a case has a verdict that --fail-on names (slower: or is no longer measured)
      2  a mistake: no such file, or runs that cannot be compared
    """
    from microbench.commands import compare_with

    return compare_with(files, **options)


@app.command()
def doctor() -> None:
    """Check this machine for what distorts measurements."""
    from microbench.commands import examine_machine

    examine_machine()


@app.command()
@command_line.click_options(
    (
        Override("sizes", default="8192"), "dtype",
        Override("budget", help="Seconds of sampling on each GPU  [default: 10]"),
        click.option("--threshold", default="5%", help="Slow-down that counts"),
        Override("json", help="File to write; - is stdout  [default: in the state folder]"),
        "overwrite", "verbose", "quiet",
    ),
    requests.GemmRequest, requests.Conditions, Outputs,
)  # fmt: skip
def fleet(threshold: str, **options: Any) -> int:
    """Check every GPU with the same GEMM, and name outliers.

    One process a GPU, all at once. A GPU is slow where its whole 95 % interval is beyond the
    threshold over the median of the others. The table has its clock, power and temperature.

    \b
    Exit codes:
      0  no GPU failed or is slow
      1  a GPU failed, or is slow
      2  a mistake, or no GPU
    """
    from microbench.fleet import check_fleet

    budget_s = options["budget"] or FLEET_S
    asked = {**options, "backend": FLEET_BACKEND, "vs": "none", "budget": budget_s}
    return check_fleet(requests.request_of(requests.GemmRequest, asked), threshold)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    return run_app(app, "python -m microbench", arguments)


if __name__ == "__main__":
    sys.exit(main())
