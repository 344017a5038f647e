"""docs/predict.md, docs/ledger.md and their notes have the run files' numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import pytest

from e2e.commands.validation import ARM_BUDGET_S
from e2e.report.errors import (
    error_sentences,
    error_table,
    intervals_kept,
    limits_named,
    on_the_border,
)
from e2e.report.in_place import in_place_table
from e2e.report.predictions import is_within
from e2e.results.types import Training
from e2e.validation_sets import (
    CALIBRATED_ON,
    HELD_OUT,
    HELD_OUT_RECIPES,
    MATRIX,
    MATRIX_RECIPES,
    PREDICTING_S,
    seen,
)
from microbench.report.export import to_markdown
from microbench.report.table import markdown, plain_markdown
from microbench.results.runfile import read_run
from microbench.results.types import METHOD_VERSION
from microbench.timing.stats import median

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "nvidia-h200"
PREDICT = (ROOT / "docs" / "predict.md").read_text(encoding="utf-8")
NOTES = ROOT / "docs" / "notes"
ERRORS = (NOTES / "prediction-errors.md").read_text(encoding="utf-8")
SAID = " ".join(ERRORS.split())
MODEL = " ".join((NOTES / "prediction-model.md").read_text(encoding="utf-8").split())
SUMMARY = " ".join(f"{PREDICT} {ERRORS} {MODEL}".split())
METHOD = (NOTES / "method.md").read_text(encoding="utf-8")
LEDGER = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
BEFORE = read_run(H200 / "ledger-resnet50.json")
VERIFIED = read_run(H200 / "verify-resnet50.json")
VALIDATED = read_run(H200 / "predict-validation.json")
OUTSIDE = read_run(H200 / "predict-outside.json")


def table(markdown: str, title: str) -> str:
    """The first table after a title."""
    begin = markdown.index("| ", markdown.index(title))
    return markdown[begin : markdown.index("\n\n", begin)]


@pytest.mark.parametrize("title", ["Prediction errors", "Predicted and measured step"])
def test_errors_are_the_run_files_own(title: str) -> None:
    for run in (VALIDATED, OUTSIDE):
        assert table(to_markdown(run), title) in ERRORS


def test_the_short_error_table_is_the_run_files_own() -> None:
    inside, outside = (
        {line.what: line for line in error_table(run.of(Training))} for run in (VALIDATED, OUTSIDE)
    )
    rows = {
        "step time, bottleneck GPU": "step, bottleneck GPU",
        "step time, predicted bottleneck GPU": "step, bottleneck predicted as GPU",
        "step time, captured: the graph timed, not predicted": "step, timed as a captured graph",
        "step time, bottleneck CPU launch": "step, bottleneck CPU launch",
        "the same, corrected for CPU speed": "the same, corrected for the CPU's speed",
        "AMP speed-up over TF32, bottleneck GPU": "AMP's speed-up over tf32, bottleneck GPU",
        "AMP speed-up over TF32, bottleneck CPU launch": (
            "AMP's speed-up over tf32, bottleneck CPU launch"
        ),
        "peak memory": "peak memory",
    }
    for row, what in rows.items():
        cells = [row]
        for lines in (inside, outside):
            line = lines.get(what)
            cells += (
                [f"{line.count}", f"{line.median_pct:.1f}", f"{line.largest_pct:.1f}"]
                if line
                else [""] * 3
            )
        assert re.sub(" +", " ", f"| {' | '.join(cells)} |") in SUMMARY
    for run, said in ((VALIDATED, "in {} of {} steps"), (OUTSIDE, "and in {} of {} outside")):
        hits = limits_named(run.of(Training))
        assert said.format(hits.right, hits.count) in SUMMARY
    wrong = [abs(_error(t)) for t in VALIDATED.of(Training) if t.limit != _said(t)]
    assert len(wrong) == 5
    assert (
        f"The five misclassified steps were {min(wrong):.0f} to {max(wrong):.0f} % off" in SUMMARY
    )


def test_what_is_said_of_other_networks_is_the_run_files_own() -> None:
    predicted = [t for t in OUTSIDE.of(Training) if t.predicted and t.limit]
    assert len(predicted) == len(OUTSIDE.of(Training))
    names = {t.case.network for t in predicted}
    assert not names & MATRIX.keys()
    own = sum(":" in name for name in names)
    assert (len(names) - own, own) == (6, 2)
    assert {t.case.recipe for t in predicted} == {"tf32", "amp"}
    right = sum(t.limit == _said(t) for t in predicted)
    assert (
        f"The bottleneck was classified correctly in {right} of {len(predicted)} steps. "
        "Every step was within its interval." in SAID
    )
    for limit in ("gpu", "host"):
        kept = intervals_kept(OUTSIDE.of(Training), limit)
        assert kept.right == kept.count > 0
    lines = {line.what: line for line in error_table(OUTSIDE.of(Training))}
    gpu, host = lines["step, bottleneck GPU"], lines["step, bottleneck CPU launch"]
    assert (
        f"GPU-bound steps: median error {gpu.median_pct:.1f} %, worst {gpu.largest_pct:.1f} %; "
        f"CPU-bound steps: median {host.median_pct:.1f} %, worst {host.largest_pct:.1f} %, "
        f"on {len(predicted)} steps of eight networks" in README
    )
    foreseen = [t for t in predicted if _said(t) == "gpu"]
    furthest = max(foreseen, key=lambda t: abs(_error(t)))
    case = furthest.case
    assert (case.network, case.recipe, case.batch) == ("regnet_y_3_2gf", "amp", 128)
    small = {(t.case.network, t.case.recipe): t for t in predicted if t.case.batch == 8}
    longer = [
        _error(t) > _error(small[network, "tf32"])
        for (network, recipe), t in small.items()
        if recipe == "amp" and t.limit == "host"
    ]
    assert longer == [True] * 6


def test_amps_excess_beside_tf32_is_the_run_files_own() -> None:
    """Where the host limits both: how much too long AMP's step was predicted, beside TF32's."""
    said = []
    for run, off in ((OUTSIDE, _error), (VALIDATED, _error), (VALIDATED, _paced_error)):
        steps = {(t.case.network, t.case.batch, t.case.recipe): t for t in _eager(run.of(Training))}
        pairs = [
            (steps[network, batch, "tf32"], t)
            for (network, batch, recipe), t in steps.items()
            if recipe == "amp"
        ]
        excess = [
            100 * ((100 + off(amp)) / (100 + off(tf32)) - 1)
            for tf32, amp in pairs
            if tf32.limit == amp.limit == "host"
        ]
        said.append(
            (len(excess), f"{fmean(excess):.0f}", f"{stdev(excess) / len(excess) ** 0.5:.0f}")
        )
    (others, most, its), (own, less, its_own), (_, paced, its_paced) = said
    assert (others, own) == (6, 6)
    assert f"by {most} % (±{its}) in six networks outside the matrix" in METHOD
    assert (
        f"With bindings: by {less} % (±{its_own}) in six inside, "
        f"{paced} (±{its_paced}) when corrected" in METHOD
    )


def _eager(trainings: Sequence[Training]) -> list[Training]:
    return [t for t in trainings if not t.case.graph]


def test_what_has_been_validated_is_said() -> None:
    planned = [t for t in VALIDATED.of(Training) if not t.case.graph]
    captured = len(VALIDATED.of(Training)) - len(planned)
    assert {t.case.network for t in planned} == MATRIX.keys()
    batches = sum(len(sizes.split(",")) for sizes in MATRIX.values())
    assert len(planned) == batches * len(MATRIX_RECIPES.split(",")) == 64
    assert "the whole matrix of 64 combinations of twelve networks" in ERRORS
    assert "64 combinations of twelve networks, four recipes and one or two batches" in SUMMARY
    assert f"and {captured} captured steps (`--graph`)" in SUMMARY
    assert f"and {captured} captured steps" in SAID


def test_what_is_said_of_single_rows_is_the_run_files_own() -> None:
    predicted = [t for t in VALIDATED.of(Training) if t.predicted and not t.case.graph]
    foreseen = sorted(abs(_error(t)) for t in predicted if t.limit == "gpu" == _said(t))
    but_one, within = (math.ceil(10 * error) / 10 for error in foreseen[-2:])
    for text in (SAID, SUMMARY):
        assert (
            f"all {len(foreseen)} steps were predicted within {within:.1f} %, "
            f"all but one within {but_one:.1f} %" in text
        )
    slower = [t for t in predicted if (t.limit, _said(t)) == ("host", "gpu")]
    said = sum(_said(t) == "gpu" for t in predicted)
    assert f"{said} eager steps were predicted to have the GPU as the bottleneck. Two" in SAID
    one, other = sorted(slower, key=_paced_error)
    short = f"{-_error(one):.0f} and {-_error(other):.0f} % too short"
    assert f"were predicted {short}" in SAID
    assert f"two steps were {short}" in SUMMARY
    paced = f"({-_paced_error(one):.0f} % too short and {_paced_error(other):.0f} % too long"
    assert f"{paced} when corrected for CPU speed)" in SAID
    quicker = [t for t in predicted if (t.limit, _said(t)) == ("gpu", "host")]
    amp, bf16, wide = sorted(quicker, key=_error, reverse=True)
    assert [(t.case.network, t.case.recipe) for t in (amp, bf16, wide)] == [
        ("convnext_tiny", "amp"), ("convnext_tiny", "amp-bf16"), ("wrn-16-4", "amp-bf16")
    ]  # fmt: skip
    assert f"predicted {_error(amp):.0f} and {_error(bf16):.0f} % too long, and wrn-16-4" in SAID
    assert f"at batch {wide.case.batch}, predicted {_error(wide):.0f} % too long" in SAID
    first, second, third = (f"{_paced_error(t):.0f}" for t in (amp, bf16, wide))
    assert f"Corrected for CPU speed, the errors are {first}, {second} and {third} %" in SAID
    wrong = len(slower) + len(quicker)
    assert wrong == 5 == sum(t.limit != _said(t) for t in VALIDATED.of(Training))


def test_what_is_said_of_the_hosts_steps_is_the_run_files_own() -> None:
    host = [t for t in VALIDATED.of(Training) if t.limit == "host" and t.steps and t.predicted]
    blocks = [len(t.steps.blocks_s) for t in host if t.steps]
    assert f"Each measured median rests on {min(blocks)} to {max(blocks)} blocks" in SAID
    outside = [0, 0]
    for training in host:
        steps, predicted = training.steps, training.predicted
        assert steps is not None
        assert steps.ci95_s is not None
        assert predicted is not None
        low, high = steps.ci95_s
        for i, step_s in enumerate((predicted.step_s, predicted.paced_s or 0.0)):
            outside[i] += not low <= step_s <= high
    assert f"{outside[0]} of the {len(host)} predictions are outside these" in SAID
    assert f"intervals, {outside[1]} when corrected" in SAID
    errors = [t.predicted for t in host if t.predicted]
    short = sum((predicted.error_pct or 0.0) < 0 for predicted in errors)
    still = sum((t.predicted.paced_s or 0.0) < (t.step_s or 0.0) for t in host if t.predicted)
    assert f"{short} of the {len(host)} were predicted too short, {still} when corrected" in SAID
    kept = intervals_kept(VALIDATED.of(Training), "host")
    assert f"They contained {kept.right} of {kept.count}." in SAID
    assert f"It contained {kept.right} of {kept.count} steps of the matrix" in SUMMARY
    wide = [
        high / low for t in host if t.predicted for low, high in [t.predicted.interval_s or (1, 1)]
    ]
    assert f"upper end is {median(wide):.1f} times the lower end" in SAID
    assert f"upper end is {median(wide):.1f} times its lower end" in SUMMARY
    by_busy: dict[bool, list[float]] = {True: [], False: []}
    for training in host:
        assert training.steps
        busy = (training.steps.busy_s or 0.0) / training.steps.median_s
        by_busy[busy > 0.6].append(_paced_error(training))
    assert f"{median(by_busy[True]):+.1f} % for the {len(by_busy[True])} steps in which" in SAID
    assert f"and {median(by_busy[False]):+.1f} % for the {len(by_busy[False])} others" in SAID
    by_case = {(t.case.network, t.case.batch, t.case.recipe): _paced_error(t) for t in host}
    twins = {
        (network, batch): abs(error - by_case[network, batch, "amp-bf16"])
        for (network, batch, recipe), error in by_case.items()
        if recipe == "amp" and (network, batch, "amp-bf16") in by_case
    }
    assert max(twins, key=lambda case: twins[case]) == ("mobilenet_v2", 128)
    apart = f"are {median(list(twins.values())):.0f} points apart (median) and"
    assert f"{apart} {max(twins.values()):.0f} (worst, mobilenet_v2)" in SAID
    names = {"fp32": "FP32 ({} steps)", "tf32": "TF32 ({})", "amp": "AMP ({})"}
    for recipe, name in {**names, "amp-bf16": "bfloat16 ({})"}.items():
        errors_at_pace = [_paced_error(t) for t in host if t.case.recipe == recipe]
        said = name.format(len(errors_at_pace))
        assert f"{median(errors_at_pace):+.1f} % for {said}" in SAID
    ratios = [t for t in host if t.case.recipe.startswith("amp") and "fp32" in t.speedup]
    right: dict[bool, list[bool]] = {True: [], False: []}  # by whether the interval holds 1
    for training in ratios:
        found = training.speedup["fp32"]
        assert found.ci95
        assert training.predicted
        same_side = (training.predicted.speedup["fp32"] > 1) == (found.ratio > 1)
        right[found.ci95[0] <= 1 <= found.ci95[1]].append(same_side)
    assert f"in {sum(right[True] + right[False])} of {len(ratios)} cases: in" in SAID
    clear = f"in {sum(right[False])} of the {len(right[False])} whose measured interval"
    assert f"{clear} excludes 1, and in {sum(right[True])} of the {len(right[True])} others" in SAID


def test_what_is_said_of_the_host_is_the_run_files_own() -> None:
    lines = {line.what: line for line in error_table(VALIDATED.of(Training))}
    ratios = [lines[f"AMP's speed-up over {base}, bottleneck GPU"] for base in ("fp32", "tf32")]
    over_fp32, over_tf32 = ratios
    assert f"Its median error is {over_fp32.median_pct:.1f} % over FP32" in SAID
    assert f"and {over_tf32.median_pct:.1f} % over TF32" in SAID
    assert {line.worst for line in ratios} == {"convnext_tiny amp nhwc batch 64"}
    most = max(line.largest_pct for line in ratios)
    assert f"the worst is {most:.1f} % (convnext_tiny, see above)" in SAID
    predicted = lines["step, bottleneck CPU launch"]
    paced = lines["the same, corrected for the CPU's speed"]
    medians = f"{predicted.median_pct:.1f} % to {paced.median_pct:.1f} %"
    assert f"the median error goes from {medians}" in SAID
    assert f"the worst from {predicted.largest_pct:.1f} % to {paced.largest_pct:.1f} %" in SAID
    widths = [
        (t.steps.ci95_s[1] - t.steps.ci95_s[0]) / t.steps.median_s
        for t in VALIDATED.of(Training)
        if t.limit == "host" and t.steps and t.steps.ci95_s and not t.case.graph
    ]
    assert f"wider than {100 * median(widths):.0f} % of the median" in SAID
    assert f"the widest is {100 * max(widths):.0f} %" in SAID


def test_the_last_of_all_validations_is_this_one() -> None:
    lines = {line.what: line for line in error_table(VALIDATED.of(Training))}
    columns = [
        f"{lines[what].median_pct:.1f} / {lines[what].largest_pct:.1f}"
        for what in (
            "step, bottleneck GPU",
            "step, bottleneck CPU launch",
            "the same, corrected for the CPU's speed",
        )
    ]
    host = [t for t in VALIDATED.of(Training) if t.limit == "host" and t.steps and t.predicted]
    columns.append(f"{median([_paced_error(t) for t in host]):+.1f}")
    right = sum(t.limit == _said(t) for t in VALIDATED.of(Training) if t.predicted)
    columns.append(f"{right} of {len(VALIDATED.of(Training))}")
    *_, last = table(METHOD, "## Earlier validations").splitlines()
    assert last.startswith("| calls by torch's bindings;")
    assert last.endswith(f" of ours | {' | '.join(columns)} |")


def test_the_gaps_of_captured_steps_are_the_run_files_own() -> None:
    captured = [t for t in VALIDATED.of(Training) if t.case.graph and t.case.network != "gpt"]
    assert len({t.case.network for t in captured}) == 4
    gaps_us = [
        1e6 * (one.median_s - (one.busy_s or 0.0)) / (one.launches or 1)
        for one in (t.steps for t in captured)
        if one
    ]
    assert f"was {min(gaps_us):.2f} to {max(gaps_us):.2f} us in the four networks" in SAID


def test_what_is_said_of_captured_steps_is_the_run_files_own() -> None:
    (line,) = (
        one
        for one in error_table(VALIDATED.of(Training))
        if one.what == "step, timed as a captured graph"
    )
    assert line.worst == "resnet50 tf32 nhwc batch 8 graph"
    assert f"under TF32, predicted {line.largest_pct:.1f} % too long" in SAID
    (gpt,) = (
        t for t in VALIDATED.of(Training)
        if t.case.graph and (t.case.network, t.case.recipe) == ("gpt", "amp")
    )  # fmt: skip
    assert gpt.state is not None
    assert "power cap" in gpt.state.throttle
    assert gpt.predicted is not None
    assert f"power limit, is {gpt.predicted.error_pct:.1f} % off" in SAID


def test_the_other_layouts_fixes_are_the_run_files_own() -> None:
    verified = to_markdown(read_run(H200 / "verify-resnet50-nchw.json"))
    fixes = table(verified, "What would make tf32")
    assert fixes in ERRORS
    _short_rows_are(fixes, "TF32, NCHW, batch 128")


def test_the_ledger_and_its_fixes_are_the_run_files_own() -> None:
    verified = to_markdown(VERIFIED)
    assert table(verified, "From fp32 to amp") in LEDGER
    fixes = table(verified, "What would make amp")
    assert fixes in ERRORS
    _short_rows_are(fixes, "AMP, NHWC, batch 256")


def _short_rows_are(fixes: str, base: str) -> None:
    """The ledger's short table has each measured fix of a full one."""
    _, _, *rows = fixes.splitlines()
    for row in rows:
        _, fix, predicted, measured, *_ = (cell.strip() for cell in row.strip("|").split("|"))
        if measured:
            assert f"| {base} | {fix} | {predicted or 'not predicted'} | {measured} |" in LEDGER


