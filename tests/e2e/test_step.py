"""Every nanosecond of the steps belongs to one operation, with and without the profiler."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.traces import BACKWARD, MAIN, MS, US, Made, Tape, begun, recorded, traces
from samples.train_cases import Checkpointed
from samples.training_runs import variant
from torch import Tensor, nn

from e2e.profile import halfway_watch
from e2e.profile.causes import LIKELY, POSSIBLE, Gain
from e2e.profile.diagnosis import Diagnosis, Traced, diagnose
from e2e.profile.products import products
from e2e.profile.step import NothingSeen, Op, Step, step_of
from e2e.profile.trace import read_trace
from e2e.profile.training_steps import traced_step
from e2e.profile.unprofiled import Unprofiled, mean_interval, steps_in
from e2e.report.diagnosis import report
from e2e.results import terms
from e2e.results import terms as t
from e2e.results.ledger import ledger
from e2e.results.terms import LAUNCH, LOADER, PYTHON, SYNC, TERMS
from e2e.training.float8 import convert
from microbench.errors import UserError

LAUNCHES = ("cudaLaunchKernel", "cudaGraphLaunch")
NODE = "autograd::engine::evaluate_function: "


def step(made: Made, folder: Path, shift_ns: int = 0) -> Step:
    """Its steps, whose operations follow one another without gap or overlap."""
    found = step_of(read_trace(made.write(folder / "trace.json", shift_ns)))
    edges = [found.start, *(op.end for op in found.ops)]
    assert [op.start for op in found.ops] == edges[:-1]
    assert edges[-1] == found.end
    assert all(op.ns > 0 for op in found.ops)
    assert sum(found.recorded.values()) == found.end - found.start
    return found


def terms_of(made: Made, folder: Path) -> dict[str, int]:
    """The terms of the second of two steps of 10 ms."""
    found = step(made, folder)
    assert (found.start, found.end, found.steps) == (10 * MS, 20 * MS, 1)
    return dict(found.recorded)


def of_kernels(made: Made, folder: Path) -> dict[str, Op]:
    return {op.kernel: op for op in step(made, folder).ops if op.kernel}


def two_steps() -> Made:
    """The second one ends with a product from 19 to 20 ms, launched at 17.01 ms."""
    made = begun(9 * MS, 18 * MS)
    made.op("aten::mm", 17 * MS, 17 * MS + 50 * US)
    made.kernel("gemm", 19 * MS, 20 * MS, 17 * MS + 10 * US)
    return made


def busy(made: Made, start: int, end: int, in_a_module: bool = True) -> None:
    """Operators that come every 0.4 ms, and launch nothing: of a module, or the script's own."""
    if in_a_module:
        made.note("halfway::net", start, end)
    for at in range(start, end, 400 * US):
        made.op("aten::view", at, at + US)


# ---------------------------------------------------------------- what the device waits for


@pytest.mark.parametrize("in_a_module", [True, False])
def test_time_without_work_is_the_cpu_s_till_it_launches(in_a_module: bool, tmp_path: Path) -> None:
    """Launched at 17.01 ms, begun at 19: it was under way. A stream that waits delays no CPU."""
    made = two_steps()
    made.span("cuda_runtime", "cudaStreamWaitEvent", 10 * MS, 10 * MS + 10 * US)
    busy(made, 10 * MS, 17 * MS, in_a_module)
    own = {} if in_a_module else {PYTHON: 7 * MS - 10 * US}
    launch = 9 * MS - sum(own.values())
    assert terms_of(made, tmp_path) == {LAUNCH: launch, t.MATRIX_PRODUCTS: MS, **own}


@pytest.mark.parametrize(("launched", "late"), [(9 * MS + 10 * US, 0), (10 * MS - 500, 5 * US)])
def test_work_that_was_queued_is_between_kernels(launched: int, late: int, tmp_path: Path) -> None:
    """But not where the call that launches it had not returned yet."""
    made = two_steps()
    made.op("aten::relu", 9 * MS, 10 * MS + 50 * US)
    made.kernel("relu", 10 * MS + 5 * US, 18 * MS, launched)
    found = terms_of(made, tmp_path)
    assert found[t.BETWEEN] == 5 * US + MS - late  # the product too was launched before 18 ms
    assert found.get(LAUNCH, 0) == late
    assert found[TERMS["activation"]] == 8 * MS - 5 * US


