"""A GPU and a precision are one entry each: ceilings, limits, kernels and screens use it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

import pytest
from samples.kernel_runs import case, measured, run_of, shown

from kernels import OPS, gpus
from kernels.case import Case, Target
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.conv.triton import backend
from kernels.conv.triton.problem import ImplicitGemm
from kernels.gemm import cublaslt_api
from kernels.gemm.triton import config as gemm_config
from kernels.gpu_cards import CARDS
from kernels.precision import PRECISIONS, Precision
from microbench.report.report import report_of
from microbench.results.codec import run_from_json, run_to_json
from microbench.roofline.ceilings import datasheet_ceilings
from microbench.roofline.limits import limits_for

NAME, CAPABILITY, SMS = "NVIDIA Zeta 7", (13, 1), 20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A made-up GPU of little shared memory."""
    card = replace(
        CARDS[0], title="Zeta 7", match=(NAME,), capability=CAPABILITY, sms=SMS,
        flop_per_s={"fp16": 9e12, "fp8": 18e12}, simt_flop_per_s={"fp16": 1e12},
        byte_per_s=5e11, reference="https://example.org/zeta",
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
        ("dense peak", "fp16", 9e12, None), ("dense peak", "fp8-e5m2", 18e12, None),
        ("without Tensor Cores", "fp16", 1e12, None), ("memory", None, None, 5e11),
    ]  # fmt: skip
    assert {c.reference for c in ceilings} == {"https://example.org/zeta"}
    device = {"kind": "cuda", "name": gpu.name, "capability": "13.1", "sm_count": SMS}
    result = measured(case(4096, "fp16", "cublas"), 3)
    run = run_of([result], ceilings=tuple(ceilings), device=device)
    limits = limits_for(result, run)
    assert limits.datasheet_flop_per_s == 9e12
    assert result.measurement is not None
    assert limits.clock_flop_per_s == 256 * SMS * result.measurement.sm_clock_mhz * 1e6
    assert limits.simt_flop_per_s == 1e12
    assert "Zeta 7" in shown(run)


def test_triton_keeps_to_a_new_gpu_s_shared_memory(gpu: Target) -> None:
    limit = gpus.architecture(gpu.capability).block_shared_bytes
    dims, fp16 = vars(ConvShape(8, 64, 28, 28, 64, 3, 3, 1, 1)), PRECISIONS["fp16"]
    layers = [Case(Conv(ConvShape(**dims), which), "fp16", "triton")
              for which in ("fprop", "wgrad")]  # fmt: skip
    problem = gemm_config.Problem.of(case(4096, "fp16", "triton"))
    taken = [
        *(gemm_config.shared_memory(c, fp16)
          for c in gemm_config.choices(problem, CAPABILITY, SMS)),
        *(backend.rules(c.label).shared_memory(c, ImplicitGemm.of(layer))
          for layer in layers for c in backend.configurations(layer, gpu).ranked),
    ]  # fmt: skip
    assert taken
    assert max(taken) <= limit


def test_a_new_precision_needs_one_entry(gpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """e5m2 x e4m3 added up in float32: stored and multiplied in ways that the back ends know."""
    name = "fp8-e5m2-precise"
    new = replace(PRECISIONS["fp8-e5m2"], name=name, fast_accumulate=False)
    monkeypatch.setitem(cast("dict[str, Precision]", PRECISIONS), name, new)
    what = case(4096, name, "triton")
    OPS["gemm"].check(what, gpu)
    assert datasheet_ceilings(gpu.name, [name])[0].flop_per_s == 18e12
    assert cublaslt_api.arithmetic(new) == cublaslt_api.arithmetic(PRECISIONS["fp8-e5m2"])
    found = gemm_config.choices(gemm_config.Problem.of(what), (9, 0), 132)
    assert found
    run = run_of([measured(case(4096, p, "cublas"), 600) for p in ("fp16", name)])
    read = run_from_json(json.loads(json.dumps(run_to_json(run))))
    assert read.results[1].case.precision is new
    assert name in shown(run)
    assert report_of(run).chart().to_dict()
