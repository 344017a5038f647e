"""Plans: every option does what it says to the arms, and words that do not fit are told."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.case import FULL, SHORT, ArmOptions, TrainCase
from e2e.case_checks import MAX_SCALE
from e2e.commands.plan import SMALL_CARD_BYTES, Planned, notes, plan
from e2e.commands.requests import parse_shape, request_of
from e2e.networks import Network, find
from e2e.results.types import Training
from microbench.errors import UserError
from microbench.results.runfile import read_run, write_run

BIG = 141 * 10**9
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


def recipes(kind: str = "cuda", **options: Any) -> list[str]:
    return [case.recipe for case in cases(kind, **options)]


# ---------------------------------------------------------------- which arms


def test_the_usual_arms() -> None:
    found = cases()
    assert [case.recipe for case in found] == ["fp32", "tf32", "amp"]
    first = found[0]
    expected = TrainCase(
        "cnn-cifar", "fp32", network().batch, "3x32x32", layout="nhwc", optimizer="sgd", fused=True
    )
    assert first == expected
    assert len({case.group for case in found}) == 1, "they take turns"
    assert len({case.key for case in found}) == 3


def test_amp_is_the_default_and_says_the_same() -> None:
    assert cases(amp=True) == cases()


def test_on_a_cpu_amp_is_bfloat16_and_that_is_said() -> None:
    assert recipes("cpu") == ["fp32", "tf32", "amp-bf16"]
    assert recipes("cpu", recipe="amp,amp-bf16,O1") == ["amp-bf16", "O1"]
    (note,) = notes(arm_options(), "cpu")
    assert "amp-bf16" in note
    assert notes(arm_options(), "cuda") == []
    assert notes(arm_options(recipe="fp32,bf16"), "cpu") == []
    assert notes(arm_options(recipe="amp"), "cpu") == [note]
    (slow,) = notes(arm_options(recipe="fp32,O1,fp16"), "cpu")
    assert "O1, fp16 will be slow" in slow
    assert notes(arm_options(recipe="O1"), "cuda") == []


def test_recipes_come_in_the_order_given_and_once() -> None:
    assert recipes(recipe="o2,fp32,AMP,fp32") == ["O2", "fp32", "amp"]
    assert recipes(recipe="bf16,amp", amp=True) == ["fp32", "tf32", "amp", "bf16"]


def test_layouts_by_device_and_by_option() -> None:
    assert {case.layout for case in cases("cuda")} == {"nhwc"}
    assert {case.layout for case in cases("cpu")} == {"nchw"}
    both = cases(layout="nchw,nhwc")
    assert [(c.layout, c.recipe) for c in both] == [
        (layout, recipe) for layout in ("nchw", "nhwc") for recipe in ("fp32", "tf32", "amp")
    ]
    assert len({case.group for case in both}) == 1, "layouts are compared with each other"
    assert {case.layout for case in cases("cpu", layout="nhwc")} == {"nhwc"}


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_tokens_have_no_layout(kind: str) -> None:
    found = cases(kind, name="gpt-tiny")
    assert {case.layout for case in found} == {""}
    assert {case.input for case in found} == {"64"}
    assert {case.optimizer for case in found} == {"adamw"}
    with pytest.raises(UserError, match="--layout"):
        cases(kind, name="gpt-tiny", layout="nhwc")


# ---------------------------------------------------------------- batches


def test_batches_by_device_and_memory() -> None:
    usual = network().batch
    assert {c.batch for c in cases("cuda")} == {usual}
    assert {c.batch for c in cases("cuda", memory=None)} == {usual}
    assert {c.batch for c in cases("cuda", memory=int(SMALL_CARD_BYTES) - 1)} == {usual // 4}
    assert {c.batch for c in cases("cuda", memory=int(SMALL_CARD_BYTES))} == {usual}
    assert {c.batch for c in cases("cpu")} == {network().cpu_batch}
    assert {c.batch for c in cases("cpu", memory=10**9)} == {network().cpu_batch}


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_each_batch_is_a_comparison_of_its_own(kind: str) -> None:
    comparisons = planned(kind, batch="128..512,100")
    assert [arms[0].case.batch for arms in comparisons] == [128, 256, 512, 100]
    for arms in comparisons:
        assert len(arms) == 3
        assert len({arm.case.batch for arm in arms}) == 1
    assert len({arms[0].case.group for arms in comparisons}) == 4


def test_a_batch_that_is_given_is_not_cut_for_a_small_card() -> None:
    assert {c.batch for c in cases("cuda", memory=10**9, batch="1024")} == {1024}


@pytest.mark.parametrize("batch", ["0", "-4", "many", "64,", "512..128", "64x64", ""])
def test_batches_that_cannot_be(batch: str) -> None:
    with pytest.raises(UserError, match="--batch"):
        cases(batch=batch)


# ---------------------------------------------------------------- options into cases

PASSED_ON: dict[str, Any] = {
    "optimizer": "adam", "fused": False, "compile": True, "graph": True, "accumulate": 4,
    "loss_scale": 256.0, "keep_batchnorm_fp32": True, "label_smoothing": 0.1,
    "data": "generated", "loader": "torchvision", "workers": 3, "cached": True, "cold": True,
    "prefetch": 4, "cpus": 2, "search": "short", "lr": 0.5,
    "warmup": 7, "schedule": "cosine", "clip": 2.0, "held_out": 64,
    "memory_limit": 64 * 10**9, "deterministic": True, "weights": "cnn.pth", "freeze": "body",
}  # fmt: skip


@pytest.mark.parametrize(("option", "value"), PASSED_ON.items())
def test_an_option_reaches_every_case_and_changes_nothing_else(option: str, value: Any) -> None:
    for plain, changed in zip(cases(), cases(**{option: value}), strict=True):
        assert changes_between(plain, changed) == {option: value}
        assert changed.key != plain.key


def test_every_setting_is_tested() -> None:
    of_the_plan = {"network", "recipe", "batch", "input", "layout", "gpus", "compress"}
    assert {f.name for f in fields(TrainCase)} == of_the_plan | PASSED_ON.keys()


@pytest.mark.parametrize(
    ("kind", "name", "search"),
    [("cuda", "cnn-cifar", SHORT), ("cpu", "cnn-cifar", FULL), ("cuda", "gpt", FULL)],
)
def test_cudnn_searches_briefly_where_it_searches_at_all(kind: str, name: str, search: str) -> None:
    asked = request_of(name, {})
    found = plan(network(name), asked.arms, kind, BIG)
    assert {case.search for one in found for case in one.cases} == {search}
    asked = request_of(name, {"search": FULL})
    found = plan(network(name), asked.arms, kind, BIG)
    assert {case.search for one in found for case in one.cases} == {FULL}


def test_a_run_is_gone_on_with_as_it_searched(tmp_path: Path) -> None:
    assert request_of("resnet50", {"resume": PUBLISHED}).arms.base.search == FULL
    new = tmp_path / "run.json"
    run = read_run(PUBLISHED)
    briefly = [replace(t, case=replace(t.case, search=SHORT)) for t in run.of(Training)]
    write_run(replace(run, others=tuple(briefly)), new)
    assert request_of("resnet50", {"resume": new}).arms.base.search == SHORT
    assert request_of("resnet50", {"resume": new, "search": FULL}).arms.base.search == FULL


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"recipe": "fp23"}, "fp23"),
        ({"layout": "chwn"}, "chwn"),
        ({"graph": True, "accumulate": 2}, "--accumulate"),
        ({"graph": True, "fused": False}, "--no-fused"),
        ({"ladder": True, "recipe": "amp"}, "--recipe"),
        ({"ladder": True, "layout": "nhwc"}, "--layout"),
        ({"ladder": True, "amp": True}, "--amp"),
        ({"ladder": True, "compile": True}, "--compile"),
        ({"ladder": True, "graph": True}, "--graph"),
        ({"ladder": True, "accumulate": 2}, "--accumulate"),
    ],
)
def test_words_that_mean_nothing_are_named_in_one_line(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError) as caught:
        cases(**options)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("optimizer", ["lion"]),
        ("accumulate", [0]),
        ("label_smoothing", [1.0, -0.1, float("nan")]),
        ("loss_scale", [0.0, -1.0, float("nan"), float("inf"), 2 * MAX_SCALE]),
        ("workers", [-1]),
        ("prefetch", [0]),
        ("cpus", [0, 10**6]),
        ("on_worker_death", ["shrug"]),
        ("iterations", [0]),
        ("seed", [-1, 2**31]),
        ("lr", [0.0, float("inf"), float("nan")]),
        ("warmup", [-1]),
        ("clip", [0.0, -1.0, float("inf"), float("nan")]),
        ("held_out", [0, -3]),
        ("memory_limit", ["16", "0GB", "-1GB", "much", "16TB"]),
        ("freeze", ["head", ""]),
        ("weights", ["no/such/file.pth"]),
        ("schedule", ["cosin", "cosine:0", "triangle:101", "step:75,50", "step:50/0.5", "step:"]),
        ("budget", [0.0, float("nan")]),
    ],
)
def test_values_that_mean_nothing_are_named_in_one_line(option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UserError) as caught:
            request_of("cnn-cifar", {option: value})
        assert f"--{option.replace('_', '-')}" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_greatest_scale_is_allowed() -> None:
    assert request_of("cnn-cifar", {"loss_scale": MAX_SCALE}).arms.base.loss_scale == MAX_SCALE


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GB", 16 * 10**9), ("1.5 gb", 15 * 10**8), ("2GiB", 2**31), ("800MB", 8 * 10**8)],
)
def test_sizes_of_memory(text: str, size: int) -> None:
    assert request_of("cnn-cifar", {"memory_limit": text}).arms.base.memory_limit == size


def test_a_card_with_little_memory_is_planned_for_as_one() -> None:
    small = cases(memory_limit=int(SMALL_CARD_BYTES) - 1)
    assert {case.batch for case in small} == {network().batch // 4}
    for kind, memory in (("cpu", None), ("cuda", 10**9)):
        with pytest.raises(UserError, match="--memory-limit"):
            cases(kind, memory=memory, memory_limit=2 * 10**9)


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


def test_a_cpu_has_no_graphs() -> None:
    with pytest.raises(UserError, match="CUDA"):
        cases("cpu", graph=True)


def test_a_refusal_names_only_what_was_given() -> None:
    with pytest.raises(UserError) as caught:
        cases(ladder=True, accumulate=2)
    assert "--graph" not in str(caught.value), "nobody wrote --graph"


# ---------------------------------------------------------------- the ladder

RUNGS = [
    "fp32", "tf32", "channels_last", "AMP", "fused optimizer", "compile", "CUDA graph",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_each_rung_changes_what_its_name_says(kind: str) -> None:
    (arms,) = planned(kind, ladder=True)
    amp = "amp" if kind == "cuda" else "amp-bf16"
    changes: dict[str, dict[str, Any]] = {
        "tf32": {"recipe": "tf32"},
        "channels_last": {"layout": "nhwc"},
        "AMP": {"recipe": amp},
        "fused optimizer": {"fused": True},
        "compile": {"compile": True},
        "CUDA graph": {"graph": True},
    }
    assert [arm.rung for arm in arms] == RUNGS
    first = arms[0].case
    assert (first.recipe, first.layout, first.fused) == ("fp32", "nchw", False)
    assert not first.compile
    assert not first.graph
    if kind == "cpu":  # which has no tf32: nothing is built on that rung
        assert arms[1].case == replace(first, recipe="tf32")
        arms = [arm for arm in arms if arm.rung != "tf32"]
    for below, arm in pairwise(arms):
        assert arm.rung is not None
        assert changes_between(below.case, arm.case) == changes[arm.rung]
    assert len({arm.case.group for arm in arms}) == 1


def test_a_ladder_of_tokens_has_no_layouts() -> None:
    (arms,) = planned(name="gpt-tiny", ladder=True)
    assert [arm.rung for arm in arms] == [r for r in RUNGS if r != "channels_last"]
    assert {arm.case.layout for arm in arms} == {""}


def test_a_ladder_takes_the_options_it_does_not_vary() -> None:
    options = {"optimizer": "adamw", "label_smoothing": 0.1, "data": "generated"}
    comparisons = planned(ladder=True, loss_scale=128.0, batch="32,64", **options)
    assert [arms[0].case.batch for arms in comparisons] == [32, 64]
    for case in (arm.case for arms in comparisons for arm in arms):
        assert {name: getattr(case, name) for name in options} == options
        assert case.loss_scale == (128.0 if case.recipe == "amp" else None)


def test_arms_off_a_ladder_have_no_rungs() -> None:
    assert all(arm.rung is None for arms in planned() for arm in arms)


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("text", "shape"), [(None, None), (" 3X224X224 ", (3, 224, 224)), ("512", (512,))]
)
def test_shapes_are_read(text: str | None, shape: tuple[int, ...] | None) -> None:
    assert parse_shape(text) == shape


@pytest.mark.parametrize(
    "text",
    ["", "x", "3x", "x3", "3,224,224", "3x-1x4", "3x2.5", "1x2x3x4x5", "12345678901", "3 x 4", "²"],
)
def test_shapes_that_cannot_be_read_are_shown(text: str) -> None:
    with pytest.raises(UserError, match="--input") as caught:
        parse_shape(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [("gpt-tiny", "0"), ("cnn-cifar", "3x0x32")])
def test_no_network_takes_a_side_of_nothing(name: str, text: str) -> None:
    with pytest.raises(UserError, match="--input"):
        find(name, input=parse_shape(text))


@given(st.lists(st.integers(1, 10**9 - 1), min_size=1, max_size=4))
def test_every_shape_is_read_back(shape: list[int]) -> None:
    assert parse_shape("x".join(map(str, shape))) == tuple(shape)


@given(st.text(max_size=12))
def test_whatever_is_written_gives_a_shape_or_an_error_for_the_user(text: str) -> None:
    with suppress(UserError):
        shape = parse_shape(text)
        assert shape
        assert len(shape) <= 4
