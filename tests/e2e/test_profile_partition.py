"""Every nanosecond of the steps belongs to one term, and the planted one is the right one."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.random_traces import traces
from samples.traces import BACKWARD, MAIN, US, Made

from e2e.profile.diagnosis import missing
from e2e.profile.findings import findings
from e2e.profile.partition import NothingSeen, partition
from e2e.profile.reader import Recording, read_trace
from e2e.results.terms import (
    BETWEEN,
    COMMUNICATION,
    CONVOLUTIONS,
    COPIES,
    FLOAT8,
    LAUNCH,
    LOADER,
    MATRIX_PRODUCTS,
    PYTHON,
    SYNC,
    TERMS,
)
from microbench.errors import UserError

MS = 1_000_000
LAUNCHES = ("cudaLaunchKernel", "cudaGraphLaunch")


def recording(made: Made, folder: Path, shift_ns: int = 0) -> Recording:
    return read_trace(made.write(folder / "trace.json", shift_ns))


def terms_of(made: Made, folder: Path) -> dict[str, int]:
    """The terms of the second of two steps of 10 ms; the first ends with a kernel at 10 ms."""
    found = partition(recording(made, folder))
    assert (found.start, found.end, found.steps) == (10 * MS, 20 * MS, 1)
    assert sum(piece.ns for piece in found.pieces) == 10 * MS
    return dict(found.terms)


def two_steps() -> Made:
    """A step that ends at 10 ms, and one that ends with a matrix product from 19 to 20 ms."""
    made = Made()
    made.steps(9 * MS, 18 * MS)
    made.op("aten::mm", 8 * MS, 8 * MS + 50 * US)
    made.kernel("gemm", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    made.op("aten::mm", 17 * MS, 17 * MS + 50 * US)
    made.kernel("gemm", 19 * MS, 20 * MS, 17 * MS + 10 * US)
    return made


def test_time_without_work_is_the_cpu_s_until_it_launches_and_the_device_s_after(
    tmp_path: Path,
) -> None:
    # Launched at 17.01 ms, begun at 19 ms: it was under way.
    assert terms_of(two_steps(), tmp_path) == {LAUNCH: 9 * MS, MATRIX_PRODUCTS: MS}


def test_work_that_was_queued_before_the_device_fell_idle_waits_between_kernels(
    tmp_path: Path,
) -> None:
    made = two_steps()
    made.op("aten::relu", 9 * MS, 9 * MS + 50 * US)
    made.kernel("relu", 10 * MS + 5 * US, 18 * MS, 9 * MS + 10 * US)
    found = terms_of(made, tmp_path)
    assert found[BETWEEN] == 5 * US + MS  # the product too was launched before 18 ms
    assert found[TERMS["activation"]] == 8 * MS - 5 * US


def test_a_wait_for_the_loader_is_the_loader_s(tmp_path: Path) -> None:
    made = two_steps()
    made.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 9 * MS, 16 * MS)
    assert terms_of(made, tmp_path)[LOADER] == 6 * MS  # from 10 ms, when the device fell idle


def test_what_follows_a_synchronisation_until_the_next_launch_is_its_price(tmp_path: Path) -> None:
    made = two_steps()
    made.op("aten::item", 9 * MS, 10 * MS + 20 * US)
    made.span("cuda_runtime", "cudaStreamSynchronize", 9 * MS, 10 * MS + 10 * US, MAIN)
    found = terms_of(made, tmp_path)
    assert found[SYNC] == 7 * MS + 10 * US
    assert found[LAUNCH] == 2 * MS - 10 * US  # launched, on its way


def test_communication_and_copies_count_only_where_no_computing_hides_them(tmp_path: Path) -> None:
    made = two_steps()
    made.op("aten::convolution", 9 * MS, 9 * MS + 50 * US)
    made.kernel("conv", 10 * MS, 14 * MS, 9 * MS + 10 * US)
    made.kernel("ncclDevKernel_AllReduce", 12 * MS, 16 * MS, 9 * MS + 20 * US, stream=8)
    made.kernel("Memcpy HtoD (Pinned -> Device)", 13 * MS, 18 * MS, 9 * MS + 30 * US, stream=9,
                category="gpu_memcpy")  # fmt: skip
    found = terms_of(made, tmp_path)
    assert found[CONVOLUTIONS] == 4 * MS
    assert found[COMMUNICATION] == 2 * MS
    assert found[COPIES] == 2 * MS


@pytest.mark.parametrize("name", ["Float8Product", "Float8ProductBackward"])
def test_what_fp8_takes_beside_its_products_has_a_term(name: str, tmp_path: Path) -> None:
    made = two_steps()
    made.op(name, 9 * MS, 10 * MS)
    made.op("aten::amax", 9 * MS, 9 * MS + 20 * US)
    made.kernel("reduce", 10 * MS, 12 * MS, 9 * MS + 10 * US)
    made.op("aten::_scaled_mm", 9 * MS + 40 * US, 9 * MS + 60 * US)
    made.kernel("gemm", 12 * MS, 16 * MS, 9 * MS + 50 * US)
    found = terms_of(made, tmp_path)
    assert found[FLOAT8] == 2 * MS
    assert found[MATRIX_PRODUCTS] == 4 * MS + terms_of(two_steps(), tmp_path)[MATRIX_PRODUCTS]


def test_backward_work_belongs_to_the_module_of_its_last_forward_operator(tmp_path: Path) -> None:
    made = two_steps()
    made.note("halfway::", 1 * MS, 3 * MS)
    made.note("halfway::body.conv", 1 * MS, 2 * MS)
    # A cast makes no node: it carries the number of the convolution that follows it.
    made.op("aten::_to_copy", 1 * MS, 1 * MS + 10 * US, **{"Sequence number": 7})
    made.op("aten::convolution", 1 * MS + 20 * US, 2 * MS, **{"Sequence number": 7})
    node = "autograd::engine::evaluate_function: ConvolutionBackward0"
    made.op(node, 9 * MS, 10 * MS, BACKWARD, **{"Sequence number": 7})
    made.op("aten::convolution_backward", 9 * MS, 10 * MS - US, BACKWARD)
    made.kernel("dgrad", 10 * MS, 15 * MS, 9 * MS + 10 * US, BACKWARD)
    pieces = partition(recording(made, tmp_path)).pieces
    (found,) = (piece for piece in pieces if piece.term == CONVOLUTIONS)
    assert (found.caller.module, found.caller.phase, found.ns) == ("body.conv", "backward", 5 * MS)


@pytest.mark.parametrize(
    ("op", "types", "kernel", "term"),
    [
        ("aten::copy_", ["c10::BFloat16", "float"], "elementwise", TERMS["cast"]),
        ("aten::copy_", ["float", "float"], "elementwise", TERMS["copy"]),
        ("aten::addmm", [], "sm90_gemm", MATRIX_PRODUCTS),
        ("aten::cudnn_convolution", [], "sm90_xmma", CONVOLUTIONS),
        ("aten::cudnn_convolution", [], "nchwToNhwcKernel", "layout changes"),
        ("aten::_scaled_dot_product_flash_attention", [], "flash_fwd", "attention"),
        ("aten::native_batch_norm", [], "bn", TERMS["norm"]),
        ("aten::_foreach_add_", [], "multi_tensor", TERMS["optimizer"]),
        ("mine::unknown", [], "mine", "other ops"),
    ],
)
def test_the_operator_around_a_kernel_says_its_term(
    tmp_path: Path, op: str, types: list[str], kernel: str, term: str
) -> None:
    made = two_steps()
    more: dict[str, Any] = {"Input type": types}
    made.op(op, 9 * MS, 9 * MS + 50 * US, **more)
    made.kernel(kernel, 10 * MS, 16 * MS, 9 * MS + 10 * US)
    pieces = partition(recording(made, tmp_path)).pieces
    assert [(p.term, p.ns) for p in pieces if p.name == kernel] == [(term, 6 * MS)]


def test_a_wait_of_the_main_thread_delays_what_autograd_launches(tmp_path: Path) -> None:
    made = Made()
    made.steps(9 * MS, 18 * MS)
    made.op("aten::mm", 8 * MS, 8 * MS + 50 * US)
    made.kernel("gemm", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    made.span("cuda_runtime", "cudaStreamSynchronize", 9 * MS, 10 * MS + 10 * US, MAIN)
    # Another thread, the loader's, waits for its own work.
    made.span("cuda_runtime", "cudaEventSynchronize", 12 * MS, 15 * MS, 300)
    made.op("autograd::engine::evaluate_function: MmBackward0", 16 * MS, 17 * MS, BACKWARD)
    made.op("aten::mm", 16 * MS + US, 17 * MS - US, BACKWARD)
    made.kernel("dgrad", 16 * MS + 20 * US, 20 * MS, 16 * MS + 10 * US, BACKWARD)
    found = terms_of(made, tmp_path)
    assert found == {SYNC: 6 * MS + 10 * US, LAUNCH: 10 * US, MATRIX_PRODUCTS: 4 * MS - 20 * US}


def test_a_stream_that_waits_for_another_does_not_make_the_cpu_wait(tmp_path: Path) -> None:
    made = two_steps()
    made.span("cuda_runtime", "cudaStreamWaitEvent", 10 * MS, 10 * MS + 10 * US, MAIN)
    assert terms_of(made, tmp_path) == {LAUNCH: 9 * MS, MATRIX_PRODUCTS: MS}


def test_another_gpu_s_work_fills_the_gap_and_a_copy_between_them_is_communication(
    tmp_path: Path,
) -> None:
    made = two_steps()
    made.op("aten::relu", 9 * MS, 9 * MS + 50 * US)
    made.kernel("relu", 10 * MS, 14 * MS, 9 * MS + 10 * US)
    made.events[-1]["args"]["device"] = 1
    made.kernel("Memcpy PtoP (Device -> Device)", 13 * MS, 19 * MS, 9 * MS + 20 * US,
                category="gpu_memcpy")  # fmt: skip
    recorded = recording(made, tmp_path)
    parts = partition(recorded)
    assert parts.terms == {COMMUNICATION: 5 * MS, TERMS["activation"]: 4 * MS, MATRIX_PRODUCTS: MS}
    assert any("2 GPUs worked" in said for said in missing(recorded, parts))
    (found,) = (f for f in findings(recorded, parts) if "communication" in f.title)
    assert found.ms == 5
    assert "6 ms in all" in found.where


def test_without_a_device_the_innermost_operators_are_the_work(tmp_path: Path) -> None:
    made = Made()
    made.steps(10 * MS, 20 * MS)
    made.op("aten::linear", 11 * MS, 19 * MS)
    made.op("aten::addmm", 12 * MS, 16 * MS)
    made.note("enumerate(DataLoader)#_Iter.__next__", 10 * MS, 10 * MS + 300 * US)
    found = terms_of(made, tmp_path)
    assert found == {MATRIX_PRODUCTS: 8 * MS, PYTHON: 1_700 * US, LOADER: 300 * US}


def test_a_trace_that_lost_kernels_or_holds_no_step_is_refused(tmp_path: Path) -> None:
    lost = two_steps()
    lost.span("cuda_runtime", "cudaLaunchKernel", 9 * MS, 9 * MS + US, correlation=9999)
    with pytest.raises(UserError, match="lost 1 of 3"):
        partition(recording(lost, tmp_path))
    made = Made()
    made.op("aten::mm", 0, MS)
    with pytest.raises(UserError, match="step"):
        partition(recording(made, tmp_path))
    facts = two_steps()
    facts.header = {"halfway": {"lead_in": "one", "traced": 3}}
    with pytest.raises(UserError, match="damaged"):
        partition(recording(facts, tmp_path))


# ---------------------------------------------------------------- properties


@settings(max_examples=30)
@given(made=traces(), shift=st.integers(0, 10**15), seed=st.integers(0, 99))
def test_terms_add_up_and_neither_order_nor_shift_nor_names_of_streams_change_them(
    made: Made, shift: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("t")
    found = partition(recording(made, folder))
    assert sum(found.terms.values()) == found.end - found.start
    edges = [(piece.start, piece.end) for piece in found.pieces]
    assert edges[0][0] == found.start
    assert edges[-1][1] == found.end
    assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
    assert all(start < end for start, end in edges)
    busy = sum(piece.ns for piece in found.pieces if piece.name == "k")
    kernels = sorted((w.start, w.end) for w in recording(made, folder).work)
    assert busy == _union(kernels, found.start, found.end)

    random.Random(seed).shuffle(made.events)
    for event in made.events:
        if event["cat"] == "kernel":
            event["args"]["stream"] += 13
    again = partition(recording(made, folder, shift))
    assert again.terms == found.terms


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
    gone = drawn.sample(kernels, lost)
    for event in gone:  # kineto loses them, or writes zeros
        if zeroed:
            event.update(ts=0, dur=0)
        else:
            made.events.remove(event)
    found = recording(made, tmp_path_factory.mktemp("t"))
    assert found.dropped == lost
    if lost > 0.01 * launched:
        with pytest.raises(NothingSeen, match=f"lost {lost} of {launched} kernels"):
            partition(found)
        return
    with suppress(NothingSeen):  # the last kernel of a step may be among the lost
        parts = partition(found)
        assert sum(parts.terms.values()) == parts.end - parts.start


def _union(spans: list[tuple[int, int]], start: int, end: int) -> int:
    total, at = 0, start
    for begin, until in spans:
        begin, until = max(begin, at), min(until, end)
        if until > begin:
            total += until - begin
            at = until
    return total
