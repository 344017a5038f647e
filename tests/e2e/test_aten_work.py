"""FLOPs of a recorded call, and what kind of work it is."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from e2e.aten import (
    Call,
    CannotReplay,
    Named,
    TensorSpec,
    describe,
    flops,
    kind_of,
    spec_of,
)

ATEN = torch.ops.aten


def dense(*shape: int, dtype: str = "float32", device: str = "cuda") -> TensorSpec:
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return TensorSpec(shape, stride, dtype, device)


# ------------------------------------------------------------ flops, kinds


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, tuple[object, ...]]:
    dims, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    n, per_in, per_out = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    several = lambda low, high: [draw(st.integers(low, high)) for _ in range(dims)]  # noqa: E731
    size, kernel, stride = several(1, 7), several(1, 3), several(1, 2)
    padding, dilation, transposed = several(0, 2), several(1, 2), draw(st.booleans())
    if transposed:
        ends = [
            (h - 1) * s - 2 * p + d * (r - 1) + 1
            for h, s, p, d, r in zip(size, stride, padding, dilation, kernel, strict=True)
        ]
        weight = torch.ones(per_in * groups, per_out, *kernel)
    else:
        ends = [h + 2 * p - d * (r - 1)
                for h, p, d, r in zip(size, padding, dilation, kernel, strict=True)]  # fmt: skip
        weight = torch.ones(per_out * groups, per_in, *kernel)
    assume(min(ends) >= 1)
    source = torch.ones(n, per_in * groups, *size)
    return source, weight, (stride, padding, dilation, transposed, [0] * dims, groups)


def multiplications(source: torch.Tensor, weight: torch.Tensor, how: tuple[object, ...]) -> int:
    """Counted one by one: a convolution of ones, padded with ones, sums up its multiplications.

    In float64, so that no algorithm rounds the sum.
    """
    stride, padding, dilation, transposed, out_padding, groups = how
    if transposed:  # what each input is multiplied by is the same whatever is cropped
        return source[:, :1].numel() * weight.numel()
    widths = [p for p in reversed(padding) for _ in range(2)]  # type: ignore[call-overload]
    padded = torch.nn.functional.pad(source.double(), widths, value=1.0)
    plain = (stride, [0] * len(widths[::2]), dilation, False, out_padding, groups)
    out = ATEN.convolution.default(padded, weight.double(), None, *plain)
    return int(out.sum())


@given(convolutions(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_a_convolution_and_its_gradients(
    case: tuple[torch.Tensor, torch.Tensor, tuple[object, ...]], mask: tuple[bool, bool, bool]
) -> None:
    source, weight, how = case
    forward = 2 * multiplications(source, weight, how)
    assert flops(describe(ATEN.convolution.default, (source, weight, None, *how), {})) == forward
    out = ATEN.convolution.default(source, weight, None, *how)
    call = describe(
        ATEN.convolution_backward.default, (out, source, weight, [out.shape[1]], *how, mask), {}
    )
    assert flops(call) == forward * (mask[0] + mask[1])


@given(*[st.integers(1, 9)] * 4)
def test_products(b: int, m: int, n: int, k: int) -> None:
    assert flops(Call("aten.mm.default", (dense(m, k), dense(k, n)))) == 2 * m * n * k
    bias = Call("aten.addmm.default", (dense(n), dense(m, k), dense(k, n)))
    assert flops(bias) == 2 * m * n * k
    batched = Call("aten.bmm.default", (dense(b, m, k), dense(b, k, n)))
    assert flops(batched) == 2 * b * m * n * k
    activated = Call("aten._addmm_activation.default", (dense(n), dense(m, k), dense(k, n)))
    assert flops(activated) == 2 * m * n * k
    assert flops(Call("aten.mv.default", (dense(m, k), dense(k)))) == 2 * m * k


@pytest.mark.parametrize(
    "name", ["flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"]
)
def test_attention(name: str) -> None:
    """Of 8 heads, whose keys and values may have fewer, and values another width."""
    q, k, v, few_k, few_v = (
        dense(2, *sizes) for sizes in ((8, 5, 4), (8, 7, 4), (8, 7, 4), (2, 7, 4), (2, 7, 6))
    )
    op = f"aten._scaled_dot_product_{name}"
    assert flops(Call(f"{op}.default", (q, k, v))) == 2 * 2 * 8 * 5 * 7 * (4 + 4)
    assert flops(Call(f"{op}.default", (q, few_k, few_v))) == 2 * 2 * 8 * 5 * 7 * (4 + 6)
    assert flops(Call(f"{op}_backward.default", (q, q, k, v))) == 4 * 2 * 2 * 8 * 5 * 7 * 4


X = dense(4, 8, 6, 6)
HALF = dense(4, 8, 6, 6, dtype="float16")
LAST = TensorSpec((4, 8, 6, 6), (288, 1, 48, 8), "float32", "cuda")


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "kind"),
    [
        ("aten._to_copy.default", (X,), {"dtype": Named("dtype", "float32")}, "copy"),
        ("aten.copy_.default", (HALF, X), {}, "cast"),
        ("aten.copy_.default", (LAST, LAST), {}, "copy"),
        ("aten.copy_.default", (X, dense(1)), {}, "copy"),
        ("aten.clone.default", (LAST,), {}, "copy"),
        ("aten._foreach_copy_.default", ((HALF,), (X,)), {}, "optimizer"),
        ("mine.op.default", (X,), {}, "other"),
    ],
)  # fmt: skip
def test_kinds_of_copies(name: str, args: tuple, kwargs: dict, kind: str) -> None:
    assert kind_of(Call(name, args, tuple(kwargs.items()))) == kind


# ---------------------------------------------------------------- aten call


DTYPES = ("float16", "bfloat16", "float32", "float64", "int64", "uint8", "bool", "float8_e4m3fn")


@st.composite
def tensor_specs(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(0, 2**40), max_size=5)))
    stride = tuple(draw(st.integers(0, 2**40)) for _ in shape)
    return TensorSpec(
        shape, stride, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(("cuda", "cpu")))
    )


NAMED = st.sampled_from([Named("dtype", "float16"), Named("memory_format", "channels_last")])
ARGUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | tensor_specs() | NAMED,
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)  # fmt: skip
CALLS = st.builds(
    Call,
    st.sampled_from(["aten.mm.default", "aten.add_.Tensor", "mine.op.overload"]),
    st.lists(ARGUMENTS, max_size=5).map(tuple),
    st.dictionaries(st.text(), ARGUMENTS, max_size=3).map(lambda d: tuple(sorted(d.items()))),
)


@settings(max_examples=50)
@given(CALLS, CALLS)
def test_keys_are_json_and_equal_only_where_calls_are_alike(one: Call, other: Call) -> None:
    again = Call(one.name, one.args, one.kwargs)
    assert one == again
    assert hash(one) == hash(again)
    assert (one.key == other.key) is (repr(one) == repr(other))
    json.loads(one.key, parse_constant=pytest.fail)


def test_what_is_kept_of_the_arguments() -> None:
    x = torch.randn(4, 6, dtype=torch.bfloat16)[:, ::2]
    call = describe(
        ATEN._to_copy.default,
        (x,),
        {"memory_format": torch.preserve_format, "dtype": torch.float16, "layout": torch.strided,
         "device": torch.device("cuda", 0)},
    )  # fmt: skip
    assert call.name == "aten._to_copy.default"
    assert call.operator == "_to_copy"
    assert call.args == (TensorSpec((4, 3), (6, 2), "bfloat16", "cpu"),)
    assert call.kwargs == (
        ("device", Named("device", "cuda")),
        ("dtype", Named("dtype", "float16")),
        ("layout", Named("layout", "strided")),
        ("memory_format", Named("memory_format", "preserve_format")),
    )
    x = torch.zeros(2, 3)
    call = describe(ATEN.cat.default, ([x, x.t()], 1), {})
    assert [spec.stride for spec in call.tensors] == [(3, 1), (1, 3)]
    assert math.isinf(describe(ATEN.masked_fill.Scalar, (x, x > 0, -math.inf), {}).args[2])  # type: ignore
    x = torch.zeros(8)
    spec = spec_of(x[:2])
    assert spec == spec_of(x[4:6]), "where a tensor begins is not part of it"
    numbers = [1, 1.0, True, math.nan, float("nan")]
    assert len({Call("aten.add.Tensor", (spec, number)) for number in numbers}) == 4
    expanded = spec_of(torch.empty(4, 1).expand(4, 1000))
    assert (expanded.numel, expanded.span, expanded.distinct, expanded.bytes) == (4000, 4, 4, 16)
    sliced = spec_of(torch.empty(4, 10)[:, :3])
    assert (sliced.numel, sliced.span, sliced.distinct) == (12, 33, 12)
    assert spec_of(torch.empty(0, 5)).bytes == 0
    assert spec_of(torch.empty(())).bytes == 4


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((torch.eye(3).to_sparse(),), "sparse"),
        ((torch.empty(3, device="meta"),), "meta"),
        ((object(),), "object"),
    ],
)
def test_what_cannot_be_described(args: tuple[Any, ...], why: str) -> None:
    with pytest.raises(CannotReplay, match=why):
        describe(ATEN.relu.default, args, {})
