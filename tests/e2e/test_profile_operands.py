"""Which sizes of GEMMs, convolutions and attention are misaligned, by how they lie in memory."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.profile.operands import misaligned
from e2e.profile.reader import Span


def op(name: str, *dims: list[int], transposed: tuple[int, ...] = ()) -> Span:
    strides: list[list[int]] = []
    for place, shape in enumerate(dims):
        row = [1] * len(shape)
        for at in range(len(shape) - 2, -1, -1):
            row[at] = row[at + 1] * shape[at + 1]
        if place in transposed:
            row[-2:] = [1, shape[-2]]
        strides.append(row)
    args: dict[str, Any] = {"Input Dims": list(dims), "Input Strides": strides}
    return Span(f"aten::{name}", 0, 1, "1/1", args=args)


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (op("mm", [64, 768], [768, 50257]), "768x50257"),
        (op("mm", [64, 768], [768, 50304]), ""),
        # a head's forward pass, and the two of its backward pass
        (op("addmm", [50257], [64, 768], [768, 50257], transposed=(2,)), "768x50257"),
        (op("mm", [64, 50257], [50257, 768]), "64x50257"),
        (op("mm", [50257, 64], [64, 768], transposed=(0,)), "50257x64"),
        # an odd batch is no misalignment: neither forward nor for the weight's gradient
        (op("addmm", [512], [101, 768], [768, 512], transposed=(2,)), ""),
        (op("mm", [512, 101], [101, 768], transposed=(0,)), ""),
        (op("addmm", [64, 511], [64, 512], [512, 512]), ""),  # the sum is no factor
        (op("bmm", [4, 64, 64], [4, 64, 65]), "4x64x65"),
        (op("bmm", [4, 64, 63], [4, 63, 64]), "4x64x63"),
        (op("convolution", [32, 3, 8, 8], [64, 3, 3, 3]), "32x3x8x8"),
        (op("convolution", [32, 64, 7, 7], [64, 64, 3, 3]), ""),
        (op("convolution", [32, 64, 8, 8], [63, 64, 3, 3]), "63x64x3x3"),
        (op("convolution", [32, 64, 8, 8], [64, 1, 3, 3]), ""),  # depthwise
        (op("convolution_backward", [32, 63, 8, 8], [32, 64, 8, 8], [63, 64, 3, 3]), "63x64x3x3"),
        (op("_scaled_dot_product_flash_attention", [2, 7, 101, 64], [2, 7, 101, 64]), ""),
        (op("_scaled_dot_product_flash_attention", [2, 8, 64, 60], [2, 8, 64, 60]), "2x8x64x60"),
        (op("linear", [64, 768], [1021, 768]), "1021x768"),
        (op("mv", [768, 512], [512]), ""),
        (op("convolution", [32, 3]), ""),
    ],
)  # fmt: skip
def test_only_what_lies_odd_in_memory_is_misaligned(operator: Span, said: str) -> None:
    assert misaligned([operator]) == said


def test_without_strides_rows_lie_one_after_the_other() -> None:
    bare = Span("aten::mm", 0, 1, "1/1", args={"Input Dims": [[64, 771], [771, 64]]})
    assert misaligned([bare]) == "64x771"
