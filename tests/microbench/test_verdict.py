"""The answer: from planted speed-ups, which sizes and ratios it names, and what it leaves open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pytest
from samples.measuring import timed

from kernels.attention import Attention
from kernels.case import Case
from kernels.gemm import Gemm
from kernels.problem import Problem
from kernels.tune import HOW, Choice
from microbench.report.kernels import by_eights, means_of, report
from microbench.report.writers import to_markdown
from microbench.results.runfile import read_run
from microbench.results.types import Ratio, Result, Run
from microbench.verdict import asked_for, beside_library, libraries_beside_own, payoffs, summaries

H200 = Path(__file__).parents[2] / "results" / "nvidia-h200"
SIZES = tuple(100 * i for i in range(1, 10))


def result(
    size: int, precision: str = "fp16", gain: float | None = None, backend: str = "cublas",
    beside: float | None = None, error: float | None = None, seconds: float = 1e-3,
) -> Result:  # fmt: skip
    def ratio(value: float) -> Ratio:
        return Ratio(value, (0.999 * value, 1.001 * value))

    return Result(
        Case(Gemm(size, size, size), precision, backend),
        "ok",
        measurement=timed(seconds),
        flops=2 * size**3,
        speedup={} if gain is None else {"fp32": ratio(gain)},
        vs_backend={} if beside is None else {"cublas": ratio(beside)},
        total_error=error,
    )


def run_of(*results: Result) -> Run:
    return Run(("x",), "now", {"name": "x", "kind": "cuda"}, {}, results=results)


def lines(run: Run, label: str = "") -> list[str]:
    found = report(run)
    assert found
    return [line.text for line in found.answer if line.label == label]


def said(*rows: Result, label: str = "") -> list[str]:
    """BesideLibrary a result of fp32 of each size."""
    bases = [result(int(row.case.problem.dims["m"]), "fp32") for row in rows]
    return lines(run_of(*bases, *rows), label)


@pytest.mark.parametrize(
    ("gains", "times", "where"),
    [
        ((2, 3, 5, 4), "2.00 to 5.00", "x, GEMM"),  # everywhere: the least and the most
        ((1.1, 3, 2), "1.10 to 3.00", "x, GEMM"),
        ((0.5, 0.25, 0.2, 0.4, 0.8, 2, 3), "0.20 to 3.00", "faster from 600 up"),
        ((0.5, 0.8, 0.25, 0.2, 0.1), "0.10 to 0.80", "faster at no size"),
        ((2, 0.5, 4, 0.25), "0.25 to 4.00", "faster at 100, 300"),
        ((2, 2, 2, 2, 2, 0.5), "0.50 to 2.00", "faster at 5 of 6 sizes"),
    ],
)
def test_the_range_is_of_all_sizes_and_where_it_is_faster_is_said(
    gains: tuple[float, ...], times: str, where: str
) -> None:
    rows = [result(size, gain=gain) for size, gain in zip(SIZES, gains, strict=False)]
    assert said(*rows)[0].startswith(f"fp16 is {times} times as fast as fp32 ({where}")


def test_own_kernels_stand_beside_the_library_and_cases_not_measured_are_doubted() -> None:
    missing = [
        replace(result(size), status="skipped", reason="no room", measurement=None)
        for size in SIZES[:3]
    ]
    rows = [result(900, "fp32"), result(900, gain=2.0), *missing]
    assert "not measured in 3 of 5 cases: no room" in lines(run_of(*rows), "Doubt")[0]
    rows = [result(size, backend="my:own", beside=gain) for size, gain in ((100, 0.5), (200, 2.0))]
    library = [result(size) for size in (100, 200)]
    run = run_of(*library, *rows)
    assert libraries_beside_own(run) == ["cublas"]
    assert libraries_beside_own(run_of(*library)) == []
    (found,) = summaries(run)
    assert (found.mean, found.least.result, found.most.result) == (pytest.approx(1), *rows)
    first = lines(run)[0]
    assert first.startswith("my:own is 1.00 times as fast as cublas in fp16")
    assert "2 sizes: 0.50 at 100 to 2.00 at 200" in first
    alone = lines(run_of(library[0], rows[0]))[0]
    assert alone.startswith("my:own is 0.50 ±0.01 times as fast as cublas in fp16 at 100")


def test_what_was_asked_for_is_all_but_the_baselines_and_its_price_the_largest_size_s() -> None:
    kinds = {name: result(100, name) for name in ("fp32", "tf32", "fp16", "bf16")}
    assert asked_for(run_of(*kinds.values())) == ["fp16", "bf16"]
    assert asked_for(run_of(kinds["fp32"], kinds["tf32"])) == ["tf32"]
    assert asked_for(run_of(kinds["fp32"])) == []
    rows = [result(size, gain=2.0, error=size * 1e-6) for size in (100, 200, 300)]
    bases = [result(size, "fp32", error=size * 1e-9) for size in (200, 100)]
    (do,) = lines(run_of(*bases, *rows), "Do")
    assert do == "use fp16 at every size; error 2.0e-04, 2.0e-07 in fp32 (200)"
    without = lines(run_of(*(replace(base, total_error=None) for base in bases), *rows), "Do")
    assert without == ["use fp16 at every size"]


def with_interval(size: int, ratio: float, *ends: float) -> Result:
    interval = (ends[0], ends[1]) if ends else None
    return replace(result(size), speedup={"fp32": Ratio(ratio, interval)})


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([(2, 1.9, 2.1), (3, 2.9, 3.1), (3.1, 2.4, 4)], "is 2.00 to 3.10 times as fast as fp32 (x"),
        # A difference as small as noise is no gain.
        ([(1.25, 1.01, 1.5)], "is 1.25 ±0.25 times as fast as fp32 (faster at no size"),
        ([(0.5, 0.4, 0.6)], "is 0.50 ±0.10 times as fast as fp32 (faster at no size"),
        # One round at the largest size leaves it open, and at another size it claims nothing.
        ([(0.5, 0.4, 0.6), (4.0,)], "perhaps 0.50 to 4.00 times as fast as fp32 (unknown"),
        ([(0.8,), (0.5, 0.4, 0.6)], "is 0.50 to 0.80 times as fast as fp32 (faster at no size"),
        # An interval that holds 1 is no difference.
        ([(1.03, 0.98, 1.08), (2, 1.9, 2.1)], "(faster from 200 up"),
    ],
)
def test_intervals_decide_what_is_said(ratios: list[tuple[float, ...]], words: str) -> None:
    rows = [with_interval(size, *ratio) for size, ratio in zip(SIZES, ratios, strict=False)]
    assert words in said(*rows)[0]


@pytest.mark.parametrize("largest", [True, False])
def test_a_ruined_interval_that_a_verdict_rests_on_takes_its_place(largest: bool) -> None:
    """Three lines; without it, or where it is far below the break-even, nothing changes."""
    known = [with_interval(100, 0.5, 0.49, 0.51), with_interval(200, 2, 1.9, 2.1),
             with_interval(300, 3, 2.9, 3.1)]  # fmt: skip
    assert "0.50 to 3.00 times as fast as fp32 (faster from 200 up" in said(*known)[0]
    size, ratio = (300, (12.0, 5.0, 64.0)) if largest else (100, (0.5, 0.1, 2.5))
    rows = [with_interval(size, *ratio) if r.case.problem.dims["m"] == size else r for r in known]
    half = 433 if largest else 400
    assert said(*rows) == [f"No verdict on fp16 against fp32: the widest interval is ±{half} %"]
    assert len(said(*rows, label="Why")) == len(said(*rows, label="Do")) == 1
    below = said(with_interval(50, 5.0, 1.0, 25.0), *known)[0]
    assert "0.50 to 3.00 times as fast as fp32 (faster from 200 up" in below


def test_without_a_baseline_the_highest_rate() -> None:
    first = lines(run_of(result(100), replace(result(200), flops=10**9)))[0]
    assert re.match(r"highest rate: fp16 \S+ [GT]FLOP/s at 200 nt by cublas", first)


@pytest.mark.parametrize(("other", "gain"), [("cublas", "2.00"), ("cupy", "4.00")])
def test_the_librarys_arm_decides_not_the_fastest_but_where_there_is_none(
    other: str, gain: str
) -> None:
    rows = [result(100, gain=2.0, backend=other, seconds=2e-3),
            result(100, gain=4.0, backend="triton")]  # fmt: skip
    for order in (rows, rows[::-1]):
        assert lines(run_of(*order))[0].startswith(f"fp16 is {gain} ±0.01 times as fast as fp32")


def test_the_fastest_has_the_largest_geometric_mean_over_sizes_that_all_have() -> None:
    """Its arithmetic mean is not the largest, and a size where a precision has none is no gain."""
    rows = [result(size, name, gain=gain) for name, gains in (
        ("int8", (1.5, 9.0)), ("fp16", (4.0, 5.0)), ("bf16", (3.0, 5.0)),
        ("fp8-e4m3", (3.9, 4.9, 90.0)),
    ) for size, gain in zip(SIZES, gains, strict=False)]  # fmt: skip
    for run in (run_of(*rows), read_run(H200 / "gemm-all.json")):
        means, first = means_of(run), lines(run)[0]
        assert first.startswith(f"{max(means, key=lambda name: means[name])}, on average the")
    assert "8 precisions (fp8-e4m3 within 2 %)" in first
    means = means_of(run_of(*rows))
    assert means["fp16"] == pytest.approx(20**0.5)
    assert means["fp8-e4m3"] == pytest.approx((3.9 * 4.9) ** 0.5)


def test_gains_at_multiples_of_8_are_no_range_and_the_first_asked_for_is_the_base() -> None:
    gains = {7: 0.5, 8: 2.0, 9: 0.5, 16: 3.0, 17: 0.5}
    run = run_of(*(result(size, gain=gain) for size, gain in gains.items()))
    (one,) = payoffs(run, "fp16")
    assert by_eights(one)
    assert not one.steady
    assert lines(run)[0].count("faster at 8, 16 and every multiple of 8")
    assert lines(run, "Do") == ["use fp16 at multiples of 8"]
    run = run_of(*(result(s, gain=g) for s, g in (gains | {24: 0.9}).items()))
    assert lines(run, "Do") == []
    times = {"bf16": 4e-3, "fp16": 1e-3}
    run = run_of(*(result(8, name, seconds=time) for name, time in times.items()))
    assert lines(run)[0].startswith("fp16 is 4.00 times as fast as bf16")


def test_one_call_is_held_against_what_it_picks_from_or_a_kernel_for_each_part() -> None:
    """Three lengths; at the shortest torch's pick is not the fastest."""

    def beside_it(problem: Problem, backend: str, variant: str, **others: float) -> Result:
        ratios = {name: Ratio(one, (0.99 * one, 1.01 * one)) for name, one in others.items()}
        case = Case(problem, "bf16", backend)
        return Result(case, "ok", measurement=timed(1e-3), variant=variant, vs_backend=ratios)

    found: list[Result] = []
    for length, picks, gain in ((512, "flash", 0.8), (1024, "cudnn", 1.0), (2048, "cudnn", 1.0)):
        problem = Attention(8, 16, 16, length, 64)
        found += [
            beside_it(problem, "torch", picks, cudnn=gain, flash=1.5, math=length / 100),
            *(beside_it(problem, name, name) for name in ("cudnn", "flash", "math")),
        ]
    assert lines(run_of(*found))[0] == (
        "torch picks cudnn in 2 of 3, flash in 1 of 3, 0.80 ±0.01 times as fast as cudnn, 5.12 to "
        "20.5 as math, 1.50 as flash; another is faster in 1 of 3 cases (cudnn at fprop causal "
        "16x64 @512 b8 in bf16; x, attention 512..2048, torch)"
    )
    assert lines(run_of(*found[4:]))[0].startswith(
        "torch picks cudnn, 1.50 times as fast as flash, 10.2 to 20.5 as math; no other is faster "
        "in any of 2 cases (x, attention 1024..2048, torch)"
    )
    wide = {name: Ratio(1.5, (0.5, 4.5)) for name in ("flash", "math")}
    doubtful = replace(found[-4], vs_backend=wide)
    assert lines(run_of(doubtful, *found[-3:]))[0] == "torch picks cudnn (x, attention 2048, torch)"
    skipped = [Result(r.case, "skipped", "no such card") for r in found]
    assert lines(run_of(*skipped)) == ["bf16 was not measured: no such card"]
    shown, *_ = report(run_of(*found)).shown()
    assert [column.title for column in shown.columns if column.title.startswith("x ")] == [
        "x cudnn", "x flash", "x math",
    ]  # fmt: skip
    groups, strided, one = (
        beside_it(Gemm(64, 64, 64, layout, batch), "cublas", call, separate=gain)
        for layout, batch, call, gain in (
            ("nt-skewed", 8, "grouped_mm", 1.1), ("nt-strided", 8, "bmm", 2.4),
            ("nt-gelu", 1, "addmm_activation", 1.0),
        )
    )  # fmt: skip
    apart = [beside_it(row.case.problem, "separate", "separate") for row in (groups, strided, one)]
    assert lines(run_of(groups, strided, one, *apart))[:3] == [
        "grouped_mm is 1.10 ±0.02 times as fast as a kernel for each group in bf16 "
        "(x, GEMM 8x64x64x64..64, cublas)",
        "bmm is 2.40 ±0.03 times as fast as a kernel for each product in bf16",
        "addmm_activation is ~1 ±0.01 times as fast as kernels for product, bias and GELU in bf16",
    ]


