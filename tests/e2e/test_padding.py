"""Products of odd sizes are found, and padded ones are valid calls of the right shapes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from samples.train_cases import case_of
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from e2e.aten import Pool, TensorSpec, describe, kind_of, materialise
from e2e.networks import find
from e2e.prediction.padding import Padding, padding
from e2e.prediction.predictor import trace
from e2e.prediction.trace.recorder import TracedOp

CPU = torch.device("cpu")
ATEN = torch.ops.aten
CLASSES = 1001


class Odd(nn.Module):
    """Convolutions of 33 channels, and 1,001 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 33, 5, stride=2)
        self.body = nn.Conv2d(33, 33, 3, bias=False)
        self.grouped = nn.Conv2d(33, 33, 3, groups=33)
        self.up = nn.ConvTranspose2d(33, 64, 2)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Images to classes."""
        x = self.grouped(self.body(self.stem(x)).relu())
        return self.head(self.up(x).mean((2, 3)))


@cache
def products(recipe: str = "amp-bf16", layout: str = "nhwc") -> list[TracedOp]:
    """Of one step."""
    network = replace(
        find("cnn-cifar"), name="odd", build=partial(Odd), input=(3, 16, 16), classes=CLASSES
    )
    case = case_of(network, 4, recipe=recipe, layout=layout)
    ops = trace(network, case, CPU, CLASSES).ops
    return [op for op in ops if kind_of(op.call) == "product"]


def paddings(tf32: bool = False, **how: str) -> list[Padding]:
    found = [padding(op.call, tf32) for op in products(**how)]
    return [each for each in found if each is not None]


def shapes(returned: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]


def test_odd_sizes_are_found_forward_and_backward_by_what_the_type_needs() -> None:
    """Of the grouped layer none; of each other one the forward and the backward calls."""
    found = Counter(each.change for each in paddings())
    assert found == {
        "33 to 40 channels": 6,  # the stem, the body, and the transposed one
        "1001 to 1008 features": 3,
    }
    assert paddings(recipe="fp32") == []
    found = Counter(each.change for each in paddings(True, recipe="fp32"))
    assert found["33 to 36 channels"] == 6


def test_padded_calls_run_and_return_padded_shapes() -> None:
    """The batch is never padded: rows of a matrix product that lie apart need no alignment."""
    pool = Pool(CPU)
    for op in products():
        found = padding(op.call, False)
        if found is None:
            continue
        assert 4 not in found.sizes
        returned = materialise(found.call, CPU, pool).launch()
        wanted = [tuple(found.sizes.get(n, n) for n in spec.shape) for spec in op.outputs]
        assert shapes(returned) == wanted, found.call.key
        assert padding(found.call, False) is None, "once is enough"


def test_a_bias_that_stands_for_all_rows_is_padded_and_no_vector_nor_image() -> None:
    bias = TensorSpec((9,), (1,), "float16", "cpu")
    left, right = torch.empty(5, 16).half(), torch.empty(16, 9).half()
    call = describe(ATEN.addmm.default, (left, left, right), {})
    found = padding(replace(call, args=(bias, *call.args[1:])), False)
    assert found is not None
    assert [spec.shape for spec in found.call.tensors] == [(16,), (5, 16), (16, 16)]
    column = describe(ATEN.mm.default, (left[:, :8], right[:8, :1]), {})
    assert padding(column, False) is None
    x, weight = torch.empty(4, 3, 8, 8).half(), torch.empty(64, 3, 3, 3).half()
    args = (x, weight, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)
    assert padding(describe(ATEN.convolution.default, args, {}), False) is None
