"""Times calls one by one: on a GPU by the profiler, on a CPU by the clock.

What a step's kernels take depends on what runs beside them. So a round launches every call as often
as the step does, in which the GPU draws the step's power; arguments that the step would not find in
the cache are not there; calls of the backward pass are launched by autograd's thread, for which
cuDNN has searched its algorithms. The profiler's times have no gaps between kernels in them, as the
busy time of a training (`StepTimes.busy_s`) has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Annotated, Any

import torch
from msgspec import Meta

from e2e.aten import WARM, Call, CannotReplay, ColdL2, Pool, Replay, materialise, reserve
from e2e.training.step_timer import union_s
from kernels.case import Target
from kernels.messages import first_line, one_line
from microbench.device.profiler import KernelTime, record
from microbench.results.types import NOT_EMPTY, Amount, Count

ROUNDS = 5
LEAD_ROUNDS = 1  # that are profiled before, of which CUPTI may lose the first kernels
SETTLE_S = 0.3  # the clock needs this long to settle to the power of the step
SETTLING_ROUNDS = 2  # at least
LEAST, LEAST_LONG = 5, 2  # launches of a call in a round; of a long one
LONG_S = 1e-3
CPU_LAUNCHES = 5
MARK = "empty"  # the kernel of `microbench.timing.instruments` that is launched before a call
MOST_S = 86_400.0  # no call takes a day
TOO_LARGE = "it alone needs more memory than there is"


@dataclass(frozen=True)
class PlacedCall:
    """A call, and how a step launches it: how often, whether in its backward pass, what is cold."""

    call: Call
    count: float = 1
    backward: bool = False
    cold: ColdL2 = WARM


@dataclass(frozen=True)
class CallTime:
    """Device seconds of one launch, one a round; a CPU has no `kernels` (with copies).

    `scratch_bytes` are allocated during the call, beside its results.
    """

    times_s: Annotated[tuple[Annotated[float, Meta(gt=0, le=MOST_S)], ...], NOT_EMPTY]
    kernels: Amount = 0.0
    scratch_bytes: Count = 0


def time_calls(
    target: Target, calls: Sequence[PlacedCall], doing: Callable[[str], object] = len
) -> list[CallTime | str]:
    """The time of each call or, in one line, why it has none. Calls alternate in ROUNDS rounds.

    `doing` is called with the name of each part as it begins. Raises what a fault raises that the
    device does not survive.
    """
    times: list[CallTime | str] = [TOO_LARGE] * len(calls)
    device = torch.device(target.torch_device)
    pool, fit = _pool(device, calls)
    doing("launching its operations for the first time")
    ready: list[_Ready] = []
    for place in fit:
        try:
            call = _Ready(place, calls[place], materialise(calls[place].call, device, pool,
                                                          calls[place].cold))  # fmt: skip
            _in_thread(call.placed.backward, device, partial(_warm_up, call, device))
            ready.append(call)
        except torch.OutOfMemoryError:
            pass
        except CannotReplay as problem:
            times[place] = first_line(problem).removeprefix(f"{calls[place].call.name}: ")
        except Exception as error:
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # raises where it is of no more use
            times[place] = one_line(error)
    doing("timing its operations")
    timed = _on_gpu(target, device, ready) if device.type == "cuda" else _on_cpu(ready)
    for call in ready:
        times[call.place] = timed.get(call.place, "the profiler saw no kernel of it")
    return times


@dataclass
class _Ready:
    """A call that was launched once; `launches` of it make a block."""

    place: int
    placed: PlacedCall
    replay: Replay
    scratch_bytes: int = 0
    launches: int = 1


def _pool(device: torch.device, calls: Sequence[PlacedCall]) -> tuple[Pool, list[int]]:
    """Memory for the largest call, and the places of the calls that the device can hold."""
    fit = list(range(len(calls)))
    while True:
        pool = Pool(device)
        try:
            reserve([(calls[place].call, calls[place].cold) for place in fit], pool)
            return pool, fit
        except torch.OutOfMemoryError:
            fit.remove(max(fit, key=lambda place: sum(t.bytes for t in calls[place].call.tensors)))


def _warm_up(call: _Ready, device: torch.device) -> None:
    """The first launches: they search algorithms, then show memory and, roughly, time."""
    call.replay.plain()
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    began_s = time.perf_counter()
    kept = call.replay.plain()
    torch.cuda.synchronize(device)
    took_s = time.perf_counter() - began_s
    after, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    del kept
    call.scratch_bytes = peak - max(before, after)
    call.launches = max(round(call.placed.count), LEAST_LONG if took_s > LONG_S else LEAST)
    call.replay.restore()


# ---------------------------------------------------------------- by the clock


def _on_cpu(ready: Sequence[_Ready]) -> dict[int, CallTime]:
    """A CPU runs a call before it returns: all of the time is the device's."""
    times_s: dict[int, list[float]] = {call.place: [] for call in ready}
    for call in CPU_LAUNCHES * list(ready):
        call.replay.restore()
        began_s = time.perf_counter()
        call.replay.launch()
        times_s[call.place].append(time.perf_counter() - began_s)
    return {place: CallTime(tuple(times)) for place, times in times_s.items()}