def test_verifying_changes_nothing_of_the_ledger() -> None:
    measured = {t.case.key: t for t in VERIFIED.of(Training)}
    for training in BEFORE.of(Training):
        assert measured[training.case.key].ledger == training.ledger
        assert measured[training.case.key].steps == training.steps


def test_what_is_said_of_the_ledger_is_the_run_files_own() -> None:
    amp = next(t for t in VERIFIED.of(Training) if t.ledger_base == "fp32" and _is_amp(t))
    terms = {line.term: line for line in amp.ledger}
    first, *changes, last = amp.ledger
    assert sum(line.ms for line in (first, *changes)) == pytest.approx(last.ms)
    for said in (
        f"{first.ms:.1f} ms a step, AMP {last.ms:.1f} ms",
        f"the {first.ms - last.ms:.1f} ms between",
        f"from {terms['activation'].detail}", f"these {-terms['layout changes'].ms:.1f} ms",
    ):  # fmt: skip
        assert said in LEDGER.replace("\n", " ")
    before, after = map(float, terms["convolutions"].detail.split(" ms")[0].split(" to "))
    assert f"{before / after:.1f} times less" in LEDGER
    base, other = (part.split()[-1] for part in terms["residual"].detail.split(", "))
    assert f"FP32 took {float(base):.2f} ms longer" in LEDGER
    assert f"AMP {-float(other):.2f} ms less" in LEDGER


