"""What bounds a case: planted causes, and the number that each must come with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernels import OPS
from kernels.case import Case
from microbench.results.types import Ceiling, Measurement, ProcessTime, Result, Run
from microbench.roofline.explain import annotate
from microbench.roofline.waves import most_per_sm, waves

PEAK = {"fp32": 66.9e12, "tf32": 494.7e12, "fp16": 989.4e12}
SIMT = {"fp32": 66.9e12, "fp16": 133.8e12}
LARGE = {"fp32": 50e12, "tf32": 360e12, "fp16": 700e12}
FLOOR_S = 5e-6
AT_1980 = 4096 * 132 * 1.98e9  # FLOP/s in fp16 that the SMs can do at the highest clock
BYTES_PER_S = 4e12
H200: dict[str, Any] = {
    "name": "NVIDIA H200", "kind": "cuda", "capability": "9.0", "sm_count": 132,
    "sm_clock_max_mhz": 1980.0, "power_limit_w": 700.0,
}  # fmt: skip
CEILINGS = (
    *(Ceiling("dense peak", "datasheet", p, flop_per_s=v) for p, v in PEAK.items()),
    *(Ceiling("without Tensor Cores", "datasheet", p, flop_per_s=v) for p, v in SIMT.items()),
    *(Ceiling("large GEMM", "measured", p, flop_per_s=v) for p, v in LARGE.items()),
    *(Ceiling("latency floor", "measured", p, seconds=FLOOR_S) for p in PEAK),
    Ceiling("memory", "measured", byte_per_s=BYTES_PER_S),
)


def timed(
    shape: int | tuple[int, int, int], seconds: float, precision: str = "fp16", *,
    clock: float | None = 1980.0, throttle: tuple[str, ...] = (), half_pct: float | None = 0.3,
    regime: str = "sustained", tile: tuple[int, int, int] | None = None,
    kernel: str = "", variant: str | None = None, **more: str,
) -> Result:  # fmt: skip
    m, n, k = (shape, shape, shape) if isinstance(shape, int) else shape
    case = Case("gemm", {"m": m, "n": n, "k": k}, precision, **{"backend": "cublas", **more})  # type: ignore[arg-type]
    half = seconds * (half_pct or 0) / 100
    element, output = case.precision.bytes_per_element, case.precision.output_bytes
    return Result(
        case,
        "ok",
        measurement=Measurement(
            (seconds,) * 3, (1, 1, 1), seconds,
            None if half_pct is None else (seconds - half, seconds + half),
            "events", "cold", regime, sm_clock_mhz=clock, throttle=throttle,
        ),
        flops=2 * m * n * k,
        min_bytes=element * (m * k + k * n) + output * m * n,
        tile=tile,
        kernels=(kernel,) if kernel else (),
        variant=variant,
    )  # fmt: skip


def at_rate(shape: int | tuple[int, int, int], flop_per_s: float, **more: Any) -> Result:
    m, n, k = (shape, shape, shape) if isinstance(shape, int) else shape
    return timed(shape, 2 * m * n * k / flop_per_s, **more)


def annotated(*results: Result, device: dict[str, Any] = H200, ceilings: Any = CEILINGS) -> Result:
    run = Run(("x",), "now", device, {}, ceilings=tuple(ceilings), results=results)
    return annotate(run).results[0]


def check(result: Result, bound: str, *numbers: str) -> None:
    assert result.bound == bound, result.why
    assert result.why
    assert "\n" not in result.why
    for number in numbers:
        assert number in result.why, result.why


# ---------------------------------------------------------------- bounds


TILE = (128, 128, 64)
DEEP = "nvjet_sm90_hsh_128x128_64x6_2x1_v_bz_TNT"  # six stages: shared memory for one
FLAT = "sm90_xmma_gemm_f16f16_tilesize128x128x64_stage3_warpsize2x2x1"  # for two
ODD = at_rate((4096, 4096, 4095), 455e12)  # 43 % of what the SMs can do is no low rate
CAPPED = {"clock": 1400.0, "throttle": ("power cap",)}


@pytest.mark.parametrize(
    ("results", "bound", "numbers"),
    [
        ([timed(256, 6e-6)], "launch", ["5.0 us", "6.0 us"]),
        # A time under the floor never claims more than itself.
        ([timed(32, 4e-6)], "launch", ["4.0 us of 4.0 us"]),
        # Two kernels with nothing to do take two floors.
        ([timed(64, 11e-6, "tf32")], "launch", ["5.0 us of 11.0 us", "0 %"]),
        ([timed((1, 16384, 16384), 150e-6)], "memory",
         ["1 FLOP/byte", "536.9 MB", "134.2 us", "150.0 us"]),
        ([at_rate(4095, 280e12), at_rate(4096, 700e12)], "alignment",
         ["8190 bytes", "16", "26 %", "4096", "2.5 times"]),
        ([at_rate(4095, 280e12)], "alignment", ["8190 bytes", "26 %"]),
        # A padded twin decides whatever the rate: it gains 1.4 times, so the strides cost that.
        ([ODD, at_rate(4096, 650e12)], "alignment", ["8190 bytes", "1.4 times faster"]),
        ([at_rate(1536, 400e12, tile=TILE, kernel=DEEP)], "waves",
         ["144 tiles of 128x128", "132 SMs", "2 waves", "55 %", "37 %"]),
        ([at_rate((512, 512, 16384), 100e12, tile=TILE)], "waves",
         ["16 tiles", "132 SMs", "1 wave", "12 %"]),
        ([at_rate(8192, 0.97 * AT_1980)], "compute", ["97 %"]),
        ([at_rate(8192, 690e12, **CAPPED)], "power", ["700 W", "1400", "1980"]),
        ([at_rate(2048, 0.5 * AT_1980)], "mixed", ["50 %"]),
        # The clock is held, but the SMs do no more than two thirds of what it allows.
        ([at_rate(2048, 0.67 * AT_1980 * 1659 / 1980, clock=1659.0, throttle=("power cap",))],
         "mixed", ["67 %", "1659", "1980"]),
        # The fastest of the run in fp32, at 76 % of what the SMs can do at this clock.
        ([at_rate(8192, 50e12, precision="fp32", clock=1945.0)], "mixed", ["76 %"]),
    ],
)  # fmt: skip
def test_a_planted_cause_is_named_with_its_numbers(
    results: list[Result], bound: str, numbers: list[str]
) -> None:
    check(annotated(*results), bound, *numbers)


@pytest.mark.parametrize(
    ("results", "bound"),
    [
        ([timed(1024, 11e-6)], "launch"),  # short, but it has work to do
        ([timed(64, 14e-6)], "launch"),
        ([at_rate(1024, 600e12)], "memory"),  # its arithmetic takes longer
        ([ODD, at_rate(4096, 480e12)], "alignment"),
        ([ODD], "alignment"),
        ([at_rate(4095, 690e12)], "alignment"),  # it costs nothing
        ([at_rate(4096, 280e12)], "alignment"),
        (
            [at_rate(8192, 0.95 * AT_1980, clock=1970.0, throttle=("power cap",))],
            "power",
        ),  # a full clock
        ([at_rate(8192, 690e12, clock=1400.0)], "power"),  # a low clock without a reason
        ([at_rate(1536, 400e12, tile=TILE, kernel=FLAT)], "waves"),  # two tiles may share an SM
        ([at_rate(1536, 400e12, tile=TILE)], "waves"),
    ],
)
def test_what_the_numbers_do_not_bear_out_is_not_blamed(results: list[Result], bound: str) -> None:
    assert annotated(*results).bound != bound


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
    m, n, k = shape
    what = Case("gemm", {"m": m, "n": n, "k": k}, precision, "cublas", layout)
    assert OPS["gemm"].misaligned(what) == off


def test_partial_tiles_count_whole() -> None:
    shape = waves(timed((129, 1, 64), 1.0, tile=(128, 128, 64)), Run(("x",), "", H200, {}))
    assert shape is not None
    assert (shape.tiles, shape.waves) == (2, 1)


@pytest.mark.parametrize(
    ("tile", "precision", "more", "most"),
    [
        ((128, 256, 64), "fp16", {}, 1),  # 256 threads of 128 sums and more: half the registers
        ((128, 128, 64), "fp16", {"kernel": DEEP}, 1),  # 196 KB of an SM's 228
        ((128, 128, 64), "fp16", {"kernel": FLAT}, 2),  # 98 KB
        ((128, 128, 64), "fp16", {"variant": "tma/128x128x64/s3/w4/g8"}, 2),
        ((128, 192, 64), "fp16", {"variant": "tma_192/128x192x64/s4/w8/g8/sub2"}, 1),
        ((128, 128, 32), "fp64", {}, 1),  # a sum takes two registers
        ((128, 64, 64), "fp16", {"kernel": "nvjet_sm90_hsh_64x128_64x8_1x2_h_bz"}, 1),
        ((64, 64, 64), "fp16", {"kernel": "cutlass_s16816gemm_f16_64x64_64x4_tn"}, 3),
    ],
)
def test_how_many_tiles_an_sm_may_hold(
    tile: tuple[int, int, int], precision: str, more: dict[str, Any], most: int
) -> None:
    result = timed(4096, 1.0, precision, tile=tile, **more)
    assert most_per_sm(result, Run(("x",), "", H200, {})) == most


def test_heat_is_not_called_power_limit() -> None:
    hot = annotated(at_rate(8192, 690e12, clock=1400.0, throttle=("thermal",)))
    assert hot.why
    assert "thermal" in hot.why
    assert "W " not in hot.why


def test_no_hardware() -> None:
    cpu = {"name": "a CPU", "kind": "cpu", "sm_count": 2}
    ceilings = [
        Ceiling("large GEMM", "measured", "fp32", flop_per_s=150e9),
        Ceiling("large GEMM", "measured", "fp16", flop_per_s=0.3e9),
    ]
    slow = annotated(at_rate(512, 0.3e9, backend="cpu"), device=cpu, ceilings=ceilings)
    check(slow, "no hardware", "0.3 GFLOP/s", "150", "fp16")


def test_a_small_launch_bound_case_does_not_prove_that_hardware_is_missing() -> None:
    """No large product of this precision was measured: a tiny one says nothing of the hardware."""
    without_fp16 = [c for c in CEILINGS if (c.name, c.precision) != ("large GEMM", "fp16")]
    small = annotated(timed(64, 5e-6), ceilings=without_fp16)
    check(small, "launch", "5.0 us")


INSTRUCTIONS = (
    Ceiling("instruction", "measured", "fp16", 1060e12, reference="wgmma, m64n256k16",
            flop_per_clock=4000),
    Ceiling("instruction", "measured", "fp32", 66e12, reference="FFMA, 16 a thread",
            flop_per_clock=250),
)  # fmt: skip


def test_the_roof_is_the_instruction_at_the_clock_of_the_case() -> None:
    held = at_rate(4096, 660e12, clock=1400.0, throttle=("power cap",))
    against_gemm = annotated(held)
    against_instruction = annotated(held, ceilings=(*CEILINGS, *INSTRUCTIONS))
    assert against_gemm.efficiency_pct["measured"] == pytest.approx(100 * 660 / 700)
    wanted = 100 * 660e12 / (4000 * 132 * 1400e6)
    assert against_instruction.efficiency_pct["measured"] == pytest.approx(wanted)
    check(against_instruction, "power", f"{wanted:.0f} % of what wgmma reaches", "1400")


def test_a_gemm_far_below_the_instruction_is_not_called_compute_bound() -> None:
    best_of_the_run = at_rate(4096, 690e12, clock=1980.0)
    for ceilings in (CEILINGS, (*CEILINGS, *INSTRUCTIONS)):
        assert annotated(best_of_the_run, ceilings=ceilings).bound == "mixed"
    own_fp32 = at_rate(4096, 50e12, precision="fp32", clock=1980.0)
    assert annotated(own_fp32).efficiency_pct["measured"] == pytest.approx(100)
    in_fp32 = annotated(own_fp32, ceilings=(*CEILINGS, *INSTRUCTIONS))
    assert in_fp32.efficiency_pct["measured"] == pytest.approx(100 * 50e12 / (250 * 132 * 1.98e9))


def test_without_a_clock_the_instruction_counts_at_its_own() -> None:
    result = annotated(
        at_rate(4096, 530e12, clock=None), ceilings=(*CEILINGS, *INSTRUCTIONS)
    )  # fmt: skip
    assert result.efficiency_pct["measured"] == pytest.approx(50)


def test_what_stays_in_a_warm_l2_is_held_against_the_l2s_bandwidth_at_its_size() -> None:
    levels = [Ceiling("L2 read", "measured", byte_per_s=rate, working_set=size << 20)
              for size, rate in ((8, 8e12), (64, 5e12))]  # fmt: skip
    shape = (4096, 64, 2048)  # 17.6 MB
    cold = timed(shape, 6e-6)
    assert cold.measurement
    warm = replace(cold, measurement=replace(cold.measurement, l2="warm"))
    floors = [c for c in CEILINGS if c.name != "latency floor"]
    check(annotated(cold, ceilings=[*floors, *levels]), "memory", f"{cold.min_bytes / 4e6:.1f} us")
    check(annotated(warm, ceilings=[*floors, *levels]), "memory", f"{cold.min_bytes / 5e6:.1f} us")
    check(annotated(warm, ceilings=[*floors, levels[0]]), "memory",
          f"{cold.min_bytes / 4e6:.1f} us")  # fmt: skip


def test_what_stays_in_an_l2_of_unknown_bandwidth_has_no_share_of_memorys() -> None:
    floors = [c for c in CEILINGS if c.name != "latency floor"]
    device = H200 | {"l2_bytes": 50 << 20}
    cold = timed((4096, 64, 2048), 6e-6)  # 17.6 MB
    assert cold.measurement
    warm = replace(cold, measurement=replace(cold.measurement, l2="warm"))
    check(annotated(cold, ceilings=floors, device=device), "memory")
    held = annotated(warm, ceilings=floors, device=device)
    check(held, "mixed", "L2")
    assert "memory traffic" not in (held.why or "")
    large = timed((16, 16384, 8192), 90e-6)  # 269 MB
    assert large.measurement
    streamed = replace(large, measurement=replace(large.measurement, l2="warm"))
    check(annotated(streamed, ceilings=floors, device=device), "memory")


def test_no_ceilings_no_claims() -> None:
    bare = annotated(at_rate(1024, 350e12), ceilings=())
    assert bare.bound == "mixed"
    assert bare.ceiling_pct is None
    assert bare.tensor_core is None


def test_what_was_not_measured_is_left_alone() -> None:
    skipped = Result(timed(64, 1e-6).case, "skipped", reason="no")
    assert annotated(skipped) == skipped


# ---------------------------------------------------------------- efficiencies


def test_three_efficiencies() -> None:
    found = annotated(at_rate(8192, 600e12, clock=1500.0))
    assert found.efficiency_pct["datasheet"] == pytest.approx(100 * 600 / 989.4)
    assert found.efficiency_pct["at_clock"] == pytest.approx(100 * 600e12 / (4096 * 132 * 1.5e9))
    assert found.efficiency_pct["measured"] == pytest.approx(100 * 600 / 700)
    assert found.ceiling_pct == pytest.approx(100 * 600 / 989.4)


def test_an_unknown_gpu_is_held_against_what_was_measured() -> None:
    measured = [c for c in CEILINGS if c.source == "measured"]
    found = annotated(
        at_rate(8192, 600e12), device=H200 | {"capability": "12.9"}, ceilings=measured
    )
    assert found.ceiling_pct == pytest.approx(100 * 600 / 700)
    assert set(found.efficiency_pct) == {"measured"}


# ---------------------------------------------------------------- Tensor Cores


@pytest.mark.parametrize(
    ("precision", "rate", "proved"),
    [
        ("fp16", 133.9e12, True),
        ("fp16", 133.7e12, None),
        ("fp16", 5e12, None),
        ("tf32", 100e12, True),  # faster than float32 arithmetic without them can be
        ("tf32", 60e12, None),
        ("fp32", 60e12, False),
        ("fp32", 70e12, False),
    ],
)
def test_tensor_cores_are_proved_by_rate(precision: str, rate: float, proved: bool | None) -> None:
    assert annotated(at_rate(2048, rate, precision=precision)).tensor_core is proved


# ---------------------------------------------------------------- warnings


def symptoms(result: Result) -> str:
    assert all(w.symptom and w.cause and w.remedy for w in result.warnings)
    return " ".join(f"{w.symptom} {w.cause} {w.remedy}" for w in result.warnings)


def test_a_good_measurement_has_no_warning() -> None:
    assert annotated(at_rate(4096, 600e12)).warnings == ()


FALLEN = {"clock": 1485.0, "throttle": ("power cap",)}


@pytest.mark.parametrize(
    ("rate", "more", "said"),
    [
        (600e12, FALLEN, ["25 %", "power cap", "--regime burst"]),
        (600e12, {"half_pct": 6.0}, ["6.0 %"]),
        (600e12, {"half_pct": None}, ["no confidence interval"]),
        (1500e12, {}, ["do not use"]),
        (600e12, {"data": "zeros"}, ["--data normal"]),
    ],
)
def test_each_warning_says_what_is_seen_and_what_to_do(
    rate: float, more: dict[str, Any], said: list[str]
) -> None:
    text = symptoms(annotated(at_rate(4096, rate, **more)))
    assert all(words in text for words in said), text


def test_a_wide_interval_of_processes_takes_more_of_them() -> None:
    result = at_rate(4096, 600e12, half_pct=6.0)
    assert "--budget" in symptoms(annotated(result))
    assert result.measurement
    processes = (ProcessTime(0, 1, 2e-4), ProcessTime(1, 2, 2e-4))
    several = replace(result, measurement=replace(result.measurement, processes=processes))
    said = symptoms(annotated(several))
    assert "6.0 %" in said
    assert "--processes" in said
    assert "--budget" not in said


def test_the_remedy_is_not_what_is_in_use_already() -> None:
    said = symptoms(annotated(at_rate(4096, 600e12, **FALLEN, regime="burst")))
    assert "25 %" in said
    assert "--regime burst" not in said


def test_annotating_twice_changes_nothing() -> None:
    once = annotate(Run(("x",), "now", H200, {}, ceilings=CEILINGS, results=(at_rate(4096, 6e14),)))
    assert annotate(once) == once


def test_results_of_one_run_do_not_change_each_other() -> None:
    other = replace(at_rate(512, 30e12), tile=(128, 128, 64))
    assert annotated(at_rate(4096, 600e12), other) == annotated(at_rate(4096, 600e12))