@pytest.mark.parametrize("in_a_module", [True, False])
def test_what_follows_a_synchronisation_is_its_price(in_a_module: bool, tmp_path: Path) -> None:
    """But not what the script does meanwhile, without an operator."""
    made = two_steps()
    made.op("aten::item", 9 * MS, 10 * MS + 20 * US)
    made.span("cuda_runtime", "cudaStreamSynchronize", 9 * MS, 10 * MS + 10 * US)
    busy(made, 10 * MS + 20 * US, 17 * MS, in_a_module)
    found = terms_of(made, tmp_path)
    own = 0 if in_a_module else 7 * MS - 20 * US
    assert found.get(PYTHON, 0) == own
    assert found[SYNC] == 7 * MS + 10 * US - own
    assert found[LAUNCH] == 2 * MS - 10 * US  # launched, on its way


def test_a_wait_of_the_main_thread_delays_what_autograd_launches(tmp_path: Path) -> None:
    made = begun(9 * MS, 18 * MS)
    made.span("cuda_runtime", "cudaStreamSynchronize", 9 * MS, 10 * MS + 10 * US, MAIN)
    # Another thread, the loader's, waits for its own work.
    made.span("cuda_runtime", "cudaEventSynchronize", 12 * MS, 15 * MS, 300)
    busy(made, 10 * MS, 16 * MS)
    made.op(f"{NODE}MmBackward0", 16 * MS, 17 * MS, BACKWARD)
    made.op("aten::mm", 16 * MS + US, 17 * MS - US, BACKWARD)
    made.kernel("dgrad", 16 * MS + 20 * US, 20 * MS, 16 * MS + 10 * US, BACKWARD)
    found = terms_of(made, tmp_path)
    assert found == {SYNC: 6 * MS + 10 * US, LAUNCH: 10 * US, t.MATRIX_PRODUCTS: 4 * MS - 20 * US}


def test_without_a_device_operators_are_the_work(tmp_path: Path) -> None:
    made = Made()
    made.steps(10 * MS, 20 * MS)
    made.op("aten::linear", 11 * MS, 19 * MS)
    made.op("aten::addmm", 12 * MS, 16 * MS)
    made.note("enumerate(DataLoader)#_Iter.__next__", 10 * MS, 10 * MS + 300 * US)
    found = terms_of(made, tmp_path)
    assert found == {t.MATRIX_PRODUCTS: 8 * MS, PYTHON: 1_700 * US, LOADER: 300 * US}
    # Not when what it launched last is.
    made = two_steps()
    made.kernel("long", 9 * MS, 11 * MS, 7 * MS, stream=8)
    made.kernel("longer", 18 * MS, 21 * MS, 16 * MS, stream=8)
    found = step(made, tmp_path)
    assert (found.start, found.end) == (11 * MS, 21 * MS)


# ---------------------------------------------------------------- what works


def test_communication_and_copies_count_only_where_no_computing_hides_them(tmp_path: Path) -> None:
    """On any GPU. What only communicates until the CPU launches more is late, from 14 to 15 ms."""
    made = two_steps()
    made.op("aten::convolution", 9 * MS, 9 * MS + 50 * US)
    made.kernel("conv", 10 * MS, 14 * MS, 9 * MS + 10 * US)
    made.events[-1]["args"]["device"] = 1
    made.kernel("Memcpy PtoP (Device -> Device)", 12 * MS, 13 * MS, 9 * MS + 20 * US, stream=8)
    made.kernel("ncclDevKernel_AllReduce", 13 * MS, 16 * MS, 9 * MS + 20 * US, stream=8)
    made.kernel("Memcpy HtoD (Pinned -> Device)", 13 * MS, 17 * MS, 9 * MS + 30 * US, stream=9)
    made.kernel("relu", 17 * MS, 18 * MS, 15 * MS)
    found = terms_of(made, tmp_path)
    ms = [found[term] / MS for term in (t.CONVOLUTIONS, t.LATE, t.COMMUNICATION, t.COPIES)]
    assert ms == [4, 1, 1, 1]


@pytest.mark.parametrize("ending", ["", "Backward"])
def test_what_fp8_takes_beside_its_products_has_a_term(ending: str, tmp_path: Path) -> None:
    made = two_steps()
    made.op(f"matmul_with_hp_or_float8_args{ending}", 9 * MS, 10 * MS)
    made.op("aten::amax", 9 * MS, 9 * MS + 20 * US)
    made.kernel("reduce", 10 * MS, 12 * MS, 9 * MS + 10 * US)
    made.op("aten::_scaled_mm", 9 * MS + 40 * US, 9 * MS + 60 * US)
    made.kernel("gemm", 12 * MS, 16 * MS, 9 * MS + 50 * US)
    found = terms_of(made, tmp_path)
    assert (found[t.FLOAT8], found[t.MATRIX_PRODUCTS]) == (2 * MS, 5 * MS)


