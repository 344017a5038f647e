"""Fixes and findings on the screen: ranked, whole at every width, with numbers that agree."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from samples.any_training import causes as any_causes
from samples.training_runs import (
    CAUSES,
    arm,
    causes_run,
    predicted_only,
    run_of,
    shown,
    sweep_run,
)

from e2e.report.causes import (
    difference_points,
    fixes,
    measured_pct,
    predicted_pct,
    verified,
)
from e2e.report.verdict import verdict
from e2e.results.types import Cause, Training
from microbench import fmt
from microbench.report.export import to_markdown
from microbench.results.types import Run

FIXES, FINDINGS = (
    re.compile("What would make .* faster"),
    re.compile("What limits .* now|Why .* is no faster"),
)
GOLDEN = Path(__file__).parents[1] / "samples" / "report_causes.txt"
WIDTHS = (40, 60, 80, 100)


def fix(words_to_type: str, predicted: float | None, measured: float | None = None) -> Cause:
    return Cause(f"title of {words_to_type}", "why", words_to_type, predicted, None, measured)


def with_causes(*causes: Cause, recipe: str = "amp", batch: int = 256) -> Training:
    return arm(recipe, 5_000, units=batch, case={"batch": batch}, causes=causes)


def sections(run: Run, width: int = 100) -> str:
    """From the first fix or finding to the end of the last."""
    text = shown(run, width)
    starts = [found.start() for title in (FIXES, FINDINGS) if (found := title.search(text))]
    return text[min(starts) : text.index("In short\n")]


def screens() -> str:
    """The golden ones: some fixes verified, and none."""
    wide, folded = (sections(causes_run(measured=True), width) for width in (100, 60))
    return "\n".join([wide, sections(causes_run(), 80), folded])


def said(*trainings: Training) -> list[str]:
    """The sentences on fixes."""
    return [line for line in verdict(run_of(*trainings)) if re.search("^Best fix| fix ", line)]


def bare(text: str) -> str:
    """The text without blanks: folding and indents do not count."""
    return "".join(text.split())


# ---------------------------------------------------------------- the screen


def test_golden_sections() -> None:
    """To renew: python tests/e2e/test_report_causes.py"""
    assert screens() == GOLDEN.read_text(encoding="utf-8")


def test_fixes_are_ranked_by_their_predicted_gain() -> None:
    listed = (fix("--one", 5.0), fix("--two", None), fix("--three", 30.0), fix("--four", -1.0))
    text = sections(run_of(with_causes(*listed, Cause("finding", "reason"))))
    rows = re.findall(r"^(\d\.)  (--\w+)(?: +([+-].*)| (\(.*\)))$", text, re.MULTILINE)
    assert rows == [
        ("1.", "--three", "+30.0 %", ""), ("2.", "--one", "+5.0 %", ""),
        ("3.", "--four", "-1.0 %", ""), ("4.", "--two", "", "(gain not predicted)"),
    ]  # fmt: skip
    assert text.index("title of --two: why") < text.index("What limits amp now\nfinding\n  re")
    assert "measured" not in text


def test_fixes_alone_and_findings_alone() -> None:
    assert not FINDINGS.search(shown(run_of(with_causes(fix("--graph", 5.0)))))
    text = shown(run_of(with_causes(Cause("finding", "reason"))))
    assert not FIXES.search(text)
    assert "What limits amp now\nfinding\n  reason\n" in text


def test_without_numbers_there_is_no_head() -> None:
    text = sections(run_of(with_causes(Cause("slow", "why", "keep it in fp32"))))
    assert text.startswith(
        "What would make amp faster\n1.  keep it in fp32 (gain not predicted)\n    slow: why"
    )


def test_a_fix_that_is_its_own_name_is_said_once() -> None:
    text = sections(run_of(with_causes(Cause("pad", "sizes are odd", "pad", 5.0))))
    assert text.count("pad") == 1
    assert "no reason given" in sections(run_of(with_causes(Cause("pad", "", "pad", 5.0))))


def test_predictions_alone_have_causes_too() -> None:
    run = run_of(predicted_only("amp", causes=CAUSES))
    assert "1.  --graph" in shown(run)
    assert "Best fix for amp: --graph (predicted +55.2 %)." in verdict(run)


def test_the_same_training_twice() -> None:
    one = with_causes(fix("--graph", 5.0))
    assert len(FIXES.findall(shown(run_of(one, one)))) == 2


def test_many_trainings() -> None:
    run = sweep_run()
    found = [replace(t, causes=CAUSES) if t.case.recipe == "amp" else t for t in run.of(Training)]
    run = replace(run, others=tuple(found))
    assert len(FIXES.findall(shown(run))) == len(FINDINGS.findall(shown(run))) == 4
    assert "and fixes or findings of 1 more training (--verbose shows all)" in shown(run)
    assert len(FIXES.findall(shown(run, details=True))) == 5
    assert len(FIXES.findall(to_markdown(run))) == 5
    assert "What would make amp (batch 2048) faster" in shown(run, details=True)
    assert sum("Best fix for amp (batch" in line for line in verdict(run)) == 4
    assert "  And 1 more training with a fix, listed above." in verdict(run)


# ---------------------------------------------------------------- every width


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("measured", [False, True])
def test_sentences_are_folded_under_their_lines(width: int, measured: bool) -> None:
    text = sections(causes_run(measured), width)
    assert max(map(cell_len, text.splitlines())) <= width
    for cause in CAUSES:
        assert bare(cause.why) in bare(text)
    for line in text.splitlines():
        assert re.match(r"What|Why|\d\. |  +\S|─|verified|of 2|the measured|left|(in )?points|$|"
                        r"CPU launch is|the host launches|TF32 is|and |products", line)  # fmt: skip
    assert ("left out to fit 40 columns" in text) == (width == 40 and measured)


def test_a_long_fix_goes_on_under_itself() -> None:
    long = fix("pad the channels of the first layer and of the last one to a multiple of 8", 5.0, 4)
    lines = sections(run_of(with_causes(long)), 60).splitlines()
    assert "+5.0 %" in lines[4]
    assert lines[4].split()[1:4] == ["pad", "the", "channels"]
    assert all(line.startswith("    ") and len(line) <= 60 for line in lines[5:8])


@settings(max_examples=60)
@given(any_causes, st.sampled_from(WIDTHS))
def test_it_always_fits_and_hides_nothing(causes: tuple[Cause, ...], width: int) -> None:
    run = run_of(with_causes(*causes))
    text = shown(run, width)
    assert max(map(cell_len, text.splitlines())) <= width
    for cause in causes:
        assert bare(fmt.clean(cause.why)) in bare(text)
        assert bare(fmt.clean(cause.title)) in bare(text)
    markdown = to_markdown(run)
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert len(rows) >= len(causes)


def test_wide_characters_are_not_cut() -> None:
    wide = Cause("層" * 60, "畳み込み" * 40, "層を減らす " * 12, 5.0)
    for width in WIDTHS:
        text = shown(run_of(with_causes(wide)), width)
        assert max(map(cell_len, text.splitlines())) <= width
        assert wide.why in bare(text)
        assert "…" not in text


def test_escape_codes_are_not_printed() -> None:
    bad = "x\x1b[2J\n|\r"
    evil = with_causes(Cause(bad, bad, bad, 5.0, {bad: bad}, 4.0), Cause(bad, bad, bad),
                       Cause(bad, bad), Cause("", "", "\n"))  # fmt: skip
    for run in (run_of(evil), run_of(predicted_only("amp", causes=evil.causes))):
        for width in WIDTHS:
            assert "\x1b" not in shown(run, width, details=True)
        assert "\x1b" not in to_markdown(run)
        assert "\x1b" not in "".join(verdict(run))
        assert "\r" not in to_markdown(run)
    assert "-\n  no reason given" in shown(run_of(evil))


# ---------------------------------------------------------------- verified


def test_the_summary_of_one() -> None:
    assert verified(with_causes(fix("--graph", 5.04, 4.96))) == (
        "verified: predicted within 0.0 points of the measured gain"
    )
    assert "+0.0" in sections(run_of(with_causes(fix("--graph", 5.04, 4.96))))
    assert verified(with_causes(fix("--graph", None, 4.0))) == ""
    assert verified(with_causes(fix("--graph", math.nan, math.inf))) == ""


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(-100, 900), st.floats(-100, 900)), min_size=1, max_size=4))
def test_numbers_agree_as_they_are_read(pairs: list[tuple[float, float]]) -> None:
    one = with_causes(*(fix(f"--f{i}", *pair) for i, pair in enumerate(pairs)))
    text = sections(run_of(one))
    rows = re.findall(r"(--f\d) +([+-][\d.]+) % +([+-][\d.]+) % +([+-][\d.e]+)", text)
    assert len(rows) == len(pairs)
    largest = 0.0
    for _, predicted, measured, points in rows:
        difference = float(measured) - float(predicted)
        assert difference == pytest.approx(float(points), rel=6e-3, abs=0.01)
        largest = max(largest, abs(float(points)))
    assert "-0.0" not in text
    within = re.search(r"within ([\d.e]+) points", text)
    assert within
    assert float(within[1]) == largest


def test_gains_as_they_are_shown() -> None:
    cause = fix("--graph", 70.04, 65.16)
    assert (predicted_pct(cause), measured_pct(cause)) == (70.0, 65.2)
    assert difference_points(cause) == pytest.approx(-4.8)
    assert [f.fix for f in fixes(with_causes(fix("--a", math.nan), fix("--b", -50.0)))] == [
        "--b", "--a",
    ]  # fmt: skip


# ---------------------------------------------------------------- in words


def test_in_short_names_the_best_fix() -> None:
    graph, batch = fix("--graph", 50.0), fix("--batch 32", 20.0)
    best = "Best fix for amp: "
    assert said(with_causes(batch, graph)) == [f"{best}--graph (predicted +50.0 %)."]
    slower = [replace(graph, measured_gain_pct=-2.0), replace(batch, measured_gain_pct=21.5)]
    assert said(with_causes(*slower)) == [
        f"{best}--batch 32 (predicted +20.0 %, measured +21.5 %)."
    ]
    assert said(with_causes(fix("--compile", None, 3.0))) == [f"{best}--compile (measured +3.0 %)."]
    assert said(with_causes(fix("keep it in fp32", None), Cause("finding", "why"))) == []


def test_a_fix_that_gains_nothing_is_not_praised() -> None:
    assert said(with_causes(fix("--graph", 50.0, -2.0))) == [
        "No known fix makes amp faster; the best is --graph (predicted +50.0 %, measured -2.0 %)."
    ]


if __name__ == "__main__":
    GOLDEN.write_text(screens(), encoding="utf-8")
