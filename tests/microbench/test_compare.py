"""Two runs: faster, slower, same, or cannot tell; and when it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from samples.measuring import timed

from kernels.case import Case, Target
from kernels.gemm import Gemm
from microbench.errors import UserError
from microbench.results.comparison import (
    ANOTHER_CARD,
    SAME_CARD,
    compare,
    failing,
    method_changed,
    parse_threshold,
)
from microbench.results.types import METHOD_VERSION, ProcessTime, Result, Run
from microbench.run_output import check_goes_on
from microbench.worker import Greeting


def result(size: int, seconds: float = 1e-3, half_pct: float | None = 0.4, **more: Any) -> Result:
    case = Case(Gemm(size, size, size), "fp16", "cublas")
    return Result(case, "ok", measurement=timed(seconds, half_pct, **more))


def run_of(*results: Result, **more: Any) -> Run:
    device = {"name": "NVIDIA H200", "driver": "580.1"}
    return replace(Run(("x",), "now", device, {"torch": "2.11"}, results=results), **more)


def verdicts(a: Run, b: Run) -> list[str]:
    return [row.verdict for row in compare(a, b).rows]


def scaled(run: Run, factor: float) -> Run:
    return run_of(*(replace(r, measurement=timed((r.median_s or 0) * factor, 0.4))
                    for r in run.results))  # fmt: skip


SOME = run_of(*[result(2**i, 10.0 ** (i - 9), sm_clock_mhz=1700.0) for i in range(5, 9)])


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("a", "b", "verdict"), [(1.0, 1.0, "same"), (1.0, 1.2, "slower"), (1.2, 1.0, "faster")]
)
def test_the_ratio_of_the_times_is_the_verdict(a: float, b: float, verdict: str) -> None:
    comparison = compare(scaled(SOME, a), scaled(SOME, b))
    assert [row.verdict for row in comparison.rows] == [verdict] * comparison.count(verdict)
    assert [row.ratio for row in comparison.rows] == pytest.approx([a / b] * 4)
    assert (comparison.differences, comparison.only_a, comparison.only_b) == ([], [], [])


# ---------------------------------------------------------------- reasons and thresholds


@pytest.mark.parametrize(
    ("a", "b", "verdict", "reason"),
    [("failed", "failed", "not measured", "failed in both"),
     ("skipped", "skipped", "not measured", "skipped in both"),
     ("ok", "failed", "slower", "failed in B"),
     ("failed", "ok", "faster", "failed in A"), ("ok", "skipped", "not measured", "skipped in B"),
     ("skipped", "ok", "not measured", "skipped in A"),
     ("failed", "skipped", "not measured", "failed in A"),
     ("skipped", "failed", "not measured", "skipped in A")],
)  # fmt: skip
def test_a_case_without_a_time_says_where(a: str, b: str, verdict: str, reason: str) -> None:
    timed = result(64)
    ours, theirs = (
        timed if status == "ok" else Result(timed.case, status, reason="x") for status in (a, b)
    )
    comparison = compare(run_of(ours), run_of(theirs))
    (row,) = comparison.rows
    assert (row.verdict, row.reason) == (verdict, reason)
    assert (row.a_s, row.b_s) == tuple(1e-3 if status == "ok" else None for status in (a, b))
    assert comparison.count(verdict) == 1
    assert (row.ratio, row.ci95, row.threshold_pct, row.guessed) == (None, None, None, False)
    if "failed" in (a, b) and "ok" in (a, b):
        assert "failed" in row.note


def in_processes(seconds: float, count: int) -> Result:
    parts = tuple(ProcessTime(i, 1, seconds) for i in range(count))
    return result(64, seconds, 0.0, processes=parts)


def test_a_row_has_the_threshold_that_decided() -> None:
    (row,) = compare(run_of(result(64)), run_of(result(64))).rows
    assert (row.threshold_pct, row.processes) == (3.0, (1, 1))
    assert (row.widened, row.guessed) == (True, False)
    assert row.ci95 is not None
    assert row.ci95[0] < 0.97 < 1.03 < row.ci95[1], "with what processes differ by"
    (row,) = compare(run_of(in_processes(1e-5, 3)), run_of(in_processes(1e-5, 2))).rows
    assert row.threshold_pct == pytest.approx(1.0)
    assert (row.processes, row.widened, row.guessed) == ((3, 2), False, False)


@pytest.mark.parametrize(
    ("text", "pct"),
    [
        ("5%", 5.0), ("5", 5.0), (" 0.5 % ", 0.5), (".5%", 0.5), ("1000", 1000.0),
        ("0.001%", 0.001),
        *((text, None) for text in ("", "%", "0%", "0", "0.0", ".", "00", "-1", "x", "5%%", "1e3",
                                    "nan", "1000.1", "5000%")),
    ],
)  # fmt: skip
def test_a_threshold_is_read_or_refused(text: str, pct: float | None) -> None:
    if pct is not None:
        assert parse_threshold(text) == pct
        return
    with pytest.raises(UserError, match="--threshold"):
        parse_threshold(text)


# ---------------------------------------------------------------- the card


def with_card(card: str | None) -> Run:
    return replace(SOME, device=SOME.device | {"card": card})


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (with_card("0a1b"), with_card("0a1b"), SAME_CARD),
        (with_card("0a1b"), with_card("ffff"), ANOTHER_CARD),
        (with_card("ffff"), with_card("0a1b"), ANOTHER_CARD),
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


# ---------------------------------------------------------------- what is in one run only


def test_cases_of_one_run_only_are_listed_in_its_order() -> None:
    sizes = [512, 64, 2048, 128, 256, 1024]
    a = run_of(result(8), *[result(size) for size in sizes], result(32, 8e-3))
    b = run_of(result(32, 8e-3), result(8), *[result(size + 1) for size in sizes])
    comparison = compare(a, b)
    assert comparison.only_a == [r.case for r in a.results[1:-1]]
    assert comparison.only_b == [r.case for r in b.results[2:]]
    assert [row.verdict for row in comparison.rows] == ["same", "same"], "whatever their place"


# ---------------------------------------------------------------- refusals and differences


def refusal(a: Run, b: Run) -> str:
    with pytest.raises(UserError) as caught:
        compare(a, b)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (SOME, replace(SOME, method_version=METHOD_VERSION + 1), "method"),
        *((run_of(result(64)), run_of(result(64, **{name: other})), f"{name}.*{other}")
          for name, other in (("timer", "graph"), ("l2", "warm"), ("regime", "burst"))),
        (run_of(result(64)), run_of(result(128)), "64 in A, .*128 in B"),
        (run_of(), run_of(result(128)), "no case"), (run_of(), run_of(), "no case"),
    ],
)  # fmt: skip
def test_another_method_other_conditions_and_no_common_case_are_refused(
    a: Run, b: Run, said: str
) -> None:
    assert re.search(said, refusal(a, b))


LIGHT = run_of(*[result(2**i, 2.0**i * 1e-7) for i in range(5, 9)])


@pytest.mark.parametrize("version", range(1, METHOD_VERSION + 1))
def test_only_heavy_kernels_do_not_compare_with_those_whose_first_round_was_kept(
    version: int,
) -> None:
    assert verdicts(LIGHT, replace(LIGHT, method_version=version)) == ["same"] * 4
    slow, large = result(8, 2e-4), replace(result(16, 2e-5), flops=10**10)
    light = result(128, 2e-5)
    for heavy in (slow, large) if version < 3 else ():
        new = run_of(heavy, light)
        assert verdicts(new, replace(new, method_version=version)) == ["cannot tell", "same"]
        refusal(run_of(heavy), run_of(heavy, method_version=version))
    for regime in ("burst", "unmanaged"):  # the second is a CPU's
        other = run_of(result(32, 2e-4, regime=regime))
        assert verdicts(other, replace(other, method_version=version)) == ["same"]


def test_a_change_of_the_method_is_between_the_version_before_and_its_own() -> None:
    heavy, light = result(8, 2e-4), result(128, 2e-5)
    for (a, b), between in (((2, 3), True), ((1, 3), True), ((1, 2), False), ((3, 3), False)):
        for versions in ((a, b), (b, a)):
            assert method_changed(heavy, *versions) == between
            assert not method_changed(light, *versions)


@pytest.mark.parametrize(
    ("factor", "differs"), [(1.019, False), (1.021, True), (0.981, False), (0.979, True)]
)
def test_clocks_differ_from_two_per_cent_on(factor: float, differs: bool) -> None:
    a, b = (
        run_of(*(result(size, sm_clock_mhz=clock) for size in sizes))
        for sizes, clock in (((64, 128), 1000.0 * factor), ((64,), 1000.0))
    )
    assert len(compare(a, b).differences) == differs


def test_what_differs_is_said() -> None:
    other = replace(
        SOME, device=SOME.device | {"driver": "590.2"}, software=SOME.software | {"torch": "2.12"}
    )
    for a, b in ((SOME, other), (other, SOME)):
        said = "\n".join(compare(a, b).differences)
        for value in ("driver", "580.1", "590.2", "torch", "2.11", "2.12"):
            assert value in said


def test_what_is_no_longer_measured_is_slower() -> None:
    """A gate is not green because nothing ran."""
    kept, skipped, new = result(64), replace(result(128), measurement=None, status="skipped"), 256
    lost = compare(run_of(kept, result(128)), run_of(kept, skipped, result(new)))
    assert failing(lost, ["slower"]) == [skipped.case]
    assert failing(lost, ["not measured"]) == [skipped.case]
    absent = compare(run_of(kept, result(128)), run_of(kept))
    assert failing(absent, ["slower"]) == [skipped.case]
    never = compare(run_of(kept, skipped, result(new)), run_of(kept, skipped))
    assert failing(never, ["slower"]) == [result(new).case]
    assert failing(compare(run_of(kept, skipped), run_of(kept)), ["slower"]) == []
    nothing = run_of(skipped)
    assert failing(compare(nothing, nothing), ["slower"]) == [skipped.case]
