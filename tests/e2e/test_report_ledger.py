"""Predictions and ledgers on the screen: what they say, that they add up and hide nothing."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from samples.any_training import ledgers
from samples.training_runs import (
    TERMS,
    arm,
    host_run,
    ledger_of,
    ledger_run,
    out_of_memory_run,
    predicted_of,
    predicted_only,
    predicted_run,
    predicted_sweep,
    run_of,
    shown,
    sweep_run,
)

from e2e.explain import ledger as producer
from e2e.report.arms import view_of
from e2e.report.ledger import (
    GAP,
    OTHERS,
    SMALL_SHARE,
    account,
    base_name,
    is_residual,
    term_words,
    waterfall,
)
from e2e.report.plot_training import training_chart
from e2e.report.plot_waterfall import waterfall_panels, waterfall_rows
from e2e.report.run_report import CSV_ORDER
from e2e.report.verdict import BUSY, verdict
from e2e.results.terms import PRODUCT_TERMS, RESIDUAL
from e2e.results.types import LedgerLine, Training
from microbench.device.load import LOAD, SHARE
from microbench.errors import UserError
from microbench.report.drawing import draw
from microbench.report.export import to_csv, to_markdown
from microbench.results.types import Run

GOLDEN = Path(__file__).parents[1] / "samples" / "report_ledger.txt"
WIDTHS = (40, 60, 80, 100)
SIGNS = "━<>│"


def flat(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def said(run: Run) -> str:
    return "\n".join(verdict(run))


def with_ledger(*lines: LedgerLine, **changes: Any) -> Training:
    return arm("amp", 256 / 0.0421, ledger=lines, ledger_base="fp32", **changes)


def steps_of(first: float, *terms: tuple[str, float], last: float | None = None) -> Training:
    """A training with this ledger, which adds up unless `last` says otherwise."""
    total = math.fsum([first, *(ms for _, ms in terms)]) if last is None else last
    lines = [LedgerLine(term, ms, "replayed") for term, ms in terms]
    return with_ledger(
        LedgerLine("fp32 step", first, "measured"), *lines,
        LedgerLine("amp step", total, "measured"),
    )  # fmt: skip


def drawn(text: str) -> dict[str, tuple[float, str]]:
    """Term -> the number and the bar with the blanks before it, of the first waterfall."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("term "))
    found: dict[str, tuple[float, str]] = {}
    for line in lines[head + 2 :]:
        match = re.match(rf"(.+?) +([+-]?[\d.]+)  ( *[{SIGNS}]+)", line)
        if not match:
            break
        found[match[1]] = (float(match[2]), match[3])
    return found


def tables() -> str:
    """The golden screens: measured and accounted for, a host-bound one, and predictions alone."""
    screens = [shown(ledger_run(), details=True), shown(host_run()), shown(predicted_run(), 80)]
    return "\n".join(screens)


# ---------------------------------------------------------------- the whole screen


def test_golden_screens() -> None:
    """To renew: python tests/e2e/test_report_ledger.py"""
    assert tables() == GOLDEN.read_text(encoding="utf-8")


def test_the_terms_are_those_that_the_ledger_is_made_of() -> None:
    assert set(producer.PRODUCT_TERMS) == set(PRODUCT_TERMS)
    assert producer.RESIDUAL == RESIDUAL
    assert set(TERMS) <= {*producer.OP_TERMS, producer.GAPS}


# ---------------------------------------------------------------- predicted


def test_an_error_that_nobody_wrote_is_worked_out() -> None:
    predicted = predicted_of("amp", error_pct=None)
    run = run_of(arm("amp", 256 / 0.0421, predicted=predicted))
    assert "+2.9 %" in shown(run)
    (row,) = csv.DictReader(io.StringIO(to_csv(run)))
    assert float(row["predicted_error_pct"]) == pytest.approx(2.9)


def test_what_is_not_covered_is_said_plainly() -> None:
    ops = "mylib.fancy_attention (unknown operation), aten.nonzero"
    assert ops in to_markdown(host_run())
    many = tuple(f"custom.op{i}" for i in range(40))
    run = run_of(predicted_only("amp", predicted=predicted_of("amp", uncovered=many)))
    assert "and 34 more" in shown(run)
    assert all(op in shown(run, details=True) for op in many)
    assert all(op in to_markdown(run) for op in many)


def test_predictions_alone() -> None:
    alone = run_of(predicted_only("fp32", predicted=predicted_of("fp32", interval_s=None)))
    assert "fp32 is predicted (resnet50, batch 256, synthetic data): 1,061 img/s" in said(alone)
    assert "between" not in shown(alone)


