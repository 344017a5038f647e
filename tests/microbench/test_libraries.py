"""Our kernels against the better of two libraries, tuned sizes and others apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import geometric_mean

import pytest

from kernels.case import Case
from kernels.tune import HOW, Choice
from microbench.libraries import beside, sentence, summaries
from microbench.report.notes import choices
from microbench.report.summary_table import rivals_table
from microbench.results.types import Ratio, Result, Run
from microbench.verdict import verdict

DEVICE = {"name": "NVIDIA H200", "kind": "cuda", "capability": "9.0", "sm_count": 132}
LISTED, NEAR = 1024, 1100
LABEL = "tma/64x128x128/s4/w4/g8"


def gemm(size: int, ratios: Mapping[str, float], backend: str = "triton", **more: object) -> Result:
    case = Case("gemm", {"m": size, "n": size, "k": size}, "fp16", backend)
    beside = {name: Ratio(ratio, None) for name, ratio in ratios.items()}
    return replace(Result(case, "ok", vs_backend=beside, variant=LABEL), **more)


def run_of(*results: Result, command: tuple[str, ...] = ("gemm",)) -> Run:
    return Run(command, "2026-11-24T00:00:00+00:00", DEVICE, {}, results=results)


def test_the_better_library_is_chosen_size_by_size() -> None:
    run = run_of(
        gemm(LISTED, {"cublas": 1.3, "cublaslt": 0.9}, tuned=True),
        gemm(2048, {"cublas": 0.8, "cublaslt": 1.4}, tuned=True),
        gemm(512, {"cublas": 1.1}, tuned=True),
    )
    (found,) = summaries(run)
    assert [row.library for row in found.rows] == ["cublaslt", "cublas", "cublas"]
    assert found.mean == pytest.approx(geometric_mean([0.9, 0.8, 1.1]))
    assert found.least.result.case.dim("m") == 2048
    assert found.not_measured == "cublaslt was not measured at 1"
    assert beside(gemm(512, {"my:gemm": 2.0})) is None, "no library"


def test_tuned_sizes_and_others_are_two_lines() -> None:
    both = {"cublas": 1.0, "cublaslt": 1.0}
    run = run_of(
        gemm(NEAR, {"cublas": 0.5, "cublaslt": 0.6}, tuned=False),
        gemm(LISTED, both, tuned=True),
        gemm(1200, {"cublas": 0.55, "cublaslt": 0.7}, tuned=False),
        gemm(300, {"cublas": 0.4}, "my:gemm"),
    )
    said = [(f.backend, f.tuned, len(f.rows)) for f in summaries(run)]
    assert said == [("triton", True, 1), ("triton", False, 2), ("my:gemm", None, 1)]
    lines = [line for line in verdict(run) if "times as fast" in line]
    assert lines == [sentence(found) for found in summaries(run)]
    for line, words in zip(
        lines, ("1 tuned size", "2 sizes that were not tuned", "cublaslt was not measured"),
        strict=True,
    ):  # fmt: skip
        assert words in line
    assert len(rivals_table(run).items) == 3


def test_of_a_file_without_the_field_it_is_not_known() -> None:
    (found,) = summaries(run_of(gemm(LISTED, {"cublas": 1.0})))
    assert "not known whether tuned" in found.count()


@pytest.mark.parametrize("choice", [*(Choice(how) for how in HOW), Choice("quick-tuned", 6)])
def test_how_a_configuration_was_chosen_is_said(choice: Choice) -> None:
    said = choices(run_of(gemm(NEAR, {}, choice=choice), gemm(LISTED, {}, choice=choice)))
    assert choice.how in said
    assert f"{NEAR}, {LISTED}" in said
    assert ("6 candidates" in said) == (choice.candidates == 6)


def test_only_what_is_tuned_is_said_to_be_or_not() -> None:
    (found,) = summaries(run_of(gemm(512, {"cublas": 1.0}, "my:gemm")))
    assert found.count() == "1 size"
    for sizes, verb in (((NEAR,), "was"), ((NEAR, 1200), "were")):
        own = [gemm(size, {"cublas": 1.0}, tuned=False) for size in sizes]
        (found,) = summaries(run_of(*own))
        assert verb in found.count().split()


def test_what_else_is_summed_up_apart_is_named() -> None:
    run = run_of(gemm(512, {"cublas": 1.0}), gemm(256, {"cublas": 3.0}))
    apart = summaries(run, lambda result: f"k={result.case.dim('k')}")
    assert ["k=512" in sentence(found) for found in apart] == [True, False]
    assert [found.mean for found in apart] == pytest.approx([1.0, 3.0])
