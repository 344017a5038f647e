"""Where one bottleneck ends and the next begins: each threshold from both sides."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples.measuring import timed

from kernels.case import Case
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.gemm import Gemm
from microbench.results.types import Ceiling, Result, Run
from microbench.roofline.explain import conversion_share, explain, waves
from microbench.roofline.limits import Limits, limits_for, tensor_core

DEVICE: dict[str, Any] = {
    "name": "NVIDIA H200", "kind": "cuda", "capability": "9.0", "sm_count": 132,
    "sm_clock_max_mhz": 1980.0, "power_limit_w": 700.0,
}  # fmt: skip
PEAK = 1000e12
TIME_S = 1e-3
# Nothing applies to a case in the middle: half of the peak, little traffic, no latency to speak of.
MIDDLE = Limits(
    datasheet_flop_per_s=None, clock_flop_per_s=None, measured_flop_per_s=PEAK,
    simt_flop_per_s=None, compute_s=0.5 * TIME_S, memory_s=0.2 * TIME_S, floor_s=0.01 * TIME_S,
    fp32_flop_per_s=0.05 * PEAK, roof_flop_per_s=PEAK, roof="the roof", in_l2=False,
)  # fmt: skip
TRANSPOSE, WORK = "cudnn::ops::nchwToNhwcKernel", "sm90_xmma_fprop_implicit_gemm"
WINOGRAD = "winograd_fwd"


def result(
    share: float = 0.5, *, size: int = 4096, precision: str = "fp16", clock: float = 1980.0,
    throttle: tuple[str, ...] = (), **more: Any,
) -> Result:  # fmt: skip
    """A case of 1 ms at this share of PEAK, whatever its size says."""
    case = Case(Gemm(size, size, size), precision, "cublas")
    made = Result(case, "ok", measurement=timed(TIME_S, sm_clock_mhz=clock, throttle=throttle),
                  flops=round(share * PEAK * TIME_S), min_bytes=10**6)  # fmt: skip
    return replace(made, **more)


def run_of(*results: Result, ceilings: tuple[Ceiling, ...] = (), **device: Any) -> Run:
    return Run(("x",), "now", DEVICE | device, {}, ceilings=ceilings, results=results)


def bound(found: Result, *others: Result, **limits: float | None) -> str:
    return explain(found, replace(MIDDLE, **limits), run_of(found, *others))[0]  # type: ignore[arg-type]


def of_time(**shares: float) -> dict[str, float]:
    return {f"{name}_s": share * TIME_S for name, share in shares.items()}


CAPPED = ("power cap",)


@pytest.mark.parametrize(
    ("found", "limits", "named"),
    [
        (result(), {}, "mixed"),
        (result(), of_time(floor=0.51), "launch"),
        (result(), of_time(floor=0.49), "mixed"),
        (result(), of_time(floor=0.41, compute=0.06, memory=0.03), "launch"),
        (result(), of_time(floor=0.41, compute=0.06, memory=0.05), "mixed"),
        (result(), of_time(floor=0.39, compute=0.06, memory=0.03), "mixed"),
        (result(), of_time(floor=0.41, compute=0.06) | {"memory_s": None}, "mixed"),
        (result(), of_time(memory=0.51), "memory"),
        (result(), of_time(memory=0.49, compute=0.4), "mixed"),
        (result(), of_time(memory=0.55, compute=0.56), "mixed"),
        (result(), of_time(memory=0.55, compute=0.54), "memory"),
        (result(), of_time(memory=0.51) | {"compute_s": None}, "memory"),
        (result(), {"fp32_flop_per_s": 5.1 * PEAK}, "no hardware"),
        (result(), {"fp32_flop_per_s": 4.9 * PEAK}, "mixed"),
        (result(precision="tf32"), {"fp32_flop_per_s": 5.1 * PEAK}, "mixed"),
        (result(precision="fp8-e4m3"), {"fp32_flop_per_s": 5.1 * PEAK}, "no hardware"),
        (result(0.86), {}, "compute"),
        (result(0.84), {}, "mixed"),
        (result(0.9, clock=1900.0, throttle=CAPPED), {}, "power"),
        (result(0.9, clock=1930.0, throttle=CAPPED), {}, "compute"),
        (result(0.9, clock=1900.0, throttle=("thermal",)), {}, "power"),
        (result(0.9, clock=1900.0, throttle=("sync boost",)), {}, "compute"),
        # The roof alone decides, whatever the SMs could do at this clock.
        (result(0.9, clock=1900.0, throttle=CAPPED), {"roof_flop_per_s": 1.11 * PEAK}, "power"),
        (result(0.9, clock=1900.0, throttle=CAPPED), {"roof_flop_per_s": 1.14 * PEAK}, "mixed"),
        (result(0.9), {"clock_flop_per_s": 1.5 * PEAK, "measured_flop_per_s": PEAK}, "compute"),
        (result(0.79, clock=1900.0, throttle=CAPPED), {}, "mixed"),
        (result(0.81, clock=1900.0, throttle=CAPPED), {}, "power"),
        (result(0.4, size=4095), {}, "alignment"),
        (result(0.41, size=4095), {}, "mixed"),
        # 11 x 10 tiles on 132 SMs are 83 % of a wave; 12 x 11 are all of it.
        (result(size=1280, tile=(128, 128, 64)), {}, "waves"),
        (result(size=2304, tile=(192, 192, 64)), {}, "waves"),  # 144 tiles: 2 waves, 55 %
        (result(size=2816, tile=(192, 192, 64)), {}, "mixed"),  # 225 tiles: 2 waves, 85.2 %
        (result(size=1536, tile=(128, 128, 64)), {}, "mixed"),  # two such may share an SM
        (result(size=1408, tile=(128, 128, 64)), {}, "mixed"),  # 121 tiles: 92 %
        (result(size=1344, tile=(128, 128, 64)), {}, "mixed"),  # 121 tiles
        (result(size=1536, tile=(128, 64, 64)), {}, "mixed"),  # four such may
        (result(size=1536, tile=(127, 256, 64)), {}, "waves"),  # 78 tiles
        (result(size=512, tile=(128, 64, 64)), {}, "waves"),  # too few to share any
        (result(kernels=(TRANSPOSE, WORK), kernels_s=(0.21, 0.79)), {}, "layout"),
        (result(kernels=(TRANSPOSE, WORK), kernels_s=(0.19, 0.81)), {}, "mixed"),
        # Only a case above the roof is said to need fewer operations.
        (result(1.04, kernels=(WINOGRAD,), clock=1500.0, throttle=CAPPED), {}, "mixed"),
        (result(1.06, kernels=(WINOGRAD,), clock=1500.0, throttle=CAPPED), {}, "compute"),
    ],
)  # fmt: skip
def test_a_cause_applies_on_one_side_only(
    found: Result, limits: dict[str, Any], named: str
) -> None:
    assert bound(found, **limits) == named


def test_an_aligned_size_is_compared_with_where_it_is_near_and_a_twin_decides() -> None:
    """By operations: 4,000 has 7 % fewer than 4,095, and 3,840 has 18 % fewer. A padded twin
    decides where it is a tenth faster.
    """
    found = result(0.3, size=4095, flops=2 * 4095**3)
    for size, near in ((4000, True), (3840, False), (4400, False)):
        other = result(size=size, flops=2 * size**3)
        run = run_of(found, other)
        _, why = explain(found, MIDDLE, run)
        assert (str(size) in re.findall(r"\d+", why)) == near
    for gain, named in ((1.11, "alignment"), (1.09, "mixed")):
        found = result(0.3, size=4095)
        assert found.measurement
        times = replace(found.measurement, median_s=TIME_S / gain)
        padded = replace(found, case=found.case.aligned, measurement=times)
        assert bound(found, padded) == named


@pytest.mark.parametrize(("gain", "limit"), [(1.3, "not the card"), (1.04, "is no faster")])
@pytest.mark.parametrize("size", [4095, 1280])
def test_our_own_kernel_tells_the_librarys_limit_from_the_cards(
    gain: float, limit: str, size: int
) -> None:
    found = result(0.35, size=size, tile=(128, 128, 64))
    assert found.measurement
    times = replace(found.measurement, median_s=TIME_S / gain)
    ours = replace(found, case=replace(found.case, backend="triton"), measurement=times)
    named, why = explain(found, MIDDLE, run_of(found, ours))
    assert named in ("alignment", "waves")
    assert limit in why
    assert explain(found, MIDDLE, run_of(found))[1] in why
    assert "our own" not in explain(ours, MIDDLE, run_of(found, ours))[1]
    fast = result(0.9)  # what is no fault of a kernel is not held against ours
    run = run_of(fast, replace(fast, case=replace(fast.case, backend="triton")))
    assert "our own" not in explain(fast, MIDDLE, run)[1]


@given(st.lists(st.floats(1e-6, 1e-3), min_size=1), st.lists(st.floats(1e-6, 1e-3), min_size=1))
def test_the_share_of_conversions_is_of_all_kernels(
    converting: list[float], working: list[float]
) -> None:
    kernels = (TRANSPOSE,) * len(converting) + (WORK,) * len(working)
    found = result(kernels=kernels, kernels_s=(*converting, *working))
    share = sum(converting) / sum((*converting, *working))
    assert conversion_share(found) == pytest.approx(share)
    assert conversion_share(result()) == 0


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 300), st.integers(1, 300))
def test_waves_are_rounds_of_one_tile_an_sm(m: int, n: int, tile_m: int, tile_n: int) -> None:
    case = Case(Gemm(m, n, 64), "fp16", "cublas")
    found = waves(result(case=case, tile=(tile_m, tile_n, 64)), run_of())
    tiles = len(range(0, m, tile_m)) * len(range(0, n, tile_n))
    assert (found.tiles, found.sm_count) == (tiles, 132)
    assert found.waves == len(range(0, tiles, 132))
    assert found.efficiency == pytest.approx(tiles / (132 * found.waves))
    assert waves(result(), run_of()) is None
    for unknown in ({"kind": "cpu"}, {"sm_count": None}):
        assert waves(result(tile=(128, 128, 64)), run_of(**unknown)) is None


# ---------------------------------------------------------------- the peaks

BASE = (
    Ceiling("a shorter time", "measured", "fp16", seconds=1e-9),
    Ceiling("memory", "measured", byte_per_s=4e12),
    Ceiling("z", "measured", "fp16", seconds=1e-9),
    Ceiling("latency floor", "measured", "fp16", seconds=5e-6),
    Ceiling("latency floor", "measured", "fp32", seconds=4e-6),
    Ceiling("latency floor", "measured", "tf32", seconds=6e-6),
    Ceiling("dense peak", "datasheet", "fp16", flop_per_s=989e12),
    Ceiling("without Tensor Cores", "datasheet", "fp32", flop_per_s=67e12),
    Ceiling("large GEMM", "measured", "fp16", flop_per_s=700e12),
    Ceiling("large GEMM", "measured", "fp32", flop_per_s=50e12),
)


def test_peaks_are_those_of_the_case_and_tensor_cores_proved_by_operations_done() -> None:
    found = result(clock=1500.0)
    limits = limits_for(found, run_of(ceilings=BASE))
    assert limits.datasheet_flop_per_s == 989e12
    assert limits.clock_flop_per_s == 4096 * 132 * 1500e6
    assert limits.measured_flop_per_s == 700e12
    assert limits.fp32_flop_per_s == 50e12
    assert limits.roof_flop_per_s == limits.clock_flop_per_s  # no instruction was measured
    assert limits.compute_s == pytest.approx(found.flops / (4096 * 132 * 1500e6))
    assert limits.memory_s == pytest.approx(found.min_bytes / 4e12)
    assert limits.floor_s == 4e-6
    # Without Tensor Cores it is the rate of the twin.
    for precision, factor in (("tf32", 1), ("int8", 4), ("fp32", 1), ("fp16", None)):
        limits = limits_for(result(precision=precision), run_of(ceilings=BASE))
        assert limits.simt_flop_per_s == (factor * 67e12 if factor else None)
    for share, proved in ((0.49, None), (0.51, True)):
        limits = replace(MIDDLE, simt_flop_per_s=0.5 * PEAK)
        assert tensor_core(result(share), limits) is proved
        assert tensor_core(result(share, precision="fp32"), limits) is False
        assert tensor_core(result(share), MIDDLE) is None
    found = result()
    assert found.flop_per_s
    at_the_rate = replace(MIDDLE, simt_flop_per_s=found.flop_per_s)
    assert tensor_core(found, at_the_rate) is None
    limits = replace(MIDDLE, simt_flop_per_s=0.1 * PEAK)
    conv = Conv(ConvShape(8, 64, 14, 14, 64, 3, 3, padding=1), "fprop")
    for backend, kernels, proved in (
        ("cudnn", (), None), ("cudnn", (WORK,), True), ("triton", (), True),
        ("cudnn", (WINOGRAD,), None),
    ):  # fmt: skip
        found = result(case=Case(conv, "fp16", backend), kernels=kernels)
        assert tensor_core(found, limits) is proved
    assert tensor_core(result(measurement=None), limits) is None


@pytest.mark.parametrize("capability", ["", "x", "9", "9.x", "x.0", None])
def test_a_gpu_of_no_known_capability_has_no_peak_at_its_clock(capability: str | None) -> None:
    run = run_of(ceilings=BASE, capability=capability)
    limits = limits_for(result(), run)
    assert limits.clock_flop_per_s is None
    assert limits.roof_flop_per_s == 700e12  # the largest GEMM


@pytest.mark.parametrize(
    ("size", "kind", "l2", "stays"),
    [(1000, "cuda", "warm", True), (1001, "cuda", "warm", False), (1000, "cuda", "cold", False),
     (1000, "cpu", "warm", False), (1000, "mps", "warm", False)],
)  # fmt: skip
def test_what_fits_into_a_warm_l2_stays_there(size: int, kind: str, l2: str, stays: bool) -> None:
    found = result(min_bytes=size)
    assert found.measurement
    found = replace(found, measurement=replace(found.measurement, l2=l2))
    limits = limits_for(found, run_of(ceilings=BASE[:2], kind=kind, l2_bytes=1000))
    assert (limits.in_l2, limits.memory_s is None) == (stays, stays)
    unknown = limits_for(replace(found, min_bytes=1), run_of(ceilings=BASE[:2], kind=kind))
    assert not unknown.in_l2
