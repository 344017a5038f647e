"""A study on a GPU: all kinds of runs, in small."""

from __future__ import annotations

import csv
from pathlib import Path

from samples.commands import run_here

from e2e.__main__ import main

SMALL = ("--set", "network=cnn-cifar", "--set", "batch=128", "--set", "budget=1")


def measured(name: str, folder: Path, *more: str) -> list[dict[str, str]]:
    done = run_here(main, "e2e", "study", name, "--out", "out", *SMALL, *more, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    with (folder / "out/cells.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_study_in_small_measures_every_cell_that_one_gpu_can_have(tmp_path: Path) -> None:
    found = measured("wrn-levels", tmp_path)
    ran = [row for row in found if row["recipe"]]
    assert {row["status"] for row in found} == {"ok"}
    assert all(float(row["per_s"]) > 0 for row in ran)
    assert any(row["speedup"] for row in ran)
    assert all(float(row["allocated_mb"] or 1) > 0 for row in ran if "allocated_mb" in row)


def test_a_static_scale_of_the_study_is_that_of_the_run(tmp_path: Path) -> None:
    """The loader alone and the resident batch are measured beside O2."""
    found = measured("resnet-static256", tmp_path, "--set", "data=generated")
    assert {row["cell"].rsplit("-", 1)[0] for row in found if row["status"] == "ok"} == {
        "fed", "resident", "loader",
    }  # fmt: skip
    text = (tmp_path / "out/runs/fed.json").read_text()
    assert '"loss_scale":256' in text
