"""Products of odd sizes are found, and padded ones are valid calls of the right shapes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.train_cases import case_of, quietly
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from e2e.case import TrainCase
from e2e.explain.annotate import Explainer
from e2e.explain.fixes import Pad, changes
from e2e.networks import find
from e2e.networks.network import Network
from e2e.prediction.op_timer.op_costs import CallTimer, CallTimes
from e2e.prediction.op_timer.store import Store
from e2e.prediction.padding import PaddedCase, Padding, padded_step, padding
from e2e.prediction.prediction import Prediction
from e2e.prediction.predictor import NO_GAIN, Predictor
from e2e.prediction.queue_model import OpCost, simulate
from e2e.prediction.trace.fake_trace import Trace, trace
from e2e.prediction.trace.recorder import TracedOp
from e2e.results.types import PREDICTED, Predicted, Training
from kernels.aten import Call, Pool, TensorSpec, describe, kind_of, materialise
from kernels.case import Target

CPU = torch.device("cpu")
ATEN = torch.ops.aten
CLASSES = 1001


class Odd(nn.Module):
    """Convolutions of 33 channels, and 1,001 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 33, 5, stride=2)
        self.body = nn.Conv2d(33, 33, 3, bias=False)
        self.grouped = nn.Conv2d(33, 33, 3, groups=33)
        self.up = nn.ConvTranspose2d(33, 64, 2)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Images to classes."""
        x = self.grouped(self.body(self.stem(x)).relu())
        return self.head(self.up(x).mean((2, 3)))


def odd_network() -> Network:
    return replace(
        find("cnn-cifar"), name="odd", build=partial(Odd), input=(3, 16, 16), classes=CLASSES
    )


@cache
def products(recipe: str = "amp-bf16", layout: str = "nhwc") -> list[TracedOp]:
    """Of one step."""
    network = odd_network()
    case = case_of(network, 4, recipe=recipe, layout=layout)
    ops = trace(network, case, CPU, CLASSES).ops
    return [op for op in ops if kind_of(op.call, op.outputs) == "product"]


def paddings(layer: str, tf32: bool = False, **how: str) -> list[Padding]:
    found = [padding(op.call, tf32) for op in products(**how) if op.layer == layer]
    return [each for each in found if each is not None]


def shapes(returned: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]


def order(spec: TensorSpec) -> list[int]:
    """Dimensions from the innermost one."""
    return sorted(range(len(spec.shape)), key=lambda dim: spec.stride[dim])


# ------------------------------------------------------------ which are odd


@pytest.mark.parametrize(("layer", "calls", "misaligned", "change"), [
    ("stem", 2, "33 channels", "3 to 4, 33 to 40 channels"),
    ("body", 2, "33 channels", "33 to 40 channels"),
    ("up", 2, "33 channels", "33 to 40 channels"),
    ("head", 3, "1001 features", "1001 to 1008 features"),
    ("grouped", 0, "", ""),
])  # fmt: skip
def test_odd_sizes_are_found_forward_and_backward(
    layer: str, calls: int, misaligned: str, change: str
) -> None:
    found = paddings(layer)
    assert [(each.misaligned, each.change) for each in found] == [(misaligned, change)] * calls


def test_tf32_needs_multiples_of_4_and_float32_none() -> None:
    assert paddings("body", recipe="fp32") == []
    found = paddings("body", True, recipe="fp32")
    assert [each.change for each in found] == ["33 to 36 channels"] * 2


def test_an_image_alone_is_no_misalignment_yet_may_be_padded() -> None:
    x, weight = torch.empty(4, 3, 8, 8).half(), torch.empty(64, 3, 3, 3).half()
    for stride, channels in (([2, 2], 4), ([1, 1], 8)):
        args = (x, weight, None, stride, [0, 0], [1, 1], False, [0, 0], 1)
        found = padding(describe(ATEN.convolution.default, args, {}), False)
        assert found is not None
        assert (found.misaligned, found.sizes) == ("", {3: channels})


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_padded_calls_run_and_return_padded_shapes_in_the_same_layout(layout: str) -> None:
    """The batch is never padded: rows of a matrix product that lie apart need no alignment."""
    pool = Pool(CPU)
    for op in products(layout=layout):
        found = padding(op.call, False)
        if found is None:
            continue
        assert 4 not in found.sizes
        returned = materialise(found.call, CPU, pool).launch()
        wanted = [tuple(found.sizes.get(n, n) for n in spec.shape) for spec in op.outputs]
        assert shapes(returned) == wanted, found.call.key
        assert padding(found.call, False) is None, "once is enough"
        for before, after in zip(op.call.tensors, found.call.tensors, strict=True):
            if all(n > 1 for n in before.shape) and 0 not in before.stride:
                assert order(before) == order(after)
                assert after.span == after.numel


def test_the_mask_of_a_backward_pass_and_its_bias_are_kept() -> None:
    call = next(op.call for op in products() if op.layer == "stem"
                and op.call.operator == "convolution_backward")  # fmt: skip
    found = padding(call, False)
    assert found is not None
    assert call.args[3] == (33,)
    assert found.call.args[3] == (40,)
    assert found.call.args[4:] == call.args[4:]
    assert call.args[10] == (False, True, True)  # an image needs no gradient


def matrix(rows: int, columns: int, transposed: bool) -> TensorSpec:
    stride = (1, rows) if transposed else (columns, 1)
    return TensorSpec((rows, columns), stride, "bfloat16", "cpu")


sizes = st.integers(2, 40)


@given(sizes, sizes, sizes, st.booleans(), st.booleans())
def test_padding_twice_is_padding_once(m: int, k: int, n: int, left: bool, right: bool) -> None:
    call = Call("aten.mm.default", (matrix(m, k, left), matrix(k, n, right)))
    found = padding(call, False)
    if found is None:
        assert n % 8 == 0
        return
    assert padding(found.call, False) is None
    result = materialise(found.call, CPU, Pool(CPU)).launch()
    assert isinstance(result, Tensor)
    assert result.shape[1] % 8 == 0
    assert 0 <= result.shape[0] - m < 8


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_what_is_aligned_or_no_product_stays(m: int, k: int, n: int) -> None:
    call = Call("aten.mm.default", (matrix(8 * m, 8 * k, True), matrix(8 * k, 8 * n, False)))
    assert padding(call, False) is None
    empty = Call("aten.mm.default", (matrix(0, 0, False), matrix(0, 0, False)))
    assert padding(empty, False) is None
    assert padding(Call("aten.relu.default", (matrix(m, k, False),)), False) is None


def test_a_bias_that_stands_for_all_rows_is_padded_and_a_vector_is_not() -> None:
    bias = TensorSpec((9,), (1,), "float16", "cpu")
    left, right = torch.empty(5, 16).half(), torch.empty(16, 9).half()
    call = describe(ATEN.addmm.default, (left, left, right), {})
    found = padding(replace(call, args=(bias, *call.args[1:])), False)
    assert found is not None
    assert [spec.shape for spec in found.call.tensors] == [(16,), (5, 16), (16, 16)]
    column = Call("aten.mm.default", (matrix(8, 8, False), matrix(8, 1, False)))
    assert padding(column, False) is None


# ------------------------------------------------------------ a step


def op(kind: str, ms: float, layer: str = "") -> OpCost:
    return OpCost(kind, "forward", layer, ms * 1e-3, 0.0)


ODD = Call("aten.mm.default", (matrix(33, 33, False), matrix(33, 33, False)))
BETWEEN = Call("aten.relu.default", (matrix(8, 33, False),))


def planted(costs: Sequence[float]) -> tuple[OpCost, ...] | None:
    """Two layers of 2 ms and what lies between; the layers padded cost this many ms."""
    found = padding(ODD, False)
    assert found is not None
    ops = [op("product", 2, "a"), op("activation", 1), op("product", 2, "b")]
    tried = {place: (op("product", ms, ops[place].layer), found)
             for place, ms in zip((0, 2), costs, strict=True)}  # fmt: skip
    return padded_step(ops, [ODD, BETWEEN, ODD], tried)


def test_layers_that_gain_are_padded_and_what_lies_between_grows() -> None:
    found = planted((1, 3))
    assert found is not None
    assert [each.gpu_s for each in found] == pytest.approx([1e-3, 1e-3 * 40 / 33, 2e-3])
    assert [each.padded for each in found] == ["33 to 40 features", "", ""]
    assert planted((2, 3)) is None, "nothing gains"


# ------------------------------------------------------------ as a fix


def test_a_padded_case_is_another_case() -> None:
    network = odd_network()
    case = case_of(network, 4, recipe="amp-bf16")
    padded = Pad("pad channels", {}).of(case)
    assert isinstance(padded, PaddedCase)
    assert padded.plain == case
    assert padded.key != case.key
    assert replace(padded, batch=8).plain == replace(case, batch=8)
    assert [type(one) for one in changes(case, "cuda")].count(Pad) == 1
    assert Pad not in [type(one) for one in changes(case, "cpu")]


def test_a_padded_step_is_predicted_from_larger_products_among_the_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for is the whole step, with larger products in it, but only these places."""
    network = odd_network()
    predictor = Predictor(network, Target("cpu", "a CPU"), CLASSES, store, allow_run=False)
    case = case_of(network, 4, recipe="amp-bf16")
    plain = predictor.predict(case, quietly)
    assert plain.predicted is not None
    assert all(op.misaligned == "" for op in plain.ops), "a CPU has no Tensor Cores"
    padded = predictor.predict(Pad("", {}).of(case), quietly)
    if padded.predicted is None:  # on this CPU it may gain nothing
        assert padded.reason == NO_GAIN
    else:
        assert len(padded.ops) == len(plain.ops)
        assert {op.layer for op in padded.ops if op.padded} <= {"stem", "body", "up", "head"}
    asked: list[tuple[Trace, set[int]]] = []

    def times(self: CallTimer, traced: Trace, only: Container[int] | None = None) -> CallTimes:
        asked.append((traced, {i for i in range(len(traced.ops)) if only is None or i in only}))
        return CallTimes({}, {})

    monkeypatch.setattr(CallTimer, "times", times)
    assert predictor.predict(Pad("", {}).of(case), quietly).reason == NO_GAIN
    ((larger, places),) = asked
    step = trace(network, case, CPU, CLASSES)
    assert 0 < len(places) < len(step.ops)
    for i, (before, now) in enumerate(zip(step.ops, larger.ops, strict=True)):
        assert (now.call == before.call) == (i not in places), before.call.name
        if i in places:
            assert padding(before.call, tf32=False) is not None


