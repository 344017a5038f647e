"""docs/method.md has the figures of the checks of the method; notes and links to them are whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from e2e.results.types import Training
from microbench.results.runfile import read_run
from microbench.timing.stats import half_width_pct

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "nvidia-h200"
PAGE = ROOT / "docs" / "method.md"
METHOD = " ".join(PAGE.read_text(encoding="utf-8").split())
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
    compared = checked("compare-aa")
    counts = compared["counts"]
    assert isinstance(counts, dict)
    said = f"gave {counts['same']} same, {counts['cannot tell']} cannot tell, none faster or slower"
    assert said in METHOD
    assert counts["faster"] == counts["slower"] == 0
    assert f"beyond {compared['noise_pct']:.0f} %" in METHOD


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
