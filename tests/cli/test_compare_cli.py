"""`compare` as a user meets it: several runs, thresholds, forms, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from samples.commands import Ran, run_here

from microbench.__main__ import main

RESULTS = Path(__file__).parents[2] / "results" / "nvidia-h200"
GEMM, ALL, OWN = (RESULTS / f"gemm-{name}.json" for name in ("fp16", "all", "triton"))


def compare(*words: object) -> Ran:
    return run_here(main, "microbench", "compare", *words)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published run, a fifth slower."""
    path = tmp_path_factory.mktemp("slow") / "slow.json"
    document = json.loads(GEMM.read_text())
    for result in document["results"]:
        result["median_s"] *= 1.2
        result["ci95_s"] = [1.2 * end for end in result["ci95_s"]]
        result["times_s"] = [1.2 * seconds for seconds in result["times_s"]]
        for process in result["processes"]:
            process["median_s"] *= 1.2
    path.write_text(json.dumps(document))
    return path


def test_several_runs_against_the_first_or_a_named_baseline(slow: Path) -> None:
    first = compare(GEMM, ALL, OWN, slow)
    named = compare(ALL, OWN, slow, "--baseline", GEMM)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == named.stdout
    assert [line.split()[0] for line in first.stdout.splitlines()[-3:]] == [
        ALL.name, OWN.name, slow.name,
    ]  # fmt: skip
    assert compare(slow, "--baseline", GEMM).stdout == compare(GEMM, slow).stdout


def test_one_run_says_which_file_is_which(slow: Path) -> None:
    first = compare(GEMM, slow).stdout.splitlines()[0]
    assert first.index(f"B = {slow.name}") < first.index(f"A = {GEMM.name}")


def test_the_page_has_the_rows_of_the_screen_and_both_names(slow: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert compare(GEMM, OWN, slow, "--html", page).returncode == 0
    shown, _, values = page.read_text(encoding="utf-8").partition("Raw values")
    assert all(name in shown for name in (GEMM.name, OWN.name, slow.name, "slower"))
    key = json.loads(GEMM.read_text())["results"][0]["case"]
    written = ",".join(f"{name}={key[name]}" for name in ("m", "n", "k"))
    assert written in values
    assert written not in shown


def test_runs_without_a_common_case_say_what_differs() -> None:
    apart = compare(RESULTS / "train-others.json", RESULTS / "train-resnet50.json").stderr
    assert apart.count("\n") == 1
    assert all(word in apart for word in ("network", "resnet50", "batch", "256"))
    assert "gemm" in compare(GEMM, RESULTS / "train-resnet50.json").stderr


def test_exit_codes(slow: Path) -> None:
    assert compare(GEMM, OWN, slow, "--fail-on", "slower").returncode == 1
    assert compare(GEMM, OWN, "--fail-on", "slower").returncode == 0
    assert compare(GEMM, slow, "--fail-on", "slower", "--threshold", "50%").returncode == 0
    for words in ((GEMM,), (), (GEMM, slow, "--threshold", "x"), (GEMM, slow, "--fail-on", "x")):
        ran = compare(*words)
        assert ran.returncode == 2
        assert ran.stderr.count("\n") == 1
    assert "0  the runs were compared" in compare("--help").stdout


def test_a_run_that_does_not_compare_is_named(slow: Path) -> None:
    ran = compare(GEMM, slow, RESULTS / "train-resnet50.json")
    assert ran.returncode == 2
    assert "train-resnet50.json" in ran.stderr
    assert "no case in common" in ran.stderr


def test_two_runs_of_one_name_are_kept_apart(slow: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "slow.json").write_text(slow.read_text())
    out = tmp_path / "out.json"
    files = [slow, tmp_path / "one" / "slow.json", tmp_path / "two" / "slow.json"]
    assert compare(GEMM, *files, files[0], "--json", out).returncode == 0
    assert len({one["run"] for one in json.loads(out.read_text())["comparisons"]}) == 4


def test_json_of_one_run_and_of_several_can_be_shown(slow: Path, tmp_path: Path) -> None:
    one, several = tmp_path / "one.json", tmp_path / "several.json"
    compare(GEMM, slow, "--json", one)
    compare(GEMM, slow, OWN, "--json", several, "--threshold", "5")
    row = json.loads(one.read_text())["rows"][-1]
    assert row["reason"] == "interval is beyond it"
    assert row["threshold_pct"] == 1.0  # of runs that know how their processes differ
    written = json.loads(several.read_text())
    assert [found["run"] for found in written["comparisons"]] == ["slow.json", OWN.name]
    assert written["comparisons"][0]["threshold_pct"] == 5.0
    for file in (one, several):
        for form in ((), ("--verbose",), ("--markdown",), ("--csv",)):
            ran = run_here(main, "microbench", "show", file, *form)
            assert (ran.returncode, ran.stderr) == (0, ""), form
            if file is one or form in (("--markdown",), ("--csv",)):  # else too narrow for it
                assert "interval is beyond it" in ran.stdout
    assert "slow.json" in run_here(main, "microbench", "show", several).stdout


def test_junit_and_markdown(slow: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.xml"
    ran = compare(GEMM, slow, OWN, "--junit", out, "--fail-on", "slower", "--markdown")
    assert ran.returncode == 1
    assert ran.stdout.startswith("| run | cases | slower |")
    suites = list(ElementTree.parse(out).getroot())
    assert [suite.attrib["name"] for suite in suites] == ["slow.json", OWN.name]
    for suite in suites:
        assert int(suite.attrib["failures"]) == len(list(suite.iter("failure")))
        assert int(suite.attrib["skipped"]) == len(list(suite.iter("skipped")))
        assert int(suite.attrib["tests"]) == len(list(suite))
    assert int(suites[0].attrib["failures"]) > 10
    again = compare(GEMM, slow, "--junit", out)
    assert again.returncode == 2
    assert "--junit" in again.stderr