@pytest.mark.parametrize(
    ("op", "types", "kernel", "term"),
    [
        ("aten::copy_", ["c10::BFloat16", "float"], "elementwise", TERMS["cast"]),
        ("aten::copy_", ["float", "float"], "elementwise", TERMS["copy"]),
        ("aten::addmm", [], "sm90_gemm", t.MATRIX_PRODUCTS),
        ("aten::cudnn_convolution", [], "sm90_xmma", t.CONVOLUTIONS),
        ("aten::cudnn_convolution", [], "nchwToNhwcKernel", "layout changes"),
        ("aten::_scaled_dot_product_flash_attention", [], "flash_fwd", "attention"),
        ("aten::native_batch_norm", [], "bn", TERMS["norm"]),
        ("aten::_foreach_add_", [], "multi_tensor", TERMS["elementwise"]),
        ("aten::_fused_adam_", [], "multi_tensor", TERMS["optimizer"]),
        ("mine::unknown", [], "mine", t.OTHER),
        ("mine::unknown", [], "triton_red_fused_mean_2", t.FUSED_REDUCTIONS),
        ("mine::unknown", [], "triton_poi_fused__to_copy_0", TERMS["cast"]),
        ("mine::unknown", [], "triton_poi_fused__to_copy_add_0", t.FUSED_ELEMENTWISE),
        # no layout change
        ("mine::unknown", [], "triton_poi_fused_convolution_transpose_1", t.FUSED_ELEMENTWISE),
        ("mine::unknown", [], "triton_tem_fused_addmm_relu_5", t.MATRIX_PRODUCTS),
        ("mine::unknown", [], "triton_tem_fused_convolution_5", t.CONVOLUTIONS),
        ("mine::unknown", [], "triton_tem_fused_flex_attention_0", "attention"),
        ("mine::unknown", [], "triton_for_fused_9", t.FUSED_KERNELS),
        ("mine::unknown", [], "my_triton_kernel", t.OTHER),
    ],
)
def test_the_operator_around_a_kernel_or_else_its_name_says_its_term(
    tmp_path: Path, op: str, types: list[str], kernel: str, term: str
) -> None:
    for update in (False, True):
        made = two_steps()
        if update:
            made.note("Optimizer.step#Adam.step", 9 * MS - US, 9 * MS + 60 * US)
        made.op(op, 9 * MS, 9 * MS + 50 * US, **{"Input type": types})
        made.kernel(kernel, 10 * MS, 16 * MS, 9 * MS + 10 * US)
        found = of_kernels(made, tmp_path)[kernel]
        moved = kernel.startswith("nchw")
        assert found.term == (TERMS["optimizer"] if update and not moved else term)
        assert (found.ns, found.phase == "optimizer") == (6 * MS, update)


def test_backward_work_belongs_to_the_module_of_its_last_forward_operator(tmp_path: Path) -> None:
    made = two_steps()
    made.note("halfway::", 1 * MS, 3 * MS)
    made.note("halfway::body.conv", 1 * MS, 2 * MS)
    # A cast makes no node: it carries the number of the convolution that follows it.
    made.op("aten::_to_copy", 1 * MS, 1 * MS + 10 * US, **{"Sequence number": 7})
    made.op("aten::convolution", 1 * MS + 20 * US, 2 * MS, **{"Sequence number": 7})
    made.op(f"{NODE}ConvolutionBackward0", 9 * MS, 10 * MS, BACKWARD, **{"Sequence number": 7})
    made.op("aten::convolution_backward", 9 * MS, 10 * MS - US, BACKWARD)
    made.kernel("dgrad", 10 * MS, 15 * MS, 9 * MS + 10 * US, BACKWARD)
    found = of_kernels(made, tmp_path)["dgrad"]
    assert found.term == t.CONVOLUTIONS
    assert (found.module, found.phase, found.ns) == ("body.conv", "backward", 5 * MS)


def test_the_loss_is_forward_and_what_has_no_node_in_backward_is_elsewhere(tmp_path: Path) -> None:
    """Also in a closure that the optimizer calls."""
    made = two_steps()
    at = 9 * MS
    made.note("Optimizer.step#SGD.step", at, at + 700 * US)
    made.note("halfway::net", at, at + 50 * US)
    made.op(f"{NODE}LossBackward0", at + 400 * US, at + 450 * US, BACKWARD,
            **{"Sequence number": 8})  # fmt: skip
    for number, (kernel, args) in enumerate(
        {"net": {}, "loss": {"Sequence number": 8}, "update": {"Sequence number": 9}}.items()
    ):
        begin = at + number * 100 * US
        made.op("aten::mul", begin, begin + 20 * US, **args)
        made.kernel(kernel, begin + MS, begin + MS + 50 * US, begin + 10 * US)
    made.op("aten::mul_", 10 * MS, 10 * MS + 50 * US, **{"Sequence number": 9})
    made.kernel("average", 10 * MS + 400 * US, 11 * MS, 10 * MS + 10 * US)
    phases = {name: op.phase for name, op in of_kernels(made, tmp_path).items()}
    assert [phases[name] for name in ("net", "loss", "update", "average")] == [
        "forward", "forward", "optimizer", "elsewhere"
    ]  # fmt: skip


