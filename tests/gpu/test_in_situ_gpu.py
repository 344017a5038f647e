"""Calls that cannot be launched alone, timed in real steps on a GPU."""

from __future__ import annotations

import math

import pytest
import torch
from samples.planted_networks import CYCLES, Picking, Recurring, Undecided, network_of
from samples.train_cases import case_of, quietly

from e2e.predict.host_speed import host_speed_of
from e2e.predict.op_timer.cuda import CudaStopwatch
from e2e.predict.op_timer.store import Store
from e2e.predict.predictor import Predictor
from kernels.case import Target

pytestmark = pytest.mark.gpu

DEVICE, CLASSES = torch.device("cuda:0"), 4
PICKED = "halfway_tests.slowly_picked.default"
HIGHEST_HZ = 3e9  # more than any GPU's clock


@pytest.fixture(scope="module")
def target() -> Target:
    facts = torch.cuda.get_device_properties(0)
    return Target(
        "cuda", facts.name, (facts.major, facts.minor), facts.multi_processor_count, index=0
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One for all: what the host does beside calls is learnt once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return Store({"name": "a GPU"}, {})


def test_a_call_that_spins_is_the_devices_not_the_hosts(target: Target, store: Store) -> None:
    network = network_of(Picking, 2)
    asked = Predictor(network, target, CLASSES, store, allow_run=True)
    told = asked.predict(case_of(network), quietly)
    assert told.predicted is not None
    assert told.simulated is not None
    assert told.predicted.uncovered == ()
    picked = [op for op in told.ops if op.name == PICKED]
    assert len(picked) == 2
    for op in picked:
        assert op.gpu_s > CYCLES / HIGHEST_HZ
        assert 0 < op.host_s < op.gpu_s
        assert not op.waits
        assert op.busy_s is not None
        assert CYCLES / HIGHEST_HZ < op.busy_s <= op.gpu_s
        assert op.kernels >= 2  # it spins, then picks
    rest_s = math.fsum(op.device_s for op in told.ops if op.name != PICKED)
    assert told.simulated.gpu_s == pytest.approx(rest_s + sum(op.gpu_s for op in picked))
    assert told.predicted.limit == "gpu"


def test_a_captured_step_has_it_beside_its_graph(target: Target, store: Store) -> None:
    network = network_of(Picking)
    asked = Predictor(network, target, CLASSES, store, allow_run=True)
    told = asked.predict(case_of(network, graph=True), quietly)
    assert told.predicted is not None, told.reason
    assert told.predicted.from_step
    (picked_s,) = (op.gpu_s for op in told.ops if op.name == PICKED)
    assert picked_s > CYCLES / HIGHEST_HZ
    (graph,) = asked._graphs.values()
    assert told.predicted.step_s == pytest.approx(graph.step_s + picked_s, rel=1e-3)


def test_what_waits_for_the_device_is_known_to(target: Target, store: Store) -> None:
    network = network_of(Undecided)
    asked = Predictor(network, target, CLASSES, store, allow_run=True)
    told = asked.predict(case_of(network), quietly)
    assert told.predicted is not None, told.reason
    assert told.predicted.uncovered == ()
    masked = [op for op in told.ops if op.name == "aten.index.Tensor" and op.waits]
    assert masked  # its size is read by the host
    for op in masked:
        assert op.busy_s == op.gpu_s < op.host_s  # what no kernel runs in is the host's
    assert all(op.gpu_s > 0 for op in told.ops if op.kind != "view")
    assert told.predicted.limit == "host"
    refused = asked.predict(case_of(network, graph=True), quietly)
    assert refused.predicted is None
    assert "waits for the device" in (refused.reason or "")


@pytest.mark.parametrize("recipe", ["fp32", "amp"])
def test_a_recurrent_network_is_recorded_from_a_real_step(
    target: Target, store: Store, recipe: str
) -> None:
    """cuDNN's layers ask where their weights lie, which fake ones do not."""
    network = network_of(Recurring)
    case = case_of(network, recipe=recipe)
    told = Predictor(network, target, CLASSES, store, allow_run=False).predict(case, quietly)
    assert told.predicted is None
    assert "--allow-run records a real step" in (told.reason or "")
    told = Predictor(network, target, CLASSES, store, allow_run=True).predict(case, quietly)
    assert told.predicted is not None, told.reason
    assert any("recorded from a real step" in note for note in told.notes)
    assert told.predicted.uncovered == ()
    layers = {op.name: op for op in told.ops if "_cudnn_rnn" in op.name}
    assert set(layers) == {"aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default"}
    assert all(op.gpu_s > 0 and op.host_s > 0 for op in layers.values())


def test_once_gives_what_it_runs_and_leaves_the_gate_open(target: Target) -> None:
    stopwatch = CudaStopwatch(target, host_speed_of(DEVICE))
    some = torch.arange(8, device=DEVICE)
    out, taken = stopwatch.once(lambda: some + 1, waits=False)
    assert taken is not None
    assert out.tolist() == list(range(1, 9))
    total, taken = stopwatch.once(lambda: some.sum().item(), waits=False)
    assert (total, taken) == (28, None)
    total, taken = stopwatch.once(lambda: some.sum().item(), waits=True)
    assert total == 28
    assert taken is not None
    assert taken.waits
    assert taken.gpu_s > 0
