"""Every Triton kernel in Triton's interpreter, against float64.

TRITON_INTERPRET must be set before triton is imported, so that the kernels run in a process of
their own: this file, as a script, prints {case: [error, tolerance]}. Gluon has no interpreter:
test_gluon_conv.py. bf16 is not here: the interpreter's dot is silently wrong on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from samples.convolutions import by_torch, operands
from torch import Tensor

from kernels.case import Case, Target
from kernels.conv.shape import ConvShape
from kernels.gemm import Gemm
from kernels.precision import PRECISIONS

ROOT = Path(__file__).parents[2]
PROGRAMS = 3  # "SMs" that persistent kernels see
CPU = Target("cpu", "cpu")

# ------------------------------------------------------------ GEMM: label, precision, size, layout

TMA, PERSISTENT = "tma/32x32x16/s2/w4/g2", "tma_persistent/32x64x16/s2/w4/g8/sub4"
POINTER = "pointer/32x32x16/s2/w4/g4"
SPLIT_K, SWAPPED = "split_k/32x32x16/s2/w4/g2/k3", "split_k/16x64x16/s2/w4/g8/k2/swapped"
ODD, ODD_SWAPPED = "odd_width/32x48x16/s2/w4/g2", "odd_width/80x64x16/s2/w4/g8/swapped"
GEMM_LABELS = (TMA, PERSISTENT, POINTER, SPLIT_K, SWAPPED, ODD, ODD_SWAPPED)
DIRECT = {TMA: TMA + "/direct", PERSISTENT: PERSISTENT + "/direct"}  # rows of C not on 16 bytes
WHOLE, TAILS = (64, 104, 48), (41, 70, 37)
Product = tuple[str, str, tuple[int, int, int], str]
GEMMS: tuple[Product, ...] = (
    *((label, "fp16", WHOLE, layout) for label in GEMM_LABELS for layout in ("nt", "tn")),
    *((DIRECT.get(label, label), "fp16", TAILS, layout)
      for label in GEMM_LABELS for layout in ("nn", "tt")),
    (DIRECT[TMA], "fp16", (41, 67, 36), "nt"), (DIRECT[TMA], "fp16", (41, 67, 38), "nn"),
    (DIRECT[PERSISTENT], "int8", (67, 33, 50), "nn"), (POINTER, "int8", (67, 33, 50), "nt"),
    ("tma/32x32x32/s2/w4/g2", "fp8-e4m3", (48, 80, 48), "nn"),
    ("tma/32x32x32/s2/w4/g2/sub2", "fp8-e5m2", (48, 80, 48), "tt"),
    ("split_k/64x32x32/s2/w4/g8/k2", "tf32", (48, 80, 48), "nn"),
    ("split_k/32x32x32/s2/w4/g2/swapped", "tf32", (17, 80, 48), "nt"),
    ("odd_width/96x64x32/s2/w4/g8/swapped", "tf32", (17, 80, 52), "nn"),
    *((POINTER, "fp16", (40, 72, 24), layout) for layout in ("nn", "tt")),  # sizes in UNITS of 8
    (POINTER, "fp16", (41, 72, 24), "nt"), (POINTER, "tf32", (36, 67, 20), "tn"),
    (POINTER, "fp16", (1, 1, 1), "nt"), (DIRECT[TMA], "fp16", (33, 1, 5), "nt"),
    (SWAPPED, "fp16", (1, 40, 64), "nt"), (SWAPPED, "fp16", (1, 40, 72), "tn"),
    (SWAPPED, "fp16", (3, 40, 70), "tn"),
    ("split_k/32x32x16/s2/w4/g2/k5", "fp16", (40, 5, 70), "nn"),
    (POINTER, "fp16", (1, 40, 70), "tn"), (DIRECT[TMA], "fp16", (40, 1, 72), "tn"),
)  # fmt: skip

# ------------------------------------------------------------ convolutions: label, pass, shape

# (n, c, h, w, k, r, s, stride, padding, dilation)
SHAPES = {
    "3x3": (1, 24, 5, 7, 40, 3, 3, 1, 1),
    "3x3/2": (2, 32, 6, 8, 32, 3, 3, 2, 1),
    "3x3/2 odd": (1, 24, 7, 5, 40, 3, 3, 2, 1),
    "3x3/3": (1, 16, 6, 9, 16, 3, 3, 3, 1),
    "3x2/2 unaligned": (2, 3, 7, 5, 5, 3, 2, 2, 1),
    "3x3 unaligned": (2, 18, 7, 9, 13, 3, 3, 1, 1),
    "dilation 2": (1, 16, 5, 7, 16, 3, 3, 1, 2, 2),
    "stride 2 dilation 2": (1, 16, 6, 8, 16, 3, 3, 2, 0, 2),
    "padding 3": (1, 16, 3, 4, 16, 3, 3, 1, 3),
    "1x1": (2, 32, 4, 5, 72, 1, 1, 1, 0),
    "1x1/2": (2, 16, 8, 6, 32, 1, 1, 2, 0),
    "1x1 padded": (2, 16, 4, 5, 16, 1, 1, 1, 1),
    "7x7/2 of 3": (1, 3, 7, 9, 16, 7, 7, 2, 3),
    "many images": (10, 16, 2, 3, 16, 3, 3, 1, 1),
    "5x5 of 20 to 8": (1, 20, 9, 7, 8, 5, 5, 1, 1),
    "3x3 to 5": (2, 40, 6, 9, 5, 3, 3, 1, 1),
    "1x7": (2, 16, 1, 40, 16, 1, 7, 1, "0x3"),
    "3x5 by axis": (2, 18, 5, 21, 13, 3, 5, "1x2", "1x4", "2x1"),
    "one column": (2, 16, 6, 1, 16, 3, 3, 2, 1),
}  # fmt: skip
GATHER, PERSISTENT_CONV = "conv_gather/1x1x64x32x16/s2/w4", "conv_persistent/2x4x4x32x16/s2/w4/sub2"
DATA = {
    "fp16": {
        GATHER: ("3x3", "3x3/2 odd", "3x3/3", "3x2/2 unaligned", "stride 2 dilation 2",
                 "padding 3", "7x7/2 of 3", "1x1/2", "3x5 by axis"),
        "conv_gather/1x1x32x16x64/s2/w4": ("3x3 unaligned", "dilation 2"),
        PERSISTENT_CONV: ("3x3", "dilation 2", "1x1", "1x1 padded", "1x7"),
        "conv_persistent/8x1x1x16x16/s2/w4": ("padding 3", "many images"),
    },
    "fp8-e4m3": {
        "conv_gather/1x1x32x16x64/s2/w4": ("3x2/2 unaligned",),
        "conv_persistent/1x4x8x32x32/s2/w4/sub4": ("many images",),
    },
}  # fmt: skip
WEIGHTS = {
    "wgrad_tma/1x16x64x32/t1/r1/s2/w4/x2": ("3x3/2 odd", "1x1", "stride 2 dilation 2", "1x7"),
    "wgrad_tma/2x8x64x32/t3/r2/s2/w4/x1": ("3x3 unaligned", "padding 3"),
    "wgrad_tma/2x8x64x32/t3/r2/s2/w4/x1/padded": ("3x3",),
    "wgrad_tma/16x1x64x32/t3/r4/s2/w4/x2": ("dilation 2", "3x3/3"),
    "wgrad_tma/16x1x64x32/t1/r2/s2/w4/x20": ("1x1/2",),
    "wgrad_gather/1x32x64x128/t1/r1/s2/w4/x1": ("7x7/2 of 3", "one column"),
    "wgrad_gather/1x16x32x128/t1/r1/s2/w4/x3": ("3x3/2", "padding 3", "dilation 2"),
    "wgrad_gather/1x32x64x32/t1/r1/s2/w4/x2": ("3x2/2 unaligned", "1x1", "3x5 by axis"),
    "wgrad_exchanged/1x32x64x32/t1/r1/s2/w4/x1": ("3x3 to 5",),
    "wgrad_exchanged/1x32x32x64/t1/r1/s2/w4/x2": ("5x5 of 20 to 8", "3x3 unaligned"),
}  # fmt: skip
CONVS = (
    *((label, which, precision, name) for precision, labels in DATA.items()
      for label, names in labels.items() for name in names for which in ("fprop", "dgrad")),
    *((label, "wgrad", "fp16", name) for label, names in WEIGHTS.items() for name in names),
)  # fmt: skip
LONG = (  # as if tensors had more elements than 32 bits count
    *((GATHER, which, "fp16", "3x2/2 unaligned") for which in ("fprop", "dgrad")),
    ("wgrad_gather/1x32x64x32/t1/r1/s2/w4/x2", "wgrad", "fp16", "3x3 unaligned"),
    ("wgrad_exchanged/1x32x32x64/t1/r1/s2/w4/x2", "wgrad", "fp16", "3x3 unaligned"),
)
COPIED = ("fprop", "dgrad")  # copies of conv_gluon


def shape_of(name: str) -> ConvShape:
    return ConvShape(*SHAPES[name])


# ------------------------------------------------------------ in the interpreter

MARGIN = 256  # elements


def guarded(tensor: Tensor) -> Tensor:
    """The tensor in memory that holds NaN before and after it (-1 where it holds integers)."""
    memory = torch.empty(tensor.numel() + 2 * MARGIN, dtype=tensor.dtype)
    memory.view(torch.uint8).fill_(0xFF)
    found = memory.as_strided(tensor.shape, tensor.stride(), MARGIN)
    found.copy_(tensor)
    return found


def margins_hold(tensor: Tensor) -> bool:
    """Whether nothing was written beside a guarded tensor."""
    memory = tensor.as_strided((tensor.numel() + 2 * MARGIN,), (1,), 0).view(torch.uint8)
    width = MARGIN * tensor.element_size()
    return bool((memory[:width] == 0xFF).all() and (memory[-width:] == 0xFF).all())


def gemm_error(label: str, precision: str, size: tuple[int, int, int], layout: str) -> float:
    """Of two launches: one leaves its scratch as it found it."""
    from kernels.checking import poison, relative_error
    from kernels.data import OperandPool
    from kernels.gemm.triton.config import GemmProblem, parse
    from kernels.gemm.triton.launch import Launcher

    case = Case(Gemm(*size, layout), precision, "triton")
    drawn = OperandPool(CPU, seed=0).get(case)
    a, b, c = guarded(drawn.a), guarded(drawn.b), guarded(drawn.c)
    steps = Launcher(GemmProblem.of(case), a, b, c, PROGRAMS).bind(parse(label))
    error = 0.0
    for _ in range(2):
        poison(c)
        for step in steps:
            step.launch()
        error = max(error, relative_error(replace(drawn, a=a, b=b, c=c)))
    return error if margins_hold(c) else float("inf")


def conv_error(label: str, which: str, precision: str, name: str) -> float:
    """||out - reference|| / ||reference||, against torch's in float64."""
    from kernels.conv.triton import backend, data_launch, wgrad_launch
    from kernels.conv.triton.problem import ImplicitGemm

    shape, kind = shape_of(name), PRECISIONS[precision]
    drawn = operands(shape, which, kind)
    drawn = replace(drawn, **{one: guarded(getattr(drawn, one)) for one in "xwy"})
    launch: Any = wgrad_launch if which == "wgrad" else data_launch
    problem = ImplicitGemm(shape, which, kind)
    for step in launch.bind(backend.parse(label), drawn, problem, PROGRAMS):
        step.launch()
    expected = by_torch(drawn)
    error = float((drawn.output.double() - expected).norm() / expected.norm())
    return error if margins_hold(drawn.output) else float("inf")


