"""Where the time of a run goes: each second belongs to one stage, and the run file keeps it."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from samples.training_runs import arm, run_of

from e2e.commands.progress import START_UP, StageTimes, TrainProgress
from e2e.report.costs import STAGES, stages_lines

NAMES = ["setting up", "timing, round 3: 812 img/s", "timing, round 4", "recording steps"]


class Clock:
    """A clock that is moved by hand."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 1000))))
def test_the_seconds_of_all_stages_are_those_of_the_run(entered: list[tuple[str, int]]) -> None:
    clock = Clock()
    stages = StageTimes(clock)
    for stage, quarters in entered:
        stages.enter(stage)
        clock.now_s += quarters / 4
    took_s = stages.so_far({})
    assert sum(took_s.values()) == pytest.approx(clock.now_s - Clock.now_s)
    assert set(took_s) <= {START_UP, "setting up", "timing", "recording steps"}
    timing_s = sum(quarters for stage, quarters in entered if stage.startswith("timing")) / 4
    assert took_s.get("timing", 0.0) == pytest.approx(timing_s)
    again = stages.so_far(took_s)
    assert sum(again.values()) == pytest.approx(2 * sum(took_s.values())), "a resumed run adds"


def test_what_the_variants_announce_is_timed_and_the_first_line_says_how_long() -> None:
    clock, out = Clock(), io.StringIO()
    case = arm("amp", 800.0).case
    progress = TrainProgress(Console(file=out, width=90), 1, clock=clock)
    progress.begins((case,), 42.0)
    assert "resnet50 batch 256, 1 variant: about 42 s" in out.getvalue()
    clock.now_s += 2
    assert progress.left_s() == pytest.approx(40)
    progress.stage(case.key, "recording steps")
    clock.now_s += 3
    progress.doing("ledgers and causes")
    clock.now_s += 1
    took_s = progress.stages.so_far({})
    assert took_s == {START_UP: 2.0, "recording steps": 3.0, "ledgers and causes": 1.0}


def test_the_report_has_a_line_a_stage_and_their_sum() -> None:
    run = run_of(arm("amp", 800.0), settings={STAGES: {"start-up": 8.25, "timing": 15.0}})
    text = "\n".join(line.plain for line in stages_lines(run, 80))
    for said in ("start-up", "8.2", "timing", "15.0", "in all", "23.2"):
        assert said in text
    assert stages_lines(run_of(arm("amp", 800.0)), 80) == []
    damaged = run_of(arm("amp", 800.0), settings={STAGES: ["timing"]})
    assert stages_lines(damaged, 80) == []