def test_the_fix_names_sizes_layers_and_gain() -> None:
    case = TrainCase("net", "amp", 8, "3x8x8")
    plain_ops = (
        replace(op("product", 6, "conv1"), misaligned="33 channels"),
        replace(op("product", 2, "head"), misaligned="1001 features"), op("norm", 2),
    )  # fmt: skip
    padded_ops = (
        replace(op("product", 2, "conv1"), padded="33 to 40 channels"),
        replace(op("product", 1, "head"), padded="1001 to 1008 features"), op("norm", 2),
    )  # fmt: skip
    (cause, *_) = explained(case, plain_ops, padded_ops)
    assert cause.title == "pad channels"
    assert cause.fix == "pad 33 to 40 channels, 1001 to 1008 features"
    assert cause.case_change is None
    assert cause.predicted_gain_pct == pytest.approx(100)
    assert "the padded layers save conv1 (4.00 ms), head (1.00 ms)" in cause.why


def test_what_padding_does_not_gain_is_not_proposed() -> None:
    case = TrainCase("net", "amp", 8, "3x8x8")
    ops = (replace(op("product", 6, "conv1"), misaligned="33 channels"),)
    assert "sizes" in explained(case, ops, None, fixes=False)[0].title
    assert explained(case, ops, None) == ()


def explained(
    case: TrainCase, ops: tuple[OpCost, ...], padded: tuple[OpCost, ...] | None, fixes: bool = True
) -> tuple[Any, ...]:
    """The causes of a step of these ops, whose padded step has those; else nothing gains."""

    def ask(asked: TrainCase) -> Prediction:
        step = padded if isinstance(asked, PaddedCase) else ops
        if step is None:
            return Prediction(asked, reason=NO_GAIN)
        found = simulate(step)
        predicted = Predicted(found.step_s, None, "gpu", {})
        return Prediction(replace(asked, batch=case.batch), predicted, found, step)

    explainer = Explainer(ask, "cuda", None, fixes)
    training = Training(case, PREDICTED, step_units=8)
    return explainer.explained([training], explainer.predictions([case]))[0].causes
