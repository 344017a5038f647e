"""Products of a step: FLOP, bytes, arithmetic, Tensor Cores by rate, and alignment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from samples.feeding import Batches, noise, small_cnn, trainer_of
from samples.traces import MS, US, begun
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils._python_dispatch import TorchDispatchMode

from e2e.profile.diagnosis import Traced, diagnose
from e2e.profile.halfway_watch import watch
from e2e.profile.operators import AS_CONVOLUTION, is_product, misaligned, work_of
from e2e.profile.products import Product, of_card, products
from e2e.profile.replay import replayed
from e2e.profile.step import step_of
from e2e.profile.trace import OP, Span, read_trace
from kernels.gpus import find_card
from kernels.precision import PRECISIONS
from microbench.device.device import describe

H200 = find_card("NVIDIA H200")
BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fn"


def op(name: str, dims: list[Any], types: list[str], plain: list[str] | None = None,
       strides: list[Any] | None = None) -> Span:  # fmt: skip
    args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": plain or [""] * len(dims)}
    args |= {"Input Strides": strides} if strides else {}
    return Span(OP, f"aten::{name}", 0, 1, "1/1", args=args)


SQUARE_MM = op("mm", [[4096, 4096]] * 2, [BF16, BF16])
LISTS = ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"]


@pytest.mark.parametrize(
    ("operator", "flops", "num_bytes"),
    [
        (op("mm", [[64, 32], [32, 16]], [BF16, BF16]),
         2 * 64 * 32 * 16, 2 * (64 * 32 + 32 * 16 + 64 * 16)),
        # beta and alpha are arguments by name, whatever their place in a trace
        (op("addmm", [[16], [64, 32], [32, 16], [], []],
            [BF16, BF16, BF16, "Scalar", "Scalar"], ["", "", "", "1", "1"]),
         2 * 64 * 32 * 16, 2 * (16 + 64 * 32 + 32 * 16 + 64 * 16)),
        (op("bmm", [[4, 8, 16], [4, 16, 8]], ["float", "float"]),
         2 * 4 * 8 * 16 * 8, 4 * (2 * 4 * 8 * 16 + 4 * 8 * 8)),
        # stride 2, padding 1: 8x8 becomes 4x4; two groups of four channels
        (op("_convolution", [[2, 8, 8, 8], [16, 4, 3, 3], *[[]] * 11],
            ["float", "float", "", *LISTS[:3], "Scalar", "ScalarList", *["Scalar"] * 5],
            ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2", "False", "False",
             "True", "True"]),
         2 * 2 * 4 * 4 * 16 * 4 * 9, 4 * (2 * 8 * 64 + 16 * 4 * 9 + 2 * 16 * 16)),
    ],
)  # fmt: skip
def test_work_follows_from_the_shapes(operator: Span, flops: int, num_bytes: int) -> None:
    work = work_of(operator)
    assert (work.flops, work.bytes) == (flops, num_bytes)


class WithoutMeta(TorchDispatchMode):
    """As torch 2.11 and older, which run these on a device alone."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func.overloadpacket.__name__ in AS_CONVOLUTION:
            raise NotImplementedError("convolution_overrideable not implemented")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_training_s_work_is_thrice_an_evaluation_s(layout: str, tmp_path: Path) -> None:
    """Of 8 images: 3x8x8 to 8x8x8, 16x3x3 and 10; the images themselves need no gradient."""
    first, second, last = 8 * 64 * 3 * 9, 16 * 9 * 8 * 9, 16 * 10
    forward = 2 * 8 * (first + second + last)
    expected = {True: forward, False: 3 * forward - 2 * 8 * first}
    for evaluation, work in expected.items():
        trainer = trainer_of(small_cnn(), layout=layout, evaluation=evaluation)
        feed, out = Batches(*noise(small_cnn())), tmp_path / f"{evaluation}.json"
        with watch(out=str(out), after=1, bare=2, traced=2, quiet=True) as recorder:
            for _ in range(6):
                trainer.step(feed)
                recorder.step()
        step = step_of(read_trace(out))
        with WithoutMeta():
            found = products(step, None)
        # On a CPU what aten::convolution does around aten::_convolution is listed beside it.
        inner = [one for one in found if one.operator != "convolution"]
        assert sum((one.flops or 0) * one.count for one in inner) == work * step.steps


