"""On a GPU: every pass, layout, precision and back end of conv is right, and within what can be."""

from __future__ import annotations

import pytest
from samples.measuring import measured, measurer_of, ready_or_why, refusal

from kernels import OPS
from kernels.case import Case
from kernels.checking import launch_poisoned, relative_error
from kernels.conv import LAYOUTS, Conv
from kernels.conv.shape import PASSES, ConvShape
from kernels.conv.triton import backend, data_configs, wgrad_configs
from kernels.conv.triton.problem import ImplicitGemm
from kernels.data import OperandPool
from kernels.op import Session
from kernels.triton_util import candidate as candidate_of
from kernels.triton_util import gluon_missing
from kernels.tune import WIDE
from microbench.device.device import DeviceInfo
from microbench.device.profiler import is_conversion
from microbench.measure import too_exact
from microbench.precompile import compile_ahead
from microbench.results.types import Run
from microbench.roofline.ceilings import datasheet_ceilings
from microbench.roofline.explain import annotate

SHAPES: dict[str, dict[str, int | str]] = {
    "3x3": {},
    "1x1": {"r": 1, "s": 1, "padding": 0, "k": 128},
    "stride 2": {"stride": 2},
    "1x1 stride 2": {"r": 1, "s": 1, "padding": 0, "stride": 2, "k": 128},
    "stem": {"c": 3, "h": 64, "w": 64, "r": 7, "s": 7, "padding": 3, "stride": 2},
    "odd image": {"h": 7, "w": 7, "n": 33},
    "odd image, stride 2": {"h": 15, "w": 13, "stride": 2},
    "rectangular": {"h": 14, "w": 56, "r": 1, "s": 5, "padding": 2},
    "1-D": {"h": 1, "w": 512, "r": 1, "s": 7, "padding": "0x3"},
    "by axis": {"s": 5, "stride": "1x2", "padding": "1x4", "dilation": "1x2"},
    "unaligned": {"c": 60, "k": 36},
    "tiny channels": {"c": 1, "k": 5},
    "dilated": {"dilation": 2, "padding": 2},
    "unpadded": {"padding": 0},
    "groups": {"groups": 4},
    "depthwise": {"groups": 64},
}  # fmt: skip


ALL = [pytest.param(SHAPES[name], id=name, marks=[pytest.mark.quick] * (name == "3x3"))
       for name in SHAPES]  # fmt: skip


def conv(which: str, layout: str, precision: str, backend: str, **dims: int | str) -> Case:
    plain = {"n": 16, "c": 64, "h": 28, "w": 28, "k": 64, "r": 3, "s": 3,
             "stride": 1, "padding": 1, "dilation": 1, "groups": 1}  # fmt: skip
    return Case(Conv(ConvShape(**{**plain, **dims}), which, layout), precision, backend)


def check(session: Session, case: Case) -> None:
    prepared, reason = ready_or_why(session, case)
    if prepared is None:
        pytest.skip(reason)
    for candidate in prepared.candidates:
        error = prepared.rel_error(candidate)
        assert error <= case.tolerance, candidate.label
        exact = case.problem.may_run_exactly(case.precision, case.backend)
        assert exact or not too_exact(case, error), candidate.label


@pytest.mark.parametrize("dims", ALL)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", PASSES)
def test_cudnn_is_right(session, which, layout, precision, dims) -> None:
    check(session, conv(which, layout, precision, "cudnn", **dims))


@pytest.mark.parametrize("dims", ALL)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp8-e4m3"])
@pytest.mark.parametrize("which", PASSES)
def test_triton_is_right(session, which, precision, dims) -> None:
    check(session, conv(which, "nhwc", precision, "triton", **dims))


