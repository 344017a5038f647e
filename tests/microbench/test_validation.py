"""The checks of the method: plants on a made-up device, and each script on a CPU."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from samples.measuring import timed

from kernels.case import Case
from microbench.device.device import DeviceInfo
from microbench.results.types import Ceiling, Result, Run
from microbench.roofline.explain import annotate
from tests.validation import aa, plants, splits
from tests.validation.plants import Plant, groups_of, judged, plants_for

ROOT = Path(__file__).parents[2]
H200 = DeviceInfo("NVIDIA H200", "cuda", (9, 0), 132, 150_000_000_000, 60 << 20,
                  power_limit_w=700.0, sm_clock_max_mhz=1980.0)  # fmt: skip
RATES = {"fp16": 650e12, "bf16": 690e12, "tf32": 355e12, "fp32": 50e12}
FLOOR_S, BYTE_PER_S = 3e-6, 4.2e12
CEILINGS = (
    Ceiling("memory", "measured", byte_per_s=BYTE_PER_S),
    Ceiling("latency floor", "measured", "fp16", seconds=FLOOR_S),
    *(Ceiling("large GEMM", "measured", p, flop_per_s=rate) for p, rate in RATES.items()),
)


def result_of(case: Case) -> Result:
    """A case on a device where every planted condition costs what it should."""
    flops, moved, name = case.problem.flops, case.min_bytes, case.backend.partition(":")[2]
    busy_s, kernels, tile = flops / RATES[case.precision_name], ["main"], None
    if case.problem.misaligned(case.precision):
        busy_s *= 3
    if name in ("wide", "tall"):
        tile = (128, 256, 64) if name == "wide" else (256, 128, 64)
        m, n, _ = case.problem.mnk
        tiles = math.ceil(m / tile[0]) * math.ceil(n / tile[1])
        busy_s /= min(1.0, 1.2 * tiles / (math.ceil(tiles / 132) * 132))
    if name in ("conflicts", "spills", "sleepy", "off_two_bytes"):
        busy_s *= 2
    if case.problem.layout == "nchw":
        busy_s, kernels = 3 * busy_s, ["main", "nchwToNhwcKernel"]
    if case.data == "zeros":
        busy_s /= 1.2
    seconds = FLOOR_S + max(busy_s, moved / BYTE_PER_S)
    hot = flops > 5e10 and case.data != "zeros"
    clock_mhz, throttle = (1300.0, ("power cap",)) if hot else (1900.0, ())
    measurement = timed(seconds, 0.0, sm_clock_mhz=clock_mhz, throttle=throttle)
    return Result(
        case, "ok", measurement=measurement, flops=flops, min_bytes=moved, tile=tile,
        variant=tile and f"tma/{tile[0]}x{tile[1]}x64/s4/w8/g8", kernels=tuple(kernels),
        kernels_s=(1e-6,) * len(kernels),
    )  # fmt: skip


def verdicts(
    planted: Sequence[Plant], spoil: Callable[[Result], Result] = lambda result: result
) -> set[tuple[str, str]]:
    """(condition, verdict) of the plants whose diagnosis is not right."""
    cases = [case for group in groups_of(planted) for case in group.cases]
    results = tuple(spoil(result_of(case)) for case in cases)
    run = annotate(Run(("x",), "now", H200.as_dict(), {}, ceilings=CEILINGS, results=results))
    rows = judged(planted, run)["rows"]
    return {(row["condition"], row["verdict"]) for row in rows if row["verdict"] != "right"}


DEVELOPED = [plant for plant in plants_for(H200) if not plant.held_out]  # thresholds fit them


def test_each_bottleneck_is_named_and_a_small_device_gets_the_plants_that_fit() -> None:
    planted = {plant.condition for plant in DEVELOPED if not plant.never}
    assert planted == {"launch", "memory", "alignment", "layout", "power", "waves"}
    assert verdicts(DEVELOPED) == set()
    room = 1_000_000_000
    fits = {plant.case.key for plant in plants_for(replace(H200, memory_bytes=room))}
    sizes = {p.case.key: p.case.min_bytes for p in plants_for(H200)}
    assert fits == {key for key, size in sizes.items() if size <= room / 4} < set(sizes)


def test_a_bottleneck_that_nothing_shows_is_wrong_and_one_not_planted_is_not_counted() -> None:
    def nameless(result: Result) -> Result:
        return replace(result, kernels=("a", "b")[: len(result.kernels)])

    def cool(result: Result) -> Result:
        return replace(result, measurement=replace(result.measurement, throttle=()))

    assert verdicts(DEVELOPED, nameless) == {("layout", "wrong")}
    hot = [plant for plant in DEVELOPED if plant.condition == "power"]
    assert verdicts(hot, cool) == {("power", "not applicable")}


def test_the_scripts_write_what_they_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # of the run
    files = [tmp_path / name for name in ("plants.json", "aa.json", "splits.json")]
    cpu = ["--device", "cpu"]
    assert plants.main([str(files[0]), *cpu, "--budget", "0.5"]) in (0, 1)  # by how busy it is
    assert aa.main([str(files[1]), *cpu, "--tries", "2", "--budget", "0.02"]) == 0
    runs = [str(ROOT / "results/nvidia-h200/processes-train.json")]
    assert splits.main([str(files[2]), "compare", *runs, "--tries", "3"]) == 0
    planted, same, split = (json.loads(file.read_text()) for file in files)
    assert planted["counted"] <= len(planted["rows"]) == 7
    assert same["tries"] == len(same["rows"]) == 2
    assert split["pairs"] == sum(row["pairs"] for row in split["rows"]) > 0
    capsys.readouterr()
    assert splits.main([str(tmp_path / "b"), "compare", str(files[0])]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit):
        aa.main([str(files[1]), *cpu])  # which is there already
