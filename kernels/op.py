"""An op: what its cases are, which back ends run them, and how they are prepared."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from kernels.case import Candidate, CannotRun, Case, LeftBehind, Prepared, Target
from kernels.tune import NONE
from kernels.user import UserBackend

OWN = ":"  # in the name of a back end that the user brings
TUNED = "triton"  # the back end of our kernels, whose configurations are tuned


@dataclass(frozen=True)
class BackendEntry:
    """One back end of an op: the module that offers `cannot_run` and `candidates`; with `tuned`,
    `configurations` and `compiled` too.
    """

    module: str
    title: str
    kind: str  # of device: "cuda" or "cpu"
    tuned: bool = False

    def load(self) -> Any:
        """The module. ImportError where a package that it needs is not installed."""
        return importlib.import_module(self.module)

    def candidates(
        self, case: Case, operands: Any, target: Target, *, search: str
    ) -> tuple[Candidate, ...]:
        """The ways to run the case; of our kernels those that a search (NONE, QUICK or WIDE) times.
        Raises CannotRun with the reason where there is none, ImportError as `load` does.
        """
        searched = (search,) if self.tuned else ()
        return tuple(self.load().candidates(case, operands, target, *searched))

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """Why the case cannot run on the target: device, capability, or the module's reason; None
        if it can. ImportError as `load`.
        """
        if self.kind != target.kind:
            device = "a CUDA GPU" if self.kind == "cuda" else "--device cpu"
            return f"back end {case.backend} needs {device}"
        return _below_capability(case, target) or self.load().cannot_run(case, target)


def _below_capability(case: Case, target: Target) -> str | None:
    if target.kind != "cuda":
        return None
    have, need = target.capability or (0, 0), case.precision.min_capability.get(case.backend)
    if need is None:
        return f"{case.backend} has no {case.precision_name}"
    if have < need:
        return (
            f"{case.precision_name} needs compute capability {need[0]}.{need[1]}, "
            f"this GPU has {have[0]}.{have[1]}"
        )
    return None


class Op(ABC):
    """An operation that can be measured. Registered in `kernels.OPS`.

    Its package `kernels.NAME` also has the modules `operands` (an `OperandPool`), `check`, and
    `triton.backend`.
    """

    name: str
    entries: ClassVar[Mapping[str, BackendEntry]]
    gpu_defaults: tuple[str, ...]  # what is measured on a GPU when the user names no back end
    library: str  # the back end that stands for the vendor's on a GPU
    libraries: tuple[str, ...]  # those of the vendor's back ends that ours are held against
    dims: tuple[str, ...]  # the integer ones
    pairs: tuple[str, ...] = ()  # those of them that may be a text such as "0x15", rows x columns
    layouts: tuple[str, ...]
    axis_name: str  # what `axis` counts

    @property
    def backends(self) -> Mapping[str, str]:
        """Names of the back ends -> one line about each."""
        return {name: entry.title for name, entry in self.entries.items()}

    def entry(self, backend: str) -> BackendEntry | UserBackend:
        """The back end of a name: one of ours, or the user's "module:name". KeyError for others."""
        return UserBackend(backend) if OWN in backend else self.entries[backend]

    def check_own(self, backend: str) -> None:
        """Check a user's "module:name". ValueError, in one line, if it is not a back end."""
        UserBackend(backend).found  # noqa: B018

    def default_backends(self, kind: str) -> tuple[str, ...]:
        """What is measured on a kind of device when the user names no back end."""
        return self.gpu_defaults if kind == "cuda" else ("cpu",)

    def library_backend(self, kind: str) -> str:
        """The back end that baselines are measured with on a kind of device."""
        return self.library if kind == "cuda" else "cpu"

    def cannot_run(self, case: Case, target: Target) -> str | None:
        """Why the case cannot run on the target, or None. KeyError for an unknown back end."""
        return self.entry(case.backend).cannot_run(case, target)

    def labels(self, case: Case, target: Target) -> frozenset[str]:
        """Of all Triton configurations that may run the case; none for another back end, and where
        Triton cannot run it.
        """
        if case.backend != TUNED:
            return frozenset()
        try:
            if self.cannot_run(case, target):
                return frozenset()
            ranked = self.entries[TUNED].load().configurations(case, target).ranked
        except (CannotRun, ImportError):
            return frozenset()
        return frozenset(config.label for config in ranked)

    def session(self, target: Target, seed: int) -> OpSession:
        """Where operands live while the variants of one comparison share them."""
        return OpSession(self, target, seed)

    @abstractmethod
    def validate(self, case: Case) -> None:
        """ValueError for a case that this op does not have, with the offending dimension."""

    @abstractmethod
    def flops(self, case: Case) -> int:
        """Useful operations per launch, a multiply-add as two."""

    @abstractmethod
    def min_bytes(self, case: Case) -> int:
        """Least memory traffic per launch in bytes: inputs read once, output written once."""

    @abstractmethod
    def tolerance(self, case: Case) -> float:
        """The largest relative error (Frobenius norm, against float64) of a correct result."""

    def may_run_exactly(self, case: Case) -> bool:
        """Whether the back end may compute more exactly than the precision says."""
        return False

    @abstractmethod
    def gemm(self, case: Case) -> tuple[int, int, int]:
        """(M, N, K) of the GEMM, for a convolution of its implicit GEMM."""

    @abstractmethod
    def misaligned(self, case: Case) -> tuple[str, int] | None:
        """("K=4095", a row's bytes) where rows do not start on 16 bytes; None where they do."""

    @abstractmethod
    def aligned(self, case: Case) -> Case:
        """The case with dimensions padded to whole 16-byte rows, so that `misaligned` is None."""

    @abstractmethod
    def size(self, case: Case) -> str:
        """The size in short: "4096", "64x256"."""

    @abstractmethod
    def axis(self, case: Case) -> int | None:
        """The size as one number, the x axis of charts; None where it takes several."""

    @abstractmethod
    def setting(self, case: Case) -> Mapping[str, str]:
        """What else the case is, besides size, precision and back end, by name."""

    @abstractmethod
    def probe(self, case: Case, scale: int = 1) -> Case:
        """A small case of the same kind, at most as large as `case`; it grows with `scale`."""


