"""What README and docs claim is what the committed run files say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import geometric_mean

import pytest

from microbench.report.export import to_markdown
from microbench.results.runfile import read_run
from microbench.verdict import verdict

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "nvidia-h200"
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN_FILES = sorted(ROOT.glob("results/*/gemm-*.json"))


def test_the_table_is_the_run_file_s() -> None:
    assert to_markdown(read_run(H200 / "gemm-fp16.json")) in README


def test_the_verdict_is_the_run_file_s() -> None:
    for line in verdict(read_run(H200 / "gemm-fp16.json")):
        assert line.strip() in README


def test_the_triton_ratios_are_the_run_file_s() -> None:
    run = read_run(H200 / "gemm-triton.json")
    doubling = {256 * 2**i for i in range(6)}
    for name, rival in (("fp16", "cublas"), ("bf16", "cublas"), ("fp8-e4m3", "cublaslt"),
                        ("tf32", "cublas"), ("int8", "cublas")):  # fmt: skip
        ratios = [
            r.vs_backend[rival].ratio
            for r in run.results
            if (r.case.backend, r.case.precision_name) == ("triton", name)
            and r.case.dim("m") in doubling
        ]
        assert len(ratios) == len(doubling)
        row = f"| {name} | {rival} | {geometric_mean(ratios):.3f} | {min(ratios):.3f} |"
        assert row in README, row


def test_the_checks_of_the_method_are_the_files_own() -> None:
    timer = json.loads((H200 / "timer-vs-ncu.json").read_text())
    assert f"{timer['within_target']} of {len(timer['rows'])}" in README
    same = json.loads((H200 / "aa.json").read_text())
    assert f"{same['holding_1']} of {same['tries']}" in README
    compared = json.loads((H200 / "compare-aa.json").read_text())
    counts = compared["counts"]
    assert f"{counts['same']} same, {counts['cannot tell']} cannot tell" in README
    assert counts["faster"] == counts["slower"] == 0


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
        assert f"| {'/'.join(name)} |" in text, path


def test_the_readme_names_only_files_that_exist() -> None:
    texts = [README, *(path.read_text() for path in (ROOT / "docs").glob("*.md"))]
    for text in texts:
        for name in re.findall(
            r"\]\((?:\.\./)?((?:results|docs|kernels|microbench)/[^)#]+)\)", text
        ):
            assert (ROOT / name).exists(), name
