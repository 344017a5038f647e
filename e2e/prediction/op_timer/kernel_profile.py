"""Assigns the kernels of a profile to calls: an empty kernel is launched before each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeVar

import torch

from e2e.prediction.op_timer.launch_times import Within
from microbench.device.profiler import KernelTime, record
from microbench.timing.timers import TRAILING

MARK, GATE = "empty", "gate"  # kernels of `microbench.timing.instruments`, and of no call
TIMES, TOGETHER = 3, 100  # launches of each call; calls behind one gate


class Launched(Protocol):
    """A call that can be profiled."""

    @property
    def waits(self) -> bool:
        """Whether the host waits for the device in it."""
        ...

    @property
    def launch_as_in_step(self) -> Callable[[], object]:
        """Launch it once."""
        ...


T = TypeVar("T")
C = TypeVar("C", bound=Launched)
Rows = Sequence[tuple[Within, Sequence[C]]]  # calls, with the thread that launches them
Gate = Callable[[], AbstractContextManager[None]]


def profiled(
    rows: Rows[C], mark: Callable[[], object], gate: Gate
) -> dict[C, list[list[KernelTime]]]:
    """The kernels of each call, one list per launch that was seen; calls never seen are left out.

    `mark` launches an empty kernel; `gate` launches TRAILING of them at the end. Calls that do not
    wait are launched behind a gate: a kernel that finds the device idle starts later.
    """
    owners: list[C | None] = []  # of marks

    def launch_all() -> None:
        for _ in range(TIMES):
            for within, some in rows:
                within(partial(_launch_marked, some, owners, mark, gate))

    for within, some in rows:  # a first launch may hold the host: for memory
        within(partial(_launch_once, some))
    return kernels_of(record(launch_all), owners)


def kernels_in(
    step: Callable[[Callable[[T | None], None]], object], mark: Callable[[], object]
) -> dict[T, list[list[KernelTime]]]:
    """The kernels after each mark that `step` sets, by the mark's owner; None owns none.

    `mark` launches an empty kernel.
    """
    owners: list[T | None] = []

    def set_mark(owner: T | None) -> None:
        owners.append(owner)
        mark()

    return kernels_of(record(lambda: step(set_mark)), owners)


def _launch_once(calls: Sequence[Launched]) -> None:
    for one in calls:
        one.launch_as_in_step()
    torch.cuda.synchronize()


def _launch_marked(
    calls: Sequence[C], owners: list[C | None], mark: Callable[[], object], gate: Gate
) -> None:
    """Each after a mark, whose owner it is."""

    def launch(some: Sequence[C]) -> None:
        for one in some:
            owners.append(one)
            mark()
            one.launch_as_in_step()

    launch([one for one in calls if one.waits])
    owners.append(None)
    mark()
    others = [one for one in calls if not one.waits]
    for first in range(0, len(others), TOGETHER):
        with gate():
            launch(others[first : first + TOGETHER])
        owners.extend([None] * TRAILING)


def kernels_of(
    seen: Sequence[KernelTime], owners: Sequence[T | None]
) -> dict[T, list[list[KernelTime]]]:
    """The kernels between each mark and the next, in order, by the owner of the mark.

    `owners` has one entry per launched mark: the call that follows, None for kernels of no call. If
    the profile begins late, the first owners are dropped: CUPTI loses the first kernels after a
    rest. Empty if the profile has more marks than owners.
    """
    rows: list[list[KernelTime]] = []
    for kernel in seen:
        if kernel.name == MARK:
            rows.append([])
        elif rows and kernel.name != GATE:
            rows[-1].append(kernel)
    found: dict[T, list[list[KernelTime]]] = {}
    if len(rows) > len(owners):
        return found
    for owner, row in zip(owners[len(owners) - len(rows) :], rows, strict=True):
        if owner is not None:
            found.setdefault(owner, []).append(row)
    return found
