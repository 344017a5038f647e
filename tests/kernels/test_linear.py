"""Linear layers on the CPU: every pass against float64, and what casts to FP8 keep and lose."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels import OPS
from kernels.case import CannotRun, Case, Prepared, Target
from kernels.ceilings import variants
from kernels.linear import LAYOUTS, PASSES, PRODUCTS, Linear
from kernels.linear.operands import BLOCK, matrix, quantised
from kernels.op import Session
from kernels.precision import PRECISIONS

CPU = Target("cpu", "a CPU", None, 2)
SCALED = [name for name, kind in PRECISIONS.items() if kind.only == "linear"]
SIZES = (96, 128, 160)  # tokens, features in, features out


def case(name: str, which: str, layout: str, sizes: tuple[int, int, int] = SIZES) -> Case:
    return Case(Linear(*sizes, which, layout), name, "cpu")


def prepared(what: Case) -> Prepared:
    OPS["linear"].check(what, CPU)
    return Session(CPU, 0).prepare(what)


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", ["bf16", *SCALED])
def test_every_pass_is_right_or_says_why_not(name: str, which: str) -> None:
    for layout in set(LAYOUTS) - {"launched"}:  # which compiles for a quarter of a minute
        what = case(name, which, layout)
        if layout in ("graph", "quantised") or name == "fp8-block":
            with pytest.raises(CannotRun, match=r"no CUDA graphs|multiples of 128"):
                prepared(what)
            continue
        ready = prepared(what)
        launch = ready.candidates[0]
        error, total = ready.rel_error(launch), ready.total_error()
        assert error <= what.tolerance
        casts = name != "bf16" and layout == "eager"
        assert (error > what.precision.least_error) == casts or name == "bf16"
        assert total < 0.005 if name == "bf16" else 0.02 < total < 0.07
        ready.renew()  # what was computed before is wrong now
        assert ready.rel_error_again(launch, lambda sampled: sampled()) <= what.tolerance


@pytest.mark.parametrize("layout", ["eager", "quantised-launched"])
@pytest.mark.parametrize("wrong", ["dx", "dw"])
def test_one_wrong_gradient_of_a_step_is_seen(wrong: str, layout: str) -> None:
    what = case("fp8-row", "step", layout)
    ready = prepared(what)
    launch = ready.candidates[0]

    def spoilt(spoil: Callable[[torch.Tensor], object]) -> float:
        def call() -> object:
            results: dict[str, torch.Tensor] = dict(zip(PRODUCTS, launch.call(), strict=True))  # pyright: ignore[reportArgumentType]
            spoil(results[wrong])
            return tuple(results.values())

        return ready.rel_error(replace(launch, call=call))

    assert spoilt(lambda result: result) <= what.tolerance
    assert spoilt(lambda result: result[7].mul_(2)) > what.tolerance  # as by a wrong row's scale
    assert spoilt(lambda result: result[:, 3].fill_(math.nan)) == math.inf


@pytest.mark.parametrize("name", SCALED)
def test_a_cast_uses_all_of_fp8_and_a_transposed_matrix_is_the_same_numbers(name: str) -> None:
    sizes, g = (256, 384, 128), torch.Generator().manual_seed(0)
    problem = Linear(*sizes)
    given = {
        one: torch.randn(problem.stored(one), generator=g).bfloat16() * 10.0 ** (i - 1)
        for i, one in enumerate("xwg")
    }
    given["x"][0] = 0  # a row of zeros has a scale too
    for one in ("x", "w", "g", "x_t", "w_t", "g_t"):
        cast = quantised(given, one, name)
        rows, columns = problem.stored(one)
        square = BLOCK if one.startswith("w") else 1
        parts = {"tensor": (1, 1), "row": (rows, 1), "block": (rows // square, columns // BLOCK)}
        assert tuple(cast.scales.shape) == parts[name.removeprefix("fp8-")]
        assert cast.values.is_contiguous()
        wanted = matrix(given, one).float()
        largest = torch.finfo(cast.values.dtype).max
        assert cast.values.float().abs().max() == largest
        steps = 8 if cast.values.dtype is torch.float8_e5m2 else 16  # half of a mantissa's step
        least = cast.scales.max() * torch.finfo(cast.values.dtype).tiny
        assert torch.all((cast.exact - wanted).abs() <= (wanted.abs() / steps).clamp(min=least))


def test_work_is_counted_as_the_field_counts_it() -> None:
    m, k, n = SIZES
    for which, tensors in (
        ("fprop", m * k + n * k),
        ("dgrad", n * k + m * n),
        ("wgrad", m * k + m * n),
    ):
        one = Linear(*SIZES, which, "quantised")
        written = 2 * (m * k + n * k + m * n - tensors)
        assert one.flops == 2 * m * k * n
        assert one.min_bytes(PRECISIONS["fp8-row"]) == tensors + written
        assert one.min_bytes(PRECISIONS["bf16"]) == 2 * tensors + written
        assert math.prod(one.mnk) == m * k * n
    step, tensors = Linear(*SIZES, "step", "graph"), m * k + n * k + m * n
    assert step.flops == 6 * m * k * n
    assert (
        step.min_bytes(PRECISIONS["fp8-row"]) == step.min_bytes(PRECISIONS["bf16"]) == 4 * tensors
    )


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (case("fp16", "step", "eager"), "measured in bf16"),
        (case("fp8-row", "wgrad", "eager", (100, 128, 128)), "M=100"),
        (case("fp8-row", "fprop", "eager", (96, 120, 128)), "K=120"),
        (replace(case("fp8-row", "step", "quantised-launched"), backend="torchao"), "CUDA GPU"),
        (case("fp8-block", "step", "eager", (256, 128, 128)), "torch has no fp8-block here"),
    ],
)  # fmt: skip
def test_what_cannot_run_says_why(what: Case, reason: str) -> None:
    with pytest.raises(CannotRun, match=reason):
        prepared(what)


def test_what_is_multiplied_is_fp8_and_its_instruction_is_the_ceiling() -> None:
    hopper = Target("cuda", "NVIDIA H200", (9, 0), 132)
    for name in SCALED:
        assert variants(name, hopper) == variants("fp8-e4m3", hopper) != variants("bf16", hopper)


def test_precisions_of_linear_layers_are_of_no_other_op() -> None:
    from kernels.gemm import Gemm

    for name, backend in itertools.product(SCALED, ("cpu", "cublas")):
        with pytest.raises(CannotRun, match="linear alone"):
            OPS["gemm"].check(Case(Gemm(64, 64, 64), name, backend), CPU)
