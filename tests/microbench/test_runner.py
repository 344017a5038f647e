"""Order, run file, deaths, interrupts and resuming, with a made-up measuring session."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from samples.measuring import FakeSession, World, empty_run, group_of, keys, result_of

from microbench.conditions import Conditions
from microbench.estimate import MORE
from microbench.plans import plan_gemm
from microbench.results.runfile import read_run
from microbench.results.types import Ceiling, Result, Run
from microbench.run import InOrder, Runner, default_budget_s, group_weight, missing
from microbench.run_output import save
from microbench.sweep import Group
from microbench.timing import FEWEST_ROUNDS
from microbench.timing.interleave import HEAVY
from microbench.worker import OnStage, WorkerDied


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "run.json")


def test_groups_are_measured_in_order_and_every_case_has_a_result(world: World) -> None:
    groups = [group_of(64), group_of(32), group_of(128)]
    run = world.runner().measure(InOrder(groups, 10.0))
    assert world.asked() == groups
    assert keys(run.results) == [case.key for group in groups for case in group.cases]
    assert read_run(world.path) == run
    assert [name for name, _, _ in world.progress.lines] == [group.name for group in groups]
    assert [session.closed for session in world.sessions] == [1]


def test_what_is_done_is_on_disk_before_the_next_group_begins(world: World) -> None:
    groups = [group_of(64), group_of(128), group_of(256)]
    seen: list[tuple[int, object]] = []

    def look(_: Group) -> None:
        if world.path.exists():
            run = read_run(world.path)
            seen.append((len(run.results), run.finished_at))
            assert run.ceilings
        else:
            assert not world.sessions[0].calibrated, "the first row comes before the ceilings"

    world.trouble = look
    world.runner().measure(InOrder(groups, 10.0))
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

    monkeypatch.setattr("microbench.run.save", slow)
    groups = [group_of(64 + i) for i in range(20)]
    world.trouble = interrupt
    with pytest.raises(KeyboardInterrupt):
        replace(world.runner(), saving=1e-6).measure(InOrder(groups, 10.0))
    assert written == [2, 38]
    assert len(read_run(world.path).results) == 38


@pytest.mark.parametrize("deadly", [{"tf32"}, {"fp32", "tf32", "fp16"}])
def test_a_death_fails_the_blamed_case_only(world: World, deadly: set[str]) -> None:
    group, after = group_of(64, "fp32", "tf32", "fp16"), group_of(128)

    def die(asked: Group) -> None:
        bad = [case for case in asked.cases if case.precision_name in deadly and asked != after]
        if bad:
            raise WorkerDied(bad[-1].key, "illegal memory access")

    world.trouble = die
    run = world.runner().measure(InOrder([group, after], 10.0))
    assert keys(run.results) == [c.key for g in (group, after) for c in g.cases]
    failed = {r.case.precision_name: r.reason for r in run.results if r.status != "ok"}
    assert failed == dict.fromkeys(deadly, "illegal memory access")
    assert run.finished_at == "the end"
    assert all(session.closed for session in world.sessions)
    assert len(world.sessions) == 1 + len(deadly)


def test_a_death_while_ceilings_are_taken_does_not_end_the_run(world: World) -> None:
    """One precision's faulting kernel costs its own cases, wherever it is launched first."""
    deaths = iter([True])

    class Mortal(FakeSession):
        def calibrate(
            self,
            precisions: Sequence[str],
            large: Sequence[str],
            on_stage: OnStage,
        ) -> list[Ceiling]:
            if next(deaths, False):
                raise WorkerDied("gemm/m=64,n=64,k=64/nt/normal/fp16/cublas", "illegal access")
            return super().calibrate(precisions, large, on_stage)

    def start() -> FakeSession:
        world.sessions.append(Mortal(world.trouble))
        return world.sessions[-1]

    group = group_of(64)
    runner = Runner(world.run, "cuda", world.path, start, world.progress)
    run = runner.measure(InOrder([group], 10.0))
    assert run.result(group.cases[0].key) is not None
    assert run.results[0].status == "ok"


def test_ctrl_c_keeps_what_is_done(world: World) -> None:
    groups = [group_of(64), group_of(128), group_of(256)]

    def interrupt(asked: Group) -> None:
        if asked == groups[1]:
            raise KeyboardInterrupt

    world.trouble = interrupt
    runner = world.runner()
    with pytest.raises(KeyboardInterrupt):
        runner.measure(InOrder(groups, 10.0))
    kept = read_run(world.path)
    assert keys(kept.results) == [case.key for case in groups[0].cases]
    assert kept.finished_at is None
    assert runner.run == kept
    assert all(session.closed for session in world.sessions)
    left = missing(groups, kept)
    assert left == groups[1:]
    again = World(world.path, run=kept)
    run = again.runner().measure(InOrder(left, 10.0))
    assert again.asked() == left
    assert sorted(keys(run.results)) == sorted(c.key for g in groups for c in g.cases)
    assert (run.finished_at, missing(groups, run)) == ("the end", [])


