"""What reports of kernels say of planted speed-ups: as committed, and properties of any run."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pytest
from rich.cells import cell_len
from rich.text import Text
from samples.kernel_runs import case, h200_run, measured, shown, with_speedups
from samples.kernel_runs import run_of as h200_of
from samples.measuring import timed

from kernels.attention import Attention
from kernels.case import Case
from kernels.gemm import Gemm
from kernels.problem import Problem
from kernels.tune import HOW, Choice
from microbench import fmt
from microbench.report.kernels import report
from microbench.report.report import report_of
from microbench.report.screen import WIDTH, is_live, make_console, print_report
from microbench.report.writers import to_markdown
from microbench.results.runfile import read_run
from microbench.results.types import Ratio, Result, Run, Warning
from microbench.verdict import beside_library, summaries

H200 = Path(__file__).parents[2] / "results" / "nvidia-h200"
SHEET = Path(__file__).parents[1] / "samples" / "kernel_reports.txt"
SIZES = tuple(100 * i for i in range(1, 10))
ARMS = {("fp32", "cublas"): 51.0, ("tf32", "cublas"): 360.0, ("fp16", "cublas"): 659.0}


def within(value: float, pct: float) -> Ratio:
    """A ratio with an interval of ± pct."""
    return Ratio(value, (value * (1 - pct / 100), value * (1 + pct / 100)))


def result(
    size: int, precision: str = "fp16", gain: float | None = None, backend: str = "cublas",
    beside: float | None = None, seconds: float = 1e-3, **more: object,
) -> Result:  # fmt: skip
    return replace(
        Result(
            Case(Gemm(size, size, size), precision, backend),
            "ok",
            measurement=timed(seconds),
            flops=2 * size**3,
            speedup={} if gain is None else {"fp32": within(gain, 0.1)},
            vs_backend={} if beside is None else {"cublas": within(beside, 0.1)},
        ),
        **more,
    )


def run_of(*results: Result) -> Run:
    return Run(("x",), "now", {"name": "x", "kind": "cuda"}, {}, results=results)


def beside_fp32(*rows: Result) -> Run:
    """With a result of fp32 of each size."""
    return run_of(*(result(int(row.case.problem.dims["m"]), "fp32") for row in rows), *rows)


def with_interval(size: int, ratio: float, *ends: float) -> Result:
    interval = (ends[0], ends[1]) if ends else None
    return result(size, speedup={"fp32": Ratio(ratio, interval)})


def gemm(size: int, ratios: Mapping[str, float], backend: str = "triton", **more: object) -> Result:
    vs_backend = {name: Ratio(ratio, None) for name, ratio in ratios.items()}
    return result(size, "fp16", None, backend, vs_backend=vs_backend, variant="tma/64x128", **more)


def group(size: int | tuple[int, int, int]) -> list[Result]:
    return with_speedups([measured(case(size, *arm), rate) for arm, rate in ARMS.items()], 0.3)


# ---------------------------------------------------------------- as committed

LOST = {"status": "skipped", "measurement": None}
OWN = [result(size, backend="my:own", beside=gain) for size, gain in ((100, 0.5), (200, 2.0))]
LIBRARY = [result(size) for size in (100, 200)]
KNOWN = [with_interval(100, 0.5, 0.49, 0.51), with_interval(200, 2, 1.9, 2.1),
         with_interval(300, 3, 2.9, 3.1)]  # fmt: skip
UNLIKE = {
    "int8": (1.5, 4.0),
    "fp16": (4.0, 5.0),
    "bf16": (3.0, 4.95),
    "fp8-e4m3": (3.9, 4.8, 90.0),
}  # the last at a size that no other has
OF_UNLIKE = run_of(*(result(size, name, gain=gain, seconds=1e-3 / gain)
                     for name, gains in UNLIKE.items()
                     for size, gain in zip(SIZES, gains, strict=False)))  # fmt: skip
THREE = [gemm(1024, {"cublas": 1.3, "cublaslt": 0.9}),
         gemm(2048, {"cublas": 0.8, "cublaslt": 1.4}, tuned=True),
         gemm(512, {"cublas": 1.1}, tuned=True)]  # fmt: skip
BOTH_OWN = [gemm(1100, {"cublas": 0.5, "cublaslt": 0.6}),
            gemm(1024, {"cublas": 1.0, "cublaslt": 1.0}, tuned=True),
            gemm(300, {"cublas": 0.4}, "my:gemm")]  # fmt: skip


def answers() -> Iterator[tuple[str, Run]]:
    """Runs that differ in what their answer says."""
    for gains in ((2, 3, 5, 4), (1.1, 3, 2), (0.5, 0.25, 0.2, 0.4, 0.8, 2, 3),
                  (0.5, 0.8, 0.25, 0.2, 0.1), (2, 0.5, 4, 0.25), (2, 2, 2, 2, 2, 0.5)):  # fmt: skip
        rows = [result(size, gain=gain) for size, gain in zip(SIZES, gains, strict=False)]
        yield f"gains of {gains}", beside_fp32(*rows)
    for ratios in (
        [(2, 1.9, 2.1), (3, 2.9, 3.1), (3.1, 2.4, 4)],
        [(1.25, 1.01, 1.5)],  # a difference as small as noise is no gain
        [(0.5, 0.4, 0.6)],
        [(0.5, 0.4, 0.6), (4.0,)],  # one round at the largest size leaves it open
        [(0.8,), (0.5, 0.4, 0.6)],  # and at another size it claims nothing
        [(1.03, 0.98, 1.08), (2, 1.9, 2.1)],  # an interval that holds 1 is no difference
    ):
        rows = [with_interval(size, *one) for size, one in zip(SIZES, ratios, strict=False)]
        yield f"intervals {ratios}", beside_fp32(*rows)
    yield "ruined at the largest size", beside_fp32(*KNOWN[:2], with_interval(300, 12, 5, 64))
    yield "ruined at the smallest size", beside_fp32(with_interval(100, 0.5, 0.1, 2.5), *KNOWN[1:])
    yield "ruined far below the break-even", beside_fp32(with_interval(50, 5, 1, 25), *KNOWN)
    missing = [result(size, reason="no room", **LOST) for size in SIZES[:3]]
    yield "cases not measured", run_of(result(900, "fp32"), result(900, gain=2.0), *missing)
    yield "an own kernel at two sizes", run_of(*LIBRARY, *OWN)
    yield "an own kernel at one size", run_of(LIBRARY[0], OWN[0])
    rows = [result(size, gain=2.0, total_error=size * 1e-6) for size in (100, 200, 300)]
    bases = [result(size, "fp32", total_error=size * 1e-9) for size in (200, 100)]
    yield "errors at the largest size of both", run_of(*bases, *rows)
    yield "errors of one", run_of(*(replace(one, total_error=None) for one in bases), *rows)
    yield "no baseline", run_of(result(100), result(200, flops=10**9))
    for other in ("cublas", "cupy"):  # the library's arm decides, or else the fastest
        rows = [result(100, gain=2.0, backend=other, seconds=2e-3),
                result(100, gain=4.0, backend="triton")]  # fmt: skip
        yield f"triton and {other}", run_of(*rows)
        yield f"{other} and triton", run_of(*rows[::-1])
    yield "the fastest at the largest size that all have", OF_UNLIKE
    rates = [result(8, "bf16", seconds=4e-3), result(8, "fp16")]
    yield "no ratio of what did not take turns", run_of(*rates)
    turns = replace(rates[1], speedup={"bf16": Ratio(3.9, (3.1, 4.7))})
    other = result(8, "fp16", None, "separate", seconds=0.5e-3)
    yield "the library's own call, with its interval", run_of(rates[0], turns, other)
    yield "a precision that the library has not", run_of(
        result(8, "fp8-e4m3", reason="cudnn has no fp8-e4m3", **LOST),
        result(8, "fp8-e4m3", None, "triton", speedup={"fp16": within(1.5, 1)}), result(8, "fp16"),
    )  # fmt: skip
    yield "at two sizes", beside_fp32(*(result(size, gain=2.0) for size in (100, 200)))
    took = {"kernels": ("elementwise_kernel", "nvjet"), "kernels_s": (3e-6, 1e-6)}
    yield "a copy of the bias", run_of(
        one_call(Gemm(64, 64, 64, "nt-bias", 8), "separate", "separate"),
        replace(one_call(Gemm(64, 64, 64, "nt-bias", 8), "cublas", "baddbmm", separate=1.4), **took)
    )  # fmt: skip
    reasons = {"triton": "triton has no fp16", "cublaslt": "CUDA out of memory. Tried to allocate",
               "cublas": "too many heads"}  # fmt: skip
    yield "skips by definition are no doubt", run_of(
        result(100, gain=2.0), *(result(200, backend=backend, reason=why, **LOST)
                                 for backend, why in reasons.items())
    )  # fmt: skip
    found = list(picks())
    yield "torch's pick of what it picks from", run_of(*found)
    yield "its pick at two lengths", run_of(*found[4:])
    wide = {name: Ratio(1.5, (0.5, 4.5)) for name in ("flash", "math")}
    yield "its pick, beside what is not known", run_of(
        replace(found[-4], vs_backend=wide), *found[-3:]
    )  # fmt: skip
    yield "its pick not measured", run_of(*(Result(r.case, "skipped", "no card") for r in found))
    yield "one call beside a kernel for each part", run_of(*calls())
    both = result(100, speedup={"fp32": Ratio(10.0, (9, 11)), "tf32": Ratio(0.8, (0.7, 0.9))})
    lost = result(100, "int8", reason="no int8 here", **LOST)
    yield "two baselines, and a reason", run_of(both, result(100, "bf16", 2.0), lost)
    yield "tf32 asked for", run_of(result(100, "fp32"), result(100, "tf32", 7.0))
    yield "nothing", run_of()
    yield "two libraries", run_of(*THREE)
    yield "two own back ends", run_of(*BOTH_OWN)


def one_call(problem: Problem, backend: str, variant: str, **others: float) -> Result:
    ratios = {name: within(ratio, 1) for name, ratio in others.items()}
    measurement = timed(1e-3)
    made = Case(problem, "bf16", backend)
    return Result(made, "ok", measurement=measurement, variant=variant, vs_backend=ratios)


def picks() -> Iterator[Result]:
    """Three lengths; at the shortest torch's pick is not the fastest."""
    for length, picked, gain in ((512, "flash", 0.8), (1024, "cudnn", 1.0), (2048, "cudnn", 1.0)):
        problem = Attention(8, 16, 16, length, 64)
        yield one_call(problem, "torch", picked, cudnn=gain, flash=1.5, math=length / 100)
        yield from (one_call(problem, name, name) for name in ("cudnn", "flash", "math"))


