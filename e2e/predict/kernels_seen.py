"""Tells from a profile which kernels each call ran: an empty kernel is launched before each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from microbench.kernel_names import KernelTime

MARK, GATE = "empty", "gate"  # kernels of `microbench.instruments`, and of no call

T = TypeVar("T")


def kernels_of(
    seen: Sequence[KernelTime], owners: Sequence[T | None]
) -> list[tuple[T, list[KernelTime]]] | None:
    """Each call with what ran between its mark and the next one, in the order of the marks.

    `owners` has, of each mark that was launched, the call that follows, or None where what follows
    is nobody's. Of a profile that begins late the first owners are left out: CUPTI loses what runs
    first after a rest. None when there are marks that nobody launched.
    """
    rows: list[list[KernelTime]] = []
    for kernel in seen:
        if kernel.name == MARK:
            rows.append([])
        elif rows and kernel.name != GATE:
            rows[-1].append(kernel)
    if len(rows) > len(owners):
        return None
    pairs = zip(owners[len(owners) - len(rows) :], rows, strict=True)
    return [(owner, row) for owner, row in pairs if owner is not None]
