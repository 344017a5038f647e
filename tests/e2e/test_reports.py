"""Reports of made-up trainings: as committed, and four properties of any run.

They fit, they add up, no escape code gets through, and no odd run ends in a traceback.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from samples.any_training import ledgers, trainings
from samples.kernel_runs import h200_run
from samples.training_runs import (
    RATES,
    RUNS,
    amp_run,
    broken_run,
    host_run,
    out_of_memory_run,
    predicted_only,
    ratio_of,
    run_of,
    shown,
    tokens_run,
    variant,
)  # fmt: skip

from e2e.profile.causes import KNOWN
from e2e.report import diagnosis, figures
from e2e.report.ledger import OTHERS, account, changes, is_sound, unexplained
from e2e.report.pictures import bar_rows, fall_rows, training_chart, waterfall_rows
from e2e.report.run_report import FIRST_NAMES, report
from e2e.report.variants import view_of
from e2e.results.terms import TracedCost, TracedPart, TracedStep
from e2e.results.types import LIMITS, Cause, LayerGain, LedgerLine, PartGain, Repeat, Training
from microbench import fmt
from microbench.commands import explain_again
from microbench.errors import UserError
from microbench.report import writers
from microbench.report.charts import write_chart
from microbench.report.report import report_of
from microbench.results.runfile import read_run, write_run
from microbench.results.types import Ratio, Run

REPORTS = Path(__file__).parents[1] / "samples" / "reports"
RESULTS = Path(__file__).parents[2] / "results"
PUBLISHED = ("train-fp8-1024", "timm/ours-compiled", "ranks-strong", "ladder-resnet50",
             "stalls-resnet50", "studies/vgg16-batch/runs/table",
             "studies/resnet-static256/runs/fed", "predict-gpu-time")  # fmt: skip
SHOWN = {
    "cpu": "cpu/train-resnet50", "evaluation": "nvidia-h200/eval-resnet50",
    "ladder": "nvidia-h200/ladder-resnet50", "ledger": "nvidia-h200/ledger-resnet50",
    "networks": "nvidia-h200/train-others",
    "sweep": "nvidia-h200/studies/vgg16-batch/runs/table",
    "verified": "nvidia-h200/verify-resnet50",
}  # fmt: skip
WIDTHS = (40, 60, 100)


def published(name: str) -> Run:
    return read_run(RESULTS / f"{name}.json")


def ledger_run() -> Run:
    return published(SHOWN["ledger"])


CAUSES = published(SHOWN["verified"]).of(Training)[2].causes


def to_csv(run: Run) -> str:
    return writers.to_csv(report_of(run))


def to_markdown(run: Run) -> str:
    return writers.to_markdown(report_of(run))


def changed(run: Run, place: int, **changes: Any) -> Run:
    """The run with one of its trainings changed."""
    found = list(run.of(Training))
    found[place] = replace(found[place], **changes)
    return replace(run, others=tuple(found))


def searched_briefly(run: Run) -> Run:
    return run_of(*(replace(t, case=replace(t.case, search="short")) for t in run.of(Training)))


def steps_of(first: float, last: float | None = None, /, **terms: float) -> Training:
    """A training with this ledger, which adds up unless `last` says otherwise."""
    total = math.fsum([first, *terms.values()]) if last is None else last
    lines = [LedgerLine(term.replace("_", " "), ms, "replayed") for term, ms in terms.items()]
    ends = (LedgerLine(f"{name} step", ms, "measured")
            for name, ms in (("fp32", first), ("amp", total)))  # fmt: skip
    return variant("amp", 256 / 0.0421, ledger=(next(ends), *lines, next(ends)), ledger_base="fp32")


# ---------------------------------------------------------------- as committed


def screens() -> Iterator[tuple[str, str]]:
    """Runs on the screen: name and text."""
    for name, made in RUNS.items():
        yield name, shown(made(), details=name == "amp")
    for name, path in SHOWN.items():
        yield name, shown(published(path), details=name == "ledger")
    yield "odd", "\n".join(f"# {what}\n{shown(run)}" for what, run in odd())
    yield "markdown", "\n".join(map(to_markdown, (amp_run(), broken_run(), ledger_run())))
    texts = ("\n".join([f"# {what}", *in_short(run)]) for what, run in said())
    yield "in-short", "\n\n".join(texts) + "\n"


def in_short(run: Run) -> list[str]:
    """The answer of a run, and the sentences of its ledgers."""
    of_ledgers = (account(t) for t in run.of(Training) if t.ledger)
    return [*answer(run), *chain.from_iterable(of_ledgers)]


def answer(run: Run) -> list[str]:
    """Each line of the answer, with its label."""
    return [f"{line.label} {line.text}".strip() for line in report(run).answer]


def said() -> Iterator[tuple[str, Run]]:
    """Runs that differ in what is said of them in short."""
    broken, ladder = broken_run(), published(SHOWN["ladder"])
    two_gains = {"fp32": ratio_of(2.0), "tf32": Ratio(1.001, (0.99, 1.01))}
    lost: dict[str, Any] = {"converged": False}
    for what, run, place, new in (
        ("the one that does not converge is slower", broken, 3,
         {"speedup": {"fp32": ratio_of(0.5)}}),
        ("the baseline does not converge", broken, 1, lost | {"convergence": "loss rose"}),
        ("convergence is not known", broken, 3, {"converged": None, "convergence": "too short"}),
        ("a wide interval", amp_run(), 2, {"speedup": {"fp32": Ratio(5.8, (2.1, 15.8))}}),
        ("no interval", amp_run(), 2, {"speedup": {"fp32": Ratio(5.8, None)}}),
        ("one of two gains", amp_run(), 2, {"speedup": two_gains}),
        ("a slower rung", ladder, 5,
         {"speedup": {"previous": ratio_of(0.8), "first": ratio_of(5.0)}}),
        ("a rung that does not converge", ladder, 6, lost | {"convergence": "loss is not finite"}),
    ):  # fmt: skip
        yield what, changed(run, place, **new)
    o0_alone = replace(broken, others=tuple(t for t in broken.of(Training)
                                            if t.case.recipe != "fp32"))  # fmt: skip
    yield "O0 stands for fp32", changed(o0_alone, 0, speedup={})
    yield "nothing to compare", run_of(variant("fp32", 812.0))
    yield "two networks", run_of(*amp_run().of(Training), *tokens_run().of(Training))
    yield "a CPU", replace(tokens_run(), device={"name": "a CPU", "kind": "cpu"})
    rough = predicted_only("fp32", gpu_s=None, interval_s=None, launches=0, host_s=None)
    yield "predicted on a CPU", run_of(rough, device={"name": "a CPU", "kind": "cpu"})
    for terms in (
        {"convolutions": -1.0, "host_and_launch_gaps": 4.0}, {},
        {"matrix_products": -3.0, "attention": -2.0, "casts": 1.0, "copies": 0.5},
    ):  # fmt: skip
        yield f"a ledger of {terms}", run_of(steps_of(20.0, **terms))
    for searched in (ledger_run(), ladder):
        yield "float32 is searched briefly", searched_briefly(searched)
    for name in PUBLISHED:
        yield name, published(f"nvidia-h200/{name}")


def odd() -> Iterator[tuple[str, Run]]:
    """Runs whose tables have something that others lack."""
    amp, tokens = amp_run(), tokens_run().of(Training)
    yield "nothing", run_of()
    brief = searched_briefly(amp).of(Training)
    yield "unfinished, with float32 searched briefly", run_of(*brief, finished_at=None)
    yield "a ledger over float32 searched briefly", searched_briefly(ledger_run())
    options = ({"layout": "nchw"}, {"compile": True, "loss_scale": 256.0})
    yield "options that differ", run_of(*(variant("amp", 4_000, case=one) for one in options))
    reason = "the module's forward failed: " + "x " * 60
    yield "a long reason", changed(out_of_memory_run(), 0, reason=reason)
    yield "skipped", run_of(*(replace(t, status="skipped", reason="not here", steps=None)
                              for t in tokens))  # fmt: skip
    yield "fed, and waiting", run_of(
        *(replace(t, case=replace(t.case, data="folder", loader="torchvision"),
                  steps=replace(t.steps, wait_s=0.0125) if t.steps else None) for t in tokens)
    )  # fmt: skip
    yield "without held-out data", changed(
        amp, 2, converged=True,
        repeats=tuple(Repeat(seed, 50, 4.0, 6.9, 6.1, None, None) for seed in (1, 2)),
    )  # fmt: skip
    yield "weights that are not finite", changed(
        amp, 2, status="failed", reason="weights are not finite after 4 steps", steps=None,
        speedup={}, limit=None,
    )  # fmt: skip
    predicted = predicted_only("amp", uncovered=tuple(f"custom.op{i}" for i in range(40)))
    yield "measured and predicted", run_of(*ledger_run().of(Training), predicted)


def test_reports_are_as_committed() -> None:
    """To renew: PYTHONPATH=.:tests python tests/e2e/test_reports.py"""
    found = dict(screens())
    assert found.keys() == {path.stem for path in REPORTS.iterdir()}
    for name, text in found.items():
        assert text == (REPORTS / f"{name}.txt").read_text(encoding="utf-8"), name


# ---------------------------------------------------------------- any run


def checked(run: Run, width: int) -> str:
    """What is shown of a run, which fits and has no escape codes; nor has its Markdown."""
    text, markdown = shown(run, width, details=True), to_markdown(run)
    assert all(cell_len(line) <= width and line == line.rstrip() for line in text.splitlines())
    assert not set("\x1b\r") & {*text, *markdown}
    assert len(markdown.splitlines()) >= len(run.of(Training))
    rows = list(csv.DictReader(io.StringIO(to_csv(run))))
    assert len(rows) == len(run.of(Training)) + len(run.results)
    return "".join(text.split())


@settings(max_examples=20)
@given(st.lists(trainings, max_size=5), st.sampled_from(WIDTHS))
def test_any_run_fits_and_hides_nothing(found: list[Training], width: int) -> None:
    run = run_of()
    for training in found:
        run = run.with_other(training)
    text = checked(run, width)
    view = view_of(run)
    for training in view.variants:
        for cause in training.causes if is_sound(view, training) else ():
            for words in (cause.title, cause.why):
                assert "".join(fmt.clean(words).split()) in text
    for timed in (t for t in run.of(Training) if t.steps):
        step_s = timed.step_s
        assert step_s
        assert timed.timed.median_s == step_s, "one step in tables, ledgers, ratios and compare"
        assert (timed.per_s or 0) * step_s == pytest.approx(timed.step_units)
    bars = bar_rows(view_of(run))
    assert len(bars) == sum(bool(t.steps) for t in run.of(Training))


def test_odd_runs_fit() -> None:
    for run in (*(made() for made in RUNS.values()), *map(published, SHOWN.values())):
        checked(run, 40)
    causes = (Cause("", "\n"), Cause("層" * 60, "畳み込み" * 40, "層を減らす " * 12, 5.0))
    wide = replace(steps_of(10.0, convolutions=-1.0), causes=causes)
    blank = replace(wide, ledger=tuple(replace(line, term="\n") for line in wide.ledger))
    alone = replace(predicted_only("amp"), ledger=wide.ledger, causes=causes)
    for variants in ((wide,), (blank,), (alone,), ()):
        for width in WIDTHS:
            checked(run_of(*variants), width)
    for ms in (math.nan, math.inf):  # is not drawn
        run = run_of(steps_of(10.0, 5.0, convolutions=ms))
        checked(run, 100)
        assert fall_rows(view_of(run)) == []


def test_only_kernels_are_explained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, path = replace(h200_run(), others=amp_run().of(Training)), tmp_path / "run.json"
    for run in (amp_run(), both):
        write_run(run, path)
        explain_again(path)
        assert read_run(path).of(Training) == amp_run().of(Training)
        assert ("has no kernel results" in capsys.readouterr().out) == (not run.results)


# ---------------------------------------------------------------- sums


@settings(max_examples=100)
@given(ledgers())
def test_a_ledger_adds_up(lines: tuple[LedgerLine, ...]) -> None:
    """As a table and as a waterfall; nothing is lost."""
    training = variant("amp", 256 / 0.0421, ledger=lines, ledger_base="fp32")
    largest = max(abs(line.ms) for line in lines)
    for fold in (True, False):
        *terms, whole = changes(training, fold=fold)
        assert (whole.base_ms, whole.other_ms) == (lines[0].ms, lines[-1].ms)
        total = math.fsum(row.ms for row in terms)
        assert total == pytest.approx(whole.ms, abs=1e-9 * largest)
        names = [row.term for row in terms]
        assert fold or names == [line.term for line in lines[1:-1]]
        assert names.count("residual") == sum(line.term == "residual" for line in lines[1:-1])
    first, *bars, last = waterfall_rows(training, "amp")
    ends = [first["value"], *(bar["value"] for bar in bars)]
    assert [bar["start"] for bar in bars] == ends[:-1]
    assert ends[-1] == pytest.approx(last["value"], abs=1e-9 * largest)


def test_small_terms_share_a_row_and_both_times_of_a_term_are_read() -> None:
    made = steps_of(100.0, convolutions=-60.0, casts=0.4, pooling=-0.1, residual=0.01)
    found = {row.term: row.ms for row in changes(made, fold=True)}
    assert found == pytest.approx(
        {"convolutions": -60, OTHERS: 0.3, "residual": 0.01, "step": -59.69}
    )
    details = ("90.5 to 30.5 ms; body -50.00, head -10.00", "measured minus recorded: base +1.5, "
               "other +2.0", "90.5 to x ms")  # fmt: skip
    terms = ("convolutions", "residual", "casts")
    lines = [
        LedgerLine(*line) for line in zip(terms, (-60.0, 0.5, 0.0), "abc", details, strict=True)
    ]
    made = replace(made, ledger=(made.ledger[0], *lines, made.ledger[-1]))
    rows = {row.term: (row.base_ms, row.other_ms, row.where) for row in changes(made, fold=False)}
    assert rows["convolutions"] == (90.5, 30.5, "body -50.00, head -10.00")
    assert rows["residual"] == (1.5, 2.0, "")
    assert rows["casts"] == (None, None, "")
    assert unexplained(made) == pytest.approx((2.0 / 40.31, 0.5 / 59.69))


# ---------------------------------------------------------------- ruined figures


def test_nothing_follows_from_ruined_intervals() -> None:
    run = ledger_run()
    sound = shown(run, details=True)
    assert "where the time of a step goes" in sound
    assert "No verdict" not in sound
    fp32, tf32, amp = run.of(Training)
    wide = replace(fp32.steps, ci95_s=(0.5 * fp32.steps.median_s, 90 * fp32.steps.median_s))
    ruined = run_of(replace(fp32, steps=wide), tf32, replace(amp, causes=CAUSES))
    text = " ".join(shown(ruined, details=True).split())
    assert "No verdict on fp32, tf32 and amp" in text
    assert "intervals beyond ±999 % are too wide" in text
    for said in ("where the time of a step goes", "What limits", "trains", "saves", "Try"):
        assert said not in text
    assert len(answer(ruined)) == 3
    (_, _, row) = csv.DictReader(io.StringIO(to_csv(ruined)))
    assert row["ledger_ms"], "the figures stay"
    assert row["fixes"]
    assert fall_rows(view_of(ruined)) == []


@pytest.mark.parametrize(
    ("ratio", "terms", "said"),
    [
        (ratio_of(1.43), {"convolutions": -25.0, "residual": -5.0}, ""),
        (ratio_of(1.43), {"convolutions": -23.0, "residual": -7.0}, "23 % is unexplained"),
        (ratio_of(1.05), {"convolutions": -3.0, "residual": -2.0}, "40 % is unexplained"),
        (Ratio(1.14, (0.99, 1.3)), {"convolutions": -30.0}, "amp: no difference was measured"),
        (Ratio(1.14, (1.0, 1.3)), {"convolutions": -30.0}, "amp: no difference was measured"),
        (ratio_of(0.9), {"convolutions": -30.0}, "by their rounds it is 0.90"),
        (Ratio(1.43, None), {"convolutions": -30.0}, ""),
    ],
)  # fmt: skip
def test_nothing_is_explained_that_was_not_measured(
    ratio: Ratio, terms: dict[str, float], said: str
) -> None:
    """A line in place of ledger, causes and fixes; the speed is shown, the file has it all."""
    causes = (replace(CAUSES[0], measured_gain_pct=49.0), *CAUSES[1:])
    made = replace(steps_of(100.0, **terms), causes=causes, speedup={"fp32": ratio}, limit="host")
    run = run_of(variant("fp32", 256 / 0.1), made)
    text = " ".join(shown(run, details=True).split())
    assert said in text
    for one in ("where the time of a step goes", "What limits", "saves", "Try", "measured +49.0 %"):
        assert (one in text) == (not said), one
    assert ("Not explained" in text) == ("Not explained" in to_markdown(run)) == bool(said)
    assert "amp" in answer(run)[0]
    (_, row) = csv.DictReader(io.StringIO(to_csv(run)))
    assert row["ledger_ms"]
    assert row["fixes"]
    assert bool(fall_rows(view_of(run))) == (not said)


def test_a_chart_names_a_brief_search_with_each_ratio_over_fp32() -> None:
    fp32, _, amp = brief = searched_briefly(ledger_run()).of(Training)
    assert bar_rows(view_of(run_of(*brief)))[-1]["text"].endswith("x tf32)")
    alone = run_of(fp32, replace(amp, speedup={"fp32": amp.speedup["fp32"]}))
    assert bar_rows(view_of(alone))[1]["text"].endswith("x fp32¹)")
    assert "¹ by a short search" in str(training_chart(alone).to_dict())
    assert "short search" not in str(training_chart(ledger_run()).to_dict())


# ---------------------------------------------------------------- what stands in results/


def test_no_answer_claims_more_than_its_table() -> None:
    """No ratio that its cell calls ~1, no verdict beside a "?", no rung that gained nothing."""
    count = 0
    for path in RESULTS.rglob("*.json"):
        with contextlib.suppress(UserError):
            run = read_run(path)
            view, found = view_of(run), report(run)
            said = " ".join(line.text for line in found.answer)
            for one in view.variants:
                count += 1
                for gain in one.speedup.values():
                    ratio = f"{figures.times(gain)} ({view.where(one)})"
                    assert not gain.no_difference or f"{ratio} times" not in said
                    assert not gain.no_difference or f"{ratio} to" not in said
                assert not one.float8_layers or "still in float32" not in str(one.causes)
                if f"use all up to {view.label(one).removeprefix('+ ')}:" in said:
                    assert figures.is_clear(one.speedup["previous"])
                    assert one.speedup["previous"].ratio > 1
            for row in chain.from_iterable(part.rows for part in found.parts):
                if isinstance(row.item, dict) and "variant" in row.item:
                    group = next(one for one in view.groups if row.item["variant"] in one.variants)
                    ruined = bool(group.ruined_pct)
                    cells = [cell for name, cell in row.item.items() if name.startswith("x ")]
                    assert all(marked == ruined for _, marked in cells)
                    assert not (ruined and cells and row.item["bottleneck"]), "no finding"
    assert count > 200


def test_no_answer_contradicts_the_bottlenecks_of_its_table() -> None:
    """It names no other one, and to what is slower it prefers what was measured to be faster."""
    slower = waits = 0
    for path in RESULTS.rglob("*.json"):
        with contextlib.suppress(UserError):
            run = read_run(path)
            view = view_of(run)
            lines = report(run).answer if run.kind == "train" else ()
            limits = {t.limit for t in view.variants}
            others = tuple(
                words for limit, words in figures.BOTTLENECKS.items() if limit not in limits
            )
            for line in lines if limits <= {*LIMITS} else ():
                assert line.label != "Why" or not line.text.startswith(others), path
            if lines and "is slower: it trains" in lines[0].text:
                slower += 1
                assert "train in" in " ".join(line.text for line in lines), path
            for one in (t for t in view.variants if t.traced and t.traced.launches and t.step_s):
                idle_s = one.step_s - one.traced.busy_ns / one.traced.steps / 1e9
                for why in (c.why for c in one.causes if c.title == KNOWN["launch"].title):
                    waits += 1
                    assert float(re.findall(r"up to ([\d.]+) of", why)[0]) <= 1010 * idle_s, path
    assert slower > 5
    assert waits > 20


def test_what_is_slower_is_explained_by_what_grew_not_by_a_slower_cpu_meanwhile() -> None:
    def of(recipe: str, step_s: float, *ms: int, **more: Any) -> Training:
        terms = ("matrix products", "casts", "CPU launch")
        parts = tuple(TracedPart(term, one * 10**6) for term, one in zip(terms, ms, strict=True))
        costs = (TracedCost(launch.title, 40 * 10**6, "", launch.remedy, "launch"),)
        return variant(recipe, 256 / step_s, traced=TracedStep(1, 9, parts, costs), **more)

    launch = KNOWN["launch"]
    older = (Cause(launch.title, "it takes up to 40.0 of 100.0 ms (40 %)", launch.remedy),)
    base = of("amp-bf16", 0.08, 70, 6, 4)
    run = run_of(base, of("fp8", 0.1, 45, 50, 65, causes=older))
    finding, why, do, *_ = answer(run)
    assert "fp8 is slower" in finding
    assert why.startswith(
        "Why fp8 takes 20.0 ms more than the 80.0 ms a step in amp-bf16: casts +44"
    )
    assert do == "Do train in amp-bf16"
    assert "it takes up to 5.00 of 100.0 ms (5 %)" in shown(run, details=True)
    waiting = of("fp8", 0.1, 45, 10, 65, causes=older, limit="host")
    _, _, why, do, *_ = answer(run_of(base, waiting))
    assert (why, do) == (f"Why {launch.title} (40 %)", "Do train in amp-bf16")
    doubtful = of("fp8", 0.05, 36, 6, 0)  # 8 of 30 ms are unexplained: no reason to use it less
    _, *lines = answer(run_of(base, doubtful))
    assert any("27 % is unexplained" in line for line in lines)
    assert "Do use fp8" in lines


@pytest.mark.parametrize("layers", [0, 24])
def test_fp8_in_no_layer_is_never_faster(layers: int) -> None:
    faster, gain = {"amp-bf16": ratio_of(1.04)}, Ratio(1.1, (1.05, 1.15))
    shape = LayerGain(4096, 1024, 4096, 1, gain, bool(layers))
    part = PartGain(24, 1e-3, (shape,), gain if layers else None)
    auto = variant("fp8-auto", 104, speedup=faster, fp8_gains=(part,), float8_layers=layers,
               linear_layers=49)  # fmt: skip
    run = run_of(
        variant("amp-bf16", 100), variant("fp8", 90, speedup={"amp-bf16": ratio_of(0.9)}), auto
    )
    assert ("fp8-auto trains" in " ".join(answer(run))) == bool(layers)
    below = " ".join(line for part in report(run).parts for line in part.below)
    saved = "predicted 2.18 ms saved, measured 98.5 of 2560"
    said = f"fp8-auto converts 24 of 49 linear layers; {saved}"
    assert (said if layers else "fp8-auto: no layer surely pays, so it is amp-bf16") in below


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("diagnose/**/*.json")), ids=lambda p: p.stem)
def test_a_diagnosis_bounds_nothing_below_what_was_measured(path: Path) -> None:
    found = diagnosis.report(json.loads(path.read_text()))
    said = next(line.text for line in found.answer if line.label == "Why")
    bound, tried = re.search(r"(\d+) % of a step", said), re.search(r"tried: (\d+) % .* less", said)
    if tried and "at most" in said:
        assert int(tried[1]) <= int(bound[1])


# ---------------------------------------------------------------- CSV and charts


def test_csv_and_bars_have_the_numbers_of_the_run() -> None:
    text = to_csv(amp_run())
    assert tuple(text.splitlines()[0].split(",")[: len(FIRST_NAMES)]) == tuple(FIRST_NAMES)
    *_, amp = csv.DictReader(io.StringIO(text))
    numbers = {
        "images_per_s": 4_690, "step_s": 256 / 4_690, "images_per_j": 4_690 / 640,
        "gpu_util_min_pct": 93, "backward_gpu_s": 0.033,
    }  # fmt: skip
    assert {name: float(amp[name]) for name in numbers} == pytest.approx(numbers)
    known = ledger_run().of(Training)[-1]
    unwritten = replace(known, predicted=replace(known.predicted, error_pct=None))
    (row,) = csv.DictReader(io.StringIO(to_csv(run_of(unwritten))))
    found_pct = 100 * (known.predicted.step_s / known.step_s - 1)
    assert float(row["predicted_error_pct"]) == pytest.approx(found_pct, rel=0.01), "worked out"
    assert [(bar["label"], bar["value"]) for bar in bar_rows(view_of(amp_run()))] == [
        (recipe, pytest.approx(per_s)) for recipe, (per_s, *_) in RATES.items()
    ]


def test_charts_have_every_recipe_and_every_bar_of_the_waterfall(tmp_path: Path) -> None:
    sweep = [variant(recipe, batch * 3.0, case={"batch": batch})
             for batch in (64, 128, 256) for recipe in ("fp32", "amp")]  # fmt: skip
    for run in (run_of(*sweep), host_run()):
        write_chart(training_chart(run), tmp_path / "chart.svg")
        text = "".join(ElementTree.parse(tmp_path / "chart.svg").getroot().itertext())
        assert all(recipe in text for recipe in {t.case.recipe for t in run.of(Training)})
    bars = waterfall_rows(host_run().of(Training)[-1], "amp")
    assert all(bar["text"] in text and bar["label"] in text for bar in bars)


def test_nothing_to_draw() -> None:
    for variants in ([out_of_memory_run().of(Training)[0]], [predicted_only("fp32")]):
        with pytest.raises(UserError, match="nothing to draw"):
            training_chart(run_of(*variants))
    many = [variant("amp", 100 + i, case={"network": f"net{i}"}) for i in range(61)]
    with pytest.raises(UserError, match="more than 60 bars"):
        training_chart(run_of(*many))


if __name__ == "__main__":
    for name, text in screens():
        (REPORTS / f"{name}.txt").write_text(text, encoding="utf-8")