def calls() -> Iterator[Result]:
    for layout, batch, call, gain in (
        ("nt-skewed", 8, "grouped_mm", 1.1), ("nt-strided", 8, "bmm", 2.4),
        ("nt-gelu", 1, "addmm_activation", 1.0),
    ):  # fmt: skip
        problem = Gemm(64, 64, 64, layout, batch)
        yield one_call(problem, "cublas", call, separate=gain)
        yield one_call(problem, "separate", "separate")


def screens() -> Iterator[tuple[str, str]]:
    """Made-up runs on the screen."""
    yield "TOP/s", shown(h200_of([measured(case(4096, "int8", "cublaslt"), 842)]))
    yield "GFLOP/s", shown(h200_of([measured(case(256, "fp32", "cpu"), 0.0234)]))
    *bases, last = group(4096)
    near = replace(last, speedup={"fp32": Ratio(1.01, (0.98, 1.03)), "tf32": Ratio(0.5, None)})
    yield "no difference, and no interval", shown(h200_of([*bases, near]))
    good, bad = (measured(case(n, "fp16", "my:own"), 300) for n in (4096, 8192))
    slower = replace(good, vs_backend={"cublas": Ratio(0.5, (0.4, 0.6))})
    failed = Result(bad.case, "failed", "ValueError: no such tile")
    yield "an own kernel that failed comes first", shown(h200_of([*group(4096), slower, failed]))
    warned = [replace(one, warnings=(Warning(f"known to {i} % only", "noise", "raise --budget"),))
              for i, one in enumerate(group(4096))]  # fmt: skip
    skipped = Result(case(4096, "int8", "triton"), "skipped", "triton has no int8")
    reason = "fp8-e4m3 needs compute capability 8.9, this GPU has 8.0, " * 4
    failed = Result(case(4096, "fp16", "cupy"), "failed", reason)
    run = h200_of([*warned, skipped, failed], finished_at=None)
    yield "reasons and warnings", shown(run)
    yield "reasons and warnings, verbose", shown(run, details=True)
    yield "nothing was measured", shown(h200_of([]))
    chosen = [gemm(100 * i, {"cublas": 1.0}, choice=Choice(how)) for i, how in enumerate(HOW, 1)]
    yield "how configurations were chosen", to_markdown(report(run_of(*chosen)))


