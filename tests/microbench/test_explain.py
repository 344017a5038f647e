"""What a run says of its cases: causes with their numbers, efficiencies and warnings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples.measuring import timed

from kernels.case import Case
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.gemm import Gemm
from kernels.precision import PRECISIONS
from microbench.device.profiler import fewer_operations, is_conversion, tile_of
from microbench.results.runfile import read_run
from microbench.results.types import Ceiling, ProcessTime, Result, Run
from microbench.roofline.explain import annotate
from microbench.roofline.limits import most_per_sm, waves

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
INSTRUCTION = Ceiling("instruction", "measured", "fp16", 1060e12, reference="wgmma, m64n256k16",
                      flop_per_clock=4000)  # fmt: skip


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
FLAT = "sm90_xmma_gemm_f16f16_tilesize128x128x64_stage3_warpsize2x2x1"  # for two
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
    assert found.why
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
    (found,) = (r for r in run.results if r.variant == label and r.case.problem.dims["c"] == 301)
    assert found.tiles == 250
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
    ("tile", "precision", "more", "most"),
    [
        ((128, 256, 64), "fp16", {}, 1),  # 256 threads of 128 sums and more: half the registers
        ((128, 128, 64), "fp16", {"kernels": (DEEP,)}, 1),  # 196 KB of an SM's 228
        ((128, 128, 64), "fp16", {"kernels": (FLAT,)}, 2),  # 98 KB
        ((128, 128, 64), "fp16", {"variant": "tma/128x128x64/s3/w4/g8"}, 2),
        ((128, 128, 32), "fp64", {}, 1),  # a sum takes two registers
        ((64, 64, 64), "fp16", {"kernels": ("cutlass_s16816gemm_f16_64x64_64x4_tn",)}, 3),
    ],
)
def test_how_many_tiles_an_sm_may_hold(
    tile: tuple[int, int, int], precision: str, more: dict[str, Any], most: int
) -> None:
    found = took(gemm(4096, precision), 1.0, tile=tile, **more)
    assert most_per_sm(found, Run(("x",), "", H200, {})) == most


@pytest.mark.parametrize(
    ("shape", "precision", "layout", "off"),
    [
        ((64, 64, 64), "fp16", "nt", None),
        ((63, 64, 64), "fp16", "nt", None),  # M is no row length when A and C are row-major
        ((64, 63, 64), "fp16", "nt", ("N=63", 126)),
        ((64, 64, 63), "fp16", "nt", ("K=63", 126)),
        ((63, 64, 64), "fp16", "tt", ("M=63", 126)),
        ((64, 64, 63), "fp16", "tn", None),
        ((64, 4, 64), "fp32", "nn", None),
        ((64, 64, 1000), "fp8-e4m3", "nt", ("K=1000", 1000)),
    ],
)
def test_which_rows_are_off(
    shape: tuple[int, int, int], precision: str, layout: str, off: tuple[str, int] | None
) -> None:
    assert Gemm(*shape, layout).misaligned(PRECISIONS[precision]) == off


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


# ---------------------------------------------------------------- efficiencies


def test_efficiencies_are_of_the_datasheet_the_clock_and_what_was_measured() -> None:
    held = at_rate(8192, 600e12, clock=1500.0)
    found = annotated(held)
    assert found.efficiency_pct == pytest.approx({
        "datasheet": 100 * 600 / 989.4, "at_clock": 100 * 600e12 / (4096 * 132 * 1.5e9),
        "measured": 100 * 600 / 700,
    })  # fmt: skip
    assert found.ceiling_pct == found.efficiency_pct["datasheet"]
    # Where an instruction was measured it is the roof, at the clock of the case.
    found = annotated(held, ceilings=(*CEILINGS, INSTRUCTION))
    assert found.efficiency_pct["measured"] == pytest.approx(100 * 600e12 / (4000 * 132 * 1.5e9))
    unclocked = at_rate(8192, 530e12, clock=None)
    found = annotated(unclocked, ceilings=(*CEILINGS, INSTRUCTION))
    assert found.efficiency_pct["measured"] == pytest.approx(50)
    measured = [c for c in CEILINGS if c.source == "measured"]
    unknown = annotated(held, device=H200 | {"capability": "12.9"}, ceilings=measured)
    assert unknown.efficiency_pct == pytest.approx({"measured": 100 * 600 / 700})
    assert unknown.ceiling_pct == pytest.approx(100 * 600 / 700)


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
    assert result.measurement
    timed = replace(result.measurement, processes=processes)
    warnings = annotated(replace(result, measurement=timed)).warnings
    assert all(w.symptom and w.cause and w.remedy for w in warnings)
    text = " ".join(f"{w.symptom} {w.cause} {w.remedy}" for w in warnings)
    assert bool(text) == bool(said), text
    assert [words for words in said if words not in text] == [], text
    assert unsaid is None or unsaid not in text
