"""The checks of the method: each script on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.validation import aa, plants, splits

ROOT = Path(__file__).parents[2]


def test_the_scripts_write_what_they_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # of the run
    files = [tmp_path / name for name in ("plants.json", "aa.json", "splits.json")]
    cpu = ["--device", "cpu"]
    assert plants.main([str(files[0]), *cpu, "--budget", "0.5"]) in (0, 1)  # by how busy it is
    assert aa.main([str(files[1]), *cpu, "--tries", "2", "--budget", "0.02"]) == 0
    runs = [str(ROOT / "results/nvidia-h200/processes-train.json")]
    assert splits.main([str(files[2]), "compare", *runs, "--tries", "3"]) == 0
    planted, same, split = (json.loads(file.read_text()) for file in files)
    assert planted["counted"] <= len(planted["rows"]) == 7
    assert same["tries"] == len(same["rows"]) == 2
    assert split["pairs"] == sum(row["pairs"] for row in split["rows"]) > 0
    capsys.readouterr()
    assert splits.main([str(tmp_path / "b"), "compare", str(files[0])]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit):
        aa.main([str(files[1]), *cpu])  # which is there already
