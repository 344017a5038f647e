"""On a GPU: every precision, layout and back end is right, and no rate is above what can be.

Correctness and physical bounds only, never an absolute speed.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from samples.measuring import measured, measurer_of, ready_or_why
from samples.waiting import while_busy

from kernels import OPS
from kernels.case import Candidate, Case
from kernels.checking import Prepared, launch_poisoned, poison, relative_error
from kernels.data import OperandPool
from kernels.gemm import ALL_LAYOUTS, LAYOUTS, OF_BATCHES, Gemm, cublaslt_api, cupy_blas
from kernels.gemm.triton import backend as triton
from kernels.gemm.triton import config as cfg
from kernels.gemm.triton.config import GemmConfig, GemmProblem
from kernels.gemm.triton.launch import Launcher
from kernels.op import SEPARATE, Session
from kernels.precision import PRECISIONS
from kernels.triton_util import candidate as candidate_of
from kernels.tune import WIDE
from microbench.device.device import DeviceInfo
from microbench.results.types import Run
from microbench.roofline.ceilings import datasheet_ceilings
from microbench.roofline.explain import annotate

BACKENDS = [name for name in OPS["gemm"].backends if name not in ("cpu", SEPARATE)]
SHAPES = [
    (256, 384, 512), (512, 256, 1024), (255, 257, 259), (17, 512, 64), (4096, 128, 256),
    (256, 256, 256), (272, 528, 1040), (16, 64, 4096), (1, 128, 128),
]  # fmt: skip
TRITON_SHAPES = [
    (1, 1, 1), (16, 16, 16), (1, 4096, 4096), (127, 65, 33), (384, 640, 200), (1000, 1000, 1000),
    (1023, 1025, 511), (2048, 512, 8192), (4095, 4097, 1024),
]  # fmt: skip
QUICK = ("tf32", "fp16", "bf16", "fp8-e4m3")
# What every GPU from Hopper on must do: a skip here would be a defect, not an answer.
MUST_RUN = {(p, b) for p in ("fp32", "tf32", "fp16", "bf16") for b in BACKENDS}
MUST_RUN -= {("fp32", "triton")}


def case(shape: int | tuple[int, int, int], precision: str, backend: str, layout: str) -> Case:
    m, n, k = (shape, shape, shape) if isinstance(shape, int) else shape
    return Case(Gemm(m, n, k, layout), precision, backend)


@pytest.mark.parametrize(
    ("precision", "backend", "layout"),
    [
        pytest.param(*each, marks=[pytest.mark.quick] * (each[0] in QUICK and each[2] == "nt"))
        for each in itertools.product(PRECISIONS, BACKENDS, LAYOUTS)
    ],
)
def test_right_or_skipped_with_a_reason(
    session: Session, precision: str, backend: str, layout: str
) -> None:
    for shape in (*SHAPES, *TRITON_SHAPES) if backend == "triton" else SHAPES:
        what = case(shape, precision, backend, layout)
        prepared, reason = ready_or_why(session, what)
        if prepared:
            assert_right(prepared, what)
        else:
            assert (precision, backend) not in MUST_RUN, reason


# What Hopper has a single call for: bmm, baddbmm, addmm, _addmm_activation, grouped_mm.
FLOATS, GROUPS = ("fp32", "tf32", "fp16", "bf16"), ("grouped", "skewed")


@pytest.mark.parametrize("layout", ALL_LAYOUTS)
@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_a_batch_and_an_epilogue_are_right_or_skipped_with_a_reason(
    session: Session, precision: str, layout: str
) -> None:
    form = layout[3:]
    problems = [Gemm(96, 256, 128, layout, 5), Gemm(1, 128, 64, layout, 64)]  # groups of no rows
    if form not in OF_BATCHES:
        problems += [Gemm(512, 384, 256, layout), Gemm(16, 128, 64, layout)]
    for problem, backend in itertools.product(problems, ("cublas", SEPARATE)):
        what = Case(problem, precision, backend)
        fused = backend == SEPARATE or form not in (*GROUPS, "gelu") or problem.batch == 1
        grouped = ("bf16", "fp8-e4m3") if layout.startswith("nt") else ("bf16",)
        must = precision in (grouped if form in GROUPS else FLOATS) and fused
        if problem.plain:
            continue
        prepared, reason = ready_or_why(session, what)
        assert prepared or not must, reason
        if prepared is None:
            continue
        assert_right(prepared, what)
        prepared.renew()
        (candidate,) = prepared.candidates
        assert prepared.rel_error_again(candidate, lambda launch: launch()) <= what.tolerance
        assert prepared.rel_error(replace(candidate, call=lambda: None)) == float("inf")


@pytest.mark.parametrize("timer", ["events", "graph"])
@pytest.mark.parametrize("layout", ["nt", "nt-strided", "nt-broadcast", "nt-skewed", "nt-bias"])
def test_a_batch_is_timed_as_launched_and_as_a_graph(
    gpu: DeviceInfo, layout: str, timer: str
) -> None:
    cases = [Case(Gemm(256, 512, 256, layout, 8), "bf16", name) for name in ("cublas", SEPARATE)]
    l2 = "warm" if timer == "graph" else "cold"
    for result in measured(measurer_of(gpu, l2, timer), *cases):
        assert result.status == "ok", result.reason
        assert result.kernels


def assert_right(prepared: Prepared, what: Case) -> None:
    """Every candidate is right, but for those refused at their launch: the core drops them."""
    errors: dict[str, float] = {}
    for candidate in prepared.candidates:
        try:
            errors[candidate.label] = prepared.rel_error(candidate)
        except RuntimeError:
            if len(prepared.candidates) == 1:
                raise
    assert errors, what.key
    assert {label: e for label, e in errors.items() if not e <= what.tolerance} == {}, what.key


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", [name for name, kind in PRECISIONS.items() if "triton" in kind.min_capability]
)
def test_every_searched_configuration_is_right(session: Session, precision: str) -> None:
    what = case((1024, 1152, 1280), precision, "triton", "nt")
    assert_right(session.prepare(what, search=WIDE), what)


@pytest.mark.parametrize("data", ["uniform", "integers", "zeros"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_right_on_other_data(session: Session, backend: str, data: str) -> None:
    what = replace(case((256, 384, 512), "fp16", backend, "nt"), data=data)
    prepared = session.prepare(what)
    assert prepared.rel_error(prepared.candidates[0]) <= what.precision.rel_tolerance


def test_tf32_and_fp32_are_two_things_in_every_library(session: Session) -> None:
    """The switches are set at each launch: taking turns must not leak one into the other."""
    for backend in set(BACKENDS) - {"triton"}:  # which has no fp32
        fp32, tf32 = (session.prepare(case(512, p, backend, "nt")) for p in ("fp32", "tf32"))
        for _ in range(2):
            errors = [p.rel_error(p.candidates[0]) for p in (fp32, tf32)]
            assert errors[0] <= PRECISIONS["fp32"].rel_tolerance, backend
            assert errors[1] > 10 * errors[0], backend


@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_no_rate_is_above_what_the_hardware_can_do(gpu: DeviceInfo, precision: str) -> None:
    measurer = measurer_of(gpu, "cold")
    ceilings = tuple(datasheet_ceilings(gpu.name, [precision]))
    for size in (256, 2048):
        cases = [case(size, precision, backend, "nt") for backend in BACKENDS]
        results = measured(measurer, *cases)
        run = Run(("test",), "now", gpu.as_dict(), {}, ceilings=ceilings, results=tuple(results))
        for result in annotate(run).results:
            assert result.status in ("ok", "skipped"), result.reason
            if result.measurement is None:
                assert result.reason
                continue
            assert min(result.measurement.times_s) > 0
            assert result.flop_per_s > 0
            for name, per_cent in result.efficiency_pct.items():
                assert 0 < per_cent <= 105, (name, result.case.key)
            assert result.kernels
            assert result.measurement.sm_clock_mhz
            assert result.measurement.power_w


@pytest.mark.quick
def test_tensor_cores_are_proved_for_a_large_half_precision_product(gpu: DeviceInfo) -> None:
    ceilings = tuple(datasheet_ceilings(gpu.name, ["fp32", "fp16"]))
    if not ceilings:
        pytest.skip("no datasheet for this GPU")
    results = measured(
        measurer_of(gpu, "cold"),
        *(case(4096, p, "cublas", "nt") for p in ("fp32", "fp16")),
        budget_s=1.0,
    )
    run = Run(("test",), "now", gpu.as_dict(), {}, ceilings=ceilings, results=tuple(results))
    fp32, fp16 = annotate(run).results
    assert fp32.tensor_core is False
    assert fp16.tensor_core is True
    assert fp16.speedup["fp32"].ci95[0] > 1


def test_a_cold_cache_is_not_faster_than_a_warm_one(gpu: DeviceInfo) -> None:
    what = case(512, "fp16", "cublas", "nt")
    cold, warm = (
        measured(measurer_of(gpu, l2), what, budget_s=1.0)[0].median_s for l2 in ("cold", "warm")
    )
    assert warm
    assert cold >= warm


@pytest.mark.alone
def test_the_graph_timer_and_events_agree_on_a_warm_large_product(gpu: DeviceInfo) -> None:
    what = case(4096, "fp16", "cublas", "nt")
    events, graph = (
        measured(measurer_of(gpu, "warm", timer), what, budget_s=1.0)[0]
        for timer in ("events", "graph")
    )
    assert (events.status, graph.status) == ("ok", "ok"), (events.reason, graph.reason)
    assert events.median_s == pytest.approx(graph.median_s, rel=0.15)


@pytest.mark.quick
@pytest.mark.alone
def test_the_same_launch_twice_shows_no_large_difference(gpu: DeviceInfo, session: Session) -> None:
    from tests.validation.aa import compare_with_itself

    launch = session.prepare(case(1024, "fp16", "cublas", "nt")).candidates[0].call
    found = compare_with_itself("gemm", launch, measurer_of(gpu).timer)
    assert found.ratio == pytest.approx(1.0, abs=0.02)
    assert found.ci95 is not None
    assert not found.heavy
    assert len(found.turns_s) == len(found.order) == 2 * found.rounds


def test_memory_that_is_not_there_is_this_cases_failure(gpu: DeviceInfo) -> None:
    assert gpu.memory_bytes
    size = int((2 * gpu.memory_bytes / 8) ** 0.5) // 64 * 64  # A alone is twice the card
    result = measured(measurer_of(gpu, "warm"), case(size, "fp64", "cublas", "nt"))[0]
    assert result.status == "failed"
    assert result.reason
    assert "memory" in result.reason


def test_a_cublaslt_launch_can_be_captured_on_another_stream(session: Session) -> None:
    what = case(512, "fp16", "cublaslt", "nt")
    prepared = session.prepare(what)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        prepared.candidates[0].call()
    replay = Candidate("graph", graph.replay)
    assert prepared.rel_error(replay) <= what.precision.rel_tolerance


def test_a_cupy_launch_goes_to_torch_s_stream(session: Session) -> None:
    what = case(512, "fp16", "cupy", "nt")
    prepared = session.prepare(what)
    candidate = prepared.candidates[0]
    candidate.call()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), while_busy():
        candidate.call()
        assert torch.cuda.default_stream().query()  # nothing went there
        assert not side.query()
    torch.cuda.synchronize()
    assert prepared.rel_error(candidate) <= what.precision.rel_tolerance


def test_torch_and_we_use_one_cublaslt_and_its_handle_is_left_alone(
    session: Session, gpu: DeviceInfo
) -> None:
    torch.mm(*[torch.ones(8, 8, device="cuda")] * 2)
    cublaslt_api.load.cache_clear()
    cublaslt_api.load()
    names = {
        line.split(maxsplit=5)[5]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libcublasLt.so" in line
    }
    assert len(names) == 1
    binding = cupy_blas._binding()
    handle = torch.cuda.current_blas_handle()
    before = binding.getMathMode(handle)
    session.prepare(case(64, "tf32", "cupy", "nt"))
    assert binding.getMathMode(handle) == before
    assert handle != cupy_blas._handle(gpu.index)


# -------------------------------------------------- each Triton kernel, on shapes that fit no tile


# Tails in M, N and K; rows of 2, 4, 8 and 16 bytes; more tiles than SMs; less than one tile.
TAILS = [(640, 720, 1032), (641, 723, 333), (1030, 1284, 516), (2600, 2456, 200), (65, 24, 72)]
NARROW = [(17, 1096, 2056), (1, 520, 1000), (1096, 33, 1028), (2049, 7, 777), (64, 64, 8192)]
ODD = [(257, 1096, 1000), (1096, 321, 1028), (129, 144, 72), (641, 723, 333)]
KINDS = {cfg.PERSISTENT: TAILS, cfg.SPLIT_K: [*NARROW, (200, 328, 4104)], cfg.ODD_WIDTH: ODD}
DTYPES = ["fp16", "bf16", "tf32", "fp8-e4m3", "fp8-e5m2", "int8"]


@pytest.fixture
def hopper(gpu: DeviceInfo) -> DeviceInfo:
    if gpu.capability != (9, 0):
        pytest.skip("these kernels are for Hopper")
    return gpu


def tried(kernel: str, problem: GemmProblem, every: bool) -> list[GemmConfig]:
    """The catalogue's configurations of a kind that suit the problem; a few of them, or all."""
    listed = cfg.choices(problem, (9, 0), 132)
    if kernel == cfg.ODD_WIDTH:  # which is listed where it may be the fastest
        listed = [c for c in cfg.catalogue(problem.precision.name) if cfg.valid(c, problem, (9, 0))]
    found = [c for c in listed if c.kernel == kernel]
    kinds = [[c for c in found if c.swapped == swapped] for swapped in (False, True)]
    return found if every else [c for kind in kinds for c in kind[:: max(1, len(kind) // 2)][:2]]


def assert_right_and_repeatable(
    pool: OperandPool, hopper: DeviceInfo, what: Case, configs: list[GemmConfig]
) -> None:
    operands = pool.get(what)
    problem = GemmProblem.of(what)
    launcher = Launcher(problem, operands.a, operands.b, operands.c, hopper.target().sm_count)
    for config in configs:
        launch = candidate_of(config.label, config.tile, launcher.bind(config))
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
    pool: OperandPool, hopper: DeviceInfo, kernel: str, precision: str
) -> None:
    count = 0
    for number, shape in enumerate(KINDS[kernel]):
        thorough = precision == "fp16" and number < 2
        for layout in LAYOUTS if thorough else (LAYOUTS[number % 4],):
            what = case(shape, precision, "triton", layout)
            configs = tried(kernel, GemmProblem.of(what), every=False)
            count += len(configs)
            assert_right_and_repeatable(pool, hopper, what, configs)
    assert count


@pytest.mark.slow
@pytest.mark.timeout(1200)  # compiles hundreds of kernels
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kernel", list(KINDS))
def test_everything_in_the_catalogue_is_right(
    pool: OperandPool, hopper: DeviceInfo, kernel: str, precision: str, layout: str
) -> None:
    for shape in KINDS[kernel]:
        what = case(shape, precision, "triton", layout)
        configs = tried(kernel, GemmProblem.of(what), every=True)
        assert_right_and_repeatable(pool, hopper, what, configs)


@pytest.mark.parametrize("size", [333, 1030, 1028, 4099])
@pytest.mark.parametrize("precision", ["fp16", "fp8-e4m3", "tf32"])
def test_misaligned_rows_are_right(
    pool: OperandPool, hopper: DeviceInfo, precision: str, size: int
) -> None:
    layouts = ("nt", "tn") if size < 4099 else ("nt",)
    for layout in layouts:
        what = case((size, size, size), precision, "triton", layout)
        assert_right_and_repeatable(
            pool, hopper, what, [triton.configurations(what, hopper.target()).chosen[0]]
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pointers_read_rows_of_16_bytes(pool: OperandPool, hopper: DeviceInfo, layout: str) -> None:
    for shape, precision in (((1000, 1000, 1000), "fp16"), ((257, 1000, 1032), "tf32")):
        what = case(shape, precision, "triton", layout)
        found = [c for c in cfg.catalogue(precision) if c.kernel == cfg.POINTER]
        assert_right_and_repeatable(pool, hopper, what, found)


@pytest.mark.quick
def test_integers_are_exact(pool: OperandPool, hopper: DeviceInfo) -> None:
    """Small integers have exact sums: no product is lost or counted twice, at any tile's edge."""
    for shape in ((640, 720, 1032), (17, 1096, 2056)):
        what = replace(case(shape, "fp16", "triton", "nt"), data="integers")
        operands = pool.get(what)
        problem = GemmProblem.of(what)
        launcher = Launcher(problem, operands.a, operands.b, operands.c, hopper.target().sm_count)
        exact = (operands.a.double() @ operands.b.double()).to(operands.c.dtype)
        for kernel in KINDS:
            for config in tried(kernel, problem, every=False):
                poison(operands.c)
                for step in launcher.bind(config):
                    step.launch()
                assert torch.equal(operands.c, exact), config.label
