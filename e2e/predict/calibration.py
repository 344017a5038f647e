"""Learns, once a machine, what its host does around calls: small networks' steps less their calls.

The rounds go over all networks again and again, steps beside calls: a slow second of the host is
shared by many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from e2e.predict.host_model.calibration_models import (
    CLASSES,
    small_case,
    small_networks,
    small_recipes,
    small_step,
)
from e2e.predict.host_model.framework_overhead import CalibrationStep, FrameworkOverhead, fitted
from e2e.predict.op_timer.launch_times import warm
from e2e.predict.op_timer.op_costs import CallTimer
from e2e.predict.trace.fake_trace import CannotTrace, Trace, trace
from e2e.recipes import RECIPES, cannot_run, recipe_of, switch_process
from e2e.train.speed_readings import HostSpeed, SpeedBetween
from microbench.timing.stats import median

STEPS, ROUNDS = 10, 7  # in a row; over all networks


@dataclass
class _Prepared:
    """A small network's step, and its calls alone, ready to be timed.

    `calls_s` and `steps_s` are at the reference speed.
    """

    traced: Trace
    launch_calls: Callable[[], float]
    step: Callable[[], object]
    calls_s: list[float] = field(default_factory=list[float])
    steps_s: list[float] = field(default_factory=list[float])


def calibrated(calls: CallTimer, host_speed: HostSpeed) -> FrameworkOverhead:
    """Fitted to the small networks that suit the device of `calls`.

    cuDNN takes its first algorithm here, in steps as in calls alone: trying ten of each convolution
    would take most of the time.
    """
    prepared = list(_prepared(calls))
    between = SpeedBetween(host_speed)
    for _ in range(ROUNDS):
        for one in prepared:
            switch_process(recipe_of(one.traced.case), calls.device.type, search=False)
            warm(one.launch_calls)
            calls_s = one.launch_calls()
            one.calls_s.append(calls_s / between.ends())
            step_s = _step_s(one.step, calls.device)
            one.steps_s.append(step_s / between.ends())
    return fitted(
        [CalibrationStep(one.traced, median(one.steps_s), median(one.calls_s)) for one in prepared]
    )


def _prepared(calls: CallTimer) -> Iterator[_Prepared]:
    kind = calls.device.type
    card = torch.cuda.get_device_capability(calls.device) if kind == "cuda" else None
    bf16 = cannot_run(RECIPES["amp-bf16"], kind, card) is None
    for small in small_networks(kind):
        for recipe in small_recipes(small, kind, bf16=bf16):
            case = small_case(small, recipe)
            with suppress(CannotTrace):  # what is left is fitted
                traced = trace(small, case, calls.device, CLASSES)
                step = small_step(small, recipe, calls.device)
                yield _Prepared(traced, calls.passes(traced), step)


def _step_s(step: Callable[[], object], device: torch.device) -> float:
    """Seconds a step, many in a row, which the device keeps up with."""
    warm(step)
    began_s = _now_s(device)
    for _ in range(STEPS):
        step()
    return (_now_s(device) - began_s) / STEPS


def _now_s(device: torch.device) -> float:
    """When the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
