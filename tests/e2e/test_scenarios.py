"""The scripts of examples/diagnose, what is found in them on a CPU, and the table of that."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from samples.random_traces import traces
from samples.traces import Made
from scenarios.__main__ import main
from scenarios.pack_trace import pack
from scenarios.table import SCENARIOS

from e2e.profile.diagnosis import diagnose
from e2e.report.scenarios import Cause, Found, Scenario, sheet
from microbench.report.documents import print_sheet
from microbench.report.screen import make_console
from microbench.results.kinds import document_of

ON_CPU = [name for name, planted in SCENARIOS.items() if planted.on_cpu]


def test_causes_that_a_cpu_shows_are_named_until_they_are_fixed(
    tmp_path: Path, quick_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from the packed traces alone. One document and one archive are left."""
    monkeypatch.setattr(sys, "executable", quick_python)
    only = [word for name in ON_CPU for word in ("--only", name)]
    assert main(["--out", str(tmp_path), *only, "--steps", "1", "2", "1"]) == 0
    data = json.loads((tmp_path / "diagnose-scenarios.json").read_text())
    assert document_of(data) is not None
    assert [one["name"] for one in data["scenarios"]] == ON_CPU
    for one in data["scenarios"]:
        planted = SCENARIOS[one["name"]].cause
        for kind, expected in (("live", 1), ("alone", 1), ("fixed", 0), ("fixed_alone", 0)):
            assert one[kind]["exact"]
            titles = [cause["title"] for cause in one[kind]["causes"]]
            assert sum(planted in title for title in titles) == expected, (one["name"], kind)
    with tarfile.open(tmp_path / "traces.tar") as archive:
        names = archive.getnames()
    for name in ON_CPU:
        for kept in (f"traces/{name}.json.gz", f"traces/{name}-fixed.json.gz"):
            assert kept in names
    assert not (tmp_path / "full").exists()


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ON_CPU])
def test_a_script_whose_cause_only_a_gpu_shows_runs_with_it_and_without(
    quick_python: str, name: str
) -> None:
    planted = SCENARIOS[name]
    fixed, other = ["--fixed"] if planted.cause else [], [planted.other] if planted.other else []
    for word in ["--steps=1", *fixed, *other]:
        words = [planted.path, *planted.arguments, "--steps=1", word]
        subprocess.run([quick_python, *words], check=True)


@given(made=traces())
@settings(max_examples=20)
def test_packing_changes_no_time(made: Made, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("packed")
    source = made.write(folder / "trace.json")
    pack(source, folder / "packed.json.gz")
    (whole,) = diagnose([source]).runs
    (packed,) = diagnose([folder / "packed.json.gz"]).runs
    assert (packed.terms, packed.window_ns) == (whole.terms, whole.window_ns)
    assert packed.findings == whole.findings


def test_right_and_wrong_answers_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Of four scripts: one right, one with its cause second, one that failed, one control.

    The cause of the first costs 30 % of 10 ms at most, and its fix saves 26 %.
    """
    live = Found(0.01, 0.012, 0.9, True, (Cause("layout changes", 3.0), Cause("casts", 0.5)))
    fixed = Found(0.0074, 0.0075, 0.9, True, (Cause("casts", 0.5),))
    words = ("halfway", "diagnose", "nchw.py")
    right = Scenario("nchw", "layout", words, True, 9.0, live, live, fixed, fixed)
    found = Found(0.01, 0.01, 0.9, False, (Cause("casts", 4.0), Cause("layout changes", 3.8)))
    wrong = replace(right, live=found, alone=None, fixed=found, fixed_alone=None)
    lost = Scenario("lost", "layout", words, True, 9.0, problem="lost: exit code 1")
    nothing = Found(0.01, 0.01, 1.0, True, ())
    control = Scenario("control", "", words, True, 9.0, nothing, nothing)
    found = [asdict(one) for one in (right, wrong, lost, control)]
    print_sheet(sheet(json.loads(json.dumps({"scenarios": found}))), make_console())
    text = " ".join(capsys.readouterr().out.split())
    for said in (
        "nchw 10 7.4 yes yes no 30.0 % 26.0 % +20 %", "no. 2", "control 10 nothing nothing",
        "first in 1 of 2 scripts, and in 1 of 1 from the kept trace alone",
        "lost: lost: exit code 1.", "within 5 points of the measured one in 1 of 2",
    ):  # fmt: skip
        assert said in text
    broken = asdict(replace(right, live=replace(live, bare_s=0.0)))
    with pytest.raises(ValueError, match="no time above zero"):
        sheet(json.loads(json.dumps({"scenarios": [broken]})))
