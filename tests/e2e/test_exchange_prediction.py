"""What the exchange of gradients is predicted to add to a step, from times of all-reduces alone."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from e2e.case import TrainCase
from e2e.prediction.exchange import buckets_of, not_predicted, with_exchange
from e2e.prediction.prediction import Prediction
from e2e.prediction.queue_model import OpCost, simulate
from e2e.results.baselines import links_of, scaled
from e2e.results.codec import from_json, to_json
from e2e.results.exchange import (
    AllReduce,
    Copies,
    Exchange,
    Gradient,
    Links,
    all_reduce_s,
    exposed_s,
)
from e2e.results.types import Phase, Predicted, StepTimes, Training

MB = 2**20
SIZES = st.integers(1, 10**9)
SECONDS = st.floats(0, 10)


@st.composite
def curves(draw: st.DrawFn) -> tuple[AllReduce, ...]:
    sizes = sorted(draw(st.sets(SIZES, min_size=1, max_size=6)))
    return tuple(AllReduce(size, draw(SECONDS)) for size in sizes)


@st.composite
def buckets(draw: st.DrawFn) -> tuple[list[tuple[int, float]], float]:
    """Buckets that become ready one after another, and the end of the backward pass."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=6))
    ready_s = sorted(draw(SECONDS) for _ in sizes)
    return list(zip(sizes, ready_s, strict=True)), ready_s[-1] + draw(SECONDS)


def line(latency_s: float, bytes_per_s: float) -> tuple[AllReduce, ...]:
    """A curve of two points of a link."""
    return tuple(AllReduce(size, latency_s + size / bytes_per_s) for size in (1, 100 * MB))


@given(st.floats(0, 0.1), st.floats(1e6, 1e12), SIZES)
def test_a_link_is_known_from_two_points(latency_s: float, rate: float, size: int) -> None:
    assert all_reduce_s(line(latency_s, rate), size) == pytest.approx(latency_s + size / rate)


@given(curves(), st.lists(SIZES, min_size=2))
def test_no_larger_all_reduce_is_faster(curve: tuple[AllReduce, ...], sizes: list[int]) -> None:
    times_s = [all_reduce_s(curve, size) for size in sorted(sizes)]
    assert all(a <= b + 1e-9 * max(1.0, b) for a, b in pairwise(times_s))
    for point in curve:
        assert all_reduce_s(curve, point.bytes) >= point.alone_s


@given(buckets(), curves())
def test_no_more_is_exposed_than_all_reduces_take(
    found: tuple[list[tuple[int, float]], float], curve: tuple[AllReduce, ...]
) -> None:
    each, end_s = found
    added_s = exposed_s(each, end_s, curve)
    whole_s = sum(all_reduce_s(curve, size) for size, _ in each)
    assert 0 <= added_s <= whole_s * (1 + 1e-9) + 1e-9
    last_size, last_s = each[-1]
    assert added_s >= last_s + all_reduce_s(curve, last_size) - end_s - 1e-9


@given(st.integers(2, 40), st.floats(0.1, 10))
def test_of_several_buckets_all_but_the_last_hide(count: int, backward_s: float) -> None:
    curve = line(0.0, count * MB / backward_s)  # as fast as the backward pass
    so_far = accumulate([1] * count)
    each = [(MB, backward_s * done / count) for done in so_far]
    assert exposed_s(each, backward_s, curve) == pytest.approx(backward_s / count)
    assert exposed_s([(count * MB, backward_s)], backward_s, curve) == pytest.approx(backward_s)


WEIGHTS = st.lists(
    st.tuples(st.integers(1, 3 * MB), st.sampled_from([torch.float32, torch.bfloat16])),
    min_size=1, max_size=24,
)  # fmt: skip


