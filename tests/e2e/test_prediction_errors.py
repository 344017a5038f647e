"""The error table of a validation, from planted predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples.training_runs import arm, run_of

from e2e.report.errors import (
    Hits,
    Line,
    error_sentences,
    error_table,
    intervals_kept,
    limits_named,
    on_the_border,
)
from e2e.results.types import Predicted, Training
from microbench.report.export import to_markdown

GPU, CAPTURED, HOST = (
    "step, bottleneck GPU", "step, timed as a captured graph", "step, bottleneck CPU launch",
)  # fmt: skip


def planted(
    off_pct: float,
    *,
    limit: str | None = "gpu",
    said: str = "gpu",
    half_pct: float = 3.0,
    memory: tuple[int, int] = (100, 100),
    recipe: str = "amp",
    **case: object,
) -> Training:
    """A training whose step was predicted this much too long, with an interval round it."""
    made = arm(recipe, 256.0, limit=limit, case=case, memory_peak_bytes=memory[1])
    assert made.step_s is not None
    step_s = made.step_s * (1 + off_pct / 100)
    ends = (step_s * (1 - half_pct / 100), step_s * (1 + half_pct / 100))
    return replace(made, predicted=Predicted(step_s, ends, said, {}, memory[0], error_pct=off_pct))


def line(trainings: list[Training], what: str) -> Line:
    (found,) = (each for each in error_table(trainings) if each.what == what)
    return found


def test_errors_count_by_size_and_the_furthest_off_is_named() -> None:
    some = [planted(off, batch=batch) for batch, off in ((8, -2.0), (16, 0.5), (32, 1.0))]
    found = line(some, GPU)
    assert (found.count, found.median_pct, found.largest_pct) == (3, 1.0, 2.0)
    assert found.worst == "resnet50 amp nhwc batch 8"
    assert found.met
    for offs, met in (([0.5, 0.9, 2.9], True), ([0.5, 1.1, 1.2], False), ([0.1, 0.1, 3.1], False)):
        assert line([planted(off) for off in offs], GPU).met is met


def test_steps_are_told_apart_by_what_limits_them_as_measured() -> None:
    some = [
        planted(1.0), planted(30.0, limit="host", said="gpu"),
        planted(40.0, limit="host", said="host"), planted(50.0, graph=True),
    ]  # fmt: skip
    paced = [replace(t, predicted=t.predicted and replace(t.predicted, paced_s=1.05 * t.step_s))
             for t in some if t.step_s]  # fmt: skip
    found = {each.what: (each.count, each.largest_pct, each.target) for each in error_table(paced)}
    assert found[GPU] == (1, 1.0, (1.0, 3.0))
    assert found[CAPTURED][:2] == (1, 50.0)
    assert found[HOST] == (2, 40.0, (8.0, 20.0))
    assert found["step, bottleneck predicted as GPU"] == (2, 30.0, None)
    corrected = found["the same, corrected for the CPU's speed"]
    assert (corrected[0], corrected[1]) == (2, pytest.approx(5.0))
    on_cpu, *_ = error_table([planted(40.0, limit=None)])
    assert (on_cpu.what, on_cpu.largest_pct) == ("step, on a CPU", 40.0)
    assert (on_cpu.verdict, on_cpu.met) == ("", True), "it has no target"


def test_limits_and_intervals_are_counted() -> None:
    made = [planted(0.0), planted(0.0, limit="host"), planted(0.0, limit="host", said="host")]
    border = [planted(2.0, said="border"), planted(3.0, said="border", limit="host")]
    assert limits_named(made) == Hits(2, 3)
    assert limits_named([replace(made[0], predicted=None)]) == Hits(0, 0)
    assert (limits_named([*made, *border]), on_the_border(border)) == (Hits(2, 5), Hits(2, 2))
    made = [planted(2.0), planted(-2.0), planted(9.0), planted(50.0, limit="host", half_pct=60)]
    assert intervals_kept(made, "gpu") == Hits(2, 3)
    assert intervals_kept(made, "host") == Hits(1, 1)


def test_screen_and_markdown_have_the_table_with_its_counts() -> None:
    run = run_of(planted(0.5), planted(30.0, limit="host", said="host", batch=8))
    said = error_sentences(run)
    assert "The bottleneck was classified correctly in 2 of 2 (100%)." in said
    assert "| step, bottleneck GPU | 1 | 0.5 | 0.5 | 1 / 3 met |" in to_markdown(run)
    assert "8 / 20 missed" in to_markdown(run)
