"""On a GPU: sizes are tuned at their first run, right, and known afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from samples.measuring import measured, measurer_of
from triton import knobs

from kernels import tune
from kernels.case import Case
from kernels.conv import Conv
from kernels.conv.shape import PASSES, ConvShape
from kernels.gemm import Gemm
from kernels.gemm.triton import backend
from kernels.gemm.triton.config import parse
from kernels.tune import NONE, QUICK, QUICK_TUNED, TUNED, WIDE
from microbench.device.device import DeviceInfo
from microbench.measure import Measurer
from microbench.results.types import Result

CONV = {"n": 16, "c": 96, "h": 20, "w": 20, "k": 96, "r": 3, "s": 3, "stride": 1, "padding": 1,
        "dilation": 1, "groups": 1}  # fmt: skip
TOO_MUCH_SHARED = "tma/256x256x64/s4/w8/g8"  # it compiles, and no SM can hold it


def gemm(m: int, n: int, k: int, precision: str = "fp16", layout: str = "nt") -> Case:
    return Case(Gemm(m, n, k, layout), precision, "triton")


CASES = [
    gemm(17, 4096, 4096), gemm(1100, 700, 900, "bf16", "tn"), gemm(520, 776, 1032, "fp8-e4m3"),
    *(Case(Conv(ConvShape(**CONV), which), "fp16", "triton") for which in PASSES),
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    for name in ("TRITON_PTXAS_PATH", "TRITON_LIBDEVICE_PATH"):  # which torch.compile leaves set
        monkeypatch.delenv(name, raising=False)
    tune.forget()


@pytest.fixture
def measurer(gpu: DeviceInfo) -> Measurer:
    return measurer_of(gpu, search=QUICK)


def measure(measurer: Measurer, case: Case) -> Result:
    (result,) = measured(measurer, case, budget_s=0.1)
    assert result.status == "ok", result.reason
    assert result.rel_error <= case.tolerance
    return result


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key[:60])
def test_a_size_is_tuned_once_and_then_known(measurer: Measurer, case: Case) -> None:
    first = measure(measurer, case)
    assert first.choice.how == QUICK_TUNED
    assert (first.choice.candidates or 0) >= 2
    assert first.tuned is False
    tune.forget()  # as another process, which times nothing
    again = measure(replace(measurer, search=NONE), case)
    assert (again.variant, again.choice) == (first.variant, first.choice)


@pytest.mark.quick
def test_the_measuring_process_finds_what_was_compiled_ahead(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hits: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        knobs.compilation,
        "listener",
        lambda src, metadata, metadata_group, times, cache_hit: hits.append((src.name, cache_hit)),
    )
    measure(measurer, gemm(1304, 1176, 1240))  # a size of no other test
    assert hits
    assert all(hit for _, hit in hits), hits


def test_a_candidate_that_the_gpu_refuses_is_left_out(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backend.candidates

    def with_another(case: Case, operands, target, search):
        return (*backend.bind([parse(TOO_MUCH_SHARED)], case, operands, target),
                *real(case, operands, target, search))  # fmt: skip

    monkeypatch.setattr(backend, "candidates", with_another)
    case = gemm(1160, 1160, 1160)
    offered = len(backend.configurations(case, measurer.target).tried(QUICK))
    result = measure(measurer, case)
    assert result.variant != TOO_MUCH_SHARED
    assert 2 <= (result.choice.candidates or 0) <= offered


def test_a_wide_search_times_more_and_its_winner_is_known_too(measurer: Measurer) -> None:
    case = gemm(1024, 1024, 1024)
    wide = measure(replace(measurer, search=WIDE), case)
    assert wide.choice.how == TUNED
    assert 6 < (wide.choice.candidates or 0) <= WIDE
    again = measure(measurer, case)
    assert (again.variant, again.choice) == (wide.variant, wide.choice)
