"""A recorded call as data: what is kept of its arguments, and when two calls are equal."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from e2e.aten import (
    Call,
    CannotReplay,
    Named,
    TensorSpec,
    describe,
    resolve,
    spec_of,
)

ATEN = torch.ops.aten
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


def _not_json(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@settings(max_examples=50)
@given(CALLS, CALLS)
def test_keys_are_json_and_equal_only_where_calls_are_alike(one: Call, other: Call) -> None:
    again = Call(one.name, one.args, one.kwargs)
    assert one == again
    assert hash(one) == hash(again)
    assert (one.key == other.key) is (repr(one) == repr(other))
    json.loads(one.key, parse_constant=_not_json)


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


def test_lists_and_numbers_that_are_none() -> None:
    x = torch.zeros(2, 3)
    call = describe(ATEN.cat.default, ([x, x.t()], 1), {})
    assert [spec.stride for spec in call.tensors] == [(3, 1), (1, 3)]
    assert math.isinf(describe(ATEN.masked_fill.Scalar, (x, x > 0, -math.inf), {}).args[2])  # type: ignore


def test_equality() -> None:
    x = torch.zeros(8)
    spec = spec_of(x[:2])
    assert spec == spec_of(x[4:6]), "where a tensor begins is not part of it"
    numbers = [1, 1.0, True, math.nan, float("nan")]
    assert len({Call("aten.add.Tensor", (spec, number)) for number in numbers}) == 4


def test_fake_tensors_on_a_device_that_is_not_there() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(2, 3, 4, 5, device="cuda", dtype=torch.float16)
        call = describe(ATEN.relu.default, (x.contiguous(memory_format=torch.channels_last),), {})
    assert call.tensors == (TensorSpec((2, 3, 4, 5), (60, 1, 15, 3), "float16", "cuda"),)


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


def test_span_and_distinct_elements() -> None:
    expanded = spec_of(torch.empty(4, 1).expand(4, 1000))
    assert (expanded.numel, expanded.span, expanded.distinct, expanded.bytes) == (4000, 4, 4, 16)
    sliced = spec_of(torch.empty(4, 10)[:, :3])
    assert (sliced.numel, sliced.span, sliced.distinct) == (12, 33, 12)
    assert spec_of(torch.empty(0, 5)).bytes == 0
    assert spec_of(torch.empty(())).bytes == 4


def test_resolve() -> None:
    assert resolve("aten.add_.Tensor") is ATEN.add_.Tensor
    for name in ("aten.no_such.default", "mine.op.default", "load_library.__func__.__globals__",
                 "aten.mm.no_such", "aten"):  # fmt: skip
        with pytest.raises(CannotReplay, match="no such operator"):
            resolve(name)
