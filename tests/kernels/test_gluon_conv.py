"""The Gluon convolution: its views and taps, what it compiles to, where it is left out.

Gluon has no interpreter: `samples.gluon_conv` carries out a bound configuration on the CPU.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from samples.convolutions import operands
from samples.gluon_conv import carry_out
from samples.hopper import SHARED_LIMIT, assembled

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import gluon  # noqa: E402
from kernels.case import Case, Target  # noqa: E402
from kernels.conv.shape import ConvShape  # noqa: E402
from kernels.conv.triton import backend, gluon_config  # noqa: E402
from kernels.conv.triton import data_config as cfg  # noqa: E402
from kernels.conv.triton.data_config import GLUON, Config, Sum, choices, parse  # noqa: E402
from kernels.precision import PRECISIONS  # noqa: E402

if gluon.missing():
    pytest.skip(str(gluon.missing()), allow_module_level=True)

HOPPER, SMS = (9, 0), 132
H200 = Target("cuda", "NVIDIA H200", HOPPER, SMS)
PASSES = ("fprop", "dgrad")
BOXES = ((1, 8, 8), (4, 4, 4), (64, 1, 1), (2, 8, 8), (1, 1, 64), (16, 2, 4))
WIDTHS = (16, 32, 48, 80, 96, 144)
GROUPS = (4, 8, 12, 16, 24, 48, 80)  # channels of one


@st.composite
def shapes(draw: st.DrawFn) -> ConvShape:
    size = {name: st.integers(1, 9) for name in "hw"} | {name: st.integers(1, 4) for name in "rs"}
    size |= {"n": st.integers(1, 3), "c": st.integers(1, 40), "k": st.integers(1, 40)}
    size |= {
        "stride": st.integers(1, 2),
        "padding": st.integers(0, 3),
        "dilation": st.integers(1, 2),
    }
    sizes = {name: draw(of) for name, of in size.items()}
    if draw(st.integers(0, 3)) == 0:
        groups = draw(st.sampled_from((2, 3, 6)))  # 3: the last block lacks groups
        per_group = {"c": draw(st.sampled_from(GROUPS)), "k": draw(st.sampled_from(GROUPS))}
        sizes |= {"groups": groups} | {name: groups * n for name, n in per_group.items()}
    try:
        return ConvShape(**sizes)
    except ValueError:
        assume(False)
        raise


@st.composite
def configs(draw: st.DrawFn) -> Config:
    box = draw(st.sampled_from(BOXES))
    warps = 4 if box[0] * box[1] * box[2] == 64 else 8
    bk, bc = draw(st.sampled_from(WIDTHS)), draw(st.sampled_from((16, 32, 64)))
    plain = Config(GLUON, box, bk, bc, 3, warps, draw(st.sampled_from((1, 2))))
    return replace(plain, padded=draw(st.booleans()))


def carried_out(config: Config, shape: ConvShape, which: str, precision: str) -> tuple[Any, Any]:
    """(what the launches leave, what autograd says), both float64, of integers: exact."""
    from kernels.conv.triton import data_launch

    kind = PRECISIONS[precision]
    drawn = operands(shape, which, kind)
    for name in "xwy":
        tensor = getattr(drawn, name)
        if tensor is not drawn.output:
            tensor.copy_(torch.randint(-2, 3, tensor.shape))
    carry_out(data_launch.bind(config, drawn, kind, SMS))
    x = (drawn.x if which == "fprop" else torch.zeros_like(drawn.x)).double().requires_grad_()
    names = ("stride", "padding", "dilation", "groups")
    how = {name: getattr(shape, name) for name in names}
    y = torch.nn.functional.conv2d(x, drawn.w.double(), None, **how)
    if which == "fprop":
        return drawn.output.double(), y.detach()
    return drawn.output.double(), torch.autograd.grad(y, x, drawn.y.double())[0]


@given(shapes(), configs(), st.sampled_from(PASSES), st.sampled_from(("fp16", "tf32")))
@example(
    ConvShape(1, 3, 9, 7, 5, 4, 4, 2, 3), parse("conv_gluon/2x8x8x48x16/s3/w8"), "dgrad", "fp16"
)
@example(
    ConvShape(1, 8, 1, 1, 8, 1, 1, 2, 1), parse("conv_gluon/1x8x8x16x16/s3/w4"), "fprop", "fp16"
)
@example(
    ConvShape(2, 8, 5, 5, 8, 1, 1, 2, 0), parse("conv_gluon/1x8x8x16x16/s3/w4"), "dgrad", "fp16"
)
@example(
    ConvShape(1, 12, 3, 4, 24, 3, 3, 1, 1, 1, 3),
    parse("conv_gluon/1x8x8x16x16/s3/w4"),
    "dgrad",
    "tf32",
)
@example(
    ConvShape(1, 24, 3, 4, 24, 3, 3, 2, 1, 1, 3),
    parse("conv_gluon/1x8x8x32x16/s3/w4"),
    "dgrad",
    "fp16",
)
@example(
    ConvShape(2, 24, 5, 5, 40, 3, 3, 2, 1),
    parse("conv_gluon/2x8x8x48x32/s3/w8/padded"),
    "dgrad",
    "fp16",
)
@example(
    ConvShape(1, 72, 5, 5, 16, 3, 3, 1, 1),
    parse("conv_gluon/2x8x8x16x64/s3/w8/padded"),
    "fprop",
    "fp16",
)
@example(
    ConvShape(1, 24, 3, 5, 130, 1, 1), parse("conv_gluon/1x1x64x144x64/s3/w4"), "fprop", "tf32"
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_views_taps_and_tiles_make_the_convolution(
    shape: ConvShape, config: Config, which: str, precision: str
):
    what = Sum(shape, which, PRECISIONS[precision].bytes_per_element)
    assume(not gluon_config.missing(what, HOPPER))
    if shape.groups > 1:
        possible = gluon_config.widths(what)
        config = replace(config, bk=possible[config.bk % len(possible)], split=1)
    if what.pixel(padded=True) == what.pixel(padded=False):
        config = replace(config, padded=False)
    assume(cfg.valid(config, shape, which, PRECISIONS[precision], HOPPER))
    got, want = carried_out(config, shape, which, precision)
    assert torch.equal(got, want)


@given(shapes())
@settings(max_examples=100, deadline=None)
def test_parities_cover_every_output_once_and_every_tap(shape: ConvShape):
    for which in PASSES:
        what = Sum(shape, which, 2)
        _, h, w = what.whole_output
        step = shape.stride if what.split_output else 1
        found = gluon_config.parities(what)
        covered = [
            (row, column)
            for each in found
            for row in range(each.row, h, step)
            for column in range(each.column, w, step)
        ]
        assert sorted(covered) == [(row, column) for row in range(h) for column in range(w)]
        counts = [len(each.taps) for each in found]
        assert counts == sorted(counts, reverse=True)
        assert all(len(set(each.taps)) == len(each.taps) for each in found)


@pytest.mark.parametrize(("channels", "bc", "size", "steps", "last"), [
    (130, 64, 2, 3, 16), (96, 64, 2, 2, 32), (48, 64, 2, 1, 48), (128, 64, 2, 2, 64),
    (1, 16, 2, 1, 16), (56, 32, 4, 2, 24), (57, 32, 4, 2, 32),
])  # fmt: skip
def test_the_last_step_multiplies_what_is_left(channels, bc, size, steps, last):
    assert gluon_config.depths(channels, bc, size) == (steps, last)
    assert channels <= (steps - 1) * bc + last <= steps * bc


# C, K, image, kernel, stride
AWKWARD = {
    "130 channels": (130, 130, 28, 3, 1), "131 channels": (131, 67, 14, 3, 1),
    "odd image, stride 2": (48, 80, 31, 5, 2), "stem": (3, 64, 224, 7, 2),
    "odd image, 130 channels, stride 2": (130, 34, 15, 3, 2), "1x1 of 66": (66, 70, 14, 1, 1),
}  # fmt: skip
BETWEEN = {
    "96": (96, 96, 40, 3, 1), "160": (160, 160, 40, 3, 1), "144": (144, 144, 28, 3, 1),
}  # fmt: skip
LAYERS = {
    name: (AWKWARD | BETWEEN)[name] for name in ("131 channels", "odd image, stride 2", "160")
}
POWERS = {"128": (128, 128, 28, 3, 1), "256": (256, 256, 14, 3, 1), "64": (64, 64, 56, 3, 1)}


def shape_of(layer: tuple[int, int, int, int, int]) -> ConvShape:
    c, k, image, kernel, stride = layer
    return ConvShape(64, c, image, image, k, kernel, kernel, stride, kernel // 2)


def first(layer: tuple[int, int, int, int, int], which: str, precision: str = "fp16") -> Config:
    return choices(shape_of(layer), which, PRECISIONS[precision], HOPPER, SMS)[0]


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_it_can_run_what_tma_cannot(which: str, precision: str):
    for name, layer in AWKWARD.items():
        found = choices(shape_of(layer), which, PRECISIONS[precision], HOPPER, SMS)
        assert {config.kernel for config in found} >= {GLUON, cfg.GATHER}, name


@pytest.mark.parametrize("which", PASSES)
def test_it_comes_first_between_powers_of_two_and_not_on_them(which: str):
    assert {name: first(layer, which).kernel for name, layer in BETWEEN.items()} == dict.fromkeys(
        BETWEEN, GLUON
    )
    assert GLUON not in {first(layer, which).kernel for layer in POWERS.values()}


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_gpus_do_not_get_it(capability: tuple[int, int]):
    for layer in (*AWKWARD.values(), *BETWEEN.values()):
        found = choices(shape_of(layer), "fprop", PRECISIONS["fp16"], capability, SMS)
        assert found
        assert GLUON not in {config.kernel for config in found}


def case(layer: tuple[int, int, int, int, int], which: str) -> Case:
    dims: dict[str, int | str] = dict(vars(shape_of(layer))) | {"pass": which}
    return Case("conv", dims, "fp16", "triton", "nhwc")


@pytest.mark.parametrize("lacking", ["warpgroup_mma", "tma", None])
def test_a_triton_without_gluon_gets_the_other_kernels(lacking: str | None, monkeypatch):
    gluon.missing.cache_clear()
    if lacking is None:
        monkeypatch.setitem(sys.modules, "triton.experimental.gluon", None)
    elif lacking == "tma":
        monkeypatch.setitem(sys.modules, f"{gluon.HOPPER}.tma", None)
    else:
        monkeypatch.delattr(f"{gluon.HOPPER}.{lacking}")
    try:
        assert "this Triton has no triton.experimental.gluon" in (gluon.missing() or "")
        for layer in (*AWKWARD.values(), *BETWEEN.values()):
            what = case(layer, "fprop")
            found = backend.ranked(what, H200)
            assert found
            assert GLUON not in {config.kernel for config in found}
            # A table written where Gluon was is no reason to launch it.
            assert not backend.valid(parse("conv_gluon/2x8x8x96x64/s4/w8"), what, H200)
    finally:
        monkeypatch.undo()
        gluon.missing.cache_clear()
    assert gluon.missing() is None


def test_under_the_interpreter_it_is_left_out(monkeypatch):
    gluon.missing.cache_clear()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    try:
        assert "interpreter" in (gluon.missing() or "")
    finally:
        gluon.missing.cache_clear()


WGMMA = {"fp16": "f32.f16.f16", "bf16": "f32.bf16.bf16", "tf32": "f32.tf32.tf32"}


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(
    ("c", "groups", "precision", "merged"),
    [
        (512, 16, "fp16", {1}), (512, 32, "fp16", {1, 2}), (128, 32, "fp16", {4, 8}),
        (56, 7, "bf16", {2, 4}), (128, 32, "tf32", {4, 8}),
    ],
)  # fmt: skip
def test_grouped_convolutions_have_choices_that_compile(
    c: int, groups: int, precision: str, merged: set[int], which: str, tmp_path: Path
):
    shape, kind = ConvShape(64, c, 28, 28, c, 3, 3, 2, 1, 1, groups), PRECISIONS[precision]
    found = choices(shape, which, kind, HOPPER, SMS)
    assert {config.kernel for config in found} == {GLUON}
    what = Sum(shape, which, kind.bytes_per_element)
    assert {what.merged(config.bk) for config in found} == merged
    assert all(what.block(config.bk)[1] % config.bk == 0 for config in found)
    check_compiled(found[0], shape, which, precision, tmp_path)


@pytest.mark.usefixtures("hopper")
def test_packing_groups_spills_nothing(tmp_path: Path):
    from kernels.conv.triton import data_launch

    shape, kind = ConvShape(64, 128, 28, 28, 128, 3, 3, 1, 1, 1, 32), PRECISIONS["fp16"]
    config = choices(shape, "dgrad", kind, HOPPER, SMS)[0]
    steps = data_launch.bind(config, operands(shape, "dgrad", kind, "meta"), kind, SMS)
    assert [step.kernel.__name__ for step in steps] == ["pack_groups", "conv_gluon"]  # type: ignore[attr-defined]
    assert assembled(steps[0].compile(), tmp_path)[2] == 0


def check_compiled(config: Config, shape: ConvShape, which: str, precision: str, folder: Path):
    """wgmma of the tile's two widths, TMA loads, a warp of its own for them, no spills."""
    from kernels.conv.triton import data_launch

    kind = PRECISIONS[precision]
    steps = data_launch.bind(config, operands(shape, which, kind, "meta"), kind, SMS)
    built: Any = [step.compile() for step in steps][-1]
    ptx, log, spilled = assembled(built, folder)
    assert built.metadata.shared <= SHARED_LIMIT
    assert built.metadata.shared <= cfg.shared_memory(config, kind)
    assert spilled == 0
    assert "serialized" not in log
    products = set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+)", ptx))
    assert {int(re.findall(r"n(\d+)k", name)[0]) for name in products} == {
        width for width in gluon_config.halves(config.bk) if width
    }
    assert all(name.endswith(WGMMA[precision]) for name in products)
    assert "mma.sync" not in ptx
    assert "cp.async.bulk.tensor" in ptx
    assert "setmaxnreg" in ptx
    stored_by_tma = "cp.async.bulk.tensor" in ptx and ".global.shared::cta.bulk_group" in ptx
    aligned = gluon_config.word(Sum(shape, which, kind.bytes_per_element).k, kind.bytes_per_element)
    assert stored_by_tma == (aligned == 0)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", ["130 channels", "odd image, stride 2", "131 channels"])
