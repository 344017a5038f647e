"""What the Triton back ends share: labels of configurations, TMA's limits, launches, and whether
this Triton has Gluon.

Nothing here imports torch or triton as it is loaded: rules can be checked on any machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from math import ceil
from typing import Any, TypeVar

from kernels.case import Candidate, CannotRun
from kernels.gpus import LINE_BYTES, SECTOR_BYTES
from kernels.precision import Precision

# CUDA driver API, cuTensorMapEncodeTiled
TMA_ALIGNMENT = 16  # bytes, of every row and of every stride but the last
MAX_BOX = 256  # elements along one dimension
MAX_INDEX = 2**31 - 1


Config = TypeVar("Config")


@dataclass(frozen=True)
class LabelFormat:
    """How a back end writes its configurations as labels: "kernel/128x256x64/s4/w8/sub2/direct".

    A kernel, the fields of `sizes`, then numbers, by prefix the field: those of `always`, those of
    `above_one` if they are above 1, and last the names of the `flags` that hold.
    """

    name: str
    kernels: tuple[str, ...]
    sizes: tuple[str, ...]
    always: Mapping[str, str]
    above_one: Mapping[str, str] = field(default_factory=dict[str, str])
    flags: tuple[str, ...] = ()

    def write(self, config: Any) -> str:
        """The label of a configuration with these fields and `kernel`."""
        parts = [config.kernel, "x".join(str(getattr(config, size)) for size in self.sizes)]
        for prefix, name in {**self.always, **self.above_one}.items():
            number = getattr(config, name)
            if prefix in self.always or number > 1:
                parts.append(f"{prefix}{number}")
        return "/".join([*parts, *(flag for flag in self.flags if getattr(config, flag))])

    def read(self, label: str) -> dict[str, Any]:
        """The fields of a label; numbers left out are 1. Raises ValueError."""
        match = self._pattern.fullmatch(label)
        if match is None:
            raise ValueError(f"not a configuration of the {self.name}: {label!r}")
        fields: dict[str, Any] = match.groupdict()
        kernel, flags = fields.pop("kernel"), {name: bool(fields.pop(name)) for name in self.flags}
        numbers = {name: int(number or 1) for name, number in fields.items()}
        return {"kernel": kernel, **numbers, **flags}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        number = r"[1-9]\d{0,6}"
        parts = [f"(?P<kernel>{'|'.join(self.kernels)})/"]
        parts += ["x".join(f"(?P<{name}>{number})" for name in self.sizes)]
        parts += [f"/{prefix}(?P<{name}>{number})" for prefix, name in self.always.items()]
        parts += [f"(?:/{prefix}(?P<{name}>{number}))?" for prefix, name in self.above_one.items()]
        return re.compile("".join([*parts, *(f"(?P<{flag}>/{flag})?" for flag in self.flags)]))


@dataclass(frozen=True)
class Step:
    """One kernel launch, all arguments bound.

    `grid` is the number of programs along each axis; `options` are Triton's, as from `options()`.
    """

    kernel: Callable[..., object]
    grid: tuple[int, ...]
    args: tuple[object, ...]
    options: dict[str, int]

    def launch(self) -> None:
        self.kernel[self.grid](*self.args, **self.options)  # type: ignore[index]

    def compile(self) -> object:
        return self.kernel.warmup(*self.args, grid=self.grid, **self.options)  # type: ignore[attr-defined]


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`, which is at least 1."""
    return 1 << (least - 1).bit_length()


def split_n(width: int) -> tuple[int, int]:
    """The widths of two sums side by side: powers of two, the second may be none, 0."""
    first = 1 << (width.bit_length() - 1)
    return first, width - first


def row_for_tma(row_bytes: int, padded: bool) -> int:
    """Bytes from one row to the next as TMA reads it: of the tensor itself where rows start on 16
    bytes, else of a copy in whole sectors. `padded`: of a copy in parts of a line that are powers
    of two, or whole lines.
    """
    if padded and row_bytes <= LINE_BYTES:
        return power_of_two(max(SECTOR_BYTES, row_bytes))
    if not (padded or row_bytes % TMA_ALIGNMENT):
        return row_bytes
    whole = LINE_BYTES if padded else SECTOR_BYTES
    return ceil(row_bytes / whole) * whole


def options(stages: int, warps: int) -> dict[str, int]:
    """Triton's compile options: pipeline stages, and warps of 32 threads a program."""
    return {"num_stages": stages, "num_warps": warps}


def input_precision(precision: Precision) -> str:
    """`input_precision` of `tl.dot` for float32 operands: "tf32" rounds them to 10 mantissa bits,
    "ieee" keeps all 23. Narrower operands are not affected.
    """
    return "tf32" if precision.multiply == "tf32" else "ieee"


def candidate(label: str, tile: tuple[int, int, int] | None, steps: Sequence[Step]) -> Candidate:
    """The launches, in order, as one candidate; `tile` is (M, N, K), or None where programs share
    one.
    """

    def call() -> None:
        for step in steps:
            step.launch()

    names = "+".join(dict.fromkeys(step.kernel.__name__ for step in steps))
    return Candidate(label, call, tile, names)


def bound(configs: Sequence[Config], bind: Callable[[Config], Candidate]) -> Sequence[Candidate]:
    """The configurations, ready to launch, but for those that do not fit the free memory; the last
    one's error where none fits. Any other error is a bug, and passed on.
    """
    from torch import OutOfMemoryError

    candidates: list[Candidate] = []
    for config in configs:
        try:
            candidates.append(bind(config))
        except (CannotRun, OutOfMemoryError):
            if config is configs[-1] and not candidates:
                raise
    return tuple(candidates)


# ---------------------------------------------------------------- Gluon

# Triton's language of layouts and warps. It is experimental: names move between versions.
GLUON_HOPPER = "triton.experimental.gluon.language.nvidia.hopper"
# Module -> what the kernels use of it; of names joined by "|", the later ones are of Triton 3.6.
GLUON_USED = {
    "triton.experimental.gluon": ("jit",),
    "triton.experimental.gluon.language": (
        "warp_specialize", "allocate_shared_memory", "num_warps", "NVMMASharedLayout",
        "NVMMADistributedLayout", "BlockedLayout", "SliceLayout", "barrier|thread_barrier",
    ),
    "triton.experimental.gluon.nvidia.hopper": ("TensorDescriptor",),
    GLUON_HOPPER: ("warpgroup_mma", "warpgroup_mma_wait", "fence_async_shared"),
    f"{GLUON_HOPPER}.tma": (
        "async_load|async_copy_global_to_shared", "async_store|async_copy_shared_to_global",
        "store_wait",
    ),
    f"{GLUON_HOPPER}.mbarrier": ("init", "wait", "arrive", "expect", "MBarrierLayout"),
}  # fmt: skip


@cache
def gluon_missing() -> str | None:
    """What this Triton lacks for the project's Gluon kernels, in a few words; None for nothing."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "Triton's interpreter does not run Gluon"
    for module, names in GLUON_USED.items():
        try:
            loaded = import_module(module)
        except ImportError:
            return f"this Triton has no {module}"
        for name in names:
            if not any(hasattr(loaded, each) for each in name.split("|")):
                return f"this Triton has no {module}.{name.split('|')[0]}"
    return None
