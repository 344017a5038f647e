"""`stalls`, `loader` and `study` on a CPU: what is special to them."""

from __future__ import annotations

import csv
import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
from samples.commands import ROOT, Ran, run_here
from samples.kernel_runs import shown
from samples.shop import Shop

from e2e.__main__ import main
from e2e.studies.schema import shipped
from microbench.results.runfile import read_run

Doc = dict[str, Any]


def results(file: Path, op: str) -> list[Doc]:
    return [one for one in json.loads(file.read_text())["results"] if one["op"] == op]


def test_every_part_is_measured_apart_and_together_beside_its_prediction(shop: Shop) -> None:
    kept = shop.kept("stalls")
    found = {
        (t["case"]["loader"], t["case"]["workers"], t["case"]["cached"]): t
        for t in results(kept.file, "train")
        if t["case"]["recipe"] == "fp32"
    }
    assert set(found) == {
        ("synthetic", 0, False), ("pinned", 0, False), ("torchvision", 1, True),
        ("torchvision", 2, True), ("torchvision", 1, False), ("torchvision", 2, False),
    }  # fmt: skip
    assert all(t["status"] == "ok" for t in found.values())
    loaded = {
        (one["case"]["loader"], one["case"]["workers"], one["case"]["cold"])
        for one in results(kept.file, "load")
    }
    assert loaded == {
        ("torchvision", 1, False), ("torchvision", 2, False), ("torchvision", 2, True),
        ("read", 2, False), ("read", 2, True),
    }  # fmt: skip
    text = " ".join(shown(read_run(kept.file), details=True).split())
    for words in ("Loaders alone", "Every recipe", "batch 4, loader torchvision",
                  "1 broken image left out: train/class0/broken.jpg"):  # fmt: skip
        assert words in text
    fed = [t for t in results(kept.file, "train") if t["case"]["loader"] == "torchvision"]
    alone = [t for t in fed if not t["case"]["cached"]]
    assert (len(fed), len(alone)) == (8, 4)
    for training in alone:
        assert set(training["blocks"]) == {1}, "a fed step is the mean of a block"
        assert training["predicted"]["error_pct"] is not None
        assert set(training["predicted"]["speedup"]) == {"fp32"} - {training["case"]["recipe"]}


def test_loaders_alone_read_the_files_or_say_what_they_lack(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "loader.json"
    ran = shop.run("loader", "--backend", "torchvision,read", "--data", "folder:images",
                   "--workers", "1", "--batch", "4", "--input", "3x32x32", "--device", "cpu",
                   "--budget", "0.2", "--json", file)  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    found = {one["case"]["loader"]: one for one in results(file, "load")}
    assert found["torchvision"]["images_per_s"] > 0
    assert found["read"]["read_mb_per_s"] > 0
    (block, *_) = found["read"]["blocks"]
    sizes = sorted(path.stat().st_size for path in shop.folder.glob("images/train/*/*.jpg"))
    assert sizes[0] <= block["read_bytes"] / block["images"] <= sizes[-1]
    found = {r["case"]["loader"]: r for r in results(shop.kept("loader").file, "load")}
    assert found["torchvision"]["images_per_s"] > 0
    assert found["gpu-decode"]["status"] == "skipped"
    assert "GPU" in found["gpu-decode"]["reason"]


OWN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def rows():
    return TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))

def both():
    return DataLoader(rows(), batch_size=3), rows()

def network():
    return nn.Linear(16, 4), torch.zeros(1, 16)
"""


def test_data_of_the_users_own_is_loaded_and_trained_on(shop: Shop, tmp_path: Path) -> None:
    (shop.folder / "own.py").write_text(OWN)
    words = ("--batch", "8", "--workers", "1", "--device", "cpu", "--budget", "0.5", "--json")
    for number, command in enumerate((
        ("loader", "--data", "own:rows", "--input", "16"),
        ("stalls", "own:network", "--data", "own:rows", "--recipe", "fp32"),
        ("train", "own:network", "--data", "own:both", "--recipe", "fp32", "--epochs", "1"),
    )):  # fmt: skip
        file = tmp_path / f"{number}.json"
        ran = shop.run(*command, *words, file)
        assert (ran.returncode, ran.stderr) == (0, "")
        found = [one for op in ("load", "train") for one in results(file, op)]
        assert {one["case"]["data"] for one in found} == {command[command.index("--data") + 1]}
        assert {one["status"] for one in found} == {"ok"}
        assert "dataloader" in {one["case"]["loader"] for one in found}
    (trained,) = results(file, "train")
    assert 0 <= trained["repeats"][0]["accuracy"] <= 1
    ran = shop.run("train", "own:network", "--data", "own:network", "--device", "cpu")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    assert "it must be a Dataset" in ran.stderr or "a pair of that" in ran.stderr


def test_the_loader_by_hand_runs(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `torchvision` is held against; its folder has no broken file."""
    shutil.copytree(shop.folder / "images" / "train" / "class1", tmp_path / "good" / "one")
    out = tmp_path / "plain.json"
    words = f"{tmp_path / 'good'} --workers 0 --batch 4 --seconds 0.1 --blocks 2 --json {out}"
    monkeypatch.setattr("sys.argv", ["plain_dataloader.py", *words.split()])
    runpy.run_path(str(ROOT / "examples" / "plain_dataloader.py"), run_name="__main__")
    found = json.loads(out.read_text())
    assert found == json.loads(capsys.readouterr().out)
    assert (found["workers"], found["batch"], len(found["images_per_s"])) == (0, 4, 2)
    assert min(found["images_per_s"]) > 0


