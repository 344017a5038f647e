"""What a measurement is about: a `Case`, the `Target` it runs on, and the `Op` that prepares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from kernels.precision import Precision, precision

DATA = ("normal", "uniform", "integers", "zeros")


@dataclass(frozen=True)
class Target:
    """The device facts that kernels choose by: no clocks, no sensors."""

    kind: str  # "cuda" or "cpu"
    name: str
    capability: tuple[int, int] | None = None
    sm_count: int = 0
    index: int = 0

    @property
    def torch_device(self) -> str:
        """The device string torch takes."""
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"


@dataclass(frozen=True)
class Case:
    """One thing to measure: an op at one size, in one precision, by one back end.

    `dims` holds the op's own sizes ("m", "n", "k" for gemm). Never changed once planned.
    """

    op: str
    dims: Mapping[str, int | str] = field(hash=False)
    precision_name: str
    backend: str
    layout: str = "nt"
    data: str = "normal"

    @property
    def precision(self) -> Precision:
        """The entry of PRECISIONS that `precision_name` names."""
        return precision(self.precision_name)

    @cached_property
    def group(self) -> str:
        """Identity of the problem: cases that share it are arms of one comparison."""
        dims = ",".join(f"{name}={value}" for name, value in self.dims.items())
        return f"{self.op}/{dims}/{self.layout}/{self.data}"

    @cached_property
    def key(self) -> str:
        """Stable identity, the same in every run of every version."""
        return f"{self.group}/{self.precision_name}/{self.backend}"

    def dim(self, name: str) -> int:
        """An integer dimension by name."""
        return int(self.dims[name])


@dataclass(frozen=True)
class Candidate:
    """One way to run a prepared case. `call()` only launches.

    `tile` is (M, N, K) of a work-group's tile where the back end chose it itself; `label` names the
    variant or configuration and is what a tuning table keeps.
    """

    label: str
    call: Callable[[], object]
    tile: tuple[int, int, int] | None = None
    kernel: str | None = None


@dataclass(frozen=True)
class Prepared:
    """A case ready to launch: memory allocated, inputs filled.

    `candidates` holds at least one; with several, the measuring core times them and keeps the
    fastest. `rel_error(candidate)` poisons the output, launches once and compares with a float64
    product of the inputs as stored; `total_error()` compares the output as it then stands with the
    product of the inputs before they were rounded to their storage.
    """

    candidates: Sequence[Candidate]
    rel_error: Callable[[Candidate], float]
    total_error: Callable[[], float]
    flops: int
    min_bytes: int


class CannotRun(Exception):
    """The case cannot run here; the message is the reason a person reads."""


class Op(Protocol):
    """An operation that can be measured. Registered in `kernels.OPS`."""

    name: str
    backends: Mapping[str, str]  # name -> what it is
    dims: tuple[str, ...]  # the integer ones
    layouts: tuple[str, ...]
    axis_name: str  # what `axis` counts

    def validate(self, case: Case) -> None:
        """ValueError when the case is no problem of this op."""
        ...

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """Why the case cannot run on the target, or None."""
        ...

    def default_backends(self, kind: str) -> tuple[str, ...]:
        """What is measured on a kind of device when the user names no back end."""
        ...

    def library_backend(self, kind: str) -> str:
        """The back end that baselines are measured with on a kind of device."""
        ...

    def flops(self, case: Case) -> int:
        """Useful floating-point (or integer) operations of one launch."""
        ...

    def min_bytes(self, case: Case) -> int:
        """Fewest bytes through device memory: inputs read once, output written once."""
        ...

    def tolerance(self, case: Case) -> float:
        """The largest relative error against float64 that is right."""
        ...

    def may_run_exactly(self, case: Case) -> bool:
        """Whether the back end is only *allowed* the precision's arithmetic, and may do better."""
        ...

    def gemm(self, case: Case) -> tuple[int, int, int]:
        """(M, N, K) of the product that the case is, or is done as."""
        ...

    def misaligned(self, case: Case) -> tuple[str, int] | None:
        """("K=4095", 8190) where rows do not start on 16 bytes: why, and a row's bytes."""
        ...

    def aligned(self, case: Case) -> Case:
        """The case padded up until `misaligned` has nothing to say."""
        ...

    def size(self, case: Case) -> str:
        """The size in a word: "4096", "64x256"."""
        ...

    def axis(self, case: Case) -> int | None:
        """The size as one number, where it is one: what charts run along."""
        ...

    def setting(self, case: Case) -> Mapping[str, str]:
        """What else the case is, beside size, precision and back end, by name."""
        ...

    def probe(self, case: Case) -> Case:
        """A small case of the same kind."""
        ...

    def save_tuned(self, case: Case, target: Target, label: str) -> Path:
        """Record the Triton configuration that won a search; the path of the user's table."""
        ...

    def session(self, target: Target, seed: int) -> OpSession:
        """Where operands live while the arms of one comparison share them."""
        ...


class OpSession(Protocol):
    """Prepares cases; arms of one group that store the same operands share the memory."""

    def prepare(self, case: Case, *, tune: bool = False) -> Prepared:
        """Allocate, fill and bind. Raises CannotRun with a reason, or torch.OutOfMemoryError."""
        ...

    def close(self) -> None:
        """Free what is shared."""
        ...
