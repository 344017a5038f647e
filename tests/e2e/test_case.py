"""Plans: every option does what it says to the variants, and what contradicts itself is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.case import FULL, SHORT, VARIED, TrainCase, label_of
from e2e.networks import find
from e2e.networks.network import Network
from e2e.options import OF_LEARNING, TrainOptions, parse_shape
from e2e.plan import SMALL_CARD_BYTES, check_device, notes, plan, rungs_of
from e2e.report.run_report import raw
from e2e.results.types import Training
from e2e.schedule import KINDS, parse_schedule
from microbench.errors import UserError
from microbench.results.types import Run

BIG = 141 * 10**9
RUNGS = ["fp32", "tf32", "channels_last", "AMP", "fused optimizer", "compile", "CUDA graph"]


@cache
def network(name: str = "cnn-cifar") -> Network:
    return find(name)


def planned(
    kind: str = "cuda", *, name: str = "cnn-cifar", memory: int | None = BIG, **options: Any
) -> list[list[TrainCase]]:
    return plan(TrainOptions.of(name, options), network(name).facts, kind, memory)


def cases(kind: str = "cuda", **options: Any) -> list[TrainCase]:
    return [case for found in planned(kind, **options) for case in found]


def climbed(kind: str = "cuda", name: str = "cnn-cifar") -> list[tuple[str | None, TrainCase]]:
    """The rungs of a ladder."""
    options = TrainOptions.of(name, {"ladder": True})
    (found,) = plan(options, network(name).facts, kind, BIG)
    rungs = rungs_of(options, network(name).facts, kind, found)
    return [(rungs[case.key], case) for case in found]


def changes_between(before: TrainCase, after: TrainCase) -> dict[str, Any]:
    """The settings in which a case differs from another, with its values."""
    old = vars(before)
    return {
        f.name: value for f in fields(after) if (value := getattr(after, f.name)) != old[f.name]
    }


# ---------------------------------------------------------------- which variants


def test_the_usual_variants_and_layouts() -> None:
    found = cases()
    assert [case.recipe for case in found] == ["fp32", "tf32", "amp"]
    assert found[0] == TrainCase(
        "cnn-cifar", "fp32", network().batch, "3x32x32", layout="nhwc", search=SHORT
    )
    assert len({case.group for case in found}) == 1, "they take turns"
    assert len({case.key for case in found}) == 3
    assert cases(amp=True) == found
    assert rungs_of(TrainOptions(), network().facts, "cuda", found) == {}
    assert {case.layout for case in cases("cuda")} == {"nhwc"}
    assert {case.layout for case in cases("cpu")} == {"nchw"}
    asked = {"accumulate": 2, "warmup": 3, "optimizer": "adamw", "layout": "nchw", "lr": 0.3}
    assert all(vars(case).items() >= asked.items() for case in cases(**asked))
    assert "amp-bf16" in notes(TrainOptions(), "cpu")[0]
    assert "O1, fp16" in notes(TrainOptions(recipe="fp32,O1,fp16"), "cpu")[0]
    assert notes(TrainOptions(recipe="fp32,bf16"), "cpu") == notes(TrainOptions(), "cuda") == []
    both = cases(layout="nchw,nhwc")
    assert [(c.layout, c.recipe) for c in both] == [
        (layout, recipe) for layout in ("nchw", "nhwc") for recipe in ("fp32", "tf32", "amp")
    ]
    assert len({case.group for case in both}) == 1, "layouts are compared with each other"


@pytest.mark.parametrize(
    ("kind", "options", "recipes"),
    [
        ("cpu", {}, ["fp32", "tf32", "amp-bf16"]),
        ("cpu", {"recipe": "amp,amp-bf16,O1"}, ["amp-bf16", "O1"]),
        ("cuda", {"recipe": "o2,fp32,AMP,fp32"}, ["O2", "fp32", "amp"]),
        ("cuda", {"recipe": "bf16,amp", "amp": True}, ["fp32", "tf32", "amp", "bf16"]),
    ],
)
def test_recipes_come_once_in_order(kind: str, options: dict[str, Any], recipes: list[str]) -> None:
    assert [case.recipe for case in cases(kind, **options)] == recipes


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_tokens_have_no_layout(kind: str) -> None:
    found = cases(kind, name="gpt-tiny")
    assert {(case.layout, case.input, case.optimizer) for case in found} == {("", "64", "adamw")}
    with pytest.raises(UserError, match="--layout"):
        cases(kind, name="gpt-tiny", layout="nhwc")
    rungs = climbed(kind, "gpt-tiny")
    assert [rung for rung, _ in rungs] == [r for r in RUNGS if r != "channels_last"]
    assert {case.layout for _, case in rungs} == {""}


@pytest.mark.parametrize("name", [field.name for field in fields(TrainCase)])
def test_a_field_of_a_case_is_in_its_key_a_column_and_what_reports_call_it(name: str) -> None:
    usual = TrainCase("cnn", "fp32", 8, "3x8x8")
    value = getattr(usual, name)
    new = SHORT if name == "search" else f"{value}7" if isinstance(value, str) else 7
    other = replace(usual, **{name: new if not isinstance(value, bool) else not value})
    assert usual.key != other.key
    assert (usual.group == other.group) == (name in VARIED)
    assert label_of(usual, name) != label_of(other, name)
    (columns, (row,)), _ = raw(Run(("e2e",), "now", {}, {}, others=(Training(other, "ok"),)))
    assert name in columns
    assert row[name] == getattr(other, name)


# ---------------------------------------------------------------- batches


def test_batches_by_device_memory_and_option() -> None:
    usual, small = network().batch, int(SMALL_CARD_BYTES)
    assert {c.batch for c in cases("cuda")} == {usual}
    assert {c.batch for c in cases("cuda", memory=None)} == {usual}
    assert {c.batch for c in cases("cuda", memory=small)} == {usual}
    assert {c.batch for c in cases("cuda", memory=small - 1)} == {usual // 4}
    assert {c.batch for c in cases("cuda", memory_limit="31.9GB")} == {usual // 4}
    assert {c.batch for c in cases("cpu", memory=10**9)} == {network().cpu_batch}
    assert {c.batch for c in cases("cuda", memory=10**9, batch="1024")} == {1024}
    for text, size in (
        ("16GB", 16 * 10**9), ("1.5 gb", 15 * 10**8), ("2GiB", 2**31), ("800MB", 8 * 10**8),
    ):  # fmt: skip
        assert cases(memory_limit=text)[0].memory_limit == size
    for kind, memory in (("cpu", None), ("cuda", 10**9)):
        with pytest.raises(UserError, match="--memory-limit"):
            check_device(TrainOptions(memory_limit="2GB"), kind, memory)


# ---------------------------------------------------------------- options into cases


@pytest.mark.parametrize(
    ("kind", "name", "search"),
    [("cuda", "cnn-cifar", SHORT), ("cpu", "cnn-cifar", FULL), ("cuda", "gpt", FULL)],
)
def test_cudnn_searches_briefly_where_it_searches_at_all(kind: str, name: str, search: str) -> None:
    for asked, expected in (({}, search), ({"search": FULL}, FULL)):
        assert {case.search for case in cases(kind, name=name, **asked)} == {expected}


# ---------------------------------------------------------------- the ladder


def test_each_rung_changes_what_its_name_says_and_takes_the_other_options() -> None:
    rungs = climbed()
    changes: dict[str | None, dict[str, Any]] = {
        "tf32": {"recipe": "tf32"},
        "channels_last": {"layout": "nhwc"},
        "AMP": {"recipe": "amp"},
        "fused optimizer": {"fused": True},
        "compile": {"compile": True},
        "CUDA graph": {"graph": True},
    }
    assert [rung for rung, _ in rungs] == RUNGS
    _, first = rungs[0]
    assert (first.recipe, first.layout, first.fused) == ("fp32", "nchw", False)
    assert not first.compile
    assert not first.graph
    for (_, below), (rung, case) in pairwise(rungs):
        assert changes_between(below, case) == changes[rung]
    assert len({case.group for _, case in rungs}) == 1

    options = {"optimizer": "adamw", "keep_batchnorm_fp32": True, "data": "generated"}
    comparisons = planned(ladder=True, loss_scale=128.0, batch="32,64", **options)
    assert [found[0].batch for found in comparisons] == [32, 64]
    for one in (one for found in comparisons for one in found):
        assert {name: getattr(one, name) for name in options} == options
        assert one.loss_scale == (128.0 if one.recipe == "amp" else None)


# ---------------------------------------------------------------- the forward pass alone


def test_inference_is_compared_at_batch_1_and_the_usual_one_and_refuses_learning() -> None:
    comparisons = planned(evaluation=True)
    assert [[case.recipe for case in found] for found in comparisons] == [
        ["fp32", "tf32", "amp"]
    ] * 2
    assert [found[0].batch for found in comparisons] == [1, network().batch]
    usual = cases(batch="8")
    for case, trained in zip(cases(evaluation=True, batch="8"), usual, strict=True):
        assert changes_between(trained, case) == {"evaluation": True}
        assert "evaluation=True" in case.group
        assert "evaluation" not in trained.key, "keys of older files stand"
    assert all(case.graph and case.compile for case in
               cases(evaluation=True, graph=True, compile=True))  # fmt: skip
    values: dict[str, Any] = {
        "ladder": True, "fused": False, "optimizer": "adam", "schedule": "cosine", "loss": "a:b",
        "gpus": "2", "compress": "bf16", "clip": 1.0, "loss_scale": 8.0, "lr": 0.1,
    }  # fmt: skip
    for name in OF_LEARNING:
        with pytest.raises(UserError, match=r"^--eval runs the forward pass alone; leave out --"):
            TrainOptions.of("cnn-cifar", {"evaluation": True, name: values.get(name, 3)})
    with pytest.raises(UserError, match="O2 is about it"):
        cases(evaluation=True, recipe="fp32,O2")


@given(st.lists(st.integers(1, 10**9 - 1), min_size=1, max_size=4))
def test_every_shape_is_read_back(shape: list[int]) -> None:
    assert parse_shape(f" {'X'.join(map(str, shape))} ") == tuple(shape)


# ---------------------------------------------------------------- schedules

HALF = 0.5**0.5

schedules = st.sampled_from(
    [*KINDS, "cosine:3", "triangle:0", "triangle:10", "triangle:100", "step:20,40,80/5", "step:0/2"]
)


@pytest.mark.parametrize(
    ("text", "start", "quarter", "end"),
    [
        ("constant", 1.0, 1.0, 1.0),
        ("cosine", 1.0, (1 + HALF) / 2, 0.0),
        ("cosine:2", 1.0, 0.5, 0.0),
        ("cosine:4", 1.0, 1.0, 0.0),
        ("triangle", 0.0, 1.0, 0.0),
        ("triangle:50", 0.0, 0.5, 0.0),
        ("triangle:0", 1.0, 0.75, 0.0),
        ("step", 1.0, 1.0, 0.01),
        ("step:25,100/5", 1.0, 0.2, 0.04),
    ],
)
def test_shares_from_start_to_end(text: str, start: float, quarter: float, end: float) -> None:
    schedule = parse_schedule(text)
    found = [schedule.share(done) for done in (0, 0.25, 1)]
    assert found == pytest.approx([start, quarter, end], abs=1e-12)


@given(schedules, st.floats(0, 1), st.floats(1, 1e6))
def test_a_share_is_from_0_to_1_and_stays_at_1(text: str, done: float, after: float) -> None:
    schedule = parse_schedule(text)
    assert 0 <= schedule.share(done) <= 1
    assert schedule.share(after) == schedule.share(1)
