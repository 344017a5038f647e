"""What docs say of studies, FP8, several GPUs and the Trainer is what the files say."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from e2e.results.baselines import scaled
from e2e.results.types import Training
from e2e.studies.command import report
from microbench.fmt import half_interval
from microbench.report.screen import make_console
from microbench.results.runfile import read_run
from microbench.results.types import Result

ROOT = Path(__file__).parents[2]
H200, H100 = (ROOT / "results" / name for name in ("nvidia-h200", "nvidia-h100"))
STUDIES = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
FP8 = (ROOT / "docs" / "when-fp8-pays.md").read_text(encoding="utf-8")
RANKS = (ROOT / "docs" / "several-gpus.md").read_text(encoding="utf-8")
NOTES = (ROOT / "docs" / "notes" / "diagnose.md").read_text(encoding="utf-8")
LIMITS = {"data": "data loading", "host": "CPU launch", "gpu": "GPU"}
# Rows of the table, in order: study, cell in low precision, cell in float32.
ROWS = [
    ("vgg16-batch", "table-2", "table-1"), ("vgg16-batch", "table-6", "table-4"),
    ("vgg16-batch", "resident-3", "resident-1"), ("vgg16-batch", "resident-6", "resident-4"),
    ("resnet-static256", "fed-2", "fed-1"), ("resnet-static256", "fed-4", "fed-3"),
    ("resnet-static256", "resident-2", "resident-1"),
    *(("wrn-levels", f"levels-{n}", "levels-1") for n in (2, 3, 4)),
    ("wrn-levels", "two-cores-2", "two-cores-1"), ("finetune-multigpu", "one-2", "one-1"),
    ("finetune-multigpu", "one-4", "one-3"), ("finetune-multigpu", "weak-4", "weak-3"),
    ("resnet-precisions", "table-3", "table-4"),
]  # fmt: skip


def table(text: str, title: str) -> list[list[str]]:
    """The rows of the table whose head begins so."""
    lines = text[text.index(title) :].splitlines()
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in lines[2:]]
    return rows[: next(i for i, line in enumerate(lines[2:]) if not line.startswith("|"))]


def cells(study: str) -> dict[str, dict[str, str]]:
    card = next(card for card in (H200, H100) if (card / "studies" / study).exists())
    with (card / "studies" / study / "cells.csv").open(encoding="utf-8") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def test_the_table_of_studies_is_that_of_their_cells() -> None:
    shown = table(STUDIES, "| cell | low precision |")
    assert len(shown) == len(ROWS)
    for row, (study, low, base) in zip(shown, ROWS, strict=True):
        found = cells(study)
        assert row[0].startswith(study)
        assert row[1] == found[low]["recipe"]
        assert row[2:4] == [f"{float(found[one]['per_s']):,.0f}" for one in (base, low)]
        assert row[4] == f"{float(found[low]['speedup']):.2f}"
        assert row[5] == LIMITS[found[low]["limit"]]


@pytest.mark.parametrize(
    "folder", [*H200.glob("studies/*"), *H100.glob("studies/*")], ids=lambda folder: folder.name
)
def test_a_published_report_is_what_its_run_files_give(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / folder.name
    shutil.copytree(folder, out)
    report(out, make_console(quiet=True))
    for name in ("report.md", "cells.csv"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("study", ["finetune-multigpu", "resnet-precisions"])
def test_the_efficiency_in_a_report_is_that_of_its_cells(study: str) -> None:
    text = (H100 / "studies" / study / "report.md").read_text(encoding="utf-8")
    found = cells(study).values()
    per_s = {f"{float(row['per_s']):,.0f}" for row in found if row["per_s"]}
    parts = re.findall(r"## Scaling over GPUs, part (\S+)", text)
    assert parts
    for part in parts:
        for row in table(text[text.index(f"## Scaling over GPUs, part {part}") :], "| recipe |"):
            many, one, efficiency = row[3:6]
            assert {many, one} <= per_s
            ratio = float(many.replace(",", "")) / float(one.replace(",", "")) / int(row[1])
            numbers = [float(n) for n in re.findall(r"[\d.]+", efficiency.removeprefix("~1"))]
            if "[" in efficiency:
                assert numbers[-2] < ratio < numbers[-1]
            elif not efficiency.startswith("~1"):
                assert numbers[0] == pytest.approx(ratio, abs=0.006)


def test_a_column_of_another_part_is_that_of_the_most_gpus_uncompressed() -> None:
    found = cells("resnet-precisions")
    measured = {
        row["recipe"]: f"{float(row['bandwidth']):.3g}"
        for row in found.values()
        if row["gpus"] == "2" and row["compress"] == "none"
    }
    text = (H100 / "studies/resnet-precisions/report.md").read_text(encoding="utf-8")
    rows = [row for row in table(text, "| precision | Training Time |") if "table" in row[-1]]
    assert len(rows) == 8
    for row in rows:
        recipe = found[row[-1].split(",")[0]]["recipe"]
        assert row[3] == measured[recipe]


def test_the_memory_of_o2_is_the_cells_own() -> None:
    found = cells("wrn-levels")
    low, base = (float(found[f"levels-{n}"]["allocated_mb"]) for n in (3, 1))
    assert f"confirmed, {low / base:.2f} of the allocated memory" in STUDIES


def test_fp8_products_are_those_of_the_run_file() -> None:
    shown = {row[0]: row[1:] for row in table(FP8, "| tokens x out x in |")}
    problems = defaultdict[str, dict[str, Result]](dict)
    for result in read_run(H200 / "fp8-widths.json").results:
        name = " x ".join(str(result.case.dim(one)) for one in "mnk")
        problems[name][result.case.precision_name] = result
    assert shown.keys() == problems.keys()
    ratios: list[float] = []
    for name, found in problems.items():
        expected: list[str] = []
        for result in (found["bf16"], found["fp8-e4m3"]):
            timed = result.measurement
            assert timed
            half = half_interval(timed.median_s, timed.ci95_s)
            expected += [f"{(result.flop_per_s or 0) / 1e12:.0f}", half]
        ratios.append((found["fp8-e4m3"].flop_per_s or 0) / (found["bf16"].flop_per_s or 1))
        assert shown[name] == [*expected, f"{ratios[-1]:.1f}"]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times as fast" in FP8


@pytest.mark.parametrize("place", range(3))
def test_the_step_in_fp8_is_that_of_the_run_file(place: int) -> None:
    trainings = read_run(H200 / "train-fp8.json").of(Training)
    training = trainings[place]
    row = table(FP8, "| recipe | tok/s | ms a step")[place]
    assert training.per_s
    assert training.memory_peak_bytes
    assert training.measured_s
    loss = f"{training.loss[0]:.2f}" if training.loss else "-"
    assert row == [
        training.case.recipe, f"{training.per_s:,.0f}", f"{1e3 * training.measured_s:.1f}",
        f"{training.memory_peak_bytes / 1e9:.2f}", loss,
    ]  # fmt: skip
    traced = training.traced
    assert traced
    for term, *shown in table(FP8, "| | amp-bf16 |"):
        assert shown[place] == f"{traced.terms.get(term, 0) / traced.steps / 1e6:.2f}", term


@pytest.mark.parametrize(
    "name", ["768", "1024", "2048", "4096", "gpt", "gpt-medium", "gpt-xl", "vit_l_16"]
)
def test_the_steps_in_fp8_are_those_of_the_run_files(name: str) -> None:
    keys = "| width | recipe |" if name.isdigit() else "| network | width |"
    shown = [row for row in table(FP8, keys) if row[0] == name]
    trainings = read_run(H100 / f"train-fp8-{name}.json").of(Training)
    base = trainings[0]
    assert base.per_s
    assert base.memory_peak_bytes
    for row, training in zip(shown, trainings, strict=True):
        traced = training.traced
        assert traced
        assert training.per_s
        assert training.memory_peak_bytes
        terms = [
            f"{traced.terms.get(name, 0) / traced.steps / 1e6:.2f}"
            for name in ("matrix products", "fused reductions", "fused elementwise")
        ]
        ratio = f"{training.per_s / base.per_s:.2f}" if training is not base else ""
        peak = f"{training.memory_peak_bytes / 1e9:.2f}"
        own = row[1:] if name.isdigit() else row[3:]
        assert own == [training.case.recipe, f"{training.per_s:,.0f}", ratio, peak, *terms]
        if training is not base and (training.case.recipe == "fp8" or name in ("2048", "4096")):
            assert ratio in FP8[: FP8.index("##")]
        if training is not base:
            saved = 100 * (1 - training.memory_peak_bytes / base.memory_peak_bytes)
            low, high = map(int, re.findall(r"(\d+) to (\d+) % less at the peak", FP8)[0])
            assert low <= saved < high + 1


@pytest.mark.parametrize(
    ("width", "said"),
    [(1024, "At width 1024 `fp8` saves {:.2f} ms of GEMMs and pays {:.2f} ms"),
     (4096, "At 4096 it saves {:.1f} ms and pays {:.1f}")],
)  # fmt: skip
def test_what_fp8_saves_and_pays_is_that_of_the_run_files(width: int, said: str) -> None:
    base, fp8 = read_run(H100 / f"train-fp8-{width}.json").of(Training)[:2]

    def more_ms(*terms: str) -> float:
        assert fp8.traced
        assert base.traced
        ms = [sum(one.terms[name] for name in terms) / one.steps / 1e6
              for one in (fp8.traced, base.traced)]  # fmt: skip
        return ms[0] - ms[1]

    paid = more_ms("fused reductions", "fused elementwise")
    assert said.format(-more_ms("matrix products"), paid) in FP8


def test_two_gpus_are_those_of_the_run_file() -> None:
    one, *several = read_run(H200 / "ranks-resnet50.json").of(Training)
    assert one.per_s
    rows = table(RANKS, "| gradients | img/s |")
    for row, training, found in zip(rows, several, scaled([one, *several]), strict=True):
        exchange = training.exchange
        assert exchange
        assert training.per_s
        assert found.predicted_exposed_s
        assert exchange.exposed_ci95_s
        low, high = exchange.exposed_ci95_s
        assert f"{exchange.bytes / 1e6:.0f} MB" in row[0]
        assert row[1:] == [
            f"{training.per_s:,.0f}", f"{found.efficiency.ratio:.3f}",
            f"{1e3 * exchange.exposed_s:.2f} ±{1e3 * (high - low) / 2:.2f}",
            f"{1e3 * found.predicted_exposed_s:.2f}", f"{1e3 * exchange.copies_s:.2f}",
            f"{1e3 * exchange.alone_s:.2f}", f"{(exchange.bus_bytes_per_s or 0) / 1e9:.0f}",
        ]  # fmt: skip
    plain = several[0]
    assert plain.traced
    assert one.traced
    assert plain.exchange
    more = (plain.traced.launches - one.traced.launches) // plain.traced.steps
    assert f"the {more}\n  operations" in RANKS
    assert plain.exchange.copies
    assert f"each of {plain.exchange.copies.count} gradients" in RANKS


def test_four_gpus_differ_as_the_run_file_says() -> None:
    rows = json.loads((H200 / "fleet.json").read_text(encoding="utf-8"))["rows"]
    apart = []
    for case in ("fp16 8192 cublas", "memory copy"):
        times = [one["median_s"] for row in rows for one in row["readings"] if one["case"] == case]
        assert len(times) == 4
        apart.append(100 * (max(times) / min(times) - 1))
    said = "GEMMs differed by up to {:.1f} %, their copies by {:.1f} %".format(*apart)
    assert said in (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")


def test_strong_scaling_is_that_of_the_run_file() -> None:
    one, two = read_run(H200 / "ranks-strong.json").of(Training)
    (found,) = scaled([one, two])
    assert found.kind == "strong"
    assert two.exchange
    assert f"{two.per_s:,.0f} img/s on two GPUs against {one.per_s:,.0f} on one" in RANKS
    assert f"an efficiency of {found.efficiency.ratio:.3f}" in RANKS
    assert f"it adds {1e3 * two.exchange.exposed_s:.2f} ms" in RANKS
    half = read_run(H200 / "ranks-resnet50.json").of(Training)[0]
    assert f"than with 256 ({half.per_s:,.0f} img/s)" in RANKS


def test_the_author_s_empty_table_is_filled_as_the_docs_say() -> None:
    rows = [row for cell, row in cells("resnet-precisions").items() if cell.startswith("table")]
    for gpus, form in (("1", "{} h {} min"), ("2", "{1}")):
        minutes = [round(float(row["projected_s"]) / 60) for row in rows if row["gpus"] == gpus]
        low, high = (form.format(m // 60, m % 60) for m in (min(minutes), max(minutes)))
        assert f"{low} to {high}" in STUDIES
    sizes = {f"{float(row['model_mb']):.1f}" for row in rows}
    assert all(size in STUDIES for size in sizes)
    text = (H100 / "studies/resnet-precisions/report.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"cannot tell \| ([\d.]+) \[([\d.]+), ([\d.]+)\]", text)
    said = [f"{float(one):.2f}" for one in found]
    assert "efficiency of {} with an interval of {} to {}".format(*said) in STUDIES


def test_two_gpus_that_are_fed_scale_as_the_study_says() -> None:
    found = {cell: float(row["per_s"]) for cell, row in cells("finetune-multigpu").items()
             if cell.startswith("weak")}  # fmt: skip
    for many, one in (("weak-3", "weak-1"), ("weak-4", "weak-2")):
        assert f"{found[many] / found[one]:.2f} in " in RANKS
        assert f"({found[one]:,.0f} to {found[many]:,.0f}" in RANKS


def test_the_trainer_s_two_runs_are_those_of_the_diagnosis() -> None:
    data = json.loads((H100 / "diagnose" / "trainer.json").read_text(encoding="utf-8"))
    half, full = data["runs"]
    works_ms = [
        sum(term["ns"] for term in run["terms"] if not term["idle"]) / run["steps"] / 1e6
        for run in (full, half)
    ]
    said = f"{1e3 * full['bare_step_s']:.1f} and {1e3 * half['bare_step_s']:.1f} ms a step"
    assert said in NOTES
    assert f"for {100 * full['busy']:.0f} % of the step" in NOTES
    assert f"works for {100 * half['busy']:.0f} %" in NOTES
    assert f"gains {full['bare_step_s'] / half['bare_step_s']:.1f} times" in NOTES
    assert f"became {works_ms[0] / works_ms[1]:.1f} times shorter" in NOTES
    assert (full["bottleneck"], half["bottleneck"]) == ("GPU", "CPU launch")
