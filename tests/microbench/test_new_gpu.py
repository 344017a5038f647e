"""A GPU and a precision are added by one entry each: all that knows of them uses it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from e2e.predict.op_timer.l2_residency import cache_bytes
from samples.kernel_runs import sample_result, sample_run

from kernels import gpus, precision
from kernels.case import Case, Target
from kernels.conv.shape import ConvShape
from kernels.conv.triton import data_config, wgrad_config
from kernels.gemm import cublaslt_api
from kernels.gemm.triton import config as gemm_config
from kernels.gpu_cards import CARDS
from kernels.precision import PRECISIONS
from kernels.tuned import tables_for
from microbench.__main__ import main
from microbench.results.runfile import write_run
from microbench.roofline.ceilings import datasheet_ceilings
from microbench.roofline.limits import limits_for

NAME, CAPABILITY, SMS = "NVIDIA Zeta 7", (13, 1), 20
CLOCK_MHZ = 1000.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A made-up GPU of little shared memory, whose tuned tables serve others of its kind."""
    card = replace(
        CARDS[0], title="Zeta 7", match=(NAME,), capability=CAPABILITY, sms=SMS,
        flop_per_s={"fp16": 9e12, "fp8": 18e12}, simt_flop_per_s={"fp16": 1e12},
        byte_per_s=5e11, reference="https://example.org/zeta", lends_tuning=True,
    )  # fmt: skip
    chip = gpus.Architecture(
        "Zeta", 40 * gpus.KIB, flop_per_clock={"fp16": 256, "fp8": 512}, l2_in_halves=True
    )
    monkeypatch.setattr(gpus, "CARDS", (*CARDS, card))
    monkeypatch.setattr(gpus, "ARCHITECTURES", {**gpus.ARCHITECTURES, CAPABILITY: chip})
    return Target("cuda", NAME, CAPABILITY, SMS)


def test_ceilings_and_limits_of_a_new_gpu(gpu: Target) -> None:
    ceilings = datasheet_ceilings(gpu.name, ["fp16", "fp8-e5m2", "bf16"])
    assert [(c.name, c.precision, c.flop_per_s, c.byte_per_s) for c in ceilings] == [
        ("dense peak", "fp16", 9e12, None),
        ("dense peak", "fp8-e5m2", 18e12, None),
        ("without Tensor Cores", "fp16", 1e12, None),
        ("memory", None, None, 5e11),
    ]
    assert {c.reference for c in ceilings} == {"https://example.org/zeta"}
    result = sample_result()
    assert result.measurement is not None
    result = replace(result, measurement=replace(result.measurement, sm_clock_mhz=CLOCK_MHZ))
    device = {"kind": "cuda", "name": gpu.name, "capability": "13.1", "sm_count": SMS}
    limits = limits_for(result, replace(sample_run(result), ceilings=ceilings, device=device))
    assert limits.datasheet_flop_per_s == 9e12
    assert limits.clock_flop_per_s == 256 * SMS * CLOCK_MHZ * 1e6
    assert limits.simt_flop_per_s == 1e12


def test_triton_keeps_to_a_new_gpu_s_shared_memory(gpu: Target) -> None:
    limit = gpus.architecture(gpu.capability).block_shared_bytes
    shape, fp16 = ConvShape(8, 64, 28, 28, 64, 3, 3, 1, 1), PRECISIONS["fp16"]
    case = Case("gemm", {"m": 4096, "n": 4096, "k": 4096}, "fp16", "triton")
    problem = gemm_config.Problem.of(case)
    taken = [
        *(gemm_config.shared_memory(c, fp16)
          for c in gemm_config.choices(problem, CAPABILITY, SMS)),
        *(data_config.shared_memory(c, 2)
          for c in data_config.choices(shape, "fprop", fp16, CAPABILITY, SMS)),
        *(wgrad_config.shared_memory(c, shape, fp16)
          for c in wgrad_config.choices(shape, "wgrad", fp16, CAPABILITY, SMS)),
    ]  # fmt: skip
    assert taken
    assert max(taken) <= limit


def test_gpus_alike_start_from_a_new_gpu_s_tuned_tables(gpu: Target) -> None:
    assert tables_for(replace(gpu, name="NVIDIA Zeta 7 Ti")) == (NAME, "NVIDIA Zeta 7 Ti")


def test_half_of_a_new_gpu_s_l2_holds_a_tensor(
    gpu: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def properties(device: object) -> Any:
        return SimpleNamespace(major=CAPABILITY[0], minor=CAPABILITY[1], L2_cache_size=1 << 20)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert cache_bytes(torch.device("cuda")) == 1 << 19


def test_a_new_precision_needs_one_entry(
    gpu: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """e5m2 x e4m3 added up in float32: stored and multiplied in ways that the back ends know."""
    name = "fp8-e5m2-precise"
    new = replace(PRECISIONS["fp8-e5m2"], name=name, fast_accumulate=False)
    monkeypatch.setattr(precision, "PRECISIONS", {**PRECISIONS, name: new})
    case = Case("gemm", {"m": 4096, "n": 4096, "k": 4096}, name, "cpu")
    assert case.precision is new
    assert datasheet_ceilings(gpu.name, [name])[0].flop_per_s == 18e12
    assert cublaslt_api.arithmetic(new) == cublaslt_api.arithmetic(PRECISIONS["fp8-e5m2"])
    found = gemm_config.choices(gemm_config.Problem.of(case), (9, 0), 132)
    assert found
    assert max(config.accumulators for config in found) <= gemm_config.PRECISE_ACCUMULATORS
    result = replace(sample_result(), case=case)
    write_run(sample_run(result), tmp_path / "run.json")
    assert main(["show", str(tmp_path / "run.json")]) == 0
    assert name in capsys.readouterr().out
