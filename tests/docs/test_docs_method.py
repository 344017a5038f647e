"""The checks of the method: figures of docs/method.md are the files', rules the program's."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import combinations
from statistics import median, quantiles
from typing import Any

import pytest
from samples.pages import ROOT, Row, document, run, says, shows, table, trainings

from e2e.prediction.predictor import GPU_ERROR, MEMORY_ERROR, REFERENCE_LAUNCHES
from e2e.report.predictions import MAY_LIMIT, error_pct
from e2e.results.types import Training
from e2e.training.host_speed import REFERENCE_S
from kernels.gpus import architecture
from kernels.precision import precision
from microbench.errors import UserError
from microbench.results.comparison import (
    CPU_BOUND_PCT,
    LEAST_PCT,
    NOISE_PCT,
    compare,
    judge,
    noise_of,
)
from microbench.results.kinds import kinds
from microbench.results.runfile import read_run
from microbench.results.types import METHOD_VERSION, ProcessTime, Timed
from microbench.timing.stats import PRIORS, half_width_pct
from tests.validation.predict import MEDIAN_PCT, NETWORKS, WORST_PCT
from tests.validation.splits import false_verdicts, power

README, METHOD, NOTES = "README", "docs/method", "docs/notes/method"
CLASSES = {  # a row of the page's table: op, and times from and below, in seconds
    "GEMM under 5 µs": ("gemm", 0.0, 5e-6), "GEMM 5 to 20 µs": ("gemm", 5e-6, 20e-6),
    "GEMM from 20 µs": ("gemm", 20e-6, 1.0), "convolution under 20 µs": ("conv", 0.0, 20e-6),
    "convolution from 20 µs": ("conv", 20e-6, 1.0),
}  # fmt: skip


def share_pct(rows: list[Any], *names: str) -> float:
    return 100 * sum(r[n] for r in rows for n in names) / sum(r["pairs"] for r in rows)


def test_the_same_kernel_twice_and_planted_causes() -> None:
    same, tried = document("aa"), document("selftest")
    assert tried["counted"] == sum(not row.get("held_out") for row in tried["rows"])
    assert not tried["absent"]
    missed = [row["case"] for row in tried["rows"]
              if row["verdict"] != "right" and not row.get("held_out")]  # fmt: skip
    assert missed == ["gemm/m=4095,n=4095,k=4095/nt/normal/fp16/triton"], "no other is missed"
    says(METHOD, "The same kernel as two variants", same["holding_1"], same["tries"])
    says(README, "Intervals", same["tries"], same["holding_1"])
    says(METHOD, "plants cases of known cause", tried["counted"], tried["right"])
    others = [row for row in tried["rows"] if row.get("held_out")]
    named = sum(row["verdict"] == "right" for row in others)
    says(README, "Bottlenecks", tried["counted"], tried["right"], len(others), named)
    says(METHOD, "after the thresholds were chosen", named, len(others))


def test_verdicts_on_the_same_and_on_scaled_times() -> None:
    rows: list[Row] = []
    counted = {"compare-aa": 0, "compare-power": 0}

    def of_class(name: str, document_name: str) -> list[Any]:
        op, from_s, below_s = CLASSES[name]
        found = [r for r in document(document_name)["rows"]
                 if r["op"] == op and from_s <= r["median_s"] < below_s]  # fmt: skip
        counted[document_name] += len(found)
        return found

    for name in CLASSES:
        same = of_class(name, "compare-aa")
        scaled = [r for r in of_class(name, "compare-power") if r["scaled"]]
        seen = [share_pct([r for r in scaled if r["slower_by_pct"] == pct], "slower")
                for pct in (5.0, 10.0, 20.0)]  # fmt: skip
        rows.append([
            name, str(len(same)), f"{median(r['sd_pct'] for r in same):.1f} %",
            f"{share_pct(same, 'faster', 'slower'):.1f} %", *(f"{share:.0f} %" for share in seen),
        ])  # fmt: skip
    shows(NOTES, rows)
    assert counted == {name: len(document(name)["rows"]) for name in counted}, "every case"


def test_how_often_compare_is_wrong() -> None:
    same = document("compare-aa")
    false = 100 * (same["faster"] + same["slower"]) / same["pairs"]
    unsure = 100 * same["cannot_tell"] / same["pairs"]
    says(METHOD, "In all, 0", false, same["pairs"], round(unsure))
    short = [row for row in same["rows"]
             if row["op"] == "conv" and row["median_s"] < 20e-6]  # fmt: skip
    ends = share_pct(short, "faster", "slower"), share_pct(short, "cannot_tell")
    tiny = [row for row in same["rows"] if row["op"] == "gemm" and row["median_s"] < 5e-6]
    says(METHOD, "Convolutions below 20 µs", ends[0], round(ends[1]),
         share_pct(tiny, "faster", "slower"))  # fmt: skip
    says(METHOD, "were split at random", same["tries"])
    assert same["processes"] == 3
    planted = [r for r in document("compare-power")["rows"] if r["change"] == "plus5"]
    by_pct = [r["slower_by_pct"] for r in planted]
    called = sum(r["slower"] for r in planted), sum(r["pairs"] for r in planted)
    figures = min(by_pct), max(by_pct), *called, 1e6 * min(r["median_s"] for r in planted)
    says(METHOD, "A kernel that does 5 % more work", *figures)
    says(README, "of runs in three processes", false, same["pairs"])
    twice = Counter(row.verdict for row in compare(run("gemm-fp16"), run("gemm-fp16-again")).rows)
    assert twice.keys() == {"cannot tell", "same"}
    runs = run("gemm-fp16-processes"), run("gemm-fp16-processes-again")
    thrice = Counter(row.verdict for row in compare(*runs).rows)
    assert thrice.keys() == {"cannot tell", "same"}
    says(METHOD, "Of two runs of halfway gemm", *twice.values(), twice.total(), *thrice.values())
    says(README, "Of two runs of the first command", twice["cannot tell"], twice.total(),
         thrice["cannot tell"])  # fmt: skip
    trained = document("compare-aa-train")
    wrong = trained["faster"] + trained["slower"], trained["pairs"]
    says(METHOD, "Of four trainings", *wrong)
    cpu = [row for row in trained["rows"] if row["cpu_bound"]]
    (gpu,) = (row for row in trained["rows"] if not row["cpu_bound"])
    raw, at_speed = ([row[name] for row in cpu] for name in ("sd_pct", "sd_one_speed_pct"))
    ends = min(raw), max(raw), min(at_speed), max(at_speed), gpu["sd_pct"]
    says(NOTES, "Trainings, resnet18", *wrong, *ends)


@pytest.mark.parametrize("name", ["compare-aa", "compare-aa-train", "compare-power"])
def test_published_checks_of_compare_are_what_the_runs_give(name: str) -> None:
    """Fewer splits than published, all of them the product's own verdicts."""
    published = document(name)
    runs = [run(one["file"].removesuffix(".json")) for one in published["runs"]]
    assert {one.method_version for one in runs} == {published["method_version"]}
    assert all(
        {**one.device, "card": None} == {**published["device"], "card": None} for one in runs
    )
    assert [list(one.command) for one in runs] == [one["command"] for one in published["runs"]]
    if name != "compare-power":
        found = false_verdicts(runs, 3, 10)
        assert [r["case"] for r in found] == [r["case"] for r in published["rows"]]
        wrong = [share_pct(rows, "faster", "slower") for rows in (found, published["rows"])]
        assert wrong[0] == pytest.approx(wrong[1], abs=1)
        assert wrong[1] < 1
    else:
        seen = [r for r in power(runs[2:], 3, 5) if not r["scaled"]]
        assert share_pct(seen, "slower") > 95


