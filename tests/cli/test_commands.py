"""What holds of every command that measures: its screen, its files, `show` and `--resume`."""

from __future__ import annotations

import csv
import getpass
import io
import json
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import click
import pytest
from samples.commands import ROOT, Ran, interrupted, run_here
from samples.shop import COMMANDS, Kept, Shop, words_of

import e2e.__main__ as training_line
import microbench.__main__ as kernels_line
from e2e.__main__ import OPTIONS
from e2e.halfway import main as halfway
from e2e.options import TrainOptions
from microbench.command_line import Outputs, options_of
from microbench.errors import UserError
from microbench.requests import Conditions

MEASURED = ("median_s", "step_s", "images_per_s")  # what a CSV has of a result
SAMPLES = ("times_s", "wall_times_s", "blocks")
OTHER = {  # words that make it another run
    "gemm": "--regime burst", "conv": "--seed 4", "layers": "--batch 4", "train": "--seed 4",
    "learn": "--seed 4",
}  # fmt: skip
# How many results one that is stopped has not measured yet: whole comparisons.
LEFT = {
    "gemm": 2, "conv": 2, "attention": 2, "payoff": 2, "layers": 3, "train": 3, "learn": 2,
    "predict": 3, "stalls": 4, "loader": 1,
}  # fmt: skip


@pytest.fixture(params=COMMANDS)
def kept(request: pytest.FixtureRequest, shop: Shop) -> Kept:
    found = shop.kept(request.param)
    assert found.ran.returncode == 0, found.ran.stderr
    return found


def copy(kept: Kept, tmp_path: Path) -> Path:
    return Path(shutil.copy(kept.file, tmp_path / "my run.json"))


