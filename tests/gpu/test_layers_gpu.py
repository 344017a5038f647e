"""On a GPU: every pass of attention and of linear layers is right, or says why it cannot run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import product

import pytest
import torch
from samples.measuring import measured, measurer_of, ready_or_why
from samples.scaled_blocks import product_error

from kernels import OPS
from kernels.attention import LAYOUTS, PASSES, Attention
from kernels.case import Case
from kernels.linear import LAYOUTS as LAUNCHED
from kernels.linear import PASSES as PRODUCTS
from kernels.linear import Linear
from kernels.linear.operands import BLOCK_SCALED
from kernels.linear.torch_linear import captured
from kernels.op import Session
from kernels.precision import PRECISIONS
from microbench.device.device import DeviceInfo
from microbench.device.profiler import record

# ---------------------------------------------------------------- attention

BACKENDS = [name for name in OPS["attention"].backends if name != "cpu"]
SHAPES = {
    "usual": (2, 4, 4, 512, 64), "shared heads": (2, 8, 2, 512, 128), "odd": (1, 3, 3, 333, 40),
    "large heads": (1, 2, 2, 256, 256), "one query": (4, 2, 2, 1, 64), "odd size": (1, 2, 1, 9, 33),
}  # fmt: skip
HALVES_OF_USUAL = {"torch", "cudnn", "flash", "efficient", "math"}  # run on every card from 9.0


@pytest.mark.quick
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_of_every_back_end_is_right_or_says_why_it_cannot(
    shape: str, which: str, layout: str, session: Session, gpu: DeviceInfo
) -> None:
    ran: set[tuple[str, str]] = set()
    for precision, backend in product(("fp32", "tf32", "fp16", "bf16"), BACKENDS):
        case = Case(Attention(*SHAPES[shape], which, layout), precision, backend)
        prepared, _ = ready_or_why(session, case)
        if prepared is None:
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


def test_rows_of_few_keys_are_right_in_long_sequences(session: Session) -> None:
    """Kernels subtract dO on an O that was rounded, so their errors are those of larger terms."""
    for backend in ("cudnn", "flash"):
        case = Case(Attention(1, 8, 2, 16384, 128, "bprop"), "bf16", backend)
        prepared, reason = ready_or_why(session, case)
        assert prepared, reason
        assert prepared.rel_error(prepared.candidates[0]) < case.tolerance / 2


@pytest.mark.parametrize("which", PASSES)
def test_each_is_timed_and_torchs_pick_runs_the_kernels_of_the_back_end_it_names(
    which: str, gpu: DeviceInfo, session: Session
) -> None:
    problem = Attention(2, 8, 8, 1024, 64, which)
    cases = [Case(problem, "fp16", backend) for backend in BACKENDS]
    results = measured(measurer_of(gpu, timer="events"), *cases, budget_s=2.0)
    assert [(r.case.backend, r.status, r.reason) for r in results] == [
        (backend, "ok", None) for backend in BACKENDS
    ]
    by = {result.case.backend: result for result in results}
    picked = by["torch"].variant
    assert picked in BACKENDS[1:]
    assert set(by["torch"].kernels) == set(by[picked].kernels)
    torch.cuda.synchronize()
    assert record(session.prepare(cases[0]).candidates[0].call)


# ---------------------------------------------------------------- linear layers

NAMES = ["bf16", *(name for name, kind in PRECISIONS.items() if kind.only == "linear")]
# What Hopper must do; blocks of 128 need cuBLAS 12.9 too.
MUST_RUN = {"bf16": (8, 0), "fp8-tensor": (8, 9), "fp8-row": (9, 0), "mxfp8": (10, 0),
            "nvfp4": (10, 0)}  # fmt: skip
SIZES = [(256, 384, 512), (512, 128, 640)]  # of blocks, no whole fours too


@pytest.mark.parametrize("layout", LAUNCHED)
@pytest.mark.parametrize("which", PRODUCTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_pass_of_a_linear_layer_is_right_or_says_why_not(
    name: str, which: str, layout: str, session: Session
) -> None:
    able = (session.target.capability or (0, 0)) >= MUST_RUN.get(name, (99, 0))
    ran = ""
    for sizes, backend in product(SIZES, ("torch", "torchao") if which == "step" else ("torch",)):
        what = Case(Linear(*sizes, which, layout), name, backend)
        ready, reason = ready_or_why(session, what)
        assert ready or not able or backend == "torchao", reason
        if ready is None:
            ran = ran or reason
            continue
        ran = "yes"
        (launch,) = ready.candidates
        assert launch.launched == (layout not in ("graph", "quantised"))
        assert ready.rel_error(launch) <= what.tolerance
        if name != "bf16" and not what.problem.may_run_exactly(what.precision, backend):
            assert ready.rel_error(launch) > what.precision.least_error  # FP8 did run
        ready.renew()
        assert ready.rel_error_again(launch, lambda sampled: sampled()) <= what.tolerance
    if ran != "yes":
        pytest.skip(ran)


@pytest.mark.parametrize("name", BLOCK_SCALED)
def test_products_of_block_scaled_matrices_are_those_of_the_float64_emulation(
    name: str, session: Session
) -> None:
    what = Case(Linear(256, 256, 384, "fprop", "quantised"), name, "torch")
    ready, reason = ready_or_why(session, what)
    if ready is None:
        pytest.skip(reason)
    assert product_error(name, "cuda") < what.precision.rel_tolerance
    for places in (4, 16):  # 32 rows off, a row off
        planted = {"stored": lambda one, by=places: one.view(torch.uint8).roll(by).view(one.dtype)}
        assert product_error(name, "cuda", planted) > what.precision.rel_tolerance


@pytest.mark.quick
def test_a_comparison_is_timed_as_launched_and_as_a_graph(gpu: DeviceInfo) -> None:
    for layout in ("graph", "launched", "quantised"):
        problem = Linear(2048, 1024, 1024, "step", layout)
        able = [
            name for name, since in MUST_RUN.items() if (gpu.target().capability or (0,)) >= since
        ]
        cases = [Case(problem, name, "torch") for name in able]
        for result in measured(measurer_of(gpu), *cases, budget_s=1.0):
            assert result.status == "ok", result.reason
            assert result.kernels
            if result.case.precision_name != "bf16":
                assert result.speedup["bf16"].ratio > 0
    torch.cuda.synchronize()


def test_a_captured_call_keeps_the_memory_that_it_reads() -> None:
    def doubled() -> Callable[[], Sequence[torch.Tensor]]:
        weight = torch.ones(1 << 24, device="cuda")
        return captured(lambda: [2 * weight])

    replay = doubled()
    gc.collect()
    torch.cuda.empty_cache()
    torch.full((1 << 24,), 7.0, device="cuda")
    (result,) = replay()
    assert (result == 2).all()