def test_every_precision_and_baseline_has_its_sentence_or_a_reason() -> None:
    both = replace(
        result(100), speedup={"fp32": Ratio(10.0, (9, 11)), "tf32": Ratio(0.8, (0.7, 0.9))}
    )
    lost = replace(result(100, "int8"), status="skipped", reason="no int8 here", measurement=None)
    text = "\n".join(lines(run_of(both, result(100, "bf16", 2.0), lost)))
    for claim in ("fp16 is 0.80 ±0.10 times as fast as tf32 (faster at no size), 10.0 ±1.0 as fp32",
                  "bf16 is 2.00 ±0.01 times as fast as fp32",
                  "int8 was not measured: no int8 here"):  # fmt: skip
        assert claim in text
    first = lines(run_of(result(100, "fp32"), result(100, "tf32", 7.0)))[0]
    assert first.startswith("tf32 is 7.00 ±0.01 times as fast as fp32")
    assert lines(run_of()) == ["No case was measured"]
    peaks = read_run(H200 / "ceilings.json")
    assert "measured: DRAM read 4.63, DRAM write 4.70" in "\n".join(lines(peaks))
    assert to_markdown(report(peaks)).count("https://") == 1


# ---------------------------------------------------------------- libraries


LABEL = "tma/64x128x128/s4/w4/g8"


