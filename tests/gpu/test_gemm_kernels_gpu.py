"""On a GPU: every kind of Triton GEMM kernel is right on shapes that fit no tile.

Each configuration is launched several times into poisoned memory and compared with float64, and the
results with each other, bit by bit.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.case import Candidate, Case
from kernels.checking import launch_poisoned, poison, relative_error
from kernels.data import OperandPool
from kernels.gemm import LAYOUTS, Gemm
from kernels.gemm.triton import backend
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton.config import GemmConfig, GemmProblem
from kernels.gemm.triton.launch import Launcher
from kernels.op import Session
from kernels.triton_util import candidate
from kernels.tune import WIDE
from microbench.device.device import DeviceInfo, describe

# Tails in M, N and K; rows of 2, 4, 8 and 16 bytes; more tiles than SMs; less than one tile.
SHAPES = [(640, 720, 1032), (641, 723, 333), (1030, 1284, 516), (2600, 2456, 200), (65, 24, 72)]
NARROW = [(17, 1096, 2056), (1, 520, 1000), (1096, 33, 1028), (2049, 7, 777), (64, 64, 8192)]
ODD = [(257, 1096, 1000), (1096, 321, 1028), (129, 144, 72), (641, 723, 333)]
KINDS = {cfg.PERSISTENT: SHAPES, cfg.SPLIT_K: [*NARROW, (200, 328, 4104)], cfg.ODD_WIDTH: ODD}
DTYPES = ["fp16", "bf16", "tf32", "fp8-e4m3", "fp8-e5m2", "int8"]


@pytest.fixture(scope="module")
def gpu() -> DeviceInfo:
    found = describe("cuda")
    if found.capability != (9, 0):
        pytest.skip("these kernels are for Hopper")
    return found


def case(shape: tuple[int, int, int], precision: str, layout: str) -> Case:
    return Case(Gemm(*shape, layout), precision, "triton")


def tried(kernel: str, problem: GemmProblem, every: bool) -> list[GemmConfig]:
    """The catalogue's configurations of a kind that suit the problem; a few of them, or all."""
    listed = cfg.choices(problem, (9, 0), 132)
    if kernel == cfg.ODD_WIDTH:  # which is listed where it may be the fastest
        listed = [c for c in cfg.catalogue(problem.precision.name) if cfg.valid(c, problem, (9, 0))]
    found = [c for c in listed if c.kernel == kernel]
    kinds = [[c for c in found if c.swapped == swapped] for swapped in (False, True)]
    return found if every else [c for kind in kinds for c in kind[:: max(1, len(kind) // 2)][:2]]


def assert_right_and_repeatable(
    pool: OperandPool, gpu: DeviceInfo, what: Case, configs: list[GemmConfig]
) -> None:
    operands = pool.get(what)
    problem = GemmProblem.of(what)
    launcher = Launcher(problem, operands.a, operands.b, operands.c, gpu.target().sm_count)
    for config in configs:
        launch = candidate(config.label, config.tile, launcher.bind(config))
        error = relative_error(launch_poisoned(operands, launch))
        assert error <= what.precision.rel_tolerance, (what.key, config.label)
        assert_same_again(operands.c, launch, f"{what.key} {config.label}")


def assert_same_again(c: torch.Tensor, launch: Candidate, name: str) -> None:
    before = c.clone()
    for _ in range(3):
        poison(c)
        launch.call()
        torch.cuda.synchronize()
        assert torch.equal(before.view(torch.uint8), c.view(torch.uint8)), name


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kernel", list(KINDS))
def test_right_and_repeatable(
    pool: OperandPool, gpu: DeviceInfo, kernel: str, precision: str
) -> None:
    count = 0
    for number, shape in enumerate(KINDS[kernel]):
        thorough = precision == "fp16" and number < 2
        for layout in LAYOUTS if thorough else (LAYOUTS[number % 4],):
            what = case(shape, precision, layout)
            configs = tried(kernel, GemmProblem.of(what), every=False)
            count += len(configs)
            assert_right_and_repeatable(pool, gpu, what, configs)
    assert count


@pytest.mark.slow
@pytest.mark.timeout(1200)  # compiles hundreds of kernels
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kernel", list(KINDS))
def test_everything_in_the_catalogue_is_right(
    pool: OperandPool, gpu: DeviceInfo, kernel: str, precision: str, layout: str
) -> None:
    for shape in KINDS[kernel]:
        what = case(shape, precision, layout)
        configs = tried(kernel, GemmProblem.of(what), every=True)
        assert_right_and_repeatable(pool, gpu, what, configs)


@pytest.mark.parametrize("size", [333, 1030, 1028, 4099])
@pytest.mark.parametrize("precision", ["fp16", "fp8-e4m3", "tf32"])
def test_misaligned_rows_are_right(
    pool: OperandPool, gpu: DeviceInfo, precision: str, size: int
) -> None:
    layouts = ("nt", "tn") if size < 4099 else ("nt",)
    for layout in layouts:
        what = case((size, size, size), precision, layout)
        assert_right_and_repeatable(
            pool, gpu, what, [backend.configurations(what, gpu.target()).chosen[0]]
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pointers_read_rows_of_16_bytes(pool: OperandPool, gpu: DeviceInfo, layout: str) -> None:
    for shape, precision in (((1000, 1000, 1000), "fp16"), ((257, 1000, 1032), "tf32")):
        what = case(shape, precision, layout)
        found = [c for c in cfg.catalogue(precision) if c.kernel == cfg.POINTER]
        assert_right_and_repeatable(pool, gpu, what, found)


@pytest.mark.quick
def test_integers_are_exact(pool: OperandPool, gpu: DeviceInfo) -> None:
    """Small integers have exact sums: no product is lost or counted twice, at any tile's edge."""
    for shape in ((640, 720, 1032), (17, 1096, 2056)):
        what = replace(case(shape, "fp16", "nt"), data="integers")
        operands = pool.get(what)
        problem = GemmProblem.of(what)
        launcher = Launcher(problem, operands.a, operands.b, operands.c, gpu.target().sm_count)
        exact = (operands.a.double() @ operands.b.double()).to(operands.c.dtype)
        for kernel in KINDS:
            for config in tried(kernel, problem, every=False):
                poison(operands.c)
                for step in launcher.bind(config):
                    step.launch()
                assert torch.equal(operands.c, exact), config.label


def test_the_back_end_runs_them(gpu: DeviceInfo) -> None:
    """Through the op, as a command does, with a search over the catalogue."""
    session = Session(gpu.target(), 0)
    prepared = session.prepare(case((17, 1096, 2056), "fp16", "nt"), search=WIDE)
    for each in prepared.candidates:
        assert prepared.rel_error(each) <= 1e-3, each.label
    assert cfg.SPLIT_K in {each.label.split("/")[0] for each in prepared.candidates}
    session.close()
