"""Two runs: faster, slower, same, or cannot tell; and when it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.case import Case, Target
from microbench.errors import UserError
from microbench.results.comparison import (
    VERDICTS,
    compare,
    failing,
    parse_threshold,
)
from microbench.results.judging import NOISE_S, judge
from microbench.results.types import METHOD_VERSION, METHODS, Measurement, Result, Run
from microbench.run_output import check_goes_on
from microbench.timing.stats import median_interval
from microbench.worker import Greeting

OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "cannot tell": "cannot tell"}


def measurement(seconds: float, half_pct: float | None = 0.4, **more: Any) -> Measurement:
    half = seconds * (half_pct or 0) / 100
    return Measurement(
        (seconds,) * 3, (1, 1, 1), seconds,
        None if half_pct is None else (seconds - half, seconds + half),
        **{"timer": "events", "l2": "cold", "regime": "sustained", **more},
    )  # fmt: skip


def result(size: int, seconds: float = 1e-3, half_pct: float | None = 0.4, **more: Any) -> Result:
    case = Case("gemm", {"m": size, "n": size, "k": size}, "fp16", "cublas")
    return Result(case, "ok", measurement=measurement(seconds, half_pct, **more))


def run_of(*results: Result, **more: Any) -> Run:
    device = {"name": "NVIDIA H200", "driver": "580.1"}
    return replace(Run(("x",), "now", device, {"torch": "2.11"}, results=results), **more)


def verdicts(a: Run, b: Run) -> list[str]:
    return [row.verdict for row in compare(a, b).rows]


def scaled(run: Run, factor: float) -> Run:
    def longer(r: Result) -> Result:
        m = r.measurement
        assert m is not None
        assert m.ci95_s is not None
        ends = (m.ci95_s[0] * factor, m.ci95_s[1] * factor)
        times = tuple(t * factor for t in m.times_s)
        return replace(
            r, measurement=replace(m, times_s=times, median_s=m.median_s * factor, ci95_s=ends)
        )

    return replace(run, results=tuple(longer(r) for r in run.results))


SOME = run_of(*[result(2**i, 10.0 ** (i - 9), sm_clock_mhz=1700.0) for i in range(5, 9)])


# ---------------------------------------------------------------- verdicts


def test_a_run_is_the_same_as_itself() -> None:
    comparison = compare(SOME, SOME)
    assert [row.verdict for row in comparison.rows] == ["same"] * 4
    assert [row.ratio for row in comparison.rows] == pytest.approx([1.0] * 4)
    assert comparison.differences == []
    assert (comparison.only_a, comparison.only_b) == ([], [])


def test_longer_times_are_slower_and_the_other_way_round_faster() -> None:
    there, back = compare(SOME, scaled(SOME, 1.2)), compare(scaled(SOME, 1.2), SOME)
    assert [row.verdict for row in there.rows] == ["slower"] * 4
    assert [row.verdict for row in back.rows] == ["faster"] * 4
    assert there.rows[0].ratio == pytest.approx(1 / 1.2)
    assert back.rows[0].ratio == pytest.approx(1.2)
    assert there.count("slower") == 4


def test_a_difference_within_the_noise_of_two_runs_is_the_same() -> None:
    assert verdicts(SOME, scaled(SOME, 1.015)) == ["same"] * 4
    assert verdicts(scaled(SOME, 1.015), SOME) == ["same"] * 4


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (result(64, 1e-3, 10.0), result(64, 1.1e-3, 10.0), "cannot tell"),  # wide intervals
        (result(64, 1e-3, None), result(64, 2e-3, 0.1), "cannot tell"),  # one round
        (result(64, 5e-6, 0.1), result(64, 5.3e-6, 0.1), "cannot tell"),  # 0.3 us are noise
        (result(64, 5e-6, 0.1), result(64, 7e-6, 0.1), "slower"),
    ],
)
def test_the_verdict_on_one_case(a: Result, b: Result, verdict: str) -> None:
    assert verdicts(run_of(a), run_of(b)) == [verdict]


def test_another_clock_alone_cannot_tell() -> None:
    fast = run_of(result(64, 1.0e-3, sm_clock_mhz=1980.0))
    slow = run_of(result(64, 1.2e-3, sm_clock_mhz=1650.0))
    comparison = compare(fast, slow)
    assert comparison.rows[0].verdict == "cannot tell"
    assert "1980" in comparison.rows[0].note
    assert "1650" in comparison.rows[0].note
    assert any("clock" in line for line in comparison.differences)


def test_slower_at_a_higher_clock_is_slower() -> None:
    a = run_of(result(64, 1.0e-3, sm_clock_mhz=1650.0))
    b = run_of(result(64, 1.2e-3, sm_clock_mhz=1980.0))
    assert verdicts(a, b) == ["slower"]


def test_an_interval_that_reaches_below_zero_is_no_crash() -> None:
    """Three rounds with one slow one, as a busy CPU gives them."""
    blocks = [[1e-4], [1.1e-4], [7e-4]]
    interval = median_interval(blocks)
    assert interval is not None
    busy = replace(measurement(1.1e-4), ci95_s=interval)
    shaky = run_of(replace(result(64), measurement=busy))
    assert verdicts(shaky, run_of(result(64, 1e-4))) == ["cannot tell"]
    assert verdicts(shaky, shaky) == ["cannot tell"]


# ---------------------------------------------------------------- reasons and thresholds


@pytest.mark.parametrize(
    ("a", "b", "verdict", "reason"),
    [
        (result(64), result(64, 1.2e-3), "slower", "interval is beyond it"),
        (result(64, 1.2e-3), result(64), "faster", "interval is beyond it"),
        (result(64), result(64), "same", "interval is within 3 %"),
        (result(64, 1e-3, 10.0), result(64, 1.1e-3, 10.0), "cannot tell",
         "interval reaches beyond 3 %"),
        (result(64, 5e-6, 0.1), result(64, 5.3e-6, 0.1), "cannot tell",
         "interval is within 1.3 us"),
        (result(64, 5e-6, 0.1), result(64, 6.3e-6, 1.0), "cannot tell",
         "interval reaches within 1.3 us"),
        (result(64, 1e-3, None), result(64), "cannot tell", "one round only"),
        (result(64, sm_clock_mhz=1980.0), result(64, 1.2e-3, sm_clock_mhz=1650.0), "cannot tell",
         "clocks differ"),
    ],
)  # fmt: skip
def test_every_verdict_has_its_reason(a: Result, b: Result, verdict: str, reason: str) -> None:
    (row,) = compare(run_of(a), run_of(b)).rows
    assert (row.verdict, row.reason) == (verdict, reason)
    assert row.threshold_pct is not None


def test_a_case_without_time_says_where() -> None:
    case = result(64).case
    lost, left = Result(case, "failed", reason="hung"), Result(case, "skipped", reason="no fp8")
    for a, b, verdict, reason in (
        (result(64), lost, "slower", "failed in B"), (lost, result(64), "faster", "failed in A"),
        (left, left, "same", "skipped in both"), (lost, lost, "cannot tell", "failed in both"),
        (result(64), left, "cannot tell", "skipped in B"),
    ):  # fmt: skip
        (row,) = compare(run_of(a), run_of(b)).rows
        assert (row.verdict, row.reason, row.threshold_pct) == (verdict, reason, None)


def test_the_threshold_is_a_share_or_an_absolute_time() -> None:
    (long,) = compare(run_of(result(64)), run_of(result(64))).rows
    assert (long.threshold_pct, long.threshold_s) == (pytest.approx(3.0), None)
    (short,) = compare(run_of(result(64, 6.5e-6)), run_of(result(64, 6.5e-6))).rows
    assert (short.threshold_pct, short.threshold_s) == (pytest.approx(20.0), NOISE_S)


def test_a_threshold_of_the_users_replaces_the_noise_but_not_the_absolute_floor() -> None:
    a, b = run_of(result(64)), run_of(result(64, 1.04e-3))
    assert [compare(a, b, pct).rows[0].verdict for pct in (None, 5.0, 1.0)] == [
        "slower", "same", "slower",
    ]  # fmt: skip
    assert compare(a, b, 5.0).rows[0].reason == "interval is within 5 %"
    close = run_of(result(64, 1.02e-3))
    assert compare(a, close, 1.0).rows[0].verdict == "slower"
    short = compare(run_of(result(64, 5e-6, 0.1)), run_of(result(64, 5.3e-6, 0.1)), 1.0).rows[0]
    assert (short.verdict, short.threshold_s) == ("cannot tell", NOISE_S)
    written = compare(a, b, 5.0).as_dict()
    assert written["threshold_pct"] == 5.0


@pytest.mark.parametrize(("text", "pct"), [("5%", 5.0), ("5", 5.0), (" 0.5 % ", 0.5), (".5%", 0.5)])
def test_a_threshold_is_read(text: str, pct: float) -> None:
    assert parse_threshold(text) == pct


@pytest.mark.parametrize("text", ["", "%", "0%", "-5%", "x", "5%%", "1e3", "nan", "5000%"])
def test_what_is_no_threshold_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--threshold"):
        parse_threshold(text)


# ---------------------------------------------------------------- the card


def with_card(card: str | None) -> Run:
    return replace(SOME, device=SOME.device | {"card": card})


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (with_card("0a1b"), with_card("0a1b"), "same card"),
        (with_card("0a1b"), with_card("ffff"), "another card"),
        (SOME, with_card("0a1b"), None),  # a file of an older version
        (with_card(None), with_card("0a1b"), None),
    ],
)
def test_the_card_is_the_same_another_or_not_known(a: Run, b: Run, said: str | None) -> None:
    comparison = compare(a, b)
    assert comparison.card == said
    assert comparison.differences == []
    assert comparison.as_dict()["card"] == said


@pytest.mark.parametrize(("then", "now", "goes_on"), [
    (None, "0a1b", True), ("0a1b", None, True), ("0a1b", "0a1b", True), ("0a1b", "ffff", False),
])  # fmt: skip
def test_resume_takes_a_card_that_is_not_known(
    then: str | None, now: str | None, goes_on: bool
) -> None:
    greeting = Greeting({"name": "x", "card": now}, {}, Target("cuda", "x"), None)
    device = {"name": "x"} | ({"card": then} if then else {})
    before = Run(("x",), "now", device, {})
    if goes_on:
        check_goes_on(None, before, greeting)
        return
    with pytest.raises(UserError, match="card"):
        check_goes_on(None, before, greeting)


medians = st.floats(1e-6, 1.0)
widths = st.none() | st.floats(0.0, 90.0)
clocks = st.none() | st.floats(500.0, 2000.0)


@given(medians, st.floats(0.5, 2.0), widths, widths, clocks, clocks)
def test_exchanging_the_runs_exchanges_the_verdict(
    seconds: float, factor: float, width_a: float | None, width_b: float | None,
    clock_a: float | None, clock_b: float | None,
) -> None:  # fmt: skip
    a = measurement(seconds, width_a, sm_clock_mhz=clock_a)
    b = measurement(seconds * factor, width_b, sm_clock_mhz=clock_b)
    there, back = judge(a, b)[0], judge(b, a)[0]
    assert there in VERDICTS
    assert back == OPPOSITE[there]


# ---------------------------------------------------------------- what is in one run only


def test_cases_of_one_run_only_are_listed_in_its_order() -> None:
    sizes = [512, 64, 2048, 128, 256, 1024]
    a = run_of(result(8), *[result(size) for size in sizes])
    b = run_of(result(8), *[result(size + 1) for size in sizes])
    comparison = compare(a, b)
    assert comparison.only_a == [r.case for r in a.results[1:]]
    assert comparison.only_b == [r.case for r in b.results[1:]]
    assert len(comparison.rows) == 1


def test_cases_pair_up_by_what_they_are_not_by_their_place() -> None:
    a = run_of(result(64, 1e-3), result(128, 8e-3))
    b = run_of(result(128, 8e-3), result(64, 1e-3))
    assert verdicts(a, b) == ["same", "same"]


def test_a_case_that_fails_now_counts_as_slower() -> None:
    failed = Result(result(64).case, "failed", reason="hung")
    assert verdicts(run_of(failed), run_of(result(64))) == ["faster"]
    row = compare(run_of(result(64)), run_of(failed)).rows[0]
    assert row.verdict == "slower"
    assert "failed" in row.note
    assert row.ratio is None


# ---------------------------------------------------------------- refusals and differences


def refusal(a: Run, b: Run) -> str:
    with pytest.raises(UserError) as caught:
        compare(a, b)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_method_that_this_version_does_not_know_is_refused() -> None:
    assert "method" in refusal(SOME, replace(SOME, method_version=METHOD_VERSION + 1))


LIGHT = run_of(*[result(2**i, 2.0**i * 1e-7) for i in range(5, 9)])


@pytest.mark.parametrize("version", METHODS)
def test_kernels_compare_across_methods_that_changed_something_else(version: int) -> None:
    assert verdicts(LIGHT, replace(LIGHT, method_version=version)) == ["same"] * 4


@pytest.mark.parametrize("version", [1, 2])
def test_heavy_kernels_do_not_compare_with_those_whose_first_round_was_kept(version: int) -> None:
    slow, large = result(8, 2e-4), replace(result(16, 2e-5), flops=10**10)
    burst, cpu = result(32, 2e-4, regime="burst"), result(64, 2e-4, regime="unmanaged")
    light = result(128, 2e-5)
    for heavy in (slow, large):
        new = run_of(heavy, light)
        assert verdicts(new, replace(new, method_version=version)) == ["cannot tell", "same"]
        refusal(run_of(heavy), run_of(heavy, method_version=version))
    for other in (burst, cpu):
        assert verdicts(run_of(other), run_of(other, method_version=version)) == ["same"]


@pytest.mark.parametrize(
    ("name", "other"), [("timer", "graph"), ("l2", "warm"), ("regime", "burst")]
)
def test_other_conditions_are_refused(name: str, other: str) -> None:
    changed: dict[str, Any] = {name: other}
    said = refusal(run_of(result(64)), run_of(result(64, **changed)))
    assert name in said
    assert other in said


def test_runs_without_a_common_case_are_refused() -> None:
    refusal(run_of(result(64)), run_of(result(128)))
    refusal(run_of(), run_of(result(128)))
    refusal(run_of(), run_of())


def test_what_differs_is_said() -> None:
    other = replace(
        SOME, device=SOME.device | {"driver": "590.2"}, software=SOME.software | {"torch": "2.12"}
    )
    said = "\n".join(compare(SOME, other).differences)
    for value in ("driver", "580.1", "590.2", "torch", "2.11", "2.12"):
        assert value in said


def test_failing_on_a_verdict() -> None:
    comparison = compare(SOME, scaled(SOME, 1.2))
    assert len(failing(comparison, ["slower"])) == 4
    assert failing(comparison, ["faster", "cannot tell"]) == []
    assert failing(comparison, []) == []
