"""Attention as a GPU runs it, under fake tensors: recorded, and its arguments made again.

No GPU is needed for tensors that have no memory. Which of the three a step takes is torch's choice
by device and version; all are recorded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from samples.launching import specs
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from e2e.aten import TensorSpec, flops, kind_of, resolve, spec_of, why_not
from e2e.aten.materialise import SAVED, run_forward
from e2e.prediction.trace.recorder import Recorder, TracedOp

ATEN = torch.ops.aten
BATCH, HEADS, LENGTH, WIDTH = 2, 3, 197, 64
HALF = (torch.float16, torch.bfloat16)
BACKENDS = {"cudnn": HALF, "flash": HALF, "efficient": (torch.float32, *HALF)}
each_backend = pytest.mark.parametrize(
    ("backend", "dtype"), [(name, dtype) for name, dtypes in BACKENDS.items() for dtype in dtypes]
)


def queries(dtype: torch.dtype) -> Sequence[Tensor]:
    """Query, key and value as a decoder cuts them from one product: with gaps between rows."""
    joined = torch.empty(BATCH, LENGTH, 3, HEADS, WIDTH, dtype=dtype, device="cuda")
    return [part.transpose(1, 2) for part in joined.unbind(2)]


def recorded(backend: str, dtype: torch.dtype) -> tuple[TracedOp, TracedOp]:
    """Forward and backward, as autograd calls them, with dropout."""
    dropout = 0.1
    recorder = Recorder("cuda")
    with FakeTensorMode(), recorder:
        q, k, v = queries(dtype)
        if backend == "flash":
            out, *saved = ATEN._scaled_dot_product_flash_attention(q, k, v, dropout, True)
            cut = (*saved[:5], dropout, True, *saved[5:7])
            ATEN._scaled_dot_product_flash_attention_backward(out, q, k, v, out, *cut, scale=0.5)
        elif backend == "cudnn":
            out, lse, cum_q, cum_k, *saved = ATEN._scaled_dot_product_cudnn_attention(
                q, k, v, None, True, dropout, True
            )
            longest, seeds = saved[:2], saved[2:4]
            ATEN._scaled_dot_product_cudnn_attention_backward(
                out, q, k, v, out, lse, *seeds, None, cum_q, cum_k, *longest, dropout, True
            )
        else:
            out, lse, *seeds = ATEN._scaled_dot_product_efficient_attention(
                q, k, v, None, True, dropout, True
            )
            ATEN._scaled_dot_product_efficient_attention_backward(
                out, q, k, v, None, out, lse, *seeds, dropout, [True, True, True, False], True
            )
    ops = [op for op in recorder.end() if "attention" in op.call.name]
    return ops[0], ops[1]


def passed(value: Any) -> Any:
    """An argument as torch takes it."""
    if isinstance(value, TensorSpec):
        return torch.empty_strided(
            value.shape, value.stride, dtype=value.torch_dtype, device=value.device
        )
    return [passed(item) for item in value] if isinstance(value, tuple) else value


@each_backend
def test_it_is_recorded_and_can_be_replayed(backend: str, dtype: torch.dtype) -> None:
    forward, backward = recorded(backend, dtype)
    assert forward.call.operator == f"_scaled_dot_product_{backend}_attention"
    assert backward.call.operator == f"{forward.call.operator}_backward"
    for op in (forward, backward):
        assert why_not(op.call) is None
        assert kind_of(op.call) == "product"
    assert (flops(backward.call) or 0) == 2 * (flops(forward.call) or 0) > 0


@each_backend
def test_the_backward_pass_runs_on_what_the_forward_pass_saves(
    backend: str, dtype: torch.dtype
) -> None:
    """The replayed forward pass gives every argument that it should, as it was recorded."""
    _, backward = recorded(backend, dtype)
    call, saved = backward.call, SAVED[backward.call.operator]
    arguments = call.named
    with FakeTensorMode():
        values: dict[str, Any] = {
            name: None if name in saved.outputs else passed(value)
            for name, value in arguments.items()
        }
        made = run_forward(call, values)
        expected = {n for n in saved.outputs if isinstance(arguments.get(n), TensorSpec)}
        assert made.keys() == expected
        for name, tensor in made.items():
            assert without_device(spec_of(tensor)) == without_device(arguments[name]), name
        returned = resolve(call.name)(
            *list((values | made).values())[: len(call.args)], **dict(call.kwargs)
        )
    assert specs(returned) == backward.outputs


def without_device(spec: Any) -> Any:
    """Seeds may be on either side; whoever runs it gives what is right there."""
    return spec.shape, spec.stride, spec.dtype


def test_seeds_lie_where_each_backend_keeps_them_and_gradients_have_no_gaps() -> None:
    """On the host for efficient attention; gradients of a joined product."""
    for backend, dtypes in BACKENDS.items():
        _, backward = recorded(backend, dtypes[0])
        arguments = backward.call.named
        for name in ("philox_seed", "philox_offset"):
            seed = arguments[name]
            assert isinstance(seed, TensorSpec)
            assert seed.device == ("cpu" if backend == "efficient" else "cuda")
        for gradient in backward.outputs[:3]:
            assert gradient.shape == (BATCH, HEADS, LENGTH, WIDTH)
            assert gradient.span == gradient.numel