def test_predictions_over_batches() -> None:
    text = shown(predicted_sweep())
    assert text.index("\nbatch 64\n") < text.index("\nbatch 1024\n")
    assert "at batch 64 5,909 img/s, 10.8 ms/step, 2.90 GB" in said(predicted_sweep())
    grown = predicted_of("amp", speedup={"fp32": 7.0})
    run = run_of(predicted_only("amp", 64), predicted_only("amp", 512, predicted=grown))
    assert "5.57 (batch 64) to 7.00 (batch 512) times as fast as fp32" in said(run)


def test_a_prediction_on_a_busy_cpu_says_so_in_short() -> None:
    quiet = replace(run_of(predicted_only("fp32")), device={"name": "a CPU", "kind": "cpu"})
    busy = replace(quiet, settings={**quiet.settings, LOAD: {SHARE: 0.9}})
    assert BUSY in verdict(busy)
    assert BUSY not in verdict(quiet)


def test_measured_and_predicted_arms_in_one_run() -> None:
    run = run_of(*ledger_run().of(Training), predicted_only("amp", 512))
    text = shown(run)
    assert "Predicted and measured step" in text
    assert "Predicted step (not measured)" in text
    assert "amp is predicted to train 5.57 times as fast as fp32" in text
    lost = replace(
        out_of_memory_run().of(Training)[0], step_units=1024, predicted=predicted_of("amp")
    )
    text = shown(run_of(lost))
    assert "FAILED: out of memory" in text
    assert "(not measured)" in text


def test_a_ladder_can_be_predicted() -> None:
    predicted = predicted_of("amp", speedup={"previous": 2.1, "first": 5.5})
    first = predicted_only("fp32", rung="fp32", predicted=predicted_of("fp32", speedup={}))
    text = shown(run_of(first, predicted_only("amp", rung="AMP", predicted=predicted)))
    row = next(line for line in text.splitlines() if line.startswith("+ AMP "))
    assert row.split()[-4:] == ["2.10", "5.50", "GPU", "11.6"]
    assert next(line for line in text.splitlines() if line.startswith("fp32 ")).count("base") == 2


# ---------------------------------------------------------------- the waterfall


def test_terms_that_hardly_change_are_named_apart() -> None:
    hardly = run_of(steps_of(20.0, ("convolutions", -5.0), ("casts", 0.05), ("copies", 1e-6)))
    assert "casts +0.05, no change in copies" in flat(shown(hardly))


@pytest.mark.parametrize("width", WIDTHS)
def test_bars_begin_where_the_last_one_ended(width: int) -> None:
    found = list(drawn(shown(host_run(), width)).values())
    starts = [len(bar) - len(bar.lstrip()) for _, bar in found]
    ends = [len(bar) for _, bar in found]
    assert starts[0] == starts[-1] == 0
    level = ends[0]
    for (ms, bar), start, end in zip(found[1:-1], starts[1:-1], ends[1:-1], strict=True):
        sign = bar.strip()[0]
        assert set(bar.strip()) == {sign}
        assert sign == ("<" if ms < 0 else ">")
        # A bar of less than half a column has a column all the same.
        assert abs((end if ms < 0 else start) - level) <= 1
        level = start if ms < 0 else end
    assert abs(ends[-1] - level) <= 1


def test_a_zero_residual_is_shown() -> None:
    bars = drawn(shown(run_of(steps_of(10.0, ("convolutions", -5.0), ("unexplained", 0.0)))))
    assert bars["unexplained"][0] == 0
    assert bars["unexplained"][1].strip() == "│"


def test_small_terms_share_a_line_and_one_alone_keeps_its_name() -> None:
    one = waterfall(steps_of(100.0, ("convolutions", -60.0), ("casts", 0.4)))
    assert [bar.term for bar in one.bars[1:-1]] == ["convolutions", "casts"]
    two = waterfall(
        steps_of(100.0, ("casts", 0.4), ("pooling", -0.1), ("unexplained", 0.01), ("copies", 0.2))
    )
    assert [bar.term for bar in two.bars[1:-1]] == [OTHERS, "unexplained"]
    assert two.bars[1].ms == pytest.approx(0.5)
    assert [line.term for line in two.small] == ["casts", "pooling", "copies"]


def test_what_does_not_add_up_is_shown() -> None:
    fall = waterfall(steps_of(100.0, ("convolutions", -60.0), last=43.0))
    assert [(bar.term, bar.text) for bar in fall.bars[1:-1]] == [
        ("convolutions", "-60.0"), (GAP, "+3.0"),
    ]  # fmt: skip
    assert GAP in shown(run_of(steps_of(100.0, ("convolutions", -60.0), last=43.0)))


