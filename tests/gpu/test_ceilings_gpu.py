"""On a GPU: the ceilings' kernels compute what they should, and reach at most what can be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels.ceilings.launch import Loader
from kernels.ceilings.plan import (
    INSTRUCTIONS,
    L2,
    LAUNCHES,
    Probe,
    all_probes,
    cannot_run,
    tolerance,
    variants,
)
from microbench.device.device import DeviceInfo, describe, open_telemetry
from microbench.device.telemetry import Telemetry
from microbench.results.ceilings import CeilingResult
from microbench.roofline.ceilings import datasheet_ceilings
from microbench.roofline.instructions import measure_probe
from microbench.timing.timers import Timer, make_timer

LEAST_PCT, MOST_PCT = 50.0, 101.0  # of the instruction rate
OLD_PATH_PCT = 20.0  # mma.sync on Hopper, where fp8 is widened to fp16 and fp64 has other shapes
BUDGET_S = 0.05


@pytest.fixture(scope="module")
def gpu() -> DeviceInfo:
    return describe("cuda")


@pytest.fixture(scope="module")
def loader(gpu: DeviceInfo) -> Loader:
    return Loader(gpu.target())


@pytest.fixture(scope="module")
def timers(gpu: DeviceInfo) -> dict[str, Timer]:
    sizes = (gpu.kind, gpu.index, gpu.l2_bytes, gpu.sm_count)
    return {name: make_timer(name, "warm", *sizes) for name in ("events", "graph")}


@pytest.fixture(scope="module")
def telemetry(gpu: DeviceInfo) -> Iterator[Telemetry]:
    with open_telemetry(gpu) as found:
        yield found


def measured(
    probe: Probe, gpu: DeviceInfo, loader: Loader, timers: dict[str, Timer], telemetry: Telemetry
) -> CeilingResult:
    timer = timers[LAUNCHES.get(probe.name, "events")]
    result = measure_probe(
        probe, loader, gpu.target(), timer, telemetry, BUDGET_S, lambda _key, _stage: None
    )
    if result.status == "skipped":
        pytest.skip(str(result.reason))
    assert result.status == "ok", result.reason
    return result


@pytest.mark.quick
@pytest.mark.parametrize("probe", all_probes(), ids=lambda probe: probe.key)
def test_every_variant_computes_what_it_should(
    probe: Probe, gpu: DeviceInfo, loader: Loader
) -> None:
    reason = cannot_run(probe, gpu.target())
    if reason:
        pytest.skip(reason)
    for variant in variants(probe, gpu.target()):
        assert loader.load(probe, variant).rel_error() <= tolerance(probe), variant.label


@pytest.mark.alone
@pytest.mark.parametrize(
    "probe", [p for p in all_probes() if p.name in INSTRUCTIONS], ids=lambda probe: probe.key
)
def test_an_instruction_reaches_most_of_its_rate_and_never_more(
    probe: Probe, gpu: DeviceInfo, loader: Loader, timers: dict[str, Timer], telemetry: Telemetry
) -> None:
    result = measured(probe, gpu, loader, timers, telemetry)
    if result.nominal_pct is None:
        pytest.skip("the architecture's rate is not known")
    old = probe.name == "mma.sync" and gpu.capability == (9, 0)
    assert (OLD_PATH_PCT if old else LEAST_PCT) <= result.nominal_pct <= MOST_PCT


@pytest.mark.alone
def test_dram_is_read_no_faster_than_its_datasheet_says_and_the_l2_faster(
    gpu: DeviceInfo, loader: Loader, timers: dict[str, Timer], telemetry: Telemetry
) -> None:
    dram = measured(Probe("DRAM read"), gpu, loader, timers, telemetry)
    cached = measured(Probe(L2, working_set=4 << 20), gpu, loader, timers, telemetry)
    assert dram.byte_per_s
    assert cached.byte_per_s
    assert cached.byte_per_s > dram.byte_per_s
    for sheet in datasheet_ceilings(gpu.name, []):
        if sheet.byte_per_s:
            assert 0.5 * sheet.byte_per_s < dram.byte_per_s <= sheet.byte_per_s