def test_what_predicting_took_is_the_run_files_own() -> None:
    stages: dict[str, float] = {}
    for predicted in (t.predicted for t in VERIFIED.of(Training) if t.predicted):
        for stage, seconds in predicted.took_s.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    seconds = sum(stages.values()) - stages["host"]
    assert f"in three recipes took {seconds:.0f} s. Benchmarking" in SUMMARY
    assert f"its calls took {stages['operations']:.0f} s of them" in SUMMARY
    assert f"tracing took {stages['tracing']:.0f} s" in MODEL
    fp32 = VERIFIED.of(Training)[0]
    assert fp32.predicted is not None
    assert f"{fp32.predicted.took_s['operations']:.0f} s of them FP32's" in MODEL
    assert f"was set up in {fp32.setup_s or 0:.1f} s after" in MODEL
    longest_s = max(t.setup_s or 0 for t in VALIDATED.of(Training))
    assert f"no setup took over {math.ceil(10 * longest_s) / 10:.1f} s" in MODEL
    assert f"Calibrating the CPU model took {stages['host']:.0f} s more" in SUMMARY


def test_the_readmes_picture_and_what_it_says_are_the_run_files_own() -> None:
    _, _, amp = BEFORE.of(Training)
    ms = {line.term: -line.ms for line in amp.ledger}
    saved = amp.ledger[0].ms - amp.ledger[-1].ms
    assert f"AMP trains {amp.speedup['fp32'].ratio:.2f} times faster than FP32." in README
    assert f"Of the {saved:.1f} ms that it saves per step, {ms['convolutions']:.1f} ms" in README
    assert f"are convolutions and {ms['layout changes']:.1f} ms are layout changes." in README
    plain = read_run(H200 / "train-resnet50.json").of(Training)
    by_layout = {t.case.layout: f"{t.per_s:,.0f} img/s" for t in plain if _is_amp(t)}
    assert f"trains {by_layout['nchw']}, in channels_last {by_layout['nhwc']}" in README