class OpSession:
    """Prepares cases of one op; variants of one group that store the same operands share memory."""

    def __init__(self, op: Op, target: Target, seed: int) -> None:
        self.op, self.target = op, target
        self.checking = importlib.import_module("kernels.checking")
        self.check = importlib.import_module(f"kernels.{op.name}.check")
        operands = importlib.import_module(f"kernels.{op.name}.operands")
        self.pool = operands.OperandPool(target, seed)

    def prepare(self, case: Case, *, search: str = NONE) -> Prepared:
        """Allocate, fill and bind what a `search` tries. Raises CannotRun with a reason, or
        torch.OutOfMemoryError; ValueError for a user's back end that is none, ImportError for one
        whose packages are missing.
        """
        operands = launched = self.pool.get(case)
        entry = self.op.entry(case.backend)
        found = entry.candidates(case, operands, self.target, search=search)

        def rel_error(candidate: Candidate) -> float:
            nonlocal launched
            launched = self.check.launch_poisoned(operands, candidate)
            return self.check.relative_error(launched)

        renewal = cache(lambda: self.checking.renewal(operands.inputs))

        def renew() -> None:
            renewal()()

        def rel_error_again(
            candidate: Candidate, sample: Callable[[Callable[[], object]], object]
        ) -> float:
            if case.data == "zeros":  # other zeros are not new
                return rel_error(candidate)
            kept: list[Any] = []

            def launch() -> None:
                result = self.checking.filled(candidate.call(), operands.output)
                kept[:] = result, self.checking.ends(result)  # in the order of the stream

            self.checking.ends(operands.output)  # loads its kernel, which no gate can hold
            sample(launch)
            result, ends_then = kept
            error = self.check.relative_error(operands.holding(result))
            late = not self.checking.ends(result).equal(ends_then)
            if late and error <= self.op.tolerance(case):
                raise LeftBehind
            return error

        def total_error() -> float:
            return self.check.total_error(launched)

        flops, min_bytes = self.op.flops(case), self.op.min_bytes(case)
        return Prepared(found, rel_error, renew, rel_error_again, total_error, flops, min_bytes)

    def close(self) -> None:
        """Free the shared operands."""
        self.pool.clear()
