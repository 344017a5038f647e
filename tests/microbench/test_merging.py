"""Results of several processes as one: order, counts, means, and ratios over processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kernels.case import Case
from microbench.results.merging import merged, ratio_of_processes
from microbench.results.types import TURNED_WRONG, Measurement, ProcessTime, Ratio, Result

FP32 = Case("gemm", dict.fromkeys("mnk", 512), "fp32", "cublas")
FP16 = replace(FP32, precision_name="fp16")
TRITON = replace(FP16, backend="triton")


def result(case: Case, *blocks: Sequence[float], **more: Any) -> Result:
    """What one process measured: blocks of seconds."""
    times = tuple(t for block in blocks for t in block)
    measurement = Measurement(
        times, tuple(map(len, blocks)), sorted(times)[len(times) // 2], None,
        "events", "cold", "sustained", **more,
    )  # fmt: skip
    return Result(case, "ok", measurement=measurement, flops=7, speedup={"old": Ratio(9.0, None)})


def measurement_of(found: Result) -> Measurement:
    assert found.measurement is not None
    return found.measurement


def test_blocks_stand_one_after_another_and_each_process_is_counted() -> None:
    before = [result(FP16, [1.0, 1.1, 0.9], [1.0])]
    (twice,) = merged(before, [result(FP16, [4.0], [4.0], [4.0, 4.4])], 1)
    (found,) = merged([twice], [result(FP16, [2.0])], 4)
    measured = measurement_of(found)
    assert measured.times_s == (1.0, 1.1, 0.9, 1.0, 4.0, 4.0, 4.0, 4.4, 2.0)
    assert measured.blocks == (3, 1, 1, 1, 2, 1)
    assert measured.processes == (
        ProcessTime(0, 2, 1.0), ProcessTime(1, 3, 4.0), ProcessTime(4, 1, 2.0),
    )  # fmt: skip
    assert measured.by_process == {
        0: [(1.0, 1.1, 0.9), (1.0,)], 1: [(4.0,), (4.0,), (4.0, 4.4)], 4: [(2.0,)],
    }  # fmt: skip
    assert measured.median_s == pytest.approx(2.0)  # the cube root of 1 x 4 x 2
    assert measured.ci95_s is not None
    assert measured.ci95_s[0] < 1 < 4 < measured.ci95_s[1]
    assert (found.flops, found.status) == (7, "ok")


def test_the_state_of_the_device_is_a_mean_over_processes() -> None:
    found = [result(FP16, [1.0], power_w=100.0, sm_clock_mhz=900.0, throttle=("power cap",))]
    found = merged(found, [result(FP16, [1.0], power_w=200.0, sm_clock_mhz=1200.0)], 1)
    last = result(FP16, [1.0], power_w=600.0, energy_j=3.0, throttle=("power cap", "thermal"))
    measured = measurement_of(*merged(found, [last], 2))
    assert measured.power_w == pytest.approx(300.0)
    assert measured.sm_clock_mhz == pytest.approx(1050.0)  # of those that know it
    assert measured.energy_j == 3.0
    assert measured.throttle == ("power cap", "thermal")
    assert [p.sm_clock_mhz for p in measured.processes] == [900.0, 1200.0, None]


def test_ratios_are_means_over_processes_of_what_took_the_same_turns() -> None:
    before = [result(FP32, [8.0], [8.0]), result(FP16, [4.0], [4.0]), result(TRITON, [2.0], [2.0])]
    more = [result(FP32, [32.0], [32.0]), result(FP16, [4.0], [4.0]), result(TRITON, [4.0], [4.0])]
    fp32, fp16, triton = merged(before, more, 1)
    assert fp16.speedup["fp32"].ratio == pytest.approx(4.0)  # of 2 and 8
    assert triton.speedup["fp32"].ratio == pytest.approx((4 * 8) ** 0.5)
    assert fp16.vs_backend["triton"].ratio == pytest.approx(0.5**0.5)  # of 1/2 and 1
    assert triton.vs_backend["cublas"].ratio == pytest.approx(2**0.5)
    assert fp32.speedup["fp16"].ratio == pytest.approx(0.25)
    assert set(triton.vs_backend) == {"cublas"}  # and none over itself
    assert "fp16" not in triton.speedup  # the same precision
    assert set(fp32.speedup) == {"old", "fp16"}  # a ratio over Triton's kernel is none
    assert fp16.speedup["fp32"].ci95 is not None
    assert fp16.speedup["old"] == Ratio(9.0, None)


def test_a_case_that_fails_in_one_process_keeps_what_it_had() -> None:
    before = [result(FP32, [8.0], [8.0]), result(FP16, [4.0], [4.0])]
    failed = Result(FP16, "failed", reason="hung")
    fp32, fp16 = merged(before, [result(FP32, [8.0], [8.0]), failed], 1)
    assert fp16 == before[1]
    assert len(measurement_of(fp32).processes) == 2
    assert set(fp32.speedup) == {"old"}  # one process has both
    assert merged(before, [], 1) == before
    skipped = Result(TRITON, "skipped", reason="no hardware")
    assert merged([skipped], [result(TRITON, [1.0])], 1) == [skipped]
    fp32, fp16 = merged([fp32, fp16], [result(FP32, [4.0], [4.0]), result(FP16, [1.0], [1.0])], 2)
    assert [p.number for p in measurement_of(fp16).processes] == [0, 2]
    assert fp16.speedup["fp32"].ratio == pytest.approx((2 * 4) ** 0.5)


def test_a_process_in_which_one_missed_a_turn_gives_no_ratio() -> None:
    before = [result(FP32, [8.0], [8.0]), result(FP16, [4.0], [4.0])]
    found = merged(before, [result(FP32, [8.0]), result(FP16, [1.0], [1.0])], 1)
    assert set(found[1].speedup) == {"old"}
    found = merged(found, [result(FP32, [6.0], [6.0]), result(FP16, [1.0], [1.0])], 2)
    assert found[1].speedup["fp32"].ratio == pytest.approx((2 * 6) ** 0.5)


def test_one_that_missed_a_turn_leaves_the_others_their_ratio() -> None:
    def arms(*fp32: float) -> list[Result]:
        blocks = [[seconds] for seconds in fp32]
        return [result(FP32, *blocks), result(FP16, [4.0], [4.0]), result(TRITON, [2.0], [2.0])]

    fp32, fp16, triton = merged(arms(8.0, 8.0), arms(8.0), 1)
    assert triton.vs_backend["cublas"].ratio == pytest.approx(2.0)
    assert set(triton.speedup) == set(fp16.speedup) == set(fp32.speedup) == {"old"}


def test_a_ratio_of_one_process_is_over_its_rounds() -> None:
    def both(*processes: list[float]) -> Measurement:
        (found,) = before = [result(FP16, *([t] for t in processes[0]))]
        for number, times in enumerate(processes[1:], 1):
            (found,) = before = merged(before, [result(FP16, *([t] for t in times))], number)
        return measurement_of(found)

    once = ratio_of_processes(both([8.0, 2.0]), both([1.0, 1.0]))
    assert once is not None
    assert once.ratio == pytest.approx(4.0)  # of 8 and 2
    assert once.ci95 is not None
    assert once.ci95[0] < 1 < 16 < once.ci95[1]
    thrice = ratio_of_processes(both([8.0], [2.0], [4.0]), both([1.0], [1.0], [1.0]))
    assert thrice is not None
    assert thrice.ratio == pytest.approx(4.0)
    assert thrice.ci95 is not None
    assert ratio_of_processes(both([1.0, 1.0]), both([1.0])) is None


def test_what_turns_wrong_loses_its_times_and_the_others_their_ratios_over_it() -> None:
    arms = [result(FP32, [8.0], [8.0]), result(FP16, [4.0], [4.0]), result(TRITON, [2.0], [2.0])]
    before = merged(arms, arms, 1)
    assert "fp16" in before[0].speedup
    wrong = Result(FP16, "failed", reason=f"{TURNED_WRONG}: error 0.5", rel_error=0.5)
    fp32, fp16, triton = merged(before, [wrong], 2)
    assert (fp16.status, fp16.reason, fp16.measurement) == ("failed", wrong.reason, None)
    assert (fp16.rel_error, fp16.speedup, fp16.vs_backend) == (0.5, {}, {})
    assert set(fp32.speedup) == {"old"}
    assert set(triton.speedup) == {"old", "fp32"}
    assert triton.vs_backend == {}
    assert len(measurement_of(triton).processes) == 2
