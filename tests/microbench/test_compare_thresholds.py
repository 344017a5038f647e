"""Where two runs of one case begin to differ, each threshold from both sides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernels.case import Case
from microbench.errors import UserError
from microbench.results import comparison
from microbench.results.comparison import (
    ANOTHER_CARD,
    SAME_CARD,
    compare,
    method_changed,
    parse_threshold,
)
from microbench.results.judging import Learnt, judge, noise_of, ratio_between
from microbench.results.types import Measurement, ProcessTime, Result, Run
from microbench.timing.processes import Usual

ALIKE = Learnt(Usual(1e-12, 1e4), Usual(1e-12, 1e4))  # processes that hardly differ


def timed(seconds: float, processes: int = 1, clock: float | None = None) -> Measurement:
    """Exactly known times, in so many processes."""
    several = tuple(ProcessTime(i, 1, seconds, clock) for i in range(processes))
    return Measurement(
        (seconds,) * 3, (1, 1, 1), seconds, (seconds, seconds), "events", "cold", "sustained",
        sm_clock_mhz=clock, processes=several if processes > 1 else (),
    )  # fmt: skip


def run_of(measured: Measurement | None, status: str = "ok", **more: Any) -> Run:
    case = Case("gemm", {"m": 64, "n": 64, "k": 64}, "fp16", "cublas")
    result = Result(case, status, reason=None if measured else "x", measurement=measured)
    return replace(Run(("x",), "now", {"name": "a GPU"}, {}, results=(result,)), **more)


def verdict(a: Measurement, b: Measurement, threshold_pct: float | None = None) -> str:
    return judge(a, b, noise_of("gemm", a, b, threshold_pct), ALIKE).verdict


@pytest.mark.parametrize(
    ("base_s", "factor", "found"),
    [
        (1e-3, 1.031, "slower"), (1e-3, 1.029, "same"), (1e-3, 1 / 1.031, "faster"),
        (1e-3, 1 / 1.029, "same"),
        # 1.3 us of the shorter time
        (1e-5, 1.131, "slower"), (1e-5, 1.129, "cannot tell"), (1e-5, 1 / 1.151, "faster"),
        (1e-5, 1.029, "same"), (4e-5, 1.0324, "cannot tell"), (4e-5, 1.0326, "slower"),
    ],
)  # fmt: skip
def test_one_process_each(base_s: float, factor: float, found: str) -> None:
    assert verdict(timed(base_s), timed(base_s * factor)) == found


@pytest.mark.parametrize("base_s", [1e-5, 1e-3])
@pytest.mark.parametrize(
    ("factor", "found"),
    [(1.0099, "same"), (1.0101, "slower"), (1 / 1.0101, "faster"), (1 / 1.0099, "same")],
)
def test_several_processes_each(base_s: float, factor: float, found: str) -> None:
    assert verdict(timed(base_s, 3), timed(base_s * factor, 4)) == found
    with_one = verdict(timed(base_s, 3), timed(base_s * factor))
    assert with_one == "same", "one process alone knows no better than 3 %"


@pytest.mark.parametrize(("pct", "found"), [(1.9, "slower"), (2.1, "same")])
@pytest.mark.parametrize("processes", [1, 3])
def test_a_threshold_of_the_users(pct: float, found: str, processes: int) -> None:
    a, b = timed(1e-3, processes), timed(1.02e-3, processes)
    assert verdict(a, b, pct) == found


def test_intervals_of_single_processes_add_like_independent_errors() -> None:
    a, b = timed(1e-3), timed(2e-3)
    a, b = replace(a, ci95_s=(0.97e-3, 1.06e-3)), replace(b, ci95_s=(1.92e-3, 2.08e-3))
    ratio, interval = ratio_between(a, b)
    assert ratio == 0.5
    assert interval == pytest.approx((0.475777, 0.536879), rel=1e-4)


@pytest.mark.parametrize(
    ("a_mhz", "b_mhz", "found"),
    [(1500.0, 1500.0, "slower"), (1800.0, 1500.0, "cannot tell"), (1500.0, 1800.0, "slower"),
     (1530.0, 1500.0, "slower"), (None, 1500.0, "slower"), (1800.0, None, "slower")],
)  # fmt: skip
@pytest.mark.parametrize("processes", [1, 3])
def test_a_slower_kernel_takes_more_cycles_too(
    a_mhz: float | None, b_mhz: float | None, found: str, processes: int
) -> None:
    a, b = timed(1e-3, processes, a_mhz), timed(1.1e-3, processes, b_mhz)
    assert verdict(a, b) == found


def test_a_row_has_the_threshold_that_decided() -> None:
    for base_s, pct, seconds in ((1e-3, 3.0, None), (1e-5, 13.0, 1.3e-6)):
        (row,) = compare(run_of(timed(base_s)), run_of(timed(base_s))).rows
        assert row.threshold_pct == pytest.approx(pct)
        assert row.threshold_s == seconds
        assert row.processes == (1, 1)
        assert row.guessed
    (row,) = compare(run_of(timed(1e-5, 3)), run_of(timed(1e-5, 2))).rows
    assert row.threshold_pct == pytest.approx(1.0)
    assert (row.threshold_s, row.processes, row.guessed) == (None, (3, 2), False)


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [("failed", "failed", "cannot tell"), ("skipped", "skipped", "same"),
     ("ok", "failed", "slower"),
     ("failed", "ok", "faster"), ("ok", "skipped", "cannot tell"), ("skipped", "ok", "cannot tell"),
     ("failed", "skipped", "cannot tell"), ("skipped", "failed", "cannot tell")],
)  # fmt: skip
def test_a_case_without_a_time(a: str, b: str, found: str) -> None:
    runs = [run_of(timed(1e-3) if status == "ok" else None, status) for status in (a, b)]
    comparison = compare(*runs)
    (row,) = comparison.rows
    assert row.verdict == found
    assert (row.a_s, row.b_s) == tuple(1e-3 if status == "ok" else None for status in (a, b))
    assert comparison.count(found) == 1
    assert (row.ratio, row.ci95, row.guessed) == (None, None, False)


@pytest.mark.parametrize(
    ("factor", "differs"), [(1.019, False), (1.021, True), (0.981, False), (0.979, True)]
)
def test_clocks_differ_from_two_per_cent_on(factor: float, differs: bool) -> None:
    a, b = (run_of(timed(1e-3, clock=clock)) for clock in (1000.0 * factor, 1000.0))
    assert len(compare(a, b).differences) == differs


@pytest.mark.parametrize(
    ("text", "pct"), [("1000", 1000.0), ("0.001%", 0.001), ("999.9", 999.9), (".5", 0.5)]
)
def test_a_threshold_is_above_0_and_at_most_1000_per_cent(text: str, pct: float) -> None:
    assert parse_threshold(text) == pct
    for wrong in ("1000.1", "0", "0.0", ".", "00", "-1"):
        with pytest.raises(UserError):
            parse_threshold(wrong)


@pytest.mark.parametrize(
    ("where", "concerned"), [({}, False), ({"kernel": ""}, True), ({"kernel": "case.group"}, True),
                             ({"train": ""}, False)],
)  # fmt: skip
def test_a_version_concerns_the_results_that_it_names(
    where: dict[str, str], concerned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "METHODS", {1: {}, 2: where, 3: {}})
    result = run_of(timed(1e-3)).results[0]
    for versions, between in (((1, 2), True), ((1, 3), True), ((2, 3), False), ((2, 2), False)):
        for a, b in (versions, versions[::-1]):
            assert method_changed(result, a, b) == (concerned and between)


@pytest.mark.parametrize(
    ("a", "b", "said"), [("skipped", "ok", "A"), ("ok", "skipped", "B"), ("failed", "skipped", "A")]
)
def test_the_run_without_a_time_is_named(a: str, b: str, said: str) -> None:
    ours, theirs = (run_of(timed(1e-3) if s == "ok" else None, s) for s in (a, b))
    (row,) = compare(ours, theirs).rows
    assert row.reason.split()[-1] == said


def test_cards_are_the_same_by_name_alone() -> None:
    runs = {card: run_of(timed(1e-3), device={"name": "a GPU", "card": card}) for card in "ab"}
    for a, b in ("aa", "ab", "ba"):
        assert compare(runs[a], runs[b]).card == (SAME_CARD if a == b else ANOTHER_CARD)


def test_runs_with_nothing_in_common_say_what_sets_them_apart() -> None:
    small = run_of(timed(1e-3))
    (result,) = small.results
    large = replace(result, case=replace(result.case, dims=dict.fromkeys("mnk", 4096)))
    with pytest.raises(UserError, match=r"64 in A, .*4096 in B"):
        compare(small, replace(small, results=(large,)))
