"""What a measurement is about: a `Case`, the `Target` it runs on, and one way to launch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property

from kernels.messages import first_line
from kernels.precision import Precision, precision
from kernels.problem import Problem

DATA = ("normal", "uniform", "integers", "zeros")


@dataclass(frozen=True)
class Target:
    """The device facts that kernels choose by.

    `capability` is (major, minor) and None for a CPU; `sm_count` is SMs, or cores of a CPU; `index`
    is the CUDA device's. `without` are patterns, as in file names, of the labels of our Triton
    configurations that are left out.
    """

    kind: str  # "cuda" or "cpu"
    name: str
    capability: tuple[int, int] | None = None
    sm_count: int = 0
    index: int = 0
    without: tuple[str, ...] = ()

    def has(self, label: str) -> bool:
        """Whether a configuration of this label may run: it is not left out."""
        return not any(fnmatchcase(label, pattern) for pattern in self.without)

    @property
    def torch_device(self) -> str:
        """torch's name of the device: "cuda:0" or "cpu"."""
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"


@dataclass(frozen=True)
class Case:
    """One thing to measure: a problem in one precision, by one back end. `data` is one of DATA."""

    problem: Problem
    precision_name: str
    backend: str
    data: str = "normal"

    @property
    def op(self) -> str:
        """The name of the problem's op, in `kernels.OPS`."""
        return self.problem.op

    @property
    def precision(self) -> Precision:
        """The entry of PRECISIONS. ValueError for an unknown `precision_name`."""
        return precision(self.precision_name)

    @property
    def min_bytes(self) -> int:
        """Least memory traffic per launch: inputs read once, output written once."""
        return self.problem.min_bytes(self.precision)

    @property
    def tolerance(self) -> float:
        """The largest relative error (Frobenius norm, against float64) of a correct result."""
        return self.problem.tolerance(self.precision)

    @property
    def aligned(self) -> Case:
        """The case of the problem that is padded to whole 16-byte rows."""
        return replace(self, problem=self.problem.aligned(self.precision))

    @cached_property
    def group(self) -> str:
        """Identity of the problem. Cases of one group are compared with each other."""
        return f"{self.problem.key}/{self.data}"

    @cached_property
    def key(self) -> str:
        """Identity of the case, the same in every run and version: group, precision, back end."""
        return f"{self.group}/{self.precision_name}/{self.backend}"


@dataclass(frozen=True)
class Candidate:
    """One way to run a prepared case. `call()` only launches.

    `tile` is (M, N, K) of a work-group's tile where the back end chose it itself, and `tiles` how
    many of them a launch has, where they are not those that cover M x N once; `label` names the
    variant or configuration and is what the cache keeps. `allocates`: `call()` returns the result
    in new memory and leaves the operands' own output unchanged. `launched`: the CPU's time is part
    of it, as it is where a program launches call by call. `queued` is how many kernels a call
    queues where they are many.
    """

    label: str
    call: Callable[[], object]
    tile: tuple[int, int, int] | None = None
    kernel: str | None = None
    allocates: bool = False
    tiles: int | None = None
    launched: bool = False
    queued: int = 1


class CannotRun(Exception):
    """The case cannot run on this device. The message is the reason that reports print."""


def try_on_cpu(case: Case, call: Callable[[], object]) -> None:
    """CannotRun where torch on this CPU refuses a call of the case's kind."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        why = f"torch on this CPU has no {case.precision_name}: {first_line(error)}"
        raise CannotRun(why) from error


class LeftBehind(Exception):
    """A launch left work that ended after its time."""
