"""Which kernels of a profile belong to which call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch

from e2e.prediction.op_timer import kernel_profile as kernels_seen
from e2e.prediction.op_timer.cuda import CudaStopwatch, _TriedCall
from e2e.prediction.op_timer.kernel_profile import GATE, MARK, TIMES, TOGETHER, kernels_of
from e2e.prediction.op_timer.launch_times import backward_thread, forward_thread
from e2e.prediction.op_timer.op_timer import PlacedCall
from kernels.aten import Replay
from microbench.device.profiler import KernelTime


def seen(*names: str) -> list[KernelTime]:
    return [KernelTime(name, 1e-6, i * 1e-6) for i, name in enumerate(names)]


def test_kernels_belong_to_the_call_whose_mark_is_before_them() -> None:
    """Two behind a gate that ends with two marks, then one that waits, then nobody's."""
    profile = seen(
        "fill", "gate", MARK, "x", "y", MARK, "z", MARK, MARK, "copy", MARK, "w", MARK, "fill"
    )
    found = kernels_of(profile, ["a", "b", None, None, "c", None])
    names = {owner: [kernel.name for kernel in kernels] for owner, (kernels,) in found.items()}
    assert names == {"a": ["x", "y"], "b": ["z"], "c": ["w"]}


def test_of_a_profile_that_begins_late_what_came_last_is_known_and_of_a_wrong_one_nothing() -> None:
    late = seen("y", MARK, "z", MARK)
    assert kernels_of(late, ["a", "b", None]) == {"b": [[late[2]]]}
    assert kernels_of([], ["a"]) == {}
    assert kernels_of(seen(MARK, "x", MARK), ["a"]) == {}, "a mark without a launch"


class Profiled:
    """Instruments and a profiler that note names instead of running kernels."""

    gate_expired = False

    def __init__(self) -> None:
        self.names: list[str] = []

    def launch_empty(self) -> None:
        self.names.append(MARK)

    def close_gate(self) -> None:
        self.names.append(GATE)

    def open_gate(self) -> None:
        """Nothing runs."""

    def record(self, launch: Callable[[], object]) -> list[KernelTime]:
        self.names.clear()
        launch()
        return seen(*self.names)


def call(
    device: Profiled, kernels: int, *, backward: bool = False, waits: bool = False
) -> _TriedCall:
    launch = partial(device.names.extend, [f"kernel of {kernels}"] * kernels)
    replay = Replay(launch, False, lambda: None, (), {}, launch)
    return _TriedCall(
        PlacedCall(replay, (0,), frozenset((0,) if backward else ())), 0.0, 0.0, 0, waits
    )


def test_every_call_has_its_own_kernels_in_both_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than one gate is for, and some that hold the host."""
    device = Profiled()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(kernels_seen, "record", device.record)
    stopwatch = CudaStopwatch.__new__(CudaStopwatch)
    stopwatch._instruments = cast("Any", device)
    stopwatch._threads = (forward_thread, backward_thread(torch.device("cpu")))
    met = [
        call(device, number, backward=number % 3 == 0, waits=number % 40 == 0)
        for number in range(1, 2 * TOGETHER + 30)
    ]
    stopwatch._profile_kernels(met)
    for number, one in enumerate(met, 1):
        assert one.kernels == number
        assert one.busy_s == pytest.approx(number * 1e-6)
    assert device.names.count(GATE) == TIMES * (2 + 1)
