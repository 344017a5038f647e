"""What docs/studies.md and docs/when-fp8-pays.md say was measured is what the files say."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

import pytest

from e2e.results.types import Training
from microbench.fmt import half_interval
from microbench.results.runfile import read_run
from microbench.results.types import Result

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "nvidia-h200"
STUDIES = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
FP8 = (ROOT / "docs" / "when-fp8-pays.md").read_text(encoding="utf-8")
LIMITS = {"data": "data loading", "host": "CPU launch", "gpu": "GPU"}
# Rows of the table, in order: study, cell in low precision, cell in float32.
ROWS = [
    ("vgg16-batch", "table-2", "table-1"), ("vgg16-batch", "table-6", "table-4"),
    ("vgg16-batch", "resident-3", "resident-1"), ("vgg16-batch", "resident-6", "resident-4"),
    ("resnet-static256", "fed-2", "fed-1"), ("resnet-static256", "fed-4", "fed-3"),
    ("resnet-static256", "resident-2", "resident-1"),
    *(("wrn-levels", f"levels-{n}", "levels-1") for n in (2, 3, 4)),
    ("wrn-levels", "two-cores-2", "two-cores-1"),
]  # fmt: skip


def table(text: str, title: str) -> list[list[str]]:
    """The rows of the table whose head begins so."""
    lines = text[text.index(title) :].splitlines()
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in lines[2:]]
    return rows[: next(i for i, line in enumerate(lines[2:]) if not line.startswith("|"))]


def cells(study: str) -> dict[str, dict[str, str]]:
    with (H200 / "studies" / study / "cells.csv").open(encoding="utf-8") as file:
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
    training, base = trainings[place], trainings[0]
    row = table(FP8, "| recipe | tok/s |")[place]
    assert training.per_s
    assert base.per_s
    assert training.memory_peak_bytes
    assert training.measured_s
    loss = f"{training.loss[0]:.2f}" if training.loss else "-"
    assert row == [
        training.case.recipe, f"{training.per_s:,.0f}", f"{1e3 * training.measured_s:.1f}",
        f"{training.memory_peak_bytes / 1e9:.2f}", loss,
    ]  # fmt: skip
    if place:
        assert f"{training.per_s / base.per_s:.2f}" in FP8[: FP8.index("##")]
    traced = training.traced
    assert traced
    for term, *shown in table(FP8, "| | amp-bf16 |"):
        assert shown[place] == f"{traced.terms.get(term, 0) / traced.steps / 1e6:.2f}", term
