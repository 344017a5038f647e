"""Order, run file, deaths, interrupts and resuming, with a made-up measuring session."""

from __future__ import annotations

import io
import json
import math
import re
import time
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from samples.measuring import FakeSession, World, empty_run, group_of, keys, result_of

from kernels.case import CannotRun, Case, Target
from kernels.gemm import Gemm
from microbench.measure import LAUNCHES_NEEDED, MORE, Estimator
from microbench.report.live import LiveProgress
from microbench.requests import Conditions, GemmRequest
from microbench.results.runfile import read_run
from microbench.results.types import Ceiling, LayerUse, NetworkUse, Result, Run
from microbench.run import (
    InOrder,
    default_budget_s,
    few_processes,
    group_weight,
    minor_groups,
    missing,
)
from microbench.run_output import save
from microbench.sweep import Group
from microbench.timing import FEWEST_OF_SEVERAL, FEWEST_ROUNDS
from microbench.timing.interleave import HEAVY
from microbench.worker import WorkerDied


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "run.json")


def test_groups_are_measured_in_order_and_on_disk_before_the_next_begins(world: World) -> None:
    groups = [group_of(64), group_of(32), group_of(128)]
    seen: list[tuple[int, object]] = []

    def look(_: Group) -> None:
        if world.path.exists():
            run = read_run(world.path)
            seen.append((len(run.results), run.finished_at))
            assert run.ceilings
        else:
            assert not world.sessions[0].calibrated, "the first row comes before the ceilings"

    world.trouble = look
    found = world.runner().measure(InOrder(groups, 10.0))
    assert world.asked() == groups
    assert keys(found.results) == [case.key for group in groups for case in group.cases]
    assert read_run(world.path) == found
    assert [name for name, _, _ in world.progress.lines] == [group.name for group in groups]
    assert [session.closed for session in world.sessions] == [1]
    assert seen == [(2, None), (4, None)]
    written = json.loads(world.path.read_text())
    assert written["finished_at"] == "the end"
    assert all(r["bound"] and r["why"] for r in written["results"]), "explained"


def test_a_file_that_takes_long_to_write_is_written_at_times_and_at_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of many results: 5 ms a write beside groups of no time at all."""
    written: list[int] = []

    def slow(run: Run, path: Path) -> None:
        time.sleep(0.005)
        written.append(len(run.results))
        save(run, path)

    def interrupt(asked: Group) -> None:
        if asked == groups[-1]:
            raise KeyboardInterrupt

    monkeypatch.setattr("microbench.run_output.save", slow)
    groups = [group_of(64 + i) for i in range(20)]
    world.trouble = interrupt
    with pytest.raises(KeyboardInterrupt):
        replace(world.runner(), saving=1e-6).measure(InOrder(groups, 10.0))
    assert written == [2, 38]
    assert len(read_run(world.path).results) == 38


def test_a_death_while_ceilings_are_taken_does_not_end_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One precision's faulting kernel costs its own cases, wherever it is launched first."""
    deaths, calibrate = iter([True]), FakeSession.calibrate

    def mortal(*words: Any) -> list[Ceiling]:
        if next(deaths, False):
            raise WorkerDied("gemm/m=64,n=64,k=64/nt/normal/fp16/cublas", "illegal access")
        return calibrate(*words)

    monkeypatch.setattr(FakeSession, "calibrate", mortal)
    group = group_of(64)
    run = world.runner().measure(InOrder([group], 10.0))
    assert group.cases[0].key in run.by_key
    assert run.results[0].status == "ok"


def test_what_is_missing_is_timed_beside_its_baselines_and_what_was_skipped_is_not() -> None:
    groups = GemmRequest(Conditions(backend="cublas,triton"), "64").plan("cuda")
    done = [result_of(case) for case in groups[0].cases if case.backend != "triton"]
    (left,) = missing(groups, empty_run().with_results(done))
    names = {(case.precision_name, case.backend) for case in left.cases}
    assert names >= {("fp32", "cublas"), ("tf32", "cublas"), ("fp16", "triton")}
    run = empty_run().with_results([result_of(case) for case in GROUPS[0].cases])
    assert [few_processes(GROUPS, run, n) for n in (0, 1, 2)] == [[], GROUPS[:1], GROUPS[:1]]
    group = group_of(64)
    hopeless, late = group.cases[0], group.cases[1:]
    found = [Result(case, "skipped", reason=f"too long ({MORE})") for case in late]
    run = empty_run().with_results([Result(hopeless, "skipped", reason="no"), *found])
    assert missing([group], run) == []
    (left,) = missing([group], run, retry_skipped=True)
    assert {*late} <= {*left.cases}
    assert missing([Group((hopeless,))], run, retry_skipped=True) == []


