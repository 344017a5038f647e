"""Every nanosecond of the steps belongs to one operation, whose term and cause are right."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.launching import Checkpointed
from samples.random_traces import traces
from samples.traces import BACKWARD, MAIN, MS, US, Made, begun

from e2e.profile import halfway_watch
from e2e.profile.products import products
from e2e.profile.step import NothingSeen, Op, Step, step_of
from e2e.profile.trace import read_trace
from e2e.results import terms as t
from e2e.results.terms import LAUNCH, LOADER, PYTHON, SYNC, TERMS
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
def test_time_without_work_is_the_cpu_s_until_it_launches_and_the_device_s_after(
    in_a_module: bool, tmp_path: Path
) -> None:
    """Launched at 17.01 ms, begun at 19: it was under way. A stream that waits delays no CPU."""
    made = two_steps()
    made.span("cuda_runtime", "cudaStreamWaitEvent", 10 * MS, 10 * MS + 10 * US)
    busy(made, 10 * MS, 17 * MS, in_a_module)
    own = {} if in_a_module else {PYTHON: 7 * MS - 10 * US}
    launch = 9 * MS - sum(own.values())
    assert terms_of(made, tmp_path) == {LAUNCH: launch, t.MATRIX_PRODUCTS: MS, **own}


@pytest.mark.parametrize(("launched", "late"), [(9 * MS + 10 * US, 0), (10 * MS - 500, 5 * US)])
def test_work_that_was_queued_before_the_device_fell_idle_waits_between_kernels(
    launched: int, late: int, tmp_path: Path
) -> None:
    """But not where the call that launches it had not returned yet."""
    made = two_steps()
    made.op("aten::relu", 9 * MS, 10 * MS + 50 * US)
    made.kernel("relu", 10 * MS + 5 * US, 18 * MS, launched)
    found = terms_of(made, tmp_path)
    assert found[t.BETWEEN] == 5 * US + MS - late  # the product too was launched before 18 ms
    assert found.get(LAUNCH, 0) == late
    assert found[TERMS["activation"]] == 8 * MS - 5 * US


@pytest.mark.parametrize("in_a_module", [True, False])
def test_what_follows_a_synchronisation_until_the_next_launch_is_its_price(
    in_a_module: bool, tmp_path: Path
) -> None:
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


def test_without_a_device_operators_are_the_work_and_a_step_ends_with_all_it_launched(
    tmp_path: Path,
) -> None:
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


def test_compiled_code_says_what_it_fused_and_compilation_is_no_launch_nor_wait(
    tmp_path: Path,
) -> None:
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
def test_checkpointing_is_recomputation_with_its_modules(
    reentrant: bool, named: bool, tmp_path: Path
) -> None:
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


def test_gradients_of_gradients_and_nodes_of_another_thread_are_no_recomputation(
    tmp_path: Path,
) -> None:
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
