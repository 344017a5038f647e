"""The type of a planted case: the case, its condition, and why it has it by construction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernels import OPS, size_of
from kernels.case import Case

CONDITIONS = ("launch", "memory", "alignment", "waves", "layout", "power", "cache", "mixed")
Tile = tuple[int, int]
TileOf = Callable[[Case], Tile | None]  # the tile that a Triton GEMM will use; None: cannot run


@dataclass(frozen=True)
class Plant:
    """A case and the condition planted in it, or kept out of it when it is a control.

    `companions` are measured beside it, `apart` in the session with a warm cache; `tile` is (M, N)
    in elements. A plant is right when `condition` is diagnosed, a control when none of `never` is.
    One that is `held_out` was made by means that the diagnosis does not share, and tuned nothing.
    """

    name: str
    condition: str
    because: str
    subject: Case
    companions: tuple[Case, ...] = ()
    apart: tuple[Case, ...] = ()
    tile: Tile | None = None
    never: frozenset[str] = field(default_factory=frozenset[str])
    held_out: bool = False

    @property
    def control(self) -> bool:
        """Whether the condition was kept out (`never` is not empty)."""
        return bool(self.never)

    @property
    def right(self) -> str:
        """The diagnosis that counts as right, in words."""
        return "not " + " or ".join(sorted(self.never)) if self.control else self.condition


@dataclass(frozen=True)
class Absent:
    """A condition that this device cannot have, and why."""

    condition: str
    reason: str


def gemm(m: int, n: int, k: int, precision: str, backend: str = "cublas") -> Case:
    """A GEMM C[M, N] = A[M, K] @ B[K, N] in the default layout, by cuBLAS."""
    return Case("gemm", {"m": m, "n": n, "k": k}, precision, backend)


def conv(
    channels: tuple[int, int], which: str, precision: str, layout: str = "nhwc", *,
    batch: int = 32, image: int = 28, taps: int = 3,
) -> Case:  # fmt: skip
    """A convolution of `channels` (C, K) by cuDNN: stride 1, output as large as its input.

    `image` is pixels a side, `taps` the side of the filter; `which` is the pass.
    """
    c, k = channels
    dims: dict[str, int | str] = {
        "n": batch, "c": c, "h": image, "w": image, "k": k, "r": taps, "s": taps, "stride": 1,
        "padding": taps // 2, "dilation": 1, "groups": 1, "pass": which,
    }  # fmt: skip
    return Case("conv", dims, precision, "cudnn", layout)


def label(case: Case) -> str:
    """ "fp16 gemm 4096 cublas", "tf32 conv dgrad nhwc 64"."""
    more = f" {case.dims['pass']} {case.layout}" if case.op == "conv" else ""
    by = "" if case.op == "conv" else f" {case.backend}"
    return f"{case.precision_name} {case.op}{more} {size_of(case)}{by}"


def min_bytes(case: Case) -> int:
    """Least bytes that a launch of the case moves."""
    return OPS[case.op].min_bytes(case)


def planted(condition: str, because: str, subject: Case, **more: Any) -> Plant:
    """A plant, named after its condition and case."""
    return Plant(f"{condition}: {label(subject)}", condition, because, subject, **more)


def control(condition: str, because: str, subject: Case, *never: str, **more: Any) -> Plant:
    """A case without a condition (or without all in `never`)."""
    name = f"not {condition}: {label(subject)}"
    return Plant(name, condition, because, subject, never=frozenset(never or (condition,)), **more)