# ---------------------------------------------------------------- budget


def test_the_budget_is_shared_by_weight_and_all_of_it_is_given(world: World) -> None:
    groups = [group_of(64), group_of(8192), group_of(64, "fp16")]
    world.runner().measure(InOrder(groups, 90.0))
    shares = [share for session in world.sessions for _, share in session.asked]
    assert sum(shares) == pytest.approx(90.0)
    weights = [group_weight(group) for group in groups]
    assert shares == pytest.approx([90.0 * w / sum(weights) for w in weights])
    assert shares[1] > shares[0] > shares[2]
    lefts = [left for _, _, left in world.progress.lines]
    assert lefts == pytest.approx([90 - shares[0], shares[2], 0.0], abs=1e-9)


def test_the_time_left_is_with_what_large_cases_take() -> None:
    # The main command fits its half minute on a GPU.
    main_command = GemmRequest(Conditions()).plan("cuda")
    assert default_budget_s(main_command, "cuda") <= 30
    assert default_budget_s(main_command, "cpu") <= 90
    groups = [group_of(4096), group_of(8192)]
    short, long = (
        InOrder(groups, budget_s, "cuda").sampling_s(groups) for budget_s in (0.1, 1000.0)
    )
    turns = 2 * len(groups[0].cases) * (HEAVY.discarded + FEWEST_ROUNDS)
    assert short > turns * HEAVY.warm_s
    assert long == pytest.approx(1000.0)
    assert InOrder(groups, 0.1).sampling_s(groups) == pytest.approx(0.1), "nothing warms up a CPU"
    small = [group_of(64)]
    assert InOrder(small, 0.1, "cuda").sampling_s(small) == pytest.approx(0.1)


@pytest.mark.parametrize("processes", [1, 3])
def test_the_announced_end_holds_where_the_fewest_rounds_exceed_the_budget(
    world: World, processes: int
) -> None:
    groups = [group_of(4096 + 64 * number) for number in range(12)]
    schedule = InOrder(groups, 1.0, "cuda", processes)
    now_s, announced_s = 0.0, list[float]()
    progress = LiveProgress(Console(file=io.StringIO()), groups, processes, clock=lambda: now_s)

    def take(group: Group) -> None:
        nonlocal now_s
        announced_s.append(now_s + (progress.left_s() or 0.0))
        now_s += HEAVY.least_s(len(group.cases), schedule.fewest(group)) + 0.3

    world.trouble = take
    replace(world.runner(processes), progress=progress).measure(schedule, groups)
    assert len(announced_s) == 12 * processes
    assert announced_s[4:] == pytest.approx([now_s] * (len(announced_s) - 4), rel=0.05)


def test_problems_that_hardly_count_in_a_step_get_fewer_rounds(world: World) -> None:
    """A step of many layers takes less time to measure, and what is left is told with it."""
    large, small, middle = group_of(8192), group_of(2048), group_of(4096)
    layers = [LayerUse(large.name, "fprop", 3, ()), LayerUse(small.name, "fprop", 1, ()),
              LayerUse(middle.name, "fprop", 1, ())]  # fmt: skip
    groups = [large, small, middle]
    minor = minor_groups(groups, NetworkUse("made up", 1, None, tuple(layers)))
    assert minor == [small.name]
    assert minor_groups(groups, None) == []
    often = [replace(layers[0], count=1), replace(layers[1], count=9)]
    assert minor_groups(groups[:2], NetworkUse("made up", 1, None, tuple(often))) == []
    order, whole = (InOrder(groups, 0.1, "cuda", minor=names) for names in (minor, ()))
    round_s = len(small.cases) * (HEAVY.warm_s + HEAVY.block_s)
    saved = (FEWEST_ROUNDS - FEWEST_OF_SEVERAL) * round_s
    assert whole.sampling_s(groups) - order.sampling_s(groups) == pytest.approx(saved)
    world.runner().measure(order)
    assert world.sessions[0].rounds == [FEWEST_ROUNDS, FEWEST_OF_SEVERAL, FEWEST_ROUNDS]


# ---------------------------------------------------------------- ceilings


def test_a_precision_without_a_large_case_has_its_ceiling_measured(world: World) -> None:
    world.runner().measure(InOrder([group_of(64, "fp32", "fp16")], 1.0))
    ((precisions, large),) = world.sessions[0].calibrated
    assert set(precisions) == set(large) == {"fp32", "fp16"}
    run = world.runner().measure(InOrder([group_of(64), group_of(8192)], 1.0))
    assert world.sessions[-1].calibrated[0][1] == ()
    ceiling = run.ceiling("large GEMM", "measured", "fp16")
    assert ceiling.flop_per_s == pytest.approx(2 * 8192**3 / world.sessions[-1].seconds)