@given(WEIGHTS)
def test_buckets_are_those_of_torch(weights: list[tuple[int, torch.dtype]]) -> None:
    tensors = [torch.empty(count, dtype=dtype, device="meta") for count, dtype in weights]
    found, _ = torch.distributed._compute_bucket_assignment_by_size(
        tensors, [MB, 25 * MB], [False] * len(tensors), list(range(len(tensors)))
    )
    right = [sum(tensors[i].nbytes for i in bucket) for bucket in found]
    gradients = [(Gradient("", t.nbytes, str(t.dtype)), float(i)) for i, t in enumerate(tensors)]
    own = buckets_of(gradients)
    sizes = [size for size, _ in own]
    # Torch has no order of the last buckets, of several types, which never fill.
    assert sorted(sizes) == sorted(right)
    assert sizes == right or len({dtype for _, dtype in weights}) > 1
    assert max(ready for _, ready in own) == len(weights) - 1


OPS = tuple(
    OpCost("product", phase, layer, seconds, 1e-6)
    for phase, layer, seconds in (
        ("forward", "first", 1.0), ("forward", "last", 1.0), ("backward", "last", 2.0),
        ("backward", "first.inner", 3.0), ("backward", "first", 1.0), ("optimizer", "", 1.0),
    )
)  # fmt: skip
GRADIENTS = (Gradient("first", 2 * MB, "f"), Gradient("last.around", 2 * MB, "f"))


def prediction(gpus: int, ops: tuple[OpCost, ...] = OPS) -> Prediction:
    """Of a step of 9 s: the last layer's gradient is ready after 4, the first's after 8."""
    step = simulate(ops)
    predicted = Predicted(step.step_s, (8.0, 10.0), "gpu", {}, memory_bytes=10 * MB)
    case = TrainCase("own", "fp32", 8, "3x8x8", gpus=gpus)
    return Prediction(case, predicted, simulated=step, ops=ops, gradients=GRADIENTS)


def test_a_step_over_one_gpu_exchanges_nothing() -> None:
    assert with_exchange(prediction(1), Links(line(1.0, MB))) == prediction(1)


@pytest.mark.parametrize(("alone_s", "added_s"), [(0.0, 0.0), (1.0, 1.0), (3.0, 3.0), (5.0, 6.0)])
def test_what_several_gpus_add_to_a_step(alone_s: float, added_s: float) -> None:
    found = with_exchange(prediction(2), Links((AllReduce(2 * MB, alone_s),))).predicted
    assert found is not None
    assert found.exchange_s == pytest.approx(added_s)
    assert found.step_s == pytest.approx(9 + added_s)
    assert found.interval_s == pytest.approx((8 + added_s, 10 + added_s))
    assert found.efficiency == pytest.approx(9 / (9 + added_s))
    assert found.memory_bytes == 14 * MB, "the buckets are memory too"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compress": "bf16"}, "compressed"),
        ({"graph": True}, "captured"),
        ({"data": "cifar10", "loader": "torchvision"}, "loader"),
    ],
)
def test_what_the_model_of_the_exchange_lacks_is_refused(
    changes: dict[str, object], said: str
) -> None:
    case = replace(prediction(2).case, **changes)  # type: ignore[arg-type]
    assert said in (not_predicted(case) or "")
    assert not_predicted(replace(case, gpus=1)) is None
    with pytest.raises(AssertionError):
        with_exchange(replace(prediction(2), case=case), Links(line(1.0, MB)))


def training(gpus: int, exchange: Exchange | None = None, **changes: object) -> Training:
    """Of a step of 10 s, of which 5 are backward."""
    case = TrainCase("own", "fp32", 8, "3x8x8", gpus=gpus)
    case = replace(case, **changes)  # type: ignore[arg-type]
    steps = StepTimes((10.0,), (10.0,), (1,), 10.0, None, 10.0, 1)
    phases = (Phase("forward", 4.0, 9.0), Phase("backward", 5.0, 1.0), Phase("optimizer", 1.0, 0.1))
    return Training(case, "ok", step_units=8, steps=steps, phases=phases, exchange=exchange)