def long_error(label: str, which: str, precision: str, name: str) -> float:
    from kernels.conv.triton import data_launch, wgrad_launch

    before = data_launch.MAX_INDEX, wgrad_launch.MAX_INDEX
    data_launch.MAX_INDEX = wgrad_launch.MAX_INDEX = 0
    try:
        return conv_error(label, which, precision, name)
    finally:
        data_launch.MAX_INDEX, wgrad_launch.MAX_INDEX = before


def wrong_copies(which: str) -> int:
    """Elements of copies for Gluon that differ from what torch makes, on memory that held NaN."""
    from samples.convolutions import carry_out

    from kernels.conv.triton import backend, gluon_launch
    from kernels.conv.triton.problem import ImplicitGemm

    kind, made = PRECISIONS["fp16"], []
    config = backend.parse("conv_gluon/2x8x8x16x16/s3/w8")
    for launch in (lambda step: step.launch(), lambda step: carry_out([step])):
        drawn = operands(ConvShape(2, 5, 6, 7, 9, 3, 3, 1, 1), which, kind)
        problem = ImplicitGemm(drawn.shape, which, kind)
        copies = gluon_launch.bind(config, drawn, problem, PROGRAMS)[:-1]
        assert len(copies) == 2
        for step in copies:
            copy = step.args[1].view(torch.float16)
            copy.fill_(float("nan"))
            launch(step)
            made.append(copy.clone())
    half = len(made) // 2
    return sum(int((a != b).sum()) for a, b in zip(made[:half], made[half:], strict=True))


