"""Causes in traces made by hand: each where it is planted, none where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.traces import BACKWARD, MAIN, US, Made

from e2e.profile.diagnosis import Traced, diagnose
from e2e.profile.finding import Finding

MS = 1_000_000
H200, BF16, HALF = "NVIDIA H200", "c10::BFloat16", "c10::Half"
UPDATE = "Optimizer.step#Adam.step"


def made_with(**facts: Any) -> Made:
    """Two steps that end at 10 and 20 ms; the second is what counts."""
    made = Made(header={"halfway": {"device": H200, "lead_in": 1, "traced": 1, **facts}})
    made.steps(9 * MS, 18 * MS)
    made.op("aten::relu", 8 * MS, 8 * MS + 50 * US)
    made.kernel("relu", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    made.op("aten::relu", 17 * MS, 17 * MS + 50 * US)
    made.kernel("relu", 19 * MS, 20 * MS, 17 * MS + 10 * US)
    return made


def found(*some: Made, folder: Path) -> Traced:
    paths = [made.write(folder / f"{number}.json") for number, made in enumerate(some)]
    return diagnose(paths).runs[-1]


def named(run: Traced, title: str) -> list[Finding]:
    return [finding for finding in run.findings if title in finding.title]


def with_op(
    made: Made, name: str, start: int, ns: int, dims: list[Any], types: list[str], **more: Any
) -> None:
    """An operator, and its one kernel of `ns`."""
    made.op(name, start, start + 20 * US, **{"Input Dims": dims, "Input type": types}, **more)
    made.kernel("k", start + 30 * US, start + 30 * US + ns, start + US)


# ---------------------------------------------------------------- an optimizer's launches


def updates(made: Made, count: int, first: int, name: str = "aten::lerp_") -> None:
    """An optimizer that launches `count` kernels of 5 us, one each 50 us."""
    made.note(UPDATE, first, first + count * 50 * US)
    for number in range(count):
        start = first + number * 50 * US
        made.op(name, start, start + 40 * US, **{"Input Dims": [[8, 8]], "Input type": ["float"]})
        made.kernel("k", start + 12 * US, start + 17 * US, start + 10 * US)


def test_waits_for_an_optimizer_of_many_kernels_are_the_optimizer_s(tmp_path: Path) -> None:
    made = made_with()
    updates(made, 60, 13 * MS)
    run = found(made, folder=tmp_path)
    (optimizer,) = named(run, "updates one tensor at a time")
    (launch,) = named(run, "CPU launch")
    # 60 kernels of 5 us, and the 45 us before each of them; of the first 3 ms are the step's.
    assert optimizer.ms == pytest.approx(60 * 0.005 + 59 * 0.045 + 3.01, abs=0.02)
    idle = sum(t.ns for t in run.terms if t.term == "CPU launch") / 1e6
    assert launch.ms == pytest.approx(idle - (optimizer.ms - 60 * 0.005), abs=0.02)
    again = made_with()
    updates(again, 60, 13 * MS, "aten::_foreach_lerp_")
    run = found(again, folder=tmp_path)
    assert not named(run, "updates one tensor at a time")
    assert named(run, "CPU launch")[0].ms == pytest.approx(idle, abs=0.02)


@settings(max_examples=20)
@given(bare_ms=st.floats(2.5, 9.9))
def test_what_the_profiler_added_is_no_gain(
    bare_ms: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = made_with(bare_s=[bare_ms / 1e3] * 3)
    run = found(made, folder=tmp_path_factory.mktemp("bare"))
    (launch,) = named(run, "CPU launch")
    # 1 ms of work in a step of 10 ms: without the profiler the wait is what else the step takes.
    assert launch.saves_ms is not None
    idle = sum(t.ns for t in run.terms if t.term == "CPU launch") / 1e6
    assert launch.saves_ms == pytest.approx(idle - (10 - bare_ms), abs=1e-6)


# ---------------------------------------------------------------- normalisation


@pytest.mark.parametrize(("ms", "slow"), [(6, True), (1, False)])
@pytest.mark.parametrize("kind", [BF16, HALF])
def test_normalisation_is_slow_by_the_bytes_that_it_moves(
    ms: int, slow: bool, kind: str, tmp_path: Path
) -> None:
    made = made_with()
    # 3 passes over 1.2 GB: 0.75 ms at the memory's 4.8 TB/s
    dims = [[100, 100, 100, 600], [100], [100]]
    with_op(made, "aten::native_batch_norm", 11 * MS, ms * MS, dims, [kind, "float", "float"])
    causes = named(found(made, folder=tmp_path), "normalisation in")
    assert bool(causes) == slow
    if slow:
        assert ("BF16" in causes[0].title) == (kind == BF16)
        assert causes[0].ms == pytest.approx(ms)
        assert causes[0].most_ms == pytest.approx(ms - 0.75 / 0.65, rel=1e-6)
    unknown = made_with(device="An unknown card")
    with_op(unknown, "aten::native_batch_norm", 11 * MS, ms * MS, dims, [kind, "float", "float"])
    assert not named(found(unknown, folder=tmp_path), "normalisation in")


# ---------------------------------------------------------------- searches


def convolution(made: Made, start: int, size: int, *, searched: bool) -> None:
    dims = [[8, 64, size, size], [64, 64, 3, 3]]
    args = {"Input Dims": dims, "Input type": [HALF, HALF], "Input Strides": [[1], [1]]}
    if searched:
        made.op("aten::cudnn_convolution", start, start + 2 * MS, **args)
        for number in range(4):
            at = start + number * 400 * US
            made.kernel(f"candidate {number}", at + 50 * US, at + 250 * US, at + 10 * US)
            made.span("cuda_runtime", "cudaEventSynchronize", at + 20 * US, at + 260 * US)
    else:
        made.op("aten::cudnn_convolution", start, start + 100 * US, **args)
    end = start + (2 * MS if searched else 100 * US)
    made.kernel("the best", end + 10 * US, end + 200 * US, end - 10 * US)


def test_a_search_at_a_new_shape_is_a_cause_and_a_shape_that_was_seen_is_none(
    tmp_path: Path,
) -> None:
    made = made_with(cudnn_benchmark=True)
    convolution(made, 5 * MS, 32, searched=True)
    convolution(made, 11 * MS, 32, searched=False)
    convolution(made, 13 * MS, 33, searched=True)
    run = found(made, folder=tmp_path)
    (search,) = named(run, "search for kernels")
    assert search.ms == pytest.approx(2, abs=0.02)
    assert "1 convolutions a step, at 8x64x33x33" in search.where
    off = made_with(cudnn_benchmark=False)
    convolution(off, 13 * MS, 33, searched=True)
    assert not named(found(off, folder=tmp_path), "search for kernels")


# ---------------------------------------------------------------- two runs


def product(made: Made, kind: str, ms: int) -> None:
    """4.4 TFLOP."""
    dims = [[32768, 4096], [4096, 16384]]
    with_op(made, "aten::mm", 11 * MS, ms * MS, dims, [kind, kind])


@pytest.mark.parametrize(("allowed", "ms"), [(True, 6), (True, 80), (False, 6)])
def test_a_base_on_tensor_cores_is_proved_by_its_rate(
    allowed: bool, ms: int, tmp_path: Path
) -> None:
    base = Made(header={"halfway": {"device": H200, "lead_in": 1, "traced": 1,
                                    "allow_tf32": allowed}})  # fmt: skip
    base.steps(9 * MS, 100 * MS)
    base.op("aten::relu", 8 * MS, 8 * MS + 50 * US)
    base.kernel("relu", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    product(base, "float", ms)
    other = made_with()
    product(other, BF16, 5)
    causes = named(found(base, other, folder=tmp_path), "the base already uses Tensor Cores")
    # 4.4 TFLOP in 6 ms are 733 TFLOP/s; in 80 ms 55, which IEEE float32 reaches as well.
    assert bool(causes) == (allowed and ms == 6)
    if causes:
        assert causes[0].ms == pytest.approx(6)
    assert not named(found(base, base, folder=tmp_path), "the base already uses Tensor Cores")


def scattered(kind: str, ms: float) -> Made:
    made = made_with()
    dims = [[16, 256], [1 << 21], [1 << 21, 256]]
    with_op(made, "aten::index_add_", 11 * MS, int(ms * MS), dims, [kind, "long int", kind])
    with_op(made, "aten::mul", 17 * MS, MS // 10, [[64, 64], [64, 64]], [kind, kind])
    return made


@pytest.mark.parametrize(("base_ms", "ms", "slower"), [(1, 3, True), (3, 1, False), (3, 3, False)])
def test_an_operator_is_slower_in_half_by_the_two_runs(
    base_ms: int, ms: int, slower: bool, tmp_path: Path
) -> None:
    run = found(scattered("float", base_ms), scattered(BF16, ms), folder=tmp_path)
    causes = named(run, "slower in half precision")
    assert bool(causes) == slower
    if slower:
        assert causes[0].ms == pytest.approx(ms - base_ms)
        assert "index_add_" in causes[0].where
    both = found(scattered(BF16, base_ms), scattered(BF16, ms), folder=tmp_path)
    assert not named(both, "slower in half precision"), "the base is no float32"


def test_threads_of_backward_are_searched_too(tmp_path: Path) -> None:
    made = made_with(cudnn_benchmark=True)
    args = {"Input Dims": [[8, 64, 9, 9], [8, 64, 9, 9], [64, 64, 3, 3]], "Input type": [HALF] * 3}
    made.op("aten::convolution_backward", 12 * MS, 14 * MS, BACKWARD, **args)
    for number in range(20):
        at = 12 * MS + number * 100 * US
        made.kernel("candidate", at + 20 * US, at + 90 * US, at + 10 * US, BACKWARD)
    # Another thread's calls in that time are not its search.
    made.span("cuda_runtime", "cudaStreamSynchronize", 12 * MS, 13 * MS, MAIN)
    (search,) = named(found(made, folder=tmp_path), "search for kernels")
    assert search.ms == pytest.approx(2, abs=0.05)