EXCHANGE = Exchange(
    2, 4 * MB, 12.0, 6.0, 3.0, None, (12.0, 12.0), (MB, 3 * MB),
    (AllReduce(MB, 2.0), AllReduce(3 * MB, 4.0)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("accumulate_", "added_s"),
    # Half of 12 s is backward; buckets are ready at 1.5 and 6 s, or of three batches at 0.5 and 2.
    [(1, 4.0), (3, 4.5)],
)
def test_a_measured_exchange_is_held_against_its_curve(accumulate_: int, added_s: float) -> None:
    one = training(1, accumulate=accumulate_)
    (row,) = scaled([one, training(2, EXCHANGE, accumulate=accumulate_)])
    assert row.predicted_exposed_s == pytest.approx(added_s)


def test_copies_are_in_the_file_and_an_older_one_without_a_curve_predicts_nothing() -> None:
    whole = training(2, replace(EXCHANGE, copies=Copies(4, 8 * MB, 5.0, 1.0)))
    data = json.loads(json.dumps(to_json(whole)))
    assert from_json(data, "results[0]") == whole
    for name in ("buckets", "curve", "copies"):
        del data["exchange"][name]
    older = from_json(data, "results[0]")
    assert older.exchange == replace(EXCHANGE, buckets=(), curve=())
    (row,) = scaled([training(1), older])
    assert row.predicted_exposed_s is None
    assert links_of([training(1), older]) == {}


@pytest.mark.parametrize(
    ("curve", "said"),
    [
        ([{"bytes": 0, "alone_s": 1.0}], "cannot be"),
        ([{"bytes": 1, "alone_s": -1.0}], "cannot be"),
        ([{"bytes": 2, "alone_s": 1.0}, {"bytes": 1, "alone_s": 1.0}], "do not rise"),
    ],
)
def test_a_damaged_curve_is_refused(curve: list[dict[str, float]], said: str) -> None:
    data = json.loads(json.dumps(to_json(training(2, EXCHANGE))))
    data["exchange"]["curve"] = curve
    with pytest.raises(ValueError, match=said):
        from_json(data, "results[0]")


@given(st.integers(1, 500), SIZES, SECONDS, SECONDS)
def test_copies_of_the_same_gradients_take_what_they_took(
    count: int, bytes_: int, least_s: float, more_s: float
) -> None:
    copies = Copies(count, bytes_, least_s + more_s, least_s)
    assert copies.seconds(count, bytes_) == pytest.approx(least_s + more_s)
    assert copies.seconds(2 * count, 2 * bytes_) == pytest.approx(2 * (least_s + more_s))
    assert copies.seconds(count, 0) == pytest.approx(least_s)


def test_copies_are_added_to_what_the_all_reduces_add() -> None:
    # Two gradients of 4 MiB in all: 2 x 0.25 s, and 4 MiB of 0.5 s each.
    copies = Copies(4, 8 * MB, 5.0, 1.0)
    found = with_exchange(prediction(2), Links((AllReduce(2 * MB, 1.0),), copies)).predicted
    assert found is not None
    assert found.exchange_s == pytest.approx(1.0 + 2 * 0.25 + 4 * 0.5)
    (row,) = scaled([training(1), training(2, replace(EXCHANGE, copies=copies))])
    assert row.predicted_exposed_s == pytest.approx(4.0 + 5.0)


@given(st.floats(0, 2), st.floats(0, 2))
def test_the_hidden_share_is_of_the_all_reduce_alone(copied_s: float, exposed: float) -> None:
    copies = Copies(4, 8 * MB, copied_s, 0.0)
    found = replace(EXCHANGE, exposed_s=copied_s + exposed * EXCHANGE.alone_s, copies=copies)
    assert found.overlapped == pytest.approx(max(0.0, 1 - exposed), abs=1e-6)