def cases() -> Iterator[tuple[str, Callable[[], float], float]]:
    """(name, what gives the error, its tolerance)."""
    for product in GEMMS:
        name = "gemm {} {} {} {}".format(*product)
        yield name, partial(gemm_error, *product), PRECISIONS[product[1]].rel_tolerance
    for conv in CONVS:
        yield " ".join(conv), partial(conv_error, *conv), PRECISIONS[conv[2]].rel_tolerance
    for conv in LONG:
        name = f"64 bits {' '.join(conv)}"
        yield name, partial(long_error, *conv), PRECISIONS[conv[2]].rel_tolerance
    for which in COPIED:
        yield f"copies for {which}", partial(wrong_copies, which), 0.0


@pytest.fixture(scope="module")
def errors() -> dict[str, list[float]]:
    pytest.importorskip("triton")
    environment = os.environ | {
        "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
    }  # fmt: skip
    command = [sys.executable, "-X", "faulthandler", __file__]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.timeout(1200)  # the first waits for all of them, half a minute on an idle core
@pytest.mark.parametrize("name", [name for name, *_ in cases()])
def test_right_in_the_interpreter(name: str, errors: dict[str, list[float]]) -> None:
    error, tolerance = errors[name]
    assert error <= tolerance


def test_every_kernel_is_tried_on_what_its_rules_allow() -> None:
    from kernels.conv.triton import backend
    from kernels.conv.triton.problem import ImplicitGemm
    from kernels.gemm.triton.config import KERNELS

    for label, which, precision, name in (*CONVS, *LONG):
        config = backend.parse(label)
        problem = ImplicitGemm(shape_of(name), which, PRECISIONS[precision])
        allowed = backend.rules(label).valid(config, problem, (9, 0))
        assert allowed, (label, which, precision, name)
    kernels = {*backend.KERNELS} - {"conv_gluon"}
    assert {label.split("/")[0] for label, *_ in CONVS} == kernels
    assert {label.split("/")[0] for label, *_ in GEMMS} == {*KERNELS}


if __name__ == "__main__":
    print(json.dumps({name: [error(), tolerance] for name, error, tolerance in cases()}))
