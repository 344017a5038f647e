"""The kernels that only multiply, compiled without a GPU: for each architecture, as is meant."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kernels.case import Target
from kernels.ceilings import Variant, variants
from kernels.gpus import architecture
from kernels.precision import PRECISIONS, Capability

nvrtc: Any = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")

CAPABILITIES: list[Capability] = [(8, 0), (8, 9), (9, 0)]
LOOPS = {"wgmma": r"wgmma\.mma_async\.sync\.aligned\.m64n256", "mma.sync": r"mma\.sync\.aligned\.m",
         "FFMA": r"fma\.rn\."}  # fmt: skip


def of(name: str, capability: Capability) -> list[Variant]:
    return variants(name, Target("cuda", "a GPU", capability, 100))


def ptx(variant: Variant, capability: Capability) -> str:
    name = "{}{}".format(*capability) + ("a" if variant.instruction == "wgmma" else "")
    program = nvrtc.createProgram(variant.source, "ceilings.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"-arch=compute_{name}", "-std=c++17"))
    except nvrtc.NVRTCError:
        pytest.fail(f"{variant.label}: {nvrtc.getProgramLog(program)}")
    found: bytes | str = nvrtc.getPTX(program)
    return found if isinstance(found, str) else found.decode()


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", PRECISIONS)
def test_a_kernel_compiles_fits_an_sm_and_counts_its_products(
    name: str, capability: Capability
) -> None:
    room, found = architecture(capability), of(name, capability)
    assert len({variant.label for variant in found}) == len(found)
    for variant in found:
        text = ptx(variant, capability)
        assert re.search(LOOPS[variant.instruction], text)
        taken = variant.blocks_per_sm * (variant.shared_bytes + room.block_reserve_bytes)
        assert taken <= room.sm_shared_bytes
        assert variant.blocks_per_sm * variant.threads <= 2048
        if variant.k:  # FFMA has no matrices
            rows, columns = variant.rows
            warps = variant.threads // 32 if variant.instruction == "mma.sync" else 1
            products = 2 * rows * columns * variant.k * variant.repeats
            assert variant.flops_per_pass == products * warps


def test_each_precision_has_the_fastest_instruction_of_its_architecture() -> None:
    def instructions(name: str) -> list[str]:
        found = [of(name, capability) for capability in (*CAPABILITIES, (10, 0))]
        return [variants[0].instruction if variants else "" for variants in found]

    assert instructions("fp16") == ["mma.sync", "mma.sync", "wgmma", ""]  # 10.0 may have a faster
    assert instructions("fp8-e4m3-precise") == ["", "mma.sync", "wgmma", ""]
    assert instructions("fp64") == ["mma.sync", "mma.sync", "mma.sync", ""]
    assert instructions("fp32") == ["FFMA", "FFMA", "FFMA", ""]
    assert variants("fp16", Target("cpu", "a CPU", None, 8)) == []
