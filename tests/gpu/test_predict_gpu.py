"""Predictions on a GPU: the trace is the real step's, every call has a time, and bounds hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import pytest
import torch
from samples.train_cases import case_of, differences, quietly

from e2e.aten import flops, kind_of
from e2e.case import TrainCase
from e2e.data.datasets.synthetic import Synthetic
from e2e.networks import find
from e2e.networks.network import Network
from e2e.prediction.predictor import Predictor, key_of, trace, trace_real
from e2e.prediction.store import Store
from e2e.prediction.timer import ROUNDS, CallTime, PlacedCall, time_calls
from e2e.prediction.trace.recorder import BACKWARD
from e2e.recipes import recipe_of
from e2e.results.types import Predicted
from e2e.training.step_timer import busy_time
from e2e.training.switches import switch_process
from e2e.training.variants import Task, Variants
from kernels.case import Target
from microbench.device.telemetry import Telemetry

DEVICE = torch.device("cuda:0")
CLASSES = 10
FASTEST_FLOP_PER_S = (
    2.5e15  # more than any GPU's dense float16 Tensor Cores, so no time is below it
)
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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Of all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Store({"name": "a GPU"}, {})


def predicted(network: Network, case: TrainCase, target: Target, store: Store) -> Predicted:
    found = Predictor(network, target, CLASSES, store).predict(case, quietly)
    assert found.predicted is not None, found.reason
    return found.predicted


@pytest.mark.parametrize(("name", "settings"), ARMS, ids=str)
def test_the_trace_is_that_of_a_real_step(name: str, settings: dict[str, object]) -> None:
    network = find(name)
    case = case_of(network, 8, **settings)
    fake, real = (record(network, case, DEVICE, CLASSES) for record in (trace, trace_real))
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
    switch_process(recipe_of(case), "cuda", case.search)
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
        switch_process(recipe_of(case), "cuda", case.search)
        times = time_calls(target, [PlacedCall(op.call, 1, op.phase == BACKWARD) for op in ops])
        gpu_s[recipe] = sum(median(time.times_s) for time in times if isinstance(time, CallTime))
    assert gpu_s["fp32"] > 1.5 * gpu_s["tf32"]


@pytest.mark.alone
@pytest.mark.parametrize(("name", "batch"), [("resnet18", 64), ("vit_b_16", 16)])
def test_time_and_memory_are_near_those_of_a_training(
    name: str, batch: int, target: Target, store: Store
) -> None:
    network = find(name)
    case = case_of(network, batch, recipe="amp", layout="nhwc")
    told = predicted(network, case, target, store)
    task = Task(network, Synthetic(network.input, CLASSES), 1)
    arms = Variants(task, target, Telemetry(None))
    (training,) = arms.set_up([case], quietly)
    (held,) = arms.held.values()
    for _ in range(20):
        held.step()
    busy_s, launches = busy_time(held.step)
    arms.close()
    assert told.step_s == pytest.approx(busy_s, rel=0.1)
    assert told.launches == pytest.approx(launches, rel=0.05)
    assert told.interval_s is not None
    assert told.host_s is not None
    assert told.host_s > 0
    assert training.memory_peak_bytes is not None
    assert told.memory_bytes == pytest.approx(training.memory_peak_bytes, rel=0.1)


def test_a_prediction_leaves_no_memory_behind(target: Target, store: Store) -> None:
    network = find("resnet18")
    case = case_of(network, 16, recipe="amp", layout="nhwc")
    predicted(network, case, target, store)
    before = torch.cuda.memory_allocated()
    predicted(network, replace(case, batch=32), target, store)
    assert torch.cuda.memory_allocated() - before < 2**20
