"""`python -m e2e` as a user meets it, on the CPU: what is special to trainings, loaders, studies.

Every expected number is worked out here, anew. What holds of every command: test_commands.py.
"""

from __future__ import annotations

import csv
import json
import re
import runpy
import shutil
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from samples.commands import ROOT, Ran, on_a_terminal, run_here
from samples.feeding import flat, save
from samples.kernel_runs import shown as shown_of
from samples.shop import Shop

from e2e.__main__ import main
from e2e.recipes import RECIPES
from e2e.studies.schema import shipped
from microbench.__main__ import main as microbench
from microbench.results.runfile import read_run

Doc = dict[str, Any]
CPU = ("--device", "cpu", "--budget", "0.2")
OWN = ("--input", "3x8x8", "--batch", "4")
PAIR = ("--recipe", "fp32,amp-bf16")

NETWORKS = """
import torch
from torch import nn

def build(outputs=10):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, outputs),
    )

def two():
    return build(2)

def not_a_number(output, target):
    return output.float().sum() * float("nan")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("e2e-cli")
    (folder / "mine.py").write_text(NETWORKS)
    return folder


def trained(folder: Path, file: Path, *words: object, code: int = 0) -> tuple[Doc, Ran]:
    """The run file of a training with these words that ended so, and what it printed."""
    ran = run_here(main, "e2e", *words, *CPU, "--json", file, cwd=folder)
    assert ran.returncode == code
    assert ran.stderr.startswith("error: nothing was measured: " if code else "")
    assert len(ran.stderr.splitlines()) == code
    assert "Traceback" not in ran.stdout
    read_run(file)  # the reader takes it, whatever else is asked of it here
    return json.loads(file.read_text()), ran


def resumed(folder: Path, file: Path, *words: object) -> Doc:
    ran = run_here(main, "e2e", *words, *CPU, "--resume", file, "--quiet", cwd=folder)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    return json.loads(file.read_text())


def shown(file: Path, *words: str) -> str:
    ran = run_here(microbench, "microbench", "show", file, *words)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def by_recipe(run: Doc) -> dict[str, Doc]:
    variants = {result["case"]["recipe"]: result for result in run["results"]}
    assert len(variants) == len(run["results"])
    return variants


def check_steps(result: Doc) -> None:
    """One variant's numbers agree with each other."""
    assert result["status"] == "ok", result["reason"]
    times, fed = result["times_s"], result["case"]["loader"] == "torchvision"
    assert min(times) > 0
    assert sum(result["blocks"]) == len(times)
    if fed:  # a mean of each block
        assert set(result["blocks"]) == {1}
        assert min(result["wall_times_s"]) <= min(times)
        assert max(times) <= max(result["wall_times_s"])
    else:
        assert len(times) == len(result["wall_times_s"])
    assert result["step_s"] == pytest.approx(median(times), rel=1e-3)
    low, high = result["ci95_s"] or (result["step_s"],) * 2
    assert 0 < low <= result["step_s"] <= high


# ---------------------------------------------------------------- the main command


def test_the_numbers_of_a_comparison_agree(shop: Shop) -> None:
    """On a CPU amp means bf16, and a CPU has no TF32, which is said."""
    kept = shop.kept("train")
    assert kept.document["settings"]["training"]["seed"] == 3
    for batch in (2, 4):
        results = [r for r in kept.document["results"] if r["case"]["batch"] == batch]
        fp32, tf32, amp = results
        assert [r["case"]["recipe"] for r in results] == ["fp32", "tf32", "amp-bf16"]
        assert (tf32["status"], tf32["times_s"]) == ("skipped", None)
        assert "CPU" in tf32["reason"]
        for result in (fp32, amp):
            check_steps(result)
            assert (result["unit"], result["step_units"]) == ("img", batch)
        assert set(amp["speedup"]) == {"fp32"}
        same = [{**result["case"], "recipe": None} for result in results]
        assert same == [same[0]] * 3, "the variants differ in their recipe only"
        assert (same[0]["image_size"], same[0]["data"], same[0]["workers"]) == (32, "synthetic", 0)
    assert "amp means amp-bf16" in kept.ran.stdout
    for phase in ("data", "copy", "forward", "backward", "optimizer"):
        assert phase in shown(kept.file, "--verbose")


def test_processes_are_fresh_and_resuming_adds_one(folder: Path, tmp_path: Path) -> None:
    """Two processes, then a third: the times of those before are kept as they were."""
    words = ("mine:build", *OWN, *PAIR, "--seed", "3")
    file = tmp_path / "several.json"
    two = by_recipe(trained(folder, file, *words, "--processes", "2")[0])
    three = by_recipe(resumed(folder, file, *words, "--processes", "3"))
    for name, before in two.items():
        after = three[name]
        assert [part["number"] for part in after["processes"]] == [0, 1, 2]
        assert after["processes"][:2] == before["processes"]
        count = len(before["times_s"])
        assert after["times_s"][:count] == before["times_s"]
        assert len(after["times_s"]) > count
    assert set(three["amp-bf16"]["speedup"]) == {"fp32"}
    assert "3 processes" in " ".join(shown(file, "--verbose").split())


