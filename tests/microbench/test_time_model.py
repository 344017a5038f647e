"""The model of time from measured ceilings: its terms, its fit, and its error on unseen cases."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from kernels import OPS
from kernels.case import Case
from microbench.report.notes import describe
from microbench.results import codec
from microbench.results.runfile import read_run
from microbench.results.types import Ceiling, Measurement, Result, Run
from microbench.roofline.model.fitting import Model, Prediction, fit
from microbench.roofline.model.held_out import LEAST_CASES, held_out_errors, with_model, without
from microbench.roofline.model.terms import (
    CONVERT_KERNEL,
    CONVERTED_TENSORS,
    Machine,
    Rates,
    Terms,
    tiled_seconds,
    ways,
)

RESULTS = Path(__file__).parents[2] / "results"
DEVICE: dict[str, Any] = {"name": "a GPU", "kind": "cuda", "sm_count": 100}
FLOOR_S, BYTES_PER_S = 4e-6, 2e12
RATE = {"fp32": 40e12, "fp16": 400e12, "tf32": 200e12}
CEILINGS = (
    Ceiling("memory", "measured", byte_per_s=BYTES_PER_S),
    *(Ceiling("latency floor", "measured", p, seconds=FLOOR_S) for p in RATE),
    *(Ceiling("large GEMM", "measured", p, flop_per_s=rate) for p, rate in RATE.items()),
)
LAUNCH = {"fp32": 1.3, "fp16": 1.0}  # planted coefficients
COMPUTE = {"fp32": 1.25, "fp16": 1.1}
CONVERT = 1.6
MEMORY = 1.15
RATES = Rates(RATE, BYTES_PER_S, FLOOR_S, 100)


def gemm(m: int, n: int, k: int, precision: str = "fp16") -> Case:
    return Case("gemm", {"m": m, "n": n, "k": k}, precision, "cublas")


def conv(channels: int, *, layout: str = "nhwc", precision: str = "fp16", **dims: Any) -> Case:
    plain = {
        "n": 64, "c": channels, "h": 28, "w": 28, "k": channels, "r": 3, "s": 3,
        "stride": 1, "padding": 1, "dilation": 1, "groups": 1, "pass": "fprop",
    }  # fmt: skip
    return Case("conv", plain | dims, precision, "cudnn", layout)


def timed(case: Case, seconds: float) -> Result:
    op = OPS[case.op]
    measurement = Measurement((seconds,), (1,), seconds, None, "events", "cold", "sustained")
    return Result(case, "ok", None, measurement, op.flops(case), op.min_bytes(case))


def run_of(*results: Result, ceilings: tuple[Ceiling, ...] = CEILINGS) -> Run:
    return Run(("x",), "now", DEVICE, {}, ceilings=ceilings, results=results)


def terms(case: Case) -> Terms:
    """Those of the direct way."""
    return ways(case, RATES)[0]


def fitted(results: list[Result]) -> Model:
    return fit([(result, RATES) for result in results])


def predicted(model: Model, case: Case) -> Prediction:
    found = model.predict(case, RATES)
    assert found
    return found


def planted(case: Case) -> Result:
    """A case that takes what the formula says, with the coefficients above and no boost."""
    found = terms(case)
    compute = COMPUTE[case.precision_name] * found.compute_s
    body = (compute**3 + (MEMORY * found.memory_s) ** 3) ** (1 / 3)
    launch = LAUNCH[case.precision_name] * found.launch_s
    return timed(case, launch + body + CONVERT * found.convert_s)


SIZES = [
    (m, n, k)
    for m in (512, 1024, 2048, 4096)
    for n, k in ((512, 512), (4096, 128), (2048, 2048), (8192, 4096))
]
PLANTED = [planted(gemm(*size, precision)) for size in SIZES for precision in LAUNCH]
MODEL = fitted(PLANTED)
MODELLED = with_model(run_of(*PLANTED))


def test_planted_coefficients_predict_sizes_that_were_not_fitted() -> None:
    for size in ((768, 3072, 1024), (1536, 1536, 1536), (8192, 8192, 8192), (6144, 256, 6144)):
        for precision in LAUNCH:
            truth = planted(gemm(*size, precision)).median_s
            guess = predicted(MODEL, gemm(*size, precision))
            assert guess.seconds == pytest.approx(truth, rel=0.05)


def test_planted_conversions_are_found() -> None:
    cases = [conv(c, layout=layout) for c in (32, 64, 128, 256, 512) for layout in ("nhwc", "nchw")]
    model = fitted([planted(case) for case in cases])
    unseen = conv(96, layout="nchw", n=128)
    guess = predicted(model, unseen)
    assert guess.seconds == pytest.approx(planted(unseen).median_s, rel=0.08)
    assert guess.causes["layout conversion"] > guess.causes["compute"]
    assert guess.cause == "layout conversion"


def test_held_out_error_of_planted_times_is_small_and_said() -> None:
    model = MODELLED.model
    assert model
    assert model.overall.count == len(PLANTED)
    assert model.fitted < len(PLANTED)
    assert model.overall.median < 0.03
    assert {error.path for error in model.by_path} == {
        ("gemm", "tensor cores", "", "gemm", "nt", "", "cublas", "", "fp16"),
        ("gemm", "simt", "", "gemm", "nt", "", "cublas", "", "fp32"),
    }
    first, second = describe(model)
    assert f"on {len(PLANTED)} cases that were held out of the fit" in first
    assert second.startswith("Least accurate for gemm nt cublas fp")


def test_a_run_file_keeps_the_model() -> None:
    run = MODELLED
    assert codec.run_from_json(json.loads(json.dumps(codec.run_to_json(run)))).model == run.model
    assert run.model
    kept = {pool.path: pool.coefficients for pool in run.model.pools}
    for path, coefficients in MODEL.by_pool.items():
        assert kept[path] == pytest.approx(coefficients, rel=1e-5)
    assert run.with_results(PLANTED[:1]).model is None


def test_a_size_is_never_fitted_on_when_it_is_predicted() -> None:
    odd = (2048, 2048, 2048)
    results = [
        timed(r.case, 3 * (r.median_s or 0)) if r.case.dims["m"] == 2048
        and r.case.dims["k"] == 2048 else r
        for r in PLANTED
    ]  # fmt: skip
    held = held_out_errors(run_of(*results))
    assert held
    for precision in LAUNCH:
        assert held.errors[gemm(*odd, precision).key] == pytest.approx(2 / 3, abs=0.05)
    assert median(held.errors.values()) < 0.05


def test_all_arms_and_layouts_of_a_size_are_held_out_together() -> None:
    """Odd times in every arm of a size cannot be learnt from another arm of it."""
    cases = [conv(c, layout=y) for c in (32, 64, 96, 128, 192, 256) for y in ("nhwc", "nchw")]
    slow = {case.key for case in cases if case.dims["c"] == 128}
    results = [planted(case) for case in cases]
    results = [timed(r.case, 4 * (r.median_s or 0)) if r.case.key in slow else r for r in results]
    held = held_out_errors(run_of(*results))
    assert held
    assert all(held.errors[key] > 0.6 for key in slow)


def test_a_ceiling_from_a_hidden_case_is_replaced() -> None:
    hidden, seen = timed(gemm(8192, 8192, 8192), 1.0), planted(gemm(4096, 4096, 4096))
    rate = Ceiling("large GEMM", "measured", "fp16", flop_per_s=1.0, reference=hidden.case.key)
    run = run_of(hidden, seen, ceilings=(*CEILINGS[:4], rate))
    blind = without(run, {hidden.case.key}, [seen])
    found = blind.ceiling("large GEMM", "measured", "fp16")
    assert found
    assert found.flop_per_s == seen.flop_per_s
    assert blind.results == (seen,)
    nothing_left = without(run, {hidden.case.key}, [])
    assert nothing_left.ceiling("large GEMM", "measured", "fp16") is None


def test_too_few_cases_or_sizes_give_none() -> None:
    assert held_out_errors(run_of(*PLANTED[: LEAST_CASES - 1])) is None
    assert held_out_errors(run_of()) is None
    assert held_out_errors(run_of(*PLANTED, ceilings=())) is None
    two = [
        replace(r, case=replace(r.case, backend=backend))
        for r in PLANTED[:4]
        for backend in ("cublas", "cublaslt", "cupy")
    ]
    assert len(two) >= LEAST_CASES
    assert held_out_errors(run_of(*two)) is None


def test_nothing_to_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to fit"):
        fit([])
    with pytest.raises(ValueError, match="nothing to fit"):
        fit([(result, replace(RATES, flop_per_s={})) for result in PLANTED])


@pytest.mark.parametrize(
    "case",
    [
        gemm(1000, 3000, 77),
        conv(64),
        conv(64, layout="nchw"),
        conv(61, precision="tf32"),
        conv(128, precision="fp32", **{"pass": "wgrad"}),
        conv(256, r=1, s=1, padding=0),
    ],
)
def test_terms_and_causes_are_not_negative_and_add_up(case: Case) -> None:
    found = terms(case)
    parts = (found.launch_s, found.compute_s, found.memory_s, found.convert_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(found.total_s)
    assert 0 < found.ideal_s <= found.compute_s * (1 + 1e-9)
    guess = predicted(MODEL, case)
    assert min(guess.causes.values()) >= 0
    assert sum(guess.causes.values()) == pytest.approx(guess.seconds)


def test_terms_need_the_ceilings() -> None:
    assert Rates.of(run_of(ceilings=CEILINGS[:1])) is None
    assert Rates.of(run_of()) == RATES
    assert ways(gemm(64, 64, 64, "bf16"), RATES) == ()


def test_layouts_and_channels_that_the_library_converts_cost_bytes() -> None:
    def convert_s(case: Case) -> float:
        return terms(case).convert_s

    as_is = conv(64)
    assert convert_s(as_is) == 0
    kernels_s = CONVERTED_TENSORS * CONVERT_KERNEL * FLOOR_S
    once_more = kernels_s + 2 * OPS["conv"].min_bytes(as_is) / BYTES_PER_S
    assert convert_s(conv(64, layout="nchw")) == pytest.approx(once_more)
    assert kernels_s < convert_s(conv(61)) < once_more
    assert convert_s(conv(64, layout="nchw", precision="fp32")) == 0
    assert convert_s(gemm(61, 61, 61)) == 0


def test_fp32_convolutions_may_be_transformed() -> None:
    """Many channels: 544 complex products a tile are fewer than 9 real ones a pixel."""
    cases = [planted(gemm(*size, "fp32")) for size in SIZES]
    model = fitted(cases)
    many = predicted(model, conv(512, layout="nchw", precision="fp32"))
    few = predicted(model, conv(512, layout="nchw", precision="fp32", h=4, w=4))
    half = predicted(model, conv(512))
    assert (many.terms.way, few.terms.way, half.terms.way) == ("fft", "direct", "direct")


def test_a_misaligned_case_names_what_its_aligned_twin_would_save() -> None:
    slow = [
        timed(odd, 5 * (planted(gemm(size, size, size)).median_s or 0))
        for size in (1024, 2048, 4096)
        for odd in (gemm(size - 1, size - 1, size - 1),)
    ]
    model = fitted([*PLANTED, *slow])
    guess = predicted(model, gemm(3071, 3071, 3071))
    whole = predicted(model, gemm(3072, 3072, 3072))
    assert guess.cause == "alignment"
    assert guess.causes["alignment"] == pytest.approx(guess.seconds - whole.seconds)
    assert whole.seconds == pytest.approx(planted(gemm(3072, 3072, 3072)).median_s, rel=0.05)


def test_causes_in_words() -> None:
    wanted = {"launch": (64, 64, 64), "compute": (8192, 8192, 8192), "memory": (65536, 2048, 64)}
    for cause, size in wanted.items():
        guess = predicted(MODEL, gemm(*size))
        assert guess.cause == cause


def test_more_work_takes_longer() -> None:
    for shapes in (
        [gemm(size, size, size) for size in (128, 256, 512, 1024, 2048, 4096)],
        [gemm(4096, 4096, k) for k in (64, 256, 1024, 4096)],
        [conv(64, n=n) for n in (8, 16, 32, 64, 128)],
        [conv(c, layout="nchw") for c in (32, 64, 128, 256)],
    ):
        seconds = [predicted(MODEL, case).seconds for case in shapes]
        assert seconds == sorted(set(seconds))


def test_tiles_fill_whole_waves() -> None:
    machine = Machine(100e12, 1e12, 100, 2, 32)
    one = tiled_seconds(128 * 10, 256 * 10, 4096, 1, machine)
    assert tiled_seconds(128 * 10 + 1, 256 * 10, 4096, 1, machine) > 1.05 * one
    assert tiled_seconds(128 * 10, 256 * 10, 4096, 2, machine) == pytest.approx(2 * one, rel=0.1)
    assert one >= 2 * 1280 * 2560 * 4096 / 100e12


def test_a_deep_reduction_is_split_over_the_machine() -> None:
    machine = Machine(100e12, 1e12, 100, 2, 32)
    ideal = 2 * 64 * 64 * 100_000 / 100e12
    alone = ideal * machine.sm_count
    assert ideal < tiled_seconds(64, 64, 100_000, 1, machine) < alone / 4


def test_coefficients_are_positive_and_named() -> None:
    found = MODEL.coefficients(gemm(1024, 1024, 1024, "fp32"))
    assert min(found.values()) > 0
    assert found["memory"] == pytest.approx(MEMORY, rel=0.1)
    assert found["launch direct"] > MODEL.coefficients(gemm(1024, 1024, 1024))["launch direct"]


@pytest.mark.parametrize("name", ["gemm-fp16", "gemm-alignment"])
def test_the_model_of_a_real_run_is_the_one_in_its_file(name: str) -> None:
    run = read_run(RESULTS / "nvidia-h200" / f"{name}.json")
    assert run.model
    model = with_model(run).model
    assert model
    assert describe(model) == describe(run.model)
    assert model.overall.median == pytest.approx(run.model.overall.median, rel=1e-3)
    assert run.model.overall.median < 0.30