@pytest.mark.parametrize("precision", ["fp16", "fp8-e4m3"])
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(
    "dims",
    [{}, {"r": 1, "s": 1, "padding": 0}, {"stride": 2}, {"c": 8, "k": 8},
     {"c": 3, "k": 20, "stride": 2, "h": 29}, {"c": 130, "k": 9}],
)  # fmt: skip
def test_what_a_search_would_try_is_right(session, gpu, precision, which, dims) -> None:
    case = conv(which, "nhwc", precision, "triton", **dims)
    if reason := refusal(OPS["conv"].check, case, gpu.target()):
        pytest.skip(reason)
    prepared = session.prepare(case, search=WIDE)
    assert len(prepared.candidates) > 1
    assert not compile_ahead(case, gpu.target(), [c.label for c in prepared.candidates])
    for candidate in prepared.candidates:
        assert prepared.rel_error(candidate) <= case.tolerance, candidate.label


@pytest.mark.parametrize(
    ("which", "dims"),
    [("fprop", {"n": 176, "c": 64}),
     *((which, {"n": 704, "c": 16, "k": 16}) for which in PASSES)],
)  # fmt: skip
def test_more_than_two_to_the_31_elements(session, gpu, which, dims) -> None:
    case = conv(which, "nhwc", "fp16", "triton", h=448, w=448, **dims)
    if gpu.memory_bytes < 60e9:
        pytest.skip("needs 60 GB")
    check(session, case)
    session.close()


@pytest.mark.parametrize(
    "which", [pytest.param(w, marks=[pytest.mark.quick] * (w == "fprop")) for w in PASSES]
)
def test_rates_are_physical_and_conversions_are_seen(gpu, which) -> None:
    results = []
    for layout in LAYOUTS:
        arms = [("tf32", "cudnn"), ("fp16", "cudnn"), *[("fp16", "triton")] * (layout == "nhwc")]
        cases = (conv(which, layout, p, b, n=64, c=256, k=256) for p, b in arms)
        results += measured(measurer_of(gpu), *cases)
    run = Run(("test",), "now", gpu.as_dict(), {}, results=tuple(results),
              ceilings=tuple(datasheet_ceilings(gpu.name, ["tf32", "fp16"])))  # fmt: skip
    run = annotate(run)
    for result in run.results:
        assert result.status == "ok", result.reason
        assert 0 < result.ceiling_pct <= 105
        assert 0 < result.byte_per_s < 8e12
        converted = any(is_conversion(name) for name in result.kernels)
        if gpu.capability == (9, 0) and which != "wgrad":
            assert converted == (result.case.problem.layout == "nchw")


# -------------------------------------------------- awkward convolutions, by each kernel


AWKWARD = {
    "130 channels": {"c": 130, "k": 130},
    "odd numbers of channels": {"c": 67, "k": 131, "h": 13, "w": 17, "n": 5},
    "5x5, odd image, stride 2": {"c": 48, "k": 80, "h": 31, "w": 31, "r": 5, "s": 5,
                                 "stride": 2, "padding": 2},
    "misaligned, odd rectangle, stride 2": {"c": 34, "k": 21, "h": 15, "w": 22, "stride": 2},
    "misaligned, even image, stride 2": {"c": 50, "k": 66, "h": 16, "w": 16, "stride": 2},
    "1x1, stride 2, odd": {"c": 70, "k": 96, "h": 15, "w": 15, "r": 1, "s": 1,
                           "stride": 2, "padding": 0},
    "1x1, misaligned": {"c": 66, "k": 70, "r": 1, "s": 1, "padding": 0},
    "dilated": {"c": 96, "k": 90, "dilation": 2, "padding": 2},
    "stem": {"c": 3, "k": 64, "h": 65, "w": 65, "r": 7, "s": 7, "stride": 2, "padding": 3},
    "96 channels": {"c": 96, "k": 96, "h": 40, "w": 40},
    "160 channels": {"c": 160, "k": 320, "h": 20, "w": 20},
    "few channels": {"c": 5, "k": 9, "h": 19, "w": 11},
    "16 channels": {"c": 16, "k": 16},
    "few filters": {"c": 128, "k": 8, "h": 21, "w": 23, "r": 5, "s": 5, "padding": 2},
    "24 channels": {"c": 24, "k": 24},
    "72 channels, stride 2": {"c": 72, "k": 56, "h": 15, "w": 15, "stride": 2},
    "padding 3": {"c": 24, "k": 40, "h": 3, "w": 4, "padding": 3},
}  # fmt: skip
QUICK_ONES = ("odd numbers of channels", "stem", "160 channels", "few filters")
OF_BF16 = ("130 channels", "5x5, odd image, stride 2", "96 channels", "stem")
TILES = ("odd numbers of channels", "5x5, odd image, stride 2", "160 channels", "24 channels",
         "72 channels, stride 2", "few channels", "stem", "16 channels")  # fmt: skip
