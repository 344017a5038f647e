"""What docs/results.md claims is what the committed run files say; links of README and docs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest

from kernels import size_of
from microbench.libraries import beside, summaries
from microbench.report.export import to_markdown
from microbench.report.summary_table import rivals_table
from microbench.report.table import markdown
from microbench.results.runfile import read_run
from microbench.verdict import verdict

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
H200 = ROOT / "results" / "nvidia-h200"
RESULTS = "\n".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("results.md", "notes/result-tables.md")
)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
RUN_FILES = sorted(ROOT.glob("results/*/gemm-*.json"))


def test_the_table_is_the_run_file_s() -> None:
    assert to_markdown(read_run(H200 / "gemm-fp16.json")) in RESULTS


def test_the_verdict_is_the_run_file_s() -> None:
    for line in verdict(read_run(H200 / "gemm-fp16.json")):
        assert line.strip() in RESULTS


@pytest.mark.parametrize(
    "path", [H200 / "gemm-triton.json", H200 / "gemm-alignment.json"],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)  # fmt: skip
def test_the_triton_tables_are_the_run_files_own(path: Path) -> None:
    assert markdown(rivals_table(read_run(path))) in RESULTS


def test_what_is_said_of_triton_is_the_run_file_s() -> None:
    run = read_run(H200 / "gemm-triton.json")
    by = {(r.case.backend, r.case.precision_name, r.case.dim("m")): r for r in run.results}
    tiles = {m: " ".join(by["cublas", "fp16", m].kernels) for m in (1536, 3072)}
    assert "144x128" in tiles[1536]
    assert "192x192" in tiles[3072]
    doubling = [256 * 2**i for i in range(6)]

    def mean(precision: str, library: str | None) -> str:
        """Over the doubling sizes; None: against the better library."""
        rows = [by["triton", precision, m] for m in doubling]
        better = [found.ratio.ratio for row in rows if (found := beside(row))]
        some = [row.vs_backend[library].ratio for row in rows] if library else better
        assert len(some) == len(doubling)
        return f"{geometric_mean(some):.3f}"

    assert f"Over 256 to 8192 alone the FP16 mean is {mean('fp16', None)}." in RESULTS
    last = by["triton", "int8", 4096].vs_backend["cublaslt"].ratio
    assert f"over 256 to 8192 is {mean('int8', 'cublas')}; against" in RESULTS
    assert f"it is {mean('int8', 'cublaslt')}, and {last:.2f} at 4096" in RESULTS
    (fp16,) = (found for found in summaries(run) if found.precision == "fp16")
    assert fp16.tuned
    assert f"reach {fp16.mean:.3f} times the speed of the better of" in README
    least = f"least {fp16.least.ratio.ratio:.2f} at {size_of(fp16.least.result.case)}"
    assert f"geometric mean of {len(fp16.rows)} tuned sizes from 256 to 8192, {least}" in README


def test_the_sizes_of_the_triton_table_are_tuned_ones() -> None:
    tuned = json.loads((ROOT / "kernels/gemm/tuned/nvidia-h200.json").read_text())
    for name in ("fp16", "bf16", "fp8-e4m3", "tf32", "int8"):
        for size in (*(256 * 2**i for i in range(6)), 1536, 3072):
            assert f"{size}x{size}x{size}" in tuned[name]["nt"]


def planted_rows(change: str) -> list[dict[str, Any]]:
    """The cases of the kernel that does more work."""
    rows = json.loads((H200 / "compare-power.json").read_text())["rows"]
    found = [row for row in rows if row["change"] == change]
    assert round(1e6 * min(row["median_s"] for row in found)) == 13
    return found


def slow_down(rows: list[dict[str, Any]]) -> str:
    by_pct = [row["slower_by_pct"] for row in rows]
    return f"{min(by_pct):.1f} to {max(by_pct):.1f} %"


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_published_run_is_whole_and_physical(path: Path) -> None:
    run = read_run(path)
    assert run.finished_at is not None
    for result in run.results:
        if result.status == "ok":
            assert result.rel_error is not None
            assert result.rel_error <= result.case.precision.rel_tolerance
            assert 0 < result.efficiency_pct.get("at_clock", 1) <= 105
        else:
            assert result.reason


def test_every_published_file_is_listed_with_its_command() -> None:
    text = (ROOT / "results" / "README.md").read_text()
    for path in ROOT.glob("results/*/**/*.json"):
        name = path.relative_to(ROOT / "results").parts[1:]
        if name[0] == "studies":
            name = name[:2]
        assert f"| {'/'.join(name)} |" in text, path


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_slug(heading) for heading in headings}, link


def _slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_readme_fits_its_screen_and_quotes_the_checks_of_the_method() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1000
    timer, same, compared, planted = (
        json.loads((H200 / f"{name}.json").read_text())
        for name in ("timer-vs-ncu", "aa", "compare-aa", "selftest")
    )
    assert f"{timer['within_target']} of {len(timer['rows'])} cases" in README
    assert f"{same['tries']} times" in README
    assert f"contained 1 in {same['holding_1']}" in README
    false = compared["faster"] + compared["slower"]
    assert f"in {['one', 'two', 'three'][compared['processes'] - 1]} processes" in README
    assert f"{100 * false / compared['pairs']:.2f} % of {compared['pairs']:,} pairs" in README
    rows = planted_rows("plus5")
    assert all(row["slower"] == row["pairs"] for row in rows)
    assert f"all slow-downs of {slow_down(rows)} that we planted, from 13 µs up" in README
    assert planted["right"] == planted["counted"]
    assert f"Of {planted['counted']} planted conditions, {planted['right']} were" in README


def test_what_the_example_kernels_reach_is_the_run_files_own() -> None:
    text = " ".join((ROOT / "docs" / "own-kernels.md").read_text(encoding="utf-8").split())
    missing = "cublaslt was not measured"
    for name, rival, absent, said in (
        ("own-gemm", "cublas", missing, "GEMM is {} times as fast as cuBLAS in FP16"),
        ("own-conv", "cudnn", "", "the convolution {} times as fast as cuDNN, the only library"),
    ):
        found, *_ = summaries(read_run(H200 / f"{name}.json"))
        assert (found.precision, found.libraries, found.not_measured) == ("fp16", [rival], absent)
        assert said.format(f"{found.mean:.2f}") in text
