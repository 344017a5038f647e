"""A step recorded without running it is the step that runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from samples.train_cases import Undecided, case_of, differences, network_of
from torch import nn

from e2e.case import TrainCase
from e2e.networks import find
from e2e.networks.network import Network
from e2e.prediction.trace.fake_trace import CannotTrace, Trace, trace, trace_real

CPU = torch.device("cpu")
CLASSES = 10
ARMS: list[dict[str, object]] = [
    {"recipe": "fp32", "layout": "nhwc", "fused": False},
    {"recipe": "amp", "layout": "nhwc", "loss_scale": 256.0},
    {"recipe": "bf16", "keep_batchnorm_fp32": True},
    {"recipe": "fp32", "accumulate": 3, "label_smoothing": 0.1},
    {"recipe": "amp-bf16", "optimizer": "adamw", "graph": True},
    {"recipe": "O2", "optimizer": "adam", "fused": False},
]


def traced(name: str, batch: int = 8, **settings: object) -> Trace:
    network = find(name)
    return trace(network, case_of(network, batch, **settings), CPU, CLASSES)


def both(network: Network, case: TrainCase) -> tuple[Trace, Trace]:
    """A step that never runs and one that does: they are the same calls, results, phases, and
    memory.
    """
    fake, real = (record(network, case, CPU, CLASSES) for record in (trace, trace_real))
    assert differences(fake, real) == []
    assert fake.held_bytes == real.held_bytes
    return fake, real


@pytest.mark.parametrize("settings", ARMS, ids=str)
def test_the_calls_are_those_of_a_real_step(settings: dict[str, object]) -> None:
    network = find("cnn-cifar")
    both(network, case_of(network, 2, **settings))


def test_a_decoder_s_too() -> None:
    network = find("gpt-tiny")
    both(network, case_of(network, 2))


def test_phases_come_in_order_and_hold_what_they_are_called_for() -> None:
    ops = traced("cnn-cifar").ops
    phases = list(dict.fromkeys(op.phase for op in ops))
    assert phases == [
        p for p in ("data", "copy", "forward", "backward", "optimizer") if p in phases
    ]
    names = {phase: {op.call.name for op in ops if op.phase == phase} for phase in phases}
    assert "aten.convolution.default" in names["forward"]
    assert "aten.convolution_backward.default" in names["backward"]
    assert "aten._fused_sgd_.default" in names["optimizer"]


def test_a_batch_beyond_any_memory_is_traced() -> None:
    assert traced("cnn-cifar", 10_000_000).peak_bytes() > 1e12


def test_recurrent_layers_of_a_gpu_are_not_traced() -> None:
    """cuDNN's ask where weights lie; a CPU's are traced like others."""
    network = replace(
        find("cnn-cifar"), input=(3, 2, 2),
        build=lambda: nn.Sequential(nn.Flatten(2), nn.LSTM(4, 2)),
        loss=lambda output, target, smoothing: output[0].float().square().mean(),
    )  # fmt: skip
    case = case_of(network)
    with pytest.raises(CannotTrace, match="recurrent"):
        trace(network, case, torch.device("cuda"), CLASSES)
    assert trace(network, case, CPU, CLASSES).ops


@pytest.mark.parametrize(("reads", "named"), [(False, "DynamicOutput"), (True, "DataDependent")])
def test_a_network_that_fake_tensors_cannot_follow_says_so(reads: bool, named: str) -> None:
    network = network_of(Undecided, reads)
    case = case_of(network)
    with pytest.raises(CannotTrace, match=named):
        trace(network, case, CPU, CLASSES)
    assert trace_real(network, case, CPU, CLASSES).ops
