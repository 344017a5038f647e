"""On a GPU: the selftest's defective GEMMs are right, and their defects cost time."""

from __future__ import annotations

import pytest
import torch

from kernels import OPS
from kernels.case import Case
from microbench.device.device import DeviceInfo, describe
from microbench.selftest.independent import independent_plants
from microbench.selftest.judge import DEFECT_COSTS
from microbench.selftest.plant import Plant
from microbench.timing.stats import median
from microbench.timing.timers import Timer, make_timer

pytestmark = pytest.mark.gpu
PLANTS = [plant for plant in independent_plants() if not plant.control]
CASES = {case.key: case for plant in PLANTS for case in (plant.subject, *plant.companions)}


@pytest.fixture(scope="module")
def gpu() -> DeviceInfo:
    return describe("cuda")


@pytest.fixture(scope="module")
def timer(gpu: DeviceInfo) -> Timer:
    return make_timer("auto", "cold", gpu.kind, gpu.index, gpu.l2_bytes, gpu.sm_count)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_defective_gemm_is_right(case: Case, gpu: DeviceInfo) -> None:
    prepared = OPS["gemm"].session(gpu.target(), 0).prepare(case)
    assert prepared.rel_error(prepared.candidates[0]) <= OPS["gemm"].tolerance(case)


@pytest.mark.parametrize("plant", PLANTS, ids=[plant.name for plant in PLANTS])
def test_a_defect_costs_time(plant: Plant, gpu: DeviceInfo, timer: Timer) -> None:
    session = OPS["gemm"].session(gpu.target(), 0)

    def seconds(case: Case) -> float:
        launch = session.prepare(case).candidates[0].call
        timer.run(launch, 3)
        torch.cuda.synchronize()
        return median(timer.block(launch, 15).times_s)

    assert seconds(plant.subject) > DEFECT_COSTS * seconds(plant.companions[0])
