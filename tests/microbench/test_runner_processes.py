"""Each case measured by several fresh processes: deaths, interrupts, resuming, the run file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from samples.measuring import World, empty_run, group_of, keys, result_of

from microbench.results.runfile import read_run
from microbench.results.types import Result, Run
from microbench.run import InOrder, few_processes, missing
from microbench.sweep import Group
from microbench.timing import FEWEST_OF_SEVERAL, FEWEST_ROUNDS
from microbench.worker import WorkerDied

GROUPS = [group_of(64), group_of(128, "fp32", "fp16", "bf16")]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "run.json")


def numbers(run: Run) -> dict[str, tuple[int, ...]]:
    """Which processes measured each case."""
    return {
        result.case.key: tuple(p.number for p in result.measurement.processes)
        for result in run.results
        if result.measurement
    }


def test_each_case_is_measured_in_as_many_fresh_processes(world: World) -> None:
    run = world.runner(3).measure(InOrder(GROUPS, 30.0), GROUPS)
    assert numbers(run) == {case.key: (0, 1, 2) for group in GROUPS for case in group.cases}
    assert [[group for group, _ in s.asked] for s in world.sessions] == [GROUPS] * 3
    assert [s.checked for s in world.sessions] == [[False] * 2, [True] * 2, [True] * 2]
    assert all(session.closed for session in world.sessions)
    for result in run.results:
        assert result.measurement is not None
        assert [p.median_s for p in result.measurement.processes] == [1e-3, 2e-3, 4e-3]
        assert result.measurement.median_s == pytest.approx(2e-3)  # their geometric mean
        assert result.measurement.times_s == (1e-3,) * 3 + (2e-3,) * 3 + (4e-3,) * 3
    assert read_run(world.path) == run
    assert run.finished_at == "the end"


def test_the_processes_share_the_seconds(world: World) -> None:
    world.runner(3).measure(InOrder(GROUPS, 30.0), GROUPS)
    shares = [[share for _, share in session.asked] for session in world.sessions]
    assert shares[0] == pytest.approx(shares[1])
    assert shares[0] == pytest.approx(shares[2])
    assert math.fsum(map(math.fsum, shares)) == pytest.approx(30.0)
    assert [left for _, _, left in world.progress.lines[2:4]] == pytest.approx([shares[1][1], 0.0])


def test_one_of_several_processes_takes_fewer_rounds_than_one_alone(world: World) -> None:
    world.runner(3).measure(InOrder(GROUPS, 30.0), GROUPS)
    assert [session.rounds for session in world.sessions] == [[FEWEST_OF_SEVERAL] * 2] * 3
    alone = World(world.path)
    alone.runner().measure(InOrder(GROUPS, 30.0), GROUPS)
    assert alone.sessions[0].rounds == [FEWEST_ROUNDS] * 2


def test_the_next_process_loads_ahead_and_the_progress_begins_again(world: World) -> None:
    names = [group.name for group in GROUPS]
    world.runner(3).measure(InOrder(GROUPS, 30.0), GROUPS)
    assert world.progress.passes == [(2, 3, names), (3, 3, names)]
    assert world.loaded_ahead == 4  # after each group, as long as a process follows
    alone = World(world.path)
    alone.runner().measure(InOrder(GROUPS, 30.0), GROUPS)
    assert (alone.progress.passes, alone.loaded_ahead) == ([], 0)


def test_each_group_of_each_process_is_on_disk_before_the_next_begins(world: World) -> None:
    seen: list[list[int]] = []

    def look(_: Group) -> None:
        if world.path.exists():  # since the first group
            seen.append([max(1, len(one)) for one in numbers(read_run(world.path)).values()])

    world.trouble = look
    world.runner(2).measure(InOrder(GROUPS, 30.0), GROUPS)
    assert seen == [[1, 1], [1] * 5, [2, 2, 1, 1, 1]]


def test_a_case_that_kills_a_later_process_keeps_what_it_had(world: World) -> None:
    bad = GROUPS[1].cases[1].key
    deaths = iter([True])

    def die_once(asked: Group) -> None:
        if len(world.sessions) > 1 and bad in keys_of(asked) and next(deaths, False):
            raise WorkerDied(bad, "illegal memory access")

    world.trouble = die_once
    run = world.runner(3).measure(InOrder(GROUPS, 30.0), GROUPS)
    found = numbers(run)
    assert found.pop(bad) == (0, 2)
    assert set(found.values()) == {(0, 1, 2)}
    assert [result.status for result in run.results] == ["ok"] * 5
    assert len(world.sessions) == 4
    assert all(session.closed for session in world.sessions)


def test_a_resumed_run_gives_no_process_a_number_twice(world: World) -> None:
    first, other = (case.key for case in GROUPS[0].cases)
    deaths = iter([True])

    def die_once(asked: Group) -> None:
        if len(world.sessions) == 2 and first in keys_of(asked) and next(deaths, False):
            raise WorkerDied(first, "illegal memory access")

    world.trouble = die_once
    kept = world.runner(3).measure(InOrder(GROUPS, 30.0), GROUPS)
    assert numbers(kept)[first] == (0, 2)
    again = World(world.path, run=kept)
    run = again.runner(3).measure(InOrder([], 0.0), GROUPS)
    assert (numbers(run)[first], numbers(run)[other]) == ((0, 2, 3), (0, 1, 2, 3))
    assert read_run(world.path) == run


def test_a_comparison_that_lacks_a_case_is_measured_anew_in_the_same_processes(
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


def test_what_has_no_time_is_not_measured_again(world: World) -> None:
    group = GROUPS[0]
    skipped = Result(group.cases[0], "skipped", reason="no")
    world.run = empty_run().with_results([skipped, result_of(group.cases[1])])
    run = world.runner(2).measure(InOrder([], 0.0), [group])
    assert world.asked() == [Group((group.cases[1],))]
    assert run.result(group.cases[0].key) == skipped


def test_an_interrupted_run_is_resumed_with_the_missing_processes(world: World) -> None:
    def interrupt(asked: Group) -> None:
        if len(world.sessions) == 2 and asked == GROUPS[1]:
            raise KeyboardInterrupt

    world.trouble = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.runner(3).measure(InOrder(GROUPS, 30.0), GROUPS)
    kept = read_run(world.path)
    assert sorted(map(len, numbers(kept).values())) == [0, 0, 0, 2, 2]
    assert kept.finished_at is None
    again = World(world.path, run=kept)
    run = again.runner(3).measure(InOrder([], 0.0), GROUPS)
    assert set(numbers(run).values()) == {(0, 1, 2)}
    assert again.asked() == [GROUPS[1], *GROUPS]
    assert keys(run.results) == [case.key for group in GROUPS for case in group.cases]
    assert few_processes(GROUPS, run, 2) == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_of_one_process_lacks_the_others(number: int) -> None:
    run = empty_run().with_results([result_of(case) for case in GROUPS[0].cases])
    assert few_processes(GROUPS, run, 0) == []
    assert few_processes(GROUPS, run, number) == [GROUPS[0]]


def keys_of(group: Group) -> list[str]:
    return [case.key for case in group.cases]
