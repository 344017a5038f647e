"""The error table of a validation, from planted predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples.training_runs import arm, ratio_of, run_of

from e2e.report.errors import (
    ERRORS_TITLE,
    Hits,
    Line,
    error_sentences,
    error_table,
    errors_lines,
    intervals_kept,
    limits_named,
    measured_half_pct,
    on_the_border,
)
from e2e.report.run_report import training_sections
from e2e.results.types import PREDICTED, Predicted, Training
from microbench.report.export import to_markdown

GPU, CAPTURED, HOST, PACED = (
    "step, bottleneck GPU", "step, timed as a captured graph", "step, bottleneck CPU launch",
    "the same, corrected for the CPU's speed",
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


@pytest.mark.parametrize(
    ("offs", "met"), [([0.5, 0.9, 2.9], True), ([0.5, 1.1, 1.2], False), ([0.1, 0.1, 3.1], False)]
)
def test_a_target_is_missed_by_the_middle_or_by_the_worst(offs: list[float], met: bool) -> None:
    assert line([planted(off) for off in offs], GPU).met is met


def test_steps_are_told_apart_by_what_limits_them_as_measured() -> None:
    both = [planted(1.0), planted(7.0, limit="host", said="gpu"), planted(2.0, graph=True)]
    assert [line(both, what).largest_pct for what in (GPU, CAPTURED, HOST)] == [1.0, 2.0, 7.0]
    assert line([planted(10.0, limit="host")], HOST).target == (8.0, 20.0)


def test_steps_said_to_be_the_gpus_have_a_row_whatever_they_turned_out_to_be() -> None:
    some = [
        planted(1.0), planted(30.0, limit="host", said="gpu"),
        planted(40.0, limit="host", said="host"), planted(50.0, graph=True),
    ]  # fmt: skip
    found = line(some, "step, bottleneck predicted as GPU")
    assert (found.count, found.largest_pct, found.target) == (2, 30.0, None)
    on_cpu, *_ = error_table([planted(40.0, limit=None)])
    assert (on_cpu.what, on_cpu.largest_pct) == ("step, on a CPU", 40.0)
    assert (on_cpu.verdict, on_cpu.met) == ("", True), "it has no target"


def test_the_border_is_a_class_of_its_own() -> None:
    some = [
        planted(1.0), planted(2.0, said="border"), planted(3.0, said="border", limit="host"),
        planted(4.0, said="host"),
    ]  # fmt: skip
    assert (limits_named(some), on_the_border(some)) == (Hits(1, 4), Hits(2, 4))
    said = " ".join(error_sentences(run_of(*some)))
    assert "border" in said
    assert "1 of 4 (25%)" in said
    assert "border" not in " ".join(error_sentences(run_of(*some[::3])))


def test_what_the_host_alone_is_off_by_has_a_row_of_its_own() -> None:
    made = [planted(30.0, limit="host"), planted(-1.0)]
    paced = [
        replace(t, predicted=t.predicted and replace(t.predicted, paced_s=1.05 * (t.step_s or 0.0)))
        for t in made
    ]
    assert line(paced, PACED).largest_pct == pytest.approx(5.0)
    assert line(paced, PACED).count == 1  # of the step that the host limits
    assert line(paced, HOST).largest_pct == 30.0  # which is no better for it
    assert PACED not in [each.what for each in error_table(made)]


def test_memory_and_speed_ups_have_rows_of_their_own() -> None:
    made = planted(0.0, memory=(104, 100))
    assert made.predicted is not None
    made = replace(
        made,
        predicted=replace(made.predicted, speedup={"fp32": 3.0, "tf32": 1.5}),
        speedup={"fp32": ratio_of(2.0), "tf32": ratio_of(2.0)},
    )
    assert line([made], "peak memory").largest_pct == pytest.approx(4.0)
    for base, off_pct in (("fp32", 50.0), ("tf32", 25.0)):
        found = line([made], f"AMP's speed-up over {base}, bottleneck GPU")
        assert found.largest_pct == pytest.approx(off_pct)
        assert found.target == (1.5, 4.0)
        beside = [made, replace(made, limit="host")]
        (late,) = (
            each for each in error_table(beside)
            if each.what == f"AMP's speed-up over {base}, bottleneck CPU launch"
        )  # fmt: skip
        assert (late.count, late.target) == (1, None)
    assert error_table([replace(made, predicted=None)]) == []


def test_a_speed_up_of_median_steps_is_not_moved_by_the_turns() -> None:
    """The step is half as long, and was told 2.1 times as fast; in some turns it was slow."""
    base, low = planted(0.0, recipe="fp32"), planted(0.0, recipe="amp")
    assert base.step_s is not None
    assert low.steps is not None
    assert low.predicted is not None
    low = replace(
        low,
        steps=replace(low.steps, median_s=base.step_s / 2),
        predicted=replace(low.predicted, speedup={"fp32": 2.1}),
        speedup={"fp32": ratio_of(1.5)},
    )
    title = "the same, of median steps over fp32, bottleneck GPU"
    assert line([base, low], title).largest_pct == pytest.approx(5.0)
    assert line([base, low], "AMP's speed-up over fp32, bottleneck GPU").largest_pct > 30
    others = replace(base, case=replace(base.case, layout="nchw", recipe="O0"))
    assert line([others, low], title).largest_pct == pytest.approx(5.0), "what stands for fp32"
    elsewhere = replace(base, case=replace(base.case, batch=7))
    alone = [each.what for each in error_table([elsewhere, low])]
    assert title not in alone, "its baseline was not measured beside it"


def test_limits_and_intervals_are_counted() -> None:
    made = [planted(0.0), planted(0.0, limit="host"), planted(0.0, limit="host", said="host")]
    assert limits_named(made) == Hits(2, 3)
    assert limits_named([replace(made[0], predicted=None)]) == Hits(0, 0)
    made = [planted(2.0), planted(-2.0), planted(9.0), planted(50.0, limit="host", half_pct=60)]
    assert intervals_kept(made, "gpu") == Hits(2, 3)
    assert intervals_kept(made, "host") == Hits(1, 1)


def test_measurements_are_known_to_so_much() -> None:
    def known_to(half_pct: float, limit: str = "host") -> Training:
        made = planted(0.0, limit=limit)
        assert made.steps is not None
        step_s = made.steps.median_s
        ends = ((1 - half_pct / 200) * step_s, (1 + half_pct / 100) * step_s)  # the larger side
        return replace(made, steps=replace(made.steps, ci95_s=ends))

    made = [known_to(half) for half in (3.0, 40.0, 7.0)]
    assert measured_half_pct([*made, known_to(90.0, "gpu")], "host") == pytest.approx(7.0)
    assert measured_half_pct(made, "gpu") is None
    said = "Half of these steps have a measured 95 % interval of ±7.0% or wider."
    assert said in error_sentences(run_of(*made))


def test_screen_and_markdown_have_the_table_with_its_counts() -> None:
    made = [planted(0.5), planted(30.0, limit="host", said="host", batch=8)]
    run = run_of(*made)
    said = "\n".join(line.plain for line in errors_lines(run, 100))
    for words in (
        "1 / 3 met", "8 / 20 missed", "The bottleneck was classified correctly in 2 of 2 (100%).",
        "Bottleneck GPU: the measured step was inside the predicted interval in 1 of 1",
        "Bottleneck CPU launch: the measured step was inside the predicted interval in 0 of 1",
    ):  # fmt: skip
        assert words in said
    assert set(error_sentences(run)) <= set(said.splitlines())
    assert dict(training_sections(run, 100))[ERRORS_TITLE]
    assert "| step, bottleneck GPU | 1 | 0.5 | 0.5 | 1 / 3 met |" in to_markdown(run)


def test_one_comparison_has_no_table_of_errors() -> None:
    run = run_of(planted(0.5), planted(1.0, recipe="tf32"))
    assert errors_lines(run, 100) == []
    asked = replace(run, command=("python", "-m", "e2e", "validate", "--networks", "resnet50"))
    assert any("bottleneck GPU" in line.plain for line in errors_lines(asked, 100))


def test_a_captured_step_is_called_a_timing() -> None:
    run = run_of(planted(0.5), planted(1.0, graph=True, batch=8))
    said = " ".join(error_sentences(run))
    assert "Of 2 steps, 1 captured: the graph of their operations was timed" in said
    assert line(list(run.of(Training)), CAPTURED).count == 1
    one = run_of(planted(1.0, graph=True), planted(2.0, recipe="tf32", graph=True))
    screen = " ".join(line.plain for _, lines in training_sections(one, 200) for line in lines)
    assert "captured steps (--graph): not predicted" in screen
    assert "Error of the timed graph of the operations is at most 2.0 %" in screen
    assert "Prediction error of the step time" not in screen
    alone = replace(planted(1.0, graph=True), steps=None, status=PREDICTED)
    screen = " ".join(line.plain for _, lines in training_sections(run_of(alone), 200)
                      for line in lines)  # fmt: skip
    assert "was timed as a graph of its operations" in screen
    assert "is predicted" not in screen


@pytest.mark.parametrize(
    ("network", "said", "unsaid"),
    [
        ("timm:dla34", "None of these networks was used", "developed on"),
        ("gpt", "2 of 2 steps are of networks that the method was developed on (1)", "Also"),
        ("resnet18", "Also calibration models, at a small size: resnet18.", "None of"),
    ],
)
def test_the_table_says_whether_its_networks_were_seen(
    network: str, said: str, unsaid: str
) -> None:
    made = [planted(0.5, network=network), planted(1.0, network=network, batch=8)]
    found = " ".join(error_sentences(run_of(*made)))
    assert said in found
    assert unsaid not in found


def test_the_table_says_which_rows_predate_the_code() -> None:
    old = planted(0.5)
    dated = [replace(planted(1.0, batch=size), measured_at=f"2026-12-0{size}T01:02:03+00:00")
             for size in (1, 8)]  # fmt: skip
    run = run_of(old, *dated)
    found = error_sentences(run)
    assert "2 steps measured from 2026-12-01 to 2026-12-08." in found
    assert any(text.startswith("1 step without a date") for text in found)
    assert not any("without a date" in text for text in error_sentences(run_of(*dated)))
    (only,) = (text for text in error_sentences(replace(run, method_version=1)) if "rows" in text
               and "predate" in text)  # fmt: skip
    assert run.started_at[:10] in only
