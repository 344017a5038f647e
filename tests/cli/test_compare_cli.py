"""`compare` as a user meets it: several runs, thresholds, forms, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples.commands import ROOT, Ran, run_here

from e2e.halfway import main

RESULTS = ROOT / "results" / "nvidia-h200"
GEMM, ALL, OWN = (RESULTS / f"gemm-{name}.json" for name in ("fp16", "all", "triton"))
TRAINED, EIGHT = RESULTS / "train-resnet50.json", RESULTS / "processes-gemm.json"


def compare(*words: object) -> Ran:
    return run_here(main, "halfway", "compare", *words)


def slower(source: Path, path: Path, factor: float) -> Path:
    """A published run that took this many times as long."""
    document = json.loads(source.read_text())
    for result in document["results"]:
        for part in (result, *(result.get("processes") or ())):
            for name in ("median_s", "step_s", "ci95_s", "times_s", "wall_times_s"):
                value = part.get(name)
                if isinstance(value, list):
                    part[name] = [factor * seconds for seconds in value]
                elif value:
                    part[name] = factor * value
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slower(GEMM, tmp_path_factory.mktemp("slow") / "slow.json", 1.2)


def test_several_runs_against_the_first(slow: Path) -> None:
    first = compare(GEMM, ALL, OWN, slow)
    assert (first.returncode, first.stderr) == (0, "")
    assert [line.split(":")[0] for line in first.stdout.splitlines()[:3]] == [
        ALL.name, OWN.name, slow.name,
    ]  # fmt: skip
    heading = " ".join(compare(GEMM, slow).stdout.split())
    assert heading.index(f"B = {slow.name}") < heading.index(f"A = {GEMM.name}")


def test_the_page_has_the_rows_of_the_screen_and_both_names(slow: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert compare(GEMM, OWN, slow, "--html", page).returncode == 0
    shown, _, values = page.read_text(encoding="utf-8").partition("Raw values")
    assert all(name in shown for name in (GEMM.name, OWN.name, slow.name, "slower"))
    key = json.loads(GEMM.read_text())["results"][0]["case"]
    written = ",".join(f"{name}={key[name]}" for name in ("m", "n", "k"))
    assert written in values
    assert written not in shown


def test_exit_codes(slow: Path, tmp_path: Path) -> None:
    assert compare(GEMM, OWN, slow, "--fail-on", "slower").returncode == 1
    assert compare(GEMM, OWN).returncode == 0
    assert compare(GEMM, OWN, "--fail-on", "slower").returncode == 1, "it lacks fp32"
    assert compare(GEMM, slow, "--fail-on", "slower", "--threshold", "50%").returncode == 0
    assert compare(slow, GEMM, "--fail-on", "faster").returncode == 1
    trained = slower(TRAINED, tmp_path / "trained.json", 4)
    assert compare(TRAINED, trained).returncode == 0
    assert compare(TRAINED, trained, "--fail-on", "slower").returncode == 1
    for a, b in ((GEMM, GEMM), (slow, GEMM), (trained, TRAINED)):
        assert compare(a, b, "--fail-on", "slower").returncode == 0


def test_json_of_one_run_and_of_several(slow: Path, tmp_path: Path) -> None:
    """Two of one name are kept apart."""
    one, several, twin = (tmp_path / f"{name}.json" for name in ("one", "several", "slow"))
    twin.write_text(slow.read_text())
    compare(EIGHT, slower(EIGHT, tmp_path / "eight.json", 1.2), "--json", one)
    compare(GEMM, slow, OWN, twin, slow, "--json", several, "--threshold", "5")
    row = json.loads(one.read_text())["rows"][-1]
    assert row["reason"] == "interval is beyond it"
    assert row["threshold_pct"] == 1.0  # of runs that know how their processes differ
    written = json.loads(several.read_text())
    names = [found["run"] for found in written["comparisons"]]
    assert names[1] == OWN.name
    assert len(set(names)) == 4
    assert written["comparisons"][0]["threshold_pct"] == 5.0