# ---------------------------------------------------------------- runner processes


GROUPS = [group_of(64), group_of(128, "fp32", "fp16", "bf16")]


def numbers(run: Run) -> dict[str, tuple[int, ...]]:
    """Which processes measured each case."""
    return {
        result.case.key: tuple(p.number for p in result.measurement.processes)
        for result in run.results
        if result.measurement
    }


def test_each_case_is_measured_in_as_many_fresh_processes_of_fewer_rounds_each(
    world: World,
) -> None:
    """Each group of each process is on disk before the next begins."""
    seen: list[list[int]] = []

    def look(_: Group) -> None:
        if world.path.exists():  # since the first group
            seen.append([max(1, len(one)) for one in numbers(read_run(world.path)).values()])

    world.trouble = look
    run = world.runner(3).measure(InOrder(GROUPS, 30.0, processes=3), GROUPS)
    assert seen == [[1, 1], [1] * 5, [2, 2, 1, 1, 1], [2] * 5, [3, 3, 2, 2, 2]]
    assert numbers(run) == {case.key: (0, 1, 2) for group in GROUPS for case in group.cases}
    assert [[group for group, _ in s.asked] for s in world.sessions] == [GROUPS] * 3
    assert [s.checked for s in world.sessions] == [[False] * 2, [True] * 2, [True] * 2]
    assert all(session.closed for session in world.sessions)
    for result in run.results:
        assert [p.median_s for p in result.measurement.processes] == [1e-3, 2e-3, 4e-3]
        assert result.measurement.median_s == pytest.approx(2e-3)  # their geometric mean
        assert result.measurement.times_s == (1e-3,) * 3 + (2e-3,) * 3 + (4e-3,) * 3
    assert read_run(world.path) == run
    assert run.finished_at == "the end"
    # They share the seconds.
    shares = [[share for _, share in session.asked] for session in world.sessions]
    assert shares == [pytest.approx(shares[0])] * 3
    assert math.fsum(map(math.fsum, shares)) == pytest.approx(30.0)
    lefts = [left for _, _, left in world.progress.lines]
    assert lefts == pytest.approx([30.0 - spent for spent in accumulate(chain(*shares))])
    assert [session.rounds for session in world.sessions] == [[FEWEST_OF_SEVERAL] * 2] * 3
    names = [group.name for group in GROUPS]
    assert world.progress.passes == [(2, 3, names), (3, 3, names)]
    assert world.loaded_ahead == 4  # after each group, as long as a process follows
    world.path.unlink()
    alone = World(world.path)
    alone.runner().measure(InOrder(GROUPS, 30.0), GROUPS)
    assert alone.sessions[0].rounds == [FEWEST_ROUNDS] * 2
    assert (alone.progress.passes, alone.loaded_ahead) == ([], 0)


def test_a_case_that_kills_a_later_process_keeps_what_it_had_and_no_number_is_given_twice(
    world: World,
) -> None:
    bad = GROUPS[0].cases[0].key
    deaths = iter([True])

    def die_once(asked: Group) -> None:
        keys_asked = [case.key for case in asked.cases]
        if len(world.sessions) == 2 and bad in keys_asked and next(deaths, False):
            raise WorkerDied(bad, "illegal memory access")

    world.trouble = die_once
    kept = world.runner(3).measure(InOrder(GROUPS, 30.0), GROUPS)
    found = numbers(kept)
    assert found.pop(bad) == (0, 2)
    assert set(found.values()) == {(0, 1, 2)}
    assert [result.status for result in kept.results] == ["ok"] * 5
    assert len(world.sessions) == 4
    assert all(session.closed for session in world.sessions)
    again = World(world.path, run=kept)
    run = again.runner(3).measure(InOrder([], 0.0), GROUPS)
    found = numbers(run)
    assert found.pop(bad) == (0, 2, 3)
    assert found.pop(GROUPS[0].cases[1].key) == (0, 1, 2, 3)
    assert {*found.values()} == {(0, 1, 2)}
    assert read_run(world.path) == run


def test_a_comparison_that_lacks_a_case_is_measured_anew_unless_it_has_no_time(
    world: World,
) -> None:
    done = world.runner(2).measure(InOrder(GROUPS, 30.0), GROUPS)
    lost = GROUPS[1].cases[-1]
    kept = [result for result in done.results if result.case != lost]
    failed = Result(lost, "failed", reason="hung")
    again = World(world.path)
    again.run = empty_run().with_results([*kept, failed])
    left = missing(GROUPS, again.run)
    assert left == [GROUPS[1]]
    run = again.runner(2).measure(InOrder(left, 30.0), GROUPS)
    assert numbers(run) == {case.key: (0, 1) for group in GROUPS for case in group.cases}
    world.sessions.clear()
    group = GROUPS[0]
    skipped = Result(group.cases[0], "skipped", reason="no")
    world.run = empty_run().with_results([skipped, result_of(group.cases[1])])
    run = world.runner(2).measure(InOrder([], 0.0), [group])
    assert world.asked() == [Group((group.cases[1],))]
    assert run.by_key[group.cases[0].key] == skipped


