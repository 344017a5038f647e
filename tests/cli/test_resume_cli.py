"""--resume with nothing else, and the words that other tools use for the same options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

import e2e.__main__ as training_line
import microbench.__main__ as kernels_line
from e2e.__main__ import OPTIONS
from e2e.options import TrainOptions
from microbench.command_line import Outputs, options_of
from microbench.errors import UserError
from microbench.requests import Conditions


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
    file = run_file(tmp_path / "run.json", "gemm", **options, quiet=True, unknown=3)
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


def test_a_file_of_an_older_version_and_a_damaged_one_are_refused(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"schema_version": 1, "command": ["halfway", "gemm"]}))
    with pytest.raises(UserError, match="an older version, which kept no options; start a new"):
        kernels("gemm", "--resume", file, "--sizes", "16")
    for name, value in (("budget", [1]), ("seed", {})):
        file = run_file(tmp_path / "run.json", "gemm", **{name: value})
        with pytest.raises(UserError, match=f"options.{name}"):
            kernels("gemm", "--resume", file)
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