def test_first_choices_compile_to_wgmma(name: str, which: str, tmp_path: Path):
    config = first(AWKWARD[name], which)
    check_compiled(config, shape_of(AWKWARD[name]), which, "fp16", tmp_path)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_other_precisions_compile_to_wgmma(precision: str, which: str, tmp_path: Path):
    layer = BETWEEN["96"]
    found = choices(shape_of(layer), which, PRECISIONS[precision], HOPPER, SMS)
    config = next(config for config in found if config.kernel == GLUON)
    check_compiled(config, shape_of(layer), which, precision, tmp_path)


def tiles_of(layers: dict[str, tuple[int, int, int, int, int]]) -> list[tuple[str, str, str]]:
    """(layer, pass, label): of each layer and pass, one configuration of each tile tried."""
    found = []
    for name, layer in layers.items():
        for which in PASSES:
            seen: dict[tuple[int, ...], str] = {}
            for config in choices(shape_of(layer), which, PRECISIONS["fp16"], HOPPER, SMS):
                if config.kernel == GLUON:
                    tile = (config.pixels, config.bk, config.split, config.per_sm)
                    seen.setdefault(tile, config.label)
            found += [(name, which, label) for label in seen.values()]
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("name", "which", "label"), tiles_of(LAYERS))
def test_every_tile_of_the_catalogue_compiles(name: str, which: str, label: str, tmp_path: Path):
    layer = LAYERS[name]
    check_compiled(parse(label), shape_of(layer), which, "fp16", tmp_path)