def sheet() -> str:
    """Each run's answer, or its screen, under what it is."""
    said = [
        (name, "".join(f"{line.label} {line.text}".strip() + "\n" for line in report(run).answer))
        for name, run in answers()
    ]
    return "".join(f"===== {name}\n{text}" for name, text in (*said, *screens()))


def test_reports_are_as_committed() -> None:
    """To renew: PYTHONPATH=.:tests python tests/microbench/test_verdict.py"""
    assert sheet() == SHEET.read_text(encoding="utf-8")
    peaks = report(read_run(H200 / "ceilings.json"))
    assert to_markdown(peaks).count("https://") == 1, "a source of many peaks is named once"


# ---------------------------------------------------------------- what is summed up


def test_the_better_library_is_chosen_size_by_size_and_each_back_end_apart() -> None:
    (found,) = summaries(run_of(*LIBRARY, *OWN))
    assert (found.mean, found.least.result, found.most.result) == (pytest.approx(1), *OWN)
    (found,) = summaries(run_of(*THREE))
    assert [row.library for row in found.rows] == ["cublaslt", "cublas", "cublas"]
    assert found.mean == pytest.approx(geometric_mean([0.9, 0.8, 1.1]))
    assert found.least.result.case.problem.dims["m"] == 2048
    assert beside_library(gemm(512, {"my:gemm": 2.0})) is None, "no library"
    backends = [(found.backend, len(found.rows)) for found in summaries(run_of(*BOTH_OWN))]
    assert backends == [("triton", 2), ("my:gemm", 1)]
    run = run_of(gemm(512, {"cublas": 1.0}), gemm(256, {"cublas": 3.0}))
    apart = summaries(run, lambda result: f"k={result.case.problem.dims['k']}")
    assert [found.which for found in apart] == ["k=512", "k=256"]
    assert [found.mean for found in apart] == pytest.approx([1.0, 3.0])


