"""The depthwise Triton kernels: right in the interpreter, on every GPU, and what they compile to.

TRITON_INTERPRET must be set before triton is imported, so the interpreted passes run in a process
of their own: this file, as a script, prints {case: [error, tolerance]}.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from samples.convolutions import operands
from samples.hopper import assembled

from kernels.case import Case, Target
from kernels.conv import OP
from kernels.conv.shape import PASSES, ConvShape
from kernels.conv.triton import PRECISIONS as OF_CONVOLUTIONS
from kernels.conv.triton import backend, data_config, wgrad_config
from kernels.precision import PRECISIONS, Precision

HOPPER, SMS = (9, 0), 132
FEW_SMS = 3  # for which little is split
PRECISIONS_HERE = [name for name in OF_CONVOLUTIONS if not PRECISIONS[name].is_float8]
H200 = Target("cuda", "NVIDIA H200", HOPPER, SMS)


def depthwise(
    n: int, c: int, h: int, w: int, r: int, s: int,
    stride: int = 1, padding: int = 1, dilation: int = 1,
) -> ConvShape:  # fmt: skip
    return ConvShape(n, c, h, w, c, r, s, stride, padding, dilation, c)


SHAPES = {
    "3x3": depthwise(2, 40, 7, 9, 3, 3),
    "3x3/2": depthwise(1, 64, 8, 12, 3, 3, 2),
    "3x3/2 odd, 37 channels": depthwise(2, 37, 9, 7, 3, 3, 2),
    "5x5/2, padding 2": depthwise(1, 16, 9, 11, 5, 5, 2, 2),
    "3x3/3": depthwise(1, 16, 10, 9, 3, 3, 3, 0),
    "2x3/4, wider than the kernel": depthwise(1, 8, 9, 14, 2, 3, 4),
    "7x7, padding 3": depthwise(1, 20, 9, 8, 7, 7, 1, 3),
    "7x2/2, dilation 3": depthwise(1, 5, 23, 8, 7, 2, 2, 1, 3),
    "dilation 2": depthwise(1, 24, 9, 10, 3, 3, 1, 2, 2),
    "stride 2, dilation 2": depthwise(1, 24, 8, 10, 3, 3, 2, 2, 2),
    "padding 3": depthwise(1, 2, 4, 3, 3, 3, 1, 3),
    "1x1": depthwise(2, 33, 5, 7, 1, 1, 1, 0),
    "1x1/2": depthwise(2, 33, 5, 7, 1, 1, 2, 0),
    "11x11": depthwise(1, 8, 13, 12, 11, 11, 1, 5),
}


def found(shape: ConvShape, which: str, kind: Precision, cap: tuple[int, int], sms: int = SMS):
    rules = wgrad_config if which == "wgrad" else data_config
    return rules.choices(shape, which, kind, cap, sms)


def interpreted() -> dict[str, tuple[str, str, str, str]]:
    """Name -> (label, pass, shape, precision): every shape and pass; precisions, tiles in turn."""
    cases: dict[str, tuple[str, str, str, str]] = {}
    for turn, (name, which) in enumerate(itertools.product(SHAPES, PASSES)):
        precision = PRECISIONS_HERE[(turn + turn // 3) % 3]
        able = found(SHAPES[name], which, PRECISIONS[precision], (8, 0), FEW_SMS)
        label = able[turn * 7 % len(able)].label
        cases[f"{name} {which} {precision} {label}"] = (label, which, name, precision)
    return cases


def interpret() -> None:
    """Run all of `interpreted` and print errors and tolerances as JSON."""
    errors = {}
    for name, (label, which, shape, precision) in interpreted().items():
        kind = PRECISIONS[precision]
        errors[name] = [error(label, which, SHAPES[shape], kind), kind.rel_tolerance]
    print(json.dumps(errors))


def error(label: str, which: str, shape: ConvShape, kind: Precision) -> float:
    """||out - reference|| / ||reference||, against float64."""
    from kernels.conv.check import reference

    drawn = operands(shape, which, kind)
    inputs = {name: getattr(drawn, name).double() for name in "xwy"}
    inputs = {name: t for name, t in inputs.items() if not t.isnan().all()}
    for step in bound(label, which, drawn, kind):
        step.launch()
    expected = reference(which, inputs, shape)
    return float((drawn.output.double() - expected).norm() / expected.norm())


def bound(label: str, which: str, drawn: Any, kind: Precision):
    from kernels.conv.triton import data_launch, wgrad_launch

    launch: Any = wgrad_launch if which == "wgrad" else data_launch
    return launch.bind(backend.parse(label), drawn, kind, SMS)


@pytest.mark.parametrize("name", list(interpreted()))
def test_right_in_the_interpreter(name: str, errors: dict[str, list[float]]):
    error, tolerance = errors[name]
    assert error <= tolerance


def test_tiles_splits_and_taps_of_every_kind_are_interpreted():
    assert {(which, precision) for _, which, _, precision in interpreted().values()} == {
        *itertools.product(PASSES, PRECISIONS_HERE)
    }
    configs = [backend.parse(label) for label, *_ in interpreted().values()]
    data = [c for c in configs if isinstance(c, data_config.Config)]
    sums = [c for c in configs if isinstance(c, wgrad_config.Config)]
    assert {c.box[1] for c in data} == {1, 2, 4, 8}
    assert {c.rows for c in sums} == {1, 2, 4}
    assert {c.splits > 1 for c in sums} == {True, False}
    assert {c.taps > 1 for c in sums} == {c.bc > 1 for c in sums} == {True, False}


@pytest.mark.parametrize("cap", [(0, 0), (7, 5), (8, 0), (9, 0), (12, 0)])
@pytest.mark.parametrize("which", PASSES)
def test_every_gpu_has_choices_that_read_back(which: str, cap: tuple[int, int]):
    target = Target("cuda", "unknown", cap, SMS)
    for shape, precision in itertools.product(SHAPES.values(), PRECISIONS_HERE):
        case = Case("conv", dict(vars(shape)) | {"pass": which}, precision, "triton", "nhwc")
        assert backend.cannot_run(case, target) is None
        ranked = backend.ranked(case, target)
        assert len(set(ranked)) == len(ranked) > 1
        assert {config.kernel.split("_")[1] for config in ranked} == {"depthwise"}
        assert all(backend.valid(config, case, target) for config in ranked)
        assert [backend.parse(config.label) for config in ranked] == list(ranked)


@pytest.mark.parametrize("which", PASSES)
def test_dense_and_grouped_convolutions_get_other_kernels(which: str):
    for groups, k in ((1, 64), (4, 64), (32, 64)):
        shape = ConvShape(16, 32 if groups == 32 else 64, 28, 28, k, 3, 3, 1, 1, 1, groups)
        case = Case("conv", dict(vars(shape)) | {"pass": which}, "fp16", "triton", "nhwc")
        label = ("wgrad_depthwise/1x16x64x3/t3/r2/s1/w4/x8" if which == "wgrad"
                 else "conv_depthwise/1x4x16x64x1/s1/w4")  # fmt: skip
        assert not backend.valid(backend.parse(label), case, H200)


def test_a_float32_product_may_be_exact_here_alone():
    dims = dict(vars(SHAPES["3x3"])) | {"pass": "fprop"}
    assert OP.may_run_exactly(Case("conv", dims, "tf32", "triton", "nhwc"))
    assert not OP.may_run_exactly(Case("conv", dims, "fp16", "triton", "nhwc"))
    dense = dims | {"groups": 1}
    assert not OP.may_run_exactly(Case("conv", dense, "tf32", "triton", "nhwc"))


LAYERS = {
    "3x3 of 96": depthwise(64, 96, 56, 56, 3, 3),
    "3x3/2 of 144": depthwise(64, 144, 56, 56, 3, 3, 2),
    "7x7 of 192": depthwise(64, 192, 28, 28, 7, 7, 1, 3),
    "3x3 of 97": depthwise(64, 97, 28, 28, 3, 3),
}


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, "fp16") for name in LAYERS] + [("3x3 of 96", "bf16"), ("3x3 of 96", "tf32")],
)
def test_first_choices_stay_in_registers(name: str, precision: str, which: str, tmp_path: Path):
    shape, kind = LAYERS[name], PRECISIONS[precision]
    drawn = operands(shape, which, kind, "meta")
    label = found(shape, which, kind, HOPPER)[0].label
    for step in bound(label, which, drawn, kind):
        built: Any = step.compile()
        ptx, log, spilled = assembled(built, tmp_path)
        assert spilled == 0, log
        assert "mma" not in ptx
        if "depthwise" not in step.kernel.__name__:
            continue
        assert "fma.rn.f32" in ptx
        # Rows come in words of 8 or 16 bytes where channels are aligned.
        wide = bool(re.search(r"ld\.global\.v[24]\.b32", ptx))
        assert wide == (shape.c % 16 == 0)
        if which == "wgrad":
            config = wgrad_config.parse(label)
            assert built.metadata.shared <= wgrad_config.shared_memory(config, shape, kind)
        else:
            assert built.metadata.shared == 0


if __name__ == "__main__":
    interpret()