def _is_amp(training: Training) -> bool:
    return training.case.recipe == "amp"


def _said(training: Training) -> str | None:
    return training.predicted.limit if training.predicted else None


def _error(training: Training) -> float:
    """Per cent that the predicted step is too long."""
    return (training.predicted.error_pct or 0.0) if training.predicted else 0.0


def _paced_error(training: Training) -> float:
    """The same, of the step for the pace meanwhile."""
    assert training.predicted
    return 100 * ((training.predicted.paced_s or 0.0) / (training.step_s or 1.0) - 1)


def test_what_is_said_of_held_out_networks_is_so() -> None:
    assert not seen(HELD_OUT)
    assert {len(sizes.split(",")) for sizes in HELD_OUT.values()} == {3}
    assert len(HELD_OUT) >= 12
    assert not {t.case.network for t in OUTSIDE.of(Training)} & HELD_OUT.keys()
    rows = [t.predicted for run in (VALIDATED, OUTSIDE) for t in run.of(Training) if t.predicted]
    took_s = fmean(sum(row.took_s.values()) for row in rows)
    assert pytest.approx(took_s, abs=0.05) == PREDICTING_S
    recipes = HELD_OUT_RECIPES.split(",")
    network_s = 3 * len(recipes) * (PREDICTING_S + ARM_BUDGET_S)
    assert f"about {network_s / 60:.1f} minutes a network" in SUMMARY
    assert f"({ARM_BUDGET_S * len(recipes):.0f} s per comparison)" in SUMMARY