# ---------------------------------------------------------------- compiled code, graphs

REGION, GRAPH = "Torch-Compiled Region: 0/0", "## Call CompiledFxGraph fabc ##"
POINTWISE, REDUCTION = "triton_poi_fused_add_relu_3", "triton_per_fused_native_layer_norm_1"


def test_compiled_code_says_what_it_fused_and_compilation_is_no_launch(tmp_path: Path) -> None:
    """Two fused kernels, launched by the driver without an operator of their own."""
    made = begun(9 * MS, 18 * MS)
    made.op(REGION, 10 * MS, 14 * MS)
    made.op("CompiledFunction", 10 * MS + US, 13 * MS)
    made.note(GRAPH, 10 * MS + 2 * US, 13 * MS - US)
    made.op("aten::mm", 11 * MS, 11 * MS + 50 * US)
    made.kernel("nvjet_hsh_128x128", 12 * MS, 15 * MS, 11 * MS + 10 * US)
    for number, (name, start, end) in enumerate(((POINTWISE, 15, 17), (REDUCTION, 17, 20)), 1):
        made.kernel(name, start * MS, end * MS, 11 * MS + number * 100 * US)
        made.events[-2].update(cat="cuda_driver", name="cuLaunchKernel")
    assert terms_of(made, tmp_path) == {
        t.MATRIX_PRODUCTS: 3 * MS, t.FUSED_REDUCTIONS: 3 * MS, t.FUSED_ELEMENTWISE: 2 * MS,
        LAUNCH: 2 * MS,
    }  # fmt: skip
    found = of_kernels(made, tmp_path)
    assert {op.phase for op in found.values()} == {"forward"}
    assert (found[REDUCTION].what, found[POINTWISE].what) == ("native_layer_norm", "add_relu")

    made.op("dynamo", 10 * MS - 500 * US, 10 * MS + 900 * US)
    made.op("_compile.compile_inner (dynamo_timed)", 10 * MS - 400 * US, 10 * MS + 800 * US)
    made.span("cuda_runtime", "cudaDeviceSynchronize", 10 * MS, 10 * MS + 500 * US)
    made.events = [e for e in made.events if e["name"] not in (REGION, "CompiledFunction", GRAPH)]
    compiling = terms_of(made, tmp_path)
    assert (compiling[t.COMPILATION], compiling[LAUNCH]) == (900 * US, 1_100 * US)


def graph_step(*names: str) -> Made:
    """A step to 10 ms, and one that replays a graph, launched at 11 ms, with a kernel each ms.

    Those without a name were not recorded. The first ones run before the call returns.
    """
    made = begun(9 * MS, 18 * MS)
    made.span("cuda_runtime", "cudaGraphLaunch", 11 * MS, 14 * MS, correlation=77)
    for node, name in ((node, name) for node, name in enumerate(names) if name):
        made.span(
            "kernel", name, (12 + node) * MS, (13 + node) * MS - 5 * US, 7, correlation=77,
            stream=7, device=0, **{"graph id": 3, "graph node id": node},
        )  # fmt: skip
    return made


def test_kernels_of_a_graph_are_told_by_their_names(tmp_path: Path) -> None:
    made = graph_step(
        "nvjet_hsh_64x64", "sm90_xmma_fprop_implicit_gemm_f16f16", POINTWISE,
        "void at::native::vectorized_elementwise_kernel<4, add>", "", "mystery",
    )  # fmt: skip
    each = MS - 5 * US
    assert step(made, tmp_path).recorded == {
        PYTHON: MS, LAUNCH: MS, t.MATRIX_PRODUCTS: each, t.CONVOLUTIONS: each,
        t.FUSED_ELEMENTWISE: each, TERMS["elementwise"]: each, t.OTHER: each, t.BETWEEN: 3 * 5 * US,
        t.NOT_RECORDED: MS + 5 * US,
    }  # fmt: skip


# ---------------------------------------------------------------- what is refused


def test_a_trace_that_lost_kernels_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    lost = two_steps()
    lost.span("cuda_runtime", "cudaLaunchKernel", 9 * MS, 9 * MS + US, correlation=9999)
    silent = Made()
    silent.steps(9 * MS, 18 * MS)
    still = Made()
    still.op("aten::mm", 0, 9 * MS)
    still.steps(9 * MS, 18 * MS)
    for made, said in (
        (lost, "lost 1 of 3 kernels"),
        (graph_step(), "lost 1 of 2 kernels"),  # of a graph no kernel was seen
        (silent, "no operators"),
        (begun(9 * MS, traced=1), "no whole step"),
    ):
        with pytest.raises(NothingSeen, match=said):
            step(made, tmp_path)
    with pytest.raises(UserError, match="damaged"):
        step(begun(9 * MS, 18 * MS, lead_in="one"), tmp_path)


