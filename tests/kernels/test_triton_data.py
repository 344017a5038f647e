"""The Triton fprop and dgrad: right in the interpreter, and what they compile to for sm_90.

TRITON_INTERPRET must be set before triton is imported, so the interpreted products run in a
process of their own: this file, as a script, prints {case: [error, tolerance]}.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from samples.convolutions import operands, resnet
from samples.hopper import SHARED_LIMIT, assembled

from kernels.conv import OP
from kernels.conv.shape import ConvShape
from kernels.conv.triton import data_config as cfg
from kernels.conv.triton.data_config import Config, choices, parse
from kernels.precision import PRECISIONS, Precision

HOPPER = (9, 0)
PASSES = ("fprop", "dgrad")
PROGRAMS = 3  # "SMs" that walking kernels see

# (n, c, h, w, k, r, s, stride, padding, dilation)
ANY_SHAPE = {
    "3x3": (1, 24, 5, 7, 40, 3, 3, 1, 1, 1),
    "3x3/2": (2, 16, 6, 8, 32, 3, 3, 2, 1, 1),
    "3x3/2 odd": (1, 24, 7, 5, 40, 3, 3, 2, 1, 1),
    "3x3/3": (1, 16, 6, 9, 16, 3, 3, 3, 1, 1),
    "5x3 rectangular": (1, 16, 7, 4, 24, 5, 3, 1, 1, 1),
    "dilation 2": (1, 16, 5, 7, 16, 3, 3, 1, 2, 2),
    "stride 2 dilation 2": (1, 16, 6, 8, 16, 3, 3, 2, 0, 2),
    "padding 0": (1, 16, 5, 5, 16, 3, 3, 1, 0, 1),
    "padding 3": (1, 16, 3, 4, 16, 3, 3, 1, 3, 1),
    "1x1": (2, 24, 4, 5, 72, 1, 1, 1, 0, 1),
    "1x1/2": (2, 16, 8, 6, 32, 1, 1, 2, 0, 1),
    "1x1 of 32": (2, 32, 4, 5, 64, 1, 1, 1, 0, 1),
    "1x1 padded": (2, 16, 4, 5, 16, 1, 1, 1, 1, 1),
    "7x7/2 stem": (1, 3, 8, 12, 24, 7, 7, 2, 3, 1),
    "5x5 few channels": (1, 6, 5, 6, 16, 5, 5, 1, 2, 1),
    "7x7/2 odd": (1, 3, 7, 9, 16, 7, 7, 2, 3, 1),
    "many images": (20, 16, 2, 3, 16, 3, 3, 1, 1, 1),
    "nothing aligned": (2, 3, 7, 5, 5, 3, 2, 2, 1, 1),
}  # fmt: skip
# The least tried of each group runs with every shape that it can run: those of a group share what
# reads the shape, and differ in how they walk and store.
TRIED_LABELS = (
    ("conv_tma/2x4x4x32x16/s2/w4/sub2", "conv_persistent/2x4x4x32x16/s2/w4/sub2",
     "conv_tma/1x4x8x32x32/s2/w4/sub4"),
    ("conv_rows/2x4x4x32x32/s2/w4", "conv_rows/2x4x4x32x64/s2/w4"),
    ("conv_rows_persistent/1x4x8x16x32/s2/w4/sub2", "conv_rows_persistent/2x4x4x32x64/s2/w4"),
    ("conv_gemm/1x1x32x32x16/s2/w4",),
    ("conv_gemm_persistent/1x1x32x64x32/s2/w4/sub2",),
    ("conv_resident/1x1x32x32x32/s2/w4/sub2", "conv_resident/1x1x16x64x128/s2/w4/p2"),
    ("conv_gather/1x1x64x32x16/s2/w4", "conv_gather/1x1x32x16x64/s2/w4",
     "conv_gather/1x1x128x16x128/s3/w4"),
)  # fmt: skip
SHAPES_IN = {
    "tf32": ("3x3", "3x3/2", "1x1", "7x7/2 stem"),
    "fp8-e4m3": (
        "3x3/2",
        "dilation 2",
        "padding 3",
        "1x1/2",
        "many images",
        "1x1 of 32",
        "nothing aligned",
        "7x7/2 stem",
    ),
}


def shape_of(name: str) -> ConvShape:
    return ConvShape(*ANY_SHAPE[name])


def interpreted() -> dict[str, tuple[str, str, ConvShape, str]]:
    """Name -> (label, pass, shape, precision): every kernel with every shape it can run.

    bf16 is not here: the interpreter's dot is silently wrong on it.
    """
    found = []
    for name, precision, which in itertools.product(ANY_SHAPE, ("fp16", *SHAPES_IN), PASSES):
        if name not in SHAPES_IN.get(precision, ANY_SHAPE):
            continue
        for group in TRIED_LABELS:
            shape, kind = shape_of(name), PRECISIONS[precision]
            able = [x for x in group if cfg.valid(parse(x), shape, which, kind, HOPPER)]
            if able:
                label = min(able, key=[tried for tried, *_ in found].count)
                found.append((label, which, shape, precision, name))
    for name, label in (
        ("many images", "conv_tma/16x1x1x16x16/s2/w4"),
        ("padding 3", "conv_persistent/8x1x1x16x16/s2/w4"),
    ):
        assert cfg.Sum(shape_of(name), "fprop", 2).skips(parse(label))
        found += [(label, which, shape_of(name), "fp16", name) for which in PASSES]
    return {" ".join((x[0], x[1], x[3], x[4])): x[:4] for x in found}


LONG = [  # name, pass: as if tensors had more elements than 32 bits count
    (f"offsets of 64 bits {which}", which) for which in PASSES
]
COPYING = [  # name, label, pass
    (f"copies of conv_gluon {which}", "conv_gluon/2x8x8x16x16/s3/w8", which) for which in PASSES
]


def interpret() -> None:
    """Run all of `interpreted` and print errors and tolerances as JSON."""
    errors = {}
    for name, (label, which, shape, precision) in interpreted().items():
        kind = PRECISIONS[precision]
        errors[name] = [interpreted_error(label, which, shape, kind), kind.rel_tolerance]
    for name, label, which in COPYING:
        errors[name] = [wrong_elements(label, which), 0]
    from kernels.conv.triton import data_launch

    data_launch.MAX_INDEX = 0
    for name, which in LONG:
        kind = PRECISIONS["fp16"]
        label, shape = "conv_gather/1x1x64x32x16/s2/w4", shape_of("nothing aligned")
        errors[name] = [interpreted_error(label, which, shape, kind), kind.rel_tolerance]
    print(json.dumps(errors))


def wrong_elements(label: str, which: str) -> int:
    """Elements of copies for Gluon that differ from what torch makes, on memory that held NaN."""
    import torch
    from samples.gluon_conv import carry_out

    from kernels.conv.triton import data_launch

    made = []
    for launch in (lambda step: step.launch(), lambda step: carry_out([step])):
        torch.manual_seed(0)
        kind = PRECISIONS["fp16"]
        drawn = operands(ConvShape(2, 5, 6, 7, 9, 3, 3, 1, 1), which, kind)
        copies = data_launch.bind(parse(label), drawn, kind, PROGRAMS)[:-1]
        assert len(copies) == 2
        for step in copies:
            copy = step.args[1]
            assert isinstance(copy, torch.Tensor)
            copy.view(torch.float16).fill_(float("nan"))
            launch(step)
            made.append(copy.view(torch.float16).clone())
    half = len(made) // 2
    return sum(int((a != b).sum()) for a, b in zip(made[:half], made[half:], strict=True))


def interpreted_error(label: str, which: str, shape: ConvShape, kind: Precision) -> float:
    import torch
    from torch.nn.grad import conv2d_input

    from kernels.conv.triton import data_launch

    drawn = operands(shape, which, kind)
    for step in data_launch.bind(parse(label), drawn, kind, PROGRAMS):
        step.launch()
    how = {"stride": shape.stride, "padding": shape.padding, "dilation": shape.dilation}
    w = drawn.w.double()
    if which == "fprop":
        expected = torch.nn.functional.conv2d(drawn.x.double(), w, None, **how)
    else:
        expected = conv2d_input(drawn.x.shape, w, drawn.y.double(), **how)
    return float((drawn.output.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", [*interpreted(), *(name for name, *_ in (*COPYING, *LONG))])
def test_right_in_the_interpreter(name: str, errors: dict[str, list[float]]):
    error, tolerance = errors[name]
    assert error <= tolerance


def test_every_kernel_is_interpreted():
    tried = {label for label, *_ in interpreted().values()}
    assert tried >= {label for group in TRIED_LABELS for label in group}
    # Gluon has no interpreter: test_gluon_conv.py; test_depthwise.py has the other
    elsewhere = {cfg.GLUON, cfg.DEPTHWISE}
    assert {parse(label).kernel for label in tried} == set(cfg.KERNELS) - elsewhere


def test_labels_read_back():
    for kind in (PRECISIONS["fp16"], PRECISIONS["tf32"]):
        for shape in map(shape_of, ANY_SHAPE):
            configs = choices(shape, "fprop", kind, HOPPER, 132)
            assert [parse(config.label) for config in configs] == configs


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
@pytest.mark.parametrize("which", PASSES)
def test_every_shape_has_choices_that_fit(which: str, capability: tuple[int, int]):
    for name, precision in itertools.product(ANY_SHAPE, ("fp16", "bf16", "tf32")):
        kind = PRECISIONS[precision]
        found = choices(shape_of(name), which, kind, capability, 132)
        assert found, name
        assert len(set(found)) == len(found)
        for config in found:
            assert capability >= HOPPER or config.kernel == cfg.GATHER
            assert cfg.valid(config, shape_of(name), which, kind, capability)


# ResNet-50: C, K, image, kernel, stride
LAYERS = {
    "stem": (3, 64, 224, 7, 2), "56 3x3": (64, 64, 56, 3, 1), "56 1x1": (64, 256, 56, 1, 1),
    "56 3x3/2": (128, 128, 56, 3, 2), "56 1x1/2": (256, 512, 56, 1, 2),
    "14 3x3": (256, 256, 14, 3, 1), "7 3x3": (512, 512, 7, 3, 1), "7 1x1": (512, 2048, 7, 1, 1),
}  # fmt: skip
WGMMA = {
    "fp16": "f32.f16.f16", "bf16": "f32.bf16.bf16", "tf32": "f32.tf32.tf32",
    "fp8-e4m3": "f32.e4m3.e4m3",
}  # fmt: skip


def layer(name: str) -> ConvShape:
    return resnet(LAYERS[name])


def compiled(config: Config, shape: ConvShape, which: str, kind: Precision) -> Any:
    from kernels.conv.triton import data_launch

    steps = data_launch.bind(config, operands(shape, which, kind, "meta"), kind, 132)
    return [step.compile() for step in steps][-1]


def check_compiled(config: Config, shape: ConvShape, which: str, precision: str, tmp_path: Path):
    built = compiled(config, shape, which, PRECISIONS[precision])
    ptx, log, spilled = assembled(built, tmp_path)
    assert built.metadata.shared <= SHARED_LIMIT
    assert spilled == 0
    assert "serialized" not in log
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+)", ptx)
    assert products
    assert all(name.endswith(WGMMA[precision]) for name in products)
    assert "mma.sync" not in ptx
    assert "ldmatrix" not in ptx  # operands stay in shared memory
    assert "cp.async.bulk.tensor" in ptx


def first_of_each_kernel(name: str, which: str, precision: str, count: int) -> list[str]:
    found: dict[str, list[str]] = {}
    for config in choices(layer(name), which, PRECISIONS[precision], HOPPER, 132):
        if config.kernel != cfg.GATHER:
            found.setdefault(config.kernel, []).append(config.label)
    return [label for labels in found.values() for label in labels[:count]]


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(
    ("precision", "name"),
    [("fp16", name) for name in ("stem", "56 3x3", "56 1x1", "56 3x3/2")]
    + [("tf32", "56 3x3"), ("fp8-e4m3", "56 3x3"), ("fp8-e4m3", "56 3x3/2")]
    + [
        pytest.param(precision, name, marks=pytest.mark.slow)
        for precision, name in (
            ("fp16", "7 3x3"),
            ("bf16", "56 3x3"),
            ("tf32", "56 1x1"),
            ("fp8-e4m3", "56 1x1"),
            ("fp8-e4m3", "14 3x3"),
        )
    ],
)
def test_compiles_to_wgmma(name: str, precision: str, which: str, tmp_path: Path):
    for label in first_of_each_kernel(name, which, precision, 1):
        check_compiled(parse(label), layer(name), which, precision, tmp_path)


def tuned() -> list[tuple[str, str, str]]:
    """(pass, size, label) of the H200's table: one of each kernel, tile and pass."""
    table = json.loads((OP.tables.repository / "nvidia-h200.json").read_text())
    found = {
        (which, label): (which, size, label)
        for which in PASSES
        for size, label in table["fp16"][which].items()
    }
    return list(found.values())


