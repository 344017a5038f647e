"""NCHW through the Triton convolutions: right in the interpreter, and what is copied.

TRITON_INTERPRET must be set before triton is imported, so the passes run in a process of their own:
this file, as a script, prints {case: [error, tolerance]}.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from samples.hopper import assembled

from kernels.case import Case, Target
from kernels.conv import OP
from kernels.conv.operands import INPUTS, OUTPUT, without_memory
from kernels.conv.shape import PASSES, ConvShape
from kernels.conv.triton import backend, layouts

A100 = Target("cuda", "NVIDIA A100-SXM4-80GB", (8, 0), 2)  # whose kernels have an interpreter
H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
SHAPES = {
    "3x3": ConvShape(2, 24, 5, 7, 40, 3, 3, 1, 1),
    "more rows and columns than a tile": ConvShape(1, 72, 9, 31, 8, 1, 1, 1, 0),
    "three channels, stride 2": ConvShape(2, 3, 9, 8, 5, 3, 2, 2, 1),
    "one channel": ConvShape(2, 1, 6, 5, 4, 3, 3, 1, 1),
    "one filter": ConvShape(2, 6, 6, 5, 1, 3, 3, 1, 1),
    "one pixel": ConvShape(3, 8, 1, 1, 16, 1, 1, 1, 0),
    "one pixel comes out": ConvShape(3, 8, 3, 3, 16, 3, 3, 1, 0),
    "depthwise": ConvShape(2, 12, 7, 6, 12, 3, 3, 1, 1, 1, 12),
}
NAMES = [f"{which} {precision} {name}"
         for name in SHAPES for which in PASSES for precision in ("fp16", "tf32")]  # fmt: skip


def case_of(name: str, layout: str = "nchw") -> Case:
    which, precision, shape = name.split(" ", 2)
    return Case("conv", {**vars(SHAPES[shape]), "pass": which}, precision, "triton", layout)


def interpret() -> None:
    """Run all of NAMES and print errors and tolerances as JSON."""
    import torch
    from samples.convolutions import operands
    from torch.nn.grad import conv2d_input, conv2d_weight

    errors = {}
    for name in NAMES:
        case = case_of(name)
        shape, which = ConvShape.of(case), str(case.dims["pass"])
        last = operands(shape, which, case.precision)
        drawn = replace(last, **{one: getattr(last, one).contiguous() for one in "xwy"})
        (candidate,) = backend.candidates(case, drawn, A100)
        before = {one: getattr(drawn, one).clone() for one in "xwy"}
        candidate.call()
        x, w, y = (getattr(drawn, one).double() for one in "xwy")
        how = {"stride": shape.stride, "padding": shape.padding, "dilation": shape.dilation,
               "groups": shape.groups}  # fmt: skip
        if which == "fprop":
            expected = torch.nn.functional.conv2d(x, w, None, **how)
        elif which == "dgrad":
            expected = conv2d_input(drawn.x.shape, w, y, **how)
        else:
            expected = conv2d_weight(x, drawn.w.shape, y, **how)
        error = float((drawn.output.double() - expected).norm() / expected.norm())
        untouched = all(
            getattr(drawn, one).equal(before[one])
            for one in "xwy"
            if getattr(drawn, one) is not drawn.output
        )
        errors[name] = [error if untouched else float("inf"), OP.tolerance(case)]
    print(json.dumps(errors))


@pytest.fixture(scope="module")
def errors() -> dict[str, list[float]]:
    from samples.interpreting import errors_of

    return errors_of(__file__)


@pytest.mark.parametrize("name", NAMES)
def test_right_in_the_interpreter(name: str, errors: dict[str, list[float]]) -> None:
    error, tolerance = errors[name]
    assert error <= tolerance


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("shape", SHAPES)
def test_copies_are_those_of_tensors_whose_layouts_differ(which: str, shape: str) -> None:
    import torch

    case = case_of(f"{which} fp16 {shape}")
    contiguous = without_memory(case)
    last, before, after = layouts.channels_last(contiguous)
    differ = {
        name: getattr(contiguous, name).shape[1] > 1 and getattr(contiguous, name)[0, 0].numel() > 1
        for name in "xwy"
    }
    output = OUTPUT[which]
    assert len(before) == sum(differ[name] for name in INPUTS[which])
    assert len(after) == differ[output]
    for name in "xwy":
        own, copy = getattr(contiguous, name), getattr(last, name)
        assert copy.shape == own.shape
        assert copy.is_contiguous(memory_format=torch.channels_last)
    for step, name in zip([*before, *after], [n for n in (*INPUTS[which], output) if differ[n]],
                          strict=True):  # fmt: skip
        tensor = getattr(contiguous, name)
        sides = {tensor.shape[1], tensor.shape[2] * tensor.shape[3]}
        assert {step.args[2], step.args[3]} == sides


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_choice_is_that_of_nhwc(which: str, shape: str) -> None:
    found = []
    for layout in ("nchw", "nhwc"):
        case = case_of(f"{which} fp16 {shape}", layout)
        assert backend.cannot_run(case, H200) is None
        found.append(backend.configuration(case, H200))
    assert found[0] == found[1]


@pytest.mark.usefixtures("hopper")
def test_the_copy_compiles_for_hopper_and_spills_nothing(tmp_path: Path) -> None:
    _, before, _ = layouts.channels_last(without_memory(case_of("fprop fp16 3x3")))
    assert len(before) == 2
    for step in before:
        ptx, _, spilled = assembled(step.compile(), tmp_path)
        assert spilled == 0
        assert "ld.global" in ptx


if __name__ == "__main__":
    interpret()
