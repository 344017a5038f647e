"""On a GPU: the kernels that only multiply are right, and reach at most what can be."""

from __future__ import annotations

import pytest

from kernels.ceilings import load, variants
from kernels.gpus import flop_per_clock
from kernels.precision import PRECISIONS, precision
from microbench.device.device import DeviceInfo, describe
from microbench.roofline.ceilings import instruction_ceilings
from microbench.timing.timers import make_timer

LEAST, MOST = 0.5, 1.01  # of the instruction's rate
FP64_LEAST = 0.2  # of mma.sync on Hopper


@pytest.fixture(scope="module")
def gpu() -> DeviceInfo:
    return describe("cuda")


@pytest.mark.quick
@pytest.mark.parametrize("name", PRECISIONS)
def test_every_variant_computes_what_it_should(name: str, gpu: DeviceInfo) -> None:
    found = variants(name, gpu.target())
    if not found:
        pytest.skip("the architecture's fastest instruction is not known")
    for variant in found:
        error = load(variant, name, gpu.target()).rel_error()
        assert error <= precision(name).rel_tolerance, variant.label


@pytest.mark.alone
@pytest.mark.parametrize("name", PRECISIONS)
def test_an_instruction_reaches_most_of_its_rate_and_never_more(name: str, gpu: DeviceInfo) -> None:
    timer = make_timer("events", "cold", gpu.kind, gpu.index, gpu.l2_bytes, gpu.sm_count)
    rate = flop_per_clock(gpu.capability, gpu.name).get(precision(name).rate_name)
    found = instruction_ceilings(gpu.target(), timer, [name], lambda *_: None)
    if not found or not rate:
        pytest.skip("the rate, or the architecture's fastest instruction, is not known")
    assert found[0].flop_per_clock
    least = FP64_LEAST if name == "fp64" else LEAST
    assert least <= found[0].flop_per_clock / rate <= MOST
