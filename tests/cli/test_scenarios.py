"""The scripts of examples/diagnose run through `halfway diagnose` on a CPU, and their runner."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from scenarios.run import run
from scenarios.table import SCENARIOS, Steps

from e2e.profile.diagnosis import diagnose
from microbench.results.kinds import document_of

FEW = Steps(1, 2, 1)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if not one.extra])
def test_it_runs_with_and_without_its_cause(name: str, tmp_path: Path) -> None:
    found = run(SCENARIOS[name], tmp_path, FEW)
    assert not found.problem
    for seen in (found.live, found.alone):
        assert seen is not None
        assert seen.exact
        assert seen.bare_s > 0
    assert found.live.causes == found.alone.causes  # type: ignore[union-attr]
    assert (found.fixed is None) == (not SCENARIOS[name].cause)
    traces = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert len(traces) == (1 + bool(SCENARIOS[name].cause)) * (1 + bool(SCENARIOS[name].other))


def test_a_slow_loader_is_named_on_a_cpu_too(tmp_path: Path) -> None:
    found = run(SCENARIOS["slow_loader"], tmp_path, FEW)
    assert found.live is not None
    assert found.live.bare_s > 0.03, "a batch takes 30 ms"
    assert found.measured_pct is not None


def test_the_command_leaves_one_document_and_one_archive(tmp_path: Path) -> None:
    from scenarios.__main__ import main

    words = ["--out", str(tmp_path), "--only", "optimizer_bound", "--steps", "1", "2", "1"]
    assert main(words) == 0
    data = json.loads((tmp_path / "diagnose-scenarios.json").read_text())
    kind = document_of(data)
    assert kind is not None
    kind.sheet(data)
    with tarfile.open(tmp_path / "traces.tar") as archive:
        names = archive.getnames()
    assert "traces/optimizer_bound.json.gz" in names
    assert "traces/optimizer_bound-fixed.json.gz" in names
    assert "diagnose/optimizer_bound.json" in names
    assert not (tmp_path / "full").exists()
    assert diagnose([tmp_path / "traces" / "optimizer_bound.json.gz"]).runs[0].steps == 1