def samples(run: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Of each result its case, and what was measured."""
    case = ("op", "case", "precision", "backend")
    return [
        ([one.get(name) for name in case], *(one.get(name) for name in SAMPLES))
        for one in run["results"]
    ]


def seeds(run: dict[str, Any]) -> list[object]:
    """The seed of a run of kernels, and that of one of trainings."""
    settings = run["settings"]
    return [part.get("seed") for part in (settings, settings.get("training", {}))]


def complaint(ran: Ran) -> str:
    assert (ran.returncode, ran.stdout) == (2, ""), ran.stderr
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1
    return ran.stderr


def test_it_ends_well_is_plain_fits_and_tells_nothing_of_the_owner(kept: Kept, shop: Shop) -> None:
    assert kept.ran.stderr == ""
    *lines, last = kept.ran.stdout.splitlines()
    assert last == f"Run file: {kept.file}"
    assert [line for line in lines if len(line) > 100 or line != line.rstrip()] == []
    assert not set("\x1b\r") & set(kept.ran.stdout)
    assert "GPU time" not in kept.ran.stdout, "it is of a CPU"
    run = kept.document
    assert run["schema_version"] == 2
    words = COMMANDS[kept.name].split()
    assert run["command"][:2] == ["halfway", words[0]]
    assert run["kind"] == words[0]
    assert run["options"].keys().isdisjoint(("json", "resume", "quiet", "verbose"))
    assert {word[2:] for word in words if word in ("--seed", "--budget")} <= run["options"].keys()
    assert run["finished_at"] >= run["started_at"]
    assert run["device"]["kind"] == "cpu"
    assert run["results"]
    for result in run["results"]:
        assert (result["status"] in ("ok", "predicted")) == (result.get("reason") is None)
        assert "\n" not in (result.get("reason") or "")
    text = kept.file.read_text()
    users = [] if getpass.getuser() == "root" else [getpass.getuser()]
    for word in (socket.gethostname(), f"{Path.home()}/", str(ROOT), str(shop.folder), *users):
        assert word not in text


def test_show_prints_the_same_again_and_its_csv_has_a_line_a_result(kept: Kept) -> None:
    again = run_here(halfway, "halfway", "show", kept.file)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.strip() == kept.report
    again = run_here(halfway, "halfway", "show", kept.file, "--csv")
    rows = list(csv.DictReader(io.StringIO(again.stdout)))
    results = kept.document["results"]
    by_op = sorted(results, key=lambda result: result["op"] == "load")  # a table of their own
    assert [(r["op"], r["status"]) for r in rows] == [(r["op"], r["status"]) for r in by_op]
    for row, result in zip(rows, by_op, strict=True):
        for name in MEASURED:
            if row.get(name):
                assert float(row[name]) == pytest.approx(result[name], rel=1e-3)
        for name, value in result["case"].items():
            if row.get(name) and not isinstance(value, bool | float):
                assert row[name] == str(value)


def test_markdown_has_whole_rows_that_differ_and_a_run_is_the_same_as_itself(kept: Kept) -> None:
    """Every table has as many cells in each row as in its heading, and tells its rows apart."""
    text = run_here(halfway, "halfway", "show", kept.file, "--markdown").stdout
    tables = [part for part in text.split("\n\n") if part.lstrip().startswith("|")]
    assert tables
    for table in tables:
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert len({row.replace("\\|", "").count("|") for row in rows}) == 1
        assert len(set(rows)) == len(rows)
    # But of predictions nothing was measured, which a gate does not let pass.
    ran = run_here(halfway, "halfway", "compare", kept.file, kept.file,
                   "--fail-on", "slower,faster")  # fmt: skip
    assert (ran.returncode, ran.stderr) == (int(kept.name == "predict"), "")


def test_nothing_is_left_to_resume_and_said(kept: Kept, shop: Shop, tmp_path: Path) -> None:
    file = copy(kept, tmp_path)
    ran = shop.run(*words_of(kept.name), "--resume", file, "--quiet")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert samples(json.loads(file.read_text())) == samples(kept.document)
    # Nor of one that was stopped after its last case.
    file.write_text(json.dumps({**kept.document, "finished_at": None}))
    for _ in range(2):
        ran = shop.run(*words_of(kept.name), "--resume", file)
        assert (ran.returncode, ran.stderr, "not finished" in ran.stdout) == (0, "", False)
        assert json.loads(file.read_text())["finished_at"]


def test_a_stopped_run_goes_on_with_its_file_alone(kept: Kept, shop: Shop, tmp_path: Path) -> None:
    """Each but its folder of images, whose path no file keeps."""
    file, whole = copy(kept, tmp_path), kept.document
    before = whole["results"][: -LEFT[kept.name]]
    file.write_text(json.dumps({**whole, "results": before, "finished_at": None}))
    command, *others = COMMANDS[kept.name].split()
    folder = ("--data", "folder:images") if "folder:images" in others else ()
    ran = shop.run(command, "--resume", file, *folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    after = json.loads(file.read_text())
    assert after["finished_at"]
    assert seeds(after) == seeds(whole)
    if kept.name != "payoff":  # which searches anew
        assert [case for case, *_ in samples(after)] == [case for case, *_ in samples(whole)]
    assert samples(after)[: len(before)] == samples({"results": before})


def test_another_run_is_not_mixed_in(kept: Kept, shop: Shop, tmp_path: Path) -> None:
    file, words = copy(kept, tmp_path), words_of(kept.name)
    if kept.name in OTHER:
        complaint(shop.run(*words, *OTHER[kept.name].split(), "--resume", file))
        assert file.read_bytes() == kept.file.read_bytes()
    gemm = ROOT / "results" / "nvidia-h200" / "gemm-fp16.json"
    if kept.name != "gemm":
        other = Path(shutil.copy(gemm, tmp_path / "gemm.json"))
        assert "gemm" in complaint(shop.run(*words, "--resume", other))
        assert other.read_bytes() == gemm.read_bytes()


def test_what_exists_is_not_overwritten(kept: Kept, shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "precious.svg"
    file.write_text("precious")
    assert "--json" in complaint(shop.run(*words_of(kept.name), "--json", file))
    assert file.read_text() == "precious"


@pytest.mark.parametrize("name", ["gemm", "learn"])
def test_ctrl_c_keeps_what_is_done_and_names_the_command_that_ends_the_run(
    name: str, shop: Shop, tmp_path: Path
) -> None:
    file = tmp_path / "my run.json"
    ran = interrupted(
        halfway, "halfway", *words_of(name), "--budget", "1", "--json", file, cwd=shop.folder,
        when=lambda: file.exists() and json.loads(file.read_text())["results"],
    )  # fmt: skip
    assert ran.returncode == 130
    assert "Traceback" not in ran.stderr
    kept = json.loads(file.read_text())
    assert kept["finished_at"] is None
    (command,) = [line for line in ran.stderr.splitlines() if "--resume" in line]
    whole = shop.run(*shlex.split(command)[1:])
    assert whole.returncode == 0, whole.stderr
    after = json.loads(file.read_text())
    assert after["finished_at"]
    assert len(after["results"]) == len(shop.kept(name).document["results"])
    assert samples(after)[0] == samples(kept)[0]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def parsed(group: click.Group, *words: object) -> dict[str, Any]:
    """What a command is given for these words, without running it."""
    name, *rest = map(str, words)
    return group.commands[name].make_context(name, rest).params


def kernels(*words: object) -> dict[str, Any]:
    return parsed(kernels_line.app, *words)


def training(*words: object) -> dict[str, Any]:
    return parsed(training_line.app, *words)


def run_file(path: Path, kind: str, **options: object) -> Path:
    path.write_text(json.dumps({"schema_version": 2, "kind": kind, "options": options}))
    return path


# ---------------------------------------------------------------- what is taken from the file


def test_what_is_not_written_is_taken_from_the_file_the_network_too(tmp_path: Path) -> None:
    words = ("gemm", "--sizes", "16,24", "--dtype", "bf16", "--device=cpu", "--tune", "24")
    options = {"sizes": "16,24", "dtype": "bf16", "device": "cpu", "autotune": True}
    file = run_file(tmp_path / "run.json", "gemm", **options, quiet=True)
    found, usual = kernels("gemm", "--resume", file), kernels(*words, "--resume", file)
    assert found == usual
    assert not found["quiet"]
    more = kernels("gemm", "--resume", file, "--sizes", "32", "--quiet")
    assert more == usual | {"sizes": "32", "quiet": True}
    assert kernels("conv", "--resume", file) == kernels("conv") | {"resume": file}
    words = ("resnet18", "--amp", "--batch", "8", "--layout", "nhwc", "--no-fused", "--epochs", "2")
    options = {"network": "resnet18", "amp": True, "batch": "8", "layout": "nhwc", "epochs": 2}
    file = run_file(tmp_path / "run.json", "train", **options, fused=False)
    assert training("train", "--resume", file) == training("train", *words, "--resume", file)
    other = training("train", "vgg16", "--resume", file, "--fused")
    assert (other["network"], other["fused"], other["batch"]) == ("vgg16", True, "8")
    # One of options that exclude each other is enough.
    file = run_file(tmp_path / "run.json", "train", network="resnet18", ladder=True, epochs=2)
    found = training("train", "--resume", file, "--recipe", "amp", "--iterations", "5")
    assert (found["ladder"], found["recipe"]) == (False, "amp")
    assert (found["epochs"], found["iterations"]) == (None, 5)


def test_a_folder_is_asked_for_because_the_file_keeps_no_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"network": "resnet18", "data": "folder:photos"}
    file = run_file(tmp_path / "run.json", "train", **options)
    with pytest.raises(UserError, match="--data folder:PATH/photos"):
        training("train", "--resume", file)
    given = training("train", "--resume", file, "--data", "folder:/there/photos")
    assert given["data"] == "folder:/there/photos"
    (tmp_path / "photos").mkdir()
    assert training("train", "--resume", file)["data"] == "folder:photos"
    text = run_file(tmp_path / "text.json", "train", network="hf:config.json")
    with pytest.raises(UserError, match=r"NETWORK hf:PATH/config\.json"):
        training("train", "--resume", text)
    drawn = run_file(tmp_path / "drawn.json", "gemm", shapes="s.csv")
    with pytest.raises(UserError, match=r"--shapes PATH/s\.csv"):
        kernels("gemm", "--resume", drawn)
    shapes = kernels("gemm", "--resume", drawn, "--shapes", "private/s.csv")["shapes"]
    assert shapes == Path("private/s.csv")


# ---------------------------------------------------------------- what cannot be gone on with


def test_a_file_of_an_older_version_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"schema_version": 1, "command": ["halfway", "gemm"]}))
    with pytest.raises(UserError, match="an older version, which kept no options; start a new"):
        kernels("gemm", "--resume", file, "--sizes", "16")
    for name, value in (("budget", [1]), ("seed", {})):
        file = run_file(tmp_path / "run.json", "gemm", **{name: value})
        with pytest.raises(UserError, match=f"options.{name}"):
            kernels("gemm", "--resume", file)
    file = run_file(tmp_path / "run.json", "train", network="resnet18", verify=True)
    with pytest.raises(UserError, match="--verify is of another version; start a new run"):
        training("train", "--resume", file)
    file = run_file(tmp_path / "run.json", "gemm", budget="much")
    with pytest.raises(click.UsageError, match="'much' is not a valid float"):
        kernels("gemm", "--resume", file)


# ---------------------------------------------------------------- schema


def test_every_option_has_a_command_and_is_declared_once() -> None:
    listed = {getattr(row, "name", row) for rows in OPTIONS.values() for row in rows}
    assert set(options_of(TrainOptions, Outputs)) <= listed
    for schemas in ((TrainOptions, Outputs), (Conditions, Outputs)):
        each = [name for schema in schemas for name in options_of(schema)]
        assert len(set(each)) == len(each)
