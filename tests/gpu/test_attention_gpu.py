"""On a GPU: every pass, mask, precision and back end of attention is right, or says why not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from samples.measuring import refusal

from kernels import OPS
from kernels.attention import LAYOUTS, PASSES, Attention
from kernels.case import CannotRun, Case
from kernels.op import Session
from microbench.device.device import DeviceInfo, open_telemetry
from microbench.device.profiler import record
from microbench.measure import Measurer
from microbench.sweep import Group
from microbench.timing.timers import make_timer

BACKENDS = [name for name in OPS["attention"].backends if name != "cpu"]
SHAPES = {
    "usual": (2, 4, 4, 512, 64), "shared heads": (2, 8, 2, 512, 128), "odd": (1, 3, 3, 333, 40),
    "large heads": (1, 2, 2, 256, 256), "one query": (4, 2, 2, 1, 64), "odd size": (1, 2, 1, 9, 33),
}  # fmt: skip
HALVES_OF_USUAL = {"torch", "cudnn", "flash", "efficient", "math"}  # run on every card from 9.0


@pytest.fixture(scope="module")
def session(gpu: DeviceInfo) -> Iterator[Session]:
    made = Session(gpu.target(), 0)
    yield made
    made.close()


@pytest.mark.quick
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_back_end_is_right_or_says_why_it_cannot(
    shape: str, which: str, layout: str, session: Session, gpu: DeviceInfo
) -> None:
    ran: set[tuple[str, str]] = set()
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        for backend in BACKENDS:
            case = Case(Attention(*SHAPES[shape], which, layout), precision, backend)
            if refusal(OPS["attention"].check, case, gpu.target()):
                continue
            try:
                prepared = session.prepare(case)
            except CannotRun:  # with torch's own reason
                continue
            (candidate,) = prepared.candidates
            assert prepared.rel_error(candidate) < case.tolerance, case.key
            prepared.renew()
            again = prepared.rel_error_again(candidate, lambda launch: launch())
            assert again < case.tolerance, case.key
            ran.add((precision, backend))
    assert {("fp32", "torch"), ("fp32", "math"), ("fp16", "torch"), ("bf16", "math")} <= ran
    if shape == "usual" and gpu.target().capability == (9, 0):
        assert {(p, b) for p in ("fp16", "bf16") for b in HALVES_OF_USUAL} <= ran


@pytest.mark.parametrize("which", PASSES)
def test_each_is_timed_and_torchs_pick_runs_the_kernels_of_the_back_end_it_names(
    which: str, gpu: DeviceInfo, session: Session
) -> None:
    problem = Attention(2, 8, 8, 1024, 64, which)
    group = Group(tuple(Case(problem, "fp16", backend) for backend in BACKENDS))
    telemetry = open_telemetry(gpu)
    with telemetry:
        timer = make_timer("events", "cold", "cuda", gpu.index, gpu.l2_bytes, gpu.sm_count)
        measurer = Measurer(gpu.target(), timer, telemetry, "sustained", 0)
        results = measurer.measure(group, 2.0, lambda key, stage: None)
    assert [(r.case.backend, r.status, r.reason) for r in results] == [
        (backend, "ok", None) for backend in BACKENDS
    ]
    by = {result.case.backend: result for result in results}
    picked = by["torch"].variant
    assert picked in BACKENDS[1:]
    assert set(by["torch"].kernels) == set(by[picked].kernels)
    torch.cuda.synchronize()
    assert record(session.prepare(group.cases[0]).candidates[0].call)
