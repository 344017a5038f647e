"""Predictions on a GPU: the trace is the real step's, every call can be replayed, bounds hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from samples.train_cases import case_of, differences, quietly

from e2e.aten import flops
from e2e.data.datasets.synthetic import Synthetic
from e2e.networks import find
from e2e.prediction.host_speed import host_speed_of
from e2e.prediction.op_timer.cuda_graph import graph_of
from e2e.prediction.op_timer.op_costs import CallTimer, key_of
from e2e.prediction.op_timer.store import Store
from e2e.prediction.predictor import Predictor
from e2e.prediction.trace.fake_trace import trace, trace_real
from e2e.prediction.trace.recorder import kind
from e2e.training.arms import Arms, Task
from e2e.training.step_timer import busy_time
from kernels.case import Target

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
    """Of all tests here: what a prediction calibrates, it calibrates once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Store({"name": "a GPU"}, {})


@pytest.mark.parametrize(("name", "settings"), ARMS, ids=str)
def test_the_trace_is_that_of_a_real_step(name: str, settings: dict[str, object]) -> None:
    network = find(name)
    case = case_of(network, 8, **settings)
    fake, real = (record(network, case, DEVICE, CLASSES) for record in (trace, trace_real))
    assert [op.call.name for op in fake.ops] == [op.call.name for op in real.ops]
    # cuDNN says how much batch-norm reserves; fake tensors say nothing.
    unlike = [line for line in differences(fake, real) if "batch_norm" not in line]
    assert [line for line in unlike if "freed" not in line] == []
    assert [(op.phase, op.layer) for op in fake.ops] == [(op.phase, op.layer) for op in real.ops]


@pytest.mark.parametrize(("name", "settings"), ARMS, ids=str)
def test_every_call_is_replayed_and_none_beats_the_card(
    name: str, settings: dict[str, object], target: Target, store: Store
) -> None:
    network = find(name)
    traced = trace(network, case_of(network, 8, **settings), DEVICE, CLASSES)
    times = CallTimer(target, store, host_speed_of(DEVICE)).times(traced)
    assert times.problems == {}
    for op in traced.ops:
        if kind(op) == "view":
            continue
        time = times.known[key_of(traced.case, op)]
        assert time.gpu_s > 0, op.call.name
        assert time.host_s > 0
        assert time.scratch_bytes >= 0
        assert 0 <= time.conversion_s <= time.gpu_s
        # Kernels are seen in both threads.
        assert time.busy_s is not None
        assert 0 <= time.busy_s <= time.gpu_s
        assert (flops(op.call) or 0) / time.gpu_s < FASTEST_FLOP_PER_S


@pytest.mark.alone
def test_tf32s_products_are_measured_in_tf32(target: Target, store: Store) -> None:
    network, gpu_s = find("resnet18"), dict[str, float]()
    for recipe in ("fp32", "tf32"):
        traced = trace(network, case_of(network, 64, recipe=recipe), DEVICE, CLASSES)
        times = CallTimer(target, store, host_speed_of(DEVICE)).times(traced).known
        keys = {key_of(traced.case, op) for op in traced.ops if kind(op) == "product"}
        gpu_s[recipe] = sum(times[key].gpu_s for key in keys)
    assert gpu_s["fp32"] > 1.5 * gpu_s["tf32"]


def test_layout_changes_inside_convolutions_are_seen(target: Target, store: Store) -> None:
    network = find("resnet18")
    found: dict[str, float] = {}
    for layout in ("nchw", "nhwc"):
        traced = trace(network, case_of(network, 32, recipe="amp", layout=layout), DEVICE, CLASSES)
        times = CallTimer(target, store, host_speed_of(DEVICE)).times(traced)
        found[layout] = sum(
            times.known[key_of(traced.case, op)].conversion_s
            for op in traced.ops
            if kind(op) == "product"
        )
    assert found["nchw"] > 5 * found["nhwc"]


def test_peak_memory_is_near_that_of_a_training(target: Target, store: Store) -> None:
    network = find("resnet18")
    case = case_of(network, 64, recipe="amp", layout="nhwc")
    predictor = Predictor(network, target, CLASSES, store, allow_run=False)
    told = predictor.predict(case, quietly)
    assert told.predicted is not None
    data = Synthetic(network.input, CLASSES)
    arms = Arms(Task(network, data, 1), target)
    (training,) = arms.set_up([case], quietly)
    arms.close()
    assert training.memory_peak_bytes is not None
    assert told.predicted.memory_bytes == pytest.approx(training.memory_peak_bytes, rel=0.1)
    before = torch.cuda.memory_allocated()
    predictor.predict(replace(case, batch=32), quietly)
    assert torch.cuda.memory_allocated() - before < 2**20, "a prediction leaves no memory behind"


@pytest.mark.parametrize("recipe", ["tf32", "amp"])
def test_the_graph_of_a_steps_calls_has_their_kernels_and_no_others(
    recipe: str, target: Target, store: Store
) -> None:
    network = find("resnet18")
    case = case_of(network, 8, recipe=recipe, layout="nhwc", graph=True)
    traced = trace(network, case, DEVICE, CLASSES)
    calls = CallTimer(target, store, host_speed_of(DEVICE))
    known = calls.times(traced).known
    found = (known.get(key_of(traced.case, op)) for op in traced.ops)
    alone = sum(time.kernels for time in found if time is not None and time.gpu_s)
    counted = calls.counted(traced, known)  # the graph writes to their arguments
    graph = graph_of(counted, DEVICE)
    assert busy_time(graph.replay)[1] == pytest.approx(alone, abs=3)