@settings(max_examples=20)
@given(made=traces(), others=st.integers(0, 250), seed=st.integers(0, 99), zeroed=st.booleans())
def test_a_trace_that_lost_over_a_hundredth_of_its_kernels_is_refused(
    made: Made, others: int, seed: int, zeroed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Enough launches beside the steps that some losses are below the limit.
    for number in range(others):
        made.kernel("k", 10**9 + number * US, 10**9 + (number + 1) * US, 10**9)
    kernels = [e for e in made.events if e["cat"] == "kernel" and "graph id" not in e["args"]]
    launched = sum(event["name"] in LAUNCHES for event in made.events)
    drawn = random.Random(seed)
    lost = drawn.randint(0, min(6, len(kernels) - 1))
    for event in drawn.sample(kernels, lost):  # kineto loses them, or writes zeros
        if zeroed:
            event.update(ts=0, dur=0)
        else:
            made.events.remove(event)
    folder = tmp_path_factory.mktemp("t")
    if lost > 0.01 * launched:
        with pytest.raises(NothingSeen, match=f"lost {lost} of {launched} kernels"):
            step(made, folder)
        return
    with suppress(NothingSeen):  # the last kernel of a step may be among the lost
        assert step(made, folder).trace.lost == lost


# ---------------------------------------------------------------- recomputation


@pytest.mark.parametrize(("reentrant", "named"), [(True, True), (False, True), (False, False)])
def test_checkpointing_is_recomputation(reentrant: bool, named: bool, tmp_path: Path) -> None:
    """Two layers, once each in two steps; without names both are in one place."""
    net, out = Checkpointed(reentrant), tmp_path / "t.json"
    with halfway_watch.watch(out=str(out), after=1, bare=2, traced=2, module_names=named) as watch:
        for _ in range(6):
            net(torch.randn(3, 4, requires_grad=True)).sum().backward()
            watch.step()
    found = step_of(read_trace(out))
    assert sum(found.recorded.values()) == found.end - found.start
    assert found.recorded[t.RECOMPUTATION] > 0
    of_phase = {phase: [p for p in products(found, None) if p.phase == phase and p.flops]
                for phase in ("forward", "backward", "recomputation")}  # fmt: skip
    assert sum(p.count for p in of_phase["recomputation"]) == 2 * 2
    if named:
        layers = {"block.0", "block.2"}
        assert {p.module for p in of_phase["recomputation"]} == layers
        for phase in ("forward", "backward"):
            assert {p.module for p in of_phase[phase]} == {"head", *layers}


def test_gradients_of_gradients_and_other_threads_are_no_recomputation(tmp_path: Path) -> None:
    made = begun(9 * MS, 18 * MS)
    made.note("halfway::net", 1 * MS, 1 * MS + 60 * US)
    made.op("aten::mm", 1 * MS, 1 * MS + 50 * US, **{"Sequence number": 1})
    made.op(f"{NODE}MmBackward0", 12 * MS, 13 * MS, BACKWARD,
            **{"Sequence number": 1, "Fwd thread id": 1})  # fmt: skip
    made.op("aten::mm", 12 * MS, 13 * MS - US, BACKWARD, **{"Sequence number": 5})
    made.kernel("again", 14 * MS, 20 * MS, 12 * MS + 10 * US, BACKWARD)
    found = of_kernels(made, tmp_path)["again"]
    assert (found.term, found.phase, found.module) == (t.MATRIX_PRODUCTS, "backward", "net")
    # On a GPU recomputation runs on autograd's thread, whose sequence numbers start again.
    made = begun(9 * MS, 18 * MS)
    number = {"Sequence number": 3}
    made.note("halfway::stem", 1 * MS, 2 * MS)
    made.op("aten::mm", 1 * MS, 2 * MS, **number)
    made.op(f"{NODE}CheckpointFunctionBackward", 11 * MS, 16 * MS, BACKWARD,
            **{"Sequence number": 8, "Fwd thread id": 1})  # fmt: skip
    made.note("halfway::block", 11 * MS, 12 * MS, BACKWARD)
    made.op("aten::mm", 11 * MS, 12 * MS - US, BACKWARD, **number)
    made.kernel("again", 12 * MS, 14 * MS, 11 * MS + 10 * US, BACKWARD)
    made.op(f"{NODE}MmBackward0", 13 * MS, 15 * MS, BACKWARD, **number, **{"Fwd thread id": 2})
    made.op("aten::mm", 13 * MS, 15 * MS - US, BACKWARD)
    made.kernel("back", 15 * MS, 20 * MS, 13 * MS + 10 * US, BACKWARD)
    found = of_kernels(made, tmp_path)
    assert (found["again"].phase, found["again"].module) == ("recomputation", "block")
    assert (found["back"].phase, found["back"].module) == ("backward", "block")
    assert found["again"].term == t.RECOMPUTATION
    assert found["again"].ns == 2 * MS


# ---------------------------------------------------------------- without the profiler


approx = pytest.approx


def played(tape: Tape) -> None:
    """The next batch, 40 launches in 0.8 ms, 2 ms of work, a read and 1 ms of Python."""
    with tape.inside("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        tape.now += 500 * US
    for _ in range(40):
        tape.work("aten::relu", US)
    tape.product(2 * MS)
    tape.read()
    tape.python(MS)


def seen(made: Made, folder: Path) -> Unprofiled:
    return steps_in(read_trace(made.write(folder / "t.json")))


def said(folder: Path, **facts: Any) -> Traced:
    return diagnose([recorded(played, **facts).write(folder / "t.json")]).runs[0]


ASIDE = (terms.LOADER, terms.RESIDUAL, terms.LONG_STEPS)


@settings(max_examples=40)
@given(
    bare_s=st.lists(st.floats(1e-4, 0.1), min_size=1, max_size=12),
    waits=st.floats(0, 1.5), twice=st.booleans(),
)  # fmt: skip
def test_terms_are_the_mean_step_work_as_recorded_and_idle_time_what_is_left(
    bare_s: list[float], waits: float, twice: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    facts = {"bare_s": bare_s, "loading_s": [waits * time for time in bare_s]}
    times = {"times": recorded(played)} if twice else {}
    run = seen(recorded(played, slow=2, **times, **facts), tmp_path_factory.mktemp("t"))
    mean_ns = 1e9 * sum(bare_s) / len(bare_s)
    assert sum(run.terms.values()) == run.whole_ns == approx(2 * mean_ns, abs=1)
    assert all(ns > 0 for ns in run.terms.values())
    works = 2 * (2 * MS + 40 * US)
    assert run.whole_ns - run.idle_ns == approx(min(works, run.whole_ns), abs=4)
    for term, ns in run.terms.items():  # none is far longer than it was recorded, but for these
        assert term in ASIDE or ns <= 1.5 * run.step.recorded[term] + 1
    assert run.terms.get(terms.LOADER, 0) <= 2 * waits * mean_ns + 1


@pytest.mark.parametrize(
    ("bare_ms", "own_ms", "launch_ms"), [(3.84, 1, 0.3), (3.54, 1, 0), (3.04, 0.5, 0)]
)
def test_the_profiler_s_time_is_cut_from_what_it_slows(
    bare_ms: float, own_ms: float, launch_ms: float, tmp_path: Path
) -> None:
    """Of two recordings launches and waits alone are slowed, until nothing is left of them."""
    times = recorded(played, slow=3)
    bare_s = [*[bare_ms / 1e3] * 9, bare_ms / 1e3 + 0.01]  # of which one is longer, by 1 ms a step
    run = seen(recorded(played, slow=9, times=times, bare_s=bare_s, loading_s=[5e-4] * 10),
               tmp_path)  # fmt: skip
    assert run.step.named is not None
    ms = {term: ns / 2e6 for term, ns in run.terms.items()}
    assert ms[terms.LONG_STEPS] == approx(1, abs=0.05)
    assert ms[terms.LOADER] == approx(0.5, abs=0.01)
    assert ms.get(terms.PYTHON, 0) == approx(own_ms, abs=0.05)
    assert ms.get(terms.LAUNCH, 0) + ms.get(terms.SYNC, 0) == approx(launch_ms, abs=0.05)


def test_two_recordings_of_other_work_are_not_joined(tmp_path: Path) -> None:
    def other(tape: Tape) -> None:
        played(tape)
        tape.product(MS, kernel="another")

    run = seen(recorded(played, times=recorded(other)), tmp_path)
    assert run.step.named is None
    both = seen(recorded(played, times=recorded(played)), tmp_path)
    assert (both.step.matched, both.step.recorded[terms.MATRIX_PRODUCTS]) == (1, 4 * MS)


@pytest.mark.parametrize("junk", [None, "x", -7, [], {}, 10**30, float("inf")])
def test_damaged_kernels_alone_leave_those_with_names(junk: object, tmp_path: Path) -> None:
    made = recorded(played, times=recorded(played))
    times = made.header["halfway"]["times"]
    for name, rows in times.items():
        first, *others = rows
        whole = first if name in ("work", "calls") else []
        damaged = [[*whole[:n], junk, *whole[n + 1 :]] for n in range(len(whole))]
        for row in (junk, *damaged):
            made.header["halfway"]["times"] = times | {name: [row, *others]}
            run = diagnose([made.write(tmp_path / "t.json")]).runs[0]
            assert run.ruined or run.ms(terms.MATRIX_PRODUCTS) == approx(2, abs=0.05)


def test_launches_behind_a_read_are_its_cost_and_a_cpu_s_shares_stay(tmp_path: Path) -> None:
    run = seen(recorded(played, foreign=True), tmp_path)
    assert (run.step_s, run.ci95_s) == (None, None)
    assert run.terms == run.step.recorded
    assert sum(run.terms.values()) == run.step.end - run.step.start
    for bare_ms in (3, 4, 14, 20):
        made = Made(header={"halfway": {"lead_in": 1, "traced": 1, "bare_s": [bare_ms / 1e3] * 4}})
        made.steps(10 * MS, 20 * MS)
        made.op("aten::mm", 12 * MS, 18 * MS)
        whole = {terms.MATRIX_PRODUCTS: 0.6 * bare_ms * MS, terms.PYTHON: 0.4 * bare_ms * MS}
        # Half of it, and more than half again: these steps were not those that were timed.
        others = bare_ms in (3, 20)
        assert (diagnose([made.write(tmp_path / "a.json")]).runs[0].ruined != ()) == others
        if not others:
            assert seen(made, tmp_path).terms == approx(whole)
    # At most as long as the CPU waits: by the bare steps where they were timed.
    for wait_s, held_ms in ((0.0001, 0.1), (0.5, 0.777)):
        reads = [["train.py:12", "item", 20, 20 * wait_s]]
        run = seen(recorded(played, reads=reads), tmp_path)
        lost = run.terms.get(terms.SYNC, 0) / 2e6
        assert run.held_up_ns / 2e6 == approx(held_ms - lost, abs=0.003)
    costs = {one.cause: one.ms for one in said(tmp_path, reads=reads).findings}
    assert costs["sync"] == approx(0.78, abs=0.03)
    assert "launch" not in costs


@pytest.mark.parametrize(
    ("long", "compiles", "looked", "status"),
    [
        ((7, 17), False, True, LIKELY), ((7, 17), True, True, LIKELY),
        ((7, 17), False, False, POSSIBLE), ((7,), False, True, POSSIBLE),
        ((1, 2, 3, 7, 9, 17), False, True, ""),
    ],
)  # fmt: skip
def test_few_long_steps_are_a_cause_and_the_others_are_judged_without_them(
    long: tuple[int, ...], compiles: bool, looked: bool, status: str, tmp_path: Path
) -> None:
    """Of six in twenty nothing is concluded; of one, or without lines, it may be other work."""
    usual_s, long_s = 0.0045, 0.1
    rows = [[3, "train.py:4", False, 99], *([at, "train.py:9", compiles, 40] for at in long)]
    bare_s = [long_s if number in long else usual_s for number in range(20)]
    run = said(tmp_path, bare_s=bare_s, long_steps=rows if looked else [])
    assert sum(term.ns for term in run.terms) == run.window_ns
    assert (run.ruined == ()) == bool(status)
    if status:
        others, first = said(tmp_path, bare_s=[usual_s] * 20), run.findings[0]
        assert (first.cause, first.status, first.where) == ("long", status, "train.py:9" * looked)
        assert first.ms == approx(1e3 * len(long) * (long_s - usual_s) / 20, rel=1e-3)
        assert ("torch.compile" in first.remedy) == compiles
        assert run.busy == approx(others.busy, abs=1e-3)
        assert [one.cause for one in others.findings] == [one.cause for one in run.findings
                                                          if one.cause != "long"]  # fmt: skip


@pytest.mark.parametrize(
    ("bare_s", "loading_s", "words"),
    [
        ([0.001, 0.012] * 3, [], ["steps differ too much"]),
        ([0.0045, 0.0045, 0.009] * 8, [], ["in no recorded step"]),
        ([0.001] * 6, [], ["in the recorded steps alone"]),
        ([0.005, 0.04] * 9, [0.0005, 0.0355] * 9, []),  # waits that come in bursts are known
    ],
)
def test_nothing_is_concluded_of_steps_that_differ_or_were_not_recorded(
    bare_s: list[float], loading_s: list[float], words: list[str], tmp_path: Path
) -> None:
    run = said(tmp_path, bare_s=bare_s, loading_s=loading_s)
    assert all(word in run.ruined[0] for word in words)
    assert len(run.ruined) == 3 * len(words)
    assert (run.bottleneck == "unknown", run.findings == ()) == (bool(words),) * 2
    assert sum(term.ns for term in run.terms) == run.window_ns
    gain = Gain("tf32", "TF32 allowed", 2.0, 1.0, 3.0, 10.0, 3)
    for one, part in ((gain, "less (10 to 30)"), (replace(gain, low_ms=-1.0), "less (-10 to 30)")):
        found = report(asdict(Diagnosis((replace(run, gains=(one,)),))))
        tried = [line.text for line in found.answer if line.text.startswith("Tried: ")]
        assert [part in text for text in tried] == [True], "also without a verdict"
    amp = replace(run, gains=(replace(gain, cause="amp"),), ruined=())
    for runs, times in (((amp,), 1), ((amp, amp), 1), ((replace(amp, products=()), amp), 0)):
        found = report(asdict(Diagnosis(runs)))
        assert sum("AMP" in line.text for line in found.answer) == times, "two runs measured it"


def test_the_interval_of_a_mean_knows_that_steps_depend_on_one_another() -> None:
    assert mean_interval([1.0, 2.0, 3.0]) is None
    assert mean_interval([2.0] * 9) == (2, 2)
    # By hand: variance 1.25, with half the covariance of neighbours twice 1.5625; t(3) = 3.182.
    assert mean_interval([1.0, 2.0, 3.0, 4.0]) == approx((2.5 - 2.2966, 2.5 + 2.2966), abs=1e-3)
    low, high = mean_interval([1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0] * 3) or (0, 0)
    alone, other = mean_interval([1.0, 9.0] * 12) or (0, 0)
    assert high - low > 2 * (other - alone)


# ---------------------------------------------------------------- training steps


WIDTH, BATCH = 64, 32


class Repeated(nn.Linear):
    """A layer that does its work several times: a slow one, planted."""

    times = 1

    def forward(self, x: Tensor) -> Tensor:
        """[N, WIDTH] -> [N, WIDTH]"""
        for _ in range(self.times):
            x = super().forward(x)
        return x


def network(times: int) -> nn.Sequential:
    slow = Repeated(WIDTH, WIDTH)
    slow.times = times
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), slow, nn.Linear(WIDTH, 4))


def training_step(model: nn.Module) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def recorded_of(model: nn.Module, *, autocast: bool = False) -> terms.TracedStep:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = traced_step(training_step(model), model, 2, named=True)
    assert (found.steps, found.launches) == (2, 0), "no device"
    assert sum(found.terms.values()) == found.window_ns > 0
    return found


def products_of(traced: terms.TracedStep) -> dict[str, terms.TracedPart]:
    return {part.layer: part for part in traced.parts if part.term == terms.MATRIX_PRODUCTS}


def test_recorded_steps_add_up_a_slow_layer_is_first_and_is_named_alike_over_several_gpus() -> None:
    plain, slow = recorded_of(network(1)), recorded_of(network(100))
    layer, part = next(iter(products_of(slow).items()))
    assert (layer, part.dtype) == ("2", "float32")
    base = variant("fp32", 1e9 / plain.window_ns * 2 * 256, traced=plain)
    other = variant("amp", 1e9 / slow.window_ns * 2 * 256, traced=slow)
    changed = next(x for x in ledger(base, other) if x.term == terms.MATRIX_PRODUCTS)
    assert changed.ms > 0
    assert changed.detail.partition("; ")[2].startswith("2 +")
    wrapped = nn.DataParallel(network(1))  # with no GPU it calls the model
    layers = products_of(recorded_of(wrapped)).keys()
    assert "0" in layers
    assert not any(layer.startswith("module") for layer in layers)


def test_types_are_those_of_the_products_and_a_step_that_raises_ends_the_recording() -> None:
    """It has no Tensor Cores. What FP8 computes is not taken for float32."""
    odd = recorded_of(nn.Sequential(nn.Linear(WIDTH, 13), nn.Linear(13, 4)), autocast=True)
    assert {part.dtype for part in products_of(odd).values()} >= {"bfloat16"}
    assert {part.misaligned for part in products_of(odd).values()} == {""}
    assert not any("multiple of" in cost.title for cost in odd.costs)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 5, bias=False))
    model, counts = convert(model, "tensorwise", batch=16)
    assert counts == (1, 2)
    found = {
        layer: part.dtype for layer, part in products_of(recorded_of(model, autocast=True)).items()
    }
    assert found["0"].startswith("float8")
    assert found["1"] == "bfloat16"
    model = network(1)
    step, calls = training_step(model), 0

    def breaking() -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise RuntimeError("planted")
        step()

    with pytest.raises(RuntimeError, match="planted"):
        traced_step(breaking, model, 2, named=True)
    assert products_of(recorded_of(model)).keys() >= {"0"}, "another begins, and names its layers"
