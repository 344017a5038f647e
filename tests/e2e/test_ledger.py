"""The ledger adds up, whatever the steps, and names what changed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.explain.ledger import NO_LAYER, Step, bound, layer_table, ledger, op_terms_ms, term_of
from e2e.prediction.queue_model import OpCost, simulate
from e2e.results.terms import (
    ATTENTION,
    CONVOLUTIONS,
    EXCHANGE,
    GAPS,
    LAYOUT,
    LOADER,
    MATRIX_PRODUCTS,
    OP_TERMS,
    OTHER,
    PRODUCTS,
    RESIDUAL,
    TERMS,
)
from e2e.results.types import LedgerLine

CONV, MM = "aten.convolution.default", "aten.mm.default"
MS = 1e-3


def op(kind: str, ms: float, layer: str = "", name: str = "", conversion_ms: float = 0) -> OpCost:
    return OpCost(kind, "forward", layer, ms * MS, 1e-6, conversion_s=conversion_ms * MS, name=name)


def step(*ops: OpCost, measured_ms: float | None = None, **more: float) -> Step:
    measured_s = None if measured_ms is None else measured_ms * MS
    return Step(ops, simulate(ops), measured_s, **more)


def convolutions(**layers: float) -> Step:
    return step(*(op("product", ms, layer, CONV) for layer, ms in layers.items()))


FP32 = step(
    op("product", 10, "stem", CONV),
    op("product", 20, "body", CONV),
    op("product", 4, "head", MM),
    op("norm", 3),
    op("activation", 2),
    measured_ms=39.5,
)
AMP = step(
    op("cast", 1),
    op("product", 5, "stem", CONV, conversion_ms=2),
    op("product", 6, "body", CONV),
    op("product", 5, "head", MM),
    op("norm", 1.5),
    op("activation", 1),
    op("scaler", 0.25),
    measured_ms=20,
)


def by_term(lines: Sequence[LedgerLine]) -> dict[str, LedgerLine]:
    found = {line.term: line for line in lines}
    assert len(found) == len(lines)
    return found


# ---------------------------------------------------------------- planted


def test_each_term_holds_what_its_ops_save_and_where_the_number_is_from() -> None:
    lines = by_term(ledger(FP32, AMP))
    expected = {
        "fp32 step": 39.5, CONVOLUTIONS: 9 - 30, MATRIX_PRODUCTS: 1, "normalisation": -1.5,
        "activation": -1, "casts": 1, LAYOUT: 2, "loss scaler": 0.25, GAPS: 0,
        RESIDUAL: (20 - 19.75) - (39.5 - 39), "amp step": 20,
    }  # fmt: skip
    assert {term: line.ms for term, line in lines.items()} == pytest.approx(expected, abs=1e-9)
    assert list(lines) == list(expected)
    sources = dict.fromkeys(expected, "replayed") | {GAPS: "predicted"}
    sources |= dict.fromkeys(("fp32 step", RESIDUAL, "amp step"), "measured")
    assert {term: line.source for term, line in lines.items()} == sources
    assert [line.term for line in ledger(FP32, AMP, ("a", "b"))][:: len(lines) - 1] == [
        "a step", "b step",
    ]  # fmt: skip


def test_a_step_that_was_not_measured_is_the_predicted_one() -> None:
    base, other = replace(FP32, measured_s=None), replace(AMP, measured_s=None)
    half, alone = by_term(ledger(base, AMP)), by_term(ledger(base, other))
    assert (half["fp32 step"].source, half[RESIDUAL].source) == ("predicted", "measured")
    assert half["fp32 step"].ms == pytest.approx(39)
    assert half[RESIDUAL].ms == pytest.approx(0.25)
    assert not {RESIDUAL, LOADER, EXCHANGE} & alone.keys(), "nothing is left"
    odd = replace(other, predicted=replace(AMP.predicted, step_s=1.0))
    assert by_term(ledger(base, odd))[RESIDUAL].source == "predicted"


def test_the_waits_for_a_loader_and_for_an_exchange_are_no_residual() -> None:
    waiting = replace(AMP, measured_s=25 * MS, data_wait_s=5 * MS)
    lines = by_term(ledger(FP32, waiting))
    assert lines[LOADER].ms == pytest.approx(5)
    assert lines[RESIDUAL].ms == pytest.approx(by_term(ledger(FP32, AMP))[RESIDUAL].ms)
    predicted = replace(waiting, measured_s=None, predicted_wait_s=3 * MS, exchange_s=2 * MS)
    for base, other, sign in ((FP32, predicted, 1), (predicted, FP32, -1)):
        found = ledger(replace(base, measured_s=None), replace(other, measured_s=None))
        assert by_term(found)[LOADER].ms == pytest.approx(sign * 5)
        assert by_term(found)[EXCHANGE].ms == pytest.approx(sign * 2)
        assert RESIDUAL not in by_term(found)
    assert predicted.whole_s == pytest.approx((19.75 + 2 + 5) * MS)
    assert predicted.expected_s == pytest.approx((19.75 + 2 + 3) * MS)
    assert AMP.expected_s == pytest.approx(19.75 * MS)


def test_a_host_that_is_late_shows_as_gaps() -> None:
    slow = [replace(each, host_s=10 * MS) for each in AMP.ops]
    lines = by_term(ledger(FP32, Step(slow, simulate(slow))))
    assert lines[GAPS].ms == pytest.approx(70 - 19.75)


@pytest.mark.parametrize(
    ("kind", "name", "term"),
    [
        ("product", "aten.convolution_backward.default", CONVOLUTIONS),
        ("product", "aten.cudnn_convolution.default", CONVOLUTIONS),
        ("product", "aten.addmm.default", MATRIX_PRODUCTS),
        ("product", "aten._scaled_dot_product_flash_attention.default", ATTENTION),
        ("product", "", PRODUCTS),
        ("norm", "aten.native_batch_norm.default", "normalisation"),
        ("zeta", "", OTHER),
        ("Alpha", "", OTHER),
        ("viewer", "", OTHER),
    ],
)
def test_every_op_but_a_view_has_a_term(kind: str, name: str, term: str) -> None:
    assert term_of(op(kind, 1, name=name)) == term
    assert op_terms_ms([op(kind, 2, name=name), op("view", 5)]) == {term: pytest.approx(2)}


def test_the_layer_table_starts_with_the_largest_saving_and_ends_with_the_slower() -> None:
    rows = layer_table(FP32, AMP)
    assert [(r.layer, r.kind) for r in rows] == [
        ("body", CONVOLUTIONS), ("stem", CONVOLUTIONS), ("head", MATRIX_PRODUCTS),
    ]  # fmt: skip
    assert [r.saving_ms for r in rows] == pytest.approx([14, 5, -1])  # stem: conversion included
    assert layer_table(step(op("product", 1)), step())[0].layer == NO_LAYER


@pytest.mark.parametrize(
    ("base", "other", "detail"),
    [
        (FP32, AMP, "30.00 to 9.00 ms; body -14.00, stem -7.00"),
        # Layers of either step, those that change most, and none that rounds to nothing.
        (convolutions(gone=4, less=9, alike=2, little=1, equal=5),
         convolutions(new=3, less=7, alike=1.998, little=0.5, equal=5),
         "21.00 to 17.50 ms; gone -4.00, new +3.00, less -2.00"),
        (convolutions(less=9, alike=2), convolutions(less=8, alike=1.998),
         "11.00 to 10.00 ms; less -1.00"),
    ],
)  # fmt: skip
def test_products_name_the_layers_that_changed_most(base: Step, other: Step, detail: str) -> None:
    assert by_term(ledger(base, other))[CONVOLUTIONS].detail == detail


def test_the_residual_says_what_each_measured_step_takes_beyond_its_prediction() -> None:
    base = step(op("norm", 100), measured_ms=2100)
    other = step(op("norm", 50), measured_ms=3250, data_wait_s=0.2)
    predicted = step(op("norm", 50))
    for steps, beyond in (
        ((base, other), [2000.0, 3000.0]),
        ((base, predicted), [2000.0]),
        ((predicted, other), [3000.0]),
    ):
        detail = by_term(ledger(*steps))[RESIDUAL].detail
        numbers = [float(number) for number in re.findall(r"[+-][\d.]+", detail)]
        assert numbers == pytest.approx(beyond, abs=0.02)


def test_the_bound_is_amdahls() -> None:
    assert bound(FP32) == pytest.approx(39.5 / (39.5 - 34))
    assert [bound(one) for one in (step(op("norm", 1)), step(op("product", 1)), step())] == 3 * [
        None
    ]


# ---------------------------------------------------------------- whatever the steps

costs_s = st.floats(0, 1e-1)
some_ops = st.builds(
    lambda kind, layer, gpu_s, share, host_s, name, waits: OpCost(
        kind, "forward", layer, gpu_s, host_s, waits,
        conversion_s=share * gpu_s if kind == "product" else 0.0, name=name,
    ),
    st.sampled_from([*TERMS, "product", "view", "unheard of"]),
    st.sampled_from(["", "stem", "body.0", "head"]),
    costs_s,
    st.floats(0, 1),
    costs_s,
    st.sampled_from([CONV, MM, ""]),
    st.booleans(),
)  # fmt: skip
some_steps = st.builds(
    lambda ops, measured_s, wait_s, exchange_s: Step(
        ops, simulate(ops), measured_s, wait_s, exchange_s=exchange_s
    ),
    st.lists(some_ops, max_size=6),
    st.none() | st.floats(1e-6, 10),
    st.just(0.0) | costs_s,
    st.just(0.0) | costs_s,
)


@given(some_steps, some_steps)
def test_the_lines_add_up_and_all_time_is_in_them(base: Step, other: Step) -> None:
    lines = ledger(base, other)
    first, *between, last = lines
    assert (first.ms, last.ms) == (1e3 * base.whole_s, 1e3 * other.whole_s)
    size = max(abs(line.ms) for line in lines)
    assert abs(math.fsum(line.ms for line in lines[:-1]) - last.ms) <= 1e-9 * size
    terms = [line.ms for line in between if line.term in OP_TERMS]
    gpu_ms = 1e3 * (other.predicted.gpu_s - base.predicted.gpu_s)
    assert math.fsum(terms) == pytest.approx(gpu_ms, rel=1e-9, abs=1e-9)
    measured = base.measured_s is not None or other.measured_s is not None
    assert (RESIDUAL in by_term(lines)) == measured

    back = by_term(ledger(other, base))
    for line in between:
        assert back[line.term].ms == pytest.approx(-line.ms, rel=1e-9, abs=1e-9)
    assert all(line.ms == 0 for line in ledger(base, base)[1:-1])

    rows = layer_table(base, other)
    assert math.fsum(r.base_ms for r in rows) == pytest.approx(1e3 * base.product_s, abs=1e-9)
    assert math.fsum(r.other_ms for r in rows) == pytest.approx(1e3 * other.product_s, abs=1e-9)
    savings = [r.saving_ms for r in rows]
    assert savings == sorted(savings, reverse=True)
