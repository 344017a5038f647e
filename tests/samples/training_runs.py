"""Made-up runs of trainings for the tests of the report and of `compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from e2e.case import TrainCase
from e2e.results.types import (
    PREDICTED,
    DeviceState,
    LedgerLine,
    Phase,
    Predicted,
    Repeat,
    SensorStats,
    StepTimes,
    Training,
)
from microbench.results.types import TIME_DECIMALS, Run, Warning
from samples.kernel_runs import ratio_of as ratio_of
from samples.kernel_runs import shown as shown

GB = 10**9
# img/s, peak GB, W of ResNet-50 at batch 256, channels_last.
RATES = {"fp32": (810, 41.6, 690), "tf32": (2_430, 41.6, 655), "amp": (4_690, 21.7, 640)}
WIDE = Warning("the median is known to 2.3 % only", "other work on the machine", "raise --budget")


STEPS_MS = {"fp32": 242.0, "tf32": 94.5, "amp": 42.1}  # at batch 256


def variant(
    recipe: str,
    per_s: float,
    *,
    units: int = 256,
    half_pct: float | None = 0.2,
    busy: float | None = 0.97,
    case: Mapping[str, Any] | None = None,
    **more: Any,
) -> Training:
    """A training at this many units a second, with an interval of ± half_pct."""
    what = TrainCase(
        **{"network": "resnet50", "recipe": recipe, "batch": 256, "input": "3x224x224",
           "layout": "nhwc", **(case or {})}
    )  # fmt: skip
    step_s = units / per_s
    half = step_s * (half_pct or 0) / 100
    times = tuple(round(step_s + shift * half, TIME_DECIMALS) for shift in (0, -1, 1, 0))
    steps = StepTimes(
        times_s=times,
        wall_times_s=times,
        blocks=(2, 2),
        median_s=step_s,
        ci95_s=None if half_pct is None else (step_s - half, step_s + half),
        wall_s=4.02 * step_s,
        wall_steps=4,
        busy_s=None if busy is None else busy * step_s,
        host_s=0.021,
        launches=1_204,
    )
    return Training(
        **{"case": what, "status": "ok", "step_units": units, "steps": steps, "limit": "gpu",
           "setup_s": 2.9, **more}
    )  # fmt: skip


def compared(trainings: Sequence[Training], half_pct: float | None = 0.4) -> list[Training]:
    """The variants of one group, each with its ratio to those of fp32 and tf32."""
    base = {t.case.recipe: t.step_s for t in trainings if t.case.recipe in ("fp32", "tf32")}
    return [
        replace(t, speedup={
            name: ratio_of(seconds / t.step_s, half_pct)
            for name, seconds in base.items()
            if seconds and t.step_s and name != t.case.recipe
        })
        for t in trainings
    ]  # fmt: skip


def run_of(*trainings: Training, **changes: Any) -> Run:
    """A run on an H200 with these trainings."""
    run = Run(
        command=("python", "-m", "e2e", "resnet50", "--amp"),
        started_at="2026-01-05T10:12:31+00:00",
        finished_at="2026-01-05T10:13:02+00:00",
        device={"name": "NVIDIA H200", "kind": "cuda", "driver": "580.95.05", "power_limit_w": 700},
        software={"torch": "2.11.0", "cuda": "13.0", "triton": "3.6.0"},
        others=tuple(trainings),
    )
    return replace(run, **changes)


def amp_run() -> Run:
    """Three recipes on a GPU, with intervals, phases and the device's state."""
    phases = {"data": (0.0, 1e-5), "copy": (1.1e-3, 2e-4), "forward": (0.012, 0.007),
              "backward": (0.033, 0.011), "optimizer": (1.2e-3, 2.4e-3)}  # fmt: skip
    variants = [
        variant(
            recipe,
            per_s,
            memory_peak_bytes=int(peak_gb * GB),
            state=DeviceState(SensorStats(98.6, 93, 100), 1_755.0, power_w, 58.0, ("power cap",)),
            phases=tuple(
                Phase(name, gpu * 4_690 / per_s, host) for name, (gpu, host) in phases.items()
            ),
            compile_s=1.2,
            why=f"the kernels of a step take {0.97 * 256 / per_s * 1e3:.1f} ms of it",
        )
        for recipe, (per_s, peak_gb, power_w) in RATES.items()
    ]
    variants[2] = replace(variants[2], warnings=(WIDE,))
    return run_of(*compared(variants))


def out_of_memory_run() -> Run:
    """One variant did not fit."""
    lost = Training(
        TrainCase("resnet50", "fp32", 1024, "3x224x224", "nhwc"), "failed",
        "out of memory: peak 78.3 GB; batch 512 fits",
        memory_peak_bytes=int(78.3 * GB), fits_batch=512,
    )  # fmt: skip
    rest = [
        variant(recipe, RATES[recipe][0], units=1024, case={"batch": 1024},
            memory_peak_bytes=int(2 * RATES[recipe][1] * GB))
        for recipe in ("tf32", "amp")
    ]  # fmt: skip
    return run_of(lost, *compared(rest))