def test_a_line_on_a_terminal_tells_the_time_left(folder: Path, tmp_path: Path) -> None:
    """From the first of three batches on, however fast they are."""
    words = ("mine:build", "--recipe", "fp32", *OWN, *CPU, "--json", tmp_path / "run.json")
    live = on_a_terminal(main, "e2e", *words, "--batch", "4,8,16", "--budget", "1", cwd=folder)
    assert re.search(r"about \d+ ?s left", live)
    assert "img/s" in live


# ---------------------------------------------------------------- recipes and options


RUNGS = ("fp32", "tf32", "channels_last", "amp", "fused", "compile", "graph")


def test_a_ladder_compares_each_rung(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled: what `torch.compile` returns then runs as it is."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    words = ("mine:build", "--ladder", *OWN)
    run, ran = trained(folder, folder / "ladder.json", *words)
    rungs: dict[str, Doc] = {}
    for name, result in zip(RUNGS, run["results"], strict=True):
        assert result["rung"] in ran.stdout
        rungs[name] = result
    for name in ("tf32", "graph"):  # a skip is a result; a rung that is not there is a question
        assert rungs[name]["status"] == "skipped"
        assert "CPU" in rungs[name]["reason"]
    ok = [result for name, result in rungs.items() if name not in ("tf32", "graph")]
    for result in ok:
        check_steps(result)
    assert [{"previous", "first"} <= {*result["speedup"]} for result in ok] == [False] + [True] * 4
    assert 0 < rungs["compile"]["compile_s"] <= rungs["compile"]["setup_s"]


# ---------------------------------------------------------------- training


def test_a_training_lists_its_seeds_and_what_each_learnt(shop: Shop) -> None:
    kept = shop.kept("learn")
    variants = by_recipe(kept.document)
    for result in variants.values():
        repeats = result["repeats"]
        assert [repeat["seed"] for repeat in repeats] == [5, 6]
        assert [repeat["steps"] for repeat in repeats] == [6, 6]
        assert [len(repeat["curve"]) for repeat in repeats] == [6, 6]
        assert result["case"]["data"] == "generated"
        check_steps(result)
        for repeat in repeats:
            assert 0 <= repeat["accuracy"] <= 1
            assert repeat["train_s"] > 0
            assert 0 < repeat["loss"] < 100
        assert result["chance"] == pytest.approx(0.1)
        assert result["converged"] is True or result["convergence"]
    text = shown(kept.file, "--verbose")
    assert re.search(r"seeds?\D*5\D{1,5}6", text)
    assert "generated" in text
    for fp32, amp in zip(*(t["repeats"] for t in variants.values()), strict=True):
        assert fp32["first_loss"] == pytest.approx(amp["first_loss"], rel=0.05), "the same start"


def test_a_network_that_can_learn_learns_from_each_seed_alike(folder: Path, tmp_path: Path) -> None:
    """Dark and bright images."""
    for part, count in (("train", 12), ("val", 20)):
        for number in range(count):
            for name, level in (("dark", 20), ("bright", 200)):
                save(flat(level + 2 * number), tmp_path / "data" / part / name / f"{number}.png")
    file = tmp_path / "learnt.json"
    words = ("mine:two", "--input", "3x16x16", "--data", f"folder:{tmp_path / 'data'}", "--batch",
             "8", "--recipe", "amp-bf16", "--iterations", "30", "--optimizer", "adamw", "--lr",
             "0.03", "--workers", "0")  # fmt: skip
    run, _ = trained(folder, file, *words, "--repeats", "2")
    (result,) = run["results"]
    check_steps(result)
    assert (result["case"]["data"], result["case"]["loader"]) == ("folder", "torchvision")
    assert result["chance"] == pytest.approx(0.5)
    assert result["converged"] is True, result["convergence"]
    for repeat in result["repeats"]:
        assert repeat["accuracy"] > 0.9
        assert repeat["train_loss"] < repeat["first_loss"]
    (after,) = resumed(folder, file, *words, "--repeats", "3")["results"]
    assert [repeat["seed"] for repeat in after["repeats"]] == [1, 2, 3]
    assert after["repeats"][:2] == result["repeats"]
    same = ("case", "times_s", "blocks")
    assert [after[name] for name in same] == [result[name] for name in same]


def test_how_it_was_trained_is_in_the_case_and_resume_knows_it(folder: Path) -> None:
    file = folder / "scheduled.json"
    how = {"lr": 0.02, "warmup": 2, "schedule": "step:50/2", "clip": 1.5, "held_out": 40}
    words = ["cnn-cifar", "--data", "generated", "--recipe", "fp32", "--iterations", "4",
             "--batch", "8"]  # fmt: skip
    words += [w for n, v in how.items() for w in (f"--{n.replace('_', '-')}", str(v))]
    first, _ = trained(folder, file, *words)
    for result in first["results"]:
        assert {name: result["case"][name] for name in how} == how
        (repeat,) = result["repeats"]
        assert (40 * repeat["accuracy"]).is_integer()
    assert resumed(folder, file, *words)["results"] == first["results"]
    more = resumed(folder, file, *words, "--clip", "3")["results"]
    assert sorted(result["case"]["clip"] for result in more) == [1.5, 3.0]


# ---------------------------------------------------------------- the user's own network


@pytest.mark.parametrize("how", [("--lr", "1e9"), ("--loss", "mine:not_a_number")])
def test_steps_of_what_diverges_are_no_result(how: tuple[str, str], folder: Path) -> None:
    words = ("mine:build", *OWN, *PAIR, *how, "--iterations", "15")
    run, ran = trained(folder, folder / f"diverged{how[0]}.json", *words, code=1)
    for result in run["results"]:
        assert (result["status"], result["times_s"], result["repeats"]) == ("failed", None, [])
        assert "weights are not finite" in result["reason"]
    assert "weights are not finite" in " ".join(ran.stdout.split())


# ---------------------------------------------------------------- list, explain


def test_list_names_networks_and_recipes_and_the_network_may_stand_first() -> None:
    from torchvision import models

    listed = run_here(main, "e2e", "list").stdout
    named = set(re.findall(r"[\w-]+", listed))
    assert {*models.list_models(module=models), "resnet50-cifar", "gpt", "cnn-cifar"} <= named
    for recipe in RECIPES:
        assert re.search(rf"^\W*{recipe}\s", listed, re.MULTILINE), recipe
    bad = [run_here(main, "e2e", *words, "--batch", "no").stderr
           for words in (("train", "cnn-cifar"), ("--amp", "cnn-cifar"))]  # fmt: skip
    assert bad[0] == bad[1]
    assert "--batch" in bad[0]


# ---------------------------------------------------------------- predictions


def test_predict_says_how_long_operations_take_and_that_a_cpu_s_are_rough(shop: Shop) -> None:
    kept = shop.kept("predict")
    assert "rough on a CPU" in " ".join(kept.report.split())
    variants = by_recipe(kept.document)
    assert {name: t["status"] for name, t in variants.items()} == {
        "fp32": "predicted", "tf32": "skipped", "amp-bf16": "predicted",
    }  # fmt: skip
    for name in ("fp32", "amp-bf16"):
        assert (variants[name]["step_s"], variants[name]["images_per_s"]) == (None, None), (
            "not measured"
        )
        predicted = variants[name]["predicted"]
        assert predicted["step_s"] > 0
        assert (predicted["gpu_s"], predicted["interval_s"], predicted["limit"]) == (None,) * 3
        assert (predicted["launches"], predicted["uncovered"]) == (0, [])
        assert predicted["took_s"]["tracing"] > 0
    words = ("shop:build", "--input", "3x8x8", "--device", "cpu", "--recipe", "tf32")
    ran = shop.run("predict", *words)
    assert ran.returncode == 1, "without any prediction"
    assert "Tensor Core mode" in " ".join(ran.stdout.split())


# ---------------------------------------------------------------- stalls, loader, study


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
        ("pinned", 0, False), ("torchvision", 1, False), ("torchvision", 2, False)
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
    text = " ".join(shown_of(read_run(kept.file), details=True).split())
    for words in ("Loaders alone", "Every recipe", "batch 4, loader torchvision",
                  "1 broken image left out: train/class0/broken.jpg"):  # fmt: skip
        assert words in text
    fed = [t for t in results(kept.file, "train") if t["case"]["loader"] == "torchvision"]
    assert len(fed) == 4
    for training in fed:
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
    assert found["dali"]["status"] != "ok"
    assert re.search("DALI is not installed|takes image files", found["dali"]["reason"])


OWN_DATA = """
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
    (shop.folder / "own.py").write_text(OWN_DATA)
    words = ("--batch", "8", "--workers", "1", "--device", "cpu", "--budget", "0.5", "--json")
    for number, command in enumerate((
        ("loader", "--data", "own:rows", "--input", "16"),
        ("stalls", "own:network", "--data", "own:rows", "--recipe", "fp32"),
        ("train", "own:network", "--data", "own:both", "--recipe", "fp32", "--epochs", "1"),
    )):  # fmt: skip
        file = tmp_path / f"{number}.json"
        ran = shop.run(*command, *words, file)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ("sample/s" in ran.stdout, "img/s" in ran.stdout) == (True, False)
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