# ---------------------------------------------------------------- any run


def widest(text: str) -> int:
    return max(cell_len(line) for line in text.splitlines())


def test_numbers_have_three_digits_and_times_their_unit() -> None:
    assert [fmt.number(x) for x in (0.0123, 2.799, 9.996, 51.04, 688.4, 1359, 2e-4, 123456)] == [
        "0.012", "2.80", "10.0", "51.0", "688", "1359", "2.0e-04", "1.2e+05",
    ]  # fmt: skip
    assert [fmt.duration(s) for s in (6.052e-6, 1.66e-3, 0.9999e-3, 2.0, 4e-9)] == [
        "6.05 us", "1.66 ms", "1.00 ms", "2.00 s", "4.00 ns",
    ]  # fmt: skip
    assert fmt.ratio(Ratio(12.94, (12.91, 12.98))) == "12.9 ±0.1"
    assert fmt.ratio(Ratio(0.002, (0.0019, 0.0021))) == "0.002 ±0.001"
    assert fmt.ratios([within(1.5, 2), within(1.7, 40), within(1.9, 20)]) == "1.50 to 1.90 ±0.38"
    assert fmt.half_interval(1.0, (0.99, 1.02)) == "2.0%"
    assert fmt.listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"


# ---------------------------------------------------------------- consoles


@pytest.mark.parametrize(
    ("asked", "width"), [(None, WIDTH), ("40", 40), ("160", 160), ("0", WIDTH), ("wide", WIDTH)]
)
def test_a_file_is_plain_and_as_wide_as_asked_else_100(
    asked: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if asked is not None:
        monkeypatch.setenv("COLUMNS", asked)
    file = io.StringIO()
    console = make_console(file=file)
    assert console.width == width
    assert not is_live(console)
    console.print(Text("hello", "bold red"))
    console.print("[bold]brackets stay[/bold] 1 2 3")
    assert file.getvalue() == "hello\n[bold]brackets stay[/bold] 1 2 3\n"
    silent = io.StringIO()
    make_console(file=silent, quiet=True).print("hello")
    assert silent.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_only_an_addition(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_terminal() -> str:
        file = Terminal()
        print_report(report_of(h200_run()), make_console(file=file), verbose=True)
        return file.getvalue()

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    coloured = on_a_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = on_a_terminal()
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert WIDTH < widest(plain) <= 120, "tables may be wider than prose"


def test_a_terminal_without_unicode_keeps_columns_aligned() -> None:
    raw = io.BytesIO()
    console = make_console(file=io.TextIOWrapper(raw, encoding="ascii"))
    print_report(report_of(h200_run()), console)
    console.file.flush()
    ours, plain = raw.getvalue().decode("ascii").splitlines(), shown(h200_run()).splitlines()
    assert [len(line) for line in ours] == [cell_len(line) for line in plain]
    assert "?" not in "".join(ours)


if __name__ == "__main__":
    SHEET.write_text(sheet(), encoding="utf-8")
