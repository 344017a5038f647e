"""docs/predict.md and docs/ledger.md have the run files' numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from microbench.report.markdown import to_markdown
from microbench.report.training.errors import error_table
from microbench.runfile import read_run
from microbench.stats import median
from microbench.train_results import Training

ROOT = Path(__file__).parents[1]
H200 = ROOT / "results" / "nvidia-h200"
PREDICT = (ROOT / "docs" / "predict.md").read_text(encoding="utf-8")
LEDGER = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
BEFORE = read_run(H200 / "ledger-resnet50.json")
VERIFIED = read_run(H200 / "verify-resnet50.json")
VALIDATED = read_run(H200 / "predict-validation.json")


def table(markdown: str, title: str) -> str:
    """The first table after a title."""
    begin = markdown.index("| ", markdown.index(title))
    return markdown[begin : markdown.index("\n\n", begin)]


@pytest.mark.parametrize("title", ["Predicted against measured", "The step as predicted"])
def test_errors_are_the_run_files_own(title: str) -> None:
    assert table(to_markdown(VALIDATED), title) in PREDICT


def test_what_has_been_validated_is_said() -> None:
    planned = [t for t in VALIDATED.trainings if not t.case.graph]
    captured = len(VALIDATED.trainings) - len(planned)
    assert f"{len(planned)} of the matrix's 64" in PREDICT
    assert len({t.case.network for t in planned}) == 10
    assert f"ten networks of twelve, and {captured} captured steps" in PREDICT
    assert f"{len(planned)} of the 64 combinations planned and {captured} captured" in README


def test_what_is_said_of_single_rows_is_the_run_files_own() -> None:
    gpu = {
        abs(t.predicted.error_pct): t
        for t in VALIDATED.trainings
        if t.limit == "gpu" and t.predicted and t.predicted.error_pct is not None
        and not t.case.graph
    }  # fmt: skip
    *others, worst = sorted(gpu)
    assert f"{len(others)} of the {len(gpu)} steps within {others[-1]:.1f} %" in PREDICT
    assert f"the others within {others[-1]:.1f} %" in README
    steps, told = gpu[worst].steps, gpu[worst].predicted
    assert steps is not None
    assert told is not None
    assert told.limit == "host"
    busy_s = steps.busy_s or 0.0
    assert f"its kernels run for {1e3 * busy_s:.1f} of {1e3 * steps.median_s:.1f} ms" in PREDICT
    paces = [t.steps.host_pace for t in VALIDATED.trainings if t.steps and t.steps.host_pace]
    assert f"({min(paces):.1f} to {max(paces):.1f} times the reference's time)" in PREDICT
    widths = [
        (t.steps.ci95_s[1] - t.steps.ci95_s[0]) / t.steps.median_s
        for t in VALIDATED.trainings
        if t.limit == "host" and t.steps and t.steps.ci95_s and not t.case.graph
    ]
    assert f"wider than {100 * median(widths):.0f} % of themselves" in PREDICT
    assert f"the worst of {100 * max(widths):.0f} %" in PREDICT


def test_the_gaps_of_captured_steps_are_the_run_files_own() -> None:
    for network, said in (("vit_b_16", "by {} to {} us where"), ("resnet18", "do by {} to {} ")):
        steps = [
            t.steps for t in VALIDATED.trainings
            if t.case.graph and t.case.network == network and t.steps
        ]  # fmt: skip
        gaps_us = sorted(
            1e6 * (one.median_s - (one.busy_s or 0.0)) / (one.launches or 1) for one in steps
        )
        assert said.format(*(f"{gap_us:.2f}" for gap_us in gaps_us)) in PREDICT


@pytest.mark.parametrize("title", ["From fp32 to amp", "What would make it faster: amp"])
def test_the_ledger_and_its_fixes_are_the_run_files_own(title: str) -> None:
    assert table(to_markdown(VERIFIED), title) in LEDGER


def test_verifying_changes_nothing_of_the_ledger() -> None:
    measured = {t.case.key: t for t in VERIFIED.trainings}
    for training in BEFORE.trainings:
        assert measured[training.case.key].ledger == training.ledger
        assert measured[training.case.key].steps == training.steps


def test_what_is_said_of_the_ledger_is_the_run_files_own() -> None:
    amp = next(t for t in VERIFIED.trainings if t.ledger_base == "fp32" and _is_amp(t))
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
    for told in (t.predicted for t in VERIFIED.trainings if t.predicted):
        for stage, seconds in told.took_s.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    seconds = sum(stages.values()) - stages["host"]
    assert f"took {seconds:.0f} s there, {stages['operations']:.0f} s of them" in PREDICT
    assert f"{stages['tracing']:.0f} s tracing" in PREDICT
    fp32 = VERIFIED.trainings[0]
    assert fp32.predicted is not None
    assert f"({fp32.predicted.took_s['operations']:.0f} s FP32's" in PREDICT
    assert f"was set up in {fp32.setup_s or 0:.1f} s after" in PREDICT
    assert max(t.setup_s or 0 for t in VALIDATED.trainings) < 2.3
    assert "no arm took over 2.3 s" in PREDICT
    assert f"Learning the host took {stages['host']:.0f} s more" in PREDICT


def test_the_readme_says_the_same() -> None:
    amp = next(t for t in VERIFIED.trainings if t.ledger_base == "fp32" and _is_amp(t))
    ms = {line.term: -line.ms for line in amp.ledger}
    saved = amp.ledger[-1].ms - amp.ledger[0].ms
    assert f"of the {-saved:.1f} ms that AMP takes off" in README
    assert f"{ms['convolutions']:.1f} are convolutions, {ms['layout changes']:.1f} layout" in README
    lines = {line.what: line for line in error_table(VALIDATED.trainings)}
    gpu, host = lines["step, limited by the GPU"], lines["step, limited by the host"]
    paced = lines["the same, at the host's pace meanwhile"]
    assert f"were {gpu.median_pct:.1f} % off in the median where the GPU is" in README
    assert f"{gpu.largest_pct:.1f} % at most (one that was told to be the host's" in README
    captured = lines["step, captured as a graph"]
    assert f"{captured.median_pct:.1f} % too long in the median" in PREDICT
    most = lines["peak memory"].largest_pct
    off = [
        told.memory_bytes - t.memory_peak_bytes
        for t in VALIDATED.trainings
        if (told := t.predicted) and told.memory_bytes and t.memory_peak_bytes
        and round(100 * (told.memory_bytes / t.memory_peak_bytes - 1), 6) == round(most, 6)
    ]  # fmt: skip
    assert f"the {most:.1f} % are {off[0] / 1e6:.0f} MB" in PREDICT
    assert f"where the host is, {host.median_pct:.1f} % in the median" in README
    assert f"and {paced.median_pct:.1f} % for the pace that they had meanwhile" in README


def _is_amp(training: Training) -> bool:
    return training.case.recipe == "amp"