WGRADS = ("few filters", "24 channels", "72 channels, stride 2", "few channels", "16 channels")


@pytest.fixture
def hopper(gpu: DeviceInfo) -> DeviceInfo:
    if gpu.capability != (9, 0) or gluon_missing():
        pytest.skip(gluon_missing() or "the Gluon kernels are for Hopper")
    return gpu


def awkward(which: str, precision: str, name: str) -> Case:
    return conv(which, "nhwc", precision, "triton", **AWKWARD[name])


def check_config(config: backend.ConvConfig, case: Case, pool: OperandPool) -> None:
    """Right against float64, as exact as the precision can be; twice the same bits."""
    steps = backend.bind(config, case, pool.get(case), pool.target)
    made = candidate_of(config.label, config.tile, steps)
    error = relative_error(launch_poisoned(pool.get(case), made))
    assert error <= case.tolerance, config.label
    assert not too_exact(case, error), config.label
    first = pool.get(case).output.clone()
    launch_poisoned(pool.get(case), made)
    assert first.equal(pool.get(case).output), config.label


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.quick] * (name in QUICK_ONES)) for name in AWKWARD],
)
def test_the_first_choice_of_each_kernel_is_right(name: str, which: str, hopper, pool) -> None:
    case = awkward(which, "fp16", name)
    found: dict[str, backend.ConvConfig] = {}
    for config in backend.configurations(case, hopper.target()).ranked:
        found.setdefault(config.kernel, config)
    for config in found.values():
        check_config(config, case, pool)


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", OF_BF16)
def test_bf16_is_right(name: str, which: str, hopper, pool) -> None:
    case = awkward(which, "bf16", name)
    found = backend.configurations(case, hopper.target()).ranked
    config = next((config for config in found if config.kernel == data_configs.GLUON), found[0])
    check_config(config, case, pool)


@pytest.mark.parametrize("which", ["fprop", "dgrad"])
@pytest.mark.parametrize("name", TILES)
def test_every_kind_of_tile_is_right(name: str, which: str, hopper, pool) -> None:
    """The first configuration of each kind of tile of the Gluon kernel."""
    case = awkward(which, "fp16", name)
    first: dict[tuple[object, ...], backend.ConvConfig] = {}
    for config in data_configs.ranked(ImplicitGemm.of(case), (9, 0), 132):
        if config.kernel == data_configs.GLUON:
            tail = data_configs.split_n(config.bk)[1]
            first.setdefault((config.pixels, tail > 0, config.per_sm, config.padded), config)
    for config in first.values():
        check_config(config, case, pool)


@pytest.mark.parametrize("name", WGRADS)
def test_every_way_to_a_weight_gradient_is_right(name: str, hopper, pool) -> None:
    case = awkward("wgrad", "fp16", name)
    first: dict[tuple[object, ...], backend.ConvConfig] = {}
    for config in backend.configurations(case, hopper.target()).ranked:
        if isinstance(config, wgrad_configs.WgradConfig):
            way = (config.kernel, config.taps > 1, config.bk, config.padded, config.split_k > 1)
            first.setdefault(way, config)
    for config in first.values():
        check_config(config, case, pool)
