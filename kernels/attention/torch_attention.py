"""Attention through torch: each back end of scaled_dot_product_attention, or what torch picks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention import MEASURED
from kernels.attention.operands import AttentionOperands
from kernels.case import Candidate, CannotRun, Case, Target
from kernels.messages import first_line

BACKENDS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
NO_REASON = ("not used because", "runtime disabled")  # in warnings beside the one that says why
matmul_switches = torch.backends.cuda.matmul


def check(case: Case, target: Target) -> None:
    """CannotRun, with the reason, where torch has no such attention."""
    if case.precision_name not in MEASURED:
        raise CannotRun(f"torch's attention is measured in {', '.join(MEASURED)}")


def candidates(case: Case, operands: AttentionOperands, target: Target) -> Sequence[Candidate]:
    """The one call of the back end; its label says which back end it is, so which torch picks.

    It is tried once: CannotRun, with torch's reason, where torch refuses it.
    """
    problem, chosen = operands.problem, BACKENDS.get(case.backend)
    q, k, v, *do = operands.inputs
    if do:
        q, k, v = (tensor.detach().requires_grad_() for tensor in (q, k, v))
    given: dict[str, Any] = {
        "is_causal": problem.causal, "enable_gqa": problem.heads != problem.kv_heads,
    }  # fmt: skip

    def forward() -> torch.Tensor:
        # Variants are interleaved in one process: every launch sets the switches it depends on.
        matmul_switches.fp32_precision = case.precision.multiply
        only: AbstractContextManager[Any] = sdpa_kernel(chosen) if chosen else nullcontext()
        with only:
            return scaled_dot_product_attention(q, k, v, **given)

    def backward() -> object:
        matmul_switches.fp32_precision = case.precision.multiply
        return torch.autograd.grad(out, (q, k, v), do[0], retain_graph=True)

    call: Callable[[], object] = backward if do else forward
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            out = forward()
            call()
        except RuntimeError as error:  # out of memory too
            if "CUDA error" in str(error):  # a fault, which is no refusal
                raise
            texts = [str(warning.message) for warning in caught]
            why = [text for text in texts if not any(words in text for words in NO_REASON)]
            reason = why[0].partition(" (Triggered")[0] if why else first_line(error)
            raise CannotRun(reason) from error
    return (Candidate(case.backend if chosen else _picked(q, k, v, given), call, allocates=True),)


def _picked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any]) -> str:
    """The back end that torch takes by itself: what its own dispatch asks before each call."""
    choice: Any = torch._fused_sdp_choice  # pyright: ignore[reportPrivateImportUsage]
    number = choice(q, k, v, None, 0.0, given["is_causal"], enable_gqa=given["enable_gqa"])
    return next((name for name, sdpa in BACKENDS.items() if int(sdpa.value) == number), "torch")
