"""What does not fit the budget is not begun, and says how long it would have taken."""

from __future__ import annotations

import re

import pytest

from kernels.case import Case, Target
from microbench.estimate import LAUNCHES_NEEDED, Estimator, TooLong

CPU = Target("cpu", "a CPU", None, 2)


def case(size: int, precision: str = "fp16") -> Case:
    return Case("gemm", {"m": size, "n": size, "k": size}, precision, "cpu")


def taught(size: int, seconds: float) -> Estimator:
    estimator = Estimator()
    estimator.learn(case(size), 2 * size**3, seconds)
    return estimator


def refusal(estimator: Estimator, size: int, budget_s: float, spoken_for_s: float = 0.0) -> str:
    with pytest.raises(TooLong) as caught:
        estimator.admit(case(size), CPU, budget_s, spoken_for_s)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_time_grows_with_the_work_from_the_largest_case_seen() -> None:
    assert Estimator().expected_s(case(512)) == 0.0
    estimator = taught(256, 1.0)
    assert estimator.expected_s(case(512, "bf16")) == 0.0
    assert estimator.expected_s(case(512)) == pytest.approx(8.0)
    assert estimator.expected_s(case(128)) == pytest.approx(1 / 8)
    estimator.learn(case(64), 2 * 64**3, 1.0)
    assert estimator.expected_s(case(512)) == pytest.approx(8.0)
    estimator.learn(case(1024), 2 * 1024**3, 80.0)
    assert estimator.expected_s(case(512)) == pytest.approx(10.0)


def test_what_fits_is_admitted() -> None:
    taught(256, 0.1).admit(case(512), CPU, LAUNCHES_NEEDED * 0.8 + 0.01, 0.0)


def test_what_does_not_fit_is_refused_with_the_estimate_and_a_remedy() -> None:
    said = refusal(taught(1024, 7.0), 2048, 10.0)
    assert "56.0 s" in said
    assert "10.0 s" in said
    assert "--budget" in said


def test_what_others_take_is_not_there_to_be_had() -> None:
    estimator = taught(256, 0.1)
    estimator.admit(case(256), CPU, 1.0, 0.0)
    assert "left" in refusal(estimator, 256, 1.0, spoken_for_s=0.15)


def test_times_are_in_units_a_person_reads() -> None:
    assert re.search(r"\d+ ms a launch", refusal(taught(256, 0.05), 256, 0.1))
    assert re.search(r"\d+ min a launch", refusal(taught(256, 1.0), 4096, 10.0))


def test_a_kind_never_seen_is_probed_at_a_small_size_for_real() -> None:
    estimator = Estimator()
    estimator.admit(case(256, "fp32"), CPU, 60.0, 0.0)
    assert 0 < estimator.expected_s(case(256, "fp32")) < 60.0
    with pytest.raises(TooLong, match="estimated"):
        estimator.admit(case(10**6, "fp32"), CPU, 5.0, 0.0)


def test_an_enormous_case_is_refused_without_its_matrices_being_made() -> None:
    with pytest.raises(TooLong):
        Estimator().admit(case(10**6, "fp32"), CPU, 1.0, 0.0)  # 12 TB


def test_a_short_launch_is_not_scaled_to_a_large_case() -> None:
    """Overhead does not grow with the work: the probe grows before a case is refused."""
    estimator = Estimator()
    estimator.learn(case(16, "fp32"), 2 * 16**3, 0.001)  # 4 min for 1,024, were it all work
    estimator.admit(case(1024, "fp32"), CPU, 60.0, 0.0)
    assert estimator.expected_s(case(1024, "fp32")) < 60.0


def test_a_small_case_is_not_refused_for_what_a_smaller_one_waited() -> None:
    """256 where 64 took 20 ms on a busy CPU: as work that would be 1.3 s, and it takes a few ms."""
    estimator = taught(64, 0.02)
    estimator.learn(case(64, "fp32"), 2 * 64**3, 0.02)
    estimator.admit(case(256, "fp32"), CPU, 2.0, 0.0)
    assert estimator.expected_s(case(256, "fp32")) < 2.0 / LAUNCHES_NEEDED
