"""Learns, once a machine, what its host does around calls: small networks' steps less their calls.

The rounds go over all networks again and again: a slow second of the host is shared by many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean

import torch

from e2e.predict.calls import Calls, key_of
from e2e.predict.framework import Framework, Sample, fitted
from e2e.predict.pace import HostPace
from e2e.predict.replay import OpTime
from e2e.predict.small_networks import CLASSES, small_case, small_networks, small_step
from e2e.predict.trace import CannotTrace, Trace, trace
from e2e.recipes import recipe_of, switch_process
from microbench.stats import median

STEPS, ROUNDS = 10, 5  # in a row; over all networks
RECIPES = {"cuda": ("fp32", "amp"), "cpu": ("fp32",)}


@dataclass
class _Prepared:
    """A small network's step, ready to be timed. Seconds are at pace 1."""

    traced: Trace
    calls_s: float
    step: Callable[[], None]
    steps_s: list[float] = field(default_factory=list)


def calibrated(calls: Calls, pace: HostPace) -> Framework:
    """Fitted to the small networks that suit the device of `calls`.

    cuDNN takes its first algorithm here, in steps as in calls alone: trying ten of each convolution
    would take most of the time.
    """
    prepared = list(_prepared(calls))
    for _ in range(ROUNDS):
        for one in prepared:
            switch_process(recipe_of(one.traced.case), calls.device.type, search=False)
            one.steps_s.append(time_step(one.step, pace, calls.device))
    return fitted([Sample(one.traced, median(one.steps_s), one.calls_s) for one in prepared])


def _prepared(calls: Calls) -> Iterator[_Prepared]:
    for small in small_networks(calls.device.type):
        for recipe in RECIPES[calls.device.type]:
            case = small_case(small, recipe)
            with suppress(CannotTrace):  # what is left is fitted
                traced = trace(small, case, calls.device, CLASSES)
                step = small_step(small, recipe, calls.device)
                yield _Prepared(traced, _calls_s(calls, traced), step)


def _calls_s(calls: Calls, traced: Trace) -> float:
    """What the host needs for the step's calls, each launched alone."""
    times = calls.times(traced, alone=True).known
    known = (times.get(key_of(traced.case, op)) for op in traced.ops)
    return sum(_host_s(taken, calls.device) for taken in known if taken is not None)


def _host_s(taken: OpTime, device: torch.device) -> float:
    return taken.host_s if device.type == "cuda" else taken.gpu_s


def time_step(step: Callable[[], None], pace: HostPace, device: torch.device) -> float:
    """Seconds a step at pace 1, many in a row, which the device keeps up with."""
    before = pace.now()
    step()
    began_s = _now_s(device)
    for _ in range(STEPS):
        step()
    step_s = (_now_s(device) - began_s) / STEPS
    return step_s / fmean((before, pace.now()))


def _now_s(device: torch.device) -> float:
    """When the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