def alone(one: ProcessTime, by: float = 1.0) -> Timed:
    """What one of several processes measured, as a run of its own that knows it to 0.5 %."""
    seconds = by * one.median_s
    return Timed(seconds, (0.995 * seconds, 1.005 * seconds), one.sm_clock_mhz)


def verdicts_pct(op: str, by: float = 1.0) -> tuple[int, Counter[str]]:
    """Of all pairs of processes, the second with times `by`: how many, and verdicts in per cent."""
    times = [r.timed.processes for r in run(f"processes-{op}").results if r.timed]
    pairs = [(alone(a), alone(b, by)) for of in times for a, b in combinations(of, 2)]
    found = Counter(judge(a, b, noise_of(op, a, b)).verdict for a, b in pairs)
    return len(pairs), Counter({name: 100 * n / len(pairs) for name, n in found.items()})


def test_one_process_is_hardly_called_different_and_thresholds_are_the_programs_own() -> None:
    (n, gemm), (m, conv) = verdicts_pct("gemm"), verdicts_pct("conv")
    different = gemm["faster"] + gemm["slower"], conv["faster"] + conv["slower"]
    assert max(different) < 2
    says(METHOD, "Any two processes of", *(f"{one:.1f} " for one in different), n, m,
         round(gemm["cannot tell"]), round(conv["cannot tell"]))  # fmt: skip
    planted = verdicts_pct("gemm", 1.1)[1]["slower"], verdicts_pct("conv", 1.2)[1]["slower"]
    says(NOTES, "had a floor of 1.3 us once", *map(round, planted))
    says(METHOD, "needs the whole interval beyond", f"beyond {LEAST_PCT:g} %", f"{NOISE_PCT:g} %")
    train, load = (f"{kinds()[name].noise_pct:g} %" for name in ("train", "load"))
    says(METHOD, "kernels like it were seen to differ by", f"beyond {NOISE_PCT:g} %")
    sds = [100 * math.sqrt(one.value) for of in PRIORS.values() for one in of.values()]
    says(METHOD, "That is a standard deviation of", *(f"{sd:.2g} %" for sd in sds))
    says(METHOD, "the threshold is a guess", f"{train} for trainings", f"{load} for loaders")
    says(METHOD, "compared at one CPU speed", f"{CPU_BOUND_PCT:g} %")
    rows = table(NOTES, "version", "changed")
    assert [int(row[0]) for row in rows] == list(range(1, METHOD_VERSION + 1))


