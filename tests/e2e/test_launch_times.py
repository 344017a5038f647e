"""Calls are launched in the step's order, each in the thread that launches it in a training."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from e2e.aten import Call, Pool, TensorSpec, materialise
from e2e.prediction.op_timer.launch_times import (
    backward_thread,
    by_thread,
    forward_thread,
    in_backward,
    in_order,
)
from e2e.prediction.op_timer.op_timer import PlacedCall
from e2e.training.step_timer import busy_time

CPU = torch.device("cpu")


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=20))
def test_launches_come_in_the_step_s_order_and_each_in_its_thread(
    step: list[tuple[int, bool]],
) -> None:
    """A step of some launches: which call, and whether in the backward pass."""
    call = Call("aten.relu.default", (TensorSpec((2,), (1,), "float32", "cpu"),))
    replay = materialise(call, CPU, Pool(CPU))
    kinds = sorted({which for which, _ in step})
    places = {kind: [i for i, (which, _) in enumerate(step) if which == kind] for kind in kinds}
    calls = [
        PlacedCall(replay, tuple(at), frozenset(i for i in at if step[i][1]))
        for at in places.values()
    ]
    launches = in_order(calls)
    assert [(kinds[one.which], one.backward) for one in launches] == step
    threads = (forward_thread, backward_thread(CPU))
    rows = list(by_thread(launches, lambda launch: launch.backward, threads))
    assert [one for _, some in rows for one in some] == launches
    assert all(within is threads[one.backward] for within, some in rows for one in some)


def test_work_gives_what_it_gives_and_keeps_no_gradients() -> None:
    for within in (forward_thread, backward_thread(CPU)):
        assert within(lambda: [1, 2]) == [1, 2]
        assert within(lambda: None) is None
    with torch.no_grad():
        assert backward_thread(CPU)(torch.is_grad_enabled) is False


def test_what_the_work_raises_is_raised() -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        backward_thread(CPU)(fail)


def test_work_can_be_made_ready_and_run_later() -> None:
    runs: list[int] = []
    run = in_backward(lambda: runs.append(threading.get_ident()) or "done", CPU)
    assert runs == []
    assert run() == "done"
    assert len(runs) == 1


@pytest.mark.gpu
def test_it_is_the_thread_of_a_training() -> None:
    device = torch.device("cuda:0")
    seen: list[int] = []
    weight = torch.ones(3, device=device, requires_grad=True)
    weight.register_hook(lambda grad: seen.append(threading.get_ident()))
    weight.square().sum().backward()
    assert seen == [backward_thread(device)(threading.get_ident)]
    assert seen != [forward_thread(threading.get_ident)]


@pytest.mark.gpu
def test_running_it_launches_nothing_on_the_stream_that_it_was_made_on() -> None:
    """A graph of it holds what the work launches, from the thread of a training."""
    device = torch.device("cuda:0")
    stream, value, seen = torch.cuda.Stream(device), torch.zeros((), device=device), list[int]()

    def work() -> None:
        seen.append(threading.get_ident())
        value.add_(1)

    with torch.cuda.stream(stream):
        run = in_backward(work, device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        run()
    graph.replay()
    assert value.item() == 1
    assert seen != [threading.get_ident()]
    assert busy_time(graph.replay)[1] == 1
