"""Two runs: faster, slower, same, or cannot tell; and when it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.case import Case
from microbench.errors import UserError
from microbench.results.comparison import VERDICTS, compare, failing, judge
from microbench.results.types import Measurement, Result, Run
from microbench.timing.stats import median_interval

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


def test_another_method_is_refused() -> None:
    assert "method" in refusal(SOME, replace(SOME, method_version=2))


@pytest.mark.parametrize(
    ("name", "other"), [("timer", "graph"), ("l2", "warm"), ("regime", "burst")]
)
def test_other_conditions_are_refused(name: str, other: str) -> None:
    said = refusal(run_of(result(64)), run_of(result(64, **{name: other})))
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