def test_what_varies_between_processes_and_the_timer() -> None:
    large = [r for r in document("compare-aa")["rows"]
             if "m=8192,n=8192,k=8192" in r["case"] and "/fp16/" in r["case"]]  # fmt: skip
    times, cycles = ([r[name] for r in large] for name in ("sd_pct", "sd_cycles_pct"))
    assert max(cycles) == pytest.approx(min(cycles), abs=0.1)
    says(METHOD, "Clocks.", min(times), max(times), max(cycles))
    (narrow,) = (r for r in run("processes-conv").results
                 if (r.case.problem.dims["c"], r.case.precision_name) == (32, "fp16"))  # fmt: skip
    rates = [narrow.flops / one.median_s / 1e12 for one in narrow.measurement.processes]
    assert len(rates) == 8
    says(METHOD, "An interval covers its own run only", min(rates), max(rates))
    rows = document("timer-vs-ncu")["rows"]
    within = document("timer-vs-ncu")["within_target"], len(rows)
    off = {r["case"]: 100 * (1 - r["ours_s"] / r["ncu_s"]) for r in rows if not r["within_target"]}
    named = {(case.split("/")[4], int(case.split("m=")[1].split(",")[0])) for case in off}
    assert named == {("fp32", 256), ("fp32", 512), ("fp32", 2048), ("tf32", 1024), ("tf32", 2048)}
    says(METHOD, "Agreement with Nsight Compute", *within, min(off.values()), max(off.values()))
    says(README, "Timer", *within, min(off.values()), max(off.values()))
    assert sum("/fp16/" in r["case"] and r["within_target"] for r in rows) == 12
    more_us = [1e6 * (r["ours_s"] - r["ncu_s"]) for r in rows if "/fp16/" in r["case"]
               and r["case"].endswith("triton") and r["ncu_s"] < 2e-5]  # fmt: skip
    says(NOTES, "Agreement with the profiler", min(more_us), max(more_us))


