"""Causes in traces made by hand: each where it is planted, none where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.traces import BACKWARD, MS, US, Made, begun

from e2e.profile.causes import AFTER, KNOWN, LEAST_SHARE, LIKELY, POSSIBLE, PROVEN, Cause, Gain
from e2e.profile.diagnosis import Traced, diagnose
from e2e.profile.halfway_prove import ABLATIONS
from e2e.profile.replay import KINDS
from e2e.profile.trials import (
    FAIR,
    SAID_APART,
    SIDECAR,
    Tried,
    gain_of,
    judged,
    refuted,
    tried_beside,
)

H200, FLOAT, BF16, HALF = "NVIDIA H200", "float", "c10::BFloat16", "c10::Half"
approx = pytest.approx


def made_with(**facts: Any) -> Made:
    """Two steps that end at 10 and 20 ms; the second is what counts."""
    made = begun(9 * MS, 18 * MS, **{"device": H200, **facts})
    made.op("aten::relu", 17 * MS, 17 * MS + 50 * US)
    made.kernel("relu", 19 * MS, 20 * MS, 17 * MS + 10 * US)
    return made


def found(*some: Made, folder: Path) -> Traced:
    """The diagnosis of the last; no cause takes more than the step."""
    paths = [made.write(folder / f"{number}.json") for number, made in enumerate(some)]
    run = diagnose(paths).runs[-1]
    assert all(0 <= one.most_ms <= one.ms <= run.step_ms for one in run.findings)
    assert all(one.share == approx(one.ms / run.step_ms) for one in run.findings)
    return run


def named(run: Traced, title: str) -> list[Cause]:
    return [cause for cause in run.findings if title in cause.title]


def with_op(made: Made, name: str, start: int, ns: float, dims: list[Any], *types: str) -> None:
    """An operator, and its one kernel of `ns`."""
    made.op(name, start, start + 20 * US, **{"Input Dims": dims, "Input type": [*types]})
    made.kernel("k", start + 30 * US, start + 30 * US + int(ns), start + US)


# ---------------------------------------------------------------- launches, normalisation


@pytest.mark.parametrize("name", ["aten::lerp_", "aten::_foreach_lerp_"])
def test_waits_for_an_optimizer_of_many_kernels_are_its(name: str, tmp_path: Path) -> None:
    """60 kernels of 5 us, one each 50 us; what the script does before is its own."""
    made, first = made_with(), 13 * MS
    made.note("Optimizer.step#Adam.step", first, first + 60 * 50 * US)
    for start in range(first, first + 60 * 50 * US, 50 * US):
        made.op(name, start, start + 40 * US)
        made.kernel("k", start + 12 * US, start + 17 * US, start + 10 * US)
    run = found(made, folder=tmp_path)
    (own,), (launch,) = named(run, "own code"), named(run, "CPU launch")
    waits_ms = 0.012 + 59 * 0.045
    single = "foreach" not in name
    assert (run.ms("CPU launch"), own.ms) == approx((waits_ms + 2, 3 + 0.983), abs=0.05)
    assert launch.ms == approx(2 if single else waits_ms + 2, abs=0.05)
    optimizer = named(run, "updates one tensor at a time")
    assert [one.ms for one in optimizer] == approx([waits_ms + 0.3] * single, abs=0.02)


@pytest.mark.parametrize(
    ("name", "title", "remedy"), [("Adam", "one tensor at a time", "fused"),
                                  ("LBFGS", "LBFGS", "history_size")],
)  # fmt: skip
def test_an_optimizer_gets_its_remedy(name: str, title: str, remedy: str, tmp_path: Path) -> None:
    made = Made()
    made.steps(10 * MS, 20 * MS)
    made.note(f"Optimizer.step#{name}.step", 12 * MS, 19 * MS)
    for start in (MS, *range(12 * MS, 18 * MS, 200 * US)):
        made.op("aten::add_", start, start + 190 * US)
    (one,) = found(made, folder=tmp_path).findings[:1]
    assert title in one.title
    assert ("30 operators" in one.where, remedy in one.remedy, "foreach" in one.remedy) == (1, 1, 0)


@pytest.mark.parametrize("regions", [1, 20])
def test_many_compiled_regions_are_a_cause_and_one_is_not(regions: int, tmp_path: Path) -> None:
    made, each = begun(9 * MS, 20 * MS), 8 * MS // regions
    for start in range(10 * MS, 10 * MS + regions * each, each):
        made.op("TorchDynamo Cache Lookup", start, start + each // 4)
        made.op("Torch-Compiled Region: 0/0", start + each // 4, start + each)
        made.kernel("triton_poi_fused_add_3", start + each // 2 + 2 * US, start + each,
                    start + each // 2)  # fmt: skip
    causes = named(found(made, folder=tmp_path), "compiled regions")
    assert len(causes) == (regions > 1)
    if causes:
        assert "20 a step" in causes[0].where
        assert causes[0].ms == approx(4, abs=0.1)


@pytest.mark.parametrize(("ms", "slow"), [(6, True), (1, False)])
@pytest.mark.parametrize("kind", [BF16, HALF])
def test_normalisation_is_slow_by_its_bytes(ms: int, slow: bool, kind: str, tmp_path: Path) -> None:
    """3 passes over 1.2 GB: 0.75 ms at the memory's 4.8 TB/s, of which 65 % is good."""
    for device in (H200, "An unknown card"):
        made = made_with(device=device)
        with_op(made, "aten::native_batch_norm", 11 * MS, ms * MS,
                [[100, 100, 100, 600], [100], [100]], kind, FLOAT, FLOAT)  # fmt: skip
        causes = named(found(made, folder=tmp_path), "normalisation in")
        assert len(causes) == (slow and device == H200)
        for one in causes:
            assert ("BF16" in one.title) == (kind == BF16)
            assert (one.ms, one.most_ms) == approx((ms, ms - 0.75 / 0.65), rel=1e-6)


