"""Attention: its reference is torch's in float64, its check refuses what differs, torch passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kernels import OPS
from kernels.attention import LAYOUTS, PASSES, Attention, operands, torch_attention
from kernels.case import Candidate, CannotRun, Case, Target
from kernels.op import Session
from kernels.precision import PRECISIONS

CPU = Target("cpu", "any")
PROBLEMS = st.builds(
    lambda b, kv, shared, *rest: Attention(b, kv * shared, kv, *rest),
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 40),
    st.integers(1, 20), st.sampled_from(PASSES), st.sampled_from(LAYOUTS),
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


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("layout", LAYOUTS)
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
            lambda t: t[1, -1, -8:].neg_(), lambda t: t[0, 0].mul_(1.05),
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
        ("fp8-e4m3", "flash", "flash has no fp8"), ("fp64", "cudnn", "fp64 is not measured"),
        ("fp16-acc16", "math", "fp16-acc16 is not measured"),
    ):  # fmt: skip
        with pytest.raises(CannotRun, match=why):
            OPS["attention"].check(Case(shape, precision, backend), hopper)
    case, small = Case(shape.probe(), "fp16", "cudnn"), Session(CPU, 0)
    with pytest.raises(CannotRun, match=r"backend|kernel"):  # torch's own reason
        torch_attention.candidates(case, small.pool.get(case), CPU)
