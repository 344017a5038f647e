"""Predictions on a GPU: the real step's trace, times within bounds, and calls that run alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from samples.train_cases import Recorder, case_of, declared, differences, finite, quietly
from samples.waiting import no_waits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from e2e.aten import WARM, Pool, flops, kind_of, materialise, reserve, why_not
from e2e.case import TrainCase
from e2e.data.datasets.synthetic import Synthetic
from e2e.data.types import Options
from e2e.networks import find
from e2e.networks.network import Network
from e2e.prediction.predictor import Predictor, key_of, record_step, trace
from e2e.prediction.recorder import BACKWARD
from e2e.prediction.timer import ROUNDS, CallTime, PlacedCall, time_calls
from e2e.recipes import recipe_of
from e2e.results.types import Predicted
from e2e.training.step_timer import busy_in
from e2e.training.store import Store
from e2e.training.trainer import set_backend_flags
from e2e.training.variants import Task, Variants
from kernels.case import Target
from microbench.device.profiler import record
from microbench.device.telemetry import Telemetry

DEVICE = torch.device("cuda:0")
CLASSES = 10
# More than any GPU's dense float16 Tensor Cores, so no time is below it.
FASTEST_FLOP_PER_S = 2.5e15
ARMS: list[tuple[str, dict[str, object]]] = [
    ("cnn-cifar", {"recipe": "fp32"}),
    ("cnn-cifar", {"recipe": "O2", "layout": "nhwc", "fused": False}),
    ("mobilenet_v2", {"recipe": "amp", "layout": "nhwc"}),
    ("vit_b_16", {"recipe": "amp"}),
    ("gpt-tiny", {"recipe": "amp-bf16"}),
]


@pytest.fixture(scope="module")
def target() -> Target:
    facts = torch.cuda.get_device_properties(0)
    return Target(
        "cuda", facts.name, (facts.major, facts.minor), facts.multi_processor_count, index=0
    )


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store[CallTime]:
    """Of one test: times that were taken beside other tests are none for a test that runs alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Store({"name": "a GPU"}, {}, "calls", CallTime)


def predicted(
    network: Network, case: TrainCase, target: Target, store: Store[CallTime]
) -> Predicted:
    found = Predictor(network, target, CLASSES, store).predict(case, quietly)
    assert found.predicted is not None, found.reason
    return found.predicted


@pytest.mark.parametrize(("name", "settings"), ARMS, ids=str)
def test_the_trace_is_that_of_a_real_step(name: str, settings: dict[str, object]) -> None:
    network = find(name)
    case = case_of(network, 8, **settings)
    fake, real = (record(network, case, DEVICE, CLASSES) for record in (trace, record_step))
    assert [op.call.name for op in fake.ops] == [op.call.name for op in real.ops]
    # cuDNN says how much batch-norm reserves; fake tensors say nothing.
    unlike = [line for line in differences(fake, real) if "batch_norm" not in line]
    assert [line for line in unlike if "freed" not in line] == []
    assert [op.phase for op in fake.ops] == [op.phase for op in real.ops]


@pytest.mark.parametrize(("name", "settings"), ARMS, ids=str)
def test_every_call_has_a_time_and_none_beats_the_card(
    name: str, settings: dict[str, object], target: Target
) -> None:
    network = find(name)
    case = case_of(network, 8, **settings)
    ops = {key_of(case, op): op for op in trace(network, case, DEVICE, CLASSES).launched}
    calls = [PlacedCall(op.call, 1, op.phase == BACKWARD, op.cold) for op in ops.values()]
    set_backend_flags(recipe_of(case), "cuda", case.search)
    for call, time in zip(calls, time_calls(target, calls), strict=True):
        assert isinstance(time, CallTime), f"{call.call.name}: {time}"
        assert len(time.times_s) >= ROUNDS - 1  # the profiler may lose the first kernels
        assert min(time.times_s) > 0
        assert time.kernels >= 1, "kernels are seen in both threads"
        assert time.scratch_bytes >= 0
        assert (flops(call.call) or 0) / median(time.times_s) < FASTEST_FLOP_PER_S


@pytest.mark.alone
def test_tf32s_products_are_measured_in_tf32(target: Target) -> None:
    network, gpu_s = find("resnet18"), dict[str, float]()
    for recipe in ("fp32", "tf32"):
        case = case_of(network, 64, recipe=recipe)
        ops = [op for op in trace(network, case, DEVICE, CLASSES).launched
               if kind_of(op.call) == "product"]  # fmt: skip
        set_backend_flags(recipe_of(case), "cuda", case.search)
        times = time_calls(target, [PlacedCall(op.call, 1, op.phase == BACKWARD) for op in ops])
        gpu_s[recipe] = sum(median(time.times_s) for time in times if isinstance(time, CallTime))
    assert gpu_s["fp32"] > 1.5 * gpu_s["tf32"]


@pytest.mark.alone
@pytest.mark.parametrize(("name", "batch"), [("resnet18", 64), ("vit_b_16", 16)])
def test_time_and_memory_are_near_those_of_a_training(
    name: str, batch: int, target: Target, store: Store[CallTime]
) -> None:
    network = find(name)
    case = case_of(network, batch, recipe="amp", layout="nhwc")
    prediction = predicted(network, case, target, store)
    task = Task(network, Synthetic(Options(network.input, CLASSES)), 1)
    arms = Variants(task, target, Telemetry(None))
    (training,) = arms.set_up([case], quietly)
    (held,) = arms.held.values()
    for _ in range(20):
        held.step()
    busy_s, launches = busy_in(record(lambda: [held.step() for _ in range(5)]), 5)
    arms.close()
    assert prediction.step_s == pytest.approx(busy_s, rel=0.1), prediction.terms_ms
    assert prediction.launches == pytest.approx(launches, rel=0.05)
    assert prediction.interval_s is not None
    assert prediction.host_s > 0
    assert prediction.memory_bytes == pytest.approx(training.memory_peak_bytes, rel=0.1)


def test_a_prediction_leaves_no_memory_behind(target: Target, store: Store[CallTime]) -> None:
    network = find("resnet18")
    case = case_of(network, 16, recipe="amp", layout="nhwc")
    predicted(network, case, target, store)
    before = torch.cuda.memory_allocated()
    predicted(network, replace(case, batch=32), target, store)
    assert torch.cuda.memory_allocated() - before < 2**20


# ---------------------------------------------------------------- calls alone


GPU = torch.device("cuda:0")
LAUNCHES = 20
WIDTH = 64


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
    reserved = sum(flat.nbytes for flat in pool.flats.values())
    for call, outputs in ops.items():
        if why_not(call) is not None:
            assert kind_of(call) == "view", why_not(call)
            continue
        replay = materialise(call, GPU, pool)
        for _ in range(LAUNCHES):
            returned = replay.launch()
        assert kind_of(call) != "other", call.name
        assert declared(call, replay, returned) == outputs, call.key
        if "empty" not in call.operator:
            assert finite([returned, list(replay.plain.args)]), call.key
    assert sum(flat.nbytes for flat in pool.flats.values()) == reserved


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
