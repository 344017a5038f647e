"""Packed traces say what the whole ones say; the table of scenarios counts what is in it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from samples.random_traces import traces
from samples.traces import Made
from scenarios.pack_trace import MOST_BYTES, pack
from scenarios.table import SCENARIOS

from e2e.profile.diagnosis import diagnose
from e2e.report.scenarios import Cause, Found, Scenario, sheet
from microbench.report.documents import print_sheet
from microbench.report.screen import make_console
from microbench.results.kinds import document_of

SAMPLES = Path(__file__).parents[1] / "samples"
TRACES = SAMPLES / "traces_h200"


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("traces_*/*.gz")), ids=lambda path: path.stem)
def test_a_packed_trace_has_the_same_diagnosis(path: Path, tmp_path: Path) -> None:
    target = tmp_path / path.name
    size = pack(path, target)
    assert size == target.stat().st_size <= MOST_BYTES
    (whole,), (packed,) = diagnose([path]).runs, diagnose([target]).runs
    assert packed == whole
    again = tmp_path / "again" / path.name
    pack(target, again)
    assert again.read_bytes() == target.read_bytes()


@given(made=traces())
@settings(max_examples=50, deadline=None)
def test_packing_changes_no_time(made: Made, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("packed")
    source = made.write(folder / "trace.json")
    pack(source, folder / "packed.json.gz")
    (whole,) = diagnose([source]).runs
    (packed,) = diagnose([folder / "packed.json.gz"]).runs
    assert packed.terms == whole.terms
    assert packed.window_ns == whole.window_ns
    assert packed.findings == whole.findings


def test_a_trace_that_is_too_large_loses_steps_and_nothing_else(tmp_path: Path) -> None:
    path = TRACES / "slow_loader-fixed.json.gz"
    whole_size = pack(path, tmp_path / "whole.json.gz")
    assert pack(path, tmp_path / "fewer.json.gz", whole_size - 1) < whole_size
    (run,) = diagnose([tmp_path / "fewer.json.gz"]).runs
    assert run.steps == 2
    assert sum(term.ns for term in run.terms) == run.window_ns


def test_every_script_is_planted_with_something() -> None:
    for name, planted in SCENARIOS.items():
        assert planted.path.is_file(), name
        text = planted.path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 60
        assert ("--fixed" in text) == bool(planted.cause), name


# ---------------------------------------------------------------- the table


def scenario(name: str = "nchw", **changes: object) -> Scenario:
    """Its cause costs 30 % of 10 ms at most, and the fix saves 26 %."""
    live = Found(0.01, 0.012, 0.9, True, (Cause("layout changes", 3.0), Cause("casts", 0.5)))
    fixed = Found(0.0074, 0.0075, 0.9, True, (Cause("casts", 0.5),))
    made = Scenario(
        name, "layout", ("halfway", "diagnose", "nchw.py"), True, 9.0, live, live, fixed, fixed
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def shown(*scenarios: Scenario, capsys: pytest.CaptureFixture[str]) -> str:
    plain = json.loads(
        json.dumps({"check": "scenarios", "scenarios": [asdict(s) for s in scenarios]})
    )
    kind = document_of(plain)
    assert kind is not None
    print_sheet(kind.sheet(plain), make_console())
    return " ".join(capsys.readouterr().out.split())


def test_what_is_right_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(scenario(), capsys=capsys)
    assert "nchw 10 7.4 yes yes no 30.0 % 26.0 % +20 %" in text
    assert "first in 1 of 1 scripts, and in 1 of 1 from the kept trace alone" in text
    assert "named in 0 of 1 controls" in text
    assert "within 5 points of the measured one in 1 of 1; the median difference is 4.0" in text


def test_what_is_wrong_is_counted_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = Found(0.01, 0.01, 0.9, False, (Cause("casts", 4.0), Cause("layout changes", 3.8)))
    wrong = scenario(live=found, alone=None, fixed=found, fixed_alone=None)
    lost = scenario("lost", live=None, alone=None, fixed=None, fixed_alone=None,
                    problem="lost: exit code 1")  # fmt: skip
    text = shown(scenario(), wrong, lost, capsys=capsys)
    assert "no. 2" in text
    assert "nchw: casts 4 ms; layout changes 3.8 ms." in text
    assert "first in 1 of 2 scripts, and in 1 of 1" in text
    assert "named in 1 of 2 controls" in text
    assert "measured one in 1 of 2" in text
    assert "lost: lost: exit code 1." in text
    assert "The terms of 2 of 4 runs add up" in text


def test_nothing_planted_is_right_where_nothing_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing = Found(0.01, 0.01, 1.0, True, ())
    control = scenario("control", planted="", live=nothing, alone=nothing, fixed=None,
                       fixed_alone=None)  # fmt: skip
    assert "control 10 nothing nothing" in shown(control, scenario(), capsys=capsys)


def test_a_step_without_time_is_refused() -> None:
    broken = scenario(live=Found(0.0, 0.01, 1.0, True, ()))
    with pytest.raises(ValueError, match="no time above zero"):
        sheet(json.loads(json.dumps({"scenarios": [asdict(broken)]})))
