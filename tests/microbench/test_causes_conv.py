"""Causes of convolutions, planted: conversions, misaligned channels, fewer operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kernels import OPS
from kernels.case import Case
from microbench.device.profiler import fewer_operations, is_conversion, tile_of
from microbench.results.types import Ceiling, Measurement, Result, Run
from microbench.roofline.causes import conversion_share
from microbench.roofline.explain import annotate

CONVERT = "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, true, false>"
BACK = "void cudnn::engines_precompiled::nhwcToNchwKernel<__half, __half, float, true, false>"
WORK = "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x64_stage4"
FFT = "void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*)"
DEVICE = {"name": "a GPU", "kind": "cuda", "sm_count": 100, "capability": "9.0",
          "sm_clock_max_mhz": 1980}  # fmt: skip


def conv(layout: str = "nhwc", precision: str = "fp16", **dims: int) -> Case:
    plain = {"n": 32, "c": 128, "h": 28, "w": 28, "k": 128, "r": 3, "s": 3,
             "stride": 1, "padding": 1, "dilation": 1, "groups": 1}  # fmt: skip
    return Case("conv", {**plain, **dims, "pass": "fprop"}, precision, "cudnn", layout)


def took(case: Case, seconds: float, kernels: dict[str, float] | None = None) -> Result:
    kernels = kernels or {WORK: seconds}
    measurement = Measurement((seconds,), (1,), seconds, None, "events", "cold", "sustained",
                              sm_clock_mhz=1900.0)  # fmt: skip
    op = OPS[case.op]
    return Result(case, "ok", measurement=measurement, flops=op.flops(case), rel_error=3e-4,
                  min_bytes=op.min_bytes(case), kernels=tuple(kernels),
                  kernels_s=tuple(kernels.values()))  # fmt: skip


def explained(*results: Result, more: Sequence[Ceiling] = ()) -> list[Result]:
    ceilings = (
        *more,
        Ceiling("large GEMM", "measured", "fp16", flop_per_s=700e12),
        Ceiling("large GEMM", "measured", "fp32", flop_per_s=50e12),
        Ceiling("memory", "measured", byte_per_s=4e12),
        Ceiling("latency floor", "measured", "fp16", seconds=3e-6),
    )
    run = Run(("x",), "now", DEVICE, {}, ceilings=ceilings, results=results)
    return list(annotate(run).results)


def test_conversions_name_the_layout_and_what_nhwc_would_take() -> None:
    slow = took(conv("nchw"), 60e-6, {CONVERT: 12e-6, WORK: 30e-6, BACK: 10e-6})
    fast = took(conv("nhwc"), 30e-6)
    assert conversion_share(slow) == pytest.approx(22 / 52)
    found, other = explained(slow, fast)
    assert found.bound == "layout"
    assert "42 %" in (found.why or "")
    assert "2.0 times faster in nhwc (measured)" in (found.why or "")
    assert other.bound != "layout"


def test_misaligned_channels_are_held_against_their_padded_twin() -> None:
    off, twin = took(conv(c=60, k=60), 70e-6), took(conv(c=64, k=64), 30e-6)
    found, _ = explained(off, twin)
    assert found.bound == "alignment"
    assert "C=60" in (found.why or "")
    assert "padded to 64 it is 2.3 times faster (measured)" in (found.why or "")


@pytest.mark.parametrize(
    ("results", "bound"),
    [
        ([took(conv("nchw"), 60e-6, {CONVERT: 2e-6, WORK: 56e-6})], "layout"),  # few conversions
        # A twin that gains nothing clears alignment.
        ([took(conv(c=60, k=60), 31e-6), took(conv(c=64, k=64), 30e-6)], "alignment"),
    ],
)
def test_what_costs_next_to_nothing_is_not_the_cause(results: list[Result], bound: str) -> None:
    assert explained(*results)[0].bound != bound


def test_an_algorithm_with_fewer_operations_is_named_and_no_error() -> None:
    seconds = OPS["conv"].flops(conv(precision="fp32")) / 100e12
    (found,) = explained(took(conv(precision="fp32"), seconds, {FFT: seconds}))
    assert found.bound == "compute"
    assert "FFT" in (found.why or "")
    assert not [w for w in found.warnings if "of what the hardware can do" in w.symptom]


@pytest.mark.parametrize(
    ("precision", "kernels", "proved"),
    [
        ("tf32", {WORK: 1e-6}, True),
        ("tf32", {"maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt": 1e-6}, None),
        ("fp32", {"maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt": 1e-6}, False),
        ("tf32", {FFT: 1e-6}, None),
        ("tf32", {}, None),  # which kernels ran is not known
    ],
)
def test_tensor_cores_are_proved_by_operations_that_were_done(
    precision: str, kernels: dict[str, float], proved: bool | None
) -> None:
    case = conv(precision=precision)
    fast = took(case, OPS["conv"].flops(case) / 150e12, {WORK: 1e-6})
    simt = [Ceiling("without Tensor Cores", "datasheet", "fp32", flop_per_s=66.9e12)]
    (found,) = explained(replace(fast, kernels=tuple(kernels)), more=simt)
    assert found.tensor_core is proved


def test_what_an_algorithm_with_fewer_operations_reaches_is_no_share_of_a_roof() -> None:
    case = conv(precision="fp32")
    at_clock = 256 * 100 * 1.9e9
    (found,) = explained(took(case, OPS["conv"].flops(case) / (0.9 * at_clock), {FFT: 1e-6}))
    assert found.bound == "mixed"
    assert "FFT" in (found.why or "")
    (direct,) = explained(took(case, OPS["conv"].flops(case) / (0.9 * at_clock), {WORK: 1e-6}))
    assert direct.bound == "compute"


def test_tf32_that_ran_exactly_is_a_warning_not_a_failure() -> None:
    exact = replace(took(conv(precision="tf32"), 60e-6), rel_error=2e-7)
    (found,) = explained(exact)
    assert any("tf32 was enabled" in w.symptom for w in found.warnings)
    rounded = replace(took(conv(precision="tf32"), 60e-6), rel_error=3e-4)
    assert not any("was enabled" in w.symptom for w in explained(rounded)[0].warnings)


@pytest.mark.parametrize(
    ("name", "converts"),
    [(CONVERT, True), (BACK, True), (WORK, False), (FFT, False), ("nchwToNhwcKernel", True),
     ("void at::native::transpose_readonly", True), ("conv_transposed_kernel", False)],
)  # fmt: skip
def test_which_kernels_only_convert(name: str, converts: bool) -> None:
    assert is_conversion(name) == converts


def test_algorithms_by_name() -> None:
    assert fewer_operations([WORK, FFT]) == "FFT"
    assert fewer_operations(["maxwell_winograd_fwd"]) == "Winograd"
    assert fewer_operations([WORK]) is None


def test_a_tile_is_pixels_by_filters_and_unknown_for_several_kernels() -> None:
    assert tile_of((WORK,), conv()) == (128, 64, 64)
    assert tile_of(("Memset (Device)", WORK), conv()) == (128, 64, 64)
    assert tile_of((CONVERT, WORK), conv()) is None
    gemm = Case("gemm", {"m": 1, "n": 1, "k": 1}, "fp16", "cublas")
    assert tile_of(("nvjet_sm90_hsh_256x128_64x4",), gemm) == (128, 256, 64)
