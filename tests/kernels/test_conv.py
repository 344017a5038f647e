"""Op conv: geometry, work, and a check that sees what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.convolutions import by_torch

from kernels.case import Candidate, Case, Target
from kernels.checking import reference, relative_error
from kernels.conv import OUTPUT, Conv
from kernels.conv.shape import PASSES, ConvShape, of_axes
from kernels.data import OperandPool
from kernels.op import Session
from kernels.precision import PRECISIONS

CPU = Target("cpu", "a CPU")
SHAPES = {
    "3x3": {},
    "1x1": {"r": 1, "s": 1, "padding": 0},
    "stride 2": {"stride": 2},
    "1x1 stride 2": {"r": 1, "s": 1, "padding": 0, "stride": 2},
    "7x7 stride 2": {"r": 7, "s": 7, "padding": 3, "stride": 2, "h": 15, "w": 13, "c": 3},
    "dilated": {"dilation": 2, "padding": 2},
    "odd, unpadded, unequal": {"h": 7, "w": 10, "c": 5, "k": 7, "padding": 0},
    "flat kernel": {"r": 1, "s": 5, "padding": 2},
    "1-D": {"h": 1, "w": 40, "r": 1, "s": 7, "padding": "0x3"},
    "by axis": {"r": 3, "s": 5, "stride": "1x2", "padding": "1x4", "dilation": "1x2"},
    "two groups": {"groups": 2},
    "depthwise": {"c": 8, "k": 16, "groups": 8},
}


def conv(
    which: str = "fprop", layout: str = "nchw", precision: str = "fp32", **dims: int | str
) -> Case:
    plain = {"n": 2, "c": 8, "h": 9, "w": 9, "k": 12, "r": 3, "s": 3,
             "stride": 1, "padding": 1, "dilation": 1, "groups": 1}  # fmt: skip
    return Case(Conv(ConvShape(**{**plain, **dims}), which, layout), precision, "cpu")


@pytest.mark.parametrize("dims", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("which", PASSES)
def test_the_back_end_is_right_and_so_is_the_reference(which, layout, dims) -> None:
    case = conv(which, layout, **dims)
    session = Session(CPU, seed=1)
    prepared = session.prepare(case)
    error = prepared.rel_error(prepared.candidates[0])
    assert 0 <= error < case.precision.rel_tolerance
    assert prepared.total_error() < case.precision.rel_tolerance
    operands = session.pool.get(case)
    inputs = {name: getattr(operands, name).double() for name in "xwy" if name != OUTPUT[which]}
    ours = reference(which, inputs, operands.shape)
    torch.testing.assert_close(ours, by_torch(operands))


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("which", PASSES)
def test_every_precision_keeps_its_tolerance(which: str, precision: str) -> None:
    case = conv(which, "nhwc", precision)
    prepared = Session(CPU, seed=2).prepare(case)
    stored = prepared.rel_error(prepared.candidates[0])
    assert stored <= case.precision.rel_tolerance
    if precision in ("fp16", "bf16"):
        assert prepared.total_error() > stored  # rounding of the inputs comes on top


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(
    "dims",
    [{}, {"n": 9}, {"c": 40, "k": 48}, {"c": 16, "k": 16, "groups": 16}],
    ids=["whole", "images sampled", "channels sampled", "depthwise"],
)
def test_a_single_wrong_element_anywhere_is_seen(which: str, dims: dict[str, int]) -> None:
    case = conv(which, **dims)
    session = Session(CPU, seed=3)
    prepared = session.prepare(case)
    right = prepared.candidates[0].call
    for place in (0, -1, 1234567):

        def wrong(place: int = place) -> torch.Tensor:
            out = right().clone()
            flat = out.view(-1)
            flat[place % flat.numel() if place > 0 else place] += 20 * out.std()
            return out

        assert prepared.rel_error(Candidate("wrong", wrong)) > 100 * case.precision.rel_tolerance


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_layout_is_how_tensors_lie_in_memory(layout: str) -> None:
    operands = OperandPool(CPU, 6).get(conv(layout=layout))
    last = {"nchw": 3, "nhwc": 1}[layout]
    for tensor in (operands.x, operands.w, operands.y):
        assert tensor.stride(last) == 1
    assert relative_error(replace(operands, y=torch.full_like(operands.y, float("nan")))) > 1e300


def by_axis(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(least, most), st.integers(least, most))


@settings(max_examples=60)
@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 12), st.integers(1, 12),
    st.integers(1, 4), st.integers(1, 4), by_axis(1, 3), by_axis(0, 3), by_axis(1, 2),
    st.integers(1, 3),
)  # fmt: skip
def test_geometry_is_torchs(n, c, h, w, r, s, stride, padding, dilation, groups) -> None:
    written = {"stride": of_axes(*stride), "padding": of_axes(*padding)}
    dims = dict(n=n, c=c * groups, h=h, w=w, k=2 * groups, r=r, s=s, **written,
                dilation=of_axes(*dilation), groups=groups)  # fmt: skip
    numbers = zip((r, s), (h, w), dilation, padding, strict=True)
    fits = all(step * (a - 1) + 1 <= b + 2 * pad for a, b, step, pad in numbers)
    if not fits:
        with pytest.raises(ValueError, match="does not fit"):
            ConvShape(**dims)
        return
    shape = ConvShape(**dims)
    x = torch.zeros(n, c * groups, h, w)
    y = torch.nn.functional.conv2d(
        x, torch.zeros(2 * groups, c, r, s), None, stride, padding, dilation, groups
    )
    assert tuple(y.shape) == (n, shape.k, shape.p, shape.q)
    assert shape.flops == 2 * y.numel() * c * r * s
    for which in ("fprop", "wgrad"):
        m, columns, depth = shape.gemm(which)
        assert shape.flops == 2 * m * columns * depth * groups


def test_bytes_of_what_a_pass_must_touch() -> None:
    plain = conv("fprop", precision="fp16", padding=1)
    x, w, y = 2 * 8 * 81, 12 * 8 * 9, 2 * 12 * 81
    assert plain.min_bytes == 2 * (x + w + y)
    strided = conv("fprop", precision="fp16", r=1, s=1, padding=0, stride=2)
    assert strided.min_bytes == 2 * (2 * 8 * 25 + 12 * 8 + 2 * 12 * 25)
    # dgrad writes all of dx, zeros too
    dgrad = conv("dgrad", precision="fp16", r=1, s=1, padding=0, stride=2)
    assert dgrad.min_bytes == 2 * (x + 12 * 8 + 2 * 12 * 25)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"groups": 5}, "is not divisible"),
        ({"r": 12}, "does not fit"),
        ({"stride": 0}, "stride must be at least 1"),
        ({"padding": -1}, "padding must be at least 0"),
        ({"stride": "2x0"}, "stride must be at least 1"),
        ({"dilation": "2x"}, "rows x columns as 1x2, not '2x'"),
        ({"padding": "-1x2"}, "rows x columns as 1x2, not '-1x2'"),
    ],
)
def test_what_is_no_convolution_says_why(change: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        conv(**change)


def test_numbers_of_both_axes_are_one_in_the_key_and_alignment_is_that_of_a_pixel() -> None:
    square = ConvShape(2, 8, 9, 9, 12, 3, 3, "2x2", "1x1", "1x1")
    assert square == ConvShape(2, 8, 9, 9, 12, 3, 3, 2, 1, 1)
    assert vars(ConvShape(2, 8, 1, 40, 12, 1, 7, 1, "0x3"))["padding"] == "0x3"
    what = conv(padding="0x3", h=1, w=40, r=1, s=7)
    assert "stride=1,padding=0x3,dilation=1" in what.key
    named = OperandPool(CPU, 1).get(what).named  # what a user's function may ask for
    assert (named["stride"], named["padding"], named["dilation"]) == (1, (0, 3), 1)

    def misaligned(what: Case) -> tuple[str, int] | None:
        return what.problem.misaligned(what.precision)

    off = conv(precision="fp16", c=60, k=60)
    assert misaligned(off) == ("C=60", 120)
    padded = off.aligned
    assert padded.problem.size == "64"
    assert misaligned(padded) is None
    assert misaligned(conv(precision="fp32", c=60, k=60)) is None
    image = conv(precision="fp16", c=3, k=64)
    assert misaligned(image) == ("C=3", 6)
    assert image.aligned == image, "an image has the channels that it has"
    assert conv(precision="fp16", c=3, k=60).aligned == conv(precision="fp16", c=3, k=64)


@pytest.mark.parametrize(("stride", "kernel", "dilation"), [(1, 3, 1), (2, 1, 1), (3, 2, 2)])
def test_touched_pixels_are_counted_at_once_however_wide_the_padding(
    stride: int, kernel: int, dilation: int
) -> None:
    for padding in (0, 1, 3):
        shape = ConvShape(1, 1, 9, 9, 1, kernel, kernel, stride, padding, dilation)
        touched = {
            row
            for output in range(shape.p)
            for tap in range(kernel)
            if 0 <= (row := output * stride - padding + tap * dilation) < 9
        }
        assert shape.elements("x") == len(touched) ** 2
    wide = ConvShape(1, 1, 9, 9, 1, kernel, kernel, stride, 10**8, dilation)
    assert 0 < wide.elements("x") <= 81


def test_tolerances_tell_float32_from_tf32_and_missing_filters_from_rounding() -> None:
    stem = dict(n=256, c=3, h=224, w=224, k=64, r=7, s=7, padding=3, stride=2)
    tf32_errs, bf16 = 3e-4, PRECISIONS["bf16"]
    assert conv("wgrad", precision="fp32", **stem).tolerance < tf32_errs / 2
    assert conv("wgrad", precision="bf16", **stem).tolerance == bf16.rel_tolerance
    assert 1.4e-3 < conv("wgrad", precision="fp16", **stem).tolerance <= 2e-3
