"""Runs of GEMMs as an H200 would give them, and what the screen says of a run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from kernels.case import Case
from kernels.gemm import Gemm
from microbench.report.report import report_of
from microbench.report.screen import print_report
from microbench.results.types import Ceiling, Ratio, Result, Run, Warning
from samples.measuring import timed

SIZES = (256, 512, 1024, 2048, 4096, 8192)
# TFLOP/s of one H200 (ANCHORS of the project's notes); the Triton row is of TorchInductor's best.
RATES = {
    ("fp32", "cublas"): (2.8, 15, 33, 50, 51, 51),
    ("tf32", "cublas"): (4.0, 26, 129, 337, 353, 360),
    ("fp16", "cublas"): (5.2, 37, 223, 599, 688, 659),
    ("fp16", "triton"): (5.25, 39, 220, 599, 669, 671),
}
PEAKS = {"fp32": 66.9, "tf32": 494.5, "fp16": 989.4, "int8": 1978.9}
ERRORS = {"fp32": 3.1e-7, "tf32": 2.9e-4, "fp16": 2.1e-4, "int8": 0.0}
SHEET = "https://resources.nvidia.com/en-us-data-center-overview-mc/hpc-datasheet-sc23-h200"
POWER = Warning(
    "SM clock fell 22 % during the run",
    "the board's power limit (700 W) holds the clock down",
    "nothing to repair: sustained work runs at this clock; --regime burst shows the full clock",
)


def case(size: int | tuple[int, int, int], precision: str, backend: str, **more: str) -> Case:
    m, n, k = (size, size, size) if isinstance(size, int) else size
    return Case(Gemm(m, n, k), precision, backend, **more)


def measured(what: Case, tflops: float, *, half_pct: float | None = 0.3) -> Result:
    """A result at this rate, with an interval of ± half_pct."""
    flops = what.problem.flops
    seconds = flops / (tflops * 1e12)
    size = what.problem.mnk[0]
    small, capped = size <= 512, size > 2048
    peak, error = PEAKS.get(what.precision_name), ERRORS.get(what.precision_name, 1e-3)
    clock_mhz, power_w, throttle = (
        (1410.0, 698.0, ("power cap",)) if capped else (1980.0, 310.0, ())
    )
    why = f"5.1 us of {seconds * 1e6:.1f} us is what a 64x64x64 product takes too"
    return Result(
        what,
        "ok",
        measurement=timed(
            seconds, half_pct, sm_clock_mhz=clock_mhz, power_w=power_w, throttle=throttle
        ),
        flops=flops,
        min_bytes=6 * size * size,
        rel_error=error,
        total_error=error,
        ceiling_pct=100 * tflops / peak if peak else None,
        bound="launch" if small else "power" if capped else "compute",
        why=why if small else None,
        warnings=(POWER,) if capped and what.precision_name == "fp16" else (),
    )


def ratio_of(value: float, half_pct: float | None = 0.4) -> Ratio:
    half = value * (half_pct or 0) / 100
    return Ratio(value, None if half_pct is None else (value - half, value + half))


def with_speedups(results: Sequence[Result], half_pct: float | None = 0.6) -> list[Result]:
    """The results of one size, each with its ratio to the fp32 and tf32 of cublas."""
    base = {
        r.case.precision_name: r.median_s
        for r in results
        if r.case.backend == "cublas" and r.case.precision_name in ("fp32", "tf32") and r.median_s
    }
    out: list[Result] = []
    for result in results:
        found: dict[str, Ratio] = {}
        for name, seconds in base.items():
            if result.median_s and name != result.case.precision_name:
                found[name] = ratio_of(seconds / result.median_s, half_pct)
        out.append(replace(result, speedup=found))
    return out


def run_of(results: Sequence[Result], **changes: object) -> Run:
    """A run on an H200 with these results."""
    precisions = dict.fromkeys(r.case.precision_name for r in results)
    best: dict[str, float] = {}
    for result in results:
        name = result.case.precision_name
        best[name] = max(best.get(name, 0.0), result.flop_per_s or 0.0)
    ceilings = [
        *(Ceiling("dense peak", "datasheet", p, PEAKS[p] * 1e12, reference=SHEET)
          for p in precisions if p in PEAKS),
        *(Ceiling("large GEMM", "measured", p, best[p], reference="largest")
          for p in precisions if best[p]),
        Ceiling("memory", "measured", byte_per_s=4.3e12, reference="copy"),
    ]  # fmt: skip
    run = Run(
        command=("microbench", "gemm", "--dtype", "fp16", "--sizes", "256..8192"),
        started_at="2026-01-05T10:12:31+00:00",
        finished_at="2026-01-05T10:13:02+00:00",
        device={"name": "NVIDIA H200", "kind": "cuda", "driver": "580.95.05", "power_limit_w": 700},
        software={"torch": "2.11.0", "cuda": "13.0", "cublas": "13.1.0.3", "triton": "3.6.0"},
        ceilings=tuple(ceilings),
        results=tuple(results),
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def h200_run() -> Run:
    """What `microbench gemm --dtype fp16 --sizes 256..8192` measures on an H200."""
    results: list[Result] = []
    for i, size in enumerate(SIZES):
        group = [measured(case(size, *arm), rates[i]) for arm, rates in RATES.items()]
        results += with_speedups(group, half_pct=1.4 if size == 256 else 0.3)
    return run_of(results)


def shown(run: Run, width: int = 100, *, details: bool = False) -> str:
    """The screen as a file would get it."""
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False)
    print_report(report_of(run), console, verbose=details)
    return file.getvalue()