@settings(max_examples=300)
@given(ledgers())
def test_what_is_shown_adds_up(lines: tuple[LedgerLine, ...]) -> None:
    """In digits as read, in numbers, and in the places of the bars; nothing is lost."""
    for fold in (True, False):
        fall = waterfall(with_ledger(*lines), fold=fold)
        first, *between, last = fall.bars
        numbers = [float(bar.text) for bar in fall.bars]
        unit = 10.0 ** -len(last.text.partition(".")[2])
        if between and "e" not in "".join(bar.text for bar in fall.bars):
            assert math.fsum(numbers[:-1]) == pytest.approx(numbers[-1], abs=unit / 100)
        largest = max(abs(line.ms) for line in lines)
        assert math.fsum(bar.ms for bar in (first, *between)) == pytest.approx(
            last.ms, abs=1e-9 * largest
        )
        for bar, before in zip(between, fall.bars, strict=False):
            assert bar.start_ms == before.end_ms
        kept = [bar.ms for bar in between if bar.term != GAP]
        hidden = math.fsum(line.ms for line in fall.small)
        assert len(kept) + len(fall.small) - bool(fall.small) == len(lines) - 2
        assert not any(is_residual(line) for line in fall.small)
        assert all(abs(line.ms) < SMALL_SHARE * lines[0].ms for line in fall.small)
        assert not fall.small or hidden in kept
        assert fold or not fall.small


@settings(max_examples=60)
@given(ledgers(), st.sampled_from(WIDTHS))
def test_it_always_fits_and_names_every_term(lines: tuple[LedgerLine, ...], width: int) -> None:
    run = run_of(with_ledger(*lines))
    text = shown(run, width, details=True)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "what changes in a step" in flat(text)
    rows = [line for line in to_markdown(run).splitlines() if line.startswith("| ")]
    assert len(rows) >= 3 + len(lines)
    assert sum(is_residual(line) for line in lines[1:-1]) <= text.count("unexplained")
    assert waterfall_rows(waterfall(run.of(Training)[0]))


def test_numbers_that_are_none_are_not_drawn() -> None:
    for ms in (math.nan, math.inf):
        run = run_of(steps_of(10.0, ("convolutions", ms), last=5.0))
        assert "what changes time" not in shown(run)
        assert waterfall_panels(view_of(run)) == []
    run = run_of(replace(steps_of(10.0, ("convolutions", -5.0)), bound=math.inf))
    assert "Amdahl" not in shown(run)


def test_times_beyond_any_step_are_rounded_alone() -> None:
    huge = waterfall(steps_of(1e12, ("convolutions", -5e11)))
    assert [bar.text for bar in huge.bars] == ["1.0e+12", "-5.0e+11", "5.0e+11"]


def test_several_ledgers() -> None:
    run = sweep_run()
    lines = ledger_of("fp32", "amp")
    found = [replace(t, ledger=lines) if t.case.recipe == "amp" else t for t in run.of(Training)]
    run = replace(run, others=tuple(found))
    assert shown(run).count("what changes in a step") == 4
    assert "and 1 more ledger (--verbose shows all)" in shown(run)
    assert "From fp32 to amp (batch 2048): what changes" in shown(run, details=True)
    assert said(run).count("Of the 242 ms of a step in fp32, amp (batch") == 4
    assert "And 1 more ledger" in said(run)
    assert to_markdown(run).count("what changes in a step") == 5
    assert len(waterfall_panels(view_of(run))) == 4


def test_escape_codes_are_not_printed() -> None:
    bad = "x\x1b[2J\n|"
    lines = [LedgerLine(bad, ms, bad, bad) for ms in (10.0, -1.0, 0.01, 0.01, -4.02, 5.0)]
    predicted = predicted_of("amp", uncovered=(bad,), speedup={bad: 2.0}, limit=bad)
    evil = arm("amp", 5, ledger=tuple(lines), ledger_base=bad, predicted=predicted, limit=bad)
    for run in (
        run_of(evil),
        run_of(predicted_only("amp", predicted=predicted, ledger=tuple(lines))),
    ):
        for width in WIDTHS:
            assert "\x1b" not in shown(run, width, details=True)
        assert "\x1b" not in to_markdown(run)
        titles = [panel.to_dict()["title"]["text"] for panel in waterfall_panels(view_of(run))]
        assert titles
        assert "\x1b" not in str(titles)
    blank = replace(evil, ledger=tuple(replace(line, term="\n") for line in lines))
    assert base_name(replace(blank, ledger_base=None)) == "the baseline"
    assert shown(run_of(blank))


