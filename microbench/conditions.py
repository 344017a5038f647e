"""The conditions of the measuring commands: how to measure, whatever is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from kernels import OPS
from kernels.case import DATA, Case, Target
from kernels.tune import NONE, QUICK, WIDE
from microbench.command_line import (
    Outputs,
    check_budget,
    check_processes,
    check_seed,
    choice,
    one_of,
)
from microbench.errors import UserError
from microbench.timing import L2_STATES, REGIMES, TIMERS


def patterns(text: str) -> tuple[str, ...]:
    """The patterns of a list with commas; a kernel's name stands for all of its labels."""
    words = [word for word in map(str.strip, text.split(",")) if word]
    return tuple(word if "/" in word else f"{word}/*" for word in words)


def check_without(text: str, cases: Iterable[Case], target: Target) -> None:
    """UserError for a pattern of --without that no Triton configuration of these cases matches."""
    left = patterns(text)
    for case in cases:
        if not left:
            return
        labels = OPS[case.op].labels(case, target)
        left = tuple(one for one in left if not any(fnmatchcase(label, one) for label in labels))
    if left:
        raise UserError(
            f"--without: {left[0]!r} leaves out no Triton configuration of these cases on "
            f"{target.name}"
        )


def _patterns_of_labels(name: str, value: str) -> None:
    from kernels.conv.triton import data_configs, wgrad_configs
    from kernels.gemm.triton import config

    kinds = (config, data_configs, wgrad_configs)
    known = sorted({kernel for kind in kinds for kernel in kind.KERNELS})
    for pattern in patterns(value):
        kernel = pattern.split("/")[0]
        if not any(fnmatchcase(one, kernel) for one in known):
            raise UserError(f"{name}: {pattern!r} matches none of our kernels: {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The only list of measuring conditions.

    Each is one field; the click option, its check, what the measuring process gets, and what the
    run file keeps and --resume must repeat are derived from it.
    """

    dtype: str = choice(
        "fp16",
        "Precisions: fp64,fp32,tf32,fp16,fp16-acc16,bf16,fp8,int8,...",
        also=("--precision",),
    )
    backend: str | None = choice(None, "Back ends")
    vs: str = choice(
        "fp32,tf32", "Baselines, interleaved with the rest; or none", also=("--baseline",)
    )
    data: str = choice(
        "normal", "Input values: normal, uniform, integers or zeros", check=one_of(DATA)
    )
    device: str = choice("auto", "Device: auto, cuda, cuda:N or cpu")
    timer: str = choice(
        "auto",
        "Timer: auto, events, graph (CUDA graph), clock (CPU)",
        kept=True,
        check=one_of(TIMERS),
    )
    l2: str = choice(
        "cold",
        "cold: flush the L2 before each launch; warm: do not",
        kept=True,
        check=one_of(L2_STATES),
    )
    regime: str = choice(
        "sustained",
        "sustained: clocks settled; burst: a cool card",
        kept=True,
        check=one_of(REGIMES),
    )
    budget: float | None = choice(
        None, "Total sampling time in seconds  [default: by case]", check=check_budget
    )
    processes: int | None = choice(
        None,
        "Processes that time each case; 3 for runs that will be compared  [default: 1]",
        check=check_processes,
    )
    autotune: bool = choice(False, "Time 24 Triton configurations and keep the fastest")
    no_tune: bool = choice(
        False, "Time no Triton configurations: the model chooses where none was timed before"
    )
    without: str = choice(
        "", "Leave out our Triton configurations of these labels: 'split_k/*,*/direct'",
        kept=True, check=_patterns_of_labels,
    )  # fmt: skip
    seed: int | None = choice(None, "Seed of the input values  [default: random]", check=check_seed)
    outputs: Outputs = field(default_factory=Outputs)

    def __post_init__(self) -> None:
        """UserError where a wide search is asked for, and none, or one that leaves some out."""
        for other in ("no_tune", "without"):
            if self.autotune and getattr(self, other):
                name = other.replace("_", "-")
                raise UserError(f"--autotune and --{name} exclude each other; give one of them")

    @property
    def search(self) -> str:
        """Which Triton configurations are timed: NONE; QUICK where none was before; WIDE."""
        return WIDE if self.autotune else NONE if self.no_tune else QUICK
