"""python -m tests.validation.ncu FILE: our timer against Nsight Compute's gpu__time_duration.

Burst, cold L2, free clocks. As `python -m tests.validation.ncu --launch cuda:0 CASE...`, a case
being precision:backend:size, it is the program that Nsight Compute profiles.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernels.case import Case
from kernels.gemm import Gemm
from kernels.op import Session
from microbench.device.device import DeviceInfo, describe
from microbench.errors import UserError
from microbench.timing.interleave import InterleavedSampler, Variant
from microbench.timing.stats import median
from microbench.timing.timers import make_timer
from tests.validation.evidence import measured_on, parser_of, says_mistakes, write

SIZES = (256, 512, 1024, 2048, 4096, 8192)
ARMS = (("fp16", "cublas"), ("fp16", "triton"), ("fp32", "cublas"), ("tf32", "cublas"))
LAUNCHES = 15
BUDGET_S = 0.7
LONG_S, LONG_TARGET_PCT, SHORT_TARGET_S = 50e-6, 2.0, 0.5e-6
MARKER = "empty"
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0,
         "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0}  # fmt: skip


@says_mistakes
def main(arguments: list[str] | None = None) -> int:
    """Time ARMS at SIZES with both, and write the seconds. 2 without a GPU or ncu."""
    parser = parser_of("ncu", __doc__)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    info = describe(given.device)
    if info.kind != "cuda":
        raise UserError("this needs a CUDA GPU: Nsight Compute profiles nothing else")
    if shutil.which("ncu") is None:
        raise UserError("this needs ncu (Nsight Compute) on the PATH")
    words = [f"{p}:{backend}:{size}" for p, backend in ARMS for size in SIZES]
    ours, theirs = our_medians(info, words), ncu_medians(info, words)
    rows = [
        {"case": parse(word).key, "ours_s": ours[word], "ncu_s": theirs[word],
         "within_target": within_target(ours[word], theirs[word])}
        for word in words
    ]  # fmt: skip
    within = sum(row["within_target"] for row in rows)
    print(f"{within} of {len(rows)} within {LONG_TARGET_PCT:g} % from {1e6 * LONG_S:.0f} us up, "
          f"within {1e6 * SHORT_TARGET_S:g} us below.")  # fmt: skip
    facts = {**measured_on(info), "rows": rows, "within_target": within}
    write(given.file, "timer", ["tests.validation.ncu"], facts)
    return 0


def parse(word: str) -> Case:
    """A square GEMM from "fp16:cublas:4096"."""
    precision, backend, size = word.split(":")
    return Case(Gemm(int(size), int(size), int(size)), precision, backend)


def within_target(ours_s: float, ncu_s: float) -> bool:
    """Within LONG_TARGET_PCT per cent from LONG_S up, within SHORT_TARGET_S seconds below."""
    difference = abs(ours_s - ncu_s)
    if ncu_s >= LONG_S:
        return 100 * difference / ncu_s <= LONG_TARGET_PCT
    return difference <= SHORT_TARGET_S


def our_medians(info: DeviceInfo, words: Sequence[str]) -> dict[str, float]:
    """Our median seconds of each case, less the overhead: gated events, cold L2, burst."""
    timer = make_timer("auto", "cold", info.kind, info.index, info.l2_bytes, info.sm_count)
    session = Session(info.target(), seed=0)
    medians: dict[str, float] = {}
    for word in words:
        call = session.prepare(parse(word)).candidates[0].call
        timer.run(call, 1)
        variant = Variant(word, call, median(timer.block(call, 3).times_s))
        InterleavedSampler(timer, "burst", BUDGET_S).take([variant])
        raw = median([t for block in variant.blocks for t in block.times_s])
        medians[word] = raw - timer.overhead_s
    return medians


def ncu_medians(info: DeviceInfo, words: Sequence[str]) -> dict[str, float]:
    """Nsight Compute's median seconds of each case, summed over the kernels of a launch.

    UserError when ncu's log does not have every case.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            "ncu", "--metrics", "gpu__time_duration.sum", "--clock-control", "none",
            "--cache-control", "all", "--profile-from-start", "off", "--csv", "--log-file",
            str(log), sys.executable, "-m", "tests.validation.ncu", "--launch",
            f"cuda:{info.index}", *words,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = log.read_text() if log.exists() else ""
    durations = read_durations(text) if '"ID"' in text else []
    if done.returncode or len(durations) != len(words):
        tail = (done.stderr or text).strip().splitlines()[-1:] or ["no output"]
        raise UserError(f"ncu did not profile all {len(words)} cases: {tail[0]}")
    return dict(zip(words, (median(per_launch(d)) for d in durations), strict=True))


def read_durations(text: str) -> list[list[float]]:
    """Seconds of each kernel from ncu's CSV, a list for each marker kernel."""
    found: list[list[float]] = []
    for row in csv.DictReader(io.StringIO(text[text.find('"ID"') :])):
        if row["Kernel Name"] == MARKER:
            found.append([])
        elif value := row["Metric Value"]:  # not a line of ncu's own
            found[-1].append(float(value.replace(",", "")) * UNITS[row["Metric Unit"]])
    return found


def per_launch(durations: Sequence[float]) -> list[float]:
    """Seconds of each of LAUNCHES launches, if all run the same number of kernels."""
    kernels = max(1, len(durations) // LAUNCHES)
    return [sum(durations[i : i + kernels]) for i in range(0, len(durations), kernels)]


def launch_all(device: str, words: Sequence[str]) -> None:
    """Launch every case between profiler start and stop, after a marker, the kernel "empty"."""
    import torch

    from microbench.timing.instruments import Instruments

    info = describe(device)
    instruments = Instruments(info.index, 1 << 20, info.sm_count)
    session = Session(info.target(), seed=0)
    cuda: Any = torch.cuda
    runtime = cuda.cudart()
    for word in words:
        call = session.prepare(parse(word)).candidates[0].call
        call()
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        instruments.launch_empty()
        for _ in range(LAUNCHES):
            call()
            torch.cuda.synchronize()
        runtime.cudaProfilerStop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        launch_all(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
