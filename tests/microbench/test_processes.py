"""Variation between processes: known values, simulated cases, and intervals that hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.case import Case
from kernels.gemm import Gemm
from microbench.results.merging import merged, ratio_of_processes
from microbench.results.runfile import read_run
from microbench.results.types import TURNED_WRONG, Measurement, ProcessTime, Ratio, Result
from microbench.timing.stats import (
    DEFAULT_PRIOR,
    FEWEST_CASES,
    PRIORS,
    Variance,
    VariancePrior,
    digamma,
    mean_interval,
    over_processes,
    pooled,
    prior_of,
    ratio_over,
    trigamma,
    variance_between,
)

H200 = Path(__file__).parents[2] / "results" / "nvidia-h200"
EULER = 0.57721566490153
COVERED = (0.93, 0.97)  # of 95 % intervals, that hold
TRIES = 2000


@pytest.mark.parametrize(
    ("x", "of_digamma", "of_trigamma"),
    [(0.5, -EULER - 2 * math.log(2), math.pi**2 / 2), (1.0, -EULER, math.pi**2 / 6),
     (1.5, 2 - EULER - 2 * math.log(2), math.pi**2 / 2 - 4),
     (10.0, 2.25175258906672, 0.10516633568168575), (25.0, None, 0.0408106633),
     (1000.0, None, 1.0005001666666e-3), (1e5, None, 1.00000500002e-5)],
)  # fmt: skip
def test_digamma_and_trigamma_have_their_known_values(
    x: float, of_digamma: float | None, of_trigamma: float
) -> None:
    assert trigamma(x) == pytest.approx(of_trigamma, rel=2e-6)
    if of_digamma is not None:
        assert digamma(x) == pytest.approx(of_digamma, rel=2e-6, abs=1e-6)


# ---------------------------------------------------------------- what is usual


def drawn(rng: np.random.Generator, usual: VariancePrior, cases: int) -> np.ndarray:
    """True variances of cases as `usual` has them: scaled inverse chi-square."""
    return usual.degrees * usual.value / rng.chisquare(usual.degrees, cases)


def sampled(rng: np.random.Generator, variances: np.ndarray, degrees: int) -> list[Variance]:
    return [Variance(v * rng.chisquare(degrees) / degrees, degrees) for v in variances]


@pytest.mark.parametrize(
    ("planted", "degrees"), [(VariancePrior(0.01**2, 4.0), 2), (VariancePrior(0.003**2, 12.0), 8)]
)
def test_what_is_usual_is_found_in_simulated_cases(planted: VariancePrior, degrees: int) -> None:
    rng = np.random.default_rng(7 + degrees)
    found = VariancePrior.fit(sampled(rng, drawn(rng, planted, 8000), degrees))
    assert math.sqrt(found.value) == pytest.approx(math.sqrt(planted.value), rel=0.03)
    assert found.degrees == pytest.approx(planted.degrees, rel=0.25)


def test_cases_that_vary_alike_say_so_and_an_own_variance_counts_by_its_freedom() -> None:
    rng = np.random.default_rng(1)
    found = VariancePrior.fit(sampled(rng, np.full(2000, 0.02**2), 4))
    assert math.sqrt(found.value) == pytest.approx(0.02, rel=0.03)
    assert found.degrees > 50
    few = [Variance(1e-4, 4)] * (FEWEST_CASES - 1)
    for more in ([], [Variance(0.0, 4)]):  # a variance of 0 is not known
        assert VariancePrior.fit([*few, *more]) == DEFAULT_PRIOR
    assert VariancePrior.fit([*few, Variance(1e-4, 4)]) != DEFAULT_PRIOR
    # And is at least what rounding hides.
    both = VariancePrior(1e-4, 6.0).posterior(Variance(4e-4, 2))
    assert both == (pytest.approx(1.75e-4), 8.0)
    assert pooled([Variance(1e-4, 1), Variance(4e-4, 3)]) == (pytest.approx(3.25e-4), 4)
    assert variance_between([1e-3, 1e-3 * math.e**2]) == (pytest.approx(2.0), 1)
    assert variance_between([1e-5] * 3) == (pytest.approx(0.0, abs=1e-20), 2)
    hidden = variance_between([1e-5] * 3, tick_s=1e-6)
    assert hidden.value == pytest.approx(0.1**2 / 12)


# ---------------------------------------------------------------- intervals


def test_means_and_ratios_over_processes_are_geometric_and_one_has_no_interval() -> None:
    assert mean_interval([2e-3]) == (pytest.approx(2e-3), None)
    centre, interval = mean_interval([1e-3, 2e-3, 4e-3])
    assert centre == pytest.approx(2e-3)
    half = 4.303 * math.log(2) / math.sqrt(3)
    assert [math.log(end / 2e-3) for end in interval] == pytest.approx([-half, half], rel=1e-3)
    ratio, (low, high) = ratio_over([2e-3, 8e-3], [1e-3, 1e-3, 1e-3], Variance(0.01, 1e6))
    assert ratio == pytest.approx(4.0)
    half = 1.96 * 0.1 * math.sqrt(1 / 2 + 1 / 3)
    assert (math.log(low / 4), math.log(high / 4)) == pytest.approx((-half, half), rel=1e-3)


@pytest.mark.parametrize("processes", [2, 8])
def test_a_means_interval_holds_the_truth_as_often_as_it_says(processes: int) -> None:
    rng = np.random.default_rng(processes)
    rows = np.exp(0.02 * rng.standard_normal((TRIES, processes)))
    check_coverage([mean_interval(list(row))[1] for row in rows], 1.0)


@pytest.mark.parametrize(
    ("usual", "processes"),
    [
        (VariancePrior(0.01**2, 3.0), 2),
        (VariancePrior(0.01**2, 3.0), 5),
        (VariancePrior(0.01**2, 20.0), 3),
    ],
)
def test_a_ratios_interval_holds_the_truth_as_often_as_it_says(
    usual: VariancePrior, processes: int
) -> None:
    """With the variance of each case combined with what is usual, learnt from the same cases."""
    rng = np.random.default_rng(100 * processes + int(usual.degrees))
    true = 1.03
    spread = np.sqrt(drawn(rng, usual, TRIES))[:, None, None]
    runs = np.exp(spread * rng.standard_normal((TRIES, 2, processes)))
    runs[:, 0] *= true
    own = [pooled([variance_between(list(run)) for run in case]) for case in runs]
    learnt = VariancePrior.fit(own)
    found = [
        ratio_over(list(a), list(b), learnt.posterior(variance))[1]
        for (a, b), variance in zip(runs, own, strict=True)
    ]
    check_coverage(found, true)


@pytest.mark.parametrize("prior", [VariancePrior(0.01**2, 3.0), VariancePrior(0.02**2, 20.0)])
@pytest.mark.parametrize("own", [0.0, 0.01])
def test_one_processs_interval_holds_what_another_process_has_as_often_as_it_says(
    prior: VariancePrior, own: float
) -> None:
    """Each process has a time of its own; the samples of one say it to +-1.96 `own`."""
    rng = np.random.default_rng(int(prior.degrees))
    spread = np.sqrt(drawn(rng, prior, TRIES))
    process = np.exp(spread * rng.standard_normal(TRIES))
    ends = math.exp(-1.96 * own), math.exp(1.96 * own)
    centres = map(float, process * np.exp(own * rng.standard_normal(TRIES)))
    found = [over_processes(c, (c * ends[0], c * ends[1]), prior) for c in centres]
    check_coverage(found, 1.0)


def check_coverage(found: Sequence[tuple[float, float] | None], true: float) -> None:
    """Neither too few nor too many of the intervals hold, and they miss on both sides alike."""
    intervals = [interval for interval in found if interval]
    assert len(intervals) == TRIES
    low, high = sum(i[1] < true for i in intervals), sum(i[0] > true for i in intervals)
    assert COVERED[0] <= 1 - (low + high) / TRIES <= COVERED[1]
    assert low == pytest.approx(high, abs=4 * math.sqrt(low + high))


@pytest.mark.parametrize("spread", [1.5, 2.0, 4.0])
@pytest.mark.parametrize("degrees", [2, 6])
def test_the_degrees_explain_the_spread_exactly(spread: float, degrees: int) -> None:
    logs = spread * np.resize([-1.0, 1.0], 10)
    found = VariancePrior.fit([Variance(math.exp(log), degrees) for log in logs])
    beyond = float(np.var(logs, ddof=1)) - trigamma(degrees / 2)
    assert trigamma(found.degrees / 2) == pytest.approx(beyond, rel=1e-4)
    own, usual = (digamma(d / 2) - math.log(d / 2) for d in (degrees, found.degrees))
    assert math.log(found.value) == pytest.approx(usual - own, abs=1e-4)


def published(op: str) -> list[tuple[float, Variance]]:
    """(seconds, variance between processes) of each case of a published run."""
    run = read_run(H200 / f"processes-{op}.json")
    timed = [result.measurement for result in run.results if result.measurement]
    return [
        (each.median_s, variance_between([p.median_s for p in each.processes],
                                         each.timer_resolution_s))
        for each in timed if len(each.processes) > 1
    ]  # fmt: skip


def test_priors_are_those_of_the_published_runs() -> None:
    found = {op: published(op) for op in PRIORS}
    check_prior(DEFAULT_PRIOR, [v for cases in found.values() for _, v in cases])
    for op, cases in found.items():
        for prior in PRIORS[op].values():
            check_prior(prior, [v for seconds, v in cases if prior_of(op, seconds) == prior])
    assert prior_of("train", 1.0) == DEFAULT_PRIOR


def check_prior(prior: VariancePrior, variances: list[Variance]) -> None:
    found = VariancePrior.fit(variances)
    assert math.sqrt(prior.value) == pytest.approx(math.sqrt(found.value), rel=0.1)
    assert prior.degrees == pytest.approx(found.degrees, rel=0.1)


# ---------------------------------------------------------------- merging


FP32 = Case(Gemm(512, 512, 512), "fp32", "cublas")
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
    assert measured.ci95_s[0] < 1 < 4 < measured.ci95_s[1]
    assert (found.flops, found.status) == (7, "ok")


def test_states_and_ratios_of_the_same_turns_are_means_over_processes() -> None:
    found = [result(FP16, [1.0], power_w=100.0, sm_clock_mhz=900.0, throttle=("power cap",))]
    found = merged(found, [result(FP16, [1.0], power_w=200.0, sm_clock_mhz=1200.0)], 1)
    last = result(FP16, [1.0], power_w=600.0, energy_j=3.0, throttle=("power cap", "thermal"))
    measured = measurement_of(*merged(found, [last], 2))
    assert measured.power_w == pytest.approx(300.0)
    assert measured.sm_clock_mhz == pytest.approx(1050.0)  # of those that know it
    assert measured.energy_j == 3.0
    assert measured.throttle == ("power cap", "thermal")
    assert [p.sm_clock_mhz for p in measured.processes] == [900.0, 1200.0, None]
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


def test_a_case_that_fails_in_one_process_keeps_the_rest_and_one_that_missed_a_turn_too() -> None:
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

    def arms(fp32: Sequence[float], fp16: float = 4.0) -> list[Result]:
        blocks = [[seconds] for seconds in fp32]
        return [result(FP32, *blocks), result(FP16, [fp16], [fp16]), result(TRITON, [2.0], [2.0])]

    found = merged(arms([8.0, 8.0]), arms([8.0], 1.0), 1)
    assert found[2].vs_backend["cublas"].ratio == pytest.approx((2 * 0.5) ** 0.5)
    assert all(set(one.speedup) == {"old"} for one in found)
    _, fp16, _ = merged(found, arms([6.0, 6.0], 1.0), 2)
    assert fp16.speedup["fp32"].ratio == pytest.approx((2 * 6) ** 0.5)


def test_a_ratio_of_one_process_is_over_its_rounds_and_what_turns_wrong_loses_its_times() -> None:
    def both(*processes: list[float]) -> Measurement:
        (found,) = before = [result(FP16, *([t] for t in processes[0]))]
        for number, times in enumerate(processes[1:], 1):
            (found,) = before = merged(before, [result(FP16, *([t] for t in times))], number)
        return measurement_of(found)

    once = ratio_of_processes(both([8.0, 2.0]), both([1.0, 1.0]))
    assert once.ratio == pytest.approx(4.0)  # of 8 and 2
    assert once.ci95[0] < 1 < 16 < once.ci95[1]
    thrice = ratio_of_processes(both([8.0], [2.0], [4.0]), both([1.0], [1.0], [1.0]))
    assert thrice.ratio == pytest.approx(4.0)
    assert thrice.ci95 is not None
    assert ratio_of_processes(both([1.0, 1.0]), both([1.0])) is None
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