def test_overheads_intervals_and_ceilings() -> None:
    found = [r.measurement for name in ("conv-channels", "gemm-fp16", "peak-burst", "fp8-widths")
             for r in run(name).results if r.measurement]  # fmt: skip
    overheads_us = [1e6 * one.timer_overhead_s for one in found if one.timer == "events"]
    says(METHOD, "Overhead of the events", min(overheads_us), max(overheads_us))
    halves: dict[str | None, list[float]] = {"gpu": [], "host": []}
    for name in ("train-others", "wrn-generated", "cifar-vgg16"):
        for training in trainings(name):
            assert training.steps.ci95_s
            half = half_width_pct(training.steps.median_s, training.steps.ci95_s)
            halves[training.limit].append(half)
    says(METHOD, "Intervals are wide", min(halves["host"]), max(halves["host"]), max(halves["gpu"]))
    rates = [
        (architecture((9, 0)).flop_per_clock[precision(c.precision).rate_name], c)
        for c in run("gemm-triton").ceilings
        if c.precision and c.name == "instruction"
    ]
    nominal = [100 * (c.flop_per_clock or 0) / rate for rate, c in rates]
    assert len(nominal) == 5
    assert 96 <= min(nominal) <= max(nominal) <= 100  # the target, and what cannot be exceeded
    copied = run("gemm-triton").ceiling("memory", "measured")
    assert copied.byte_per_s
    says(METHOD, "On an H200 wgmma reaches", min(nominal), max(nominal), copied.byte_per_s / 1e12)


# ---------------------------------------------------------------- docs predict


PREDICT, NEW = "docs/predict", "predict-gpu-time.json"


def held_out() -> list[Training]:
    numbers = ("", *(f"-{number}" for number in range(2, 8)))
    found = [t for number in numbers for t in trainings(f"predict-held-out{number}")]
    return list({t.case.key: t for t in reversed(found)}.values())


def published() -> list[Training]:
    """Of all run files of the H200 but the validation's."""
    found: list[Training] = []
    for file in sorted((ROOT / "results/nvidia-h200").glob("*.json")) + sorted(
        (ROOT / "results/nvidia-h200/timm").glob("*.json")
    ):
        try:
            if file.name == NEW:
                continue
            found += read_run(file).of(Training)
        except (UserError, json.JSONDecodeError):
            continue
    return found


def test_what_a_cpu_bound_step_launches_in_the_time_of_the_small_step() -> None:
    launches = [
        t.steps.launches * t.steps.host_pace * REFERENCE_S / t.steps.median_s
        for t in published()
        if t.limit == "host" and t.steps and t.steps.host_pace and t.steps.launches
        and not (t.case.graph or t.case.compile or t.case.loads_data)
    ]  # fmt: skip
    assert round(median(launches)) == REFERENCE_LAUNCHES
    twentieths = quantiles(launches, n=20)
    says(PREDICT, "A small training step is timed", REFERENCE_LAUNCHES, len(launches),
         round(twentieths[0]), round(twentieths[-1]))  # fmt: skip


def test_gpu_times_and_older_whole_steps_of_networks_that_nothing_was_tuned_on() -> None:
    says(PREDICT, "twelve networks that nothing was tuned on", MEDIAN_PCT, WORST_PCT)
    assert len(NETWORKS) == 12
    assert not NETWORKS.keys() & {t.case.network for t in published()}, "no file has one"
    says(PREDICT, "GPU time is the sum", round(100 * GPU_ERROR))
    says(PREDICT, "Peak memory. A step that needs", 100 * MEMORY_ERROR)
    says(PREDICT, "may be the limit", 100 * MAY_LIMIT)
    found = trainings(NEW.removesuffix(".json"))
    assert {t.case.network for t in found} == NETWORKS.keys()
    off_pct = {t.case.key: abs(off) for t in found if (off := error_pct(t)) is not None}
    figures = len(off_pct), median(off_pct.values()), max(off_pct.values())
    says(README, "GPU times of", *figures)
    says(PREDICT, "had a median error of 1.6 %", *figures)
    sure = [off_pct[t.case.key] for t in found if t.limit == "gpu"]
    says(PREDICT, "steps bound by the GPU had", len(sure), median(sure), max(sure))
    assert max(off_pct.values()) < 100 * GPU_ERROR
    cpu = [100 * abs(t.predicted.step_s / t.step_s - 1) for t in held_out()
           if t.predicted and t.step_s and t.limit == "host"]  # fmt: skip
    says(PREDICT, "Whole steps are no longer predicted", round(median(cpu)), round(max(cpu)))
