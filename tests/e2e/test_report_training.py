"""The screen of trainings: what it says of made-up runs, and that it always fits."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from samples.any_training import trainings
from samples.kernel_runs import h200_run
from samples.kernel_runs import shown as kernels_shown
from samples.training_runs import (
    RATES,
    RUNS,
    amp_run,
    arm,
    broken_run,
    cpu_run,
    ladder_run,
    networks_run,
    out_of_memory_run,
    ratio_of,
    run_of,
    shown,
    sweep_run,
    tokens_run,
)  # fmt: skip

from e2e.case import TrainCase
from e2e.report.arms import view_of
from e2e.report.costs import phase_columns
from e2e.report.figures import faster, ratio, spread
from e2e.report.learning import learning_columns
from e2e.report.plot_curves import curve_panels, loss_rows
from e2e.report.plot_training import bar_rows, training_chart
from e2e.report.table import raw_columns, speed_columns
from e2e.report.verdict import verdict
from e2e.results.types import Phase, Repeat, Training
from microbench import fmt
from microbench.commands import explain_again, show_run
from microbench.errors import UserError
from microbench.report.drawing import draw
from microbench.report.export import to_csv, to_markdown
from microbench.report.table import blank
from microbench.results.runfile import read_run, write_run
from microbench.results.types import Ratio, Run

GOLDEN = Path(__file__).parents[1] / "samples" / "report_training.txt"


def widest(text: str) -> int:
    return max(cell_len(line) for line in text.splitlines())


def row(text: str, *parts: str) -> str:
    return next(line for line in text.splitlines() if all(part in line for part in parts))


def said(run: Run) -> str:
    return "\n".join(verdict(run))


def changed(run: Run, place: int, **changes: Any) -> Run:
    """The run with one of its trainings changed."""
    found = list(run.of(Training))
    found[place] = replace(found[place], **changes)
    return replace(run, others=tuple(found))


# ---------------------------------------------------------------- the screen


def test_golden_screen_of_three_recipes() -> None:
    """To renew: python tests/e2e/test_report_training.py"""
    assert shown(amp_run(), details=True) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_line_fits(name: str, width: int) -> None:
    for details in (False, True):
        text = shown(RUNS[name](), width, details=details)
        assert widest(text) <= width
        assert "\x1b" not in text
        assert all(line == line.rstrip() for line in text.splitlines())


@settings(max_examples=25)
@given(st.lists(trainings, max_size=6), st.sampled_from([40, 80, 100]))
def test_nothing_ever_runs_over_or_fails(found: list[Training], width: int) -> None:
    run = run_of()
    for training in found:
        run = run.with_other(training)
    assert widest(shown(run, width, details=True)) <= width
    assert len(to_markdown(run).splitlines()) >= len(run.of(Training))
    assert to_csv(run)
    assert sum(map(len, bar_rows(view_of(run)).values())) == sum(
        bool(t.steps) for t in run.of(Training)
    )


def test_narrow_screens_say_what_they_leave_out() -> None:
    text = shown(ladder_run(), 60)
    assert "left out to fit 60 columns: ±, power W, img/J, GPU busy" in text.replace("\n", " ")
    assert "share of the step in which" not in text  # explains a column that is not there
    assert "x first" in text


def test_options_are_named_where_they_vary() -> None:
    settings_of = ({"layout": "nchw"}, {"layout": "nhwc", "compile": True, "loss_scale": 256.0})
    arms = [arm("amp", 4_000 + 1_000 * i, case=more) for i, more in enumerate(settings_of)]
    text = shown(run_of(*arms))
    assert "amp nchw " in text
    assert "amp nhwc +compile scale 256 " in text
    assert "train, resnet50, batch 256, 3x224x224, sgd, synthetic data" in text
    apart = shown(networks_run())
    assert "\ngpt-124m, batch 16, input 1024, adamw\n" in apart
    assert "402,000 tok" in apart


def test_a_failed_row_says_peak_and_what_fits() -> None:
    text = shown(out_of_memory_run())
    assert "FAILED: out of memory: peak 78.3 GB; batch 512 fits" in row(text, "fp32  ")
    long = changed(out_of_memory_run(), 0, reason="the module's forward failed: " + "x " * 60)
    assert "Reasons in full\n  fp32, batch 1024: the module's forward failed: x" in shown(long)
    assert "fp32 was not measured at batch 1024: out of memory" in said(out_of_memory_run())


def test_generated_data_is_said_at_each_number() -> None:
    run = sweep_run()
    assert all("generated data" in line for line in verdict(run) if "fp32" in line)
    assert any("generated data" in panel.title for panel in _panels(run))
    assert "generated" not in shown(broken_run())  # CIFAR-10 was collected
    mixed = replace(run, others=(*run.of(Training), *broken_run().of(Training)))
    assert "Convergence, in part on generated data" in shown(mixed)


def test_what_was_learnt() -> None:
    text = shown(broken_run())
    assert row(text, "O2 ", "converged").split()[:3] == ["O2", "92.9", "±0.2"]
    assert "0 of 3  NOT CONVERGED" in row(text, "O3 ", "NOT")
    assert "\nO3: loss is not finite from step 214 on\n" in text
    assert "seeds 11, 12, 13 or 1, 2, 3" in text
    assert "chance level 10 %" in text
    assert "* O3: did not converge" in text
    assert "5,500 img/s ±0.2%, not converged" in text
    assert "steps skipped by the loss scaler: O2 2" in text
    assert "Convergence" not in shown(amp_run())


def test_waiting_without_a_known_share() -> None:
    steps = tokens_run().of(Training)[2].steps
    assert steps
    blind = changed(tokens_run(), 2, steps=replace(steps, busy_s=None))
    assert "Bottleneck of amp-bf16: CPU launch. Try CUDA graphs" in said(blind)


def test_both_kinds_of_results_in_one_run() -> None:
    both = replace(h200_run(), others=amp_run().of(Training))
    text = shown(both)
    kernels = kernels_shown(h200_run())
    assert kernels.split("\n\n")[1] in text  # the table of kernels
    assert text.index("fp16") < text.index("img/s")
    assert text.count("\nIn short\n") == 2
    assert to_markdown(both).startswith(to_markdown(h200_run()))
    assert to_markdown(amp_run()) in to_markdown(both)
    header = to_csv(both).splitlines()[0].split(",")
    assert len(header) == len(set(header))
    assert len(to_csv(both).splitlines()) == 1 + len(both.results) + 3


def test_escape_codes_in_a_run_file_are_not_printed() -> None:
    bad = "x\x1b[2J\n"
    case = TrainCase(bad, bad, 1, bad, bad, bad, data=bad, loader=bad)
    failed = Training(case, "failed", bad, unit=bad, rung=bad, convergence=bad, converged=False)
    evil = arm("amp", 5, case={"network": bad}, why=bad, limit="gpu", speedup={bad: ratio_of(2)})
    for run in (run_of(failed), run_of(failed, evil)):
        assert "\x1b" not in shown(run, details=True)
        assert "\x1b" not in to_markdown(run)


def test_an_empty_run_and_an_unfinished_one() -> None:
    assert "Nothing was measured." in shown(run_of())
    assert "unfinished run" in shown(replace(amp_run(), finished_at=None))


# ---------------------------------------------------------------- in short


def test_no_gain_without_convergence() -> None:
    text = said(broken_run())
    assert "O3 runs 2.61 ±0.02 times faster than fp32 but did not converge" in text
    assert "(loss is not finite from step 214 on; wrn-28-10, batch 128): no gain." in text
    assert "O3 trains" not in text
    assert "O2 92.9 ±0.2 %" in text
    assert "O3 " not in row(text, "Mean accuracy")
    slow = changed(broken_run(), 3, speedup={"fp32": ratio_of(0.5)})
    assert "O3 did not converge (loss" in said(slow)
    lost_base = changed(broken_run(), 1, converged=False, convergence="loss rose")
    assert "fp32 did not converge (loss rose;" in said(lost_base)


def test_some_batches_of_a_recipe_do_not_converge() -> None:
    text = said(changed(sweep_run(), 14, converged=False, convergence="the loss is not finite"))
    assert "fp16 trains 0.92 ±0.01 (batch 128) to 2.90 ±0.02 (batch 1024) times as fast" in text
    assert ("fp16 runs 3.71 ±0.02 times faster than fp32 but did not converge (the loss is not "
            "finite; vgg16-cifar, batch 2048, generated data): no gain." in text)  # fmt: skip


def test_nobody_can_tell() -> None:
    why = "fp32 learnt nothing either: train longer to tell"
    unknown = changed(broken_run(), 3, converged=None, convergence=why)
    assert f"Convergence not judged: O3 ({why})." in said(unknown)
    assert f"\nO3: {why}\n" in shown(unknown)
    assert "not judged" in row(shown(unknown), "O3 ", "of 3")


def test_o0_stands_for_fp32() -> None:
    run = broken_run()
    alone = replace(run, others=tuple(t for t in run.of(Training) if t.case.recipe != "fp32"))
    alone = changed(alone, 0, speedup={})
    text = shown(alone)
    assert "x O0" in text
    assert "x fp32" not in text
    assert "base" in row(text, "O0 ", "GPU")
    assert "O2 trains 2.51 ±0.02 times faster than O0" in said(alone)
    assert "O0 trains" not in said(alone)


def test_training_on_data_without_an_end_has_no_held_out_loss() -> None:
    some = tuple(Repeat(seed, 50, 4.0, 6.9, 6.1, None, None) for seed in (1, 2))
    text = shown(changed(amp_run(), 2, repeats=some, converged=True))
    assert row(text, "amp ", "converged").split() == ["amp", "6.10", "4.00", "±0.00", "50", "2",
                                                      "converged"]  # fmt: skip


def test_no_difference_and_no_interval() -> None:
    assert said(cpu_run()) == (
        "amp: no difference measured against fp32 (resnet50, batch 8, synthetic data)."
    )
    vague = changed(cpu_run(), 1, speedup={"fp32": Ratio(1.5, (0.54, 4.09))})
    assert said(vague).startswith("amp: cannot tell whether faster than fp32 (")
    once = changed(cpu_run(), 1, speedup={"fp32": Ratio(1.4, None)})
    assert "amp trains about 1.40 times faster than fp32" in said(once)
    half = {"fp32": ratio_of(2.0), "tf32": Ratio(1.001, (0.99, 1.01))}
    text = said(changed(amp_run(), 2, speedup=half))
    assert "2.00 ±0.01 times faster than fp32 (" in text
    assert text.endswith("; no difference measured against tf32.")


def test_who_waits_and_what_would_help() -> None:
    start = "Bottleneck of amp-bf16: CPU launch (the GPU is idle for 23 % of the step). Try"
    assert said(tokens_run()).endswith(f"{start} CUDA graphs (--graph) or --compile.")
    waiting = tokens_run().of(Training)[2]
    for options, remedy in (
        ({"compile": True}, "Try CUDA graphs (--graph)."),
        ({"graph": True}, "Try a larger batch."),
    ):
        case = replace(waiting.case, **options)
        assert said(changed(tokens_run(), 2, case=case)).endswith(remedy)
    data = changed(tokens_run(), 2, limit="data", phases=(Phase("data", None, 0.0204),))
    assert said(data).endswith(
        "Bottleneck of amp-bf16: data loading (the CPU waits for data for 50 % of the step)."
    )
    fed = {"data": "folder", "loader": "torchvision"}
    folder = [replace(t, case=replace(t.case, **fed)) for t in data.of(Training)]
    assert said(run_of(*folder)).endswith("of the step). Try more --workers.")
    cpu = replace(tokens_run(), device={"name": "a CPU", "kind": "cpu"})
    assert "Bottleneck" not in said(cpu)


def test_the_table_says_how_long_a_fed_step_waits() -> None:
    arms = tokens_run().of(Training)
    fed = [replace(t.case, data="folder", loader="torchvision") for t in arms]
    waiting = [
        replace(t, case=case, steps=replace(t.steps, wait_s=0.0125) if t.steps else None)
        for t, case in zip(arms, fed, strict=True)
    ]
    assert "12.5" in row(shown(run_of(*waiting), 140), "amp-bf16 ", "CPU launch").split()
    phases = (Phase("data", None, 0.0204),)
    resting = [replace(t, phases=phases, case=replace(t.case, loader="pinned")) for t in arms]
    text = shown(run_of(waiting[0], *resting[1:]), 140)
    assert "20.4" not in text[: text.index("±, [low, high]")], "in the table of throughput"


def test_who_is_slowed_by_a_loader_that_it_does_not_wait_for() -> None:
    arm = tokens_run().of(Training)[2]
    assert arm.steps is not None
    fed = replace(arm.case, data="folder", loader="gpu-decode")
    spared = " Try CUDA graphs (--graph): the CPU then has less to launch."
    for host_share, wait_share, graph, remedy in (
        (0.7, 0.0, False, spared), (0.3, 0.0, False, ""), (0.7, 0.0, True, ""),
        (0.7, 0.2, True, None),
    ):  # fmt: skip
        step_s = arm.steps.median_s
        steps = replace(
            arm.steps, unfed_s=0.8 * step_s, wait_s=wait_share * step_s,
            host_s=host_share * step_s, wall_s=step_s, wall_steps=1,
        )  # fmt: skip
        case = replace(fed, graph=graph)
        text = said(changed(tokens_run(), 2, case=case, steps=steps, limit="data"))
        slowed = f"without waiting for data: the two compete for the CPU.{remedy}"
        assert (slowed in text) == (remedy is not None)
        assert ("25 % longer with its loader running" in text) == (remedy is not None)
        assert ("the CPU waits for data" in text) == (remedy is None)


def test_a_ladder_names_its_largest_step() -> None:
    text = said(ladder_run())
    assert "From fp32 to + CUDA graph: 10.0 ±0.1 times faster (resnet50, batch 256, synth" in text
    assert "Largest gain: + tf32, 2.86 ±0.02 times faster than the rung before." in text
    assert "No difference measured for: + fused optimizer." in text
    slower = changed(ladder_run(), 5, speedup={"previous": ratio_of(0.8), "first": ratio_of(5.0)})
    assert "Slower than the rung before: + compile (1.25 ±0.01 times slower)." in said(slower)
    lost = said(changed(ladder_run(), 6, converged=False, convergence="loss is not finite"))
    assert "From fp32 to + compile: 9.42 ±0.04 times faster" in lost
    assert "+ CUDA graph runs 10.0 ±0.1 times faster than the first rung but did not" in lost


def test_without_anything_to_compare_the_rate_is_told() -> None:
    alone = run_of(arm("fp32", 812.0))
    assert said(alone) == "fp32 trains 812 img/s (resnet50, batch 256, synthetic data)."
    assert said(run_of()) == ""


def test_figures() -> None:
    assert [fmt.throughput(x) for x in (4.1, 999.4, 6015.2, 402_000, 3e9)] == [
        "4.10", "999", "6,015", "402,000", "3.0e+09",
    ]  # fmt: skip
    assert ratio(Ratio(0.9873, (0.983, 0.99))) == "0.987 [0.983, 0.990]"
    assert ratio(Ratio(1.001, (0.99, 1.02))) == "~1 ±0.02"
    assert faster(Ratio(1.031, (1.027, 1.035))) == "3.1 ±0.4 % faster"
    assert faster(Ratio(0.8, (0.79, 0.81))) == "1.25 ±0.02 times slower"
    assert faster(Ratio(0.98, None)) == "about 2.0 % slower"
    assert spread((0.9213, 0.0031), True, 100) == "92.1 ±0.3"
    assert spread((0.9213, 0.0), False, 100) == "92.1"
    assert spread(None, True) == ""


# ---------------------------------------------------------------- other forms


def test_markdown() -> None:
    text = to_markdown(amp_run())
    assert text.startswith("NVIDIA H200: train, resnet50, batch 256, 3x224x224, nhwc, sgd, ")
    assert ("| amp | 4,690 | 0.2% | 54.6 | 5.79 ±0.03 | 1.93 ±0.01 | 21.7 | 640 | 7.33 | 97% | "
            "21.0 | GPU |" in text)  # fmt: skip
    for run in (case() for case in RUNS.values()):
        parts = to_markdown(run).split("\n\n")
        tables = [part.splitlines() for part in parts if part.startswith("|")]
        assert len(tables[0]) == 2 + len(run.of(Training))
        assert all(len({line.count(" | ") for line in lines}) == 1 for lines in tables)
    lost = row(to_markdown(broken_run()), "| O3")
    assert lost.endswith("| not converged: loss is not finite from step 214 on |")
    assert "failed: out of memory: peak 78.3 GB; batch 512 fits" in to_markdown(out_of_memory_run())


def test_what_is_on_the_screen_is_in_markdown_and_csv_too() -> None:
    view = view_of(sweep_run())
    columns = [*speed_columns(view), *learning_columns(view), *phase_columns(view)]
    assert all(column.csv for column in columns if not column.title.startswith("x "))
    assert all(column.markdown is not blank for column in columns)
    assert {f"speedup_{name}" for name in view.compared} <= {
        name for column in raw_columns() for name in column.csv
    }


def test_csv_has_every_number() -> None:
    table = list(csv.DictReader(io.StringIO(to_csv(amp_run()))))
    assert [line["recipe"] for line in table] == ["fp32", "tf32", "amp"]
    amp = table[2]
    assert float(amp["images_per_s"]) == pytest.approx(4_690)
    assert float(amp["step_s"]) == pytest.approx(256 / 4_690)
    assert float(amp["images_per_j"]) == pytest.approx(4_690 / 640)
    assert float(amp["gpu_util_min_pct"]) == 93
    assert float(amp["speedup_tf32_low"]) < float(amp["speedup_tf32"])
    assert float(amp["backward_gpu_s"]) == pytest.approx(0.033)
    assert (amp["compile"], amp["loader"], amp["throttle"]) == ("false", "synthetic", "power cap")
    lost = list(csv.DictReader(io.StringIO(to_csv(broken_run()))))[3]
    assert (lost["converged"], lost["seeds"], lost["accuracy_mean"]) == ("false", "1; 2; 3", "")


def _panels(run: Run) -> list[Any]:
    view = view_of(run)
    return curve_panels(view, view.families[0])


def test_bars_are_the_numbers_of_the_run() -> None:
    (bars,) = bar_rows(view_of(amp_run())).values()
    assert [(bar["label"], bar["rate"]) for bar in bars] == [
        (recipe, pytest.approx(per_s)) for recipe, (per_s, *_) in RATES.items()
    ]
    assert bars[2]["low"] == pytest.approx(4_690 / 1.002)
    assert bars[2]["text"] == "4,690 (5.79 ±0.03 x fp32)"
    assert bar_rows(view_of(broken_run()))[""][3]["text"] == "5,500, not converged"


def test_curves_have_mean_and_deviation_of_the_repeats() -> None:
    panels = {panel.title: panel.rows for panel in _panels(sweep_run())}
    assert list(panels) == [
        "img/s", "training time, s", "peak memory, GB",
        "held-out accuracy, % (generated data)",
    ]  # fmt: skip
    trained = sweep_run().of(Training)[0]
    assert trained.accuracy
    point = panels["held-out accuracy, % (generated data)"][0]
    assert (point["arm"], point["batch"]) == ("fp32", 128)
    assert point["value"] == pytest.approx(100 * trained.accuracy[0])
    assert point["high"] - point["value"] == pytest.approx(100 * trained.accuracy[1])
    untrained = [replace(t, repeats=()) for t in sweep_run().of(Training)]
    assert [panel.title for panel in _panels(run_of(*untrained))] == [
        "img/s", "ms/step", "peak memory, GB",
    ]  # fmt: skip


def test_loss_curves_are_means_over_the_repeats_where_all_have_a_loss() -> None:
    curves = ((4.0, 2.0, 1.0), (2.0, 4.0, None), (9.0,), ())
    some = tuple(Repeat(seed, 30, 1.0, 4.0, 1.0, None, None, 0, curve)
                 for seed, curve in enumerate(curves))  # fmt: skip
    view = view_of(changed(amp_run(), 2, repeats=some))
    rows = loss_rows(view, view.groups[0])
    assert [(row["arm"], row["step"], row["value"]) for row in rows] == [
        ("amp", 5.0, 3.0), ("amp", 15.0, 3.0),
    ]  # fmt: skip
    assert rows[0]["high"] - rows[0]["value"] == pytest.approx(math.sqrt(2))
    assert not any(loss_rows(view_of(amp_run()), group) for group in view_of(amp_run()).groups)


@pytest.mark.parametrize("name", ["networks", "sweep", "broken"])
def test_charts_render(name: str, tmp_path: Path) -> None:
    run = RUNS[name]()
    draw(run, tmp_path / "chart.svg")
    text = "".join(ElementTree.parse(tmp_path / "chart.svg").getroot().itertext())
    assert all(recipe in text for recipe in {t.case.recipe for t in run.of(Training)})
    assert "NVIDIA H200" in text


def test_nothing_to_draw() -> None:
    failed = run_of(out_of_memory_run().of(Training)[0])
    with pytest.raises(UserError, match="nothing to draw"):
        training_chart(failed)
    many = [arm("amp", 100 + i, case={"network": f"net{i}"}) for i in range(61)]
    with pytest.raises(UserError, match="more than 60 bars"):
        training_chart(run_of(*many))


def test_commands_take_files_of_trainings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.json"
    write_run(amp_run(), path)
    before = path.read_bytes()
    explain_again(path)
    assert "has no kernel results" in capsys.readouterr().out
    assert path.read_bytes() == before
    for form, part in (("csv", "images_per_s"), ("markdown", "| amp |"), (None, "In short")):
        show_run(path, form=form, verbose=False)
        assert part in capsys.readouterr().out
    show_run(path, form=None, verbose=False, chart=tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").stat().st_size > 5_000
    both = replace(h200_run(), others=amp_run().of(Training))
    write_run(both, path)
    explain_again(path)
    assert read_run(path).of(Training) == both.of(Training)


def test_reasons_begin_below_one_another() -> None:
    arms = tokens_run().of(Training)
    skipped = [replace(t, status="skipped", reason="not here", steps=None) for t in arms]
    lines = [line for line in shown(run_of(*skipped)).splitlines() if "skipped: not here" in line]
    assert len(lines) == len(arms) == 3
    assert len({line.index("skipped") for line in lines}) == 1


if __name__ == "__main__":
    GOLDEN.write_text(shown(amp_run(), details=True), encoding="utf-8")


def test_ratios_over_fp32_say_when_its_algorithms_were_searched_briefly() -> None:
    run = amp_run()
    arms = run.of(Training)
    briefly = run_of(*(replace(t, case=replace(t.case, search="short")) for t in arms))
    assert "x fp32¹" in shown(briefly)
    assert "x tf32 " in shown(briefly)
    assert "¹ by a short search" in " ".join(shown(briefly).split())
    assert "¹" not in shown(run)
    assert "¹" in to_markdown(briefly)
