"""Linear layers through torch: the casts in torch's own functions, or torchao's Float8Linear.

A step goes through autograd, as a training does: forward, then both gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.case import Candidate, CannotRun, Case, Target
from kernels.linear import PRODUCTS, Linear
from kernels.linear import operands as cast
from kernels.messages import first_line

TORCHAO = "torchao"  # the back end of its layer
RECIPES = {"fp8-tensor": "tensorwise", "fp8-row": "rowwise"}  # as torchao names them
FP8_MULTIPLE = 16  # elements that cuBLASLt's FP8 products come in
TRIED = 256  # rows and columns, at most, of products that are tried before
WARM_CALLS = 3  # before a call is captured
PADDED_SCALES = 4  # a square block's scales are stored in multiples of this

Given = Mapping[str, Tensor]
Factors = Mapping[str, tuple[cast.Quantised, cast.Quantised]]
Results = tuple[Tensor, ...]


def check(case: Case, target: Target) -> None:
    """CannotRun, with the reason, where torch or torchao cannot run this."""
    problem, precision, name = case.problem, case.precision, case.precision_name
    assert isinstance(problem, Linear)
    if not precision.casts and name != "bf16":
        raise CannotRun(
            "a linear layer is measured in bf16, fp8-tensor, -row, -block, mxfp8, nvfp4"
        )
    if target.kind == "cpu" and problem.layout in ("graph", "quantised"):
        raise CannotRun("a CPU has no CUDA graphs: --layout launched, eager or quantised-launched")
    if target.kind == "cpu" and problem.layout == "launched" and name in cast.BLOCK_SCALED:
        raise CannotRun(f"a CPU computes {name} by its definition, uncompiled: --layout eager")
    if case.backend == TORCHAO:
        if name not in RECIPES or problem.which != "step" or problem.quantised:
            raise CannotRun("torchao's layer is a whole step in fp8-tensor or fp8-row, with casts")
        if find_spec(TORCHAO) is None:
            raise CannotRun("torchao is not installed: pip install 'halfway[fp8]'")
    blocks = {"fp8-block": cast.BLOCK, **dict.fromkeys(cast.BLOCK_SCALED, cast.MX_BLOCK)}
    multiple = blocks.get(name, FP8_MULTIPLE)
    free = problem.which in ("fprop", "dgrad") and name != "fp8-block"  # nothing is summed over M
    for dim in "kn" if free else "mkn":
        if precision.casts and getattr(problem, dim) % multiple:
            size = f"{dim.upper()}={getattr(problem, dim)}"
            raise CannotRun(f"{name} needs multiples of {multiple}, not {size}")


def candidates(case: Case, operands: cast.LinearOperands, target: Target) -> Sequence[Candidate]:
    """The one way to run the case. A corner of its products is tried first: CannotRun where torch
    refuses it. On a GPU `launched` is compiled here, and `graph` captured.
    """
    problem, name, given = operands.problem, case.precision_name, operands.given
    every = problem.inputs, problem.outputs, name
    try:
        _products(*every, {}, *(tensor[:TRIED, :TRIED].contiguous() for tensor in given.values()))
    except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
        raise CannotRun(f"torch has no {name} here: {first_line(error)}") from error
    compiles = problem.layout in ("graph", "launched")
    if problem.which == "step" and not problem.quantised:
        call = _step(given, name, by_torchao=case.backend == TORCHAO, compiles=compiles)
    else:
        products = compiled(_products) if compiles else _products
        call = partial(products, *every, operands.factors, *given.values())
    on_gpu = target.kind == "cuda"
    graph = on_gpu and problem.layout in ("graph", "quantised")
    calls = captured(call) if graph else call

    def launch() -> object:
        first, *others = calls()
        return (first, *others) if others else first

    return (Candidate(problem.layout, launch, allocates=True, launched=on_gpu and not graph),)


# ---------------------------------------------------------------- the products


def _products(
    inputs: Sequence[str], outputs: Sequence[str], name: str, factors: Factors, *tensors: Tensor
) -> Results:
    """Each output; from `factors`, where its operands are cast already."""
    given = dict(zip(inputs, tensors, strict=True))
    return tuple(_product(given, output, name, factors.get(output)) for output in outputs)


def _product(
    given: Given,
    output: str,
    name: str,
    factors: tuple[cast.Quantised, cast.Quantised] | None = None,
) -> Tensor:
    """ "y", "dx" or "dw"; its operands are cast first where the precision is not bf16. As in
    torchao the forward product alone is added up fast.
    """
    first, second = PRODUCTS[output]
    if name == "bf16":
        return cast.matrix(given, first) @ cast.matrix(given, second).t()
    a, b = factors or (cast.quantised(given, first, name), cast.quantised(given, second, name))
    return multiplied(a, b, name, fast=output == "y")


def multiplied(a: cast.Quantised, b: cast.Quantised, name: str, *, fast: bool) -> Tensor:
    """a @ b transposed, in bfloat16; `fast` is how FP8 products are added up, less exactly. On a
    CPU torch has no products with scales of 32 or 16, so there they are of what they stand for.
    """
    if name in cast.BLOCK_SCALED:
        return _block_scaled(a, b) if a.values.is_cuda else (a.exact @ b.exact.t()).bfloat16()
    if name == "fp8-block":
        return _blocks(a.values, b.values, a.scales, b.scales)
    return torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        a.values, b.values.t(), a.scales, b.scales.t(), out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )  # fmt: skip


@torch.library.custom_op(
    "halfway::blocks", mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor of_a, Tensor of_b) -> Tensor",
)  # fmt: skip
def _blocks(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor) -> Tensor:
    """a @ b transposed with scales `of_a`, `of_b`. Of one operation torch's compiler needs to know
    no more than its result: it does not look into scaled_mm, and left casts beside it uncompiled.
    """
    kinds, square = F.ScalingType, of_b.shape[0] < b.shape[0]
    more = -of_b.shape[1] % PADDED_SCALES
    scales = F.pad(of_b, (0, more)).contiguous().t() if square else _by_column(of_b)
    kind = kinds.BlockWise128x128 if square else kinds.BlockWise1x128
    return F.scaled_mm(
        a.contiguous(), b.contiguous().t(), _by_column(of_a), kinds.BlockWise1x128, scales, kind,
        output_dtype=torch.bfloat16,
    )  # fmt: skip


@_blocks.register_fake
def _(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=torch.bfloat16)


def _block_scaled(a: cast.Quantised, b: cast.Quantised) -> Tensor:
    assert a.stored is not None
    assert b.stored is not None
    kinds, swizzles = F.ScalingType, F.SwizzleType
    if a.whole is None or b.whole is None:
        kind, swizzle = [kinds.BlockWise1x32], [swizzles.SWIZZLE_32_4_4]
        left, right, scales = a.values, b.values, ([a.stored], [b.stored])
    else:
        kind = [kinds.BlockWise1x16, kinds.TensorWise]
        swizzle = [swizzles.SWIZZLE_32_4_4, swizzles.NO_SWIZZLE]
        left, right = (factor.values.view(torch.float4_e2m1fn_x2) for factor in (a, b))
        scales = [a.stored, a.whole], [b.stored, b.whole]
    return F.scaled_mm(
        left, right.t(), scales[0], kind, scales[1], kind, swizzle, swizzle,
        output_dtype=torch.bfloat16,
    )  # fmt: skip


def _by_column(scales: Tensor) -> Tensor:
    return scales.t().contiguous().t()


# ---------------------------------------------------------------- the passes, and how they launch


class _Layer(torch.autograd.Function):
    """A linear layer whose three products are in a precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, name: str) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.name = name
        return _product({"x": x, "w": w}, "y", name)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w = ctx.saved_tensors
        given = {"x": x, "w": w, "g": grads[0]}
        return _product(given, "dx", ctx.name), _product(given, "dw", ctx.name), None


