"""Calls of a step: their FLOPs and kinds, and each launched alone as it was recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from samples.train_cases import Recorded, Recorder, declared, finite, specs
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from e2e.aten import (
    Call,
    CannotReplay,
    Named,
    Pool,
    TensorSpec,
    describe,
    flops,
    kind_of,
    materialise,
    resolve,
    spec_of,
    tensors_among,
    why_not,
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


def test_calls_are_equal_where_their_arguments_are_alike() -> None:
    given = (1, 1.0, True, "1", None, math.inf, Named("dtype", "1"), (1,), ((1,),))
    calls = [Call("aten.mm.default", (value,)) for value in given]
    assert len({*calls, *(Call(call.name, call.args) for call in calls)}) == len(given)


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


CPU = torch.device("cpu")


# ------------------------------------------------------------ networks


def transformer(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(50, 16),
        nn.TransformerEncoderLayer(
            16, 2, 64, dropout, activation="gelu", batch_first=True, norm_first=True
        ),
        nn.Linear(16, 50), nn.Flatten(0, 1),
    )  # fmt: skip


def convolutional(last: bool = False) -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 3, groups=2), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.Conv2d(8, 8, 1), nn.SiLU(), nn.ReLU6(), nn.AvgPool2d(2), nn.Dropout(0.2),
        nn.ConvTranspose2d(8, 4, 2), nn.Sigmoid(), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    return net.to(memory_format=torch.channels_last if last else torch.contiguous_format)


def recurrent() -> nn.Module:
    class Last(nn.Module):
        def forward(self, returned: tuple[Tensor, Any]) -> Tensor:
            return returned[0][:, -1]

    return nn.Sequential(nn.LSTM(6, 8, batch_first=True), Last(), nn.Tanh(), nn.Linear(8, 5))


Step = Callable[[], object]


def step_of(net: nn.Module, x: Tensor, classes: int, make_optimizer: Callable[..., Any],
            autocast: bool = False, smoothing: float = 0.0, **how: Any) -> Step:  # fmt: skip
    optimizer = make_optimizer(net.parameters(), **how)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = net(x)
        targets = torch.randint(0, classes, (scores.shape[0],))
        loss = F.cross_entropy(scores.float(), targets, label_smoothing=smoothing)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


IMAGES = torch.randn(4, 3, 16, 16)
CHANNELS_LAST = IMAGES.to(memory_format=torch.channels_last)
SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
WITH_MOMENTUM = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
STEPS: dict[str, Callable[[], Step]] = {
    "cnn-last-bf16": lambda: step_of(
        convolutional(True), CHANNELS_LAST, 5, SGD, True, foreach=True, **WITH_MOMENTUM
    ),
    "cnn-smooth": lambda: step_of(convolutional(), IMAGES, 5, Adam, smoothing=0.1, foreach=True),
    "transformer-bf16": lambda: step_of(
        transformer(), torch.randint(0, 50, (3, 12)), 50, AdamW, True, fused=True
    ),
    "transformer-dropout": lambda: step_of(
        transformer(0.1), torch.randint(0, 50, (3, 12)), 50, Adam, foreach=True
    ),
    "lstm": lambda: step_of(recurrent(), torch.randn(3, 7, 6), 5, SGD, lr=0.1, foreach=True),
}


@cache
def recorded(name: str) -> tuple[Recorded, ...]:
    """The second step of a network: the first makes the optimizer's state."""
    torch.manual_seed(0)
    step = STEPS[name]()
    step()
    with Recorder() as recorder:
        step()
    return tuple(recorder.ops)


def distinct(name: str) -> tuple[Recorded, ...]:
    """One of each call that can be replayed."""
    found = {op.call: op for op in recorded(name)}
    return tuple(op for op in found.values() if why_not(op.call) is None)


each_step = pytest.mark.parametrize("name", STEPS)

# ------------------------------------------------------------ the whole step


