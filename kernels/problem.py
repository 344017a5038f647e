"""What is computed, without precision and back end: a matrix product or a convolution."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from kernels.precision import Precision

ALIGNMENT_BYTES = 16  # of a row, or a pixel's channels: what TMA, cp.async, 128-bit loads take


class Problem(ABC):
    """Sizes, and the layout that they are stored in: a frozen dataclass for each op. Run files and
    the columns of `--shapes` have the same names of sizes and settings.
    """

    op: ClassVar[str]  # its name in `kernels.OPS`
    NUMBERS: ClassVar[Sequence[str]]  # the sizes that must be given
    USUAL: ClassVar[Mapping[str, str]]  # what else a line of --shapes may have, and its default
    CHOICES: ClassVar[Mapping[str, Sequence[str]]]  # the words of `layout`, and of other settings
    ARGUMENTS: ClassVar[frozenset[str]] = frozenset()  # that only functions for this op have
    TILE: ClassVar[str] = ""  # "nmk": the order in the name of a library's kernel; "" says nothing
    layout: str

    def __post_init__(self) -> None:
        """ValueError for a word that is none of the choices, and for a size below 1."""
        for name, words in self.CHOICES.items():
            if (word := self.setting[name]) not in words:
                raise ValueError(f"{name} must be one of {', '.join(words)}, not {word!r}")
        for name in self.NUMBERS:
            if int(self.dims[name]) < 1:
                raise ValueError(f"{name} must be at least 1, not {self.dims[name]}")

    @classmethod
    def fields_of(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Its fields, by the names that run files have."""
        return {**named, "which": named.get("pass")}

    @property
    def key(self) -> str:
        """Identity, the same in every run and version."""
        dims = ",".join(f"{name}={value}" for name, value in self.dims.items())
        return f"{self.op}/{dims}/{self.layout}"

    @property
    def axis(self) -> int | None:
        """The size as one number, the x axis of charts; None where it takes several."""
        return int(self.size) if self.size.isdecimal() else None

    def tolerance(self, precision: Precision) -> float:
        """The largest relative error (Frobenius norm, against float64) of a correct result."""
        return precision.rel_tolerance

    def may_run_exactly(self, precision: Precision, backend: str) -> str:
        """Why the back end may compute more exactly than the precision says; "": it may not."""
        return ""

    def tiles(self, tile: Sequence[int]) -> int | None:
        """How many tiles of (M, N, K) cover what it computes once; None where that is not known."""
        m, n, _ = self.mnk
        return math.ceil(m / tile[0]) * math.ceil(n / tile[1])

    def misaligned(self, precision: Precision) -> tuple[str, int] | None:
        """("K=4095", a row's bytes) where rows do not start on 16 bytes; None where they do."""
        for name, width in self.rows(precision):
            size = int(self.dims[name])
            if size * width % ALIGNMENT_BYTES:
                return f"{name.upper()}={size}", size * width
        return None

    @property
    @abstractmethod
    def inputs(self) -> Sequence[str]:
        """The names of the tensors that a launch reads."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[str]:
        """The names of those that it writes."""

    @abstractmethod
    def stored(self, name: str) -> Sequence[int]:
        """The sizes of a tensor in the order that the layout stores it in."""

    def held(self, name: str) -> str:
        """Which dtype of a precision a tensor has: inputs after the second have the output's."""
        return ("storage", "storage_b", "output")[[*self.inputs[:2], name].index(name)]

    def viewed(self, name: str, tensor: Any) -> Any:
        """An input as it is multiplied: a view of what is stored."""
        return tensor

    def min_bytes(self, precision: Precision) -> int:
        """Least memory traffic per launch in bytes: inputs read once, output written once."""
        return sum(
            math.prod(self.stored(name)) * precision.bytes_of(self.held(name))
            for name in (*self.inputs, *self.outputs)
        )

    @property
    @abstractmethod
    def dims(self) -> Mapping[str, int | str]:
        """The sizes by the names that run files have."""

    @property
    @abstractmethod
    def size(self) -> str:
        """The size in short: "4096", "64x256"."""

    @property
    def title(self) -> str:
        """What a line or a table calls it, without precision and back end."""
        return self.size

    @property
    @abstractmethod
    def setting(self) -> Mapping[str, str]:
        """What else it is, besides its size, by name."""

    @property
    @abstractmethod
    def mnk(self) -> tuple[int, int, int]:
        """(M, N, K) of the GEMM, for a convolution of one group's implicit GEMM."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Useful operations per launch, a multiply-add as two."""

    @abstractmethod
    def rows(self, precision: Precision) -> tuple[tuple[str, int], ...]:
        """(dimension, bytes of an element) of what should start on 16 bytes."""

    def aligned(self, precision: Precision) -> Self:
        """The same with dimensions padded to whole 16-byte rows."""
        found: Any = self
        for name, width in self.rows(precision):
            found = replace(found, **{name: padded(getattr(found, name), width)})
        return found

    @abstractmethod
    def probe(self, scale: int = 1) -> Self:
        """A small problem of the same kind, at most as large as this; it grows with `scale`."""


def padded(size: int, element_bytes: int) -> int:
    """The least size from this on whose rows are whole 16-byte words."""
    whole = ALIGNMENT_BYTES // min(element_bytes, ALIGNMENT_BYTES)
    return -(-size // whole) * whole
