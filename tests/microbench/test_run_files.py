"""Files of every kind: what is written is read back, and what is damaged is refused in a line."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.segment import Segments
from rich.text import Text
from samples.judge import places, with_value
from samples.kernel_runs import case, measured, run_of

from kernels.messages import first_line
from microbench.__main__ import main
from microbench.errors import UserError
from microbench.report import writers
from microbench.report.report import report_of, report_of_document, report_of_file
from microbench.report.screen import print_report
from microbench.results.codec import decode, run_from_json, run_to_json
from microbench.results.comparison import compare
from microbench.results.kinds import document_of
from microbench.results.runfile import as_run, read_run, write_run
from microbench.results.types import (
    Amount,
    AtLeastOne,
    Count,
    Json,
    Measurement,
    Positive,
    ProcessTime,
    Ratio,
    Result,
    Run,
    Share,
    Warning,
)

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "nvidia-h200"
RUN_FILES = [
    path for path in sorted(ROOT.joinpath("results").rglob("*.json"))
    if b'"schema_version"' in path.read_bytes()[:200] and path.stat().st_size < 300_000
]  # fmt: skip


def result() -> Result:
    """Every field is set."""
    size, seconds = 512, 1e-5
    return Result(
        case(size, "fp16", "cublas"),
        "ok",
        measurement=Measurement(
            (seconds, 1.01 * seconds, 0.99 * seconds), (2, 1), seconds,
            (0.99 * seconds, 1.01 * seconds), "events", "cold", "sustained", 2e-6, 32e-9,
            sm_clock_mhz=1800.0, power_w=400.0, energy_j=4e-3, temperature_c=50.0,
            throttle=("power cap",),
            processes=(ProcessTime(0, 1, seconds, 1800.0), ProcessTime(1, 1, seconds, None)),
        ),
        flops=2 * size**3,
        min_bytes=6 * size**2,
        rel_error=2e-4,
        variant="torch",
        kernels=("kernel_128x128",),
        tile=(128, 128, 64),
        tensor_core=True,
        speedup={"fp32": Ratio(2.5, (2.4, 2.6)), "tf32": Ratio(1.4, None)},
        vs_backend={"triton": Ratio(1.01, (0.99, 1.03))},
        ceiling_pct=50.0,
        efficiency_pct={"datasheet": 50.0},
        bound="compute",
        why="because",
        warnings=(Warning("symptom", "cause", "remedy"),),
    )  # fmt: skip


OF_ZEROS = case(256, "fp16", "cublas", data="zeros")
RUN = run_of(
    [result(), replace(result(), case=OF_ZEROS, status="skipped", reason="why", measurement=None)],
    settings={"timer": "auto", "l2": "cold", "seed": 3, "load": {"load_average_per_core": 0.1}},
)


def document(run: Run = RUN) -> Any:
    return json.loads(json.dumps(run_to_json(run), allow_nan=False))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


# ---------------------------------------------------------------- what is written is read back


def test_every_committed_file_and_those_of_other_versions_are_read(path: Path) -> None:
    assert len(RUN_FILES) > 50
    for file in RUN_FILES:
        run = read_run(file)
        assert run_from_json(document(run)) == run, file.name
    whole = document()
    more = {"model": {"fitted": 12, "by_path": []}, "forecast": 3}
    assert run_from_json(whole | more) == RUN
    for name in ("processes", "kernels_s", "tuned", "variant", "total_error"):
        for one in whole["results"]:
            one.pop(name, None)
    first = run_from_json(whole).results[0]
    assert (first.case, first.measurement and first.measurement.processes) == (result().case, ())


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("python -m microbench payoff --dtype bf16", "payoff"), ("halfway conv", "conv"),
        ("python -m e2e resnet50 --amp", "train"), ("python -m e2e predict gpt", "predict"),
        ("halfway train gemm", "train"), ("python -m microbench", ""),
    ],
)  # fmt: skip
def test_what_a_run_of_the_first_schema_is_stands_in_its_command(words: str, kind: str) -> None:
    old = document() | {"schema_version": 1, "command": words.split()}
    del old["kind"], old["options"]
    run = run_from_json(old)
    assert (run.kind, run.options, run.schema_version) == (kind, {}, 2)
    assert run_from_json(document(replace(run, kind="gemm"))).kind == "gemm"


def test_the_units_of_a_file_which_no_nan_reaches(path: Path) -> None:
    write_run(RUN, path)
    whole = json.loads(path.read_text())
    ok, skipped = whole["results"]
    assert ok["case"] == {"m": 512, "n": 512, "k": 512, "layout": "nt", "data": "normal"}
    assert ok["tflops"] == pytest.approx(2 * 512**3 / 1e-5 / 1e12)
    assert ok["gb_per_s"] == pytest.approx(6 * 512**2 / 1e-5 / 1e9)
    assert ok["speedup"]["fp32"] == {"ratio": 2.5, "ci95": [2.4, 2.6]}
    assert ok["warnings"] == [{"symptom": "symptom", "cause": "cause", "remedy": "remedy"}]
    assert (skipped["status"], skipped["reason"]) == ("skipped", "why")
    rates = ("tflops", "gb_per_s", "median_s", "times_s", "blocks", "timer")
    assert {name: skipped[name] for name in rates} == dict.fromkeys(rates)
    write_run(RUN, path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write_run(replace(RUN, results=(replace(result(), rel_error=math.nan),)), path)
    assert path.read_bytes() == before


# ---------------------------------------------------------------- what a result may say


def timed(median_s: float, rounds: int, number: int = 0) -> Json:
    """One process of a result, as its file has it."""
    return {"number": number, "rounds": rounds, "median_s": median_s, "sm_clock_mhz": 1980.0}


PLAIN = run_of([measured(case(512, "fp16", "cublas"), 37.0)])  # three blocks


@pytest.mark.parametrize(
    "fields",
    [
        {"median_s": 0.0}, {"median_s": -1e-6}, {"times_s": []}, {"ci95_s": [0.0, 1.0]},
        {"ci95_s": [-1.0, 1.0]}, {"ci95_s": [2e-6, 1e-6]}, {"status": "good"}, {"op": "sum"},
        {"precision": "fp4"}, {"case": {"m": 1, "n": 1}}, {"case": {"m": 1, "n": 1, "k": "1"}},
        {"case": {"m": 0, "n": 1, "k": 1}}, {"case": {"m": 1, "n": 1, "k": 1, "layout": "xy"}},
        {"tile": [128, 0, 64]}, {"choice": {"how": "guessed", "candidates": 1}},
        {"processes": [timed(1e-6, 2)]}, {"processes": [timed(1e-6, 4)]},
        {"processes": [timed(0.0, 3)]}, {"processes": [timed(-1.0, 3)]},
        {"processes": [timed(1e-6, 1), timed(1e-6, 2)]},  # both of process 0
    ],
    ids=str,
)  # fmt: skip
def test_a_result_that_cannot_be_is_refused(fields: Json) -> None:
    whole = document(PLAIN)
    whole["results"][0].update(fields)
    with pytest.raises(ValueError, match=r"results\[0\]|precision"):
        run_from_json(whole)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        *((("ceilings", 0, name), value, f"ceilings[0].{name}")
          for name in ("flop_per_s", "byte_per_s", "seconds", "flop_per_clock")
          for value in (0.0, -1e12)),
        (("device", "name"), 3, "device.name"), (("device", "l2_bytes"), [], "device.l2_bytes"),
        (("device", "sm_clock_max_mhz"), {}, "device.sm_clock_max_mhz"),
        (("device", "capability"), 9.0, "device.capability"),
        (("settings", "load"), {"load_average_per_core": [1]}, "settings.load"),
        (("settings", "notes"), 3, "settings.notes"),
    ],
)  # fmt: skip
def test_a_fact_that_nothing_can_be_computed_from_is_refused_by_name(
    place: tuple[str | int, ...], value: object, said: str
) -> None:
    changed = with_value(document(), place, value)
    with pytest.raises(ValueError, match="expected") as caught:
        run_from_json(changed)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("name", sorted(document()))
def test_each_missing_name_of_the_document_is_refused(name: str) -> None:
    whole = document()
    del whole[name]
    if name in ("settings", "kind", "options"):  # which the first version lacks
        assert not getattr(run_from_json(whole), name)
        return
    with pytest.raises(UserError, match=name):
        as_run(whole, Path("run.json"))


# ---------------------------------------------------------------- one wrong value, anywhere

JUNK = (None, "text", -1, 10**39, [], {"a": 1})  # a file has no more digits
# A file of every kind that is published; and a run and a training with every field.
PUBLISHED = ("layers-resnet50", "loaders", "ranks-strong", "ledger-resnet50", "fleet")


class Unseen(Console):
    """Takes lines and shows none."""

    def print(self, *lines: object, **_: object) -> None:
        assert all(isinstance(line, str | Text | Segments) for line in lines)


def used(data: Json, sound: Run | None = None) -> str:
    """Reads a file as `show` does, in every form: "read", or how it was refused."""
    console = Unseen(width=100)
    try:
        kind = document_of(data)
        if kind:
            found = report_of_document(kind, data)
            print_report(found, console, verbose=True)
            writers.to_csv(found), writers.to_markdown(found)
            return "read"
        run = as_run(data, Path("run.json"))
    except (UserError, ValueError, OverflowError) as error:
        return first_line(error)
    if run == sound:  # the value takes no part
        return "read"
    assert run_from_json(document(run)) == run
    found = report_of(run)
    print_report(found, console, verbose=True)
    writers.to_csv(found), writers.to_markdown(found)
    with contextlib.suppress(UserError):  # nothing to compare
        compare(run, run)
    return "read"


@pytest.mark.parametrize("name", ["kernels", "training", *PUBLISHED])
def test_any_value_of_another_type_is_refused_or_takes_no_part(name: str) -> None:
    """A file from anywhere never ends in a traceback, whichever one value in it is wrong."""
    whole = json.loads((H200 / f"{name}.json").read_text()) if name in PUBLISHED else document()
    if name == "training":
        whole |= {"results": [json.loads((ROOT / "tests/samples/training.json").read_text())]}
    if name in PUBLISHED:  # one result or row of it
        whole |= {part: whole[part][:1] for part in ("results", "rows") if part in whole}
    assert used(whole) == "read"
    sound = None if document_of(whole) else run_from_json(whole)
    found = Counter(
        used(with_value(whole, place, junk), sound) == "read"
        for place in places(whole)
        for junk in JUNK
    )
    assert found[False] > 0.2 * found[True]


def test_a_file_that_lacks_a_fact_is_explained_and_shown(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = json.loads((H200 / "gemm-fp16.json").read_text())
    no_sms = {name: fact for name, fact in sound["device"].items() if name != "sm_count"}
    no_work = [one | {"flops": 0} for one in sound["results"]]
    for lacking in ({"device": no_sms}, {"results": no_work}):
        path.write_text(json.dumps(sound | lacking))
        assert main(["explain", str(path)]) == main(["show", str(path), "--verbose"]) == 0
        assert "8192" in capsys.readouterr().out


# ---------------------------------------------------------------- what is no run file


def complaint(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_run(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


FOREIGN = (
    "", "   ", "[1, 2]", "null", "42", '"text"', "{}", "{'a': 1}", "not json",
    '{"schema_version": 1}', '{"results": []}', '{"schema_version": "1", "results": []}',
    '{"schema_version": null, "results": []}', '{"schema_version": 1, "results": {}}',
    '{"name": "other tool", "benchmarks": []}', "[" * 100_000, "\ufeff{}",
    '{"schema_version": ' + "9" * 5000 + "}", '{"schema_version": 1e400, "results": []}',
)  # fmt: skip


def test_a_file_cut_short_anywhere_foreign_ones_a_folder_and_a_missing_file_are_refused(
    path: Path, tmp_path: Path
) -> None:
    write_run(RUN, path)
    whole = path.read_bytes().rstrip(b"\n")
    cut = (whole[:length] for length in range(0, len(whole), 7))
    for wrong in (*cut, b"\x80\x81\xff\x00" * 99, *map(str.encode, FOREIGN)):
        path.write_bytes(wrong)
        complaint(path)
    for nothing in (tmp_path, tmp_path / "nothing.json", tmp_path / ("x" * 300)):
        complaint(nothing)


@pytest.mark.parametrize("name", ["results", "measurements", "check"])
def test_a_newer_schema_says_so(path: Path, name: str) -> None:
    path.write_text(json.dumps({name: "fleet", "schema_version": 3}))
    with pytest.raises(UserError, match=rf"{path} has schema_version 3.*update halfway"):
        report_of_file(path)


# ---------------------------------------------------------------- what reading loads


def test_importing_loads_few_files_of_ours_and_no_torch() -> None:
    statement = "from microbench.results.runfile import read_run"
    command = [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    modules = done.stdout.split()
    ours = [name for name in modules if name.split(".")[0] in ("kernels", "microbench", "e2e")]
    assert len(ours) <= 27, ours
    assert {"torch", "numpy", "rich", "click"}.isdisjoint(modules)


# ---------------------------------------------------------------- values as they are declared


@pytest.mark.parametrize(
    ("kind", "least", "below", "beyond"),
    [
        (Positive, 5e-324, 0, None), (Amount, 0, -5e-324, None), (Share, 0, -1e-9, 1.0000001),
        (Count, 0, -1, 2**63), (AtLeastOne, 1, 0, 10**400),
    ],
)  # fmt: skip
def test_numbers_of_a_file_have_bounds(kind: Any, least: Any, below: Any, beyond: Any) -> None:
    assert decode(kind, least, "x") == least
    for wrong in (below, beyond, "1"):
        with pytest.raises(ValueError, match="x: expected"):
            decode(kind, wrong, "x")