@each_step
def test_every_call_has_a_kind_products_have_flops_and_few_cannot_be_replayed(name: str) -> None:
    left: set[str] = set()
    for op in recorded(name):
        kind = kind_of(op.call)
        assert kind != "other", op.call.name
        product = kind == "product" and "rnn" not in op.call.name
        assert (flops(op.call) is not None) == product, op.call.name
        if why_not(op.call):
            left.add(op.call.operator)
    assert left <= {"detach_", "mkldnn_rnn_layer_backward", "_local_scalar_dense"}


# Torch counts a grouped weight's gradient as if it were dense: it has no groups in its networks.
@pytest.mark.parametrize("name", ["cnn-flat", "transformer-dropout", "transformer-bf16"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    if name == "cnn-flat":
        net = convolutional()
        net[4].groups, net[4].weight = 1, nn.Parameter(torch.randn(8, 8, 3, 3))  # type: ignore
        step = step_of(net, IMAGES, 5, SGD, fused=True, **WITH_MOMENTUM)
    else:
        step = STEPS[name]()
    step()
    with FlopCounterMode(display=False) as counter, Recorder() as recorder:
        step()
    calls = [op.call for op in recorder.ops]  # versions before 2.12 have none for some attention
    known = [call for call in calls if resolve(call.name).overloadpacket in flop_registry]
    backward = [call for call in known if "attention" in call.name and "backward" in call.name]
    again = sum(flops(call) or 0 for call in backward) // 4  # scores that a kernel computes again
    assert sum(flops(call) or 0 for call in known) + again == counter.get_total_flops() > 0


# ------------------------------------------------------------ one call alone


def told(call: Call) -> Call:
    """The call without keywords that say nothing."""
    return Call(call.name, call.args, tuple(one for one in call.kwargs if one[1] is not None))


@each_step
def test_each_call_alone_is_the_recorded_one_and_returns_what_the_step_did(name: str) -> None:
    pool = Pool(CPU)
    for op in distinct(name):
        replay, key = materialise(op.call, CPU, pool), op.call.key
        tensors = tensors_among(replay.plain.args, replay.plain.keywords)
        before = [tensor.clone() for tensor in tensors]
        assert specs(tensors) == op.call.tensors, key
        written = any(slot.written for slot in op.call.slots)
        assert written or not op.call.operator.endswith("_"), key
        with Recorder() as seen:
            replay.launch()
        assert [told(one.call) for one in seen.ops] == [told(op.call)]
        for _ in range(2):
            returned = replay.launch()
        assert declared(op.call, replay, returned) == op.outputs, key
        unwritten = "empty" in op.call.operator or op.call.args == (-math.inf,)
        assert unwritten or finite(returned), key
        assert finite(tensors), key
        assert written or all(map(torch.equal, tensors, before)), f"{key} writes to what it reads"
        ends = sorted((t.data_ptr(), t.data_ptr() + spec_of(t).bytes) for t in tensors if t.numel())
        for (_, end), (begin, _) in pairwise(ends):
            assert end <= begin, f"shared memory: {key}"


@pytest.mark.parametrize("name", ["cnn-last-bf16", "cnn-smooth"])
def test_many_launches_stay_finite(name: str) -> None:
    """Two hundred launches and fresh content, again and again.

    Not so what is divided by a small number as often: numbers are as recorded.
    """
    pool = Pool(CPU)
    for op in distinct(name):
        replay = materialise(op.call, CPU, pool)
        written = any(slot.written for slot in op.call.slots)
        if not written or op.call.name == "aten._foreach_div_.ScalarList":
            continue
        for _ in range(3):
            replay.restore()
            for _ in range(200):
                replay.launch()
        assert finite([list(replay.plain.args), replay.plain.keywords]), op.call.key


# ---------------------------------------------------------------- aten materialise


def launched(call: Call) -> tuple[Any, Any]:
    replay = materialise(call, CPU, Pool(CPU))
    return replay, replay.launch()


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return spec_of(torch.empty(shape, dtype=getattr(torch, dtype)))


def argument(call: Call, name: str) -> Any:
    """What is passed for an argument that has a name in the schema."""
    replay = materialise(call, CPU, Pool(CPU))
    names = [a.name for a in resolve(call.name)._schema.arguments]
    return (dict(zip(names, replay.plain.args, strict=False)) | replay.plain.keywords)[name]


MATRIX, IDS = spec(6, 8), spec(5, 7, dtype="int64")


def calls_with_contents() -> Iterator[tuple[Call, str, Callable[[Tensor], bool]]]:
    yield Call("aten.embedding.default", (spec(9, 4), IDS)), "indices", _between(0, 8)
    yield (
        Call("aten.embedding_dense_backward.default", (spec(5, 7, 4), IDS, 9, -1, False)),
        "indices", _between(0, 8),
    )  # fmt: skip
    gathered = Call("aten.gather.default", (MATRIX, 1, spec(6, 40, dtype="int64")))
    yield gathered, "index", _between(0, 7)
    scores, classes = spec(400, 8), spec(400, dtype="int64")
    loss = Call("aten.nll_loss_forward.default", (scores, classes, None, 1, -100))
    yield loss, "target", _between(0, 7)
    mask = Call(
        "aten.native_dropout_backward.default", (spec(100, 100), spec(100, 100, dtype="bool"), 1.25)
    )
    yield mask, "mask", lambda t: bool(abs(t.float().mean() - 0.8) < 0.02)
    soft = Call(
        "aten._softmax_backward_data.default", (MATRIX, MATRIX, 1, Named("dtype", "float32"))
    )
    yield soft, "output", lambda t: torch.allclose(t.sum(1), torch.ones(6))
    yield Call("aten.sigmoid_backward.default", (MATRIX, MATRIX)), "output", _between(0, 1)
    yield Call("aten.sqrt.default", (MATRIX,)), "self", _between(0.05, 10)
    yield Call("aten.rsqrt_.default", (MATRIX,)), "self", _between(0.05, 10)
    number = spec()
    scale = Call("aten._amp_update_scale_.default",
                 (number, spec(dtype="int32"), number, 2.0, 0.5, 2000))  # fmt: skip
    yield scale, "self", _between(1, 1)
    yield scale, "found_inf", _between(0, 0)
    running = torch.empty(1).expand(3)
    expanded = (torch.empty(2, 3, 4, 4), None, None, running, running, False, 0.1, 1e-5)
    norm = describe(ATEN.native_batch_norm.default, expanded, {})
    yield norm, "running_var", lambda t: t.stride() == (0,) and bool((t > 0).all())


def _between(low: float, high: float) -> Callable[[Tensor], bool]:
    return lambda t: (
        bool((t >= low).all() and (t <= high).all()) and (t.unique().numel() > 1) == (low != high)
    )


@pytest.mark.parametrize(("call", "name", "holds"), list(calls_with_contents()))
def test_contents(call: Call, name: str, holds: Callable[[Tensor], bool]) -> None:
    assert holds(argument(call, name)), argument(call, name)


def test_gradients_of_pooling_and_attention_take_what_the_forward_saved() -> None:
    x = torch.randn(2, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    how = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    out, indices = ATEN.max_pool2d_with_indices(x, *how)
    call = describe(ATEN.max_pool2d_with_indices_backward.default, (out, x, *how, indices), {})
    replay, returned = launched(call)
    fresh = ATEN.max_pool2d_with_indices(replay.plain.args[1], *how)[1]
    assert torch.equal(replay.plain.args[-1], fresh)
    assert replay.plain.args[-1].stride() == indices.stride()
    assert returned.count_nonzero() > 10

    q = torch.randn(2, 3, 16, 8)
    out, logsumexp = ATEN._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, True)
    call = describe(
        ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,
        (q, q, q, q, out, logsumexp, 0.0, True), {"scale": 0.5},
    )  # fmt: skip
    replay, _ = launched(call)
    _, query, key, value, saved, lse, *_ = replay.plain.args
    again = ATEN._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, True, scale=0.5
    )
    assert torch.equal(saved, again[0])
    assert torch.equal(lse, again[1])


@pytest.mark.parametrize("tensor", [
    torch.empty(4, 1).expand(4, 6), torch.empty(5, 20)[:, 3:9], torch.empty(6, 4).t(),
    torch.empty(40).as_strided((5, 6), (3, 2)), torch.empty(0, 3), torch.empty(()),
    torch.empty(3, 4, dtype=torch.float8_e4m3fn), torch.empty(4, dtype=torch.complex64),
    torch.empty(1, 5, dtype=torch.bool).expand(3, 5), torch.empty(4, 6, dtype=torch.float16)[::2],
])  # fmt: skip
def test_strides_are_as_recorded(tensor: Tensor) -> None:
    replay, copy = launched(describe(ATEN.clone.default, (tensor,), {}))
    assert specs(replay.plain.args) == (spec_of(tensor),)
    assert specs(copy) == specs(tensor.clone())


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (Call("aten.nonzero.default", (MATRIX,)), "depends on data"),
        (Call("aten.masked_select.default", (MATRIX, spec(6, 8, dtype="bool"))), "depends on data"),
        (Call("aten.index.Tensor", (MATRIX, (spec(6, dtype="bool"),))), "mask"),
        (Call("aten._local_scalar_dense.default", (spec(),)), "waits"),
        (Call("aten.t_.default", (MATRIX,)), "shape in place"),
        *((Call(name, (MATRIX,)), "no such operator") for name in (
            "mine.op.default", "aten.no_such.default", "aten.mm.no_such", "aten",
            "load_library.__func__.__globals__",
        )),
        (Call("aten.mm.default", (MATRIX, MATRIX, MATRIX)), "fewer arguments"),
        (Call("aten.mm.default", (MATRIX,), (("scale", 1),)), "other arguments"),
        (Call("aten._ctc_loss.default", ()), "cannot be generated"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed(call: Call, why: str) -> None:
    with pytest.raises(CannotReplay, match=why) as refused:
        materialise(call, CPU, Pool(CPU))
    assert "\n" not in str(refused.value)
    assert why_not(call) == str(refused.value)


def test_a_custom_operator_is_replayed_with_floats_and_indices_are_by_place() -> None:
    library = torch.library.Library("halfway_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.define("pick(Tensor x, Tensor i) -> Tensor")
    library.impl("pick", lambda x, i: x[i], "CPU")
    replay, returned = launched(Call("halfway_test.twice.default", (MATRIX,)))
    assert torch.equal(returned, replay.plain.args[0] * 2)
    with pytest.raises(CannotReplay, match="custom operator"):
        materialise(Call("halfway_test.pick.default", (MATRIX, IDS)), CPU, Pool(CPU))
    q = spec(2, 3, 16, 8, dtype="float16")
    call = Call(
        "aten._scaled_dot_product_flash_attention_backward.default",
        (q, q, q, q, q, spec(2, 3, 16), None, None, 16, 16, 0.0, False, None, None),
    )
    with pytest.raises(CannotReplay, match="forward pass does not run here"):
        materialise(call, CPU, Pool(CPU))
    rows, columns = spec(100, dtype="int64"), spec(100, dtype="int64")
    call = Call("aten.index_put_.default", (spec(3, 50), (rows, columns), spec(100), True))
    replay, _ = launched(call)
    first, second = replay.plain.args[1]
    assert int(first.max()) == 2
    assert 2 < int(second.max()) < 50
    half = Call("aten.index.Tensor", (spec(3, 50), (None, columns)))
    assert launched(half)[1].shape == (3, 100)
    mixed = Call("aten.mul.Tensor", (TensorSpec((4,), (1,), "float32", "cuda"), spec()))
    replay, returned = launched(mixed)
    assert returned.device == CPU, "the recorded GPU is the device that is asked for"
    assert replay.plain.args[1].device == CPU
