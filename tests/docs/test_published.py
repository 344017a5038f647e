"""Published run files are whole, possible, and explained as this version explains them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples.pages import ROOT, text

from e2e.results.types import Training
from kernels import OPS
from microbench.results.runfile import read_run
from microbench.roofline.explain import annotate

RUNS = [
    path
    for path in sorted(ROOT.glob("results/*/**/*.json"))
    if b'"schema_version"' in path.read_bytes()[:200]
]
KERNELS = [path for path in RUNS if path.name.startswith(("gemm-", "conv-", "payoff-", "layers-"))]
EXPLAINED = ["conv-fp16", "payoff-conv", "layers-resnet50", "gemm-fp16", "gemm-all"]


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_kernels_are_right_and_possible(path: Path) -> None:
    found = read_run(path)
    assert found.finished_at
    for result in found.results:
        case, op = result.case, OPS[result.case.op]
        if result.status != "ok":
            assert result.reason
            continue
        assert (result.flops, result.min_bytes) == (op.flops(case), op.min_bytes(case))
        assert 0 <= (result.rel_error or 0) <= op.tolerance(case)
        assert 0 < result.efficiency_pct.get("at_clock", 1) <= 105 or case.op == "conv"
        assert (result.byte_per_s or 0) < 8e12
        assert (result.ceiling_pct or 0) <= 105 or case.precision_name in ("fp32", "tf32")


@pytest.mark.parametrize("name", EXPLAINED)
def test_kernels_are_explained_as_this_version_does(name: str) -> None:
    found = read_run(ROOT / f"results/nvidia-h200/{name}.json")
    assert annotate(found).results == found.results


def test_trainings_are_whole_and_possible() -> None:
    found = 0
    for path in RUNS:
        if not any(r.get("op") == "train" for r in json.loads(path.read_text())["results"]):
            continue
        run = read_run(path)
        rows = [line for line in text("results/README").splitlines() if f"{path.name} |" in line]
        assert run.finished_at is not None or any("Unfinished" in row for row in rows), path
        for training in run.of(Training):
            found += 1
            if training.status != "ok":
                assert training.reason
                continue
            steps = training.steps
            assert steps
            assert sum(steps.times_s) <= 1.001 * steps.wall_s, path
            assert (steps.busy_s or 0) <= 1.05 * steps.median_s, path
            low, high = steps.ci95_s or (steps.median_s, steps.median_s)
            assert low <= steps.median_s <= high
    assert found > 300
