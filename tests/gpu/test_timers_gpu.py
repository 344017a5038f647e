"""On a GPU: the timers' constants are the card's own, and what is no launch is in no sample."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import pytest
import torch
from samples.measuring import measurer_of
from samples.waiting import no_waits, while_busy

from kernels.ceilings import load, peak_kernels
from kernels.gpus import flop_per_clock
from kernels.precision import PRECISIONS, precision
from microbench.device.device import DeviceInfo
from microbench.device.profiler import record
from microbench.roofline.ceilings import instruction_ceilings
from microbench.timing.instruments import PERSISTING_L2
from microbench.timing.stats import median
from microbench.timing.timers import (
    PROFILER_LESS_S,
    GatedEvents,
    GraphReplay,
    Renewed,
    empty_kernel_s,
)

cupy: Any = import_module("cupy")  # which has no types


def test_ticks_and_the_empty_kernel_are_those_of_this_card(gpu: DeviceInfo) -> None:
    cold = GatedEvents(gpu.index, gpu.l2_bytes, gpu.sm_count, "cold")
    graph = GraphReplay(gpu.index, gpu.l2_bytes, gpu.sm_count)
    assert math.isclose(cold.resolution_s, graph.resolution_s, rel_tol=1e-3)
    assert 1e-9 < cold.resolution_s < 2e-6
    launch = cold.instruments.launch_empty
    for time_s in cold.block(launch, 48).times_s:
        ticks = time_s / cold.resolution_s
        assert abs(ticks - round(ticks)) < 0.05
    seen = [k.seconds for k in record(lambda: [launch() for _ in range(21)]) if k.name == "empty"]
    # By two sources on a card that is in the table, else by one.
    assert abs(median(seen) + PROFILER_LESS_S - empty_kernel_s(gpu.index)) < 0.2e-6


def test_l2_that_was_set_aside_is_given_back_before_the_first_sample(gpu: DeviceInfo) -> None:
    cold = GatedEvents(gpu.index, gpu.l2_bytes, gpu.sm_count, "cold")
    runtime = cupy.cuda.runtime
    runtime.deviceSetLimit(PERSISTING_L2, 1 << 20)
    cold.block(cold.instruments.launch_empty, 3)
    assert runtime.deviceGetLimit(PERSISTING_L2) == 0

    def takes() -> None:
        runtime.deviceSetLimit(PERSISTING_L2, 1 << 20)
        cold.instruments.launch_empty()

    with pytest.raises(RuntimeError, match="sets a part of the L2 aside"):
        cold.block(takes, 3)


def test_renewed_operands_are_in_no_samples_time_and_a_graphs_clock_is_a_mean(
    gpu: DeviceInfo,
) -> None:
    """A renewal of a millisecond before each launch that does nothing."""
    cold = GatedEvents(gpu.index, gpu.l2_bytes, gpu.sm_count, "cold")
    large = torch.ones(1 << 30, dtype=torch.int8, device="cuda")
    block = cold.block(Renewed(cold.instruments.launch_empty, large.zero_), 12)
    assert median(block.times_s) < 0.2 * median(cold.block(large.zero_, 12).times_s)
    graph = GraphReplay(gpu.index, gpu.l2_bytes, gpu.sm_count)
    found: list[float | None] = []
    clock_mhz = graph.instruments.clock_mhz

    def noted() -> float | None:
        found.append(clock_mhz())
        return found[-1]

    graph.instruments.clock_mhz = noted  # type: ignore[method-assign]
    block = graph.block(graph.instruments.launch_empty, 60)
    known = [mhz for mhz in found if mhz]
    assert len(found) == 3
    if known:
        assert block.sm_clock_mhz == sum(known) / len(known)


# ---------------------------------------------------------------- waiting gpu


def test_what_torch_sees_wait_raises_and_only_inside() -> None:
    found = torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError, match="synchroniz"), no_waits():
        found.item()
    assert found.item() == 1


@pytest.mark.quick
def test_what_torch_does_not_see_is_found_by_the_clock_of_the_device() -> None:
    with pytest.raises(AssertionError, match="waited"), no_waits(), while_busy():
        torch.cuda.synchronize()


# ---------------------------------------------------------------- ceilings gpu


OWN_INSTRUCTION = [name for name, kind in PRECISIONS.items() if not kind.only]  # fp8-row has fp8's
LEAST, MOST = 0.5, 1.01  # of the instruction's rate
FP64_LEAST = 0.2  # of mma.sync on Hopper


@pytest.mark.quick
@pytest.mark.parametrize("name", OWN_INSTRUCTION)
def test_every_variant_computes_what_it_should(name: str, gpu: DeviceInfo) -> None:
    found = peak_kernels(name, gpu.target())
    if not found:
        pytest.skip("the architecture's fastest instruction is not known")
    for variant in found:
        error = load(variant, name, gpu.target()).rel_error()
        assert error <= precision(name).rel_tolerance, variant.label


@pytest.mark.alone
@pytest.mark.parametrize("name", OWN_INSTRUCTION)
def test_an_instruction_reaches_most_of_its_rate_and_never_more(name: str, gpu: DeviceInfo) -> None:
    timer = measurer_of(gpu, timer="events").timer
    rate = flop_per_clock(gpu.capability, gpu.name).get(precision(name).rate_name)
    found = instruction_ceilings(gpu.target(), timer, [name], lambda *_: None)
    if not found or not rate:
        pytest.skip("the rate, or the architecture's fastest instruction, is not known")
    least = FP64_LEAST if name == "fp64" else LEAST
    assert least <= found[0].flop_per_clock / rate <= MOST
