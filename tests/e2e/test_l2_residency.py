"""What a step finds in the device's cache, and calls that are measured without finding it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.train_cases import case_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from e2e.networks import find
from e2e.prediction.host_speed import ConstantSpeed
from e2e.prediction.op_timer.op_costs import CallTimer
from e2e.prediction.op_timer.store import Store
from e2e.prediction.trace.fake_trace import Trace
from e2e.prediction.trace.recorder import LEAST_COLD, WIDE, Cache, Recorder, TracedOp, cache_bytes
from kernels.aten import WARM, Cold, Pool, Replay, describe, materialise, reserve
from kernels.aten.arena import MOST_TURNS, Held
from kernels.case import Target

CPU = torch.device("cpu")
ATEN = torch.ops.aten
MB = 2**20
SIZES = st.lists(st.integers(1, 60), min_size=10, max_size=10)
TOUCHES = st.lists(st.integers(0, 9), max_size=60)


@given(SIZES, TOUCHES)
def test_what_was_touched_last_is_held_up_to_the_size(sizes: list[int], touches: list[int]) -> None:
    cache = Cache(100)
    order: list[int] = []
    for storage in touches:
        cache.touch(storage, sizes[storage])
        order = [each for each in order if each != storage] + [storage]
        held, total = set[int](), 0
        for each in reversed(order):
            total += sizes[each]
            if total > 100:
                break
            held.add(each)
        assert {each for each in order if cache.holds(each)} == held


def test_of_a_storage_that_is_read_in_part_the_rest_stays() -> None:
    cache = Cache(100)
    cache.touch(1, 90, new_of=7)
    cache.touch(1, 5)
    cache.touch(2, 90)
    assert not cache.holds(1)
    assert cache.written_back == {7}


def test_a_result_goes_to_memory_when_it_leaves_the_cache_and_not_when_it_is_freed() -> None:
    cache = Cache(100)
    cache.touch(1, 40, new_of=11)
    cache.touch(2, 40, new_of=12)
    cache.touch(1, 40)
    cache.forget(2)
    assert not cache.holds(2)
    cache.touch(3, 60)
    assert cache.written_back == set()
    cache.touch(4, 1)
    assert cache.written_back == {11}
    cache.begin()
    assert cache.written_back == set()


def test_what_is_larger_than_the_cache_leaves_nothing_there() -> None:
    cache = Cache(100)
    cache.touch(1, 40)
    cache.touch(2, 101, new_of=5)
    assert not cache.holds(1)
    assert not cache.holds(2)
    assert cache.written_back == {5}


def test_a_cpu_s_calls_are_not_told_apart_by_its_cache() -> None:
    assert cache_bytes(CPU) == 0


def rows(mb: int) -> Tensor:
    return torch.ones(mb, MB // 4)


def step(first: Tensor, second: Tensor) -> list[Tensor]:
    kept = first * 2  # let go before it is read again
    brief = second + 1
    del brief
    other = second.exp()
    return [kept + 1, other]


def recorded(cache_mb: float) -> list[TracedOp]:
    """Two steps of `step`, of which the second one counts."""
    recorder = Recorder("cpu", cache_bytes=int(cache_mb * MB))
    first, second = rows(4), rows(3)
    recorder.hold(iter((first, second)))
    with recorder:
        step(first, second)
        recorder.begin()
        step(first, second)
    return list(recorder.end())


def test_a_recording_notes_what_the_cache_does_not_hold() -> None:
    # Since `first` was read last, 13 MB were touched; since `second` was, itself and `brief`.
    mul, add, exp, last = recorded(12)
    assert [op.call.operator for op in (mul, add, exp, last)] == ["mul", "add", "exp", "add"]
    assert [mul.cold.arguments, exp.cold.arguments] == [(0,), ()]
    assert [op.cold.results for op in (add, exp)] == [False, False]
    mul, _, _, last = recorded(6)
    assert mul.cold.results, "it leaves the cache, and comes back"
    assert last.cold.arguments == (0,)
    wider = 6 / WIDE - 0.1  # such calls do not find the launch before in the cache either
    for cache_mb in (0, 1000, wider):
        assert all(not op.cold for op in recorded(cache_mb))
    assert recorded(0)[0].cold.key == ""


def one_call(cache_mb: float, launch: Callable[[], object], *held: Tensor) -> TracedOp:
    recorder = Recorder("cpu", cache_bytes=int(cache_mb * MB))
    recorder.hold(iter(held))
    with recorder:
        launch()
    return recorder.end()[-1]


def test_parts_of_a_storage_count_together_and_an_argument_passed_twice_once() -> None:
    joined = torch.ones(3, 2 * MB // 4)
    a, b, c = joined.unbind()
    op = one_call(6, lambda: (torch.stack((a, b, c)).exp(), a.neg()), joined)
    assert op.cold.arguments == (0,)  # 6 of `joined`, then 6 and 6: nothing of it is left
    assert one_call(1, lambda: rows(1) * 1, joined).cold.arguments == ()
    x = rows(2)
    assert one_call(1.5, lambda: x.mul(x), x).cold.arguments == (0, 1)  # 4 MB, not 6


def test_what_a_call_writes_stays_where_it_is_and_is_not_named() -> None:
    x, y = rows(2), rows(2)
    assert one_call(3, lambda: x.add_(y), x, y).cold.arguments == (1,)
    assert one_call(3, lambda: x.relu_(), x).cold == WARM


def test_gaps_between_rows_are_not_touched() -> None:
    """So as many turns are needed as without them."""
    joined = torch.empty(64, 4, 32)
    cold = Cold((0,), cache_bytes=64 * 32 * 4)
    pool = Pool(CPU)
    call = describe(ATEN.exp.default, (joined[:, 0],), {})
    materialise(call, CPU, pool, cold)
    assert pool.bytes >= 4 * (joined.numel() - 3 * 32) * 4


def exp_op(cold: Cold = WARM) -> TracedOp:
    call = describe(ATEN.exp.default, (rows(2),), {})
    return TracedOp(call, (), "", "", False, False, 0, 0, cold)


def timer_and_step(store: Store, *ops: TracedOp) -> tuple[CallTimer, Trace]:
    traced = Trace(case_of(find("cnn-cifar")), ops, 0, 0, 0, 0, fake=True)
    return CallTimer(Target("cpu", "a CPU"), store, ConstantSpeed()), traced


def test_a_distant_call_is_another_and_is_measured_as_such(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Cold] = []
    told_apart: list[list[tuple[int, ...]]] = []

    def watched(*given: Any, apart: Sequence[tuple[int, ...]]) -> Replay:
        seen.append(given[-1])
        told_apart.append(list(apart))
        return materialise(*given, apart=apart)

    monkeypatch.setattr("e2e.prediction.op_timer.op_costs.materialise", watched)
    far = Cold((0,), cache_bytes=4 * MB)
    calls, traced = timer_and_step(empty_store, exp_op(), exp_op(far), exp_op(Cold(small=(0,))))
    known = calls.times(traced).known
    assert len(known) == 2
    assert set(seen) == {WARM, far}
    assert told_apart == [[], []]
    calls.counted(traced, known)
    assert sorted(told_apart[2:]) == [[()], [(), (0,)]], "launch by launch"


def test_a_step_that_has_no_room_for_a_call_is_no_step(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, apart: Sequence[object]) -> Replay:
        if apart:
            raise torch.OutOfMemoryError("planted")
        return materialise(*given)

    monkeypatch.setattr("e2e.prediction.op_timer.op_costs.materialise", full)
    calls, traced = timer_and_step(empty_store, exp_op())
    known = calls.times(traced).known
    assert len(known) == 1
    with pytest.raises(RuntimeError, match=r"aten\.exp\.default, among the others: it alone needs"):
        calls.counted(traced, known)


def test_small_arguments_that_the_cache_does_not_hold_are_another_thing() -> None:
    """A call on them alone is no other one: they are told apart only among a step's launches."""
    recorder = Recorder("cpu", cache_bytes=4 * MB)
    small = torch.ones(LEAST_COLD // 4 - 1)
    recorder.hold(iter((small,)))
    with recorder:
        torch.exp(small)
        torch.neg(small)
    first, again = recorder.end()
    assert not first.cold
    assert first.cold.key == ""
    assert first.cold.small == (0,)
    assert again.cold == WARM, "the first call has just read them"


class Pointers(TorchDispatchMode):
    """Where the tensors of each launch lie."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        pointers = [leaf.data_ptr() for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        if pointers:  # else it is a note for the profiler
            self.seen.append(pointers)
        return func(*args, **(kwargs or {}))


def launched(replay: Replay, times: int) -> tuple[list[list[int]], list[int]]:
    """The pointers of so many launches of a step, and of one alone after them."""
    with Pointers() as watch:
        for _ in range(times):
            replay.launch_cold()
        replay.launch()
    return watch.seen[:-1], watch.seen[-1]


@pytest.mark.parametrize("arguments", [(), (2,)])
def test_each_launch_of_a_step_has_small_distant_arguments_of_its_own(
    arguments: tuple[int, ...],
) -> None:
    x, y = torch.empty(1024), torch.empty(1024)
    call = describe(ATEN._foreach_add_.List, ([x, y], [x.clone(), y.clone()]), {})
    cold = Cold(arguments, cache_bytes=2**13)
    pool = Pool(CPU)
    (once,), _ = launched(materialise(call, CPU, pool, cold), 1)
    replay = materialise(call, CPU, pool, cold, apart=[(1, 3), (1, 3), (1,)])
    step, alone = launched(replay, 6)
    assert alone == once, "alone all are alike"
    assert step[:3] == step[3:], "the next step has what the one before had"
    for place, count in ((1, 3), (3, 2)):
        own = {launch[place] for launch in step[:count]}
        assert len(own) == count
        assert alone[place] not in own
    assert step[2][3] == alone[3], "which the third launch finds in the cache"
    assert {launch[0] for launch in step} == {alone[0]}, "written, and not small: where it was"
    turns = {launch[2] for launch in step}
    assert (len(turns) > 1) is bool(arguments), "larger ones take their turns as ever"


def test_arguments_with_rules_of_their_own_stay_where_they_are() -> None:
    """What an embedding looks up must be indices."""
    tables = torch.empty(8, 4), torch.zeros(3, dtype=torch.long)
    call = describe(ATEN.embedding.default, tables, {})
    (first, second), _ = launched(materialise(call, CPU, Pool(CPU), apart=[(0, 1), (0, 1)]), 2)
    assert first[0] != second[0]
    assert first[1] == second[1]


def test_memory_of_its_own_is_no_more_than_an_argument_fills() -> None:
    """A column of a large matrix, of which each launch would have one."""
    call = describe(ATEN.exp.default, (torch.empty(1000, 1000)[:, 0],), {})
    step, alone = launched(materialise(call, CPU, Pool(CPU), apart=[(0,), (0,)]), 2)
    assert {launch[0] for launch in step} == {alone[0]}


def test_eight_bit_values_may_lie_in_any_order() -> None:
    columns = torch.zeros(16, 32, dtype=torch.float8_e4m3fn).t()
    call = describe(ATEN._to_copy.default, (columns,), {"dtype": torch.float32})
    (own,), alone = launched(materialise(call, CPU, Pool(CPU), apart=[(0,)]), 1)
    assert own[0] != alone[0]


@pytest.mark.parametrize("arguments", [(), (0,), (1,), (0, 1)])
def test_distant_arguments_take_turns_and_the_others_stay(arguments: tuple[int, ...]) -> None:
    call = describe(ATEN.mm.default, (torch.empty(64, 128), torch.empty(128, 32)), {})
    cold = Cold(arguments, cache_bytes=64 * 128 * 4)
    pool = Pool(CPU)
    reserve([(call, cold)], pool)
    reserved = pool.bytes
    replay = materialise(call, CPU, pool, cold)
    assert pool.bytes == reserved
    step, alone = launched(replay, 20)
    seen = [(first, second) for first, second in (*step, alone)]
    for place in (0, 1):
        places = {pair[place] for pair in seen}
        assert (len(places) > 1) is (place in arguments)
    sizes = (64 * 128 * 4, 128 * 32 * 4)
    turn = sum(sizes[i] for i in arguments)
    if arguments:
        assert len(set(seen)) * turn > 2 * cold.cache_bytes
    areas = sorted((pair[i], pair[i] + sizes[i]) for pair in set(seen) for i in arguments)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(areas))
    assert seen[-1] == seen[0]


def test_distant_results_do_not_lie_where_the_last_ones_did() -> None:
    call = describe(ATEN.exp.default, (torch.empty(1024),), {})
    cold = Cold((), results=True, cache_bytes=3 * 4096)
    pool = Pool(CPU)
    replay = materialise(call, CPU, pool, cold)
    for _ in range(30):
        replay.launch_cold()
    held = [result for result, _ in pool.held._results]
    pointers = {tensor.data_ptr() for tensor in held if isinstance(tensor, Tensor)}
    assert len(pointers) == len(held) == 12  # four caches, no more


def test_one_result_larger_than_all_is_held_alone() -> None:
    held = Held()
    for _ in range(3):
        held.hold((torch.ones(100), None), 8)
    assert len(held._results) == 1


def test_turns_are_bounded() -> None:
    assert Cold((0,), cache_bytes=10**9).turns(1) == MOST_TURNS
    assert Cold((0,), cache_bytes=10).turns(10**6) == 1
    assert Cold((1,), True, 10).key == "distant 1,results"
