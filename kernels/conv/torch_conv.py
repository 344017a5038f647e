"""Convolution through torch: cuDNN on a GPU (what a user gets), oneDNN on a CPU.

Each pass alone: the forward, or the backward with one output asked for. With cudnn.benchmark torch
times the first few algorithms that cuDNN offers (torch.backends.cudnn.benchmark_limit, 10) at the
first launch and keeps the quickest: what it keeps can differ from process to process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from kernels.case import Candidate, CannotRun, Case, Target, try_on_cpu
from kernels.conv.operands import ConvOperands, unfilled

conv_switches = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]


def check(case: Case, target: Target) -> None:
    """CannotRun, with the reason, where torch cannot run this."""
    precision = case.precision
    if precision.is_float8:
        name = case.precision_name
        raise CannotRun(f"torch has no {name} convolution; --backend triton has fp8-e4m3")
    if precision.storage == "int8":
        raise CannotRun("torch has no int8 convolution")
    if precision.accumulate == "float16":
        raise CannotRun("torch does not offer cuDNN's float16 accumulation")


def candidates(case: Case, operands: ConvOperands, target: Target) -> Sequence[Candidate]:
    """The one call that torch offers for this case. On a GPU it turns cudnn.benchmark on. On a CPU
    a small convolution is tried first: CannotRun where torch refuses it.
    """
    if target.kind == "cpu":
        small = replace(case, problem=case.problem.probe())
        try_on_cpu(case, _launch(unfilled(small, target.torch_device)))
        return (Candidate("torch", _launch(operands), allocates=True),)
    torch.backends.cudnn.benchmark = True
    launch, mode = _launch(operands), case.precision.multiply

    def call() -> object:
        # Variants are interleaved in one process: every launch sets the switch that it depends on.
        conv_switches.fp32_precision = mode
        return launch()

    return (Candidate("torch", call, allocates=True),)


def _launch(operands: ConvOperands) -> Callable[[], torch.Tensor]:
    shape, x, w, y = operands.shape, operands.x, operands.w, operands.y
    stride, padding, dilation = map(list, (shape.strides, shape.paddings, shape.dilations))
    if operands.which == "fprop":
        forward = torch.ops.aten.convolution.default
        return lambda: forward(x, w, None, stride, padding, dilation, False, [0, 0], shape.groups)
    backward = torch.ops.aten.convolution_backward.default
    wanted = [operands.which == "dgrad", operands.which == "wgrad", False]
    number = 0 if operands.which == "dgrad" else 1
    return lambda: backward(
        y, x, w, None, stride, padding, dilation, False, [0, 0], shape.groups, wanted
    )[number]
