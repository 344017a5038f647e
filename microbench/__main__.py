"""The command line: `python -m microbench COMMAND`. Heavy modules load when a command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from microbench.errors import UserError

FILE = click.Path(path_type=Path)
DEVICE = click.option(
    "--device", default="auto", show_default=True, help="auto, cuda, cuda:N or cpu"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def app() -> None:
    """Tensor Core TFLOP/s by precision and size, and why. Run files are JSON."""


def option(name: str, default: str | None, text: str, **more: Any) -> Callable[..., Any]:
    """An option that shows its default."""
    return click.option(name, default=default, show_default=default is not None, help=text, **more)


@app.command()
@option("--dtype", "fp16", "Precisions: fp64,fp32,tf32,fp16,fp16-acc16,bf16,fp8,fp8-e5m2,int8,...")
@option("--sizes", "256..8192", "256..8192 doubles, 64..1024:+32 steps, 63,64 lists, MxNxK; mix")
@option("--backend", None, "cublas,cublaslt,cupy,triton,cpu  [default: cublas,triton; on CPU cpu]")
@option("--vs", "fp32,tf32", "Baselines, measured in turns with the rest; none for none")
@option("--layout", "nt", "nn,nt,tn,tt: t is stored transposed; nt is torch.nn.Linear's")
@option("--data", "normal", "normal, uniform, integers or zeros")
@DEVICE
@option("--l2", "cold", "cold: cache flushed before each launch; warm: back to back")
@option("--regime", "sustained", "sustained: clocks settled; burst: a rested card")
@option("--timer", "auto", "auto, events, graph (CUDA graph replay), clock (CPU)")
@option("--budget", None, "Seconds of sampling in all  [default: by cases]", type=float)
@option("--json", None, "Run file to write  [default: in the user's state folder]", type=FILE)
@option("--csv", None, "Also write the results as CSV", type=FILE)
@option("--resume", None, "Run file to go on with: measures only what is missing", type=FILE)
@click.option("--autotune", is_flag=True, help="Search Triton configurations again and keep them")
@option("--seed", None, "Of the input data  [default: random]", type=int)
@click.option("--verbose", is_flag=True, help="Every case's explanation")
@click.option("--quiet", is_flag=True, help="Print nothing but errors")
def gemm(**options: Any) -> None:
    """Measure C = A @ B by precision, size and back end, and say when low precision pays off."""
    from microbench.run_command import GemmRequest, run_gemm

    run_gemm(GemmRequest(**options))


@app.command()
@click.argument("file", type=FILE)
@click.option("--csv", "form", flag_value="csv", help="As CSV")
@click.option("--markdown", "form", flag_value="markdown", help="As a Markdown table")
@click.option("--verbose", is_flag=True, help="Every case's explanation")
def show(file: Path, form: str | None, verbose: bool) -> None:
    """Print a run file again."""
    from microbench.commands import show_run

    show_run(file, form=form, verbose=verbose)


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
    from microbench.validate import validate_method

    validate_method(what, json, device, tries)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        code = app(arguments, prog_name="python -m microbench", standalone_mode=False)
    except UserError as error:
        return _complain(str(error), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.ClickException as error:
        return _complain(" ".join(error.format_message().split()), 2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; nothing is left to say
        return 1
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