def repeats(
    accuracy: float, loss: float, train_s: float, count: int = 5, skipped: int = 0
) -> tuple[Repeat, ...]:
    """Trainings that differ a little from seed to seed."""
    return tuple(
        Repeat(seed, 100, train_s * (1 + 0.004 * i), 2.3, loss * 0.9, loss + 0.01 * i,
               accuracy + 0.002 * (i - count // 2), skipped + i % 2,
               tuple((2.3 + 0.1 * i) / (1 + loss * point) for point in range(20)))
        for i, seed in enumerate(range(11, 11 + count))
    )  # fmt: skip


def broken_run() -> Run:
    """O3 is fast and does not learn."""
    settings = {"network": "wrn-28-10", "batch": 128, "input": "3x32x32"} | {
        "data": "cifar10", "loader": "resident"}  # fmt: skip
    lost = tuple(Repeat(s, 3910, 31.0, 2.3, None, None, None) for s in (1, 2, 3))
    variants = [
        variant("O0", 2_100, units=128, case=settings, converged=True, chance=0.1,
            repeats=repeats(0.93, 0.26, 186.0, 3)),
        variant("fp32", 2_110, units=128, case=settings, converged=True, chance=0.1,
            repeats=repeats(0.93, 0.26, 186.0, 3)),
        variant("O2", 5_300, units=128, case=settings, converged=True, chance=0.1,
            repeats=repeats(0.929, 0.27, 75.0, 3, skipped=4), skipped_steps=2),
        variant("O3", 5_500, units=128, case=settings, converged=False,
            convergence="loss is not finite from step 214 on", chance=0.1, repeats=lost),
    ]  # fmt: skip
    return run_of(*compared(variants), command=("python", "-m", "e2e", "wrn-28-10"))


def tokens_run() -> Run:
    """A decoder, whose throughput is in tokens, waiting for the host."""
    case = {"network": "gpt-124m", "batch": 16, "input": "1024", "layout": "", "optimizer": "adamw"}
    rates = {"fp32": 61_000, "tf32": 148_000, "amp-bf16": 402_000}
    variants = [
        variant(recipe, per_s, units=16 * 1024, case=case, unit="tok",
            busy=0.77 if recipe == "amp-bf16" else 0.99,
            limit="host" if recipe == "amp-bf16" else "gpu",
            memory_peak_bytes=18 * GB, state=DeviceState(power_w=610.0))
        for recipe, per_s in rates.items()
    ]  # fmt: skip
    return run_of(*compared(variants))


def host_run() -> Run:
    """A small batch: the host takes back most of what the products save, and a term is unknown."""
    terms = {"convolutions": -9.1, "normalisation": -0.9, "casts": 0.4, "loss scaler": 0.1,
             "host and launch gaps": 5.3, "residual": 0.5}  # fmt: skip
    lines = [LedgerLine(term, ms, "replayed") for term, ms in terms.items()]
    last = 17.2 + sum(terms.values())
    ledger = (LedgerLine("fp32 step", 17.2, "measured"), *lines,
              LedgerLine("amp step", last, "measured"))  # fmt: skip
    case = {"batch": 16}
    missing = ("mylib.fancy_attention (unknown operation)", "aten.nonzero")
    gain = {"fp32": 17.1 / 11.9}
    step = Predicted(0.0119, (0.0107, 0.0131), "host", gain, int(1.3 * GB), missing, -11.8)
    base = variant("fp32", 16 / 0.0172, units=16, case=case)
    amp = variant(
        "amp", 16 / (last / 1e3), units=16, case=case, limit="gpu", predicted=step, ledger=ledger,
        ledger_base="fp32", bound=3.9, memory_peak_bytes=int(1.35 * GB),
    )  # fmt: skip
    return run_of(*compared([base, amp]))


def predicted_only(recipe: str, **changes: Any) -> Training:
    """A training of which the GPU's time was predicted, and that was never run."""
    gpu_s = STEPS_MS[recipe] / 1e3
    step = Predicted(
        gpu_s, (0.95 * gpu_s, 1.05 * gpu_s), None,
        {"fp32": STEPS_MS["fp32"] / 1e3 / gpu_s} if recipe != "fp32" else {},
        int(11.6 * GB), gpu_s=gpu_s, host_s=0.026, launches=605,
    )  # fmt: skip
    case = TrainCase("resnet50", recipe, 256, "3x224x224", "nhwc")
    return Training(case, PREDICTED, step_units=256, predicted=replace(step, **changes))


def predicted_run() -> Run:
    """One was timed too, one lacks an operation's time, and launches may be the limit of one."""
    timed = variant("fp32", 256 / 0.242, predicted=predicted_only("fp32").predicted)
    lacks = ("2 x aten.nonzero.default: why (2 of 605 calls)",)
    return run_of(
        timed, predicted_only("tf32", interval_s=None, uncovered=lacks, host_s=0.05),
        predicted_only("amp"), kind="predict",
        command=("python", "-m", "e2e", "predict", "resnet50", "--amp"),
    )  # fmt: skip


RUNS = {
    "amp": amp_run, "memory": out_of_memory_run, "broken": broken_run, "tokens": tokens_run,
    "host": host_run, "predicted": predicted_run,
}  # fmt: skip
