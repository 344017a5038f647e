"""docs/method.md has the figures of the checks of the method; notes and links to them are whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from e2e.results.types import Training
from microbench.requests import GEMM_PROCESSES
from microbench.results.ceilings import CeilingResult
from microbench.results.judging import CPU_BOUND_PCT, LEAST_PCT, NOISE_PCT, NOISE_S
from microbench.results.kinds import KINDS
from microbench.results.runfile import read_run
from microbench.results.types import METHODS
from microbench.selftest.splits import false_verdicts, power
from microbench.timing.stats import half_width_pct

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "nvidia-h200"
PAGE = ROOT / "docs" / "method.md"
NOTES = ROOT / "docs" / "notes" / "method.md"
METHOD = " ".join(f"{PAGE.read_text(encoding='utf-8')} {NOTES.read_text(encoding='utf-8')}".split())
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def checked(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((H200 / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_the_checks_of_the_method_are_the_files_own() -> None:
    same, tried = checked("aa"), checked("selftest")
    for said in (
        f"{same['holding_1']} of {same['tries']} intervals contain 1",
        f"contains 1 in {same['holding_1']} of {same['tries']} tries",
        f"planted causes: {tried['right']} of {tried['counted']} found",
        f"finds it: {tried['right']} of {tried['counted']}, 13 of them controls",
    ):
        assert said in METHOD


CLASSES = {  # a row of the page's table: op, and times from and below, in seconds
    "GEMM under 5 µs": ("gemm", 0.0, 5e-6), "GEMM 5 to 20 µs": ("gemm", 5e-6, 20e-6),
    "GEMM from 20 µs": ("gemm", 20e-6, 1.0), "convolution 5 to 20 µs": ("conv", 5e-6, 20e-6),
    "convolution from 20 µs": ("conv", 20e-6, 1.0),
}  # fmt: skip


def rows_of(document: str, name: str) -> list[dict[str, Any]]:
    op, from_s, below_s = CLASSES[name]
    rows: Any = checked(document)["rows"]
    return [r for r in rows if r["op"] == op and from_s <= r["median_s"] < below_s]


def share_pct(rows: list[dict[str, Any]], *names: str) -> float:
    return 100 * sum(r[n] for r in rows for n in names) / sum(r["pairs"] for r in rows)


@pytest.mark.parametrize("name", CLASSES)
def test_verdicts_on_the_same_and_on_scaled_times_are_the_files_own(name: str) -> None:
    same = rows_of("compare-aa", name)
    scaled = [r for r in rows_of("compare-power", name) if r["scaled"]]
    seen = [
        f"{share_pct([r for r in scaled if r['slower_by_pct'] == pct], 'slower'):.0f} %"
        for pct in (5.0, 10.0, 20.0)
    ]
    cells = [
        name, str(len(same)), f"{median(r['sd_pct'] for r in same):.1f} %",
        f"{share_pct(same, 'faster', 'slower'):.1f} %", *seen,
    ]  # fmt: skip
    assert f"| {' | '.join(cells)} |" in METHOD


def test_every_case_of_the_comparison_s_checks_is_in_the_table() -> None:
    for document in ("compare-aa", "compare-power"):
        rows: Any = checked(document)["rows"]
        assert sum(len(rows_of(document, name)) for name in CLASSES) == len(rows)


def test_the_checks_of_compare_are_the_files_own() -> None:
    same: Any = checked("compare-aa")
    false = f"{100 * (same['faster'] + same['slower']) / same['pairs']:.2f} %"
    assert f"two runs of the same: {false} of {same['pairs']:,} pairs called different" in METHOD
    assert f"In all, {false} of {same['pairs']:,} pairs" in METHOD
    assert f"{same['tries']} times, into two runs of three" in METHOD
    assert same["processes"] == 3
    rows: Any = checked("compare-power")["rows"]
    planted = [r for r in rows if r["change"] == "plus5"]
    by_pct = [r["slower_by_pct"] for r in planted]
    assert all(r["slower"] == r["pairs"] for r in planted)
    assert f"is {min(by_pct):.1f} to {max(by_pct):.1f} % slower, was called slower" in METHOD
    assert f"at {1e6 * min(r['median_s'] for r in planted):.0f} µs and more" in METHOD


@pytest.mark.parametrize("name", ["compare-aa", "compare-aa-train", "compare-power"])
def test_the_checks_of_compare_are_what_the_published_runs_give(name: str) -> None:
    """Fewer splits than published, all of them the product's own verdicts."""
    published: Any = checked(name)
    runs = [read_run(H200 / run["file"]) for run in published["runs"]]
    assert {run.method_version for run in runs} == {published["method_version"]}
    assert all(run.device == published["device"] for run in runs)
    assert [list(run.command) for run in runs] == [run["command"] for run in published["runs"]]
    if name != "compare-power":
        found = false_verdicts(runs, 3, 10)
        assert [r.case for r in found.rows] == [r["case"] for r in published["rows"]]
        assert found.faster + found.slower <= 0.01 * found.pairs
    else:
        seen = [r for r in power(runs[2:], 3, 5).rows if not r.scaled]
        assert all(r.slower == r.pairs for r in seen)


def test_the_verdicts_on_trainings_are_the_files_own() -> None:
    found: Any = checked("compare-aa-train")
    false = found["faster"] + found["slower"]
    said = NOTES.read_text(encoding="utf-8")
    assert f"{false} of {found['pairs']} pairs were called different" in said
    assert f"{false} of {found['pairs']} pairs ([compare-aa-train.json]" in METHOD
    cpu = [row for row in found["rows"] if row["cpu_bound"]]
    (gpu,) = (row for row in found["rows"] if not row["cpu_bound"])
    raw, paced = ([row[name] for row in cpu] for name in ("sd_pct", "sd_one_speed_pct"))
    assert f"by {min(raw):.0f} to {max(raw):.0f} % (standard deviation)" in said
    assert f"at one CPU speed by {min(paced):.1f} to {max(paced):.1f} %" in said
    assert f"differs by {gpu['sd_pct']:.1f} %" in said


