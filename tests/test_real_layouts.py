"""Calls that fake tensors lay out unlike the kernels do, as the recorder puts them right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from tracing import case_of

from e2e.networks.network import Network
from e2e.predict.real_layouts import CPU_RULES, RULES
from e2e.predict.recorder import Recorder
from e2e.predict.trace import differences, trace, trace_real
from kernels.aten import TensorSpec, spec_of

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
SHAPES = [(4, 8, 6, 5), (4, 8, 1, 1), (1, 8, 6, 5)]


def layer_norm_backward(grad: Tensor, x: Tensor) -> object:
    """Over channels, as ConvNeXt has it."""
    grad, x = (tensor.permute(0, 2, 3, 1) for tensor in (grad, x))
    statistic, weight = x.new_ones(*x.shape[:3], 1), x.new_ones(x.shape[3])
    return ATEN.native_layer_norm_backward(
        grad, x, weight.shape, statistic, statistic, weight, weight, [True] * 3
    )


def batch_norm_backward(grad: Tensor, x: Tensor) -> object:
    """In training."""
    each = [x.new_ones(x.shape[1])] * 5
    return ATEN.native_batch_norm_backward(grad, x, *each, True, 1e-5, [True] * 3)


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
    "dropout": lambda grad, x: ATEN.native_dropout_backward(grad, x > 0, 2.0),
    "batch_norm": batch_norm_backward,
}
each_act = pytest.mark.parametrize("name", ACTS)
each_grad = pytest.mark.parametrize("grad", LAYOUTS)
each_x = pytest.mark.parametrize("x", [DENSE, LAST, TURNED])


def recorded(act: Act, device: str, *arguments: Tensor) -> tuple[str, tuple[TensorSpec, ...]]:
    """The last call and what it gave, for fake tensors laid out as these are."""
    recorder = Recorder(device)
    with FakeTensorMode():
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


def ran(act: Act, *arguments: Tensor) -> tuple[TensorSpec, ...]:
    """What the kernel gives."""
    out = act(*arguments)
    return tuple(spec_of(tensor) for tensor in (out if isinstance(out, tuple) else (out,)))


@each_act
@each_grad
@each_x
def test_a_result_lies_as_the_kernel_lays_it(name: str, grad: str, x: str) -> None:
    for shape in SHAPES:
        arguments = LAYOUTS[grad](*shape), LAYOUTS[x](*shape)
        real = layouts(ran(ACTS[name], *arguments))
        for device in ("cpu", "cuda"):
            assert layouts(recorded(ACTS[name], device, *arguments)[1]) == real, (shape, device)


@pytest.mark.parametrize("name", CPU_ACTS)
@each_grad
@each_x
def test_a_result_lies_as_the_kernel_of_a_cpu_lays_it(name: str, grad: str, x: str) -> None:
    for shape in SHAPES:
        arguments = LAYOUTS[grad](*shape), LAYOUTS[x](*shape)
        real = layouts(ran(CPU_ACTS[name], *arguments))
        assert layouts(recorded(CPU_ACTS[name], "cpu", *arguments)[1]) == real, shape


@pytest.mark.gpu
@each_act
@pytest.mark.parametrize("grad", [DENSE, LAST, SPREAD, ONE])
@pytest.mark.parametrize("x", [DENSE, LAST])
def test_a_gpu_lays_it_so_too(name: str, grad: str, x: str) -> None:
    arguments = [LAYOUTS[layout](*SHAPES[0]).cuda() for layout in (grad, x)]
    assert recorded(ACTS[name], "cuda", *arguments)[1] == ran(ACTS[name], *arguments)


def test_every_rule_is_tried() -> None:
    dense = torch.rand(SHAPES[0])
    for acts, rules in ((ACTS, RULES), (CPU_ACTS, CPU_RULES)):
        assert {recorded(act, "cpu", dense, dense)[0] for act in acts.values()} == set(rules)


def convolutional(activation: Callable[[], nn.Module]) -> nn.Module:
    """Two blocks of convolution, batch-norm and activation, then the mean and a layer of ten."""
    blocks = [
        layer
        for into in (3, 16)
        for layer in (nn.Conv2d(into, 16, 3, bias=False), nn.BatchNorm2d(16), activation())
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("recipe", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("activation", [nn.ReLU6, nn.Hardswish, nn.ELU, nn.Softplus, nn.ReLU])
def test_a_step_with_it_is_the_step_that_runs(
    activation: Callable[[], nn.Module], recipe: str, layout: str
) -> None:
    network = Network(
        "activated", partial(convolutional, activation), (3, 16, 16), None, 10,
        lambda output, target, smoothing: nn.functional.cross_entropy(output.float(), target),
        None, "img", 1, "sgd", 0.1, 0.0, 8, 8,
    )  # fmt: skip
    case = case_of(network, recipe=recipe, layout=layout)
    fake, real = (record(network, case, CPU, 10) for record in (trace, trace_real))
    assert fake.fake
    assert differences(fake, real) == []
