"""What a captured step takes beside its kernels, learnt once a machine from a small one.

In a graph a kernel follows the one before sooner than when each is launched, and the host launches
all of them at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from e2e.learner import Learner
from e2e.networks import find
from e2e.predict.calls import Calls, key_of
from e2e.predict.model import Captured
from e2e.predict.pace import HostPace
from e2e.predict.replay import OpTime
from e2e.predict.trace import fixed_feed, trace
from e2e.recipes import recipe_of, switch_process
from microbench.stats import median
from microbench.train_results import TrainCase

# Some hundred kernels of many kinds, each so short that what is between them counts.
NETWORK, INPUT, RECIPE, BATCH = "resnet18", (3, 64, 64), "amp", 16
WARM_STEPS, LEAD_STEPS, STEPS, BLOCKS, LAUNCHES = 5, 3, 20, 9, 9


def measure(calls: Calls, pace: HostPace) -> Captured:
    """By a small step: captured, less the time in which its calls run a kernel alone.

    Afterwards the process's switches are as that step needs them. Raises what tracing, launching or
    capturing raises.
    """
    network = replace(find(NETWORK, input=INPUT), batch=BATCH)
    case = TrainCase(
        NETWORK, RECIPE, BATCH, "x".join(map(str, INPUT)), layout="nhwc",
        optimizer=network.optimizer, graph=True,
    )  # fmt: skip
    traced = trace(network, case, calls.device, network.classes or 0)
    known = calls.times(traced).known
    taken = [time for op in traced.ops if (time := known.get(key_of(case, op))) is not None]
    switch_process(recipe_of(case), calls.device.type)
    learner = Learner(network, case, recipe_of(case), calls.device, seed=1)
    feed = fixed_feed(network, case, calls.device, network.classes or 0)
    for _ in range(WARM_STEPS):
        learner.step(feed)
    learner.capture(feed)
    return learnt(taken, *_timed(lambda: learner.step(feed), pace))


def learnt(taken: Sequence[OpTime], step_s: float, launch_s: float) -> Captured:
    """From the calls of a step alone, the captured step, and the host's time to launch that."""
    busy_s = math.fsum(time.gpu_s if time.busy_s is None else time.busy_s for time in taken)
    kernels = sum(time.kernels for time in taken if time.gpu_s)
    between = sum(time.kernels for time in taken if time.gpu_s and time.busy_s is not None)
    return Captured(max(0.0, step_s - busy_s) / max(1, between), launch_s / max(1, kernels))


def _timed(step: Callable[[], object], pace: HostPace) -> tuple[float, float]:
    """(seconds of a step, of the host to launch one at pace 1)"""
    steps_s: list[float] = []
    for _ in range(BLOCKS):
        for _ in range(LEAD_STEPS):  # the device has work when the clock starts
            step()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(STEPS):
            step()
        ended.record()
        ended.synchronize()
        steps_s.append(1e-3 * began.elapsed_time(ended) / STEPS)
    launches_s: list[float] = []
    for _ in range(LAUNCHES):
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        step()
        launches_s.append(time.perf_counter() - start_s)
    torch.cuda.synchronize()
    return median(steps_s), median(launches_s) / pace.now()
