"""The verdict: from planted speed-ups, which sizes and ratios it names, and what it leaves open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from statistics import geometric_mean

import pytest
from samples.measuring import timed

from kernels.case import Case
from kernels.gemm import Gemm
from kernels.tune import HOW, Choice
from microbench.report.console import choices
from microbench.report.run_table import rivals_table
from microbench.results.types import Ratio, Result, Run
from microbench.verdict import asked_for, beside, libraries_beside_own, sentence, summaries, verdict

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


def numbers(line: str) -> list[float]:
    """But for those in names of precisions."""
    plain = re.sub(r"[a-z]+\d+|95 %", "", line)
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", plain)]


@pytest.mark.parametrize(
    ("gains", "lines"),
    [
        ((2, 3, 5, 4), [[2, 100, 5, 300]]),  # everywhere: the first size and the best
        ((2, 2, 2), [[2, 100]]),  # of which the first is as good as any
        ((0.5, 0.25, 0.2, 0.4, 0.8, 2, 3),  # below the break-even the last three
         [[600, 2, 600, 3, 700], [300, 5], [400, 2.5], [500, 1.25]]),
        ((0.5, 0.8, 0.25, 0.2, 0.1), [[1.25, 200], [300, 4], [400, 5], [500, 10]]),  # the closest
        ((2, 0.5, 4, 0.25), [[100, 2, 300, 4], [200, 2], [400, 4]]),  # at some sizes
    ],
)  # fmt: skip
def test_the_sizes_and_ratios_that_decide_are_named(
    gains: tuple[float, ...], lines: list[list[float]]
) -> None:
    rows = [result(size, gain=gain) for size, gain in zip(SIZES, gains, strict=False)]
    assert lines_of(*rows) == lines


def test_sizes_that_are_faster_below_it_are_named_up_to_six() -> None:
    for count, more in ((5, []), (6, []), (7, [1])):
        gains = [1.5] * count + [0.5, 2]
        rows = [result(size, gain=gain) for size, gain in zip(SIZES, gains, strict=False)]
        first, also, below = lines_of(*rows)
        assert first == [100 * (count + 2), 2, 100 * (count + 2)]
        named = [number for size in SIZES[: min(count, 6)] for number in (size, 1.5)]
        assert also == [*named, *more]
        assert below == [100 * (count + 1), 2]


@pytest.mark.parametrize(("count", "more"), [(1, []), (6, []), (8, [2])])
def test_sizes_that_were_not_measured(count: int, more: list[float]) -> None:
    missing = [
        replace(result(size), status="skipped", reason="no room", measurement=None)
        for size in SIZES[:count]
    ]
    rows = [result(900, "fp32"), result(900, gain=2.0), *missing]
    assert numbers(verdict(run_of(*rows))[1]) == [*SIZES[: min(count, 6)], *more]


def test_own_kernels_stand_beside_the_library() -> None:
    rows = [result(size, backend="my:own", beside=gain) for size, gain in ((100, 0.5), (200, 2.0))]
    library = [result(size) for size in (100, 200)]
    run = run_of(*library, *rows)
    assert libraries_beside_own(run) == ["cublas"]
    assert libraries_beside_own(run_of(*library)) == []
    (found,) = summaries(run)
    assert (found.mean, found.least.result, found.most.result) == (pytest.approx(1), *rows)
    first = next(line for line in verdict(run) if line.startswith("my:own"))
    assert numbers(first) == [1.0, 2, 0.5, 100, 2, 200]
    alone = next(line for line in verdict(run_of(library[0], rows[0])) if line.startswith("my:"))
    assert numbers(alone) == [0.5, 1, 100]  # of 1 size


def test_what_was_asked_for_is_all_but_the_baselines() -> None:
    kinds = {name: result(100, name) for name in ("fp32", "tf32", "fp16", "bf16")}
    assert asked_for(run_of(*kinds.values())) == ["fp16", "bf16"]
    assert asked_for(run_of(kinds["fp32"], kinds["tf32"])) == ["tf32"]
    assert asked_for(run_of(kinds["fp32"])) == []


def test_the_price_is_of_the_largest_size_that_both_have() -> None:
    rows = [result(size, gain=2.0, error=size * 1e-6) for size in (100, 200, 300)]
    bases = [result(size, "fp32", error=size * 1e-9) for size in (200, 100)]
    last = verdict(run_of(*bases, *rows))[-1]
    assert [float(found) for found in re.findall(r"\d\.\de-\d+", last)] == [2e-4, 2e-7]
    without = verdict(run_of(*(replace(base, total_error=None) for base in bases), *rows))
    assert not re.search(r"e-\d", "\n".join(without))


def said(*rows: Result) -> list[str]:
    """Beside a result of fp32 of each size."""
    bases = [result(int(row.case.problem.dims["m"]), "fp32") for row in rows]
    return verdict(run_of(*bases, *rows))


def lines_of(*rows: Result) -> list[list[float]]:
    return [numbers(line) for line in said(*rows)]


def with_interval(size: int, ratio: float, *ends: float) -> Result:
    interval = (ends[0], ends[1]) if ends else None
    return replace(result(size), speedup={"fp32": Ratio(ratio, interval)})


@pytest.mark.parametrize(
    ("ratios", "lines"),
    [
        # The best is the one that is surely faster.
        ([(2, 1.9, 2.1), (3, 2.9, 3.1), (3.1, 2.4, 4)], [[2, 100, 3, 200]]),
        # A difference as small as noise is shown with its interval.
        ([(1.25, 1.01, 1.5)], [[1.25, 1.01, 1.5, 100], [100, 1.25, 1.01, 1.5]]),
        ([(0.5, 0.4, 0.6)], [[2, 100], [100, 2]]),
        # One round at the largest size leaves it open, and at another size it claims nothing.
        ([(0.5, 0.4, 0.6), (4.0,)], [[4, 200]]),
        ([(0.8,), (0.5, 0.4, 0.6)], [[1.25, 100]]),
    ],
)
def test_intervals_decide_what_is_said(
    ratios: list[tuple[float, ...]], lines: list[list[float]]
) -> None:
    rows = [with_interval(size, *ratio) for size, ratio in zip(SIZES, ratios, strict=False)]
    found = lines_of(*rows)
    assert found[: len(lines)] == lines


@pytest.mark.parametrize("largest", [True, False])
def test_a_ruined_interval_that_a_verdict_rests_on_takes_its_place(largest: bool) -> None:
    """Three sentences; without it, or where it is far below the break-even, nothing changes."""
    known = [with_interval(100, 0.5, 0.49, 0.51), with_interval(200, 2, 1.9, 2.1),
             with_interval(300, 3, 2.9, 3.1)]  # fmt: skip
    first = said(*known)[0]
    assert first.startswith("fp16 is faster than fp32 from 200 up")
    size, ratio = (300, (12.0, 5.0, 64.0)) if largest else (100, (0.5, 0.1, 2.5))
    rows = [with_interval(size, *ratio) if r.case.problem.dims["m"] == size else r for r in known]
    what, reason, remedy, *more = said(*rows)
    assert what.startswith("No verdict on fp16 against fp32")
    assert f"±{433 if largest else 400} %" in what
    assert (reason[:6], remedy[:4], more) == ("Likely", "Try:", [])
    below = said(with_interval(50, 5.0, 1.0, 25.0), *known)
    assert below[0] == first
    assert not any("at 50" in line for line in below)


def test_without_an_interval_nothing_is_claimed_and_without_a_baseline_the_highest_rate() -> None:
    first, *_ = said(*(with_interval(size, 12.0) for size in (100, 200)))
    assert first.startswith("Unknown")
    assert "--budget" in first
    first, *_ = verdict(run_of(result(100), replace(result(200), flops=10**9)))
    assert re.fullmatch(r"fp16: at most \S+ [GT]FLOP/s, at 200 nt by cublas\.", first)


@pytest.mark.parametrize("near", [(1.03, 0.98, 1.08), (1.001, 0.98, 1.02), (0.9999, 0.99, 1.01)])
def test_an_interval_that_holds_one_is_no_difference(near: tuple[float, float, float]) -> None:
    first, below = said(with_interval(100, *near), result(200, gain=2.0))
    assert "from 200" in first
    assert "no difference" in below
    assert "slower" not in below


@pytest.mark.parametrize(("other", "gain"), [("cublas", 2.0), ("cupy", 4.0)])
def test_the_librarys_arm_decides_not_the_fastest_but_where_there_is_none(
    other: str, gain: float
) -> None:
    rows = [result(100, gain=2.0, backend=other, seconds=2e-3),
            result(100, gain=4.0, backend="triton")]  # fmt: skip
    for order in (rows, rows[::-1]):
        assert numbers(verdict(run_of(*order))[0]) == [gain, 100]


def test_every_precision_and_baseline_has_its_sentence_or_a_reason() -> None:
    both = replace(
        result(100), speedup={"fp32": Ratio(10.0, (9, 11)), "tf32": Ratio(0.8, (0.7, 0.9))}
    )
    lost = replace(result(100, "int8"), status="skipped", reason="no int8 here", measurement=None)
    lines = "\n".join(verdict(run_of(both, result(100, "bf16", 2.0), lost)))
    for claim in ("fp16 is faster than fp32", "fp16 is not faster than tf32",
                  "bf16 is faster than fp32", "int8: no verdict (no int8 here)"):  # fmt: skip
        assert claim in lines
    assert "tf32 is faster" in verdict(run_of(result(100, "fp32"), result(100, "tf32", 7.0)))[0]
    assert verdict(run_of()) == []


# ---------------------------------------------------------------- libraries


LABEL = "tma/64x128x128/s4/w4/g8"


def gemm(size: int, ratios: Mapping[str, float], backend: str = "triton", **more: object) -> Result:
    case = Case(Gemm(size, size, size), "fp16", backend)
    beside = {name: Ratio(ratio, None) for name, ratio in ratios.items()}
    return replace(Result(case, "ok", vs_backend=beside, variant=LABEL), **more)


def test_the_better_library_is_chosen_size_by_size() -> None:
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
    assert beside(gemm(512, {"my:gemm": 2.0})) is None, "no library"


def test_each_back_end_has_a_line() -> None:
    run = run_of(
        gemm(1100, {"cublas": 0.5, "cublaslt": 0.6}),
        gemm(1024, {"cublas": 1.0, "cublaslt": 1.0}, tuned=True),
        gemm(300, {"cublas": 0.4}, "my:gemm"),
    )
    backends = [(found.backend, len(found.rows)) for found in summaries(run)]
    assert backends == [("triton", 2), ("my:gemm", 1)]
    lines = [line for line in verdict(run) if "times as fast" in line]
    assert lines == [sentence(found) for found in summaries(run)]
    assert "geometric mean of 2 sizes" in lines[0]
    assert "(1 size, 300); cublaslt was not measured" in lines[1]
    assert len(rivals_table(run).items) == 2


@pytest.mark.parametrize("choice", [*(Choice(how) for how in HOW), Choice("quick-tuned", 6)])
def test_how_a_configuration_was_chosen_is_said(choice: Choice) -> None:
    chosen = choices(run_of(gemm(1100, {}, choice=choice), gemm(1024, {}, choice=choice)))
    assert choice.how in chosen
    assert "1100, 1024" in chosen
    assert ("6 candidates" in chosen) == (choice.candidates == 6)


def test_what_else_is_summed_up_apart_is_named() -> None:
    run = run_of(gemm(512, {"cublas": 1.0}), gemm(256, {"cublas": 3.0}))
    apart = summaries(run, lambda result: f"k={result.case.problem.dims['k']}")
    assert ["k=512" in sentence(found) for found in apart] == [True, False]
    assert [found.mean for found in apart] == pytest.approx([1.0, 3.0])
