"""What a captured step takes beside its kernels, learnt once a machine from a small one.

In a graph a kernel follows the one before sooner than when each is launched, and the host launches
all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from e2e.learner import Learner
from e2e.networks import find
from e2e.networks.network import written
from e2e.predict.calls import Calls, key_of
from e2e.predict.cuda_replay import GATED_COMMANDS, CudaStopwatch
from e2e.predict.model import Captured
from e2e.predict.pace import HostPace
from e2e.predict.replay import OpTime, Stopwatch, is_steady
from e2e.predict.trace import fixed_feed, trace
from e2e.recipes import recipe_of, switch_process
from e2e.steps import host_time
from microbench.stats import median
from microbench.train_results import TrainCase

# Some hundred kernels of many kinds, each so short that what is between them counts.
NETWORK, INPUT, RECIPE, BATCH = "resnet18", (3, 64, 64), "amp", 16
WARM_STEPS, BLOCKS = 5, 15


@dataclass(frozen=True)
class Learnt:
    """What a captured step takes beside its kernels, and whether it was steady enough to keep."""

    captured: Captured
    steady: bool


def measure(calls: Calls, pace: HostPace) -> Learnt:
    """By a small step: captured, less the time in which its calls run a kernel alone.

    On a CUDA device. Afterwards the process's switches are as that step needs them. Raises what
    tracing, launching or capturing raises, and RuntimeError where a call cannot be launched alone.
    """
    network = replace(find(NETWORK, input=INPUT), batch=BATCH)
    case = TrainCase(
        NETWORK, RECIPE, BATCH, written(INPUT), layout="nhwc", optimizer=network.optimizer,
        graph=True,
    )  # fmt: skip
    traced = trace(network, case, calls.device, network.classes or 0)
    times = calls.times(traced)
    if times.problems:
        name, why = next(iter(times.problems.items()))
        raise RuntimeError(f"the small step that is captured lacks {name}: {why}")
    found = (times.known.get(key_of(case, op)) for op in traced.ops)
    taken = [time for time in found if time is not None]  # views have none
    switch_process(recipe_of(case), calls.device.type)
    learner = Learner(network, case, recipe_of(case), calls.device, seed=1)
    feed = fixed_feed(network, case, calls.device, network.classes or 0)
    for _ in range(WARM_STEPS):
        learner.step(feed)
    learner.capture(feed)

    def step() -> None:
        learner.step(feed)

    steps_s = _device_s(step, calls.stopwatch, max(1, GATED_COMMANDS // (_kernels(taken) + 1)))
    captured = learnt(taken, median(steps_s), _launch_s(step, pace))
    return Learnt(captured, is_steady(steps_s, "cuda"))


def learnt(taken: Sequence[OpTime], step_s: float, launch_s: float) -> Captured:
    """From the calls of a step alone, the captured step, and the host's time to launch that."""
    busy_s = math.fsum(time.gpu_s if time.busy_s is None else time.busy_s for time in taken)
    between = _kernels([time for time in taken if time.busy_s is not None])
    return Captured(max(0.0, step_s - busy_s) / max(1, between), launch_s / max(1, _kernels(taken)))


def _kernels(taken: Sequence[OpTime]) -> int:
    return sum(time.kernels for time in taken if time.gpu_s)


def _device_s(step: Callable[[], object], stopwatch: Stopwatch, together: int) -> list[float]:
    """Seconds of the device for a step, however slow the host is to launch it."""
    assert isinstance(stopwatch, CudaStopwatch), "only a GPU captures steps"
    for _ in range(WARM_STEPS):
        step()
    return [stopwatch.behind_gate(step, together)[1] for _ in range(BLOCKS)]


def _launch_s(step: Callable[[], object], pace: HostPace) -> float:
    """Seconds of the host to launch a step, at pace 1."""
    before = pace.now()
    launch_s = host_time(step)
    return launch_s / fmean((before, pace.now()))