@pytest.mark.slow
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("which", "size", "label"), tuned())
def test_what_a_default_run_takes_on_an_h200_compiles(
    which: str, size: str, label: str, tmp_path: Path
):
    n, h, w, c, k, r, s, stride, padding, dilation = map(int, re.findall(r"\d+", size))
    shape = ConvShape(n, c, h, w, k, r, s, stride, padding, dilation)
    check_compiled(parse(label), shape, which, "fp16", tmp_path)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(("c", "load"), [(8, "cp.async.cg.shared.global"), (4, "ld.global.v2.b32")])
def test_gathered_channels_are_loaded_several_at_once(
    c: int, load: str, which: str, tmp_path: Path
) -> None:
    shape = ConvShape(64, c, 28, 28, c, 3, 3, 1, 1)
    built = compiled(parse("conv_gather/1x1x64x16x64/s3/w4"), shape, which, PRECISIONS["fp16"])
    ptx, _, spilled = assembled(built, tmp_path)
    assert spilled == 0
    assert "wgmma.mma_async" in ptx
    assert load in ptx


@pytest.mark.usefixtures("hopper")
def test_the_gathering_kernel_compiles():
    for which, capability in itertools.product(PASSES, ((8, 0), HOPPER)):
        kind = PRECISIONS["tf32"]
        found = choices(layer("stem"), which, kind, capability, 132)
        config = next(c for c in found if c.kernel == cfg.GATHER)
        assert compiled(config, layer("stem"), which, kind).metadata.shared <= SHARED_LIMIT


if __name__ == "__main__":
    interpret()