def test_an_interrupted_run_is_resumed_with_the_missing_processes(world: World) -> None:
    def interrupt(asked: Group) -> None:
        if len(world.sessions) == 2 and asked == GROUPS[1]:
            raise KeyboardInterrupt

    world.trouble, runner = interrupt, world.runner(3)
    with pytest.raises(KeyboardInterrupt):
        runner.measure(InOrder(GROUPS, 30.0), GROUPS)
    kept = read_run(world.path)
    assert runner.run == kept
    assert all(session.closed for session in world.sessions)
    assert sorted(map(len, numbers(kept).values())) == [0, 0, 0, 2, 2]
    assert kept.finished_at is None
    again = World(world.path, run=kept)
    run = again.runner(3).measure(InOrder([], 0.0), GROUPS)
    assert set(numbers(run).values()) == {(0, 1, 2)}
    assert again.asked() == [GROUPS[1], *GROUPS]
    assert keys(run.results) == [case.key for group in GROUPS for case in group.cases]
    assert few_processes(GROUPS, run, 2) == []


# ---------------------------------------------------------------- estimate


CPU = Target("cpu", "a CPU", None, 2)


def case(size: int, precision: str = "fp16") -> Case:
    return Case(Gemm(size, size, size), precision, "cpu")


def taught(size: int, seconds: float, precision: str = "fp16") -> Estimator:
    estimator = Estimator()
    estimator.learn(case(size, precision), seconds)
    return estimator


def refusal(estimator: Estimator, size: int, budget_s: float, spoken_for_s: float = 0.0) -> str:
    with pytest.raises(CannotRun) as caught:
        estimator.admit(case(size), CPU, budget_s, spoken_for_s)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_time_grows_with_the_work_a_new_kind_is_probed_and_what_does_not_fit_refused() -> None:
    assert Estimator().expected_s(case(512)) == 0.0
    estimator = taught(256, 1.0)
    assert estimator.expected_s(case(512, "bf16")) == 0.0
    assert estimator.expected_s(case(512)) == pytest.approx(8.0)
    assert estimator.expected_s(case(128)) == pytest.approx(1 / 8)
    estimator.learn(case(64), 1.0)
    assert estimator.expected_s(case(512)) == pytest.approx(8.0)
    estimator.learn(case(1024), 80.0)
    assert estimator.expected_s(case(512)) == pytest.approx(10.0)
    estimator = taught(256, 0.1)
    estimator.admit(case(512), CPU, LAUNCHES_NEEDED * 0.8 + 0.01, 0.0)
    estimator.admit(case(256), CPU, 1.0, 0.0)
    assert "left" in refusal(estimator, 256, 1.0, spoken_for_s=0.15), "others take it"
    said = refusal(taught(1024, 7.0), 2048, 10.0)
    assert all(words in said for words in ("56.0 s", "10.0 s", "--budget"))
    assert re.search(r"\d+ ms a launch", refusal(taught(256, 0.05), 256, 0.1))
    assert re.search(r"\d+ min a launch", refusal(taught(256, 1.0), 4096, 10.0))
    estimator = Estimator()
    with pytest.raises(CannotRun):  # without its matrices of 12 TB
        estimator.admit(case(10**6, "fp32"), CPU, 1.0, 0.0)
    estimator = Estimator()
    estimator.admit(case(256, "fp32"), CPU, 60.0, 0.0)
    assert 0 < estimator.expected_s(case(256, "fp32")) < 60.0
    with pytest.raises(CannotRun, match="estimated"):
        estimator.admit(case(10**6, "fp32"), CPU, 5.0, 0.0)


@pytest.mark.parametrize(
    ("seen", "seconds", "size", "budget_s", "most_s"),
    [
        (16, 0.001, 1024, 60.0, 60.0),  # 4 min, were it all work
        (64, 0.02, 256, 2.0, 2.0 / LAUNCHES_NEEDED),  # waited on a busy CPU: it takes a few ms
    ],
)
def test_what_a_small_launch_waited_is_not_scaled_to_a_larger_case(
    seen: int, seconds: float, size: int, budget_s: float, most_s: float
) -> None:
    """Overhead does not grow with the work: the probe grows before a case is refused."""
    estimator = taught(seen, seconds, "fp32")
    estimator.admit(case(size, "fp32"), CPU, budget_s, 0.0)
    assert estimator.expected_s(case(size, "fp32")) < most_s
