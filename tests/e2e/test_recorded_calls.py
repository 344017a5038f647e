"""Calls as fake tensors record them: layouts, attention, what a cache holds, and odd sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.train_cases import Undecided, case_of, differences, network_of, specs
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from e2e.aten import (
    WARM,
    ColdL2,
    Pool,
    TensorSpec,
    describe,
    flops,
    kind_of,
    materialise,
    resolve,
    spec_of,
    why_not,
)
from e2e.aten.materialise import SAVED, run_forward
from e2e.networks import find
from e2e.networks.network import Network
from e2e.prediction.fake_tensor_strides import CPU_RULES, RULES
from e2e.prediction.padding import Padding, padding
from e2e.prediction.predictor import CannotPredict, key_of, record_step, trace
from e2e.prediction.recorder import LEAST_COLD, WIDE, Cache, Recorder, TracedOp

ATEN = torch.ops.aten
CPU = torch.device("cpu")
Act = Callable[[Tensor, Tensor], object]
DENSE, LAST, SPREAD, ONE, TURNED, CUT = "dense", "channels last", "spread", "one", "turned", "cut"
LAYOUTS: dict[str, Callable[[int, int, int, int], Tensor]] = {
    DENSE: torch.rand,
    LAST: lambda n, c, h, w: torch.rand(n, h, w, c).permute(0, 3, 1, 2),
    SPREAD: lambda n, c, h, w: torch.rand(n, c, 1, 1).expand(n, c, h, w),
    ONE: lambda n, c, h, w: torch.rand(()).expand(n, c, h, w),
    TURNED: lambda n, c, h, w: torch.rand(n, c, w, h).transpose(2, 3),
    CUT: lambda n, c, h, w: torch.rand(n, 2 * c, h, w)[:, :c],
}
IMAGES, VECTORS, SINGLE, GREY = (4, 8, 6, 5), (4, 8, 1, 1), (1, 8, 6, 5), (4, 1, 6, 5)
AS_ONE = [(grad, x) for grad in (DENSE, LAST) for x in (DENSE, LAST)]
CASES = [
    *((IMAGES, grad, x) for grad in LAYOUTS for x in (DENSE, LAST)),
    *((shape, grad, x) for shape in (VECTORS, SINGLE) for grad, x in AS_ONE[:2]),
]
FAKE = FakeTensorMode()


def layer_norm_backward(grad: Tensor, x: Tensor) -> object:
    """Over channels, as ConvNeXt has it."""
    grad, x = (tensor.permute(0, 2, 3, 1) for tensor in (grad, x))
    statistic, weight = x.new_ones(*x.shape[:3], 1), x.new_ones(x.shape[3])
    return ATEN.native_layer_norm_backward(
        grad, x, weight.shape, statistic, statistic, weight, weight, [True] * 3
    )


def batch_norm(x: Tensor, like: Tensor) -> object:
    """In training."""
    each = [x.new_ones(x.shape[1])] * 4
    return ATEN.native_batch_norm(x, *each, True, 0.1, 1e-5)


def batch_norm_backward(grad: Tensor, x: Tensor) -> object:
    """In training."""
    each = [x.new_ones(x.shape[1])] * 5
    return ATEN.native_batch_norm_backward(grad, x, *each, True, 1e-5, [True] * 3)


def group_norm(x: Tensor, like: Tensor) -> object:
    """Two groups of channels."""
    n, c, h, w = x.shape
    return ATEN.native_group_norm(x, x.new_ones(c), x.new_ones(c), n, c, h * w, 2 - c % 2, 1e-5)


def group_norm_backward(grad: Tensor, x: Tensor) -> object:
    """Two groups of channels."""
    (n, c, h, w), groups = x.shape, 2 - x.shape[1] % 2
    each = [x.new_ones(n, groups)] * 2
    return ATEN.native_group_norm_backward(
        grad, x, *each, x.new_ones(c), n, c, h * w, groups, [True] * 3
    )


ACTS: dict[str, Act] = {
    "hardtanh": lambda grad, x: ATEN.hardtanh_backward(grad, x, 0.0, 6.0),
    "hardswish": lambda grad, x: ATEN.hardswish_backward(grad, x),
    "hardsigmoid": lambda grad, x: ATEN.hardsigmoid_backward(grad, x),
    "softplus": lambda grad, x: ATEN.softplus_backward(grad, x, 1.0, 20.0),
    "elu": lambda grad, x: ATEN.elu_backward(grad, 1.0, 1.0, 1.0, False, x),
    "log_sigmoid": lambda grad, x: ATEN.log_sigmoid_backward(grad, x, x),
    "bce": lambda grad, x: ATEN.binary_cross_entropy_backward(grad, x, x, None, 0),
    "rrelu": lambda grad, x: ATEN.rrelu_with_noise_backward(grad, x, x, 0.1, 0.2, True, False),
    "eval": lambda grad, x: ATEN.rrelu_with_noise_backward(grad, x, x, 0.1, 0.2, False, False),
    "forward": lambda x, like: ATEN.rrelu_with_noise(x, like.new_ones(x.shape), 0.1, 0.2, True),
    "glu": lambda grad, x: ATEN.glu_backward(grad, torch.cat([x, x], 1), 1),
    "mse": lambda grad, x: ATEN.mse_loss_backward(grad, x, x, 0),
    "mean mse": lambda grad, x: ATEN.mse_loss_backward(grad.sum(), x, x, 1),
    "smooth l1": lambda grad, x: ATEN.smooth_l1_loss_backward(grad, x, x, 0, 1.0),
    "huber": lambda grad, x: ATEN.huber_loss_backward(grad, x, x, 0, 1.0),
    "log_softmax": lambda grad, x: ATEN._log_softmax_backward_data(grad, x, 1, torch.float32),
    "layer_norm": layer_norm_backward,
}
CPU_ACTS: dict[str, Act] = {
    "dropout backward": lambda grad, x: ATEN.native_dropout_backward(grad, x > 0, 2.0),
    "batch_norm": batch_norm,
    "batch_norm backward": batch_norm_backward,
    "group_norm": group_norm,
    "group_norm backward": group_norm_backward,
}
# What TensorIterator makes, or looks as if it did.
ELEMENTWISE_ACTS: dict[str, Act] = {
    "add": torch.add,
    "add number": lambda x, y: x + 1.0,
    "mul scalar": lambda x, y: ATEN.mul.Scalar(x, 2.0),
    "compare": torch.gt,
    "where": lambda x, y: torch.where(x > y, x, y),
    "square": lambda x, y: x**2,
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "relu": lambda x, y: ATEN.relu(x),
    "gelu": lambda x, y: ATEN.gelu(x),
    "hardsigmoid": lambda x, y: ATEN.hardsigmoid(x),
    "hardswish": lambda x, y: ATEN.hardswish(x),
    "hardtanh": lambda x, y: ATEN.hardtanh(x, 0.0, 6.0),
    "leaky_relu": lambda x, y: ATEN.leaky_relu(x, 0.1),
    "mish": lambda x, y: ATEN.mish(x),
    "clone": lambda x, y: ATEN.clone(x),
    "cast": lambda x, y: x.bfloat16(),
    "channels": lambda x, y: x * x.new_ones(1, x.shape[1], 1, 1),
    "relu backward": lambda grad, x: ATEN.threshold_backward(grad, x, 0),
    "leaky_relu backward": lambda grad, x: ATEN.leaky_relu_backward(grad, x, 0.1, False),
    "mish backward": lambda grad, x: ATEN.mish_backward(grad, x),
}


def recorded(act: Act, device: str, *arguments: Tensor) -> tuple[str, tuple[TensorSpec, ...]]:
    """The last call and what it gave, for fake tensors laid out as these are."""
    recorder = Recorder(device)
    with FAKE:
        fakes = [torch.empty_strided(t.shape, t.stride(), device=device) for t in arguments]
        with recorder:
            act(*fakes)
    op = recorder.end()[-1]
    return op.call.name, op.outputs


def layouts(specs: tuple[TensorSpec, ...]) -> list[object]:
    """Shapes and strides, but for those of one element, which say nothing: fake ones vary."""
    return [
        (spec.shape, [step for side, step in zip(spec.shape, spec.stride, strict=True) if side > 1])
        for spec in specs
    ]


def devices(both: bool) -> tuple[str, ...]:
    """Rules of a GPU differ by name, not by shape: a few cases of each will do."""
    return ("cpu", "cuda") if both else ("cpu",)


def ran(act: Act, *arguments: Tensor) -> tuple[TensorSpec, ...]:
    """What the kernel gives."""
    out = act(*arguments)
    return tuple(spec_of(tensor) for tensor in (out if isinstance(out, tuple) else (out,)))


@pytest.mark.parametrize("name", ACTS | CPU_ACTS)
def test_a_result_lies_as_the_kernel_lays_it(name: str) -> None:
    act = (ACTS | CPU_ACTS)[name]
    for shape, grad, x in CASES:
        arguments = LAYOUTS[grad](*shape), LAYOUTS[x](*shape)
        real = layouts(ran(act, *arguments))
        for device in devices(shape == IMAGES and name in ACTS):
            found = layouts(recorded(act, device, *arguments)[1])
            assert found == real, (shape, grad, x, device)


@pytest.mark.parametrize("name", ELEMENTWISE_ACTS)
def test_strides_of_one_element_are_the_kernel_s_too(name: str) -> None:
    """They decide what the next layer takes for channels-last."""
    act = ELEMENTWISE_ACTS[name]
    for shape, (grad, x) in product((IMAGES, VECTORS, GREY), AS_ONE):
        arguments = LAYOUTS[grad](*shape), LAYOUTS[x](*shape)
        for device in devices(shape == VECTORS):
            found = [spec.stride for spec in recorded(act, device, *arguments)[1]]
            assert found == [spec.stride for spec in ran(act, *arguments)], (shape, grad, x)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ACTS | ELEMENTWISE_ACTS)
@pytest.mark.parametrize("grad", [DENSE, LAST, SPREAD, ONE])
@pytest.mark.parametrize("x", [DENSE, LAST])
def test_a_gpu_lays_it_so_too(name: str, grad: str, x: str) -> None:
    act = (ACTS | ELEMENTWISE_ACTS)[name]
    for shape in (IMAGES, VECTORS) if {grad, x} <= {DENSE, LAST} else (IMAGES,):
        arguments = [LAYOUTS[layout](*shape).cuda() for layout in (grad, x)]
        assert recorded(act, "cuda", *arguments)[1] == ran(act, *arguments), shape


def test_every_rule_is_tried() -> None:
    dense = torch.rand(IMAGES)
    for acts, rules in ((ACTS, RULES), (CPU_ACTS, CPU_RULES)):
        assert {recorded(act, "cpu", dense, dense)[0] for act in acts.values()} == set(rules)


class Squeezed(nn.Module):
    """Squeeze and excitation, and layer-norm over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(16), nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.SiLU(), nn.Conv2d(8, 16, 1),
            nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Images like x."""
        return self.norm((self.scale(x) * x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


GROUP_NORM = partial(nn.GroupNorm, 4, 16)
BLOCKS = [nn.ReLU6, nn.Hardswish, nn.ELU, nn.Softplus, nn.ReLU, Squeezed, GROUP_NORM]


def convolutional() -> nn.Module:
    """Blocks of convolution, batch-norm and one of `BLOCKS`, the mean, and a layer of ten."""
    layers = [
        layer
        for i, block in enumerate(BLOCKS)
        for layer in (nn.Conv2d(16 if i else 3, 16, 3, padding=1), nn.BatchNorm2d(16), block())
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


# ---------------------------------------------------------------- fake trace


CLASSES = 10
NETWORK = find("cnn-cifar")
BLOCKY = replace(NETWORK, build=convolutional, input=(3, 8, 8))
ARMS: list[dict[str, object]] = [
    {"recipe": "fp32", "layout": "nhwc", "fused": False},
    {"recipe": "amp", "layout": "nhwc", "loss_scale": 256.0},
    {"recipe": "bf16", "keep_batchnorm_fp32": True},
    {"recipe": "fp32", "accumulate": 3},
    {"recipe": "amp-bf16", "optimizer": "adamw", "graph": True},
    {"recipe": "O2", "optimizer": "adam", "fused": False},
]


@pytest.mark.parametrize(
    ("network", "settings"), [*((NETWORK, one) for one in ARMS), (find("gpt-tiny"), {}),
                              (BLOCKY, {"recipe": "fp32", "layout": "nchw"}),
                              (BLOCKY, {"recipe": "amp-bf16", "layout": "nhwc"})],
)  # fmt: skip
def test_a_fake_step_is_the_step_that_runs(network: Network, settings: dict[str, object]) -> None:
    """The same calls, results, phases, and memory."""
    case = case_of(network, 2, **settings)
    fake, real = (record(network, case, CPU, CLASSES) for record in (trace, record_step))
    assert differences(fake, real) == []
    assert fake.held_bytes == real.held_bytes


def test_phases_come_in_order_and_hold_what_they_are_called_for_however_large() -> None:
    ops = trace(NETWORK, case_of(NETWORK), CPU, CLASSES).ops
    phases = list(dict.fromkeys(op.phase for op in ops))
    assert phases == [
        p for p in ("data", "copy", "forward", "backward", "optimizer") if p in phases
    ]
    names = {phase: {op.call.name for op in ops if op.phase == phase} for phase in phases}
    assert "aten.convolution.default" in names["forward"]
    assert "aten.convolution_backward.default" in names["backward"]
    assert "aten._fused_sgd_.default" in names["optimizer"]
    case = case_of(NETWORK, 10_000_000)
    assert trace(NETWORK, case, CPU, CLASSES).peak_bytes() > 1e12


@pytest.mark.parametrize(("reads", "named"), [(False, "DynamicOutput"), (True, "DataDependent")])
def test_a_network_that_fake_tensors_cannot_follow_says_so(reads: bool, named: str) -> None:
    network = network_of(Undecided, reads)
    case = case_of(network)
    with pytest.raises(CannotPredict, match=named):
        trace(network, case, CPU, CLASSES)
    assert record_step(network, case, CPU, CLASSES).ops
    # Recurrent layers of cuDNN ask where weights lie; a CPU's are traced like others.
    recurrent = replace(
        find("cnn-cifar"), input=(3, 2, 2),
        build=lambda: nn.Sequential(nn.Flatten(2), nn.LSTM(4, 2)),
        loss=lambda output, target: output[0].float().square().mean(),
    )  # fmt: skip
    case = case_of(recurrent)
    with pytest.raises(CannotPredict, match="recurrent"):
        trace(recurrent, case, torch.device("cuda"), CLASSES)
    assert trace(recurrent, case, CPU, CLASSES).ops


# ---------------------------------------------------------------- attention


BATCH, HEADS, LENGTH, WIDTH = 2, 3, 197, 64
HALF = (torch.float16, torch.bfloat16)
BACKENDS = {"cudnn": HALF, "flash": HALF, "efficient": (torch.float32, *HALF)}
each_backend = pytest.mark.parametrize(
    ("backend", "dtype"), [(name, dtype) for name, dtypes in BACKENDS.items() for dtype in dtypes]
)


def recorded_pass(backend: str, dtype: torch.dtype) -> tuple[TracedOp, TracedOp]:
    """Forward and backward, as autograd calls them, with dropout.

    A decoder cuts query, key and value from one product: with gaps between rows.
    """
    dropout = 0.1
    recorder = Recorder("cuda")
    with FakeTensorMode(), recorder:
        joined = torch.empty(BATCH, LENGTH, 3, HEADS, WIDTH, dtype=dtype, device="cuda")
        q, k, v = (part.transpose(1, 2) for part in joined.unbind(2))
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
    forward, backward = recorded_pass(backend, dtype)
    assert forward.call.operator == f"_scaled_dot_product_{backend}_attention"
    assert backward.call.operator == f"{forward.call.operator}_backward"
    for op in (forward, backward):
        assert why_not(op.call) is None
        assert kind_of(op.call) == "product"
    assert (flops(backward.call) or 0) == 2 * (flops(forward.call) or 0) > 0


@each_backend
def test_the_backward_pass_runs_on_what_forward_saves(backend: str, dtype: torch.dtype) -> None:
    """The replayed forward pass gives every argument that it should, as it was recorded."""
    _, backward = recorded_pass(backend, dtype)
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
        _, backward = recorded_pass(backend, dtypes[0])
        arguments = backward.call.named
        for name in ("philox_seed", "philox_offset"):
            seed = arguments[name]
            assert seed.device == ("cpu" if backend == "efficient" else "cuda")
        for gradient in backward.outputs[:3]:
            assert gradient.shape == (BATCH, HEADS, LENGTH, WIDTH)
            assert gradient.span == gradient.numel


# ---------------------------------------------------------------- what a step finds in the cache


MB = 2**20
SIZES = st.lists(st.integers(1, 60), min_size=10, max_size=10)
TOUCHES = st.lists(st.integers(0, 9), max_size=60)


@given(SIZES, TOUCHES)
def test_what_was_touched_last_is_held_up_to_the_size(sizes: list[int], touches: list[int]) -> None:
    cache = Cache(100)
    order: list[int] = []
    for storage in touches:
        cache.touch(storage, sizes[storage])
        order = [each for each in order if each != storage] + [storage]
        held, total = set[int](), 0
        for each in reversed(order):
            total += sizes[each]
            if total > 100:
                break
            held.add(each)
        assert {each for each in order if cache.holds(each)} == held


def test_a_result_goes_to_memory_when_all_of_it_leaves_the_cache_and_not_when_it_is_freed() -> None:
    cache = Cache(100)
    cache.touch(1, 90, new_of=7)
    cache.touch(1, 5)
    cache.touch(2, 90)
    assert not cache.holds(1)
    assert cache.written_back == {7}
    cache = Cache(100)
    cache.touch(1, 40, new_of=11)
    cache.touch(2, 40, new_of=12)
    cache.touch(1, 40)
    cache.forget(2)
    assert not cache.holds(2)
    cache.touch(3, 60)
    assert cache.written_back == set()
    cache.touch(4, 1)
    assert cache.written_back == {11}
    cache.begin()
    assert cache.written_back == set()


def rows(mb: int) -> Tensor:
    return torch.ones(mb, MB // 4)


def doubled(first: Tensor, second: Tensor) -> list[Tensor]:
    kept = first * 2  # let go before it is read again
    brief = second + 1
    del brief
    other = second.exp()
    return [kept + 1, other]


def twice_stepped(cache_mb: float) -> list[TracedOp]:
    """Two steps of `doubled`, of which the second one counts."""
    recorder = Recorder("cpu", cache_bytes=int(cache_mb * MB))
    first, second = rows(4), rows(3)
    recorder.hold(iter((first, second)))
    with recorder:
        doubled(first, second)
        recorder.begin()
        doubled(first, second)
    return list(recorder.end())


def test_a_recording_notes_what_the_cache_does_not_hold() -> None:
    # Since `first` was read last, 13 MB were touched; since `second` was, itself and `brief`.
    mul, add, exp, last = twice_stepped(12)
    assert [op.call.operator for op in (mul, add, exp, last)] == ["mul", "add", "exp", "add"]
    assert [mul.cold.arguments, exp.cold.arguments] == [(0,), ()]
    assert [op.cold.results for op in (add, exp)] == [False, False]
    mul, _, _, last = twice_stepped(6)
    assert mul.cold.results, "it leaves the cache, and comes back"
    assert last.cold.arguments == (0,)
    wider = 6 / WIDE - 0.1  # such calls do not find the launch before in the cache either
    for cache_mb in (0, 1000, wider):
        assert all(not op.cold for op in twice_stepped(cache_mb))
    assert twice_stepped(0)[0].cold.key == ""


def one_call(cache_mb: float, launch: Callable[[], object], *held: Tensor) -> TracedOp:
    recorder = Recorder("cpu", cache_bytes=int(cache_mb * MB))
    recorder.hold(iter(held))
    with recorder:
        launch()
    return recorder.end()[-1]


def test_parts_of_a_storage_count_together_and_small_arguments_are_no_matter() -> None:
    joined = torch.ones(3, 2 * MB // 4)
    a, b, c = joined.unbind()
    op = one_call(6, lambda: (torch.stack((a, b, c)).exp(), a.neg()), joined)
    assert op.cold.arguments == (0,)  # 6 of `joined`, then 6 and 6: nothing of it is left
    assert one_call(1, lambda: rows(1) * 1, joined).cold.arguments == ()
    x = rows(2)
    assert one_call(1.5, lambda: x.mul(x), x).cold.arguments == (0, 1)  # 4 MB, not 6
    x, y = rows(2), rows(2)
    assert one_call(3, lambda: x.add_(y), x, y).cold.arguments == (1,)
    assert one_call(3, lambda: x.relu_(), x).cold == WARM
    call = describe(ATEN.exp.default, (rows(2),), {})
    near, far = (
        TracedOp(call, (), "", 0, 0, cold) for cold in (WARM, ColdL2((0,), cache_bytes=MB))
    )
    case = case_of(find("cnn-cifar"))
    assert key_of(case, near) != key_of(case, far)
    # They cost a launch no more than the latency of their first bytes.
    recorder = Recorder("cpu", cache_bytes=4 * MB)
    small = torch.ones(LEAST_COLD // 4 - 1)
    recorder.hold(iter((small,)))
    with recorder:
        torch.exp(small)
        torch.neg(small)
    assert [op.cold for op in recorder.end()] == [WARM, WARM]


# ---------------------------------------------------------------- padding


ODD_CLASSES = 1001


class Odd(nn.Module):
    """Convolutions of 33 channels, and 1,001 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 33, 5, stride=2)
        self.body = nn.Conv2d(33, 33, 3, bias=False)
        self.grouped = nn.Conv2d(33, 33, 3, groups=33)
        self.up = nn.ConvTranspose2d(33, 64, 2)
        self.head = nn.Linear(64, ODD_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Images to classes."""
        x = self.grouped(self.body(self.stem(x)).relu())
        return self.head(self.up(x).mean((2, 3)))


@cache
def products(recipe: str = "amp-bf16", layout: str = "nhwc") -> list[TracedOp]:
    """Of one step."""
    network = replace(
        find("cnn-cifar"), name="odd", build=partial(Odd), input=(3, 16, 16), classes=ODD_CLASSES
    )
    case = case_of(network, 4, recipe=recipe, layout=layout)
    ops = trace(network, case, CPU, ODD_CLASSES).ops
    return [op for op in ops if kind_of(op.call) == "product"]


def paddings(tf32: bool = False, **how: str) -> list[Padding]:
    found = [padding(op.call, tf32) for op in products(**how)]
    return [each for each in found if each is not None]


def test_odd_sizes_are_padded_a_bias_of_all_rows_too_but_no_vector_nor_image() -> None:
    """Of the grouped layer none; of each other one the forward and the backward calls."""
    found = Counter(each.change for each in paddings())
    assert found == {
        "33 to 40 channels": 6,  # the stem, the body, and the transposed one
        "1001 to 1008 features": 3,
    }
    assert paddings(recipe="fp32") == []
    found = Counter(each.change for each in paddings(True, recipe="fp32"))
    assert found["33 to 36 channels"] == 6
    # The batch is never padded: rows of a matrix product that lie apart need no alignment.
    pool = Pool(CPU)
    for op in products():
        found = padding(op.call, False)
        if found is None:
            continue
        assert 4 not in found.sizes
        returned = materialise(found.call, CPU, pool).launch()
        wanted = [tuple(found.sizes.get(n, n) for n in spec.shape) for spec in op.outputs]
        shapes = [tuple(leaf.shape) for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
        assert shapes == wanted, found.call.key
        assert padding(found.call, False) is None, "once is enough"
    bias = TensorSpec((9,), (1,), "float16", "cpu")
    left, right = torch.empty(5, 16).half(), torch.empty(16, 9).half()
    call = describe(ATEN.addmm.default, (left, left, right), {})
    found = padding(replace(call, args=(bias, *call.args[1:])), False)
    assert [spec.shape for spec in found.call.tensors] == [(16,), (5, 16), (16, 16)]
    column = describe(ATEN.mm.default, (left[:, :8], right[:8, :1]), {})
    assert padding(column, False) is None
    x, weight = torch.empty(4, 3, 8, 8).half(), torch.empty(64, 3, 3, 3).half()
    args = (x, weight, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)
    assert padding(describe(ATEN.convolution.default, args, {}), False) is None
