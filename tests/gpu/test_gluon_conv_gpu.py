"""On a GPU of Hopper: awkward convolutions are right by each kernel, and repeatable."""

from __future__ import annotations

import pytest

from kernels.case import Candidate, Case
from kernels.checking import launch_poisoned, relative_error
from kernels.conv import Conv
from kernels.conv.shape import PASSES, ConvShape
from kernels.conv.triton import backend, data_configs, wgrad_configs
from kernels.conv.triton.problem import ImplicitGemm
from kernels.data import OperandPool
from kernels.triton_util import candidate, gluon_missing
from microbench.device.device import DeviceInfo, describe
from microbench.measure import too_exact

SHAPES = {
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
QUICK = ("odd numbers of channels", "stem", "160 channels", "few filters")
OF_BF16 = ("130 channels", "5x5, odd image, stride 2", "96 channels", "stem")
TILES = ("odd numbers of channels", "5x5, odd image, stride 2", "160 channels", "24 channels",
         "72 channels, stride 2", "few channels", "stem", "16 channels")  # fmt: skip
WGRADS = ("few filters", "24 channels", "72 channels, stride 2", "few channels", "16 channels")


def conv(which: str, precision: str, dims: dict[str, int]) -> Case:
    plain = {"n": 16, "c": 64, "h": 28, "w": 28, "k": 64, "r": 3, "s": 3,
             "stride": 1, "padding": 1, "dilation": 1, "groups": 1}  # fmt: skip
    return Case(Conv(ConvShape(**{**plain, **dims}), which), precision, "triton")


@pytest.fixture(scope="module")
def gpu() -> DeviceInfo:
    found = describe("cuda")
    if found.capability != (9, 0) or gluon_missing():
        pytest.skip(gluon_missing() or "the Gluon kernels are for Hopper")
    return found


def launcher(config: backend.ConvConfig, case: Case, pool: OperandPool) -> Candidate:
    steps = backend.bind(config, case, pool.get(case), pool.target)
    return candidate(config.label, config.tile, steps)


def check(config: backend.ConvConfig, case: Case, pool: OperandPool) -> None:
    """Right against float64, as exact as the precision can be; twice the same bits."""
    made = launcher(config, case, pool)
    error = relative_error(launch_poisoned(pool.get(case), made))
    assert error <= case.tolerance, config.label
    assert not too_exact(case, error), config.label
    first = pool.get(case).output.clone()
    launch_poisoned(pool.get(case), made)
    assert first.equal(pool.get(case).output), config.label


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.quick] * (name in QUICK)) for name in SHAPES]
)
def test_the_first_choice_of_each_kernel_is_right(name: str, which: str, gpu, pool) -> None:
    case = conv(which, "fp16", SHAPES[name])
    found: dict[str, backend.ConvConfig] = {}
    for config in backend.configurations(case, gpu.target()).ranked:
        found.setdefault(config.kernel, config)
    for config in found.values():
        check(config, case, pool)


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", OF_BF16)
def test_bf16_is_right(name: str, which: str, gpu, pool) -> None:
    case = conv(which, "bf16", SHAPES[name])
    found = backend.configurations(case, gpu.target()).ranked
    config = next((config for config in found if config.kernel == data_configs.GLUON), found[0])
    check(config, case, pool)


def tiles(name: str, which: str) -> dict[tuple[object, ...], str]:
    """The first configuration of each kind of tile of the Gluon kernel."""
    case = conv(which, "fp16", SHAPES[name])
    found = data_configs.ranked(ImplicitGemm.of(case), (9, 0), 132)
    first: dict[tuple[object, ...], str] = {}
    for config in found:
        if config.kernel == data_configs.GLUON:
            tail = data_configs.split_n(config.bk)[1]
            tile = (config.kernel, config.pixels, tail > 0, config.per_sm, config.padded)
            first.setdefault(tile, config.label)
    return first


@pytest.mark.parametrize("which", ["fprop", "dgrad"])
@pytest.mark.parametrize("name", TILES)
def test_every_kind_of_tile_is_right(name: str, which: str, gpu, pool) -> None:
    case = conv(which, "fp16", SHAPES[name])
    for label in tiles(name, which).values():
        check(backend.parse(label), case, pool)


@pytest.mark.parametrize("name", WGRADS)
def test_every_way_to_a_weight_gradient_is_right(name: str, gpu, pool) -> None:
    case = conv("wgrad", "fp16", SHAPES[name])
    first: dict[tuple[object, ...], str] = {}
    for config in backend.configurations(case, gpu.target()).ranked:
        if isinstance(config, wgrad_configs.WgradConfig):
            way = (config.kernel, config.taps > 1, config.bk, config.padded, config.split_k > 1)
            first.setdefault(way, config.label)
    for label in first.values():
        check(backend.parse(label), case, pool)
