"""The ledger adds up, whatever the steps, and names what changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.explain.ledger import NO_LAYER, Step, bound, layer_table, ledger, term_of
from e2e.prediction.queue_model import OpCost, simulate
from e2e.results.terms import (
    ATTENTION,
    CONVOLUTIONS,
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
SETTINGS = settings(max_examples=150)


def op(kind: str, ms: float, layer: str = "", name: str = "", conversion_ms: float = 0) -> OpCost:
    return OpCost(kind, "forward", layer, ms * MS, 1e-6, conversion_s=conversion_ms * MS, name=name)


def step(*ops: OpCost, measured_ms: float | None = None, data_wait_ms: float = 0) -> Step:
    measured_s = None if measured_ms is None else measured_ms * MS
    return Step(ops, simulate(ops), measured_s, data_wait_ms * MS)


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


def test_each_term_holds_what_its_ops_save() -> None:
    lines = by_term(ledger(FP32, AMP))
    expected = {
        "fp32 step": 39.5, CONVOLUTIONS: 9 - 30, MATRIX_PRODUCTS: 1, "normalisation": -1.5,
        "activation": -1, "casts": 1, LAYOUT: 2, "loss scaler": 0.25, GAPS: 0,
        RESIDUAL: (20 - 19.75) - (39.5 - 39), "amp step": 20,
    }  # fmt: skip
    assert {term: line.ms for term, line in lines.items()} == pytest.approx(expected, abs=1e-9)
    assert list(lines) == list(expected)


def test_the_sources_say_where_each_number_is_from() -> None:
    lines = by_term(ledger(FP32, AMP))
    assert {line.source for term, line in lines.items() if term in OP_TERMS} == {"replayed"}
    assert lines[GAPS].source == "predicted"
    assert lines["fp32 step"].source == lines["amp step"].source == "measured"
    assert lines[RESIDUAL].source == "measured"
    half = by_term(ledger(replace(FP32, measured_s=None), AMP))
    assert half["fp32 step"].source == "predicted"
    assert half["fp32 step"].ms == pytest.approx(39)
    assert half[RESIDUAL].ms == pytest.approx(0.25)
    assert half[RESIDUAL].detail == "measured minus predicted: other +0.25"


def test_products_name_the_layers_that_changed_most() -> None:
    detail = by_term(ledger(FP32, AMP))[CONVOLUTIONS].detail
    assert detail == "30.00 to 9.00 ms; body -14.00, stem -7.00"
    many = [op("product", 1 + i, f"layer{i}", CONV) for i in range(6)]
    fast = [op("product", 0.5, f"layer{i}", CONV) for i in range(6)]
    detail = by_term(ledger(step(*many), step(*fast)))[CONVOLUTIONS].detail
    assert detail.endswith("; layer5 -5.50, layer4 -4.50, layer3 -3.50")


def test_the_names_are_the_callers() -> None:
    lines = ledger(FP32, AMP, names=("tf32", "amp-bf16"))
    assert (lines[0].term, lines[-1].term) == ("tf32 step", "amp-bf16 step")


def test_predicted_steps_need_no_residual_and_loaders_no_line_where_none_waits() -> None:
    lines = by_term(ledger(replace(FP32, measured_s=None), replace(AMP, measured_s=None)))
    assert RESIDUAL not in lines
    assert LOADER not in lines
    odd = replace(AMP, measured_s=None, predicted=replace(AMP.predicted, step_s=1.0))
    assert by_term(ledger(replace(FP32, measured_s=None), odd))[RESIDUAL].source == "predicted"


def test_the_loaders_wait_is_no_residual() -> None:
    waiting = replace(AMP, measured_s=25 * MS, data_wait_s=5 * MS)
    lines = by_term(ledger(FP32, waiting))
    assert lines[LOADER].ms == pytest.approx(5)
    assert lines[RESIDUAL].ms == pytest.approx(by_term(ledger(FP32, AMP))[RESIDUAL].ms)
    alone = ledger(replace(FP32, measured_s=None), replace(waiting, measured_s=None))
    assert RESIDUAL not in by_term(alone)
    assert alone[-1].ms == pytest.approx(19.75 + 5)


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
        ("a kind of next year", "", OTHER),
    ],
)
def test_every_op_has_a_term(kind: str, name: str, term: str) -> None:
    assert term_of(op(kind, 1, name=name)) == term


def test_the_layer_table_starts_with_the_largest_saving_and_ends_with_the_slower() -> None:
    rows = layer_table(FP32, AMP)
    assert [(r.layer, r.kind) for r in rows] == [
        ("body", CONVOLUTIONS), ("stem", CONVOLUTIONS), ("head", MATRIX_PRODUCTS),
    ]  # fmt: skip
    assert [r.saving_ms for r in rows] == pytest.approx([14, 5, -1])  # stem: conversion included
    assert layer_table(step(op("product", 1)), step())[0].layer == NO_LAYER


def test_the_bound_is_amdahls() -> None:
    assert bound(FP32) == pytest.approx(39.5 / (39.5 - 34))
    assert bound(step(op("norm", 1))) is None
    assert bound(step(op("product", 1))) is None
    assert bound(step()) is None


# ---------------------------------------------------------------- properties

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
    lambda ops, measured_s, wait_s: Step(ops, simulate(ops), measured_s, wait_s),
    st.lists(some_ops, max_size=10),
    st.none() | st.floats(1e-6, 10),
    st.just(0.0) | costs_s,
)


@SETTINGS
@given(some_steps, some_steps)
def test_the_lines_add_up(base: Step, other: Step) -> None:
    first, *between, last = ledger(base, other)
    assert first.ms == 1e3 * base.whole_s
    assert last.ms == 1e3 * other.whole_s
    size = max(abs(line.ms) for line in (first, *between, last))
    assert abs(math.fsum([first.ms, *(line.ms for line in between)]) - last.ms) <= 1e-9 * size


@SETTINGS
@given(some_steps, some_steps)
def test_what_was_measured_has_a_residual(base: Step, other: Step) -> None:
    lines = by_term(ledger(base, other))
    measured = base.measured_s is not None or other.measured_s is not None
    assert (RESIDUAL in lines) == measured
    if measured:
        beyond = [s.whole_s - s.predicted.step_s - s.data_wait_s for s in (base, other)]
        size = base.whole_s + other.whole_s + base.predicted.step_s + other.predicted.step_s
        assert lines[RESIDUAL].ms == pytest.approx(1e3 * (beyond[1] - beyond[0]), abs=1e-6 * size)


@SETTINGS
@given(some_steps, some_steps)
def test_the_way_back_has_the_same_terms_with_the_other_sign(base: Step, other: Step) -> None:
    there, back = by_term(ledger(base, other)), by_term(ledger(other, base))
    for term in list(there)[1:-1]:
        assert back[term].ms == pytest.approx(-there[term].ms, rel=1e-9, abs=1e-9)


@SETTINGS
@given(some_steps)
def test_from_a_step_to_itself_nothing_changes(one: Step) -> None:
    assert all(line.ms == 0 for line in ledger(one, one)[1:-1])


@SETTINGS
@given(some_steps, some_steps)
def test_every_ops_time_is_in_one_term(base: Step, other: Step) -> None:
    terms = [line.ms for line in ledger(base, other) if line.term in OP_TERMS]
    gpu_ms = 1e3 * (other.predicted.gpu_s - base.predicted.gpu_s)
    assert math.fsum(terms) == pytest.approx(gpu_ms, rel=1e-9, abs=1e-9)


@SETTINGS
@given(some_steps, some_steps)
def test_the_layer_table_holds_all_products(base: Step, other: Step) -> None:
    rows = layer_table(base, other)
    assert math.fsum(r.base_ms for r in rows) == pytest.approx(1e3 * base.product_s, abs=1e-9)
    assert math.fsum(r.other_ms for r in rows) == pytest.approx(1e3 * other.product_s, abs=1e-9)
    savings = [r.saving_ms for r in rows]
    assert savings == sorted(savings, reverse=True)