def _step(given: Given, name: str, *, by_torchao: bool, compiles: bool) -> Callable[[], Results]:
    x, w = given["x"].detach().requires_grad_(), torch.nn.Parameter(given["w"])

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w) if name == "bf16" else _Layer.apply(x, w, name)

    if by_torchao:
        module = _torchao(w, name)

        def layer(x: Tensor, w: Tensor) -> Tensor:
            return module(x)

    forward = compiled(layer) if compiles else layer

    def call() -> Results:
        y = forward(x, w)
        return y.detach(), *torch.autograd.grad(y, (x, w), given["g"])

    return call


def _torchao(w: torch.nn.Parameter, name: str) -> torch.nn.Module:
    """torchao's layer with this weight."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it registers with torch
        from torchao.float8 import (  # pyright: ignore[reportMissingTypeStubs]
            Float8LinearConfig,
            convert_to_float8_training,
        )
    rows, columns = w.shape
    plain = torch.nn.Linear(columns, rows, bias=False, device="meta", dtype=w.dtype)
    config = Float8LinearConfig.from_recipe_name(RECIPES[name])
    module: Any = convert_to_float8_training(torch.nn.Sequential(plain), config=config)
    module[0].weight = w
    return module


def compiled(function: FunctionType) -> Callable[..., Any]:
    """Compiled for its sizes alone: a copy of its code, since torch keeps what it compiled, and the
    checks before each call, by code.
    """
    copy = FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__,
        function.__defaults__, function.__closure__,
    )  # fmt: skip
    return torch.compile(copy, dynamic=False)


def captured(call: Callable[[], Sequence[Tensor]]) -> Callable[[], Sequence[Tensor]]:
    """The call as one CUDA graph. What a replay leaves unwritten is NaN."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    for result in results:
        result.fill_(float("nan"))

    def replay(_reads: object = call) -> Sequence[Tensor]:  # which keeps what the graph reads
        graph.replay()
        return results

    return replay
