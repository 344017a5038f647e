"""What is said of a step's GPU time as predicted from its operations, and beside what was measured.
"""  # fmt: skip

from __future__ import annotations

from dataclasses import replace

import pytest
from samples.training_runs import arm, run_of

from e2e.report.arms import view_of
from e2e.report.predictions import error_pct, prediction_part, prediction_sentences
from e2e.report.table import part_lines
from e2e.results.types import PREDICTED, Predicted, Training
from microbench.results.types import Run

ALONE = Predicted(
    0.040, (0.038, 0.042), None, {"fp32": 2.5}, memory_bytes=11_600_000_000, gpu_s=0.040,
    host_s=0.012, launches=605,
)  # fmt: skip


def planted(predicted: Predicted, busy_s: float | None = None) -> Training:
    """A step that was only predicted, or one of which kernels ran for so long."""
    made = arm("amp", 256.0)
    assert made.steps
    steps = replace(made.steps, busy_s=busy_s) if busy_s else None
    return replace(made, predicted=predicted, steps=steps, status="ok" if steps else PREDICTED)


def said(run: Run) -> str:
    view = view_of(run)
    return " ".join(line for family in view.families for line in prediction_sentences(view, family))


def test_time_interval_memory_and_launches_are_said() -> None:
    text = said(run_of(planted(ALONE)))
    for part in ("40.0 ms of the GPU a step, 38.0..42.0", "11.6 GB", "605 launches",
                 "about 12.0 ms of this CPU", "fp32 takes 2.50 times as long"):  # fmt: skip
        assert part in text
    assert "may be the limit" not in text


@pytest.mark.parametrize(("host_s", "may"), [(0.020, False), (0.030, True), (0.300, True)])
def test_launching_may_be_the_limit(host_s: float, may: bool) -> None:
    text = said(run_of(planted(replace(ALONE, host_s=host_s))))
    assert ("may be the limit" in text) is may


def test_what_has_no_time_makes_it_a_least() -> None:
    lacks = replace(
        ALONE, interval_s=None, uncovered=("2 x aten.nonzero.default: why (2 of 605 calls)",)
    )
    text = said(run_of(planted(lacks)))
    assert "at least 40.0 ms" in text
    assert "No time is known of 2 x aten.nonzero.default" in text


def test_of_a_cpu_it_is_rough() -> None:
    text = said(run_of(planted(replace(ALONE, gpu_s=None, interval_s=None, launches=0))))
    assert "of operations a step" in text
    assert "rough" in text


def test_the_error_is_that_of_the_gpu_s_time_and_of_no_step() -> None:
    measured = planted(ALONE, busy_s=0.041)
    assert error_pct(measured) == pytest.approx(-2.4, abs=0.05)
    assert error_pct(planted(ALONE)) is None
    assert ALONE.beside(0.5).error_pct is None
    assert measured.predicted_per_s is None
    run = run_of(measured)
    assert "median 2.4 %, worst 2.4 %" in said(run)
    screen = "\n".join(line.plain for line in part_lines(prediction_part(view_of(run)), 120))
    for part in ("40.0", "41.0", "-2.4", "605", "12.0"):
        assert part in screen
