"""Traces made by hand: planted causes, and several recordings that are held against each other."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from samples.kernel_runs import h200_run
from samples.traces import BACKWARD, MS, NODE, US, Made, begun, traces
from samples.training_runs import amp_run, broken_run, run_of, variant

from e2e.__main__ import main
from e2e.profile.causes import AFTER, KNOWN, LEAST_SHARE, LIKELY, POSSIBLE, PROVEN, Cause, Gain
from e2e.profile.compare import align
from e2e.profile.diagnosis import Diagnosis, Traced, changes, diagnose, diagnose_ranks
from e2e.profile.halfway_prove import ABLATIONS
from e2e.profile.replay import KINDS
from e2e.profile.trace import read_trace
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
from e2e.profile.unprofiled import steps_in
from e2e.results.types import Training
from microbench.__main__ import main as shows
from microbench.errors import UserError
from microbench.report.comparison import report
from microbench.report.screen import print_report
from microbench.results.comparison import compare
from microbench.results.types import Run

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


@pytest.mark.parametrize("last", [True, False])
def test_in_the_default_layout_normalisation_is_slow_by_that_first(
    last: bool, tmp_path: Path
) -> None:
    made = made_with()
    with_op(made, "aten::native_batch_norm", 11 * MS, 3 * MS, [[100, 64, 100, 600]], BF16)
    strides = [576, 1, 192, 64] if last else [576, 9, 3, 1]
    made.op(
        "aten::cudnn_convolution", 15 * MS, 16 * MS, **{
            "Input Dims": [[100, 64, 100, 600], [64, 64, 3, 3]], "Input type": [BF16, BF16],
            "Input Strides": [[3840000, 1, 38400, 64], strides],
        },
    )  # fmt: skip
    made.kernel("conv", 15 * MS + 30 * US, 16 * MS, 15 * MS + US)
    (one,) = named(found(made, folder=tmp_path), "normalisation in")
    assert ("channels_last" in one.remedy) == (not last)


@pytest.mark.parametrize(
    ("name", "update", "ms", "title"),
    [
        ("aten::_foreach_addcdiv_", True, 5, "not fused"), ("aten::_fused_adam_", True, 5, ""),
        ("aten::mul", False, 5, "a pass over memory"), ("aten::_log_softmax", False, 5, "a pass"),
        ("aten::mul", False, 1.5, ""), ("aten::mm", False, 5, ""),
    ],
)  # fmt: skip
def test_passes_over_memory_that_fusion_saves_are_a_possible_cause(
    name: str, update: bool, ms: float, title: str, tmp_path: Path
) -> None:
    made = made_with()
    if update:
        made.note("Optimizer.step#Adam.step", 11 * MS, 18 * MS)
    with_op(made, name, 11 * MS, ms * MS, [[4096, 4096]], FLOAT)
    causes = [*named(found(made, folder=tmp_path), "memory"),
              *named(found(made, folder=tmp_path), "an optimizer")]  # fmt: skip
    assert [title in one.title for one in causes] == [True] * bool(title)
    assert all(one.status == POSSIBLE for one in causes)
    assert all(one.ms == approx(ms + update, abs=0.01) for one in causes), "1 ms is there before"
    loop = made_with()
    loop.op(NODE, 10 * MS, 10 * MS + 50 * US, BACKWARD)
    loop.kernel("k", 10 * MS + 20 * US, 10 * MS + 40 * US, 10 * MS + US, BACKWARD)
    for start in range(11 * MS, 17 * MS, 30 * US):
        with_op(loop, "aten::mul", start, 25 * US, [[4096, 4096]], FLOAT)
    run = found(loop, folder=tmp_path)
    assert (len(named(run, "many small")), named(run, "pass over memory")) == (1, []), "not twice"


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


# ---------------------------------------------------------------- several recordings


Folders = pytest.TempPathFactory


def of(folder: Path, *made: Made) -> Diagnosis:
    return diagnose([one.write(folder / f"{n}.json") for n, one in enumerate(made)])


def training(
    steps: int = 2, batch: int = 64, dtype: str = "float", gemm_us: int = 100, casts: bool = False,
    modules: bool = True, shapes: bool = True, odd: int = 0,
) -> Made:  # fmt: skip
    """Steps of two layers, a product and a relu each, and what ends them.

    Of all products after those of the first step, the first `odd` have other sizes.
    """
    made, now, ends = Made(), 0, []
    others = iter([[[batch, 32], [32, 16]]] * 2 + [[[batch, 99], [99, 16]]] * odd)
    for _ in range(steps + 1):
        for layer in ("body", "head"):
            begin = now
            calls = [("aten::copy_", 30)] * casts + [("aten::mm", gemm_us), ("aten::relu", 20)]
            for name, gpu_us in calls:
                dims = [[batch, 32], [32, 16]]
                dims = next(others, dims) if name == "aten::mm" else dims
                args: dict[str, Any] = {"Input Dims": dims} if shapes else {}
                args["Input type"] = [dtype, "float" if name == "aten::copy_" else dtype]
                made.op(name, now, now + 5 * US, **args)
                made.kernel(name, now + 10 * US, now + (10 + gpu_us) * US, now + US)
                now += (gpu_us + 20) * US
            if modules:
                made.note(f"halfway::{layer}", begin, now - US)
        ends.append(now)
    made.steps(*ends)
    return made


def test_amp_matches_float32_and_what_a_recording_lacks_is_said(tmp_path: Path) -> None:
    base, other = training(), training(steps=3, dtype=BF16, gemm_us=40, casts=True)
    found = of(tmp_path, base, other)
    assert (found.aligned.share, found.aligned.alike) == (1, 1)
    times = 2 * 120 * US, 3 * (40 + 20 + 30) * US
    layers = [(x.module, x.phase, x.base_ns, x.other_ns) for x in found.aligned.layers]
    assert layers == [("body", "forward", *times), ("head", "forward", *times)]
    of_term = {change.term: change.ns for change in changes(*found.runs)}
    assert of_term["matrix products"] == -2 * 60 * US
    assert of_term["casts"] == 2 * 30 * US
    unnamed, unshaped = training(modules=False), training(shapes=False)
    found = of(tmp_path, training(), unnamed)
    assert (found.aligned.share, found.aligned.layers) == (1, ())
    assert "names no modules" in found.runs[1].missing[0]
    found = of(tmp_path, training(), unshaped)
    assert (found.aligned, found.runs[1].products) == (None, ())
    assert (found.runs[0].missing, "record_shapes" in found.runs[1].missing[0]) == ((), True)


@pytest.mark.parametrize(("odd", "matched"), [(4, 17), (3, 38)])
def test_recordings_that_hardly_match_are_refused(odd: int, matched: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^the two .* different shapes \(matched {matched} %"):
        of(tmp_path, training(), training(odd=odd))
    with pytest.raises(UserError, match="matched 0 %"):
        of(tmp_path, training(), training(batch=128))
    cpu = training()
    cpu.events = [event for event in cpu.events if event["cat"] in ("cpu_op", "user_annotation")]
    with pytest.raises(UserError, match="the other only a CPU's"):
        of(tmp_path, training(), cpu)


def test_a_synchronisation_has_the_line_of_the_user_s_script(tmp_path: Path) -> None:
    """From a stack, of older torch and of newer."""
    made = training()
    end = max(e["ts"] + e["dur"] for e in made.events if e["cat"] == "kernel")
    made.op("aten::item", end, end + 500 * US)
    made.span("cuda_runtime", "cudaStreamSynchronize", end + US, end + 400 * US)
    made.op("aten::mm", end + 600 * US, end + 610 * US)
    made.kernel("gemm", end + 620 * US, end + 630 * US, end + 601 * US)
    made.events = [e for e in made.events if not e["name"].startswith("ProfilerStep")]
    made.steps(end // 3, 2 * end // 3, end + 611 * US)

    def sync() -> str:
        (run,) = of(tmp_path, made).runs
        assert "someone" not in str(run)
        stack = any(event["cat"] == "python_function" for event in made.events)
        assert any("no Python stack" in text for text in run.missing) != stack
        return next(one.where for one in run.findings if one.cause == "sync")

    assert ".py" not in sync()
    for name, start, until in (
        ("runpy.py(88): _run_code", 0, 999),
        ("/home/someone/work/train.py(80): main", end - US, 900),
        ("torch/_tensor.py(10): item", end, 500),
    ):  # fmt: skip
        made.span("python_function", name, start, end + until * US)
    assert "train.py:80 " in sync()
    made.events[-1]["args"]["CallFrom"] = "/home/someone/work/train.py:88"
    assert "train.py:88 " in sync()


@pytest.mark.parametrize("alike", [True, False])
def test_the_screen_has_the_layers_where_enough_matches(
    alike: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = training(dtype=BF16, gemm_us=40, casts=True) if alike else training(odd=1)
    paths = [training().write(tmp_path / "base.json"), made.write(tmp_path / "other.json")]
    aligned = diagnose(paths).aligned
    assert aligned.share == pytest.approx(1 if alike else 380 / 480)
    words = ["diagnose", str(paths[1]), "--base", str(paths[0])]
    out = tmp_path / "out.json"
    assert main([*words, "--json", str(out)]) == 0
    brief = capsys.readouterr().out
    assert shows(["show", str(out), "--verbose"]) == 0
    whole = capsys.readouterr().out
    assert ("too little to compare layers" in " ".join(whole.split())) != alike
    assert ("Layers that changed most" in whole) == alike
    assert ["64x32 32x16" in text for text in (brief, whole)] == [False, True]


# ---------------------------------------------------------------- properties


@settings(max_examples=25)
@given(made=traces(), other=traces(types=BF16))
def test_changes_add_up_and_flip(made: Made, other: Made, tmp_path_factory: Folders) -> None:
    other.header = {"halfway": {"bare_s": [0.000123, 0.000321], "traced": 2}}
    folder = tmp_path_factory.mktemp("t")
    paths = made.write(folder / "a.json"), other.write(folder / "b.json")
    runs = [diagnose([path]).runs[0] for path in paths]
    there, back = changes(*runs), changes(*reversed(runs))
    for *lines, step in (there, back):
        assert sum((line.ns for line in lines), Fraction()) == step.ns
    assert there[-1].other_ns == Fraction(runs[1].window_ns, runs[1].steps)
    assert {change.term: -change.ns for change in back} == {line.term: line.ns for line in there}
    steps = [steps_in(read_trace(path)).step for path in paths]
    found, swapped = align(*steps), align(*reversed(steps))
    if found is None or swapped is None:  # all work is a cast or a copy
        assert found == swapped
        return
    assert found.alike == swapped.alike
    assert found.matched_ns == swapped.matched_ns[::-1]
    assert [(x.module, x.phase, x.base_ns, x.other_ns) for x in found.layers] == [
        (x.module, x.phase, x.other_ns, x.base_ns) for x in swapped.layers
    ]


@settings(max_examples=25)
@given(made=traces(), shift=st.integers(0, 10**15), seed=st.integers(0, 99))
def test_a_recording_is_itself_in_any_order_at_any_time(
    made: Made, shift: int, seed: int, tmp_path_factory: Folders
) -> None:
    first = made.write(tmp_path_factory.mktemp("first") / "t.json")
    (before,) = diagnose([first]).runs
    random.Random(seed).shuffle(made.events)
    for event in made.events:
        if event["cat"] == "kernel":
            event["args"]["stream"] += 13
    found = diagnose([first, made.write(tmp_path_factory.mktemp("again") / "t.json", shift)])
    assert found.runs == (before, before)
    assert all(change.ns == 0 for change in changes(*found.runs))
    if found.aligned:  # None where all work is a cast or a copy
        assert (found.aligned.share, found.aligned.alike) == (1, 1)
        assert all(layer.base_ns == layer.other_ns for layer in found.aligned.layers)
        busy = sum(term.ns for term in before.terms if not term.idle)
        assert sum(layer.base_ns for layer in found.aligned.layers) in (0, busy)


# ---------------------------------------------------------------- all ranks of one run

TRANSFER = 2 * MS
ELEMENTS = 1_000_000


def rank(
    folder: Path, number: int, arrives: list[int], name: str = "allreduce", **known: Any
) -> Path:
    """Steps of 20 ms, each with a GEMM until it arrives and an exchange that ends at 14 ms."""
    facts = {"rank": number, "lead_in": 1, "traced": len(arrives) - 1, **known}
    made = Made(header={"halfway": facts})
    ends: list[int] = []
    for place, at in enumerate(arrives):
        begin = 20 * MS * place
        made.op("aten::mm", begin, begin + 50 * US)
        made.kernel("gemm", begin + 20 * US, begin + at, begin + 10 * US)
        launched = begin + 100 * US
        made.correlation += 1
        made.span(
            "cuda_runtime", "cudaLaunchKernelExC", launched, launched + US,
            correlation=made.correlation,
        )  # fmt: skip
        made.span(
            "kernel", "ncclDevKernel_AllReduce", begin + at, begin + 14 * MS, 9, stream=9, device=0,
            correlation=made.correlation, dtype="BFloat16",
            **{"Collective name": name, "In msg nelems": ELEMENTS, "Group size": 2,
               "Process Group Name": "0"},
        )  # fmt: skip
        ends.append(begin + 19 * MS)
    made.steps(*ends)
    return made.write(folder / f"amp.rank{number}.json")


def test_the_last_of_ranks_takes_the_transfer_and_other_runs_are_refused(tmp_path: Path) -> None:
    early = rank(tmp_path, 0, [5 * MS, 6 * MS, 7 * MS])
    late = rank(tmp_path, 1, [12 * MS, 12 * MS, 12 * MS])
    found = diagnose_ranks([early, late])
    first, second = found.ranks.ranks
    assert found.ranks.transfer_ms == pytest.approx(2)
    assert second.last == 1.0
    assert second.waiting_ms == pytest.approx(0)
    assert first.waiting_ms == pytest.approx((6 + 5) / 2)  # of the two whole steps
    assert first.communication_ms == pytest.approx(first.waiting_ms + 2)
    assert found.ranks.collectives == 1
    # An all-reduce of two sends each byte once over each link: 2 (n - 1) / n.
    assert found.ranks.bus_byte_per_s == pytest.approx(2 * ELEMENTS / (TRANSFER / 1e9))
    assert found.runs[0].name == "amp.rank1.json"  # what the others wait for is explained
    theirs = rank(tmp_path, 1, [5 * MS, 5 * MS], name="broadcast")
    assert diagnose_ranks([early, theirs]) is None


def test_a_rank_waits_no_longer_than_the_step_without_the_profiler_leaves(tmp_path: Path) -> None:
    bare_s = [0.010, 0.010, 0.010, 0.010]
    early, late = (
        rank(tmp_path, number, [at * MS] * 4, bare_s=bare_s) for number, at in enumerate((5, 12))
    )
    found = diagnose_ranks([early, late])
    first, _ = found.ranks.ranks
    # As recorded it waits 7 of 20 ms; its own 5 ms leave 5 of 10.
    assert first.waiting_ms == pytest.approx(5, abs=0.1)


def alone(arrives: int) -> dict[str, Any]:
    """The recording of kernels alone of such steps."""
    names = ["gemm", "ncclDevKernel_AllReduce", "cudaLaunchKernelExC"]
    work: list[list[Any]] = []
    calls: list[list[Any]] = []
    for place in range(4):
        begin = 20 * MS * place
        for kind, (start, end) in enumerate(((20 * US, arrives), (arrives, 14 * MS))):
            number = len(work) + 1
            work.append([kind, "kernel", begin + start, end - start, f"0/{7 + 2 * kind}", number])
            calls.append([2, begin + number % 3 * US, US, 1, number])
    return {"names": names, "ends": [20 * MS * n - MS for n in range(1, 5)],
            "work": work, "calls": calls}  # fmt: skip


def test_ranks_wait_as_recorded_without_operators(tmp_path: Path) -> None:
    """Operators make the late rank later: 7 ms with them, 3 ms without."""
    ranks = [rank(tmp_path, number, [at * MS] * 4, times=alone(light * MS))
             for number, (at, light) in enumerate(((5, 9), (12, 12)))]  # fmt: skip
    first, second = diagnose_ranks(ranks).ranks.ranks
    assert (first.waiting_ms, second.waiting_ms) == pytest.approx((3, 0), abs=0.01)


# ---------------------------------------------------------------- compare trainings


OPPOSITE = {"faster": "slower", "slower": "faster"}


def scaled(run: Run, factor: float) -> Run:
    """The run with every step taking this many times as long."""
    found: list[Training] = []
    for training in run.of(Training):
        steps = training.steps
        low, high = steps.ci95_s
        longer = replace(
            steps,
            times_s=tuple(factor * seconds for seconds in steps.times_s),
            median_s=factor * steps.median_s,
            ci95_s=(factor * low, factor * high),
        )
        found.append(replace(training, steps=longer))
    return replace(run, others=tuple(found))


def one(**more: Any) -> Run:
    """A training of 4,690 units a second."""
    return run_of(variant("amp", 4_690, **more))


LOST = run_of(replace(variant("amp", 1.0), status="failed", reason="hung", steps=None))
# Both runs, the verdict of the second, and what its note or reason says.
PAIRS: dict[str, tuple[Run, Run, str, str]] = {
    "a run and itself": (one(), one(), "same", ""),
    "five per cent": (one(), scaled(one(), 1.05), "slower", "interval is beyond it"),
    "launches": (one(limit="host"), scaled(one(limit="host"), 1.05), "cannot tell", ""),
    "a failure": (one(), LOST, "slower", "ok | failed"),
    "two failures": (LOST, LOST, "not measured", ""),
    "only one learns": (
        one(converged=False, convergence="NaN"), one(converged=True), "same",
        "A did not converge (NaN)",
    ),
    "only the other": (
        one(converged=True), one(converged=False), "same", "B did not converge",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_verdict_and_that_of_the_exchanged_runs(name: str) -> None:
    a, b, verdict, said = PAIRS[name]
    (row,), (back,) = compare(a, b).rows, compare(b, a).rows
    assert row.verdict == verdict
    assert said in f"{row.note} {row.reason}"
    assert back.verdict == OPPOSITE.get(verdict, verdict)
    limited = a.of(Training)[0].limit == "host"
    assert row.threshold_pct in (None, 30.0 if limited else 3.0)


@pytest.mark.parametrize("fed_first", [True, False])
def test_steps_with_a_loader_are_measured_otherwise_since_method_2(fed_first: bool) -> None:
    """Block means in place of medians; all other trainings compare across it."""
    found = list(amp_run().of(Training))
    fed = replace(found[0], case=replace(found[0].case, loader="torchvision"))
    new = replace(amp_run(), others=(fed, *found[1:]), method_version=2)
    old = replace(new, method_version=1)
    rows = (compare(new, old) if fed_first else compare(old, new)).rows
    assert [row.verdict for row in rows] == ["cannot tell", "same", "same"]
    assert [row.reason == "other method" for row in rows] == [True, False, False]
    assert rows[0].ratio is None
    assert {row.verdict for run in (new, old) for row in compare(run, run).rows} == {"same"}
    alone = replace(new, others=(fed,))
    with pytest.raises(UserError, match="method"):
        compare(alone, replace(alone, method_version=1))


def test_trainings_and_kernels_compare_each_with_its_own_noise() -> None:
    kernels, both = h200_run(), replace(h200_run(), others=amp_run().of(Training))
    slower = replace(both, others=scaled(amp_run(), 1.05).of(Training))
    comparison = compare(both, slower)
    assert comparison.count("same") == len(both.results)
    assert comparison.count("slower") == 3
    assert compare(both, amp_run()).only_a == [result.case for result in both.results]
    for a, b in ((amp_run(), kernels), (kernels, amp_run())):
        with pytest.raises(UserError, match="no case in common"):
            compare(a, b)
    few = replace(both, results=both.results[:2])
    for a, b in ((amp_run(), amp_run()), (both, slower), (broken_run(), broken_run()), (few, few)):
        for width in (60, 100):
            file = io.StringIO()
            console = Console(file=file, width=width, highlight=False)
            print_report(report({"b": compare(a, b)}, "a"), console)
            assert max(map(cell_len, file.getvalue().splitlines())) <= width
