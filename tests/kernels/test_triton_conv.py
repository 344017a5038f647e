"""Configurations of the Triton convolution: labels, what a shape allows, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples.measuring import refusal

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels.case import Case, Target  # noqa: E402
from kernels.conv import Conv  # noqa: E402
from kernels.conv.operands import unfilled  # noqa: E402
from kernels.conv.shape import PASSES, ConvShape  # noqa: E402
from kernels.conv.triton import backend, data_configs, wgrad_configs  # noqa: E402
from kernels.conv.triton.problem import ImplicitGemm  # noqa: E402
from kernels.gpus import architecture  # noqa: E402

H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
A100 = Target("cuda", "NVIDIA A100-SXM4-80GB", (8, 0), 108)
ALIGNED = ConvShape(16, 64, 28, 28, 64, 3, 3, 1, 1)
SHAPES = {
    "aligned": ALIGNED,
    "odd": ConvShape(2, 3, 7, 5, 5, 3, 2, 2, 1),
    "1x1": ConvShape(2, 40, 5, 7, 72, 1, 1, 1, 0),
    "1x1/2": ConvShape(64, 256, 56, 56, 512, 1, 1, 2, 0),
    "stem": ConvShape(64, 3, 224, 224, 64, 7, 7, 2, 3),
    "dilated": ConvShape(1, 16, 8, 10, 16, 3, 3, 2, 0, 2),
    "of one column": ConvShape(2, 16, 6, 1, 16, 3, 3, 2, 1),
    "wide": ConvShape(64, 512, 7, 7, 2048, 3, 3, 1, 1),
}


def case(shape: ConvShape, which: str, precision: str = "fp16") -> Case:
    return Case(Conv(shape, which), precision, "triton")


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_choices_that_fit_and_read_back(
    name: str, which: str, capability: tuple[int, int]
) -> None:
    shape, target = SHAPES[name], Target("cuda", "unknown", capability, 132)
    for precision in ("fp16", "bf16"):
        what = case(shape, which, precision)
        left_out = refusal(backend.check, what, target)
        assert not left_out or (which == "dgrad" and "stride 2" in left_out)
        assert not left_out or capability != (9, 0), "conv_gluon is fast at stride 2"
        found = backend.configurations(what, target).ranked
        assert len(set(found)) == len(found) > 1
        assert [backend.parse(config.label) for config in found] == list(found)
        problem = ImplicitGemm.of(what)
        rules = backend.rules(found[0].label)
        assert all(rules.valid(config, problem, capability) for config in found)
        kernels = {config.kernel.split("_")[1] for config in found}
        assert capability >= (9, 0) or kernels <= {"gather", "exchanged"}
        for config in found:
            if isinstance(config, wgrad_configs.WgradConfig):
                assert 1 <= config.split_k <= wgrad_configs.steps(config, problem)
            shared = rules.shared_memory(config, problem)
            assert shared <= architecture(capability).block_shared_bytes


@pytest.mark.parametrize(
    ("precision", "changes", "said"),
    [("tf32", {}, "fp16, bf16, fp8"), ("fp16", {"groups": 32}, "no groups"),
     ("fp16", {"layout": "nchw"}, "use --layout nhwc"),
     ("bf16", {"groups": 64}, "no groups"),
     ("fp8-e4m3", {"which": "wgrad"}, "fprop and dgrad")],
)  # fmt: skip
def test_what_it_cannot_run_it_says(precision: str, changes: dict[str, Any], said: str) -> None:
    more = {"which": "fprop"} | {n: changes.pop(n) for n in ("which", "layout") if n in changes}
    what = Case(Conv(replace(ALIGNED, **changes), **more), precision, "triton")
    assert said in refusal(backend.check, what, H200)


@pytest.mark.parametrize(
    ("kernel", "stride", "channels", "passes"),
    [(4, 4, 3, {"dgrad"}), (16, 16, 3, {"dgrad"}), (4, 4, 64, {"dgrad"}),
     (3, "1x3", 128, {"dgrad"}), (7, 2, 3, set()), (3, 1, 3, set()), (1, 3, 16, set())],
)  # fmt: skip
def test_a_strided_gradient_that_would_be_far_below_the_library_is_left_out_with_its_reason(
    kernel: int, stride: int | str, channels: int, passes: set[str]
) -> None:
    shape = ConvShape(64, channels, 224, 224, 96, kernel, kernel, stride)
    reasons = {which: refusal(backend.check, case(shape, which), H200) for which in PASSES}
    assert {which for which, reason in reasons.items() if reason} == passes
    for reason in filter(None, reasons.values()):
        assert f"at stride {stride}: each pixel is multiplied with all {kernel**2} taps" in reason
    tiny = ConvShape(1, channels, 32, 32, 8, kernel, kernel, stride)
    backend.check(case(tiny, "dgrad"), H200)  # the launch takes as long


@pytest.mark.parametrize(
    ("label", "which", "precision", "target"),
    [
        ("wgrad_gather/1x32x64x128/t1/r1/s2/w4/x1", "dgrad", "fp16", H200),
        ("wgrad_gather/1x32x64x128/t1/r1/s2/w4/x1", "wgrad", "fp8-e4m3", H200),
        ("wgrad_tma/1x16x64x32/t1/r1/s2/w4/x2", "wgrad", "fp16", A100),
        ("conv_persistent/4x8x8x64x64/s3/w4/sub2", "fprop", "fp16", A100),
        ("conv_gather/1x1x64x32x64/s3/w4", "wgrad", "fp16", H200),
        ("conv_gluon/1x8x16x64x64/s3/w8", "wgrad", "fp16", H200),
        ("conv_gluon/1x8x16x64x64/s3/w8", "fprop", "fp8-e4m3", H200),
    ],
)
def test_a_configuration_of_another_kind_is_not_valid(
    label: str, which: str, precision: str, target: Target
) -> None:
    config = backend.parse(label)
    assert config.label == label
    problem, capability = ImplicitGemm.of(case(ALIGNED, which, precision)), target.capability
    assert not backend.rules(label).valid(config, problem, capability)


@pytest.mark.parametrize(
    "label",
    ["", "conv_gather", "gemm_tma/1x2x3", "wgrad_tma/x", "wgrad_tma/1x64x64/s4/w4",
     "wgrad_tma/1x16x64x32/t1/r1/s2/w4/x2/", "conv_gather/64x64x64/s4/w4",
     "conv_gather/1x1x1x1x1/s1/w1/", "conv_gather/1x8x8x64/t1/r1/s2/w4/x2",
     "conv_tma/4x4x4x64x64/s3/w4"],
)  # fmt: skip
def test_an_unknown_label_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="not a configuration"):
        backend.parse(label)


# ------------------------------------------------------------ tiles


def launched(label: str, what: Case) -> int:
    """The tiles that a launch covers, by its arguments: programs, or what they share."""
    steps = backend.bind(backend.parse(label), what, unfilled(what, "meta"), H200)
    step = next(step for step in steps if step.kernel.__name__.startswith(label[:5]))  # type: ignore[attr-defined]
    names = step.kernel.arg_names  # type: ignore[attr-defined]
    arguments = dict(zip(names, step.args, strict=True))
    if "tiles" in arguments:
        assert step.grid[0] <= arguments["tiles"]
        return int(arguments["tiles"])
    return int(step.grid[0])


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", ["aligned", "odd", "1x1/2", "wide", "of one column"])
def test_a_candidate_has_the_tiles_that_are_launched(name: str, which: str) -> None:
    what = case(SHAPES[name], which)
    first = {config.kernel: config for config in backend.configurations(what, H200).ranked}
    for config in first.values():
        others = {*first} - {config.kernel}
        target = replace(H200, without=tuple(f"{kernel}/*" for kernel in others))
        (candidate,) = backend.candidates(what, unfilled(what, "meta"), target)
        assert candidate.tiles == launched(candidate.label, what), candidate.label


def test_boxes_past_the_edge_of_an_image_are_tiles_too() -> None:
    """205 tiles would cover these pixels and filters as a matrix; 2 x 5 x 5 boxes, 5 of filters."""
    layer = ConvShape(32, 301, 18, 18, 590, 3, 3, 1, 1)
    label = "conv_gluon/16x4x4x128x64/s3/w8/padded"
    counted = data_configs.tiles(backend.parse(label), ImplicitGemm.of(case(layer, "fprop")))
    assert counted == launched(label, case(layer, "fprop")) == 250