def gemm(size: int, ratios: Mapping[str, float], backend: str = "triton", **more: object) -> Result:
    case = Case(Gemm(size, size, size), "fp16", backend)
    beside = {name: Ratio(ratio, None) for name, ratio in ratios.items()}
    return replace(Result(case, "ok", vs_backend=beside, variant=LABEL), **more)


def test_the_better_library_is_chosen_size_by_size_and_each_back_end_has_a_line() -> None:
    run = run_of(
        gemm(1024, {"cublas": 1.3, "cublaslt": 0.9}),
        gemm(2048, {"cublas": 0.8, "cublaslt": 1.4}, tuned=True),
        gemm(512, {"cublas": 1.1}, tuned=True),
    )
    (found,) = summaries(run)
    assert [row.library for row in found.rows] == ["cublaslt", "cublas", "cublas"]
    assert found.mean == pytest.approx(geometric_mean([0.9, 0.8, 1.1]))
    assert found.least.result.case.problem.dims["m"] == 2048
    assert found.not_measured == "cublaslt was not measured at 1"
    assert beside_library(gemm(512, {"my:gemm": 2.0})) is None, "no library"
    run = run_of(
        gemm(1100, {"cublas": 0.5, "cublaslt": 0.6}),
        gemm(1024, {"cublas": 1.0, "cublaslt": 1.0}, tuned=True),
        gemm(300, {"cublas": 0.4}, "my:gemm"),
    )
    backends = [(found.backend, len(found.rows)) for found in summaries(run)]
    assert backends == [("triton", 2), ("my:gemm", 1)]
    own, *_ = lines(run)
    assert own.startswith("my:gemm is 0.40 ±? times as fast as cublas in fp16 at 300")
    assert "cublaslt was not measured" in lines(run, "Doubt")[0]


@pytest.mark.parametrize("how", HOW)
def test_how_a_configuration_was_chosen_is_said(how: str) -> None:
    found = to_markdown(report(run_of(gemm(1100, {"cublas": 1.0}, choice=Choice(how)))))
    assert f"| {how} |" in found


def test_what_else_is_summed_up_apart_is_named() -> None:
    run = run_of(gemm(512, {"cublas": 1.0}), gemm(256, {"cublas": 3.0}))
    apart = summaries(run, lambda result: f"k={result.case.problem.dims['k']}")
    assert [found.which for found in apart] == ["k=512", "k=256"]
    assert [found.mean for found in apart] == pytest.approx([1.0, 3.0])
