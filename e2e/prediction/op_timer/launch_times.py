"""Launches calls in the step's order and from its threads, and times what that costs the host.

cuDNN searches algorithms once per thread of a process, so launching from the training's threads
leaves the results for a training that follows.

A call that is launched over and over stays in the CPU's caches, and a host slowed by other users of
these would seem fast. After other work everything is slow at first; but steps follow each other,
and so do passes over their calls. A launch seems cheaper while the device still has work queued; in
a CPU-bound step it often has little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import torch

from e2e.aten import Replay
from e2e.prediction.op_timer.op_timer import PlacedCall
from e2e.training.speed_readings import HostSpeed, SpeedBetween
from microbench.timing.stats import median

LEAST_PASSES, PASSING_S = 4, 1.2  # where passes take long
WARM_S = 0.03  # after other work the host needs this long to be as quick as it will be
LEFT_S = 10e-6  # of work that a launch may find on the device, by rough times; and
SURE_LAUNCHES = 200  # later it is waited for, as rough times that are too short add up

T = TypeVar("T")
Within = Callable[[Callable[[], Any]], Any]  # runs a function in some thread, returns its result
Threads = tuple[Within, Within]  # of the forward pass and all else; of the backward pass


def by_thread(
    calls: Iterable[T], is_backward: Callable[[T], bool], threads: Threads
) -> Iterator[tuple[Within, list[T]]]:
    """Consecutive calls that the same thread launches, with that thread."""
    for backward, some in groupby(calls, is_backward):
        yield threads[backward], list(some)


def forward_thread(work: Callable[[], T]) -> T:
    """Run the work in the caller's thread."""
    return work()


def backward_thread(device: torch.device) -> Within:
    """A function that runs work in autograd's thread for this device, and raises what it raises."""
    return lambda work: in_backward(work, device)()


def in_backward(work: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """The work as a backward pass that runs once, on the current stream, and nothing else."""
    done: list[T] = []
    with torch.enable_grad():
        root = torch.zeros((), device=device, requires_grad=True)
        output = _Backward.apply(root, lambda: done.append(work()))
    gradient = torch.ones((), device=device)

    def run() -> T:
        torch.autograd.backward(output, gradient)
        return done[0]

    return run


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


class HostTimedCall(NamedTuple):
    """A call to launch, and roughly how many seconds a launch takes the device."""

    counted: PlacedCall
    device_s: float


class Launch(NamedTuple):
    """One launch of a step: the index of its call, and whether it is in the backward pass."""

    which: int
    backward: bool


def host_times(
    calls: Sequence[HostTimedCall], threads: Threads, host_speed: HostSpeed, most: int
) -> list[float]:
    """Host seconds at the reference speed of each call; none of them may wait for the device.

    The medians over at most `most` passes, scaled to add up to the median pass: each pass has a few
    slow calls, seldom the same ones.
    """
    if not calls:
        return []
    until_s = time.perf_counter() + PASSING_S
    passes: list[list[float]] = []
    between = SpeedBetween(host_speed)
    while len(passes) < most:
        if len(passes) >= LEAST_PASSES and time.perf_counter() > until_s:
            break
        warm(lambda: host_pass(calls, threads))
        seconds = host_pass(calls, threads)
        middle = between.ends()
        passes.append([each_s / middle for each_s in seconds])
    middles = [median(times) for times in zip(*passes, strict=True)]
    share = median([math.fsum(one) for one in passes]) / math.fsum(middles)
    taken: list[list[float]] = [[] for _ in calls]
    launches = in_order([one.counted for one in calls])
    for launch, middle_s in zip(launches, middles, strict=True):
        taken[launch.which].append(share * middle_s)
    return [fmean(times) for times in taken]


def host_pass(calls: Sequence[HostTimedCall], threads: Threads) -> list[float]:
    """Host seconds of each launch of one pass, in the step's order and from its threads."""
    seconds: list[float] = []
    launches = in_order([one.counted for one in calls])
    for within, some in by_thread(launches, lambda launch: launch.backward, threads):
        seconds += within(partial(_launched, [calls[launch.which] for launch in some]))
    return seconds


def warm(run: Callable[[], object]) -> None:
    """Run it for WARM_S seconds, at least once."""
    until_s = time.perf_counter() + WARM_S
    run()
    while time.perf_counter() < until_s:
        run()


def in_order(calls: Sequence[PlacedCall]) -> list[Launch]:
    """The launches of the calls in the step's order."""
    placed = sorted((at, i) for i, one in enumerate(calls) for at in one.places)
    return [Launch(i, at in calls[i].backward) for at, i in placed]


def _launched(launches: Sequence[HostTimedCall]) -> list[float]:
    """Seconds of the host for each launch, on a device that has done about all before it.

    Until then the host spins. Where the rough times are too long, or a call's first kernels run
    before its last are launched, it does so for longer than it need, and the device is idle.
    """
    found: list[float] = []
    done_s = 0.0  # when the device will have done it all
    for i, one in enumerate(launches):
        if i % SURE_LAUNCHES == 0:
            torch.cuda.synchronize()
            done_s = 0.0
        spin_until(done_s - LEFT_S)
        replay = one.counted.replay
        launch_s, ended_s = _timed(replay.launch)
        found.append(launch_s - _for_python_s(replay))
        done_s = max(done_s, ended_s) + one.device_s
    for counted in dict.fromkeys(one.counted for one in launches):
        counted.replay.restore()
    torch.cuda.synchronize()
    return found


def _for_python_s(replay: Replay) -> float:
    """Seconds of a launch that no step has: autograd calls an operator without Python."""
    return _timed(replay.matching)[0] if replay.matching else 0.0


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """(seconds that it takes, the time at which it ended)."""
    began_s = time.perf_counter()
    run()
    ended_s = time.perf_counter()
    return ended_s - began_s, ended_s


def spin_until(at_s: float) -> None:
    """Busy-wait until `at_s`, in seconds of `time.perf_counter`."""
    while time.perf_counter() < at_s:
        pass
