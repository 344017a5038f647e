"""Plans: every option does what it says to the arms, and what contradicts itself is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.case import FULL, SHORT, ArmOptions, TrainCase
from e2e.commands.plan import SMALL_CARD_BYTES, Planned, check_device, notes, plan
from e2e.commands.requests import parse_shape, request_of
from e2e.networks import find
from e2e.networks.network import Network
from e2e.results.types import Training
from e2e.schedule import KINDS, parse_schedule
from microbench.errors import UserError
from microbench.results.runfile import read_run, write_run

BIG = 141 * 10**9
RUNGS = ["fp32", "tf32", "channels_last", "AMP", "fused optimizer", "compile", "CUDA graph"]
PUBLISHED = Path(__file__).parents[2] / "results" / "nvidia-h200" / "train-resnet50.json"


@cache
def network(name: str = "cnn-cifar") -> Network:
    return find(name)


def arm_options(**options: Any) -> ArmOptions:
    """What decides the arms; the fields of a case go to every arm."""
    arms = {f.name for f in fields(ArmOptions)}
    base = replace(ArmOptions().base, **{n: v for n, v in options.items() if n not in arms})
    return ArmOptions(base=base, **{n: v for n, v in options.items() if n in arms})


def planned(
    kind: str = "cuda", *, name: str = "cnn-cifar", memory: int | None = BIG, **options: Any
) -> list[list[Planned]]:
    comparisons = plan(network(name), arm_options(**options), kind, memory)
    return [list(comparison.arms) for comparison in comparisons]


def cases(kind: str = "cuda", **options: Any) -> list[TrainCase]:
    return [arm.case for arms in planned(kind, **options) for arm in arms]


def changes_between(before: TrainCase, after: TrainCase) -> dict[str, Any]:
    """The settings in which a case differs from another, with its values."""
    old = vars(before)
    return {
        f.name: value for f in fields(after) if (value := getattr(after, f.name)) != old[f.name]
    }


# ---------------------------------------------------------------- which arms


def test_the_usual_arms() -> None:
    found = cases()
    assert [case.recipe for case in found] == ["fp32", "tf32", "amp"]
    assert found[0] == TrainCase(
        "cnn-cifar", "fp32", network().batch, "3x32x32", layout="nhwc", optimizer="sgd", fused=True
    )
    assert len({case.group for case in found}) == 1, "they take turns"
    assert len({case.key for case in found}) == 3
    assert cases(amp=True) == found
    assert all(arm.rung is None for arms in planned() for arm in arms)


@pytest.mark.parametrize(
    ("kind", "options", "recipes"),
    [
        ("cpu", {}, ["fp32", "tf32", "amp-bf16"]),
        ("cpu", {"recipe": "amp,amp-bf16,O1"}, ["amp-bf16", "O1"]),
        ("cuda", {"recipe": "o2,fp32,AMP,fp32"}, ["O2", "fp32", "amp"]),
        ("cuda", {"recipe": "bf16,amp", "amp": True}, ["fp32", "tf32", "amp", "bf16"]),
    ],
)
def test_recipes_come_in_the_order_given_and_once(
    kind: str, options: dict[str, Any], recipes: list[str]
) -> None:
    assert [case.recipe for case in cases(kind, **options)] == recipes


def test_what_a_cpu_does_otherwise_is_noted() -> None:
    (note,) = notes(arm_options(), "cpu")
    assert "amp-bf16" in note
    assert notes(arm_options(recipe="amp"), "cpu") == [note]
    (slow,) = notes(arm_options(recipe="fp32,O1,fp16"), "cpu")
    assert "O1, fp16" in slow
    assert notes(arm_options(recipe="fp32,bf16"), "cpu") == []
    assert notes(arm_options(), "cuda") == notes(arm_options(recipe="O1"), "cuda") == []


def test_layouts_by_device_and_by_option() -> None:
    assert {case.layout for case in cases("cuda")} == {"nhwc"}
    assert {case.layout for case in cases("cpu")} == {"nchw"}
    both = cases(layout="nchw,nhwc")
    assert [(c.layout, c.recipe) for c in both] == [
        (layout, recipe) for layout in ("nchw", "nhwc") for recipe in ("fp32", "tf32", "amp")
    ]
    assert len({case.group for case in both}) == 1, "layouts are compared with each other"


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_tokens_have_no_layout(kind: str) -> None:
    found = cases(kind, name="gpt-tiny")
    assert {(case.layout, case.input, case.optimizer) for case in found} == {("", "64", "adamw")}
    with pytest.raises(UserError, match="--layout"):
        cases(kind, name="gpt-tiny", layout="nhwc")
    (arms,) = planned(kind, name="gpt-tiny", ladder=True)
    assert [arm.rung for arm in arms] == [r for r in RUNGS if r != "channels_last"]
    assert {arm.case.layout for arm in arms} == {""}


# ---------------------------------------------------------------- batches


def test_batches_by_device_memory_and_option() -> None:
    usual, small = network().batch, int(SMALL_CARD_BYTES)
    assert {c.batch for c in cases("cuda")} == {usual}
    assert {c.batch for c in cases("cuda", memory=None)} == {usual}
    assert {c.batch for c in cases("cuda", memory=small)} == {usual}
    assert {c.batch for c in cases("cuda", memory=small - 1)} == {usual // 4}
    assert {c.batch for c in cases("cuda", memory_limit=small - 1)} == {usual // 4}
    assert {c.batch for c in cases("cpu", memory=10**9)} == {network().cpu_batch}
    assert {c.batch for c in cases("cuda", memory=10**9, batch="1024")} == {1024}
    for kind, memory in (("cpu", None), ("cuda", 10**9)):
        with pytest.raises(UserError, match="--memory-limit"):
            check_device(replace(cases()[0], memory_limit=2 * 10**9), kind, memory)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_each_batch_is_a_comparison_of_its_own(kind: str) -> None:
    comparisons = planned(kind, batch="128..512,100")
    assert [arms[0].case.batch for arms in comparisons] == [128, 256, 512, 100]
    for arms in comparisons:
        assert len(arms) == 3
        assert len({arm.case.batch for arm in arms}) == 1
    assert len({arms[0].case.group for arms in comparisons}) == 4


# ---------------------------------------------------------------- options into cases


@pytest.mark.parametrize(
    ("kind", "name", "search"),
    [("cuda", "cnn-cifar", SHORT), ("cpu", "cnn-cifar", FULL), ("cuda", "gpt", FULL)],
)
def test_cudnn_searches_briefly_where_it_searches_at_all(kind: str, name: str, search: str) -> None:
    for asked, expected in (({}, search), ({"search": FULL}, FULL)):
        found = plan(network(name), request_of(name, asked).arms, kind, BIG)
        assert {case.search for one in found for case in one.cases} == {expected}


def test_a_run_is_gone_on_with_as_it_searched(tmp_path: Path) -> None:
    assert request_of("resnet50", {"resume": PUBLISHED}).arms.base.search == FULL
    new = tmp_path / "run.json"
    run = read_run(PUBLISHED)
    briefly = [replace(t, case=replace(t.case, search=SHORT)) for t in run.of(Training)]
    write_run(replace(run, others=tuple(briefly)), new)
    assert request_of("resnet50", {"resume": new}).arms.base.search == SHORT
    assert request_of("resnet50", {"resume": new, "search": FULL}).arms.base.search == FULL


def test_sizes_of_memory() -> None:
    for text, size in (
        ("16GB", 16 * 10**9), ("1.5 gb", 15 * 10**8), ("2GiB", 2**31), ("800MB", 8 * 10**8),
    ):  # fmt: skip
        assert request_of("cnn-cifar", {"memory_limit": text}).arms.base.memory_limit == size


def test_weights_of_a_folder_are_those_of_the_network(tmp_path: Path) -> None:
    def found(name: str) -> str:
        return request_of(name, {"weights": tmp_path}).arms.base.weights

    for name in ("resnet18-0a1b2c3d.pth", "resnet18-cifar.pt", "wide_resnet18.pth", "notes.txt"):
        (tmp_path / name).touch()
    assert found("resnet18") == "resnet18-0a1b2c3d.pth"
    assert found("resnet18-cifar@dropout=0.1") == "resnet18-cifar.pt"
    with pytest.raises(UserError, match=r"has no resnet34\.pth"):
        found("resnet34")
    (tmp_path / "resnet18.pth").touch()
    with pytest.raises(UserError, match="several"):
        found("resnet18")


# ---------------------------------------------------------------- the ladder


def test_each_rung_changes_what_its_name_says() -> None:
    (arms,) = planned(ladder=True)
    changes: dict[str, dict[str, Any]] = {
        "tf32": {"recipe": "tf32"},
        "channels_last": {"layout": "nhwc"},
        "AMP": {"recipe": "amp"},
        "fused optimizer": {"fused": True},
        "compile": {"compile": True},
        "CUDA graph": {"graph": True},
    }
    assert [arm.rung for arm in arms] == RUNGS
    first = arms[0].case
    assert (first.recipe, first.layout, first.fused) == ("fp32", "nchw", False)
    assert not first.compile
    assert not first.graph
    for below, arm in pairwise(arms):
        assert arm.rung is not None
        assert changes_between(below.case, arm.case) == changes[arm.rung]
    assert len({arm.case.group for arm in arms}) == 1


def test_a_ladder_takes_the_options_it_does_not_vary() -> None:
    options = {"optimizer": "adamw", "label_smoothing": 0.1, "data": "generated"}
    comparisons = planned(ladder=True, loss_scale=128.0, batch="32,64", **options)
    assert [arms[0].case.batch for arms in comparisons] == [32, 64]
    for case in (arm.case for arms in comparisons for arm in arms):
        assert {name: getattr(case, name) for name in options} == options
        assert case.loss_scale == (128.0 if case.recipe == "amp" else None)


# ---------------------------------------------------------------- shapes


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
def test_shares_at_the_start_a_quarter_and_the_end(
    text: str, start: float, quarter: float, end: float
) -> None:
    schedule = parse_schedule(text)
    found = [schedule.share(done) for done in (0, 0.25, 1)]
    assert found == pytest.approx([start, quarter, end], abs=1e-12)


@given(schedules, st.floats(0, 1), st.floats(1, 1e6))
def test_a_share_is_from_0_to_1_and_stays_after_the_end(
    text: str, done: float, after: float
) -> None:
    schedule = parse_schedule(text)
    assert 0 <= schedule.share(done) <= 1
    assert schedule.share(after) == schedule.share(1)
