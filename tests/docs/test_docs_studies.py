"""Studies, FP8, several GPUs and the Trainer: figures of their pages are the run files'."""

from __future__ import annotations

import csv
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from samples.pages import ROOT, Row, document, run, says, table, text, trainings

from e2e.report.figures import bottleneck
from e2e.report.variants import view_of
from e2e.results.baselines import scaling
from e2e.results.types import Training
from e2e.studies.report import report
from microbench import fmt
from microbench.report.screen import make_console
from microbench.results.runfile import read_run
from microbench.timing.stats import half_width_pct

STUDIES, FP8, RANKS = "docs/studies", "docs/when-fp8-pays", "docs/several-gpus"
FOLDERS = sorted(ROOT.glob("results/*/studies/*"))
TERMS = ("matrix products", "fused reductions", "fused elementwise")
# Rows of the table, in order: study, cell in low precision, cell in float32.
ROWS = [
    ("vgg16-batch", "table-6", "table-4"), ("vgg16-batch", "resident-6", "resident-4"),
    ("resnet-static256", "fed-2", "fed-1"), ("resnet-static256", "resident-2", "resident-1"),
    ("wrn-levels", "two-cores-9", "two-cores-8"), ("finetune-multigpu", "one-2", "one-1"),
    ("finetune-multigpu", "one-4", "one-3"),
]  # fmt: skip


@cache
def cells(study: str) -> dict[str, dict[str, str]]:
    (folder,) = (folder for folder in FOLDERS if folder.name == study)
    with (folder / "cells.csv").open(encoding="utf-8") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def per_s(row: dict[str, str]) -> float:
    return float(row["per_s"])