# ---------------------------------------------------------------- by the profiler


def _on_gpu(target: Target, device: torch.device, ready: Sequence[_Ready]) -> dict[int, CallTime]:
    from microbench.timing.instruments import Instruments

    if not ready:
        return {}
    empty = Instruments(target.index, 16, target.sm_count).launch_empty  # nothing is flushed
    owners: list[int | None] = []  # of marks

    def mark(owner: int | None) -> None:
        owners.append(owner)
        empty()

    def launch_all() -> None:
        for backward in (False, True):
            some = [call for call in ready if call.placed.backward is backward]
            if some:
                _in_thread(backward, device, partial(_blocks, some, mark))

    began_s = time.perf_counter()
    settling = 0
    while settling < SETTLING_ROUNDS or time.perf_counter() - began_s < SETTLE_S:
        launch_all()
        torch.cuda.synchronize(device)
        settling += 1
    owners.clear()
    kernels = record(lambda: [launch_all() for _ in range(LEAD_ROUNDS + ROUNDS)])
    by_place = kernels_of(kernels, owners)
    times: dict[int, CallTime] = {}
    for call in ready:
        rows = by_place.get(call.place, [])[-ROUNDS:]
        if rows:
            times_s = tuple(launch_s(row, call.launches) for row in rows)
            each = fmean(map(len, rows)) / call.launches
            times[call.place] = CallTime(times_s, each, call.scratch_bytes)
    return times


def _blocks(ready: Sequence[_Ready], mark: Callable[[int | None], None]) -> None:
    """A block of launches of each call, after a mark."""
    for call in ready:
        mark(call.place)
        for _ in range(call.launches):
            call.replay.launch()
    mark(None)
    for call in ready:
        call.replay.restore()


def kernels_of(
    seen: Sequence[KernelTime], owners: Sequence[int | None]
) -> Mapping[int, list[list[KernelTime]]]:
    """The kernels between each mark and the next, in order, by the owner of the mark.

    `owners` has one entry per launched mark: the call that follows, None for kernels of no call. If
    the profile begins late, the first owners are dropped: CUPTI loses the first kernels after a
    rest. Empty if the profile has more marks than owners.
    """
    rows: list[list[KernelTime]] = []
    for kernel in seen:
        if kernel.name == MARK:
            rows.append([])
        elif rows:
            rows[-1].append(kernel)
    by_owner: dict[int, list[list[KernelTime]]] = {}
    if len(rows) > len(owners):
        return by_owner
    for owner, row in zip(owners[len(owners) - len(rows) :], rows, strict=True):
        if owner is not None and row:
            by_owner.setdefault(owner, []).append(row)
    return by_owner


def launch_s(kernels: Sequence[KernelTime], launches: int) -> float:
    """Seconds in which a kernel runs, of one of a block's launches.

    The first launch finds the cache as another call left it, so it does not count, if there are
    others and each has as many kernels.
    """
    each, rest = divmod(len(kernels), launches)
    if rest or launches == 1:
        return union_s(kernels) / launches
    return fmean(union_s(kernels[i : i + each]) for i in range(each, len(kernels), each))


# ---------------------------------------------------------------- threads


def _in_thread(backward: bool, device: torch.device, work: Callable[[], object]) -> None:
    """Run the work here, or in autograd's thread for the device; raises what it raises.

    cuDNN searches algorithms once per thread of a process: a training that follows finds them.
    """
    if not backward:
        work()
        return
    with torch.enable_grad():
        root = torch.zeros((), device=device, requires_grad=True)
        output = _Backward.apply(root, work)
    torch.autograd.backward(output, torch.ones((), device=device))


class _Backward(torch.autograd.Function):
    """An autograd function whose backward pass only runs the given work."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor, work: Callable[[], object]) -> torch.Tensor:
        ctx.work = work
        return root.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.work()
        return None, None
