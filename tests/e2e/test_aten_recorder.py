"""Where the calls of a step come from: module, pass and autograd node."""

from __future__ import annotations

import pytest
import torch
from samples.launching import Checkpointed, Recorded, Recorder
from torch import Tensor, nn


def stepped(net: nn.Module, x: Tensor) -> list[Recorded]:
    with Recorder() as recorder, recorder.following(net):
        net(x).sum().backward()
    return recorder.ops


def products(ops: list[Recorded]) -> list[tuple[str, bool]]:
    """Of each GEMM, its module and whether it is a backward call."""
    return [(op.origin.module, op.origin.backward) for op in ops if "mm" in op.call.operator]


def test_a_backward_call_is_its_layer_s() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 2)))
    ops = stepped(net, torch.randn(5, 4, requires_grad=True))
    assert products(ops) == [
        ("0", False), ("1.1", False), ("1.1", True), ("1.1", True), ("0", True), ("0", True),
    ]  # fmt: skip
    (relu,) = (op for op in ops if op.call.operator == "threshold_backward")
    assert relu.origin.module == "1.0"
    (total,) = (op for op in ops if op.call.operator == "sum" and not op.origin.backward)
    assert total.origin.module == ""


def test_a_backward_call_has_the_node_of_its_forward_call() -> None:
    ops = stepped(nn.Linear(4, 6), torch.randn(5, 4))
    nodes = [op.origin.node for op in ops if "mm" in op.call.operator]
    assert len(nodes) == 2
    assert nodes[0] == nodes[1]


def test_a_new_node_is_one_that_autograd_makes() -> None:
    x, weight = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    with Recorder() as recorder:
        x @ x
        y = x @ weight
        with torch.no_grad():
            y @ weight
        y.sum().backward()
    forward = [op.origin.new_node for op in recorder.ops if not op.origin.backward]
    assert forward[:4] == [False, True, False, True]
    assert not any(op.origin.new_node for op in recorder.ops if op.origin.backward)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_runs_again_is_a_forward(reentrant: bool) -> None:
    net = Checkpointed(reentrant)
    ops = stepped(net, torch.randn(5, 4, requires_grad=True))
    forward = [("block.0", False), ("block.2", False)]
    backward = [("block.2", True)] * 2 + [("block.0", True)] * 2
    head = [("head", False), ("head", True), ("head", True)]
    assert products(ops) == [*forward, *head, *forward, *backward]


def test_a_module_that_raises_has_been_left() -> None:
    class Breaking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("it broke")

    net = nn.Sequential(Breaking())
    with Recorder() as recorder:
        with pytest.raises(ValueError, match="it broke"), recorder.following(net):
            net(torch.ones(2))
        torch.ones(2).exp()
    assert {op.origin.module for op in recorder.ops} == {""}


def test_marks_of_ranges_are_no_calls() -> None:
    with Recorder() as recorder, torch.profiler.record_function("step"):
        torch.ones(2)
    assert [op.call.operator for op in recorder.ops] == ["ones"]