def test_thresholds_and_the_default_number_of_processes_are_the_programs_own() -> None:
    assert f"whole interval beyond {LEAST_PCT:g} %, *same* within {NOISE_PCT:g} %" in METHOD
    guess = f"{NOISE_PCT:g} % and {1e6 * NOISE_S:g} µs for kernels, {KINDS['train'].noise_pct:g} %"
    assert f"{guess} for trainings, {KINDS['load'].noise_pct:g} % for loaders" in METHOD
    assert f"with {CPU_BOUND_PCT:g} %. Without" in METHOD
    assert f"({GEMM_PROCESSES} by default for `gemm` on a GPU, else 1)" in METHOD


def test_the_history_has_every_method_version() -> None:
    text = NOTES.read_text(encoding="utf-8")
    table = text[text.index("| version |") :].split("\n\n")[0]
    lines = table.splitlines()[2:]
    assert [int(line.split("|")[1]) for line in lines] == list(METHODS)
    assert [bool(line.split("|")[3].strip()) for line in lines] == list(map(bool, METHODS.values()))


def test_what_varies_between_processes_is_the_files_own() -> None:
    rows: Any = checked("compare-aa")["rows"]
    large = [r for r in rows if "m=8192,n=8192,k=8192" in r["case"] and "/fp16/" in r["case"]]
    times, cycles = ([r[n] for r in large] for n in ("sd_pct", "sd_cycles_pct"))
    said = f"by {min(times):.1f} and {max(times):.1f} % between processes in time"
    assert {f"{value:.1f}" for value in cycles} == {"0.7"}
    assert f"{said}, by 0.7 % in cycles" in METHOD
    for result in read_run(H200 / "processes-conv.json").results:
        if result.case.dim("c") == 32 and result.case.precision_name == "fp16":
            assert result.measurement is not None
            parts = result.measurement.processes
            rates = [result.flops / p.median_s / 1e12 for p in parts]
            said = f"ran at {min(rates):.1f} to {max(rates):.1f} TFLOP/s in eight processes"
            assert len(parts) == 8
            assert said in METHOD


def test_the_overhead_of_events_is_the_run_files_own() -> None:
    found = [
        result.measurement.timer_overhead_s
        for path in sorted(H200.glob("*.json"))
        if b'"schema_version"' in path.read_bytes()[:200]
        for result in read_run(path).results
        if result.measurement and result.measurement.timer == "events"
    ]
    said = f"{1e6 * min(found):.1f} to {1e6 * max(found):.1f} µs in the published files"
    assert said in METHOD


def test_the_timer_s_agreement_is_the_file_s_own() -> None:
    timer = json.loads((H200 / "timer-vs-ncu.json").read_text(encoding="utf-8"))
    rows = timer["rows"]
    assert f"Nsight Compute: {timer['within_target']} of {len(rows)} cases" in METHOD
    off = {
        row["case"]: row["ours_s"] / row["ncu_s"] - 1 for row in rows if not row["within_target"]
    }
    named = {(case.split("/")[4], int(case.split("m=")[1].split(",")[0])) for case in off}
    assert named == {("fp32", 256), ("fp32", 512), ("fp32", 2048), ("tf32", 1024)}
    least, most = (-100 * change for change in (max(off.values()), min(off.values())))
    assert f"halfway reads {least:.1f} to {most:.0f} % less" in METHOD
    fp16 = [row for row in rows if "/fp16/" in row["case"]]
    assert len(fp16) == 12
    assert all(row["within_target"] for row in fp16)
    more_us = [
        1e6 * (row["ours_s"] - row["ncu_s"])
        for row in fp16
        if row["case"].endswith("triton") and row["ncu_s"] < 2e-5
    ]
    assert f"read {min(more_us):.1f} to {max(more_us):.1f} µs more than the profiler" in METHOD


def test_how_wide_intervals_are_is_the_run_files_own() -> None:
    halves: dict[str | None, list[float]] = {"gpu": [], "host": []}
    for name in ("train-others", "wrn-generated", "cifar-vgg16"):
        for training in read_run(H200 / f"{name}.json").of(Training):
            assert training.steps is not None
            assert training.steps.ci95_s is not None
            half = half_width_pct(training.steps.median_s, training.steps.ci95_s)
            halves[training.limit].append(half)
    host = halves["host"]
    assert f"±{min(host):.0f} to {max(host):.0f} % in the published" in METHOD
    assert f"at most ±{max(halves['gpu']):.1f} % with the GPU" in METHOD


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_from_and_to_notes_are_whole(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)\s#]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
    for path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        if "notes" not in (page.parent.name, target.parent.name):
            continue
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The names by which GitHub links to a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_ceilings_are_the_run_file_s_own() -> None:
    found = {one.case.key: one for one in read_run(H200 / "ceilings.json").of(CeilingResult)}
    nominal = [one.nominal_pct or 0.0 for one in found.values() if one.case.name == "wgmma"]
    assert len(nominal) == 7
    assert 96 <= min(nominal) <= max(nominal) <= 100  # the target, and what cannot be exceeded
    assert f"wgmma reaches {min(nominal):.0f} % of its nominal rate" in METHOD
    read = next(one for one in found.values() if one.case.name == "DRAM read")
    assert f"reading DRAM {(read.byte_per_s or 0) / 1e12:.2f} TB/s" in METHOD
