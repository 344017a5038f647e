"""What a step finds in the device's cache, and products of odd sizes, which are padded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.train_cases import case_of
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from e2e.aten import WARM, ColdL2, Pool, TensorSpec, describe, kind_of, materialise
from e2e.networks import find
from e2e.prediction.padding import Padding, padding
from e2e.prediction.predictor import key_of, trace
from e2e.prediction.recorder import LEAST_COLD, WIDE, Cache, Recorder, TracedOp

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


def test_a_result_goes_to_memory_when_all_of_it_leaves_the_cache_and_not_when_it_is_freed() -> None:
    cache = Cache(100)
    cache.touch(1, 90, new_of=7)
    cache.touch(1, 5)
    cache.touch(2, 90)
    assert not cache.holds(1)
    assert cache.written_back == {7}
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


def test_parts_of_a_storage_count_together_and_small_arguments_are_no_matter() -> None:
    joined = torch.ones(3, 2 * MB // 4)
    a, b, c = joined.unbind()
    op = one_call(6, lambda: (torch.stack((a, b, c)).exp(), a.neg()), joined)
    assert op.cold.arguments == (0,)  # 6 of `joined`, then 6 and 6: nothing of it is left
    assert one_call(1, lambda: rows(1) * 1, joined).cold.arguments == ()
    x = rows(2)
    assert one_call(1.5, lambda: x.mul(x), x).cold.arguments == (0, 1)  # 4 MB, not 6
    x, y = rows(2), rows(2)
    assert one_call(3, lambda: x.add_(y), x, y).cold.arguments == (1,)
    assert one_call(3, lambda: x.relu_(), x).cold == WARM
    call = describe(ATEN.exp.default, (rows(2),), {})
    near, far = (
        TracedOp(call, (), "", 0, 0, cold) for cold in (WARM, ColdL2((0,), cache_bytes=MB))
    )
    case = case_of(find("cnn-cifar"))
    assert key_of(case, near) != key_of(case, far)
    # They cost a launch no more than the latency of their first bytes.
    recorder = Recorder("cpu", cache_bytes=4 * MB)
    small = torch.ones(LEAST_COLD // 4 - 1)
    recorder.hold(iter((small,)))
    with recorder:
        torch.exp(small)
        torch.neg(small)
    assert [op.cold for op in recorder.end()] == [WARM, WARM]


# ---------------------------------------------------------------- padding


CLASSES = 1001


class Odd(nn.Module):
    """Convolutions of 33 channels, and 1,001 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 33, 5, stride=2)
        self.body = nn.Conv2d(33, 33, 3, bias=False)
        self.grouped = nn.Conv2d(33, 33, 3, groups=33)
        self.up = nn.ConvTranspose2d(33, 64, 2)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Images to classes."""
        x = self.grouped(self.body(self.stem(x)).relu())
        return self.head(self.up(x).mean((2, 3)))


@cache
def products(recipe: str = "amp-bf16", layout: str = "nhwc") -> list[TracedOp]:
    """Of one step."""
    network = replace(
        find("cnn-cifar"), name="odd", build=partial(Odd), input=(3, 16, 16), classes=CLASSES
    )
    case = case_of(network, 4, recipe=recipe, layout=layout)
    ops = trace(network, case, CPU, CLASSES).ops
    return [op for op in ops if kind_of(op.call) == "product"]


def paddings(tf32: bool = False, **how: str) -> list[Padding]:
    found = [padding(op.call, tf32) for op in products(**how)]
    return [each for each in found if each is not None]


def test_odd_sizes_are_padded_a_bias_of_all_rows_too_but_no_vector_nor_image() -> None:
    """Of the grouped layer none; of each other one the forward and the backward calls."""
    found = Counter(each.change for each in paddings())
    assert found == {
        "33 to 40 channels": 6,  # the stem, the body, and the transposed one
        "1001 to 1008 features": 3,
    }
    assert paddings(recipe="fp32") == []
    found = Counter(each.change for each in paddings(True, recipe="fp32"))
    assert found["33 to 36 channels"] == 6
    # The batch is never padded: rows of a matrix product that lie apart need no alignment.
    pool = Pool(CPU)
    for op in products():
        found = padding(op.call, False)
        if found is None:
            continue
        assert 4 not in found.sizes
        returned = materialise(found.call, CPU, pool).launch()
        wanted = [tuple(found.sizes.get(n, n) for n in spec.shape) for spec in op.outputs]
        shapes = [tuple(leaf.shape) for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
        assert shapes == wanted, found.call.key
        assert padding(found.call, False) is None, "once is enough"
    bias = TensorSpec((9,), (1,), "float16", "cpu")
    left, right = torch.empty(5, 16).half(), torch.empty(16, 9).half()
    call = describe(ATEN.addmm.default, (left, left, right), {})
    found = padding(replace(call, args=(bias, *call.args[1:])), False)
    assert [spec.shape for spec in found.call.tensors] == [(16,), (5, 16), (16, 16)]
    column = describe(ATEN.mm.default, (left[:, :8], right[:8, :1]), {})
    assert padding(column, False) is None
    x, weight = torch.empty(4, 3, 8, 8).half(), torch.empty(64, 3, 3, 3).half()
    args = (x, weight, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)
    assert padding(describe(ATEN.convolution.default, args, {}), False) is None
