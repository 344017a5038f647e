"""Assigns the kernels of a profile to calls: an empty kernel is launched before each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeVar

import torch

from e2e.predict.op_timer.launch_times import Within
from microbench.device.profiler import KernelTime, record
from microbench.timing.timers import TRAILING

MARK, GATE = "empty", "gate"  # kernels of `microbench.timing.instruments`, and of no call
TIMES, TOGETHER = 3, 100  # launches of each call; calls behind one gate


class Launched(Protocol):
    """A call."""

    @property
    def waits(self) -> bool:
        """Whether it holds the host until the device is done."""
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
    """The kernels of each call, as often as they were seen; calls of which none was are left out.

    `mark` launches an empty kernel, as a `gate` does TRAILING times in the end. What does not wait
    is launched behind one: a kernel that finds the device idle takes longer to begin.
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
    """The kernels that ran after each mark that `step` sets, by whose they are said to be: from
    one mark to the next, None for kernels of no call. `mark` launches an empty kernel.
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
    """What ran between each mark of a call and the next mark, in their order.

    `owners` has, of each mark that was launched, the call that follows, or None if the kernels
    that follow belong to no call. Of a profile that begins late the first owners are left out:
    CUPTI loses what runs first after a rest. Empty if the profile has more marks than these.
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
