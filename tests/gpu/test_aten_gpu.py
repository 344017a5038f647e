"""On a GPU: calls of a training step run alone, on arguments that lie as recorded.

Correctness only, never a speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from samples.launching import Recorder, finite, given
from samples.waiting import no_waits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from e2e.aten import (
    WARM,
    Pool,
    kind_of,
    materialise,
    reserve,
    why_not,
)

GPU = torch.device("cuda:0")
LAUNCHES = 20
WIDTH, CLASSES = 64, 10


def trained(net: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, low: torch.dtype) -> Any:
    """The calls of a step with a loss scaler under autocast; the second, with all state there."""
    scaler = torch.amp.GradScaler("cuda")
    targets = torch.randint(0, CLASSES, (x.shape[0],), device=GPU)

    def step() -> None:
        with torch.autocast("cuda", low):
            loss = F.cross_entropy(net(x).float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    step()
    with Recorder() as recorder:
        step()
    return {op.call: op.outputs for op in recorder.ops}


def convolutional(last: bool, low: torch.dtype) -> Any:
    net = nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1), nn.Conv2d(WIDTH, WIDTH, 3, groups=4), nn.Hardswish(),
        nn.AvgPool2d(2), nn.Dropout(0.2), nn.GroupNorm(4, WIDTH), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, CLASSES),
    ).to(GPU)  # fmt: skip
    x = torch.randn(8, 3, 32, 32, device=GPU)
    if last:
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    return trained(net, x, torch.optim.SGD(net.parameters(), 0.1, 0.9, fused=True), low)


class Mixer(nn.Module):
    def __init__(self, backend: SDPBackend, dropout: float) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(100, 128), nn.LayerNorm(128)
        self.mix, self.head = nn.Linear(128, 384), nn.Linear(128, CLASSES)
        self.backend, self.dropout = backend, dropout

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.words(ids))
        q, k, v = self.mix(x).view(*ids.shape, 3, 2, 64).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(self.backend):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return self.head(F.gelu(F.dropout(x + y.transpose(1, 2).flatten(2), 0.1)).mean(1))


def attentive(backend: SDPBackend, dropout: float, fused: bool) -> Any:
    net = Mixer(backend, dropout).to(GPU)
    how = {"fused": True} if fused else {"foreach": True}
    ids = torch.randint(0, 100, (4, 128), device=GPU)
    return trained(net, ids, torch.optim.AdamW(net.parameters(), 1e-3, **how), torch.float16)


STEPS: dict[str, Callable[[], Any]] = {
    "cnn-fp16": lambda: convolutional(False, torch.float16),
    "cnn-fp16-last": lambda: convolutional(True, torch.float16),
    "cnn-bf16-last": lambda: convolutional(True, torch.bfloat16),
    "flash": lambda: attentive(SDPBackend.FLASH_ATTENTION, 0.0, True),
    "flash-dropout": lambda: attentive(SDPBackend.FLASH_ATTENTION, 0.1, True),
    "efficient": lambda: attentive(SDPBackend.EFFICIENT_ATTENTION, 0.0, False),
    "cudnn": lambda: attentive(SDPBackend.CUDNN_ATTENTION, 0.0, True),
}


@pytest.mark.parametrize("name", STEPS)
def test_replays_return_what_the_step_did(name: str) -> None:
    torch.manual_seed(0)
    ops = STEPS[name]()
    pool = Pool(GPU)
    reserve([(op, WARM) for op in ops], pool)
    reserved = pool.bytes
    for call, outputs in ops.items():
        if why_not(call) is not None:
            assert kind_of(call) == "view", why_not(call)
            continue
        replay = materialise(call, GPU, pool)
        for _ in range(LAUNCHES):
            returned = replay.launch()
        assert kind_of(call) != "other", call.name
        assert given(call, replay, returned) == outputs, call.key
        if "empty" not in call.operator:
            assert finite([returned, list(replay.plain.args)]), call.key
    assert pool.bytes == reserved


@pytest.mark.quick
@pytest.mark.parametrize("name", ["cnn-fp16-last", "flash"])
def test_launching_and_restoring_do_not_wait(name: str) -> None:
    ops = STEPS[name]()
    pool = Pool(GPU)
    replays = [
        materialise(call, GPU, pool)
        for call in ops
        if why_not(call) is None and kind_of(call) != "view"
    ]
    with no_waits():
        for replay in replays:
            replay.restore()
            replay.launch()
