"""Times any callables as the commands time kernels: interleaved, cold L2, with clock and power.

This runs in the caller's process, so a callable may close over anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from microbench.errors import UserError
from microbench.measure import ESTIMATE_SAMPLES, UNMANAGED, measurement_of
from microbench.results.types import Measurement, Ratio
from microbench.timing.interleave import HEAVY, Arm, ArmFailed, Turns
from microbench.timing.stats import median, ratio_interval
from microbench.timing.timers import make_timer

if TYPE_CHECKING:
    from microbench.device.device import DeviceInfo

BUDGET_S = 2.0  # of sampling, a callable

Function = Callable[..., object]


def time_variants(
    variants: Mapping[str, Function],
    tensors: tuple[Any, ...],
    *,
    device: str | None = None,
    timer: str = "auto",
    l2: str = "cold",
    regime: str = "sustained",
    budget: float | None = None,
) -> tuple[dict[str, Measurement], dict[str, Ratio]]:
    """Time every callable on the same tensors, interleaved in random order.

    Returns each one's measurement, and how many times faster than the first each other one is.
    Each is called once before, so that it may compile. `budget` is seconds of sampling in all, 2 a
    callable by default. `device` is that of the tensors by default. UserError for what cannot be
    measured; an exception that a callable raises is the caller's.
    """
    from microbench.device import device as devices

    if not variants:
        raise UserError("nothing to time: pass at least one callable")
    info = _device(device, tensors)
    made = make_timer(timer, l2, info.kind, info.index, info.l2_bytes, info.sm_count)
    arms = [_arm(name, partial(function, *tensors), made) for name, function in variants.items()]
    with devices.open_telemetry(info) as telemetry:
        turns = Turns(made, regime, budget or BUDGET_S * len(arms), during=telemetry.during)
        try:
            turns.take(arms)
        except ArmFailed as failure:
            raise failure.__cause__ or failure from None
        on_gpu = info.kind == "cuda"
        heavy = on_gpu and turns.pace(arms) is HEAVY
        regime = regime if on_gpu else UNMANAGED
        found = {
            arm.key: measurement_of(arm, made, regime, telemetry.summary(arm.key), heavy)
            for arm in arms
        }
    made.forget()
    return found, _speedups(arms, made.overhead_s, made.resolution_s)


def _device(name: str | None, tensors: tuple[Any, ...]) -> DeviceInfo:
    """The device that is named, or that of the first tensor."""
    from microbench.device.device import describe

    places = [str(tensor.device) for tensor in tensors if hasattr(tensor, "device")]
    try:
        info = describe(name or (places[0] if places else "auto"))
    except ValueError as error:
        raise UserError(str(error)) from None
    if info.kind == "cuda":
        import torch

        torch.cuda.set_device(info.index)
    return info


def _arm(name: str, launch: Callable[[], object], timer: Any) -> Arm:
    timer.run(launch, 1)
    return Arm(name, launch, median(timer.block(launch, ESTIMATE_SAMPLES).times_s))


def _speedups(arms: list[Arm], overhead_s: float, resolution_s: float) -> dict[str, Ratio]:
    first, *others = (
        [[t - overhead_s for t in block.times_s] for block in arm.blocks] for arm in arms
    )
    return {
        arm.key: Ratio(*ratio_interval(first, blocks, resolution_s))
        for arm, blocks in zip(arms[1:], others, strict=True)
    }
