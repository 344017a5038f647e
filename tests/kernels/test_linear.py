"""Linear layers and attention on the CPU: every pass against float64, and casts to FP8."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.scaled_blocks import FP4_GRID, block_matrix, emulated, grid_of, product_error
from torch.nn.functional import scaled_dot_product_attention

from kernels import OPS
from kernels.attention import LAYOUTS as MASKS
from kernels.attention import PASSES as WAYS
from kernels.attention import Attention, operands, torch_attention
from kernels.case import Candidate, CannotRun, Case, Target
from kernels.ceilings import peak_kernels
from kernels.checking import Prepared
from kernels.linear import LAYOUTS, PASSES, PRODUCTS, Linear
from kernels.linear.operands import BLOCK, BLOCK_SCALED, matrix, mxfp8, quantised, swizzled
from kernels.op import Session
from kernels.precision import PRECISIONS

CPU = Target("cpu", "a CPU", None, 2)
SCALED = [name for name, kind in PRECISIONS.items() if kind.only == "linear"]
FP8 = [name for name in SCALED if name not in BLOCK_SCALED]
ROUNDING = {"bf16": (0, 0.005), "nvfp4": (0.11, 0.16)}  # of both operands
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
        least, most = ROUNDING.get(name, (0.02, 0.07))
        assert least < total < most
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


@pytest.mark.parametrize("name", FP8)
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


MATRICES = st.builds(
    block_matrix,
    st.integers(0, 10**6),
    st.integers(1, 130),
    st.integers(1, 9),
    st.integers(-30, 30),
)


@settings(max_examples=40, deadline=None)
@given(values=MATRICES, dtype=st.sampled_from((torch.float8_e4m3fn, torch.float8_e5m2)))
def test_mxfp8_is_the_nearest_number_by_the_least_power_of_two(
    values: torch.Tensor, dtype: torch.dtype
) -> None:
    cast = mxfp8(values, dtype)
    assert cast.values.dtype == dtype
    scales = cast.scales.double()
    assert torch.all(scales.frexp().mantissa == 0.5)
    assert torch.equal(cast.scales, cast.scales.to(torch.float8_e8m0fnu).float())
    most = torch.finfo(dtype).max
    largest = values.double().reshape(len(values), -1, 32).abs().amax(2)
    assert torch.all(largest <= most * scales)
    assert torch.all((largest > most * scales / 2) | (largest == 0))
    exact = emulated(values, scales, 32, grid_of(dtype))
    assert torch.equal((cast.exact.double() - values).abs(), (exact - values).abs())
    steps = 8 if dtype is torch.float8_e5m2 else 16
    least = (scales * torch.finfo(dtype).smallest_normal / steps).repeat_interleave(32, 1)
    assert torch.all(
        (cast.exact.double() - values).abs() <= (values.abs() / steps).clamp(min=least)
    )
    assert torch.equal(mxfp8(cast.exact, dtype).exact, cast.exact)


@settings(max_examples=40, deadline=None)
@given(values=MATRICES)
def test_nvfp4_is_the_nearest_number_by_a_scale_of_a_block_and_one_of_the_tensor(
    values: torch.Tensor,
) -> None:
    cast = BLOCK_SCALED["nvfp4"](values)
    assert torch.equal(cast.scales, cast.scales.to(torch.float8_e4m3fn).float())
    scales = (cast.scales * cast.whole).double()
    exact = emulated(values, scales, 16, FP4_GRID)
    close = 1e-5 * scales.max()  # float32 beside float64
    assert torch.all((cast.exact - values).abs() <= (exact - values).abs() + close)
    largest = values.double().reshape(len(values), -1, 16).abs().amax(2)
    if largest.max() > 0:
        assert torch.allclose(scales.max() * 6, largest.max(), rtol=1e-5)
    # A scale in FP8 errs by a sixteenth, a number in FP4 by a fifth, below 1 by a quarter.
    within = largest >= 6 * 2.0**-6 * cast.whole.double()
    assert torch.all((6 * scales / largest - 1)[within].abs() <= 1 / 16 + 1e-5)
    off = (cast.exact - values).abs() <= torch.maximum(
        0.2001 * values.abs(), (0.2501 * scales).repeat_interleave(16, 1)
    )
    assert torch.all(off | ~within.repeat_interleave(16, 1))
    if torch.all(within):
        assert torch.allclose(BLOCK_SCALED["nvfp4"](cast.exact).exact, cast.exact, rtol=1e-5)


def test_halves_of_fp4_go_to_even_and_scales_stand_as_cublas_reads_them() -> None:
    halves = torch.tensor([[0.25, 0.75, -1.25, 1.75, 2.5, -3.5, 5, 6] + [0.0] * 8])
    even = [0, 1, -1, 2, 2, -4, 4, 6]
    assert BLOCK_SCALED["nvfp4"](halves).exact[0, :8].tolist() == pytest.approx(even, abs=1e-6)
    scales = torch.arange(300 * 6).reshape(300, 6)
    found = swizzled(scales)
    assert len(found) == 384 * 8
    for row, block in itertools.product(range(300), range(6)):  # cuBLAS, "1D Block Scaling ..."
        tile = 512 * (row // 128 * 2 + block // 4)
        assert found[tile + row % 32 * 16 + row % 128 // 32 * 4 + block % 4] == scales[row, block]


@pytest.mark.parametrize("name", BLOCK_SCALED)
def test_products_of_block_scaled_matrices_are_those_of_the_float64_emulation(name: str) -> None:
    assert product_error(name, "cpu") < PRECISIONS[name].rel_tolerance
    for planted in (
        {"scales": lambda one: one.roll(1, 1)}, {"scales": lambda one: one.roll(32, 0)},
        {"values": lambda one: one.roll(1, 1)}, {"whole": lambda one: one and one * 1.05},
    ):  # fmt: skip
        if name == "nvfp4" or "whole" not in planted:
            assert product_error(name, "cpu", planted) > PRECISIONS[name].rel_tolerance


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
        (case("nvfp4", "wgrad", "eager", (48, 64, 64)), "multiples of 32, not M=48"),
        (case("mxfp8", "step", "launched"), "by its definition"),
        (replace(case("fp8-row", "step", "quantised-launched"), backend="torchao"), "CUDA GPU"),
        (case("fp8-block", "step", "eager", (256, 128, 128)), "torch has no fp8-block here"),
    ],
)  # fmt: skip
def test_what_cannot_run_says_why(what: Case, reason: str) -> None:
    with pytest.raises(CannotRun, match=reason):
        prepared(what)


def test_precisions_of_linear_layers_are_of_no_other_op_and_fp8_is_the_ceiling() -> None:
    hopper = Target("cuda", "NVIDIA H200", (9, 0), 132)
    for name in BLOCK_SCALED:
        assert peak_kernels(name, hopper) == []
        with pytest.raises(CannotRun, match=f"{name} needs compute capability 10.0, .* has 9.0"):
            OPS["linear"].check(replace(case(name, "step", "graph"), backend="torch"), hopper)
    for name in FP8:
        assert (
            peak_kernels(name, hopper)
            == peak_kernels("fp8-e4m3", hopper)
            != peak_kernels("bf16", hopper)
        )
    from kernels.gemm import Gemm

    for name, backend in itertools.product(SCALED, ("cpu", "cublas")):
        with pytest.raises(CannotRun, match="linear alone"):
            OPS["gemm"].check(Case(Gemm(64, 64, 64), name, backend), CPU)


# ---------------------------------------------------------------- attention


PROBLEMS = st.builds(
    lambda b, kv, shared, *rest: Attention(b, kv * shared, kv, *rest),
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 40),
    st.integers(1, 20), st.sampled_from(WAYS), st.sampled_from(MASKS),
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(problem=PROBLEMS, band=st.sampled_from((1, 100, 1 << 24)))
def test_the_reference_is_torchs_in_float64_in_bands_of_any_size(
    problem: Attention, band: int
) -> None:
    names = problem.inputs
    drawn = {n: torch.randn(*problem.stored(n), dtype=torch.float64) for n in names}
    q, k, v = (drawn[name].requires_grad_() for name in "qkv")
    out = scaled_dot_product_attention(q, k, v, is_causal=problem.causal, enable_gqa=True)
    expected: tuple[torch.Tensor, ...] = (out,)
    if problem.which == "bprop":
        expected = torch.autograd.grad(out, (q, k, v), drawn["do"])
    named = dict(zip(problem.outputs, expected, strict=True))
    whole = operands.AttentionOperands(problem, {**drawn, **named}, {})
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(operands, "BAND_ELEMENTS", band)
        assert whole.relative_error() < 1e-12


def _changed(candidate: Candidate, change: Callable[[torch.Tensor], object], n: int) -> Candidate:
    """The same with one of its results changed."""

    def call() -> object:
        found: Any = candidate.call()
        change(found[n] if isinstance(found, tuple) else found)
        return found

    return replace(candidate, call=call)


@pytest.mark.parametrize("which", WAYS)
@pytest.mark.parametrize("layout", MASKS)
@pytest.mark.parametrize("backend", ["cpu", "math", "flash"])
def test_what_torch_computes_passes_again_and_what_differs_anywhere_does_not(
    which: str, layout: str, backend: str
) -> None:
    session = Session(CPU, 0)
    for precision in ("fp32", "fp16", "bf16"):
        case = Case(Attention(2, 4, 2, 70, 32, which, layout), precision, backend)
        OPS["attention"].check(case, CPU)
        prepared = session.prepare(case)
        (candidate,) = prepared.candidates
        assert candidate.label == ("flash" if backend == "cpu" else backend)
        assert prepared.rel_error(candidate) < case.tolerance
        prepared.renew()
        assert prepared.rel_error_again(candidate, lambda launch: launch()) < case.tolerance

        for change in (
            lambda t: t[1, -1, -8:].neg_(), lambda t: t[0, 0].mul_(1.1),
            lambda t: t[0, 1, 5, 7].fill_(float("nan")),
        ):  # fmt: skip
            for n in range(3):
                assert prepared.rel_error(_changed(candidate, change, n)) > case.tolerance
    session.close()


def test_counts_and_refusals() -> None:
    shape = Attention(8, 16, 4, 2048, 64)
    full = replace(shape, layout="full")
    assert full.flops == 4 * 8 * 16 * 2048**2 * 64
    assert shape.flops == full.flops * 2049 // 4096
    assert replace(full, which="bprop").flops == 2 * full.flops
    fp16 = PRECISIONS["fp16"]
    rows = 8 * 2048 * 64 * 2
    assert full.min_bytes(fp16) == (2 * 16 + 2 * 4) * rows
    assert replace(full, which="bprop").min_bytes(fp16) == (3 * 16 + 2 * 4 + 16 + 2 * 4) * rows
    for wrong in ({"kv_heads": 3}, {"sequence": 0}, {"which": "dgrad"}, {"layout": "nt"}):
        with pytest.raises(ValueError, match=str(*wrong.values())):
            replace(shape, **wrong)
    hopper = Target("cuda", "any", (9, 0))
    for precision, backend, why in (
        ("fp8-e4m3", "flash", "flash has no fp8"), ("fp64", "cudnn", "in fp32, tf32, fp16, bf16"),
        ("fp16-acc16", "math", "in fp32, tf32, fp16, bf16"),
    ):  # fmt: skip
        with pytest.raises(CannotRun, match=why):
            OPS["attention"].check(Case(shape, precision, backend), hopper)
    case, small = Case(shape.probe(), "fp16", "cudnn"), Session(CPU, 0)
    with pytest.raises(CannotRun, match=r"backend|kernel"):  # torch's own reason
        torch_attention.candidates(case, small.pool.get(case), CPU)
