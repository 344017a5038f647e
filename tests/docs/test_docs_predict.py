"""docs/predict.md and docs/ledger.md have the run files' numbers."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from statistics import fmean, stdev

import pytest

from e2e.commands.train import MATRIX, MATRIX_RECIPES
from e2e.report.errors import error_table, intervals_kept
from e2e.results.types import Training
from microbench.report.export import to_markdown
from microbench.results.runfile import read_run
from microbench.timing.stats import median

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "nvidia-h200"
PREDICT = (ROOT / "docs" / "predict.md").read_text(encoding="utf-8")
SAID = " ".join(PREDICT.split())
METHOD = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
LEDGER = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
BEFORE = read_run(H200 / "ledger-resnet50.json")
VERIFIED = read_run(H200 / "verify-resnet50.json")
VALIDATED = read_run(H200 / "predict-validation.json")
OUTSIDE = read_run(H200 / "predict-outside.json")


def _said(training: Training) -> str | None:
    return training.predicted.limit if training.predicted else None


def _error(training: Training) -> float:
    """Per cent that the predicted step is too long."""
    return (training.predicted.error_pct or 0.0) if training.predicted else 0.0


def _paced_error(training: Training) -> float:
    """The same, of the step at the host speed meanwhile."""
    assert training.predicted
    return 100 * ((training.predicted.paced_s or 0.0) / (training.step_s or 1.0) - 1)


STEPS, OTHERS = VALIDATED.of(Training), OUTSIDE.of(Training)
EAGER = [t for t in STEPS if not t.case.graph]
HOST = [t for t in STEPS if t.limit == "host" and t.steps and t.predicted]
LINES = {line.what: line for line in error_table(STEPS)}
ON_GPU, ON_HOST = LINES["step, limited by the GPU"], LINES["step, limited by the host"]
CAPTURED = LINES["step, captured as a graph"]
PACED = LINES["the same, at the host's pace meanwhile"]
RIGHT = sum(t.limit == _said(t) for t in STEPS if t.predicted)
AMP = next(t for t in VERIFIED.of(Training) if (t.ledger_base, t.case.recipe) == ("fp32", "amp"))


def table(markdown: str, title: str) -> str:
    """The first table after a title."""
    begin = markdown.index("| ", markdown.index(title))
    return markdown[begin : markdown.index("\n\n", begin)]


@pytest.mark.parametrize("title", ["Predicted against measured", "The step as predicted"])
def test_errors_are_the_run_files_own(title: str) -> None:
    for run in (VALIDATED, OUTSIDE):
        assert table(to_markdown(run), title) in PREDICT


def test_what_is_said_of_other_networks_is_the_run_files_own() -> None:
    told = [t for t in OTHERS if t.predicted and t.limit]
    assert len(told) == len(OTHERS)
    names = {t.case.network for t in told}
    assert not names & MATRIX.keys()
    own = sum(":" in name for name in names)
    assert (len(names) - own, own) == (6, 2)
    assert {t.case.recipe for t in told} == {"tf32", "amp"}
    right = sum(t.limit == _said(t) for t in told)
    assert f"The limit was named right in {right} of {len(told)}, and every step was" in SAID
    for limit in ("gpu", "host"):
        kept = intervals_kept(OTHERS, limit)
        assert kept.right == kept.count > 0
    lines = {line.what: line for line in error_table(OTHERS)}
    gpu, host = lines["step, limited by the GPU"], lines["step, limited by the host"]
    assert (
        f"Of eight networks outside the matrix ({len(told)} steps) {gpu.median_pct:.1f} and "
        f"{gpu.largest_pct:.1f} %, {host.median_pct:.1f} and {host.largest_pct:.1f} %, "
        f"and {right} limits." in README
    )
    furthest = max((t for t in told if _said(t) == "gpu"), key=lambda t: abs(_error(t)))
    case = furthest.case
    assert (case.network, case.recipe, case.batch) == ("regnet_y_3_2gf", "amp", 128)
    small = {(t.case.network, t.case.recipe): t for t in told if t.case.batch == 8}
    longer = [
        _error(t) > _error(small[network, "tf32"])
        for (network, recipe), t in small.items()
        if recipe == "amp" and t.limit == "host"
    ]
    assert longer == [True] * 6


def test_amps_excess_beside_tf32_is_the_run_files_own() -> None:
    """Where the host limits both: how much longer AMP's step was told beside TF32's than it was."""
    said = []
    for trainings, off in ((OTHERS, _error), (EAGER, _error), (EAGER, _paced_error)):
        steps = {(t.case.network, t.case.batch, t.case.recipe): t for t in trainings}
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
        error = stdev(excess) / len(excess) ** 0.5
        said.append((len(excess), f"{fmean(excess):.0f}", f"{error:.0f}"))
    (others, most, its), (own, less, its_own), (_, paced, its_paced) = said
    assert (others, own) == (6, 6)
    assert f"by {most} % (±{its}) in six networks that are not in the matrix" in METHOD
    assert (
        f"with bindings, by {less} % (±{its_own}) in six that are in the matrix, "
        f"{paced} (±{its_paced}) for the pace that each step met" in METHOD
    )


def test_what_has_been_validated_is_said() -> None:
    captured = len(STEPS) - len(EAGER)
    assert {t.case.network for t in EAGER} == MATRIX.keys()
    batches = sum(len(sizes.split(",")) for sizes in MATRIX.values())
    assert len(EAGER) == batches * len(MATRIX_RECIPES.split(",")) == 64
    assert "the whole matrix of 64 combinations of twelve networks" in PREDICT
    assert f"and {captured} captured steps" in SAID
    assert f"64 combinations of twelve networks and {captured} captured steps" in README


def test_what_is_said_of_single_rows_is_the_run_files_own() -> None:
    told = [t for t in EAGER if t.predicted]
    foreseen = sorted(abs(_error(t)) for t in told if t.limit == "gpu" == _said(t))
    but_one, within = (math.ceil(10 * error) / 10 for error in foreseen[-2:])
    assert (
        f"all {len(foreseen)} steps were told within {within:.1f} %, "
        f"all but one within {but_one:.1f} %" in SAID
    )
    slower = [t for t in told if (t.limit, _said(t)) == ("host", "gpu")]
    said = sum(_said(t) == "gpu" for t in told)
    assert f"of {said} that were said to be the GPU's, two met a slower host" in SAID
    one, other = sorted(slower, key=_paced_error)
    assert f"were told {-_error(one):.0f} and {-_error(other):.0f} % too short" in SAID
    paced = f"({-_paced_error(one):.0f} % too short and {_paced_error(other):.0f} % too long"
    assert f"{paced} for the pace that was seen meanwhile" in SAID
    quicker = [t for t in told if (t.limit, _said(t)) == ("gpu", "host")]
    amp, bf16, wide = sorted(quicker, key=_error, reverse=True)
    assert [(t.case.network, t.case.recipe) for t in (amp, bf16, wide)] == [
        ("convnext_tiny", "amp"), ("convnext_tiny", "amp-bf16"), ("wrn-16-4", "amp-bf16")
    ]  # fmt: skip
    assert f"told {_error(amp):.0f} and {_error(bf16):.0f} % too long, and wrn-16-4's" in SAID
    assert f"at batch {wide.case.batch}, {_error(wide):.0f} % too long" in SAID
    first, second, third = (f"{_paced_error(t):.0f}" for t in (amp, bf16, wide))
    assert f"meanwhile, {first}, {second} and {third} % too long" in SAID
    wrong = len(slower) + len(quicker)
    assert wrong == 5 == sum(t.limit != _said(t) for t in STEPS)


def test_what_is_said_of_the_hosts_steps_is_the_run_files_own() -> None:
    blocks = [len(t.steps.blocks_s) for t in HOST if t.steps]
    assert f"rest on {min(blocks)} to {max(blocks)} blocks each" in SAID
    outside = [0, 0]
    for training in HOST:
        steps, told = training.steps, training.predicted
        assert steps is not None
        assert steps.ci95_s is not None
        assert told is not None
        low, high = steps.ci95_s
        for i, step_s in enumerate((told.step_s, told.paced_s or 0.0)):
            outside[i] += not low <= step_s <= high
    assert f"{outside[0]} of the {len(HOST)} predictions lie outside these" in SAID
    assert f"intervals, {outside[1]} at the pace meanwhile" in SAID
    short = sum(_error(t) < 0 for t in HOST)
    still = sum(_paced_error(t) < 0 for t in HOST)
    assert f"{short} of the {len(HOST)} were told too short, {still} at the pace" in SAID
    kept = intervals_kept(STEPS, "host")
    assert f"and held {kept.right} of {kept.count}" in SAID
    ends = [t.predicted.interval_s or (1, 1) for t in HOST if t.predicted]
    wide = [high / low for low, high in ends]
    assert f"their upper end {median(wide):.1f} times the lower" in SAID
    by_busy: dict[bool, list[float]] = {True: [], False: []}
    for training in HOST:
        assert training.steps
        busy = (training.steps.busy_s or 0.0) / training.steps.median_s
        by_busy[busy > 0.6].append(_paced_error(training))
    assert f"{median(by_busy[True]):+.1f} % for the {len(by_busy[True])} steps in which" in SAID
    assert f"and {median(by_busy[False]):+.1f} % for the {len(by_busy[False])} others" in SAID
    by_case = {(t.case.network, t.case.batch, t.case.recipe): _paced_error(t) for t in HOST}
    twins = {
        (network, batch): abs(error - by_case[network, batch, "amp-bf16"])
        for (network, batch, recipe), error in by_case.items()
        if recipe == "amp" and (network, batch, "amp-bf16") in by_case
    }
    assert max(twins, key=lambda case: twins[case]) == ("mobilenet_v2", 128)
    apart = f"told {median(list(twins.values())):.0f} % apart in the median, and"
    assert f"{apart} {max(twins.values()):.0f} % at most (mobilenet_v2's)" in SAID
    names = {"fp32": "FP32 ({} steps)", "tf32": "TF32 ({})", "amp": "AMP ({})"}
    for recipe, name in {**names, "amp-bf16": "bfloat16 ({})"}.items():
        errors = [_paced_error(t) for t in HOST if t.case.recipe == recipe]
        assert f"{median(errors):+.1f} % for {name.format(len(errors))}" in SAID
    ratios = [t for t in HOST if t.case.recipe.startswith("amp") and "fp32" in t.speedup]
    right: dict[bool, list[bool]] = {True: [], False: []}  # by whether the interval holds 1
    for training in ratios:
        found = training.speedup["fp32"]
        assert training.predicted
        same_side = (training.predicted.speedup["fp32"] > 1) == (found.ratio > 1)
        right[found.ci95[0] <= 1 <= found.ci95[1]].append(same_side)
    assert f"in {sum(right[True] + right[False])} of {len(ratios)} cases: in" in SAID
    clear = f"in {sum(right[False])} of the {len(right[False])} whose measured interval does not"
    assert f"{clear} hold 1, and in {sum(right[True])} of the {len(right[True])} others" in SAID


def test_what_is_said_of_the_host_is_the_run_files_own() -> None:
    ratios = [LINES[f"AMP's speed-up over {base}, limited by the GPU"] for base in ("fp32", "tf32")]
    over_fp32, over_tf32 = ratios
    assert f"told {over_fp32.median_pct:.1f} % off in the median over FP32" in SAID
    assert f"and {over_tf32.median_pct:.1f} % over TF32" in SAID
    assert {line.worst for line in ratios} == {"convnext_tiny amp nhwc batch 64"}
    most = max(line.largest_pct for line in ratios)
    assert f"and {most:.1f} % at most (convnext_tiny's, see above)" in SAID
    medians = f"{ON_HOST.median_pct:.1f} % in the median become {PACED.median_pct:.1f} %"
    assert f"{medians} at the pace" in SAID
    assert f"{ON_HOST.largest_pct:.1f} % at most become {PACED.largest_pct:.1f}" in SAID
    widths = [
        (t.steps.ci95_s[1] - t.steps.ci95_s[0]) / t.steps.median_s
        for t in EAGER
        if t.limit == "host" and t.steps and t.steps.ci95_s
    ]
    assert f"wider than {100 * median(widths):.0f} % of themselves" in SAID
    assert f"the widest of {100 * max(widths):.0f} %" in SAID


def test_the_last_of_all_validations_is_this_one() -> None:
    errors = [
        f"{line.median_pct:.1f} / {line.largest_pct:.1f}" for line in (ON_GPU, ON_HOST, PACED)
    ]
    host = f"{median([_paced_error(t) for t in HOST]):+.1f}"
    columns = [*errors, host, f"{RIGHT} of {len(STEPS)}"]
    *_, last = table(METHOD, "### What a validation is worth").splitlines()
    assert last.startswith("| calls by torch's bindings;")
    assert last.endswith(f" beside | {' | '.join(columns)} |")


def test_the_gaps_of_captured_steps_are_the_run_files_own() -> None:
    captured = [t for t in STEPS if t.case.graph and t.case.network != "gpt"]
    assert len({t.case.network for t in captured}) == 4
    gaps_us = [
        1e6 * (one.median_s - (one.busy_s or 0.0)) / (one.launches or 1)
        for one in (t.steps for t in captured)
        if one
    ]
    assert f"by {min(gaps_us):.2f} to {max(gaps_us):.2f} us in the four networks" in SAID


def test_what_is_said_of_captured_steps_is_the_run_files_own() -> None:
    assert CAPTURED.worst == "resnet50 tf32 nhwc batch 8 graph"
    assert f"under TF32, {CAPTURED.largest_pct:.1f} % too long" in SAID
    gpts = {t.case.recipe: t for t in STEPS if t.case.graph and t.case.network == "gpt"}
    gpt = gpts["amp"]
    assert gpt.state is not None
    assert "power cap" in gpt.state.throttle
    assert gpt.predicted is not None
    assert f"is {gpt.predicted.error_pct:.1f} % off under AMP" in SAID


def test_the_other_layouts_fixes_are_the_run_files_own() -> None:
    verified = to_markdown(read_run(H200 / "verify-resnet50-nchw.json"))
    assert table(verified, "What would make it faster: tf32") in LEDGER


@pytest.mark.parametrize("title", ["From fp32 to amp", "What would make it faster: amp"])
def test_the_ledger_and_its_fixes_are_the_run_files_own(title: str) -> None:
    assert table(to_markdown(VERIFIED), title) in LEDGER


def test_verifying_changes_nothing_of_the_ledger() -> None:
    measured = {t.case.key: t for t in VERIFIED.of(Training)}
    for training in BEFORE.of(Training):
        assert measured[training.case.key].ledger == training.ledger
        assert measured[training.case.key].steps == training.steps


def test_what_is_said_of_the_ledger_is_the_run_files_own() -> None:
    terms = {line.term: line for line in AMP.ledger}
    first, *changes, last = AMP.ledger
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
    stages: Counter[str] = Counter()
    for training in VERIFIED.of(Training):
        stages.update(training.predicted.took_s if training.predicted else {})
    seconds = sum(stages.values()) - stages["host"]
    assert f"took {seconds:.0f} s there, {stages['operations']:.0f} s of them" in PREDICT
    assert f"{stages['tracing']:.0f} s tracing" in PREDICT
    fp32 = VERIFIED.of(Training)[0]
    assert fp32.predicted is not None
    assert f"({fp32.predicted.took_s['operations']:.0f} s FP32's" in PREDICT
    assert f"was set up in {fp32.setup_s or 0:.1f} s after" in PREDICT
    longest_s = max(t.setup_s or 0 for t in STEPS)
    assert f"no arm took over {math.ceil(10 * longest_s) / 10:.1f} s" in PREDICT
    assert f"Learning the host took {stages['host']:.0f} s more" in PREDICT


def test_the_readme_says_the_same() -> None:
    ms = {line.term: -line.ms for line in AMP.ledger}
    saved = AMP.ledger[-1].ms - AMP.ledger[0].ms
    paced = f"{PACED.median_pct:.1f} and {PACED.largest_pct:.1f}"
    for said in (
        f"of the {-saved:.1f} ms that AMP takes off",
        f"{ms['convolutions']:.1f} are convolutions, {ms['layout changes']:.1f} layout",
        f"were {ON_GPU.median_pct:.1f} % off in the median where the GPU is the limit",
        f"where the GPU is the limit, {ON_GPU.largest_pct:.1f} % at most;",
        f"named right in {RIGHT} of {len(STEPS)} (64 combinations",
        f"{CAPTURED.median_pct:.1f} and {CAPTURED.largest_pct:.1f} % where they are",
        f"where the host is the limit {ON_HOST.median_pct:.1f} % in the median",
        f"and {ON_HOST.largest_pct:.1f} % at most, on virtual",
        f"{paced} % for the pace that they had meanwhile",
    ):
        assert said in README
