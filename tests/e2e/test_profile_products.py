"""Products of a trace: FLOP, Tensor Cores by rate, alignment; recomputation is work of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from samples.traces import BACKWARD, US, Made
from torch import nn
from torch.utils.checkpoint import checkpoint

from e2e.profile import halfway_watch
from e2e.profile.calls import Caller
from e2e.profile.operands import arguments, misaligned
from e2e.profile.partition import partition
from e2e.profile.product_work import on_tensor_cores, precision_of, work_of
from e2e.profile.products import products
from e2e.profile.reader import Span, read_trace
from e2e.results.terms import MATRIX_PRODUCTS, RECOMPUTATION
from kernels.gpus import find_card
from kernels.precision import PRECISIONS

H200 = "NVIDIA H200"
MS = 1_000_000


def op(name: str, dims: list[Any], types: list[str], plain: list[str] | None = None) -> Span:
    args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": plain or [""] * len(dims)}
    return Span(name, 0, 1, "1/1", args=args)


BF16 = "c10::BFloat16"


@pytest.mark.parametrize(
    ("operator", "flops", "num_bytes"),
    [
        (op("aten::mm", [[64, 32], [32, 16]], [BF16, BF16]),
         2 * 64 * 32 * 16, 2 * (64 * 32 + 32 * 16 + 64 * 16)),
        # beta and alpha are arguments by name, whatever their place in a trace
        (op("aten::addmm", [[16], [64, 32], [32, 16], [], []],
            [BF16, BF16, BF16, "Scalar", "Scalar"], ["", "", "", "1", "1"]),
         2 * 64 * 32 * 16, 2 * (16 + 64 * 32 + 32 * 16 + 64 * 16)),
        (op("aten::bmm", [[4, 8, 16], [4, 16, 8]], ["float", "float"]),
         2 * 4 * 8 * 16 * 8, 4 * (2 * 4 * 8 * 16 + 4 * 8 * 8)),
        # stride 2, padding 1: 8x8 becomes 4x4; two groups of four channels
        (op("aten::_convolution",
            [[2, 8, 8, 8], [16, 4, 3, 3], [], [], [], [], [], [], [], [], [], [], []],
            ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList",
             "Scalar", "Scalar", "Scalar", "Scalar", "Scalar"],
            ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2", "False", "False",
             "True", "True"]),
         2 * 2 * 4 * 4 * 16 * 4 * 9, 4 * (2 * 8 * 64 + 16 * 4 * 9 + 2 * 16 * 16)),
    ],
)  # fmt: skip
def test_work_follows_from_the_shapes(operator: Span, flops: int, num_bytes: int) -> None:
    work = work_of(operator)
    assert (work.flops, work.bytes) == (flops, num_bytes)


@pytest.mark.parametrize("mask", ["[True, True, True]", "[False, True, True]"])
def test_a_convolution_s_backward_counts_the_gradients_that_are_asked_for(mask: str) -> None:
    lists = ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"]
    found = work_of(
        op("aten::convolution_backward",
           [[2, 16, 8, 8], [2, 8, 8, 8], [16, 8, 3, 3], *[[]] * 8], [BF16, BF16, BF16, *lists],
           ["", "", "", "[16]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask])
    )  # fmt: skip
    assert found.flops == (1 + mask.startswith("[T")) * 2 * 2 * 64 * 16 * 8 * 9


@pytest.mark.parametrize(
    "damaged",
    [
        op("aten::mm", [[64, 32]], [BF16]),
        op("aten::mm", [[64, 32], [31, 16]], [BF16, BF16]),
        op("aten::mm", [], []),
        op("aten::mm", [[-4, 32], [32, 16]], [BF16, BF16]),
        op("aten::no_such_operator", [[4]], [BF16]),
        op("aten::_convolution", [[2, 8, 8, 8], [16, 4, 3, 3]], ["float"] * 2, ["", "__import__"]),
    ],
)  # fmt: skip
def test_arguments_that_fit_no_operator_are_work_unknown(damaged: Span) -> None:
    work = work_of(damaged)
    assert work.flops is None or work.bytes is None
    arguments(damaged)


def test_float32_s_arithmetic_is_that_of_the_settings() -> None:
    assert precision_of("float32", True) is PRECISIONS["tf32"]
    assert precision_of("float32", False) is PRECISIONS["fp32"]
    assert precision_of("float32", None) is None
    assert precision_of("bfloat16", None) is PRECISIONS["bf16"]


def test_only_a_rate_that_the_sms_cannot_reach_proves_tensor_cores() -> None:
    card, bf16 = find_card(H200), PRECISIONS["bf16"]
    without = 133.8e12
    assert on_tensor_cores(1.01 * without, bf16, card, ["k"]) is True
    assert on_tensor_cores(0.99 * without, bf16, card, ["k"]) is None
    assert on_tensor_cores(1.01 * without, bf16, None, ["k"]) is None
    assert on_tensor_cores(1.01 * without, bf16, card, ["winograd_fprop"]) is None
    assert on_tensor_cores(1e15, PRECISIONS["fp32"], card, ["k"]) is False
    # TF32 is held against what float32 reaches
    assert on_tensor_cores(68e12, PRECISIONS["tf32"], card, ["k"]) is True


@pytest.mark.parametrize(
    ("operator", "precision", "simt"),
    [
        # the second factor of float8 lies in columns
        (Span("aten::_scaled_mm", 0, 1, "1/1", args={
            "Input Dims": [[64, 32], [32, 16], [], [], [], [], [], []],
            "Input Strides": [[32, 1], [1, 32], [], [], [], [], [], []],
            "Input type": ["c10::Float8_e4m3fn"] * 2 + ["float"] * 2 + ["", "", "", "Scalar"],
            "Concrete Inputs": ["", "", "", "", "", "", "15", "True"],
        }), "fp8-e4m3", 133.8e12),
        (op("aten::_int_mm", [[64, 32], [32, 16]], ["signed char"] * 2), "int8", 4 * 67e12),
    ],
)  # fmt: skip
def test_eight_bits_are_proved_on_tensor_cores_by_their_rate(
    operator: Span, precision: str, simt: float
) -> None:
    work = work_of(operator)
    assert work.flops == 2 * 64 * 32 * 16
    assert work.bytes is not None
    assert work.bytes >= 64 * 32 + 32 * 16 + 2 * 64 * 16
    kind, card = precision_of(work.dtype, None), find_card(H200)
    assert kind is PRECISIONS[precision]
    assert on_tensor_cores(1.01 * simt, kind, card, ["k"]) is True
    assert on_tensor_cores(0.99 * simt, kind, card, ["k"]) is None


def test_a_product_hidden_behind_another_stream_is_no_faster(tmp_path: Path) -> None:
    made = Made()
    made.steps(9 * MS, 18 * MS)
    dims = {"Input Dims": [[64, 64], [64, 64]], "Input type": [BF16, BF16]}
    made.op("aten::mm", 8 * MS, 8 * MS + 50 * US, **dims)
    made.kernel("gemm", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    made.op("aten::mm", 12 * MS, 12 * MS + 50 * US, **dims)
    made.kernel("gemm", 13 * MS, 17 * MS, 12 * MS + 10 * US)
    made.op("aten::relu", 12 * MS + 60 * US, 12 * MS + 90 * US)
    made.kernel("relu", 14 * MS, 20 * MS, 12 * MS + 70 * US, stream=8)
    recording = read_trace(made.write(tmp_path / "t.json"))
    (found,) = products(recording, partition(recording), H200)
    assert (found.ns, found.kernel_ns, found.count) == (MS, 4 * MS, 1)
    assert found.flop_per_s == pytest.approx(2 * 64**3 / 4e-3)


# ---------------------------------------------------------------- alignment


def laid(name: str, *dims: list[int], transposed: tuple[int, ...] = ()) -> Span:
    """An operator on tensors whose rows lie one after the other, or whose columns do."""
    strides: list[list[int]] = []
    for place, shape in enumerate(dims):
        row = [1] * len(shape)
        for at in range(len(shape) - 2, -1, -1):
            row[at] = row[at + 1] * shape[at + 1]
        if place in transposed:
            row[-2:] = [1, shape[-2]]
        strides.append(row)
    args: dict[str, Any] = {"Input Dims": list(dims), "Input Strides": strides}
    return Span(f"aten::{name}", 0, 1, "1/1", args=args)


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (laid("mm", [64, 768], [768, 50257]), "768x50257"),
        (laid("mm", [64, 768], [768, 50304]), ""),
        # a head's forward pass, and the two of its backward pass
        (laid("addmm", [50257], [64, 768], [768, 50257], transposed=(2,)), "768x50257"),
        (laid("mm", [64, 50257], [50257, 768]), "64x50257"),
        (laid("mm", [50257, 64], [64, 768], transposed=(0,)), "50257x64"),
        # an odd batch is no misalignment: neither forward nor for the weight's gradient
        (laid("addmm", [512], [101, 768], [768, 512], transposed=(2,)), ""),
        (laid("mm", [512, 101], [101, 768], transposed=(0,)), ""),
        (laid("addmm", [64, 511], [64, 512], [512, 512]), ""),  # the sum is no factor
        (laid("bmm", [4, 64, 64], [4, 64, 65]), "4x64x65"),
        (laid("bmm", [4, 64, 63], [4, 63, 64]), "4x64x63"),
        (laid("convolution", [32, 3, 8, 8], [64, 3, 3, 3]), "32x3x8x8"),
        (laid("convolution", [32, 64, 7, 7], [64, 64, 3, 3]), ""),
        (laid("convolution", [32, 64, 8, 8], [63, 64, 3, 3]), "63x64x3x3"),
        (laid("convolution", [32, 64, 8, 8], [64, 1, 3, 3]), ""),  # depthwise
        (laid("convolution_backward", [32, 63, 8, 8], [32, 64, 8, 8], [63, 64, 3, 3]), "63x64x3x3"),
        (laid("_scaled_dot_product_flash_attention", [2, 7, 101, 64], [2, 7, 101, 64]), ""),
        (laid("_scaled_dot_product_flash_attention", [2, 8, 64, 60], [2, 8, 64, 60]), "2x8x64x60"),
        (laid("linear", [64, 768], [1021, 768]), "1021x768"),
        (laid("mv", [768, 512], [512]), ""),
        (laid("convolution", [32, 3]), ""),
    ],
)  # fmt: skip
def test_only_what_lies_odd_in_memory_is_misaligned(operator: Span, said: str) -> None:
    assert misaligned([operator]) == said


def test_without_strides_rows_lie_one_after_the_other() -> None:
    bare = Span("aten::mm", 0, 1, "1/1", args={"Input Dims": [[64, 771], [771, 64]]})
    assert misaligned([bare]) == "64x771"


# ---------------------------------------------------------------- recomputation


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x).relu())


class Net(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.use_reentrant = use_reentrant

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)


@pytest.mark.parametrize(
    ("use_reentrant", "module_names"), [(True, True), (False, True), (False, False)]
)
def test_checkpointing_is_recomputation_with_its_modules(
    use_reentrant: bool, module_names: bool, tmp_path: Path
) -> None:
    import torch

    net, loss = Net(use_reentrant), nn.CrossEntropyLoss()
    out = str(tmp_path / "t.json")
    watching = halfway_watch.watch(out=out, after=1, bare=2, traced=2, module_names=module_names)
    with watching as watch:
        for _ in range(6):
            loss(net(torch.randn(4, 8)), torch.randint(0, 4, (4,))).backward()
            watch.step()
    recording = read_trace(Path(out))
    parts = partition(recording)
    assert sum(parts.terms.values()) == parts.end - parts.start
    assert parts.terms[RECOMPUTATION] > 0
    again = [p for p in products(recording, parts, "") if p.phase == "recomputation" and p.flops]
    # Two blocks of two layers, once each in two steps; without names all four are in one place.
    assert sum(p.count for p in again) == 2 * 4
    if module_names:
        layers = {"blocks.0.a", "blocks.0.b", "blocks.1.a", "blocks.1.b"}
        assert {p.module for p in again} == layers
        assert layers <= {p.module for p in products(recording, parts, "") if p.phase == "backward"}
        forward = {p.module for p in products(recording, parts, "") if p.phase == "forward"}
        assert forward == {"stem", "head", *layers}


def test_gradients_of_gradients_are_not_recomputation(tmp_path: Path) -> None:
    made = Made()
    made.steps(9 * MS, 18 * MS)
    made.note("halfway::net", 8 * MS, 8 * MS + 60 * US)
    made.op("aten::mm", 8 * MS, 8 * MS + 50 * US, **{"Sequence number": 1})
    made.kernel("gemm", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    node = "autograd::engine::evaluate_function: MmBackward0"
    made.op(node, 12 * MS, 13 * MS, BACKWARD, **{"Sequence number": 1, "Fwd thread id": 1})
    made.op("aten::mm", 12 * MS, 13 * MS - US, BACKWARD, **{"Sequence number": 5})
    made.kernel("gemm", 14 * MS, 20 * MS, 12 * MS + 10 * US, BACKWARD)
    made.op("aten::mm", 17 * MS, 17 * MS + 50 * US)
    made.kernel("gemm", 20 * MS, 21 * MS, 17 * MS + 10 * US)
    parts = partition(read_trace(made.write(tmp_path / "t.json")))
    assert RECOMPUTATION not in parts.terms
    assert parts.terms[MATRIX_PRODUCTS] == 7 * MS
    backward = [p for p in parts.pieces if p.caller.phase == "backward"]
    assert {piece.caller.module for piece in backward} == {"net"}


def test_a_thread_of_its_own_numbers_its_nodes_anew(tmp_path: Path) -> None:
    """On a GPU recomputation runs on autograd's thread, whose sequence numbers start again."""
    made = Made()
    made.steps(9 * MS, 18 * MS)
    made.note("halfway::stem", 1 * MS, 2 * MS)
    made.op("aten::mm", 1 * MS, 2 * MS, **{"Sequence number": 3})
    made.op("aten::mm", 8 * MS, 8 * MS + 50 * US)
    made.kernel("gemm", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    node = "autograd::engine::evaluate_function: "
    number = {"Sequence number": 3}
    made.op(node + "CheckpointFunctionBackward", 11 * MS, 16 * MS, BACKWARD,
            **{"Sequence number": 8, "Fwd thread id": 1})  # fmt: skip
    made.note("halfway::block", 11 * MS, 12 * MS, BACKWARD)
    made.op("aten::mm", 11 * MS, 12 * MS - US, BACKWARD, **number)
    made.kernel("again", 12 * MS, 14 * MS, 11 * MS + 10 * US, BACKWARD)
    made.op(node + "MmBackward0", 13 * MS, 15 * MS, BACKWARD, **number, **{"Fwd thread id": 2})
    made.op("aten::mm", 13 * MS, 15 * MS - US, BACKWARD)
    made.kernel("back", 15 * MS, 20 * MS, 13 * MS + 10 * US, BACKWARD)
    parts = partition(read_trace(made.write(tmp_path / "t.json")))
    found: dict[str, Caller] = {p.name: p.caller for p in parts.pieces if p.name}
    assert (found["again"].phase, found["again"].module) == ("recomputation", "block")
    assert (found["back"].phase, found["back"].module) == ("backward", "block")
    assert parts.terms[RECOMPUTATION] == 2 * MS
