"""On a GPU: linear layers in bf16 and FP8 are right in every pass, by each way to launch them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels import OPS
from kernels.case import CannotRun, Case
from kernels.linear import LAYOUTS, PASSES, Linear
from kernels.op import Session
from kernels.precision import PRECISIONS
from microbench.device.device import DeviceInfo, open_telemetry
from microbench.measure import Measurer
from microbench.sweep import Group
from microbench.timing.timers import make_timer

NAMES = ["bf16", *(name for name, kind in PRECISIONS.items() if kind.only == "linear")]
# What Hopper must do; blocks of 128 need cuBLAS 12.9 too.
MUST_RUN = {"bf16": (8, 0), "fp8-tensor": (8, 9), "fp8-row": (9, 0)}
SIZES = [(256, 384, 512), (512, 128, 640)]  # of blocks, no whole fours too


@pytest.fixture
def session(gpu: DeviceInfo) -> Iterator[Session]:
    made = Session(gpu.target(), 0)
    yield made
    made.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", NAMES)
def test_every_pass_is_right_or_says_why_not(
    name: str, which: str, layout: str, session: Session, gpu: DeviceInfo
) -> None:
    for sizes in SIZES:
        for backend in ("torch", "torchao") if which == "step" else ("torch",):
            what = Case(Linear(*sizes, which, layout), name, backend)
            ready, reason = None, ""
            try:
                OPS["linear"].check(what, gpu.target())
                ready = session.prepare(what)
            except CannotRun as error:
                reason = str(error)
            able = (gpu.target().capability or (0, 0)) >= MUST_RUN.get(name, (99, 0))
            assert ready or not able or backend == "torchao", reason
            if ready is None:
                continue
            (launch,) = ready.candidates
            assert launch.launched == (layout not in ("graph", "quantised"))
            assert ready.rel_error(launch) <= what.tolerance
            if name != "bf16" and not what.problem.may_run_exactly(what.precision, backend):
                assert ready.rel_error(launch) > what.precision.least_error  # FP8 did run
            ready.renew()
            assert ready.rel_error_again(launch, lambda sampled: sampled()) <= what.tolerance


@pytest.mark.quick
def test_a_comparison_is_timed_as_launched_and_as_a_graph(gpu: DeviceInfo) -> None:
    timer = make_timer("auto", "cold", gpu.kind, gpu.index, gpu.l2_bytes, gpu.sm_count)
    measurer = Measurer(gpu.target(), timer, open_telemetry(gpu), "sustained", 0)
    with measurer.telemetry:
        for layout in ("graph", "launched", "quantised"):
            problem = Linear(2048, 1024, 1024, "step", layout)
            cases = tuple(Case(problem, name, "torch") for name in MUST_RUN)
            for result in measurer.measure(Group(cases), 1.0, lambda *_: None):
                assert result.status == "ok", result.reason
                assert result.kernels
                if result.case.precision_name != "bf16":
                    assert result.speedup["bf16"].ratio > 0
    torch.cuda.synchronize()