def test_the_table_of_studies_is_that_of_their_cells() -> None:
    shown = table(STUDIES, "cell", "low precision")
    assert all(row[0].startswith(study) for row, (study, *_) in zip(shown, ROWS, strict=True))
    assert [row[1:] for row in shown] == [
        [low["recipe"], f"{per_s(base):,.0f}", f"{per_s(low):,.0f}", f"{float(low['speedup']):.2f}",
         bottleneck(low["limit"])]
        for study, a, b in ROWS for low, base in [(cells(study)[a], cells(study)[b])]
    ]  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_published_report_is_what_its_run_files_give(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / folder.name
    shutil.copytree(folder, out)
    report(out, make_console(quiet=True))
    for name in ("report.md", "cells.csv"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()


def test_what_is_said_of_single_cells() -> None:
    low, base = (float(cells("wrn-levels")[f"levels-{n}"]["allocated_mb"]) for n in (3, 1))
    says(STUDIES, "of the allocated memory", low / base)
    found = cells("resnet-precisions")
    table_rows = [row for cell, row in found.items() if cell.startswith("table") and row["recipe"]]
    for gpus, hours in (("1", True), ("2", False)):
        minutes = [round(float(r["projected_s"]) / 60) for r in table_rows if r["gpus"] == gpus]
        ends = (f"{m // 60} h {m % 60} min" if hours else f"{m}" for m in sorted(minutes)[::3])
        says(STUDIES, "its author left empty", " to ".join(ends))
    ddp = trainings("studies/resnet-precisions/runs/ddp")
    efficiencies = [row.efficiency for row in scaling(ddp)]
    assert len(efficiencies) == 12
    assert all(half_width_pct(one.ratio, one.ci95) > 30 for one in efficiencies if one.ci95)
    assert {len(t.steps.times_s) for t in ddp if t.steps} == {3}
    says(STUDIES, "Multiple machines in parallel", "three steps", "too wide for a verdict")
    fed = [half_width_pct(t.steps.median_s, t.steps.ci95_s)
           for path in ROOT.glob("results/nvidia-h200/studies/*/runs/*.json")
           for t in read_run(path).of(Training)
           if t.case.loads_data and t.steps and t.steps.ci95_s]  # fmt: skip
    says(STUDIES, "cells that a loader feeds", len(fed), sum(half > 30 for half in fed))
    weak = cells("finetune-multigpu")
    for many, one in (("weak-3", "weak-1"), ("weak-5", "weak-2")):
        assert weak[many]["compress"] in ("", "none")
        rates = per_s(weak[one]), per_s(weak[many])
        says(RANKS, "fine-tuning over two H200s", *rates, rates[1] / rates[0])
    says(RANKS, "Fed by a loader, two reached", rates[1] / rates[0] / 2)
    tuned = trainings("studies/finetune-multigpu/runs/one")
    for batch in (16, 64):
        (gain,) = (t.speedup["fp32"] for t in tuned
                   if (t.case.recipe, t.case.batch, t.case.gpus) == ("amp", batch, 1))  # fmt: skip
        says(STUDIES, "unable to get benefits with float16", gain.ratio, *gain.ci95)


def terms_ms(training: Training) -> list[float]:
    assert training.traced
    one = training.traced
    return [one.terms.get(name, 0) / one.steps / 1e6 for name in TERMS]


def test_steps_in_fp8() -> None:
    rows: list[Row] = []
    answer = text(FP8).partition("##")[0]
    least, most = map(int, re.findall(r"(\d+) to (\d+) % less at the peak", answer)[0])
    for name in ("1024", "2048", "gpt", "gpt-medium"):
        base, *others = trainings(f"train-fp8-{name}")
        gains = {t.case.recipe: f"{(t.per_s or 0) / (base.per_s or 1):.2f}" for t in others}
        for training in others:
            share = (training.memory_peak_bytes or 0) / (base.memory_peak_bytes or 1)
            assert least <= round(100 * (1 - share)) <= most
            assert gains[training.case.recipe] in answer
        before, after = terms_ms(base), terms_ms(others[0])
        changes = before[0] - after[0], sum(after[1:]) - sum(before[1:])
        rows.append([
            "four blocks" if name.isdigit() else name, str(base.case.batch), gains["fp8"],
            *(f"{ms:.2f}" for ms in changes), gains.get("fp8-rowwise", ""),
        ])  # fmt: skip
    assert [[row[0], *row[2:]] for row in table(FP8, "torchao, H200", "width")] == rows


def test_layers_that_fp8_makes_faster() -> None:
    rows: list[Row] = []
    for name in ("768", "1024", "2048", "4096", "gpt", "gpt-medium", "gpt-xl", "vit"):
        base, every, chosen = view_of(run(f"fp8-auto-{name}")).variants
        saved = [1e3 * part.saved_s(part.gain) for part in chosen.fp8_gains]
        ratios = [training.speedup["amp-bf16"] for training in (every, chosen)]
        assert (ratios[1].ci95 or (0, 0))[1] >= 1
        assert (ratios[1].ci95 or (0, 0))[1] >= (ratios[0].ci95 or (0, 0))[0]
        taken = [1e3 * (t.timed.median_s if t.timed else 0.0) for t in (base, chosen)]
        gains = f"{sum(saved):.1f}", f"{taken[0] - taken[1]:.1f}"
        rows.append([
            "four blocks" if name.isdigit() else base.case.network, str(base.case.batch),
            *map(fmt.ratio, ratios), f"{chosen.float8_layers} of {chosen.linear_layers}",
            *(gains if chosen.float8_layers else ("", "")),
        ])  # fmt: skip
    assert [[row[0], *row[2:]] for row in table(FP8, "network, fp8-auto", "width")] == rows


def test_the_loss_in_fp8() -> None:
    losses = [t.loss[0] for t in trainings("train-fp8") if t.loss]
    assert len(losses) == 2
    for loss in losses:
        says(FP8, "The loss was that of BF16", loss)


def test_several_gpus() -> None:
    one, *several = trainings("ranks-resnet50")
    rows = table(RANKS, "gradients", "img/s")
    for row, training, found in zip(rows, several, scaling([one, *several]), strict=True):
        exchange = training.exchange
        low, high = exchange.exposed_ci95_s or (0, 0)
        assert f"{exchange.bytes / 1e6:.0f} MB" in row[0]
        assert row[1:] == [
            f"{training.per_s:,.0f}", f"{found.efficiency.ratio:.3f}",
            f"{1e3 * exchange.exposed_s:.2f} ±{1e3 * (high - low) / 2:.2f}",
            f"{1e3 * exchange.copies_s:.2f}", f"{1e3 * exchange.alone_s:.2f}",
        ]  # fmt: skip
    plain = several[0]
    says(RANKS, "The all-reduce is not what costs", plain.exchange.copies.count)
    says(RANKS, "On four H200s ResNet-50", f"{scaling([one, several[2]])[0].efficiency.ratio:.3f}")
    alone, *more = trainings("ranks-strong")
    found = scaling([alone, *more])
    assert [(row.kind, row.many.case.gpus) for row in found] == [("strong", 2), ("strong", 4)]
    says(RANKS, "Strong scaling, 512", *(t.per_s or 0 for t in (alone, *more)))
    two, four = (row.efficiency for row in found)
    says(RANKS, "Strong scaling, 512", two.ratio, fmt.interval(four), bottleneck(more[1].limit))
    says(RANKS, "On four H200s ResNet-50", fmt.interval(four))
    apart: list[float] = []
    for case in ("fp16 8192 cublas", "memory copy"):
        times = [reading["median_s"] for row in document("fleet")["rows"]
                 for reading in row["readings"] if reading["case"] == case]  # fmt: skip
        assert len(times) == 4
        apart.append(100 * (max(times) / min(times) - 1))
    says("docs/fleet", "four H200s of one machine", *apart)


def test_the_trainer_s_two_runs_are_those_of_the_diagnosis() -> None:
    half, full = document("diagnose/trainer", "nvidia-h100")["runs"]
    assert (full["bottleneck"], half["bottleneck"]) == ("GPU", "CPU launch")
    works_ms = [sum(term["ns"] for term in one["terms"] if not term["idle"]) / one["steps"] / 1e6
                for one in (full, half)]  # fmt: skip
    steps_ms = [1e3 * one["bare_step_s"] for one in (full, half)]
    figures = *steps_ms, steps_ms[0] / steps_ms[1], works_ms[0] / works_ms[1]
    busy = 100 * full["busy"], 100 * half["busy"]
    says("docs/notes/diagnose", "with the Trainer of Hugging Face", *figures, *busy)
