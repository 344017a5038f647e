"""Measures the probes of `kernels.ceilings`: tries the variants of each, then times the best.

Runs in the process that holds the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from statistics import fmean
from typing import TYPE_CHECKING

from kernels.case import Target
from kernels.ceilings.plan import (
    INSTRUCTIONS,
    L2,
    SHARED,
    SHARED_RATE,
    WORKING_SETS,
    Loaded,
    Probe,
    Variant,
    cannot_run,
    instruction_probe,
    tolerance,
    variants,
)
from kernels.error_words import first_line
from kernels.gpus import architecture
from microbench.device.telemetry import Telemetry
from microbench.measure import Announce, measurement_of
from microbench.results.ceilings import CeilingResult, Tried
from microbench.results.types import Ceiling
from microbench.roofline.limits import INSTRUCTION
from microbench.timing import SUSTAINED
from microbench.timing.interleave import Arm, Turns
from microbench.timing.stats import median
from microbench.timing.timers import Timer

if TYPE_CHECKING:
    from kernels.ceilings.launch import Loader

WARM_LAUNCHES = 20
TRY_SAMPLES = 5


def why_no_kernels(target: Target) -> str | None:
    """Why the kernels cannot run on the device; None where they can."""
    if target.kind != "cuda":
        return "ceilings needs an NVIDIA GPU"
    return None if find_spec("cupy") else "ceilings needs CuPy (pip install cupy-cuda13x)"


def measure_probe(
    probe: Probe,
    loader: Loader,
    target: Target,
    timer: Timer,
    telemetry: Telemetry,
    budget_s: float,
    announce: Announce,
) -> CeilingResult:
    """The probe's result: every variant tried and checked, the fastest timed for `budget_s`.

    RuntimeError where an error has left the device unusable.
    """
    reason = cannot_run(probe, target)
    blank = CeilingResult(
        probe, "skipped", reason, sms=target.sm_count, nominal=nominal(probe, target)
    )
    if reason:
        return blank
    tried, loaded = try_all(probe, variants(probe, target), loader, timer, announce)
    blank = replace(blank, tried=tuple(tried))
    best = fastest(probe, tried)
    if best is None or best.seconds is None:
        reasons = list(dict.fromkeys(one.reason for one in tried if one.reason))
        return replace(blank, status="failed", reason=reasons[0] if reasons else "no variant")
    chosen = loaded[best.label]
    arm = Arm(probe.key, chosen.launch, best.seconds)
    turns = Turns(
        timer, SUSTAINED, budget_s, during=telemetry.during,
        begin=lambda key, number: announce(key, f"timing, round {number}"),
    )  # fmt: skip
    turns.take([arm])
    timer.forget()
    return replace(
        blank,
        status="ok",
        measurement=measurement_of(arm, timer, SUSTAINED, telemetry.summary(probe.key), heavy=True),
        flops=chosen.flops,
        cycles=cycles_of(arm),
        moved_bytes=chosen.bytes,
        rel_error=best.rel_error,
        variant=best.label,
    )


def cycles_of(arm: Arm) -> float | None:
    """SM clocks of a launch: the median over blocks of a block's mean time by its mean clock.

    Under the power cap both change from launch to launch, so that a median time by a mean clock
    would be of different launches. None where a block does not know its clock.
    """
    found = [fmean(block.times_s) * (block.sm_clock_mhz or 0.0) * 1e6 for block in arm.blocks]
    return median(found) if found and all(found) else None


def nominal(probe: Probe, target: Target) -> float | None:
    """What an SM can do in a clock: FLOP of the probe's precision, bytes of shared memory."""
    if probe.name == SHARED:
        return SHARED_RATE
    rates = architecture(target.capability).flop_per_clock
    return rates.get(probe.precision.rate_name) if probe.precision else None


def try_all(
    probe: Probe, some: Sequence[Variant], loader: Loader, timer: Timer, announce: Announce
) -> tuple[list[Tried], dict[str, Loaded]]:
    """What came of each variant, and those that compute what they should, by label."""
    tried: list[Tried] = []
    kept: dict[str, Loaded] = {}
    for variant in some:
        announce(probe.key, f"trying {variant.label}")
        try:
            loaded = loader.load(probe, variant)
            error = loaded.rel_error()
            if not error <= tolerance(probe):
                tried.append(Tried(variant.label, rel_error=error, reason="wrong result"))
                continue
            timer.run(loaded.launch, WARM_LAUNCHES)
            block = timer.block(loaded.launch, TRY_SAMPLES)
        except Exception as failure:
            loader.raise_if_dead(failure)
            tried.append(Tried(variant.label, reason=first_line(failure)))
            continue
        work = loaded.flops or loaded.bytes
        middle = fmean if _in_sms(probe) else median  # the clock is a mean too
        seconds = middle(block.times_s) - timer.overhead_s
        tried.append(Tried(variant.label, seconds, work, block.sm_clock_mhz, error))
        kept[variant.label] = loaded
    return tried, kept


def fastest(probe: Probe, tried: Sequence[Tried]) -> Tried | None:
    """The variant that counts: of the fewest clocks in the SMs, of the least time beyond them.

    None where none ran.
    """

    def cost(one: Tried) -> float:
        seconds = (one.seconds or 0.0) / (one.work or 1)
        return seconds * (one.sm_clock_mhz or 0.0) if by_clock else seconds

    ran = [one for one in tried if one.seconds is not None]
    by_clock = _in_sms(probe) and all(one.sm_clock_mhz for one in ran)
    return min(ran, key=cost, default=None)


def _in_sms(probe: Probe) -> bool:
    return probe.name in (*INSTRUCTIONS, SHARED)


QUICK_VARIANTS = 2  # of each probe, the first ones
QUICK_L2 = WORKING_SETS[:7]  # to 128 MiB: beyond any L2


def loader_for(target: Target) -> Loader | None:
    """What makes the kernels ready; None where they cannot run."""
    if why_no_kernels(target):
        return None
    from kernels.ceilings.launch import Loader

    return Loader(target)


def quick_ceilings(
    loader: Loader, target: Target, timer: Timer, precisions: Sequence[str], announce: Announce
) -> list[Ceiling]:
    """The instruction ceilings of precisions and, where the cache is warm, the L2's bandwidth.

    Good to a per cent, in tens of milliseconds each; without what is not known of the device.
    RuntimeError: the device is unusable.
    """
    wanted = [(name, instruction_probe(name, target)) for name in precisions]
    wanted += [(None, Probe(L2, working_set=size)) for size in QUICK_L2 if timer.l2 == "warm"]
    found: list[Ceiling] = []
    for name, probe in wanted:
        if probe is None:
            continue
        tried, _ = try_all(probe, variants(probe, target)[:QUICK_VARIANTS], loader, timer, announce)
        best = fastest(probe, tried)
        if best is None or not best.seconds:
            continue
        rate, label = best.work / best.seconds, f"{probe.name}, {best.label}"
        ceiling = Ceiling(INSTRUCTION, "measured", name, reference=label)
        if probe.working_set:
            ceiling = replace(ceiling, name=L2, byte_per_s=rate, working_set=probe.working_set)
        else:
            clock_hz = 1e6 * (best.sm_clock_mhz or 0.0)
            per_clock = rate / clock_hz / target.sm_count if clock_hz else None
            ceiling = replace(ceiling, flop_per_s=rate, flop_per_clock=per_clock)
        found.append(ceiling)
    return found
