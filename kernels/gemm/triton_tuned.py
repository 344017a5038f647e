"""The tuned configurations of the Triton GEMM: precision -> layout -> "MxNxK" -> label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log2
from pathlib import Path

from kernels.tuned import Tables

REPOSITORY = Path(__file__).parent / "tuned"
TABLES = Tables(REPOSITORY)
NEAR = 1.5  # a size this many times larger or smaller, all dimensions together, may lend its entry

Size = tuple[int, int, int]


def entries(device_names: Sequence[str], precision: str, layout: str) -> dict[Size, str]:
    """Tuned sizes -> labels; later devices override earlier ones, the user's all of them."""
    found: dict[Size, str] = {}
    for key, label in TABLES.section(device_names, precision, layout).items():
        m, n, k = (int(size) for size in key.split("x"))
        found[m, n, k] = label
    return found


def nearest(
    listed: Mapping[Size, str], size: Size, usable: Callable[[Size, str], bool]
) -> str | None:
    """The label for the exact size, else that of the nearest usable one in reach, else None."""

    def distance(other: Size) -> float:
        return sum(abs(log2(x / y)) for x, y in zip(size, other, strict=True))

    for other in sorted(listed, key=distance):
        if distance(other) > log2(NEAR):
            return None
        if usable(other, listed[other]):
            return listed[other]
    return None


def save(device_name: str, precision: str, layout: str, size: Size, label: str) -> Path:
    """Record a winner in the user's table; the file's path."""
    return TABLES.save(device_name, precision, layout, "x".join(map(str, size)), label)
