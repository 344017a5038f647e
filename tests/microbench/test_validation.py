"""The checks of the method: plants on a made-up device, and each script on a CPU; a new GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from samples.kernel_runs import case, measured, run_of, shown
from samples.measuring import timed

from kernels import OPS, gpus
from kernels.case import Case, Target
from kernels.gemm import cublaslt_api
from kernels.gemm.triton import config as gemm_config
from kernels.gpu_cards import CARDS
from kernels.precision import PRECISIONS, Precision
from microbench.device.device import DeviceInfo
from microbench.report.report import report_of
from microbench.results.codec import run_from_json, run_to_json
from microbench.results.types import Ceiling, Result, Run
from microbench.roofline.ceilings import datasheet_ceilings
from microbench.roofline.explain import annotate
from microbench.roofline.limits import limits_for
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
        assert result.measurement
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


# ---------------------------------------------------------------- a new GPU


NAME, CAPABILITY, SMS = "NVIDIA Zeta 7", (13, 1), 20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A made-up GPU of little shared memory."""
    card = replace(
        CARDS[0], title="Zeta 7", match=(NAME,), capability=CAPABILITY, sms=SMS,
        flop_per_s={"fp16": 9e12, "fp8": 18e12}, simt_flop_per_s={"fp16": 1e12},
        byte_per_s=5e11, reference="https://example.org/zeta",
    )  # fmt: skip
    chip = gpus.Architecture(
        "Zeta", 40 * gpus.KIB, flop_per_clock={"fp16": 256, "fp8": 512}, l2_in_halves=True
    )
    monkeypatch.setattr(gpus, "CARDS", (*CARDS, card))
    monkeypatch.setattr(gpus, "ARCHITECTURES", {**gpus.ARCHITECTURES, CAPABILITY: chip})
    return Target("cuda", NAME, CAPABILITY, SMS)


def test_ceilings_and_limits_of_a_new_gpu(gpu: Target) -> None:
    ceilings = datasheet_ceilings(gpu.name, ["fp16", "fp8-e5m2", "bf16"])
    assert [(c.name, c.precision, c.flop_per_s, c.byte_per_s) for c in ceilings] == [
        ("dense peak", "fp16", 9e12, None), ("dense peak", "fp8-e5m2", 18e12, None),
        ("without Tensor Cores", "fp16", 1e12, None), ("memory", None, None, 5e11),
    ]  # fmt: skip
    assert {c.reference for c in ceilings} == {"https://example.org/zeta"}
    device = {"kind": "cuda", "name": gpu.name, "capability": "13.1", "sm_count": SMS}
    result = measured(case(4096, "fp16", "cublas"), 3)
    run = run_of([result], ceilings=tuple(ceilings), device=device)
    limits = limits_for(result, run)
    assert limits.datasheet_flop_per_s == 9e12
    assert result.measurement is not None
    assert limits.clock_flop_per_s == 256 * SMS * result.measurement.sm_clock_mhz * 1e6
    assert limits.simt_flop_per_s == 1e12
    assert "Zeta 7" in shown(run)
    found = gemm_config.choices(gemm_config.GemmProblem.of(result.case), CAPABILITY, SMS)
    assert 0 < max(gemm_config.shared_memory(c, PRECISIONS["fp16"]) for c in found) <= 40 * gpus.KIB


def test_a_new_precision_needs_one_entry(gpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """e5m2 x e4m3 added up in float32: stored and multiplied in ways that the back ends know."""
    name = "fp8-e5m2-precise"
    new = replace(PRECISIONS["fp8-e5m2"], name=name, fast_accumulate=False)
    monkeypatch.setitem(cast("dict[str, Precision]", PRECISIONS), name, new)
    what = case(4096, name, "triton")
    OPS["gemm"].check(what, gpu)
    assert datasheet_ceilings(gpu.name, [name])[0].flop_per_s == 18e12
    assert cublaslt_api.arithmetic(new) == cublaslt_api.arithmetic(PRECISIONS["fp8-e5m2"])
    found = gemm_config.choices(gemm_config.GemmProblem.of(what), (9, 0), 132)
    assert found
    run = run_of([measured(case(4096, p, "cublas"), 600) for p in ("fp16", name)])
    read = run_from_json(json.loads(json.dumps(run_to_json(run))))
    assert read.results[1].case.precision is new
    assert name in shown(run)
    assert report_of(run).chart().to_dict()
