"""What a run says of its cases: causes with their numbers, thresholds, warnings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples.measuring import timed

from kernels.case import Case
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.gemm import Gemm
from microbench.device.profiler import fewer_operations, is_conversion, tile_of
from microbench.results.runfile import read_run
from microbench.results.types import Ceiling, ProcessTime, Result, Run
from microbench.roofline.explain import annotate, explain
from microbench.roofline.limits import Limits, limits_for, waves

ROOT = Path(__file__).parents[2]
PEAK = {"fp32": 66.9e12, "tf32": 494.7e12, "fp16": 989.4e12}
SIMT = {"fp32": 66.9e12, "fp16": 133.8e12}
LARGE = {"fp32": 50e12, "tf32": 360e12, "fp16": 700e12}
FLOOR_S = 5e-6
AT_1980 = 4096 * 132 * 1.98e9  # FLOP/s in fp16 that the SMs can do at the highest clock
H200: dict[str, Any] = {
    "name": "NVIDIA H200", "kind": "cuda", "capability": "9.0", "sm_count": 132,
    "sm_clock_max_mhz": 1980.0, "power_limit_w": 700.0,
}  # fmt: skip
CEILINGS = (
    *(Ceiling("dense peak", "datasheet", p, flop_per_s=v) for p, v in PEAK.items()),
    *(Ceiling("without Tensor Cores", "datasheet", p, flop_per_s=v) for p, v in SIMT.items()),
    *(Ceiling("large GEMM", "measured", p, flop_per_s=v) for p, v in LARGE.items()),
    *(Ceiling("latency floor", "measured", p, seconds=FLOOR_S) for p in PEAK),
    Ceiling("memory", "measured", byte_per_s=4e12),
)


def took(
    case: Case, seconds: float, *, clock: float | None = 1980.0, throttle: tuple[str, ...] = (),
    half_pct: float | None = 0.3, regime: str = "sustained", l2: str = "cold", **more: Any,
) -> Result:  # fmt: skip
    measurement = timed(
        seconds, half_pct, l2=l2, regime=regime, sm_clock_mhz=clock, throttle=throttle
    )
    return Result(case, "ok", measurement=measurement, flops=case.problem.flops,
                  min_bytes=case.min_bytes, **more)  # fmt: skip


def gemm(
    shape: int | tuple[int, int, int],
    precision: str = "fp16",
    backend: str = "cublas",
    layout: str = "nt",
    data: str = "normal",
) -> Case:
    m, n, k = (shape, shape, shape) if isinstance(shape, int) else shape
    return Case(Gemm(m, n, k, layout), precision, backend, data)


def conv(layout: str = "nhwc", precision: str = "fp16", channels: int = 128) -> Case:
    shape = ConvShape(32, channels, 28, 28, channels, 3, 3, padding=1)
    return Case(Conv(shape, "fprop", layout), precision, "cudnn")


def at_rate(case: Case | int, flop_per_s: float, **more: Any) -> Result:
    case = gemm(case) if isinstance(case, int) else case
    return took(case, case.problem.flops / flop_per_s, **more)


def annotated(*results: Result, device: dict[str, Any] = H200, ceilings: Any = CEILINGS) -> Result:
    run = Run(("x",), "now", device, {}, ceilings=tuple(ceilings), results=results)
    return annotate(run).results[0]


# ---------------------------------------------------------------- causes

TILE = (128, 128, 64)
DEEP = "nvjet_sm90_hsh_128x128_64x6_2x1_v_bz_TNT"  # six stages: shared memory for one
CAPPED = {"clock": 1400.0, "throttle": ("power cap",)}
ODD = at_rate(gemm((4096, 4096, 4095)), 455e12)  # 43 % of what the SMs can do is no low rate
CONVERT = "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, true, false>"
BACK = "void cudnn::engines_precompiled::nhwcToNchwKernel<__half, __half, float, true, false>"
WORK = "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x64_stage4"
FFT = "void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*)"
CONVERTED = took(conv("nchw"), 60e-6, kernels=(CONVERT, WORK, BACK),
                 kernels_s=(12e-6, 30e-6, 10e-6))  # fmt: skip


@pytest.mark.parametrize(
    ("results", "bound", "numbers"),
    [
        ([took(gemm(256), 6e-6)], "launch", ["5.0 us", "6.0 us"]),
        # A time under the floor never claims more than itself.
        ([took(gemm(32), 4e-6)], "launch", ["4.0 us of 4.0 us"]),
        ([at_rate(8192, 690e12, clock=1400.0, throttle=("thermal",))], "power", ["thermal"]),
        ([took(gemm((1, 16384, 16384)), 150e-6)], "memory",
         ["1 FLOP/byte", "536.9 MB", "134.2 us", "150.0 us"]),
        ([took(gemm((1, 131072, 16384)), 1.2e-3)], "memory", ["1.07 ms", "1.20 ms"]),
        ([at_rate(4095, 280e12), at_rate(4096, 700e12)], "alignment",
         ["8190 bytes", "16", "26 %", "4096", "2.5 times"]),
        # A padded twin decides whatever the rate: it gains 1.4 times, so the strides cost that.
        ([ODD, at_rate(4096, 650e12)], "alignment", ["8190 bytes", "1.4 times faster"]),
        ([at_rate(1536, 400e12, tile=TILE, kernels=(DEEP,))], "waves",
         ["144 tiles of 128x128", "132 SMs", "2 waves", "55 %", "37 %"]),
        # As many tiles as are launched, where a back end says so.
        ([at_rate(1536, 400e12, tile=TILE, kernels=(DEEP,), tiles=140)], "waves",
         ["140 tiles of 128x128", "2 waves", "53 %"]),
        ([at_rate(8192, 0.97 * AT_1980)], "compute", ["97 %"]),
        ([at_rate(8192, 690e12, **CAPPED)], "power", ["700 W", "1400", "1980"]),
        # The clock is held, but the SMs do no more than two thirds of what it allows.
        ([at_rate(2048, 0.67 * AT_1980 * 1659 / 1980, clock=1659.0, throttle=("power cap",))],
         "mixed", ["67 %", "1659", "1980"]),
        ([CONVERTED, took(conv(), 30e-6)], "layout",
         ["42 %", "2.0 times faster in nhwc (measured)"]),
        ([took(conv(channels=60), 70e-6), took(conv(channels=64), 30e-6)], "alignment",
         ["C=60", "padded to 64 it is 2.3 times faster (measured)"]),
        ([at_rate(conv(precision="fp32"), 100e12, kernels=(FFT,))], "compute", ["FFT"]),
    ],
)  # fmt: skip
def test_a_planted_cause_is_named_with_its_numbers(
    results: list[Result], bound: str, numbers: list[str]
) -> None:
    found = annotated(*results)
    assert found.bound == bound, found.why
    assert "\n" not in found.why
    assert [number for number in numbers if number not in found.why] == [], found.why


def test_a_case_is_not_compared_with_itself_nor_is_anything_claimed_without_ceilings() -> None:
    skipped = Result(gemm(64), "skipped", reason="no")
    assert annotated(skipped) == skipped
    bare = annotated(at_rate(1024, 350e12), ceilings=())
    assert (bare.bound, bare.ceiling_pct, bare.tensor_core) == ("mixed", None, None)
    run = Run(("x",), "now", H200, {}, ceilings=CEILINGS, results=(at_rate(4096, 6e14), skipped))
    assert annotate(annotate(run)) == annotate(run)
    assert annotate(run).results[0] == annotated(at_rate(4096, 6e14))
    tiny, large = took(gemm(64), FLOOR_S), at_rate(4096, 700e12, clock=None)
    floor = Ceiling("latency floor", "measured", "fp16", seconds=FLOOR_S, reference=tiny.case.key)
    best = Ceiling("large GEMM", "measured", "fp16", 700e12, reference=large.case.key)
    for found in (tiny, large):
        alone = annotated(found, ceilings=(floor, best))
        assert (alone.bound, "64x64x64" in (alone.why or "")) == ("mixed", False)
    assert annotated(took(gemm(128), FLOOR_S), ceilings=(floor,)).bound == "launch"
    assert annotated(at_rate(2048, 690e12, clock=None), ceilings=(best,)).bound == "compute"


def test_a_difference_within_the_intervals_is_no_cause_and_tiles_are_those_launched() -> None:
    odd, padded = conv(channels=60), conv(channels=64)
    for half_pct, named in ((3.0, True), (12.0, False)):
        twins = [took(case, s, half_pct=half_pct) for case, s in ((odd, 34e-6), (padded, 30e-6))]
        assert (annotated(*twins).bound == "alignment") == named
        slow = took(gemm(1024), 2.1 * FLOOR_S * (0.9 if named else 0.94), half_pct=half_pct)
        assert (annotated(slow).bound == "launch") == named
        thin = took(gemm((1, 16384, 16384)), 134.2e-6 * (1.9 if named else 1.95), half_pct=half_pct)
        assert (annotated(thin).bound == "memory") == named
        layouts = annotated(replace(CONVERTED), took(conv(), 56e-6, half_pct=half_pct))
        assert ("in nhwc" in (layouts.why or "")) == named
        neighbour = at_rate(4096, 310e12, half_pct=half_pct)
        ours = took(gemm(4095, backend="triton"), 0.9 * 2 * 4095**3 / 280e12, half_pct=half_pct)
        for other, claim in ((neighbour, "times the rate"), (ours, "our own")):
            assert (claim in (annotated(at_rate(4095, 280e12), other).why or "")) == named
    wide = annotated(took(gemm(1024), 2.5 * FLOOR_S, half_pct=300.0))
    assert wide.bound == "mixed"
    assert "±300 %" in (wide.why or "")
    # Under a power cap a time varies with the clock, and a share of the roof at the clock does not.
    assert annotated(at_rate(8192, 690e12, half_pct=20.0, **CAPPED)).bound == "power"
    # Once published as 205 tiles, 78 % full: it launched 250 boxes of 16 x 4 x 4 pixels.
    run = read_run(ROOT / "results/nvidia-h200/shapes-conv.json")
    label = "conv_gluon/16x4x4x128x64/s3/w8/padded"
    found = next(replace(r, variant=label, tiles=250) for r in run.results
                 if (r.case.backend, r.case.problem.dims["c"]) == ("triton", 301))  # fmt: skip
    launched = waves(found, run)
    assert launched.efficiency == pytest.approx(250 / 264)
    unknown = replace(found, tiles=None)
    assert waves(unknown, run) is None
    explained = annotate(replace(run, results=(unknown,))).results[0]
    assert explained.bound == "mixed"
    assert "tiles" not in (explained.why or "")
    library = waves(replace(unknown, case=replace(found.case, backend="cudnn")), run)
    assert library.tiles == 205


# ---------------------------------------------------------------- kernels by name


@pytest.mark.parametrize(
    ("name", "converts", "algorithm"),
    [(CONVERT, True, None), (BACK, True, None), (WORK, False, None), (FFT, False, "FFT"),
     ("void at::native::transpose_readonly", True, None), ("conv_transposed_kernel", False, None),
     ("maxwell_winograd_fwd", False, "Winograd")],
)  # fmt: skip
def test_what_a_kernel_s_name_says(name: str, converts: bool, algorithm: str | None) -> None:
    assert is_conversion(name) == converts
    assert fewer_operations([WORK, name]) == algorithm
    # A tile is pixels by filters, and unknown for several kernels.
    assert tile_of(("Memset (Device)", WORK), conv()) == (128, 64, 64)
    assert tile_of((CONVERT, WORK), conv()) is None
    assert tile_of(("nvjet_sm90_hsh_256x128_64x4",), gemm(1)) == (128, 256, 64)


# ---------------------------------------------------------------- warnings

FALLEN = {"clock": 1485.0, "throttle": ("power cap",)}
SEVERAL = (ProcessTime(0, 1, 2e-4), ProcessTime(1, 2, 2e-4))


@pytest.mark.parametrize(
    ("rate", "more", "said", "unsaid"),
    [
        (600e12, {}, [], None),
        (600e12, FALLEN, ["25 %", "power cap", "--regime burst"], None),
        (600e12, FALLEN | {"regime": "burst"}, ["25 %"], "--regime burst"),
        (600e12, {"half_pct": 6.0}, ["6.0 %", "--budget"], "--processes"),
        (600e12, {"half_pct": 6.0, "processes": SEVERAL}, ["6.0 %", "--processes"], "--budget"),
        (600e12, {"half_pct": None}, ["no confidence interval"], None),
        (1500e12, {}, ["do not use"], None),
        (600e12, {"data": "zeros"}, ["--data normal"], None),
        (600e12, {"precision": "tf32", "rel_error": 2e-7}, ["tf32 was enabled"], None),
        (300e12, {"precision": "tf32", "rel_error": 3e-4}, [], None),
    ],
)
def test_each_warning_says_what_is_seen_and_what_to_do(
    rate: float, more: dict[str, Any], said: list[str], unsaid: str | None
) -> None:
    more = dict(more)
    case = gemm(4096, more.pop("precision", "fp16"), data=more.pop("data", "normal"))
    processes = more.pop("processes", ())
    result = at_rate(case, rate, **more)
    timed = replace(result.measurement, processes=processes)
    warnings = annotated(replace(result, measurement=timed)).warnings
    assert all(w.symptom and w.cause and w.remedy for w in warnings)
    text = " ".join(f"{w.symptom} {w.cause} {w.remedy}" for w in warnings)
    assert bool(text) == bool(said), text
    assert [words for words in said if words not in text] == [], text
    assert unsaid is None or unsaid not in text


# ---------------------------------------------------------------- each threshold from both sides


ROOF = 1000e12
TIME_S = 1e-3
# Nothing applies to a case in the middle: half of the peak, little traffic, no latency to speak of.
MIDDLE = Limits(
    datasheet_flop_per_s=None, clock_flop_per_s=None, measured_flop_per_s=ROOF,
    simt_flop_per_s=None, compute_s=0.5 * TIME_S, memory_s=0.2 * TIME_S, floor_s=0.01 * TIME_S,
    fp32_flop_per_s=0.05 * ROOF, roof_flop_per_s=ROOF, roof="the roof", in_l2=False,
)  # fmt: skip
TRANSPOSE, PLAIN = "cudnn::ops::nchwToNhwcKernel", "sm90_xmma_fprop_implicit_gemm"
WINOGRAD = "winograd_fwd"


def result(
    share: float = 0.5, *, size: int = 4096, precision: str = "fp16", clock: float = 1980.0,
    throttle: tuple[str, ...] = (), **more: Any,
) -> Result:  # fmt: skip
    """A case of 1 ms at this share of ROOF, whatever its size says."""
    case = Case(Gemm(size, size, size), precision, "cublas")
    made = Result(case, "ok", measurement=timed(TIME_S, sm_clock_mhz=clock, throttle=throttle),
                  flops=round(share * ROOF * TIME_S), min_bytes=10**6)  # fmt: skip
    return replace(made, **more)


def run_of(*results: Result, ceilings: tuple[Ceiling, ...] = (), **device: Any) -> Run:
    return Run(("x",), "now", H200 | device, {}, ceilings=ceilings, results=results)


def bound(found: Result, *others: Result, **limits: float | None) -> str:
    return explain(found, replace(MIDDLE, **limits), run_of(found, *others))[0]  # type: ignore[arg-type]


def of_time(**shares: float) -> dict[str, float]:
    return {f"{name}_s": share * TIME_S for name, share in shares.items()}


CAP = ("power cap",)


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
        (result(), {"fp32_flop_per_s": 5.1 * ROOF}, "no hardware"),
        (result(), {"fp32_flop_per_s": 4.9 * ROOF}, "mixed"),
        (result(precision="tf32"), {"fp32_flop_per_s": 5.1 * ROOF}, "mixed"),
        (result(precision="fp8-e4m3"), {"fp32_flop_per_s": 5.1 * ROOF}, "no hardware"),
        (result(0.86), {}, "compute"),
        (result(0.84), {}, "mixed"),
        (result(0.9, clock=1900.0, throttle=CAP), {}, "power"),
        (result(0.9, clock=1930.0, throttle=CAP), {}, "compute"),
        (result(0.9, clock=1900.0, throttle=("thermal",)), {}, "power"),
        (result(0.9, clock=1900.0, throttle=("sync boost",)), {}, "compute"),
        # The roof alone decides, whatever the SMs could do at this clock.
        (result(0.9, clock=1900.0, throttle=CAP), {"roof_flop_per_s": 1.11 * ROOF}, "power"),
        (result(0.9, clock=1900.0, throttle=CAP), {"roof_flop_per_s": 1.14 * ROOF}, "mixed"),
        (result(0.9), {"clock_flop_per_s": 1.5 * ROOF, "measured_flop_per_s": ROOF}, "compute"),
        (result(0.79, clock=1900.0, throttle=CAP), {}, "mixed"),
        (result(0.81, clock=1900.0, throttle=CAP), {}, "power"),
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
        (result(kernels=(TRANSPOSE, PLAIN), kernels_s=(0.21, 0.79)), {}, "layout"),
        (result(kernels=(TRANSPOSE, PLAIN), kernels_s=(0.19, 0.81)), {}, "mixed"),
        # Only a case above the roof is said to need fewer operations.
        (result(1.04, kernels=(WINOGRAD,), clock=1500.0, throttle=CAP), {}, "mixed"),
        (result(1.06, kernels=(WINOGRAD,), clock=1500.0, throttle=CAP), {}, "compute"),
    ],
)  # fmt: skip
def test_a_cause_applies_on_one_side_only(
    found: Result, limits: dict[str, Any], named: str
) -> None:
    assert bound(found, **limits) == named


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


# ---------------------------------------------------------------- the cache

MEMORY = (Ceiling("memory", "measured", byte_per_s=4e12),)


@pytest.mark.parametrize(
    ("size", "kind", "l2", "stays"),
    [(1000, "cuda", "warm", True), (1001, "cuda", "warm", False), (1000, "cuda", "cold", False),
     (1000, "cpu", "warm", False), (1000, "mps", "warm", False)],
)  # fmt: skip
def test_what_fits_into_a_warm_l2_stays_there(size: int, kind: str, l2: str, stays: bool) -> None:
    found = result(min_bytes=size)
    found = replace(found, measurement=replace(found.measurement, l2=l2))
    limits = limits_for(found, run_of(ceilings=MEMORY, kind=kind, l2_bytes=1000))
    assert (limits.in_l2, limits.memory_s is None) == (stays, stays)
    unknown = limits_for(replace(found, min_bytes=1), run_of(ceilings=MEMORY, kind=kind))
    assert not unknown.in_l2