# ---------------------------------------------------------------- studies


MINE = """
schema = 2
name = "mine"
title = "A study of my own"
[options]
data = "generated"
device = "cpu"
budget = 0.1
batch = 8
[[run]]
id = "train"
network = "cnn-cifar"
recipe = "fp32,amp-bf16"
iterations = 3
held_out = 64
repeats = 2
[[run]]
id = "warm"
network = "cnn-cifar"
recipe = "fp32,amp-bf16"
iterations = 3
held_out = 64
repeats = 2
loader = "torchvision"
workers = 1
warmup = 100
[[run]]
id = "broken"
network = "no-such-network"
recipe = "fp32"
[[run]]
id = "load"
command = "loader"
backend = "torchvision"
workers = 1
[[published]]
title = "Mine"
runs = ["train"]
keys = { recipe = "recipe", card = "here" }
columns = [
  { title = "Accuracy", value = "accuracy_pct", reason = "other data" },
  { title = "img/s", value = "per_s" },
]
rows = [["fp32", "<b>theirs</b>", "50.1%", 100], ["amp-bf16", "<b>theirs</b>", "50.2%", 200]]
"""


def study(*words: object, cwd: Path) -> Ran:
    return run_here(main, "e2e", "study", *words, cwd=cwd, COLUMNS="100", OMP_NUM_THREADS="1")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    folder = tmp_path_factory.mktemp("studies")
    (folder / "mine.toml").write_text(MINE)
    return study("mine.toml", "--out", "out", cwd=folder), folder / "out"


def cells(out: Path) -> list[dict[str, str]]:
    with (out / "cells.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_study_of_ones_own_runs_and_one_broken_run_is_said(ran: tuple[Ran, Path]) -> None:
    done, out = ran
    assert (done.returncode, done.stderr) == (0, "")
    found = cells(out)
    assert [row["cell"] for row in found if row["recipe"]] == [
        "train-1", "train-2", "warm-1", "warm-2",
    ]  # fmt: skip
    assert [(row["cell"], row["status"]) for row in found if not row["key"]] == [
        ("broken", "not run"),
    ]  # fmt: skip
    assert all(float(row["per_s"]) > 0 for row in found if row["key"])
    assert any(row["key"].startswith("load/") for row in found if row["cell"].startswith("load"))
    for path in (out / "runs").iterdir():
        assert not {"--out", "--json"} & set(json.loads(path.read_text())["command"])
    assert "no-such-network" in (out / "report.md").read_text().partition("## Not measured")[2]
    # The page is escaped and loads nothing.
    text = (out / "report.html").read_text()
    assert "&lt;b&gt;theirs" in text
    assert "<b>" not in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_the_report_is_made_again_and_nothing_is_measured_again(ran: tuple[Ran, Path]) -> None:
    _, out = ran
    names = ("report.html", "report.md", "cells.csv")
    before = {name: (out / name).read_text() for name in names}
    runs = {path.name: path.read_bytes() for path in (out / "runs").iterdir()}
    for name in names:
        (out / name).unlink()
    done = study("report", out.name, cwd=out.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert {name: (out / name).read_text() for name in names} == before
    assert study("mine.toml", "--out", "out", cwd=out.parent).returncode == 0
    assert {path.name: path.read_bytes() for path in (out / "runs").iterdir()} == runs
    done = study("mine.toml", "--out", "out", "--set", "repeats=1", cwd=out.parent)
    assert done.returncode == 2
    assert "out holds mine, profile full, with other options" in done.stderr


def test_a_study_that_was_killed_measures_what_is_missing_alone(ran: tuple[Ran, Path]) -> None:
    _, out = ran
    path, kept = out / "runs/warm.json", json.loads((out / "study.json").read_text())
    run = json.loads(path.read_text())
    whole = run["results"]
    lost = [one for one in whole if one["case"].get("recipe") != "fp32"]
    path.write_text(json.dumps({**run, "results": lost, "finished_at": None}))
    (warm,) = (one for one in kept["run"] if one["id"] == "warm")
    warm["done"] = False
    (out / "study.json").write_text(json.dumps(kept))
    assert study("mine.toml", "--out", "out", cwd=out.parent).returncode == 0
    after = json.loads(path.read_text())["results"]
    assert {json.dumps(one["case"]) for one in after} == {json.dumps(one["case"]) for one in whole}
    loads = [one for one in lost if "recipe" not in one["case"]]
    assert [one for one in after if one in loads] == loads
    assert {row["cell"] for row in cells(out)} >= {"warm-1", "warm-2", "train-1"}


def test_those_shipped_are_listed_and_said_without_writing_anything(tmp_path: Path) -> None:
    listed = study("list", cwd=tmp_path).stdout
    for name in shipped():
        assert name in listed
        for profile in ("full", "short", "smoke"):
            done = study("show", name, "--profile", profile, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            assert "Nothing was run." in done.stdout
    assert not list(tmp_path.iterdir())