# ---------------------------------------------------------------- in words


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ((("convolutions", -5.0), ("casts", 6.0)),
         "GEMMs and convolutions save 5.00 ms; other terms cancel all of it in the step, which "
         "takes 1.00 ms more."),
        ((("convolutions", -5.0), ("casts", 0.01)),
         "GEMMs and convolutions save 5.00 ms; the other terms together change almost nothing."),
        ((("convolutions", 1.0), ("matrix products", 0.5)),
         "GEMMs and convolutions save nothing: they take 1.50 ms more."),
        ((("matrix products", -3.0), ("attention", -2.0), ("casts", 1.0)),
         "GEMMs and convolutions save 5.00 ms; the other terms together add 1.00 ms, so the step "
         "gets 4.00 ms shorter (80 %)."),
    ],
)  # fmt: skip
def test_what_products_save(terms: tuple[tuple[str, float], ...], sentence: str) -> None:
    assert account(steps_of(20.0, *terms), "amp") == [sentence]


def test_in_short() -> None:
    slower = run_of(steps_of(20.0, ("convolutions", -1.0), ("host and launch gaps", 4.0)))
    assert "amp takes 3.00 ms more than the 20.0 ms of a step in fp32, most in" in said(slower)
    assert "in CPU launch gaps (4.00 ms); most is saved in convolutions (1.00" in said(slower)
    only = said(run_of(steps_of(20.0, ("convolutions", -1.0))))
    assert "no term adds time" in only
    hardly = said(run_of(steps_of(20.0, ("convolutions", -1.0), ("softmax and loss", 1e-5))))
    assert "no term adds time" in hardly
    little = said(run_of(steps_of(20.0, ("convolutions", -1.0), ("softmax and loss", 1e-4))))
    assert "most is added in softmax and loss" in little
    same = said(run_of(steps_of(20.0)))
    assert "amp takes exactly the 20.0 ms of a step in fp32; no term saves time" in same


# ---------------------------------------------------------------- other forms


def test_markdown_has_every_term() -> None:
    text = to_markdown(ledger_run())
    assert "| convolutions | -178.16 | replayed | 196.20 to 18.04 ms |" in text
    assert "| amp | 43.3 | 42.0..44.6 | 42.1 | +2.9 % | GPU / GPU |" in text
    assert all(
        f"| {term_words(term)} | " in text
        for term in (*TERMS, "unexplained", "fp32 step", "amp step")
    )
    assert OTHERS not in text
    only = to_markdown(predicted_run())
    assert only.startswith("NVIDIA H200: predict, resnet50")
    assert "predicted: no reason given" not in only


def test_csv_keeps_its_order_and_has_the_predictions() -> None:
    header = to_csv(ledger_run()).splitlines()[0].split(",")
    assert tuple(header[: len(CSV_ORDER)]) == CSV_ORDER
    rows = list(csv.DictReader(io.StringIO(to_csv(ledger_run()))))
    assert [row["predicted_error_pct"] for row in rows] == ["-0.3", "0.2", "2.9"]
    assert float(rows[2]["predicted_step_s"]) == pytest.approx(0.0421 * 1.029)
    (*_, alone) = csv.DictReader(io.StringIO(to_csv(predicted_run())))
    assert (alone["status"], alone["step_s"], alone["predicted_error_pct"]) == ("predicted", "", "")


@pytest.mark.parametrize("run", [ledger_run(), predicted_run(), host_run()])
def test_charts_hold_the_waterfall(run: Run, tmp_path: Path) -> None:
    draw(run, tmp_path / "chart.svg")
    text = "".join(ElementTree.parse(tmp_path / "chart.svg").getroot().itertext())
    assert "From fp32 to amp: what changes in a step, in ms" in text
    assert "convolutions" in text
    assert all(bar.text in text for bar in waterfall(run.of(Training)[-1]).bars)


def test_rows_of_a_chart_are_the_lines_of_the_screen() -> None:
    amp = ledger_run().of(Training)[2]
    rows = waterfall_rows(waterfall(amp))
    assert [row["term"] for row in rows] == list(drawn(shown(run_of(amp))))
    assert (rows[0]["low"], rows[0]["high"]) == (0, 242.0)
    assert rows[1]["high"] == 242.0
    assert rows[1]["low"] == pytest.approx(242.0 - 178.16)
    assert rows[-1]["low"] == 0


def test_predictions_without_a_ledger_are_nothing_to_draw() -> None:
    with pytest.raises(UserError, match="nothing to draw"):
        training_chart(run_of(predicted_only("fp32")))


if __name__ == "__main__":
    GOLDEN.write_text(tables(), encoding="utf-8")