def test_ctrl_c_after_a_death_closes_the_new_process_too(world: World) -> None:
    def die_then_interrupt(asked: Group) -> None:
        if len(asked.cases) == 2:
            raise WorkerDied(asked.cases[0].key, "hung")
        raise KeyboardInterrupt

    world.trouble = die_then_interrupt
    with pytest.raises(KeyboardInterrupt):
        world.runner().measure(InOrder([group_of(64)], 10.0))
    assert [session.closed > 0 for session in world.sessions] == [True, True]


def test_what_failed_is_tried_again_and_its_new_result_takes_its_place(world: World) -> None:
    group = group_of(64, backends=("cublas", "triton"))
    bad = Result(group.cases[3], "failed", reason="hung")
    done = [result_of(case) for case in group.cases[:3]]
    world.run = empty_run().with_results([*done, bad])
    left = missing([group], world.run)
    assert len(left) == 1
    assert group.cases[3] in left[0].cases
    run = world.runner().measure(InOrder(left, 10.0))
    assert len(run.results) == 4
    again = run.result(bad.case.key)
    assert again is not None
    assert again.status == "ok"


def test_a_missing_arm_is_timed_beside_its_baselines_again() -> None:
    groups = plan_gemm(Conditions(backend="cublas,triton"), "cuda", sizes="64", layouts="nt")
    done = [result_of(case) for case in groups[0].cases if case.backend != "triton"]
    (left,) = missing(groups, empty_run().with_results(done))
    names = {(case.precision_name, case.backend) for case in left.cases}
    assert names >= {("fp32", "cublas"), ("tf32", "cublas"), ("fp16", "triton")}


def test_skipped_is_an_answer_that_stays(world: World) -> None:
    group = group_of(64)
    run = empty_run().with_results([Result(case, "skipped", reason="no") for case in group.cases])
    assert missing([group], run) == missing([group], run, retry_skipped=True) == []


def test_a_larger_budget_retries_what_was_skipped_for_want_of_time_alone() -> None:
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


def test_the_main_command_on_a_gpu_fits_its_half_minute() -> None:
    groups = plan_gemm(Conditions(), "cuda", sizes="256..8192", layouts="nt")
    assert default_budget_s(groups, "cuda") <= 30
    assert default_budget_s(groups, "cpu") <= 90


def test_what_will_be_too_long_is_not_in_the_time_that_is_left() -> None:
    """On a CPU, where a case that does not fit its share is not begun."""
    groups = [group_of(size, "fp32", backends=("cpu",)) for size in (256, 512, 4096)]
    schedule = InOrder(groups, 3.0)
    schedule.next()
    before_s = schedule.left_s()
    schedule.learn([result_of(groups[0].cases[0], seconds=0.01)])
    following = schedule.next()
    assert following
    assert schedule.left_s() == 0.0
    assert before_s > following[1]


def test_what_large_cases_take_at_least_counts_beyond_a_short_budget() -> None:
    groups = [group_of(4096), group_of(8192)]
    short, long = (InOrder(groups, budget_s, "cuda").left_s() for budget_s in (0.1, 1000.0))
    turns = 2 * len(groups[0].cases) * (HEAVY.discarded + FEWEST_ROUNDS)
    assert short > turns * HEAVY.warm_s
    assert long == 1000.0
    assert InOrder(groups, 0.1).left_s() == pytest.approx(0.1), "nothing warms up a CPU"
    assert InOrder([group_of(64)], 0.1, "cuda").left_s() == 0.1


# ---------------------------------------------------------------- ceilings


def test_a_precision_without_a_large_case_has_its_ceiling_measured(world: World) -> None:
    world.runner().measure(InOrder([group_of(64, "fp32", "fp16")], 1.0))
    ((precisions, large),) = world.sessions[0].calibrated
    assert set(precisions) == set(large) == {"fp32", "fp16"}
    run = world.runner().measure(InOrder([group_of(64), group_of(8192)], 1.0))
    assert world.sessions[-1].calibrated[0][1] == ()
    ceiling = run.ceiling("large GEMM", "measured", "fp16")
    assert ceiling is not None
    assert ceiling.flop_per_s == pytest.approx(2 * 8192**3 / world.sessions[-1].seconds)
