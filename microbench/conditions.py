"""The conditions of the measuring commands: how to measure, whatever is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from kernels.choosing import NONE, QUICK, WIDE
from microbench.command_line import (
    Check,
    Outputs,
    check_budget,
    check_processes,
    check_seed,
    one_of,
    option,
)
from microbench.errors import UserError


def _one_of_the_timers(choices: str) -> Check:
    """A check that a word is one of these names of `microbench.timing.timers`."""

    def check(name: str, value: str) -> None:
        from microbench.timing import timers

        one_of(getattr(timers, choices))(name, value)

    return check


def patterns(text: str) -> tuple[str, ...]:
    """The patterns of a list with commas."""
    return tuple(word for word in map(str.strip, text.split(",")) if word)


def _patterns_of_labels(name: str, value: str) -> None:
    from kernels.conv.triton import data_config, wgrad_config
    from kernels.gemm.triton import tiles

    kinds = (tiles, data_config, wgrad_config)
    known = sorted({kernel for kind in kinds for kernel in kind.KERNELS})
    for pattern in patterns(value):
        kernel = pattern.split("/")[0]
        if not any(fnmatchcase(one, kernel) for one in known):
            raise UserError(f"{name}: {pattern!r} fits none of our kernels: {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The only list of measuring conditions.

    Each is one field; the click option, its check, what the measuring process gets, and what the
    run file keeps and --resume must repeat are derived from it.
    """

    dtype: str = field(
        default="fp16",
        metadata=option(
            "Precisions: fp64,fp32,tf32,fp16,fp16-acc16,bf16,fp8,int8,...", also=("--precision",)
        ),
    )
    backend: str | None = field(default=None, metadata=option("Back ends"))
    vs: str = field(
        default="fp32,tf32",
        metadata=option("Baselines, interleaved with the rest; or none", also=("--baseline",)),
    )
    data: str = field(
        default="normal", metadata=option("Input values: normal, uniform, integers or zeros")
    )
    device: str = field(default="auto", metadata=option("Device: auto, cuda, cuda:N or cpu"))
    timer: str = field(
        default="auto",
        metadata=option(
            "Timer: auto, events, graph (CUDA graph), clock (CPU)", kept=True,
            check=_one_of_the_timers("TIMERS"),
        ),
    )  # fmt: skip
    l2: str = field(
        default="cold",
        metadata=option(
            "cold: flush the L2 before each launch; warm: do not", kept=True,
            check=_one_of_the_timers("L2_STATES"),
        ),
    )  # fmt: skip
    regime: str = field(
        default="sustained",
        metadata=option(
            "sustained: clocks settled; burst: a cool card", kept=True,
            check=_one_of_the_timers("REGIMES"),
        ),
    )  # fmt: skip
    budget: float | None = field(
        default=None,
        metadata=option("Total sampling time in seconds  [default: by case]", check=check_budget),
    )
    processes: int | None = field(
        default=None,
        metadata=option(
            "Processes that time each case  [default: gemm on a GPU 3]", check=check_processes
        ),
    )
    autotune: bool = field(
        default=False, metadata=option("Search many Triton configurations and keep the fastest")
    )
    no_tune: bool = field(
        default=False,
        metadata=option("Time no Triton configurations: where none is tuned, the model chooses"),
    )
    without: str = field(
        default="",
        metadata=option(
            "Leave out our Triton configurations of these labels: 'gluon/*,*/direct'", kept=True,
            check=_patterns_of_labels,
        ),
    )  # fmt: skip
    seed: int | None = field(
        default=None,
        metadata=option("Seed of the input values  [default: random]", check=check_seed),
    )
    outputs: Outputs = field(default_factory=Outputs)

    @property
    def search(self) -> str:
        """Which Triton configurations are timed where a size has no tuned one: NONE, QUICK, WIDE.

        UserError where a wide search is asked for, and none, or one that leaves some out.
        """
        for other in ("no_tune", "without"):
            if self.autotune and getattr(self, other):
                name = other.replace("_", "-")
                raise UserError(f"--autotune and --{name} exclude each other; give one of them")
        return WIDE if self.autotune else NONE if self.no_tune else QUICK