def test_rows_that_predate_the_code_are_named() -> None:
    for run in (VALIDATED, OUTSIDE):
        assert run.method_version == 1 < METHOD_VERSION
        assert any(said.startswith("All rows predate this code") for said in error_sentences(run))
    assert "by method version 1, so every row predates this code" in SUMMARY
    for name in CALIBRATED_ON:
        assert name in {t.case.network for t in VALIDATED.of(Training)}
        assert name in SUMMARY


def held_out_runs() -> list[Training]:
    files = ("", *(f"-{number}" for number in range(2, 8)))
    return [t for n in files for t in read_run(H200 / f"predict-held-out{n}.json").of(Training)]


def first_of_each(ran: Sequence[Training]) -> list[Training]:
    return list({training.case.key: training for training in reversed(ran)}.values())


def test_the_errors_of_the_held_out_networks_are_the_run_files_own() -> None:
    again = held_out_runs()
    ran = first_of_each(again)
    assert f"{len(again) - len(ran)} steps that ran twice" in SUMMARY.replace("four", "4")
    networks = {t.case.network for t in ran}
    batches_of = {n: {t.case.batch for t in ran if t.case.network == n} for n in networks}
    whole = sum(len(batches) == 3 for batches in batches_of.values())
    assert f"of {len(networks)} networks, {whole} of them at all three batches" in SUMMARY
    steps = sum(len(batches.split(",")) for batches in HELD_OUT.values())
    assert f"{len(ran)} of the {steps * len(HELD_OUT_RECIPES.split(','))} steps have run" in SUMMARY
    lines = {line.what: line for line in error_table(ran)}
    gpu, cpu, paced = (
        lines[name]
        for name in (
            "step, bottleneck GPU",
            "step, bottleneck CPU launch",
            "the same, corrected for the CPU's speed",
        )
    )
    said = f"{gpu.count} that were GPU-bound, median error {gpu.median_pct:.1f} %"
    assert f"{said}, worst {gpu.largest_pct:.1f} %" in SUMMARY
    sure = lines["step, bottleneck predicted as GPU"]
    said = f"{sure.count} steps, median error {sure.median_pct:.1f} %"
    assert f"{said}, worst {sure.largest_pct:.1f} %" in SUMMARY
    at_speed = f"or {paced.median_pct:.1f} and {paced.largest_pct:.1f} %"
    said = f"median error {cpu.median_pct:.1f} %, worst {cpu.largest_pct:.1f} %, {at_speed}"
    assert said in SUMMARY
    named, border = limits_named(ran), on_the_border(ran)
    wrong = named.count - named.right - border.right
    found = f"right in {named.right}, on the border in {border.right}"
    assert f"{found} ({100 * border.right / border.count:.0f} %), wrong in {wrong}" in SUMMARY
    inside = sum(is_within(t) is True for t in ran)
    assert f"{inside} of {len(ran)} steps ({100 * inside / len(ran):.0f} %" in SUMMARY


def test_the_times_in_place_and_alone_are_the_run_files_own() -> None:
    found = plain_markdown(markdown(in_place_table(first_of_each(held_out_runs()))))
    rows = [line for line in found.splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    assert all(row in ERRORS for row in rows)
