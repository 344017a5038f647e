"""Times of calls launched alone: which kernels are whose, and which calls have no time."""

from __future__ import annotations

import pytest
import torch

from e2e.aten import Call, TensorSpec, describe
from e2e.prediction.timer import ROUNDS, CallTime, PlacedCall, kernels_of, launch_s, time_calls
from kernels.case import Target
from microbench.device.profiler import KernelTime

CPU = Target("cpu", "a CPU")


def seen(*names: str) -> list[KernelTime]:
    return [KernelTime(name, 1e-6, i * 1e-5) for i, name in enumerate(names)]


def test_kernels_belong_to_the_mark_before_them() -> None:
    found = kernels_of(seen("lost", "empty", "a", "b", "empty", "c", "empty", "fill"), [1, 2, None])
    assert {owner: [[k.name for k in row] for row in rows] for owner, rows in found.items()} == {
        1: [["a", "b"]], 2: [["c"]],
    }  # fmt: skip


def test_a_profile_that_begins_late_loses_the_first_marks() -> None:
    found = kernels_of(seen("a", "empty", "c", "empty", "d"), [1, 2, 1])
    assert {owner: len(rows) for owner, rows in found.items()} == {2: 1, 1: 1}
    assert kernels_of(seen("empty", "a", "empty"), [1]) == {}, "marks of somebody else"


def test_a_launch_is_what_its_kernels_run_but_for_the_first_that_finds_another_cache() -> None:
    rows = [KernelTime("k", s, 10.0 * i) for i, s in enumerate([9, 9, 1, 2, 3, 4])]
    assert launch_s(rows, 3) == (1 + 2 + 3 + 4) / 2
    assert launch_s(rows, 1) == 28
    assert launch_s(rows[:5], 3) == pytest.approx(24 / 3), "a kernel was lost"
    beside = [KernelTime("k", 2.0, 0.0), KernelTime("k", 2.0, 1.0)]
    assert launch_s(beside, 1) == 3.0, "kernels that overlap count once"


def test_calls_have_times_or_reasons_in_order() -> None:
    x = torch.ones(64, 64)
    product = describe(torch.ops.aten.mm.default, (x, x), {})
    calls = [
        PlacedCall(product, 3),
        PlacedCall(Call("aten.nonzero.default", product.args[:1])),
        PlacedCall(product, backward=True),
        PlacedCall(Call("aten.mm.default", (TensorSpec((2, 3), (3, 1), "float32", "cpu"),) * 2)),
    ]
    times = time_calls(CPU, calls)
    first, unknown, backward, wrong = times
    for time in (first, backward):
        assert isinstance(time, CallTime)
        assert len(time.times_s) == ROUNDS
        assert min(time.times_s) > 0
    assert unknown == "the shape of its output depends on data"
    assert isinstance(wrong, str)
    assert "\n" not in wrong
    assert time_calls(CPU, []) == []


def test_a_call_of_the_backward_pass_is_launched_by_autograd() -> None:
    library = torch.library.Library("halfway_timer", "DEF")
    library.define("note(Tensor x) -> Tensor")
    nodes: list[object] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        nodes.append(torch._C._current_autograd_node())
        return x * 2

    library.impl("note", note, "CPU")
    spec = TensorSpec((3,), (1,), "float32", "cpu")
    call = Call("halfway_timer.note.default", (spec,))
    (found,) = time_calls(CPU, [PlacedCall(call, backward=True)])
    assert isinstance(found, CallTime)
    assert nodes[0] is not None
