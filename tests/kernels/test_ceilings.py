"""The ceilings' kernels, compiled without a GPU: for each architecture, into what is meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from kernels.case import Target
from kernels.ceilings.plan import Probe, Product, Variant, all_probes, cannot_run, variants
from kernels.gpus import architecture
from kernels.precision import Capability

nvrtc: Any = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")

CAPABILITIES: list[Capability] = [(8, 0), (8, 9), (9, 0)]


def target(capability: Capability) -> Target:
    return Target("cuda", "a GPU", capability, 100)


def ptx(variant: Variant, capability: Capability) -> str:
    name = "{}{}".format(*capability) + ("a" if variant.specific else "")
    program = nvrtc.createProgram(variant.source, "ceiling.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"-arch=compute_{name}", "-std=c++17"))
    except nvrtc.NVRTCError:
        pytest.fail(f"{variant.label}: {nvrtc.getProgramLog(program)}")
    found: bytes | str = nvrtc.getPTX(program)
    return found if isinstance(found, str) else found.decode()


def cases() -> Iterator[Any]:
    for capability in CAPABILITIES:
        for probe in all_probes():
            if cannot_run(probe, target(capability)) is None and probe.working_set is None:
                yield pytest.param(probe, capability, id=f"{probe.key} {capability}")


@pytest.mark.parametrize(("probe", "capability"), list(cases()))
def test_a_kernel_compiles_and_its_loop_holds_the_instruction(
    probe: Probe, capability: Capability
) -> None:
    variant = variants(probe, target(capability))[0]
    text = ptx(variant, capability)
    wanted = {
        "wgmma": r"wgmma\.mma_async\.sync\.aligned\.m64n256", "mma.sync": r"mma\.sync\.aligned\.m",
        "FFMA": r"fma\.rn\.", "DRAM read": r"ld\.global\.\S*v4", "DRAM write": r"st\.global\S*\.v4",
        "DRAM copy": r"st\.global\S*\.v4", "shared memory read": r"ld\.shared\.v4",
    }.get(probe.name, "ret;")  # fmt: skip
    assert re.search(wanted, text)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_variant_fits_an_sm_and_counts_its_products(capability: Capability) -> None:
    room = architecture(capability)
    for probe in all_probes():
        if cannot_run(probe, target(capability)):
            continue
        found = variants(probe, target(capability))
        assert len({variant.label for variant in found}) == len(found) > 0
        for variant in found:
            blocks = variant.blocks_per_sm or 1
            taken = blocks * (variant.shared_bytes + room.block_reserve_bytes)
            assert taken <= room.sm_shared_bytes or not variant.shared_bytes
            assert blocks * variant.threads <= 2048
            if isinstance(variant, Product) and variant.k:  # FFMA has no matrices
                rows, columns = variant.rows
                products = 2 * rows * columns * variant.k * variant.repeats
                warps = variant.threads // 32 if probe.name == "mma.sync" else 1
                assert variant.flops_per_pass == products * warps


def test_wgmma_is_hoppers_alone_and_fp8_needs_ada() -> None:
    def runs(name: str, precision: str) -> list[Capability]:
        probe = Probe(name, precision)
        tried = (*CAPABILITIES, (10, 0))
        return [each for each in tried if cannot_run(probe, target(each)) is None]

    assert runs("wgmma", "fp16") == [(9, 0)]
    assert (8, 0) not in runs("mma.sync", "fp8-e4m3")
    assert {(8, 9), (9, 0)} <= {*runs("mma.sync", "fp8-e4m3")}
    assert {*CAPABILITIES} <= {*runs("mma.sync", "fp64")}
