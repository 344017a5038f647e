"""The measured ceilings: which variant counts, rates of the package, and the kernels."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples.measuring import PlantedTimer, timed

from kernels.case import Case, Target
from kernels.ceilings import Loaded, PeakKernel, peak_kernels
from kernels.gemm import Gemm
from kernels.gpus import architecture, find_card
from kernels.precision import PRECISIONS, Capability
from microbench.results.runfile import read_run
from microbench.results.types import Ceiling, Result
from microbench.roofline import ceilings
from microbench.roofline.ceilings import datasheet_ceilings, instruction_ceilings, large_ceilings
from microbench.roofline.limits import INSTRUCTION
from microbench.roofline.rates import MEASURED, Rates, known_rates

ROOT = Path(__file__).parents[2]
H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
FLOPS = 10**9


def measured(
    monkeypatch: pytest.MonkeyPatch, *takes: tuple[float, float | None] | str,
    names: tuple[str, ...] = ("fp64",), errors: tuple[float, ...] = (), target: Target = H200,
) -> list[Ceiling]:  # fmt: skip
    """With variants that take (seconds, MHz) in turn; a text in place of these is an error."""
    left, wrong = list(takes), list(errors)

    def load(variant: PeakKernel, name: str, target: Target) -> Loaded:
        took = left.pop(0) if left else (1e-3, 1700.0)
        if isinstance(took, str):
            raise ValueError(took)
        error = wrong.pop(0) if wrong else 0.0
        return Loaded(lambda: took, FLOPS, lambda: error)

    monkeypatch.setattr(ceilings, "load", load)
    return instruction_ceilings(target, PlantedTimer(), names, lambda *_: None)


def test_each_precision_s_instruction_is_measured_and_the_fewest_clocks_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("fp16", "fp8-e4m3-precise", "fp32", "fp64")
    found = measured(monkeypatch, names=names)
    ways = [(c.precision, c.reference.partition(",")[0]) for c in found]
    assert ways == list(zip(names, ("wgmma", "wgmma", "FFMA", "mma.sync"), strict=True))
    assert all(c.flop_per_s == pytest.approx(FLOPS / 1e-3) for c in found)
    assert all(c.flop_per_clock == pytest.approx(1e9 / 1e-3 / 1.7e9 / 132) for c in found)
    assert not measured(monkeypatch, target=replace(H200, capability=(10, 0)))
    (found,) = measured(monkeypatch, (2e-3, 900.0), (1.5e-3, 1900.0))
    assert found.flop_per_s == pytest.approx(FLOPS / 2e-3)
    (found,) = measured(monkeypatch, (2e-3, None), (1.5e-3, None))
    assert found.flop_per_s == pytest.approx(FLOPS / 1.5e-3)
    (found,) = measured(monkeypatch, (1e-3, 1700.0), (2e-3, 1700.0), errors=(0.9, 0.0))
    assert found.flop_per_s == pytest.approx(FLOPS / 2e-3)
    assert measured(monkeypatch, "no such register", "no such register") == []

    def dead(*_: object) -> None:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        measured(patch)
        patch.setattr("torch.cuda.is_initialized", lambda: True)
        patch.setattr("torch.cuda.synchronize", dead)
        patch.setattr(ceilings, "load", dead)
        with pytest.raises(RuntimeError):
            instruction_ceilings(H200, PlantedTimer(), ("fp16",), lambda *_: None)


def test_the_fastest_large_gemm_of_a_time_that_is_known_is_the_peak() -> None:
    def gemm(size: int, seconds: float, half: float) -> Result:
        case = Case(Gemm(size, size, size), "fp16", "cublas")
        time = timed(seconds, 100 * half)
        return Result(case, "ok", measurement=time, flops=2 * size**3, min_bytes=1)

    known, ruined, small = gemm(4096, 2e-4, 0.1), gemm(4096, 1e-4, 0.5), gemm(2048, 1e-6, 0.1)
    (found,) = large_ceilings([known, ruined, small], "cuda")
    assert found.flop_per_s == pytest.approx(2 * 4096**3 / 2e-4)
    assert large_ceilings([ruined, small], "cuda") == []


def test_a_datasheet_has_peaks_of_the_precisions_that_the_card_has_and_its_bandwidth() -> None:
    card = find_card("NVIDIA A100-SXM4-80GB")
    found = datasheet_ceilings(card.match[0], ["fp16", "fp8-e5m2"])
    assert [(c.name, c.precision, c.flop_per_s, c.byte_per_s) for c in found] == [
        ("dense peak", "fp16", 312e12, None),
        *(("without Tensor Cores", *one, None) for one in card.simt_flop_per_s.items()),
        ("memory", None, None, 2039e9),
    ]
    assert {c.reference for c in found} == {card.reference}
    assert datasheet_ceilings("NVIDIA Zeta 7", ["fp16"]) == []


# ---------------------------------------------------------------- rates of the package

# Names of ceilings; the later ones are of files by `halfway ceilings`, which earlier versions had.
ARITHMETIC, MEMORY = (INSTRUCTION, "wgmma", "mma.sync", "FFMA"), ("memory", "DRAM")


def rates_in(source: str) -> Rates:
    """The highest rates that a published run measured."""
    run = read_run(ROOT / source)
    measured = [c for c in run.ceilings if c.source == "measured"]
    flop_per_s: dict[str, float] = {}
    for ceiling in measured:
        if ceiling.precision and ceiling.name in ARITHMETIC and ceiling.flop_per_s:
            name = PRECISIONS[ceiling.precision].rate_name
            flop_per_s[name] = max(ceiling.flop_per_s, flop_per_s.get(name, 0.0))
    moved = [c.byte_per_s for c in measured if c.name.startswith(MEMORY) and c.byte_per_s]
    return Rates(run.device["name"], source, flop_per_s, max(moved, default=None))


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.json")), ids=lambda path: path.stem)
def test_a_gpu_s_rates_are_those_of_the_run_file_that_they_name(path: Path) -> None:
    rates = Rates(**json.loads(path.read_text()))
    assert rates == rates_in(rates.source)
    assert known_rates(rates.device) == rates


def test_no_rate_is_beyond_the_datasheet_and_what_was_not_measured_has_none() -> None:
    card, rates = find_card("NVIDIA H200"), known_rates("NVIDIA H200")
    for name in ("fp16", "bf16", "tf32", "fp32", "fp8-e4m3-precise", "int8"):
        measured, peak = rates.peak(PRECISIONS[name]), card.peak(PRECISIONS[name])
        assert peak is not None
        assert 0.8 * peak < measured < peak
    assert 0.9 * card.byte_per_s < rates.byte_per_s < card.byte_per_s
    assert rates.peak(PRECISIONS["fp64"]) is None
    # Those of a few milliseconds: the power cap has not lowered the clock as far as in minutes.
    ours, long = rates_in("results/nvidia-h200/gemm-triton.json"), known_rates(H200.name)
    for name, rate in ours.flop_per_s.items():
        assert 1.0 < rate / long.flop_per_s[name] < 1.1
    assert {"fp16", "bf16", "fp8", "tf32", "int8"} == set(ours.flop_per_s)
    assert known_rates("NVIDIA A100-SXM4-80GB") is None
    assert known_rates("../../etc/passwd") is None


# ---------------------------------------------------------------- the kernels that only multiply


nvrtc: Any = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")

CAPABILITIES: list[Capability] = [(8, 0), (8, 9), (9, 0)]
LOOPS = {"wgmma": r"wgmma\.mma_async\.sync\.aligned\.m64n256", "mma.sync": r"mma\.sync\.aligned\.m",
         "FFMA": r"fma\.rn\."}  # fmt: skip


def of(name: str, capability: Capability) -> list[PeakKernel]:
    return peak_kernels(name, Target("cuda", "a GPU", capability, 100))


def ptx(variant: PeakKernel, capability: Capability) -> str:
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
    assert peak_kernels("fp16", Target("cpu", "a CPU", None, 8)) == []
