"""`python -m e2e stalls`, `loader` and `make-data`, end to end on a CPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from samples.commands import Ran, run_here

from e2e.__main__ import main
from microbench.__main__ import main as microbench
from microbench.device.host import usable_cores

ROOT = Path(__file__).parents[2]
Doc = dict[str, Any]
CPU = ("--device", "cpu", "--budget", "0.3")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen pictures in two classes, and one that is none."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(3)
    for i in range(16):
        file = root / "train" / f"class{i % 2}" / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(file)
    (root / "train" / "class0" / "broken.jpg").write_bytes(b"\xff\xd8\xff no more than this")
    return root


def e2e(*words: object, cwd: Path) -> Ran:
    return run_here(main, "e2e", *words, cwd=cwd, COLUMNS="100")


@pytest.fixture(scope="module")
def ran(images: Path) -> tuple[str, Path]:
    file = images / "stalls.json"
    done = e2e(
        "stalls", "cnn-cifar", "--data", f"folder:{images.name}", "--recipe", "fp32,amp-bf16",
        "--batch", "4", "--workers", "1,2", "--measure", "all", *CPU, "--json", file,
        cwd=images.parent,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, file


def results(file: Path, op: str) -> list[Doc]:
    return [one for one in json.loads(file.read_text())["results"] if one["op"] == op]


def test_every_part_is_measured_apart_and_together(ran: tuple[str, Path]) -> None:
    _, file = ran
    found = {
        (t["case"]["loader"], t["case"]["workers"], t["case"]["cached"]): t
        for t in results(file, "train")
        if t["case"]["recipe"] == "fp32"
    }
    assert set(found) == {
        ("synthetic", 0, False), ("pinned", 0, False), ("torchvision", 1, True),
        ("torchvision", 2, True), ("torchvision", 1, False), ("torchvision", 2, False),
    }  # fmt: skip
    assert all(t["status"] == "ok" for t in found.values())
    loaded = {
        (one["case"]["loader"], one["case"]["workers"], one["case"]["cold"])
        for one in results(file, "load")
    }
    assert loaded == {
        ("torchvision", 1, False), ("torchvision", 2, False), ("torchvision", 2, True),
        ("read", 2, False), ("read", 2, True),
    }  # fmt: skip


def test_a_fed_step_is_the_mean_of_whole_blocks_beside_its_prediction(
    ran: tuple[str, Path],
) -> None:
    fed = [t for t in results(ran[1], "train") if t["case"]["loader"] == "torchvision"]
    for training in fed:
        case, times_s = training["case"], training["times_s"]
        assert training["blocks"] == [1] * len(times_s)
        steps = len(training["wall_times_s"])
        assert steps % 2 == 0 or case["workers"] == 1, "as many batches of each worker"
        mean_s = sum(training["wall_times_s"]) / steps
        if len(times_s) == 1:
            assert times_s[0] == pytest.approx(mean_s, rel=1e-6)
        assert min(times_s) * 0.999999 <= mean_s <= max(times_s) * 1.000001
        assert training["data_wait_s"] >= 0
        if not case["cached"]:
            predicted = training["predicted"]
            wall_s = training["wall_s"] / training["wall_steps"]
            error_pct = 100 * (predicted["step_s"] / wall_s - 1)
            assert predicted["error_pct"] == pytest.approx(error_pct, abs=1e-6)
            assert set(predicted["speedup"]) == ({"fp32"} - {case["recipe"]})
    assert sum(not training["case"]["cached"] for training in fed) == 4


def test_the_screen_has_the_picture_and_what_it_means(ran: tuple[str, Path]) -> None:
    text, file = ran
    for words in ("Loaders alone", "Recipes alone", "Together: cnn-cifar, batch 4, loader torchvis",
                  "amp-bf16", "1 broken image left out: train/class0/broken.jpg"):  # fmt: skip
        assert words in " ".join(text.split())
    assert "Traceback" not in text
    shown = text[text.index("Loaders alone") : text.index("Run file:")]
    assert max(map(len, shown.splitlines())) <= 100
    assert str(file.parent.parent) not in file.read_text(), "a file need not say where it lay"


def test_the_run_is_shown_tabled_and_compared(
    ran: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file = ran
    drawing = tmp_path / "c.svg"
    for words, *said in (
        (["show"], "Together"),
        (["show", "--markdown"], "| workers | loader alone | fp32, predicted | measured | error |"),
        (["show", "--csv"], "images_per_s_per_core"),
        (["show", "--chart", str(drawing)],),
        (["compare", str(file)], "B against A, 17 cases: "),
    ):
        assert microbench([words[0], str(file), *words[1:]]) == 0
        printed = capsys.readouterr().out
        assert all(words in printed for words in said)
    drawn = drawing.read_text()
    assert "loader alone" in drawn
    assert "batch 4, loader" in drawn, "of what, not only where"


def test_nothing_is_measured_twice(ran: tuple[str, Path], images: Path) -> None:
    _, file = ran
    before = results(file, "train"), results(file, "load")
    code = main(
        ["stalls", "cnn-cifar", "--data", f"folder:{images}", "--recipe", "fp32,amp-bf16",
         "--batch", "4", "--workers", "1,2", "--measure", "all", *CPU, "--resume", str(file),
         "--quiet"]
    )  # fmt: skip
    assert code == 0
    assert (results(file, "train"), results(file, "load")) == before


def test_loaders_alone_say_what_they_lack(images: Path, tmp_path: Path) -> None:
    file = tmp_path / "loader.json"
    words = ["loader", "--backend", "torchvision-io,gpu-decode,read", "--data", f"folder:{images}",
             "--workers", "1", "--prefetch", "3", "--batch", "4", "--input", "3x32x32", *CPU,
             "--json", str(file), "--quiet"]  # fmt: skip
    assert main(words) == 0
    found = {one["case"]["loader"]: one for one in results(file, "load")}
    assert {one["case"]["prefetch"] for one in found.values()} == {3}
    assert found["gpu-decode"]["status"] == "skipped"
    assert "GPU" in found["gpu-decode"]["reason"]
    assert found["torchvision-io"]["images_per_s"] > 0
    assert found["read"]["read_mb_per_s"] > 0
    (block, *_) = found["read"]["blocks"]
    files = [*images.glob("train/*/*.jpg")]
    sizes = sorted(file.stat().st_size for file in files)
    assert sizes[0] <= block["read_bytes"] / block["images"] <= sizes[-1]


def test_the_loader_by_hand_runs(images: Path, tmp_path: Path) -> None:
    """What `torchvision` is held against; its folder has no broken file."""
    good = tmp_path / "good" / "one"
    good.mkdir(parents=True)
    for file in sorted(images.glob("train/class1/*.jpg")):
        shutil.copy(file, good)
    out = tmp_path / "plain.json"
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "plain_dataloader.py", good.parent, "--workers", "1",
         "--batch", "4", "--seconds", "0.1", "--blocks", "2", "--json", out],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = json.loads(out.read_text())
    assert found == json.loads(done.stdout)
    assert (found["workers"], found["batch"]) == (1, 4)
    assert len(found["images_per_s"]) == 2
    assert min(found["images_per_s"]) > 0


def test_data_is_made_and_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["make-data", str(tmp_path / "made"), "--images", "12", "--classes", "2"]
    assert main([*words, "--workers", "1"]) == 0
    assert "--data" in capsys.readouterr().out
    assert len([*(tmp_path / "made").rglob("*.jpg")]) == 12
    assert main([*words, "--workers", "1", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stalls", "cnn-cifar", "--measure", "most"], "--measure takes one of some, all, none"),
        (["stalls", "cnn-cifar", "--data", "generated", "--loader", "pinned"], "has no workers"),
        (["stalls", "cnn-cifar", "--data", "generated", "--loader", "read"], "has no workers"),
        (["stalls", "cnn-cifar", "--data", "generated", "--loader", "resident"], "has no workers"),
        (["stalls", "cnn-cifar", "--data", "generated", "--workers", "some"], "--workers"),
        (["stalls", "cnn-cifar", "--data", "synthetic"], "has nothing to load"),
        (["loader", "--data", "synthetic"], "there is nothing to load"),
        (["loader", "--backend", "torchvison"], "--backend: unknown 'torchvison'"),
        (["loader", "--data", "generated", "--cpus", "0"], "--cpus 0: this process may use 1 to"),
        (
            ["loader", "--data", "generated", "--prefetch", "0"],
            "--prefetch must be at least 1, not 0",
        ),
        (["cnn-cifar", "--cpus", "9999"], f"this process may use 1 to {usable_cores()} cores"),
        (["cnn-cifar", "--data", "generated", "--on-worker-death", "cry"], "takes stop or restart"),
        (["make-data", ".", "--images", "1", "--classes", "2"], "images"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
