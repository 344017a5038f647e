"""Every call of real training steps on the CPU: described, classified, and run alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from samples.launching import Recorded, Recorder, finite, given, specs
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from e2e.aten import (
    Call,
    Pool,
    flops,
    kind_of,
    materialise,
    resolve,
    spec_of,
    tensors_among,
    why_not,
)
from e2e.aten.call import slots_of

CPU = torch.device("cpu")
ATEN = torch.ops.aten


# ------------------------------------------------------------ networks


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.mix(x).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class Transformer(nn.Module):
    def __init__(self, words: int = 50, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(12, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2, dropout)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = x + self.attention(self.first(x))
        return self.head(x + self.shrink(F.gelu(self.grow(self.second(x))))).flatten(0, 1)


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
LAST = IMAGES.to(memory_format=torch.channels_last)
SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
WITH_MOMENTUM = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
STEPS: dict[str, Callable[[], Step]] = {
    "cnn-last-bf16": lambda: step_of(
        convolutional(True), LAST, 5, SGD, True, foreach=True, **WITH_MOMENTUM
    ),
    "cnn-smooth": lambda: step_of(convolutional(), IMAGES, 5, Adam, smoothing=0.1, foreach=True),
    "transformer-bf16": lambda: step_of(
        Transformer(), torch.randint(0, 50, (3, 12)), 50, AdamW, True, fused=True
    ),
    "transformer-dropout": lambda: step_of(
        Transformer(dropout=0.1), torch.randint(0, 50, (3, 12)), 50, Adam, foreach=True
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


def may_be_infinite(call: Call) -> bool:
    """Whether its result is memory that nobody has written, or infinite because it was told so."""
    return "empty" in call.operator or call.args == (-math.inf,)


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
        written = any(slot.written for slot in slots_of(op.call))
        assert written or not op.call.operator.endswith("_"), key
        with Recorder() as seen:
            replay.launch()
        assert [told(one.call) for one in seen.ops] == [told(op.call)]
        for _ in range(2):
            returned = replay.launch()
        assert given(op.call, replay, returned) == op.outputs, key
        assert may_be_infinite(op.call) or finite(returned), key
        assert finite(tensors), key
        assert written or same(tensors, before), f"{key} writes to what it reads"
        ends = sorted((t.data_ptr(), t.data_ptr() + spec_of(t).bytes) for t in tensors if t.numel())
        for (_, end), (begin, _) in pairwise(ends):
            assert end <= begin, f"shared memory: {key}"


def same(tensors: Iterable[Tensor], before: Iterable[Tensor]) -> bool:
    return all(map(torch.equal, tensors, before))


@pytest.mark.parametrize("name", ["cnn-last-bf16", "cnn-smooth"])
def test_many_launches_stay_finite(name: str) -> None:
    """Two hundred launches and fresh content, again and again.

    Not so what is divided by a small number as often: numbers are as recorded.
    """
    pool = Pool(CPU)
    for op in distinct(name):
        replay = materialise(op.call, CPU, pool)
        written = any(slot.written for slot in slots_of(op.call))
        if not written or op.call.name == "aten._foreach_div_.ScalarList":
            continue
        for _ in range(3):
            replay.restore()
            for _ in range(200):
                replay.launch()
        assert finite([list(replay.plain.args), replay.plain.keywords]), op.call.key