# ---------------------------------------------------------------- searches


def convolution(made: Made, start: int, size: int, *, searched: bool) -> None:
    dims = [[8, 64, size, size], [64, 64, 3, 3]]
    end = start + (2 * MS if searched else 100 * US)
    made.op("aten::cudnn_convolution", start, end, **{"Input Dims": dims, "Input type": [HALF] * 2})
    for at in range(start, end - MS // 2, 400 * US):
        made.kernel("candidate", at + 50 * US, at + 250 * US, at + 10 * US)
        made.span("cuda_runtime", "cudaEventSynchronize", at + 20 * US, at + 260 * US)
    made.kernel("the best", end + 10 * US, end + 200 * US, end - 10 * US)


@pytest.mark.parametrize("benchmark", [True, False])
def test_a_search_at_a_new_shape_is_a_cause_of_its_own(benchmark: bool, tmp_path: Path) -> None:
    made = made_with(cudnn_benchmark=benchmark)
    convolution(made, 5 * MS, 32, searched=True)
    convolution(made, 11 * MS, 32, searched=False)
    convolution(made, 13 * MS, 33, searched=True)
    run = found(made, folder=tmp_path)
    causes = named(run, "search for kernels")
    assert len(causes) == benchmark
    for search in causes:  # with the convolution itself, of 0.19 ms
        assert search.ms == approx(2.19, abs=0.02)
        assert "1 convolutions a step, at 8x64x33x33" in search.where
        assert sum(one.ms for one in run.findings) <= run.step_ms, "nothing counts twice"


def test_threads_of_backward_are_searched_and_causes_by_themselves_named(tmp_path: Path) -> None:
    made = made_with(cudnn_benchmark=True)
    args = {"Input Dims": [[8, 64, 9, 9], [8, 64, 9, 9], [64, 64, 3, 3]], "Input type": [HALF] * 3}
    made.op("aten::convolution_backward", 12 * MS, 14 * MS, BACKWARD, **args)
    for at in range(12 * MS, 14 * MS, 100 * US):
        made.kernel("candidate", at + 20 * US, at + 90 * US, at + 10 * US, BACKWARD)
    # Another thread's calls in that time are not its search.
    made.span("cuda_runtime", "cudaStreamSynchronize", 12 * MS, 13 * MS)
    (search,) = named(found(made, folder=tmp_path), "search for kernels")
    assert search.ms == approx(2, abs=0.05)
    made = made_with()
    at = 10 * MS
    for name, ms in (("cudaMalloc", 2), ("cuModuleLoadData", 1)):
        made.span("cuda_runtime", name, at, at + ms * MS)
        at += ms * MS
    made.op("dynamo", at, at + MS)
    made.op("_compile.compile_inner (dynamo_timed)", at, at + MS)
    copies = {"stream": 9, "category": "gpu_memcpy"}
    made.kernel(
        "Memcpy HtoD (Pageable -> Device)", at + MS + 5 * US, at + 3 * MS, at + MS, **copies
    )
    made.kernel("ncclDevKernel_AllReduce_f32", 16 * MS, 17 * MS + 510 * US, 15 * MS, stream=8)
    made.kernel("relu", 17 * MS + 510 * US, 18 * MS, 16 * MS + 500 * US)
    run = found(made, folder=tmp_path)
    for title, ms, words in (
        ("memory allocation", 2, "cudaMalloc"), ("loading of kernels", 1, ""),
        ("compilation inside", 1, "1 in all"), ("copies to and from", 2, "pageable"),
        ("communication that", 1.01, "1.51 ms in all"), ("launches late", 0.5, ""),
    ):  # fmt: skip
        (one,) = named(run, title)
        assert one.ms == approx(ms, abs=0.011), title
        assert words in one.where
        assert one.remedy


# ---------------------------------------------------------------- other terms


@pytest.mark.parametrize("times", [1, 50])
def test_on_a_cpu_a_long_time_without_operator_is_the_script_s(times: int, tmp_path: Path) -> None:
    made, each = Made(), 20 * MS // times
    made.steps(10 * MS, 30 * MS)
    for start in range(10 * MS, 30 * MS, each):
        made.op("aten::mm", start, start + each // 2)
    run = found(made, folder=tmp_path)
    assert [one.share for one in named(run, "own code")] == [0.5] * (times == 1)


# ---------------------------------------------------------------- two runs


@pytest.mark.parametrize(("allowed", "ms"), [(True, 6), (True, 80), (False, 80)])
def test_a_base_on_tensor_cores_has_their_rate(allowed: bool, ms: int, tmp_path: Path) -> None:
    """4.4 TFLOP in 6 ms are 733 TFLOP/s; in 80 ms 55, which IEEE float32 reaches as well."""
    dims = [[32768, 4096], [4096, 16384]]
    base, other = begun(9 * MS, 100 * MS, device=H200, allow_tf32=allowed), made_with()
    with_op(base, "aten::mm", 11 * MS, ms * MS, dims, FLOAT, FLOAT)
    with_op(other, "aten::mm", 11 * MS, 5 * MS, dims, BF16, BF16)
    causes = named(found(base, other, folder=tmp_path), "the base already uses Tensor Cores")
    assert [one.ms for one in causes] == [0] * (allowed and ms == 6), "it costs nothing"
    assert not named(found(base, base, folder=tmp_path), "the base already uses Tensor Cores")


@pytest.mark.parametrize(("base_ms", "ms", "slower"), [(1, 3, True), (3, 1, False), (3, 3, False)])
def test_an_operator_is_slower_in_half(base_ms: int, ms: int, slower: bool, tmp_path: Path) -> None:
    def scattered(kind: str, ms: float) -> Made:
        made, dims = made_with(), [[16, 256], [1 << 21], [1 << 21, 256]]
        with_op(made, "aten::index_add_", 11 * MS, ms * MS, dims, kind, "long int", kind)
        with_op(made, "aten::mul", 16 * MS, MS // 10, [[64, 64], [64, 64]], kind, kind)
        return made

    run = found(scattered(FLOAT, base_ms), scattered(BF16, ms), folder=tmp_path)
    causes = named(run, "slower in half precision")
    assert [one.ms for one in causes] == approx([ms - base_ms] * slower)
    assert all("index_add_" in one.where for one in causes)
    both = found(scattered(BF16, base_ms), scattered(BF16, ms), folder=tmp_path)
    assert not named(both, "slower in half precision"), "the base is no float32"


# ---------------------------------------------------------------- trials


CAUSES = ("loader", "sync", "launch", "casts", "layout", "optimizer", "misaligned", "")
STEP_MS = 100.0

times = st.floats(1e-4, 1.0)
milliseconds = st.floats(0.01, 100)


@st.composite
def gains(draw: st.DrawFn) -> Gain:
    low, middle, high = sorted(draw(st.lists(st.floats(-50, 50), min_size=3, max_size=3)))
    cause, resident = draw(st.sampled_from(sorted(KNOWN))), draw(st.booleans())
    step_ms = draw(milliseconds)
    return Gain(cause, f"change of {cause}", middle, low, high, step_ms, 6, resident)


@st.composite
def claims(draw: st.DrawFn) -> Cause:
    status, ms = draw(st.sampled_from((LIKELY, POSSIBLE))), draw(milliseconds)
    where = draw(st.sampled_from(("num_workers=0: the training process", "")))
    cause = draw(st.sampled_from(CAUSES))
    return Cause(f"title of {cause}", ms, ms / STEP_MS, where, "", None, cause, status)


def by_cause(some: Any) -> list[Any]:
    return list({one.cause: one for one in some}.values())


causes = st.lists(claims()).map(by_cause)
NOT_TRIED = {"loader": "no time"}
trials = st.lists(gains()).map(by_cause).map(lambda some: Tried(tuple(some), NOT_TRIED, 9))


@settings(max_examples=100)
@given(causes, trials)
def test_causes_are_kept_or_refuted_the_largest_first(found: list[Cause], tried: Tried) -> None:
    kept, gone = judged(found, tried, STEP_MS), {gain.cause for gain in refuted(found, tried)}
    assert not {one.cause for one in kept} & gone
    claimed = {one.cause: one for one in found}
    assert {one.title for one in kept} >= {one.title for one in found if one.cause not in gone}
    for one in kept:
        gain = next((each for each in tried.gains if each.cause == one.cause), None)
        assert one.gain == gain
        assert one.unproven == ("no time" if one.cause == "loader" and gain is None else "")
        if gain is None or one.status in (LIKELY, POSSIBLE):
            assert one.status == claimed[one.cause].status
            continue
        claim = claimed.get(one.cause)
        least = LEAST_SHARE * (gain.step_ms if claim or one.status == AFTER else STEP_MS)
        worth = min(FAIR * claim.most_ms, least) if claim else least
        proven = gain.low_ms > 0 and gain.ms >= worth
        assert proven or (one.status == AFTER and gain.resident)
    after = [one.status == AFTER for one in kept]
    assert after == sorted(after), "what shows only after another cause is last"
    worths = [one.gain.ms if one.status == PROVEN and one.gain else one.most_ms
              for one in kept if one.status != AFTER]  # fmt: skip
    assert worths == sorted(worths, reverse=True)
    waits = [one for one in kept if one.cause == "loader" and one.share >= 0.1 and not one.where]
    waits = waits if "loader" in claimed else []
    assert not any(after) or waits, "nothing else hides a gain"
    resident = [one for one in kept if one.gain and one.gain.resident]
    assert not waits or all(one.status == AFTER for one in resident)


@settings(max_examples=50)
@given(st.lists(times, min_size=3, max_size=8), st.floats(0.2, 5))
def test_a_gain_is_that_of_the_ratio_and_has_its_sign(seconds: list[float], factor: float) -> None:
    as_is, changed = [[one] for one in seconds], [[one * factor] for one in seconds]
    found, back = gain_of("loader", "", as_is, changed), gain_of("loader", "", changed, as_is)
    assert found.ms == pytest.approx(found.step_ms * (1 - factor), rel=1e-6, abs=1e-9)
    assert found.low_ms <= found.ms <= found.high_ms
    assert found.ms * back.ms <= 1e-12
    for rounds in (0, 1, 2):
        assert gain_of("loader", "", as_is[:rounds], changed[:rounds]) is None


def test_damaged_results_tell_nothing_and_leave_the_others(tmp_path: Path) -> None:
    def read(results: object) -> Tried | None:
        (tmp_path / f"run{SIDECAR}").write_text(json.dumps(results))
        return tried_beside(tmp_path / "run.json.gz")

    good = {"name": "loader", "change": "x", "as_is_s": [[2]] * 3, "changed_s": [[1]] * 3}
    junk = (None, True, -3, "text", [], [[0]], [[1], [], [1]], {"a": 1})
    bad = [good | {name: value} for name in ("as_is_s", "changed_s") for value in junk]
    whole = {"tried": [*bad, *junk, good | {"resident": True}], "not_tried": {"a": "b"}, "steps": 7}
    found = read(whole)
    assert [(one.cause, one.ms, one.resident) for one in found.gains] == [("loader", 1000, True)]
    assert (found.not_tried, found.steps) == ({"a": "b"}, 7)
    for value in junk:
        for damaged in (value, *(whole | {name: value} for name in whole)):
            found = read(damaged)
            assert found is None or {gain.cause for gain in found.gains} <= {"loader"}
            assert found is None or (type(found.steps) is int and found.steps >= 0)
    assert tried_beside(tmp_path / "another.json") is None


def test_all_that_is_tried_is_a_known_cause(tmp_path: Path) -> None:
    """Of several ways to take one away the best counts."""
    names = (*ABLATIONS, *KINDS, "attention", "loops", SAID_APART)
    rows = [{"name": name, "change": name, "as_is_s": [[99.0]] * 3, "changed_s": [[99.0 - at]] * 3}
            for at, name in enumerate(names)]  # fmt: skip
    (tmp_path / f"run{SIDECAR}").write_text(json.dumps({"tried": rows}))
    found = tried_beside(tmp_path / "run.json")
    assert {gain.cause for gain in found.gains} <= KNOWN.keys()
    (attention,) = (gain for gain in found.gains if gain.cause == "sdpa")
    assert attention.change == [name for name in names if name.startswith("sdpa")][-1]
