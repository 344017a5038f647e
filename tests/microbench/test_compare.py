"""Two runs: faster, slower, same, or cannot tell; and when it refuses."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples.measuring import timed

from kernels.case import Case, Target
from kernels.gemm import Gemm
from microbench.errors import UserError
from microbench.results.comparison import (
    ANOTHER_CARD,
    CPU_BOUND_PCT,
    LEAST_PCT,
    NOISE_PCT,
    SAME_CARD,
    Noise,
    ProcessPriors,
    compare,
    failing,
    fit_priors,
    in_processes,
    judge,
    noise_of,
    parse_threshold,
)
from microbench.results.kinds import kinds
from microbench.results.runfile import read_run
from microbench.results.types import METHOD_VERSION, ProcessTime, Result, Run, Timed
from microbench.run_output import check_goes_on
from microbench.timing.stats import DEFAULT_PRIOR, VariancePrior, median_interval
from microbench.worker import Greeting


def result(size: int, seconds: float = 1e-3, half_pct: float | None = 0.4, **more: Any) -> Result:
    case = Case(Gemm(size, size, size), "fp16", "cublas")
    return Result(case, "ok", measurement=timed(seconds, half_pct, **more))


def run_of(*results: Result, **more: Any) -> Run:
    device = {"name": "NVIDIA H200", "driver": "580.1"}
    return replace(Run(("x",), "now", device, {"torch": "2.11"}, results=results), **more)


def verdicts(a: Run, b: Run) -> list[str]:
    return [row.verdict for row in compare(a, b).rows]


SOME = run_of(*[result(2**i, 10.0 ** (i - 9), sm_clock_mhz=1700.0) for i in range(5, 9)])


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


# ---------------------------------------------------------------- refusals and differences


SHORT, WHOLE = (
    read_run(Path(__file__).parents[2] / "results" / "nvidia-h200" / f"{name}.json")
    for name in ("train-resnet50-short", "ledger-resnet50")
)


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
        (run_of(result(64)), run_of(result(128)), "first has .*64.*; only the second has .*128"),
        (SHORT, WHOLE, "only the first has search=short; .* --search full"),
        (SHORT, SOME, "only the first has trainings; only the second has GEMMs"),
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
        old = replace(new, method_version=version)
        assert verdicts(new, old) == verdicts(old, new) == ["cannot tell", "same"]
        between = replace(new, method_version=2)  # its own change came with the third
        assert verdicts(old, between) == ["same", "same"]
        refusal(run_of(heavy), run_of(heavy, method_version=version))
    for regime in ("burst", "unmanaged"):  # the second is a CPU's
        other = run_of(result(32, 2e-4, regime=regime))
        assert verdicts(other, replace(other, method_version=version)) == ["same"]


@pytest.mark.parametrize(
    ("factor", "differs"), [(1.019, False), (1.021, True), (0.981, False), (0.979, True)]
)
def test_clocks_differ_from_two_per_cent_on(factor: float, differs: bool) -> None:
    a, b = (
        run_of(*(result(size, sm_clock_mhz=clock) for size in sizes))
        for sizes, clock in (((64, 128), 1000.0 * factor), ((64,), 1000.0))
    )
    assert len(compare(a, b).differences) == differs


def test_what_differs_is_said_and_what_is_no_longer_measured_is_slower() -> None:
    other = replace(
        SOME, device=SOME.device | {"driver": "590.2"}, software=SOME.software | {"torch": "2.12"}
    )
    for a, b in ((SOME, other), (other, SOME)):
        said = "\n".join(compare(a, b).differences)
        for value in ("driver", "580.1", "590.2", "torch", "2.11", "2.12"):
            assert value in said
    # A gate is not green because nothing ran.
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


def test_a_gate_of_own_kernels_is_of_them_alone() -> None:
    library = result(64)
    mine = replace(library, case=replace(library.case, backend="mine:gemm"))
    slow = [replace(each, measurement=timed(2e-3, 0.4)) for each in (library, mine)]
    assert failing(compare(run_of(library, mine), run_of(slow[0], mine)), ["slower"]) == []
    both = compare(run_of(library, mine), run_of(*slow))
    assert failing(both, ["slower"]) == [mine.case]
    assert failing(compare(run_of(library), run_of(slow[0])), ["slower"]) == [library.case]


# ---------------------------------------------------------------- judging


GEMM = Noise(NOISE_PCT, op="gemm")  # of one process


def several(medians_s: Sequence[float], mhz: float | None = None) -> Timed:
    """A case that several processes measured."""
    parts = tuple(ProcessTime(i, 7, s, mhz) for i, s in enumerate(medians_s))
    return Timed(math.exp(np.log(medians_s).mean()), None, mhz, processes=parts)


def once(seconds: float, half_pct: float = 1.0, **more: float | bool | None) -> Timed:
    """A case of one process."""
    half = seconds * half_pct / 100
    return replace(Timed(seconds, (seconds - half, seconds + half)), **more)


def simulated(rng: np.random.Generator, sd: float) -> Timed:
    """Of three processes."""
    return several(list(1e-5 * np.exp(sd * rng.standard_normal(3))))


def judged(pairs: Sequence[tuple[Timed, Timed]]) -> list[str]:
    priors = fit_priors(pairs)
    return [judge(a, b, noise_of("gemm", a, b), priors).verdict for a, b in pairs]


# ---------------------------------------------------------------- several processes


def under_a_cap(rng: np.random.Generator, cycles: float = 1e6, mhz: float = 1300.0) -> Timed:
    """A case of one process at the power limit, which moves the clock from round to round."""
    rounds = cycles * np.exp(0.006 * rng.standard_normal(3))
    clocks = mhz * np.exp(0.04 * rng.standard_normal(3))
    times = rounds / clocks / 1e6
    interval = median_interval([[time_s] for time_s in times])
    return Timed(float(np.median(times)), interval, float(clocks.mean()), cycles=tuple(rounds))


def test_at_the_power_limit_kernels_of_the_same_cycles_are_the_same() -> None:
    rng = np.random.default_rng(48)

    def verdicts(**of_b: float) -> Counter[str]:
        pairs = [(under_a_cap(rng), under_a_cap(rng, **of_b)) for _ in range(400)]
        alone = Counter(judge(a, b, noise_of("gemm", a, b)).verdict for a, b in pairs)
        together = Counter(judged(pairs))
        assert together["same"] >= alone["same"]
        return together

    same = verdicts()
    assert same["same"] >= 360
    assert same["faster"] + same["slower"] <= 4
    assert verdicts(cycles=1.06e6)["same"] <= 4, "slower in cycles"
    # One that draws more power has a lower clock: where its time shows it, it is not the same.
    a, b = under_a_cap(rng), under_a_cap(rng, mhz=900.0)
    assert judge(a, b, noise_of("gemm", a, b)).verdict == "cannot tell"
    assert judge(a, replace(a, cycles=()), GEMM).verdict == "cannot tell"


def test_what_varies_more_is_not_judged_by_the_others_and_one_process_as_one() -> None:
    rng = np.random.default_rng(4)
    quiet = [(simulated(rng, 0.003), simulated(rng, 0.003)) for _ in range(20)]
    restless = several([1.0e-5, 1.2e-5, 1.1e-5]), several([1.16e-5, 1.3e-5, 1.05e-5])
    assert judged([*quiet, restless])[-1] == "cannot tell"
    many, single = several([1e-5] * 3), once(1e-5)
    assert not in_processes(many, single)
    both = noise_of("gemm", many, many)
    assert (both.pct, both.near_pct) == (LEAST_PCT, NOISE_PCT)
    assert noise_of("gemm", many, single) == noise_of("gemm", single, single) == GEMM
    assert noise_of("train", single, single) == Noise(kinds()["train"].noise_pct)
    asked = noise_of("gemm", many, many, threshold_pct=7.0)
    assert (asked.pct, asked.near_pct) == (7.0, None)
    assert fit_priors([(many, single)]) == ProcessPriors(DEFAULT_PRIOR, DEFAULT_PRIOR)


# ---------------------------------------------------------------- each threshold from both sides

OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "cannot tell": "cannot tell"}
ALIKE = ProcessPriors(
    VariancePrior(1e-12, 1e4), VariancePrior(1e-12, 1e4)
)  # processes that hardly differ


def exactly(seconds: float, processes: int = 1, mhz: float | None = None) -> Timed:
    """Exactly known times, in a number of processes."""
    if processes > 1:
        return replace(several([seconds] * processes, mhz), ci95_s=(seconds, seconds))
    return once(seconds, 0.0, sm_clock_mhz=mhz)


def verdict(a: Timed, b: Timed, threshold_pct: float | None = None) -> str:
    return judge(a, b, noise_of("gemm", a, b, threshold_pct), ALIKE).verdict


@pytest.mark.parametrize(
    ("processes", "base_s", "factor", "pct", "found"),
    [
        *((1, 1e-3, *rest) for rest in (
            (1.1, None, "slower"), (1.029, None, "same"), (1 / 1.1, None, "faster"),
            (1 / 1.029, None, "same"), (1.031, None, "cannot tell"), (1.07, None, "cannot tell"),
            (1.02, 2.1, "same"), (1.02, 1.9, "cannot tell"),
        )),
        (1, 3e-6, 1.12, None, "cannot tell"), (1, 3e-6, 1.15, None, "slower"),
        (1, 3e-6, 1.029, None, "same"),
        *((3, base_s, *rest) for base_s in (1e-5, 1e-3) for rest in (
            (1.0099, None, "same"), (1.0101, None, "slower"), (1 / 1.0101, None, "faster"),
            (1 / 1.0099, None, "same"),
        )),
        (3, 1e-3, 1.02, 1.9, "slower"), (3, 1e-3, 1.02, 2.1, "same"),
    ],
)  # fmt: skip
def test_a_verdict_changes_at_the_noise_or_at_the_users_threshold(
    processes: int, base_s: float, factor: float, pct: float | None, found: str
) -> None:
    a, b = exactly(base_s, processes), exactly(base_s * factor, processes + (processes > 1))
    assert verdict(a, b, pct) == found
    if processes > 1 and not pct:
        with_one = verdict(a, exactly(base_s * factor))
        assert with_one == "same", "one process alone knows no better than 3 %"


@pytest.mark.parametrize(
    ("a_mhz", "b_mhz", "found"),
    [(1500.0, 1500.0, "slower"), (1800.0, 1500.0, "cannot tell"), (1500.0, 1800.0, "slower"),
     (1510.0, 1500.0, "slower"), (None, 1500.0, "slower"), (1800.0, None, "slower")],
)  # fmt: skip
@pytest.mark.parametrize("processes", [1, 3])
def test_a_slower_kernel_takes_more_cycles_too(
    a_mhz: float | None, b_mhz: float | None, found: str, processes: int
) -> None:
    a, b = exactly(1e-3, processes, a_mhz), exactly(1.1e-3, processes, b_mhz)
    assert verdict(a, b) == found
    assert verdict(b, a) == OPPOSITE[found]
    reason = judge(a, b, noise_of("gemm", a, b), ALIKE).reason
    assert (reason == "clocks differ") == (found == "cannot tell")


# ---------------------------------------------------------------- the CPU limits


@pytest.mark.parametrize(
    ("b_s", "pace_a", "pace_b", "verdict", "reason"),
    [
        (1.6e-3, 1.0, 1.6, "same", "interval is within 30 %"),
        (1.6e-3, 1.0, 1.0, "slower", "interval is beyond it"),
        (1.2e-3, 1.0, 1.0, "same", "interval is within 30 %"),
        (0.6e-3, 1.5, 1.5, "faster", "interval is beyond it"),
        (0.9e-3, 1.0, 0.5, "cannot tell", "CPU speeds differ"),  # 1.8 times as slow at one speed
        (1.1e-3, 1.0, 2.0, "cannot tell", "CPU speeds differ"),
        (1.0e-3, None, 1.0, "cannot tell", "CPU-bound"),
        (9.0e-3, 1.0, None, "cannot tell", "CPU-bound"),
    ],
)
def test_a_step_that_the_cpu_limits_is_judged_at_one_cpu_speed(
    b_s: float, pace_a: float | None, pace_b: float | None, verdict: str, reason: str
) -> None:
    a = once(1e-3, cpu_bound=True, host_pace=pace_a)
    b = once(b_s, cpu_bound=True, host_pace=pace_b)
    noise = noise_of("train", a, b)
    assert noise.pct == noise_of("train", once(1e-3), b).pct == CPU_BOUND_PCT, "one is enough"
    found = judge(a, b, noise)
    assert (found.verdict, found.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("b_s", "half_pct", "verdict"),
    [(0.01, 20, "faster"), (0.01, 95, "faster"), (0.25, 60, "faster"), (0.7, 60, "cannot tell")],
)
def test_an_interval_beyond_30_per_cent_must_be_wholly_beyond_the_threshold(
    b_s: float, half_pct: float, verdict: str
) -> None:
    a, b = once(1.0), once(b_s, half_pct)
    found = judge(a, b, GEMM)
    assert (found.verdict, judge(b, a, GEMM).verdict) == (verdict, OPPOSITE[verdict])
    assert ("±30 %" in found.reason) == (verdict == "cannot tell")
    # Three rounds with one slow one, as a busy CPU gives them: it reaches far, and is no crash.
    shaky = Timed(1.1e-4, median_interval([[1e-4], [1.1e-4], [7e-4]]))
    for other in (once(1e-4), shaky):
        assert judge(shaky, other, GEMM).verdict == "cannot tell"
