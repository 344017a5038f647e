"""Launches calls in the step's order and in its threads, and times what that costs the host.

cuDNN's algorithms are searched once a thread of a process: what is launched where a training
launches it leaves what it found for a training that follows.

A call that is launched again and again is in the processor's caches, and a host that is slow
because others use these would seem quick. After other work all is slow at first; but a step follows
its like, and so does a pass over its calls. A launch seems to cost less while the device has work
left: in a step that the host limits it often has little.
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

from e2e.predict.op_timer.op_timer import PlacedCall
from e2e.train.speed_readings import HostSpeed, SpeedBetween
from kernels.aten import Replay
from microbench.timing.stats import median

LEAST_PASSES, PASSING_S = 4, 2.0  # where passes take long
WARM_S = 0.03  # after other work the host needs this long to be as quick as it will be
LEFT_S = 10e-6  # of work that a launch may find on the device, by rough times; and
SURE_LAUNCHES = 200  # later it is waited for, as rough times that are too short add up

T = TypeVar("T")
Within = Callable[[Callable[[], Any]], Any]  # runs a function in some thread, gives what it gives
Threads = tuple[Within, Within]  # of the forward pass and all else; of the backward pass


def by_thread(
    calls: Iterable[T], is_backward: Callable[[T], bool], threads: Threads
) -> Iterator[tuple[Within, list[T]]]:
    """As many calls in a row as the same thread launches, with that thread."""
    for backward, some in groupby(calls, is_backward):
        yield threads[backward], list(some)


def forward_thread(work: Callable[[], T]) -> T:
    """In the caller's own."""
    return work()


def backward_thread(device: torch.device) -> Within:
    """In autograd's for this device. What the work raises is raised here."""
    return lambda work: in_backward(work, device)()


def in_backward(work: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """The work as a backward pass that can be run once, on the stream that is current now; running
    it launches nothing else.
    """
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
    """Nothing but work in its backward pass."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor, work: Callable[[], object]) -> torch.Tensor:
        ctx.work = work
        return root.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.work()
        return None, None


class HostTimedCall(NamedTuple):
    """A call that can be launched, and how long a launch takes the device, roughly."""

    counted: PlacedCall
    device_s: float


class Launch(NamedTuple):
    """One of a step's launches: which of the calls, and whether in the backward pass."""

    which: int
    backward: bool


def host_times(
    calls: Sequence[HostTimedCall], threads: Threads, host_speed: HostSpeed, most: int
) -> list[float]:
    """Seconds at the reference speed of each call: the median over passes, `most` at most, scaled
    so that they add up to the median pass: in every pass a few calls are slow, seldom the same
    ones. None of them may wait for the device.
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
    """Seconds of each launch, in the step's order: every call is launched as often as the step
    does, and from its threads.
    """
    seconds: list[float] = []
    launches = in_order([one.counted for one in calls])
    for within, some in by_thread(launches, lambda launch: launch.backward, threads):
        seconds += within(partial(_launched, [calls[launch.which] for launch in some]))
    return seconds


def warm(run: Callable[[], object]) -> None:
    """Run it for WARM_S, once at least."""
    until_s = time.perf_counter() + WARM_S
    run()
    while time.perf_counter() < until_s:
        run()


def in_order(calls: Sequence[PlacedCall]) -> list[Launch]:
    """Launch by launch as the step has them."""
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
    """Seconds that it takes, and when it has ended."""
    began_s = time.perf_counter()
    run()
    ended_s = time.perf_counter()
    return ended_s - began_s, ended_s


def spin_until(at_s: float) -> None:
    """Keep the processor busy until then."""
    while time.perf_counter() < at_s:
        pass
