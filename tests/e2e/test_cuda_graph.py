"""Which calls of a captured step are launched, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from samples.feeding import convolutions
from samples.train_cases import case_of

from e2e.aten import Call, resolve
from e2e.networks import find
from e2e.prediction.host_speed import ConstantSpeed
from e2e.prediction.op_timer.cuda_graph import check_capturable, rows_of
from e2e.prediction.op_timer.op_costs import CallTimer, key_of, step_key
from e2e.prediction.op_timer.op_timer import OpTime
from e2e.prediction.op_timer.store import Store
from e2e.prediction.trace.fake_trace import Trace, trace
from e2e.prediction.trace.recorder import is_view
from kernels.case import Target

CPU = torch.device("cpu")


@pytest.fixture
def calls(empty_store: Store) -> CallTimer:
    return CallTimer(Target("cpu", "a processor"), empty_store, ConstantSpeed())


@cache
def traced_at(batch: int) -> Trace:
    network = replace(find("cnn-cifar"), build=convolutions, input=(3, 8, 8))
    return trace(network, case_of(network, batch), CPU, 10)


def known_of(traced: Trace) -> dict[str, OpTime]:
    return {key_of(traced.case, op): OpTime(1e-6, 1e-6) for op in traced.ops if not is_view(op)}


def test_the_known_calls_of_a_step_are_made_ready_at_their_places(calls: CallTimer) -> None:
    traced = traced_at(4)
    known = known_of(traced)
    failed = next(key for key in known if "batch_norm" in key)
    for left_out in ("", failed):  # as one that could not be launched
        counted = calls.counted(traced, {key: known[key] for key in known if key != left_out})
        places = sorted(place for one in counted for place in one.places)
        assert places == [
            i for i, op in enumerate(traced.ops)
            if not is_view(op) and key_of(traced.case, op) != left_out
        ]  # fmt: skip
        for row in rows_of(counted, CPU):
            row()


def test_what_waits_for_the_device_is_refused_before_it_breaks_a_capture() -> None:
    traced = traced_at(4)
    check_capturable(traced, {})
    key = next(key_of(traced.case, op) for op in traced.ops if not is_view(op))
    with pytest.raises(RuntimeError, match="waits for the device: no graph can hold it"):
        check_capturable(traced, {key: OpTime(1e-6, 1e-6, waits=True)})
    ops = (replace(traced.ops[0], waits=True), *traced.ops[1:])
    with pytest.raises(RuntimeError, match="waits for the device"):
        check_capturable(replace(traced, ops=ops), {})


def test_attention_whose_seed_lies_on_the_host_is_refused() -> None:
    name = "aten._scaled_dot_product_efficient_attention_backward.default"
    traced = traced_at(4)

    def with_dropout(share: float) -> Trace:
        arguments = resolve(name)._schema.arguments
        args = tuple({"dropout_p": share}.get(a.name) for a in arguments if not a.kwarg_only)
        return replace(traced, ops=(replace(traced.ops[-1], call=Call(name, args, ())),))

    check_capturable(with_dropout(0.0), {})
    with pytest.raises(RuntimeError, match="with dropout is not captured"):
        check_capturable(with_dropout(0.1), {})


def test_a_step_is_known_by_its_calls_and_their_order() -> None:
    small, large = traced_at(4), traced_at(8)
    known, others = ({key_of(one.case, op) for op in one.ops} for one in (small, large))
    assert step_key(small, known) == step_key(traced_at.__wrapped__(4), known)
    assert step_key(small, known) != step_key(large, others)
    (some, *_) = (key_of(small.case, op) for op in small.ops if not is_view(op))
    assert step_key(small, known - {some}) != step_key(small, known)
