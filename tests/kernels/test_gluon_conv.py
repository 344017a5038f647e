"""The Gluon convolution: its views and taps, and where it is left out.

Gluon has no interpreter: `samples.convolutions` carries out a bound configuration on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from samples.convolutions import by_torch, carry_out, operands

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels.conv.shape import ConvShape  # noqa: E402
from kernels.conv.triton import data_configs as cfg  # noqa: E402
from kernels.conv.triton.data_configs import GLUON, DataConfig, parse, ranked  # noqa: E402
from kernels.conv.triton.problem import ImplicitGemm  # noqa: E402
from kernels.precision import PRECISIONS  # noqa: E402
from kernels.triton_util import GLUON_HOPPER, gluon_missing  # noqa: E402

if gluon_missing():
    pytest.skip(str(gluon_missing()), allow_module_level=True)

HOPPER, SMS = (9, 0), 132
PASSES = ("fprop", "dgrad")
BOXES = ((1, 8, 8), (4, 4, 4), (64, 1, 1), (2, 8, 8), (1, 1, 64), (16, 2, 4))
WIDTHS = (16, 32, 48, 80, 96, 144)


@st.composite
def shapes(draw: st.DrawFn) -> ConvShape:
    least_most = (1, 3), (1, 40), (1, 9), (1, 9), (1, 40), (1, 4), (1, 4), (1, 2), (0, 3), (1, 2)
    try:
        return ConvShape(*(draw(st.integers(*bounds)) for bounds in least_most))
    except ValueError:
        assume(False)
        raise


@st.composite
def configs(draw: st.DrawFn) -> DataConfig:
    box = draw(st.sampled_from(BOXES))
    warps = 4 if box[0] * box[1] * box[2] == 64 else 8
    bk, bc = draw(st.sampled_from(WIDTHS)), draw(st.sampled_from((16, 32, 64)))
    return DataConfig(GLUON, *box, bk, bc, 3, warps, padded=draw(st.booleans()))


def valid(config: DataConfig, problem: ImplicitGemm) -> bool:
    return cfg.valid(config, problem, HOPPER)


def carried_out(
    config: DataConfig, shape: ConvShape, which: str, precision: str
) -> tuple[Any, Any]:
    """(what the launches leave, what torch says), both float64, of integers: exact."""
    from kernels.conv.triton import gluon_launch

    kind = PRECISIONS[precision]
    drawn = operands(shape, which, kind)
    for name in "xwy":
        tensor = getattr(drawn, name)
        if tensor is not drawn.output:
            tensor.copy_(torch.randint(-2, 3, tensor.shape))
    carry_out(gluon_launch.bind(config, drawn, ImplicitGemm(shape, which, kind), SMS))
    return drawn.output.double(), by_torch(drawn)


EXAMPLES = (  # shape, configuration, pass, precision
    ((1, 3, 9, 7, 5, 4, 4, 2, 3), "2x8x8x48x16/s3/w8", "dgrad", "fp16"),
    ((1, 8, 1, 1, 8, 1, 1, 2, 1), "1x8x8x16x16/s3/w4", "fprop", "fp16"),
    ((2, 8, 5, 5, 8, 1, 1, 2, 0), "1x8x8x16x16/s3/w4", "dgrad", "fp16"),
    ((2, 24, 5, 5, 40, 3, 3, 2, 1), "2x8x8x48x32/s3/w8/padded", "dgrad", "fp16"),
    ((1, 72, 5, 5, 16, 3, 3, 1, 1), "2x8x8x16x64/s3/w8/padded", "fprop", "fp16"),
    ((1, 24, 3, 5, 130, 1, 1), "1x1x64x144x32/s3/w4", "fprop", "fp16"),
    ((2, 24, 1, 33, 40, 1, 7, 1, "0x3"), "1x1x64x48x32/s3/w4", "fprop", "fp16"),
    ((1, 8, 1, 9, 8, 1, 3, 2, "0x1"), "1x8x8x16x16/s3/w4", "dgrad", "fp16"),
    ((2, 24, 7, 21, 40, 3, 5, 2, "1x4", "1x2"), "1x8x8x48x32/s3/w4", "dgrad", "fp16"),
)


@pytest.mark.parametrize(("sizes", "label", "which", "precision"), EXAMPLES)
def test_these_examples_make_the_convolution(
    sizes: tuple[int, ...], label: str, which: str, precision: str
) -> None:
    from kernels.conv.triton.gluon_launch import parities

    config, shape = parse(f"conv_gluon/{label}"), ConvShape(*sizes)
    problem = ImplicitGemm(shape, which, PRECISIONS[precision])
    assert valid(config, problem)
    counts = [len(each.taps) for each in parities(problem)]
    assert counts == sorted(counts, reverse=True), "the long ones first"
    got, want = carried_out(config, shape, which, precision)
    assert torch.equal(got, want)


@given(shapes(), configs(), st.sampled_from(PASSES), st.sampled_from(("fp16", "bf16")))
@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
def test_views_taps_and_tiles_make_the_convolution(
    shape: ConvShape, config: DataConfig, which: str, precision: str
) -> None:
    what = ImplicitGemm(shape, which, PRECISIONS[precision])
    assume(cfg.gluon_runs(what, HOPPER))
    if what.pixel(padded=True) == what.pixel(padded=False):
        config = replace(config, padded=False)
    assume(valid(config, what))
    got, want = carried_out(config, shape, which, precision)
    assert torch.equal(got, want)


@given(st.integers(1, 300), st.sampled_from((16, 32, 64)))
def test_the_last_step_multiplies_what_is_left_in_whole_wgmmas(channels: int, bc: int):
    steps, last = cfg.depths(channels, bc, element_bytes=2)
    assert last % 16 == 0 < last <= bc
    assert channels <= (steps - 1) * bc + last < channels + 16


# C, K, image, kernel, stride
AWKWARD = {
    "130 channels": (130, 130, 28, 3, 1), "131 channels": (131, 67, 14, 3, 1),
    "odd image, stride 2": (48, 80, 31, 5, 2), "stem": (3, 64, 224, 7, 2),
    "odd image, 130 channels, stride 2": (130, 34, 15, 3, 2), "1x1 of 66": (66, 70, 14, 1, 1),
}  # fmt: skip
BETWEEN = {
    "96": (96, 96, 40, 3, 1), "160": (160, 160, 40, 3, 1), "144": (144, 144, 28, 3, 1),
}  # fmt: skip
POWERS = {"128": (128, 128, 28, 3, 1), "256": (256, 256, 14, 3, 1), "64": (64, 64, 56, 3, 1)}


def found(
    layer: tuple[int, int, int, int, int], which: str = "fprop", precision: str = "fp16",
    capability: tuple[int, int] = HOPPER,
) -> list[str]:  # fmt: skip
    """The kernels of all choices, the first first."""
    c, k, image, kernel, stride = layer
    shape = ConvShape(64, c, image, image, k, kernel, kernel, stride, kernel // 2)
    configs = ranked(ImplicitGemm(shape, which, PRECISIONS[precision]), capability, SMS)
    return [config.kernel for config in configs]


@pytest.mark.parametrize("which", PASSES)
def test_it_can_run_what_tma_cannot_and_comes_first_between_powers_of_two(which: str) -> None:
    for layer, precision in zip(AWKWARD.values(), 3 * ("fp16", "bf16"), strict=True):
        assert {*found(layer, which, precision)} >= {GLUON, cfg.GATHER}
    assert {found(layer, which)[0] for layer in BETWEEN.values()} == {GLUON}
    assert GLUON not in {found(layer, which)[0] for layer in POWERS.values()}


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_gpus_do_not_get_it(capability: tuple[int, int]) -> None:
    for layer in (AWKWARD["stem"], BETWEEN["96"]):
        assert found(layer, capability=capability)
        assert GLUON not in found(layer, capability=capability)


@pytest.fixture
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What this Triton lacks is looked up in the test, and again after it."""
    gluon_missing.cache_clear()
    yield
    monkeypatch.undo()
    gluon_missing.cache_clear()
    assert gluon_missing() is None


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize("lacking", ["warpgroup_mma", "tma", None])
def test_a_triton_without_gluon_gets_the_other_kernels(
    lacking: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking is None:
        monkeypatch.setitem(sys.modules, "triton.experimental.gluon", None)
    elif lacking == "tma":
        monkeypatch.setitem(sys.modules, f"{GLUON_HOPPER}.tma", None)
    else:
        monkeypatch.delattr(f"{GLUON_HOPPER}.{lacking}")
    assert "this Triton has no triton.experimental.gluon" in (gluon_missing() or "")
    for layer in (AWKWARD["stem"], BETWEEN["96"]):
        assert found(layer)
        assert GLUON not in found(layer)
    gluon_missing.cache_clear()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "interpreter" in (gluon_missing() or "")