@pytest.mark.parametrize(("other", "known"), [("no_such_mm", False), ("", True)])
def test_the_share_of_the_card_needs_counts(other: str, known: bool, tmp_path: Path) -> None:
    """Two products of 2 ms; of one nothing can be counted."""
    made = begun(9 * MS, 18 * MS)
    for number, name in enumerate(("mm", other or "mm")):
        begin = (11 + 3 * number) * MS
        made.op(f"aten::{name}", begin, begin + 50 * US, **SQUARE_MM.args)
        made.kernel("gemm", begin + 20 * US, begin + 2 * MS, begin + 10 * US)
    step = step_of(read_trace(made.write(tmp_path / "t.json")))
    assert sum(map(is_product, step.ops)) == 2
    share = of_card(step, products(step, H200), 9 * MS)
    assert (share is not None) == known
    if share is not None and H200:
        peak = H200.peak(PRECISIONS["bf16"]) or 0.0
        assert share == pytest.approx(2 * 2 * 4096**3 / peak / 9e-3)


@pytest.mark.parametrize("mask", ["[True, True, True]", "[False, True, True]"])
def test_a_convolution_s_backward_counts_the_gradients_that_are_asked_for(mask: str) -> None:
    found = work_of(
        op("convolution_backward",
           [[2, 16, 8, 8], [2, 8, 8, 8], [16, 8, 3, 3], *[[]] * 8], [BF16, BF16, BF16, *LISTS],
           ["", "", "", "[16]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask])
    )  # fmt: skip
    assert found.flops == (1 + mask.startswith("[T")) * 2 * 2 * 64 * 16 * 8 * 9


@pytest.mark.parametrize(
    "damaged",
    [
        op("mm", [[64, 32]], [BF16]), op("mm", [[64, 32], [31, 16]], [BF16, BF16]),
        op("mm", [], []), op("mm", [[-4, 32], [32, 16]], [BF16, BF16]),
        op("no_such_operator", [[4]], [BF16]),
        op("_convolution", [[2, 8, 8, 8], [16, 4, 3, 3]], ["float"] * 2, ["", "__import__"]),
    ],
)  # fmt: skip
def test_arguments_that_fit_no_operator_are_work_unknown(damaged: Span) -> None:
    assert work_of(damaged).floor(PRECISIONS["bf16"], H200, None) is None


# ---------------------------------------------------------------- Tensor Cores


SQUARE = [[4096, 4096]] * 2


@pytest.mark.parametrize(
    ("operator", "precision", "without"),
    [
        (op("mm", SQUARE, [BF16] * 2), "bf16", 133.8e12),
        (op("mm", SQUARE, ["float"] * 2), "tf32", 67e12),  # held against float32
        (op("_int_mm", SQUARE, ["signed char"] * 2), "int8", 4 * 67e12),
        (op("_scaled_mm", [*SQUARE, *[[]] * 6],
            [FP8, FP8, "float", "float", "", "", "", "Scalar"],
            [*[""] * 6, "15", "True"], [[4096, 1], [1, 4096], *[[]] * 6]), "fp8-e4m3", 133.8e12),
    ],
)  # fmt: skip
def test_only_a_rate_that_the_sms_cannot_reach_proves_tensor_cores(
    operator: Span, precision: str, without: float, tmp_path: Path
) -> None:
    """Its two calls run behind another stream's work."""

    def seen(share: float, card: Any = H200, kernel: str = "k", allowed: bool = True) -> Product:
        ns, made = 2e9 * 4096**3 / without / share, begun(9 * MS, 18 * MS, allow_tf32=allowed)
        for begin in (12 * MS, 13 * MS):
            made.op(operator.name, begin, begin + 50 * US, **operator.args)
            made.kernel(kernel, begin + 20 * US, begin + 20 * US + round(ns), begin + 10 * US)
        made.op("aten::relu", 15 * MS, 15 * MS + 50 * US)
        made.kernel("relu", 12 * MS + 20 * US + round(ns) // 2, 20 * MS, 15 * MS, stream=8)
        (found,) = products(step_of(read_trace(made.write(tmp_path / "t.json"))), card)
        assert found.count == 2
        assert found.kernel_ns == 2 * round(ns) > found.ns > 0
        assert found.flop_per_s == pytest.approx(2 * 4096**3 / ns * 1e9, rel=1e-3)
        return found

    assert (seen(1.01).precision, seen(1.01).tensor_cores) == (precision, True)
    assert seen(0.99).tensor_cores is None
    assert seen(1.01, None).tensor_cores is None
    assert seen(1.01, kernel="winograd_fprop").tensor_cores is None
    if precision == "tf32":
        assert seen(0.99, allowed=False).tensor_cores is False


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
    return op(name, list(dims), [BF16] * len(dims), strides=strides)


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
        (laid("convolution", [32, 3, 8, 8], [64, 3, 3, 3]), ""),  # an image
        (laid("convolution", [32, 3, 8, 8], [63, 3, 3, 3]), "63x3x3x3"),
        (laid("convolution", [32, 5, 8, 8], [64, 5, 3, 3]), "32x5x8x8"),
        (laid("convolution", [32, 64, 7, 7], [64, 64, 3, 3]), ""),
        (laid("convolution", [32, 64, 8, 8], [63, 64, 3, 3]), "63x64x3x3"),
        (laid("convolution", [32, 64, 8, 8], [64, 1, 3, 3]), ""),  # depthwise
        (laid("convolution_backward", [32, 63, 8, 8], [32, 64, 8, 8], [63, 64, 3, 3]), "63x64x3x3"),
        (laid("_scaled_dot_product_flash_attention", [2, 7, 101, 64], [2, 7, 101, 64]), ""),
        (laid("_scaled_dot_product_flash_attention", [2, 8, 64, 60], [2, 8, 64, 60]), "2x8x64x60"),
        (laid("linear", [64, 768], [1021, 768]), "1021x768"),
        (laid("mv", [768, 512], [512]), ""), (laid("convolution", [32, 3]), ""),
        # without strides rows lie one after the other
        (op("mm", [[64, 771], [771, 64]], [BF16] * 2), "64x771"),
    ],
)  # fmt: skip
def test_only_what_lies_odd_in_memory_is_misaligned(operator: Span, said: str) -> None:
    assert misaligned([operator]) == said


# ---------------------------------------------------------------- replay


def seen(step: Callable[[], object], path: Path) -> Traced:
    plan = schedule(wait=0, warmup=1, active=4, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as one:
        for _ in range(5):
            step()
            one.step()
    one.export_chrome_trace(str(path))
    return diagnose([path], replay=partial(replayed, describe("cpu").target())).runs[0]


def test_written_attention_and_loops_over_tensors_are_held_against_calls(tmp_path: Path) -> None:
    query, key, value = (torch.randn(8, 128, 16, requires_grad=True) for _ in range(3))

    def step() -> None:
        scores = torch.bmm(query, key.transpose(1, 2)) * 0.25
        torch.bmm(scores.softmax(-1), value).sum().backward()

    run = seen(step, tmp_path / "attention.json")
    (gain,) = (gain for gain in run.gains if gain.cause == "attention")
    assert "scaled_dot_product_attention" in gain.change
    assert (gain.rounds, gain.step_ms) == (run.steps, run.step_ms)
    assert gain.ms < run.step_ms  # not more than the operations on scores took
    weights, averages = ([torch.zeros(64, 64) for _ in range(150)] for _ in range(2))
    layer = torch.nn.Linear(64, 64)

    def looped() -> None:
        layer(weights[0]).sum().backward()
        with torch.no_grad():
            for average, weight in zip(averages, weights, strict=True):
                average.mul_(0.9).add_(weight, alpha=0.1)

    run = seen(looped, tmp_path / "loop.json")
    (gain,) = (gain for gain in run.gains if gain.cause == "loops")
    assert "_foreach" in gain.change
    assert gain.ms < run.step_ms
