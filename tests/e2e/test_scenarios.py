"""Scripts with planted causes, what is found in them on a CPU, and the table of that."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import pytest
from hypothesis import given, settings
from samples.random_traces import traces
from samples.traces import Made
from scenarios.__main__ import main
from scenarios.pack_trace import pack
from scenarios.report import summary, table
from scenarios.run import Cause, Found, Scenario
from scenarios.table import SCENARIOS

from e2e.profile.diagnosis import diagnose
from microbench.results.codec import decode

ROOT = Path(__file__).parents[2]
ON_CPU = [name for name, planted in SCENARIOS.items() if planted.on_cpu]
EACH = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    sys.argv = [*words, "--steps=1"]
    runpy.run_path(words[0], run_name="__main__")
    print(*words, flush=True)
"""


def test_causes_that_a_cpu_shows_are_named_until_they_are_fixed(
    tmp_path: Path, quick_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from the packed traces alone. What ran is not run again."""
    monkeypatch.setattr(sys, "executable", quick_python)
    words = ["--out", str(tmp_path), *ON_CPU, "--steps", "1", "2", "1"]
    assert main(words) == 0
    written = (tmp_path / "diagnose-scenarios.json").read_text()
    ran = decode(tuple[Scenario, ...], json.loads(written)["scenarios"], "scenarios")
    assert [one.name for one in ran] == ON_CPU
    for one in ran:
        for found, expected in (
            (one.live, 1), (one.alone, 1), (one.fixed, 0), (one.fixed_alone, 0)
        ):  # fmt: skip
            assert found.exact
            assert min(1, found.place(one.planted)) == expected, one.name
        for kept in (one.name, f"{one.name}-fixed"):
            assert (tmp_path / "traces" / f"{kept}.json.gz").exists()
    assert not (tmp_path / "full").exists()
    assert main(words) == 0
    again = json.loads((tmp_path / "diagnose-scenarios.json").read_text())
    assert again["scenarios"] == json.loads(written)["scenarios"]


def test_every_script_runs_with_its_cause_and_without() -> None:
    lines = [
        [str(planted.path), *planted.arguments, *fixed, *other]
        for planted in SCENARIOS.values()
        for fixed in ([], ["--fixed"])[: 2 if planted.cause else 1]
        for other in ([], [planted.other])[: 2 if planted.other else 1]
    ]
    words = [sys.executable, "-W", "ignore", "-c", EACH, json.dumps(lines)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [" ".join(line) for line in lines]


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


def test_a_packed_trace_has_its_first_steps_and_all_that_they_launched(tmp_path: Path) -> None:
    """Each of two kernels ends after the step that launched it."""
    made = Made()
    times = {
        "ends": [100, 200], "names": ["k", "cudaLaunchKernel"],
        "work": [[0, "kernel", 110, 30, "0/7", 1], [0, "kernel", 210, 30, "0/7", 2]],
        "calls": [[1, 80, 5, 1, 1], [1, 180, 5, 1, 2]],
    }  # fmt: skip
    made.header = {"halfway": {"traced": 2, "lead_in": 0, "times": times, "bare_s": [0.1, 0.2]}}
    for start in (0, 100_000):
        made.op("aten::mm", start + 70_000, start + 90_000)
        made.kernel("k", start + 110_000, start + 140_000, start + 80_000)
    made.steps(100_000, 200_000)
    source, target = made.write(tmp_path / "trace.json"), tmp_path / "packed.json.gz"
    for most_bytes, steps in ((1 << 20, 2), (1, 1)):
        assert pack(source, target, most_bytes) == target.stat().st_size
        packed = json.loads(gzip.decompress(target.read_bytes()))
        names = Counter(event["name"].partition("#")[0] for event in packed["traceEvents"])
        assert names == dict.fromkeys(("aten::mm", "cudaLaunchKernel", "k", "ProfilerStep"), steps)
        facts = packed["halfway"]
        assert (facts["traced"], facts["bare_s"]) == (steps, [0.1, 0.2])
        assert facts["times"] == {
            name: kept if name == "names" else kept[:steps] for name, kept in times.items()
        }


def test_right_and_wrong_answers_are_counted() -> None:
    """The cause of the first costs 30 % of 10 ms at most, and its fix saves 26 %."""
    live = Found(0.01, 0.012, 0.9, True, (Cause("layout changes", 3.0), Cause("casts", 0.5)))
    fixed = Found(0.0074, 0.0075, 0.9, True, (Cause("casts", 0.5),))
    words = ("halfway", "diagnose", "nchw.py")
    proved = replace(live, causes=(Cause("layout changes", 3.0, "proven", 2.5),))
    right = Scenario("nchw", "layout", words, True, 9.0, live, live, fixed, fixed, proved=proved)
    second = replace(live, causes=(Cause("casts", 4.0), Cause("layout changes", 3.8)))
    wrong = replace(right, name="wrong", live=second, alone=None, fixed_alone=None, proved=None)
    lost = Scenario("lost", "layout", words, True, 9.0, problem="lost: exit code 1")
    nothing = replace(live, causes=())
    control = Scenario("control", "", words, True, 9.0, nothing, nothing)
    never = replace(control, name="never", live=fixed, never="casts|TF32")
    idle = replace(right, name="idle", fixed=live, fixed_alone=None, proved=None)
    silent = replace(wrong, name="silent", live=replace(nothing, refused=True), may_refuse=True)
    ran = (right, wrong, lost, control, never, idle, silent)
    text = "\n".join([*table(ran), *summary(ran)])
    for said in (
        "| nchw | 10 | 7.4 | yes | yes | no | 30.0 % | 26.0 % | +20 % | 25.0 % |",
        "| wrong | 10 | 7.4 | no. 2 |", "| control | 10 |  | nothing | nothing |",
        "| never | 7.4 |  | named |", "| silent | 10 | 7.4 | no verdict |",
        "first in 2 of 3 scripts live", "first in 1 of 1 scripts with --prove",
        "named in 2 of 6 scripts", "lost: lost: exit code 1", "measured one in 1 of 2",
        "idle: its fix gains 0.0 %", "never: must not be named: casts",
    ):  # fmt: skip
        assert said in text, said


def test_the_page_has_the_tables_of_the_published_runs() -> None:
    data = json.loads((ROOT / "results/nvidia-h200/diagnose-scenarios.json").read_text())
    ran = decode(tuple[Scenario, ...], data["scenarios"], "scenarios")
    page = (ROOT / "docs/notes/diagnose.md").read_text()
    told = (ROOT / "docs/diagnose.md").read_text()
    for line in list(summary(ran))[:4]:
        assert line.partition(";")[0].rstrip(".") in told
    first = [one.live.place(one.planted) == 1 for one in ran if one.planted and one.live]
    assert f"{sum(first)} of {len(first)}" in (ROOT / "README.md").read_text()
    _, _, *rows = table(ran)
    assert len(rows) == len(data["scenarios"])
    for row in rows:
        assert row in page
    costs = json.loads((ROOT / "results/nvidia-h200/diagnose-slowdown.json").read_text())
    for one in costs["trainings"]:
        bare_s = fmean(one["bare_s"])
        more = [100 * (median(one[k]) / bare_s - 1) for k in ("kernels_alone_s", "with_names_s")]
        assert f"| {1e3 * bare_s:.2f} | {more[0]:+.0f} % | {more[1]:+.0f} % |" in page
