"""Predictions on the CPU: their arithmetic, memory, traces, and which kernels are whose."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.traces import MS, Made, Tape, recorded
from samples.train_cases import Undecided, case_of, network_of, quietly

from e2e.aten import Call, TensorSpec, describe
from e2e.networks import find
from e2e.networks.network import Network
from e2e.prediction.predictor import GPU_ERROR, Predictor, Trace, key_of, predicted_of
from e2e.prediction.recorder import TracedOp
from e2e.prediction.timer import ROUNDS, CallTime, PlacedCall, kernels_of, launch_s, time_calls
from e2e.profile.diagnosis import diagnose
from e2e.profile.products import products
from e2e.profile.step import step_of
from e2e.profile.trace import LAUNCH, NOTE, OP, WORK, kernels_alone, read_trace
from e2e.results.types import Predicted
from e2e.training.store import Store
from kernels.case import Target
from microbench.device.profiler import KernelTime
from microbench.errors import UserError

CPU, CLASSES = Target("cpu", "a CPU"), 10
NETWORK = find("cnn-cifar")
CASE = case_of(NETWORK, 4)


def predicted(store: Store[CallTime], network: Network = NETWORK, **settings: object) -> Predicted:
    found = Predictor(network, CPU, CLASSES, store).predict(
        case_of(network, 4, **settings), quietly
    )
    assert found.predicted is not None, found.reason
    return found.predicted


@pytest.mark.parametrize("recipe", ["fp32", "amp-bf16"])
def test_every_op_is_in_the_sum_as_often_as_in_a_step(recipe: str, store: Store[CallTime]) -> None:
    case = case_of(NETWORK, 4, recipe=recipe)
    asked = Predictor(NETWORK, CPU, CLASSES, store)
    found = asked.predict(case, quietly).predicted
    again = asked.predict(case, quietly).predicted  # of the same times
    assert found.uncovered == ()
    assert found.step_s == again.step_s > 0
    assert (found.interval_s, found.limit) == (None, None), "the error on a CPU is not known"
    assert found.took_s["tracing"] > 0


times = st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=5)
steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 999)), min_size=1, max_size=12)


@given(steps, st.lists(times, min_size=4, max_size=4), st.integers(0, 3))
def test_the_sum_of_operations(
    step: list[tuple[int, int]], each: list[list[float]], unknown: int
) -> None:
    """By hand: of four operations, launched in some order, of which one may be unknown."""
    ops = tuple(
        TracedOp(Call(f"aten.op{which}.default", ()), (), "forward", allocated, 0)
        for which, allocated in step
    )
    traced = Trace(CASE, ops, 0)
    keys = [key_of(CASE, TracedOp(Call(f"aten.op{n}.default", ()), (), "", 0, 0)) for n in range(4)]
    known = {
        key: CallTime(tuple(times_s), kernels=n + 1, scratch_bytes=0)
        for n, (key, times_s) in enumerate(zip(keys, each, strict=True))
        if n != unknown
    }
    found = predicted_of(traced, known, {keys[unknown]: "planted"})
    launched = [which for which, _ in step if which != unknown]
    assert found.step_s == pytest.approx(math.fsum(sorted(each[n])[2] for n in launched))
    assert found.launches == sum(n + 1 for n in launched)
    lost = len(step) - len(launched)
    said = (f"{lost} x aten.op{unknown}.default: planted ({lost} of {len(step)} calls)",)
    assert found.uncovered == (said if lost else ())
    assert found.interval_s is None, "an unknown amount is missing"
    known[keys[unknown]] = CallTime((1.0,) * 5)
    low, high = predicted_of(traced, known, {}).interval_s or (0.0, 0.0)
    sums_s = [math.fsum(known[keys[n]].times_s[i] for n, _ in step) for i in range(5)]
    assert low == pytest.approx((1 - GPU_ERROR) * min(sums_s))
    assert high == pytest.approx((1 + GPU_ERROR) * max(sums_s))


sizes = st.integers(0, 10**6)
changes = st.lists(st.tuples(sizes, sizes, sizes), max_size=12)  # freed, allocated, scratch


@given(sizes, changes)
def test_peak_memory_is_of_the_largest_call(held: int, moves: list[tuple[int, int, int]]) -> None:
    ops = tuple(
        TracedOp(Call(f"aten.op{i}.default", (i,), ()), (), "forward", allocated, freed)
        for i, (freed, allocated, _) in enumerate(moves)
    )
    found = Trace(CASE, ops, held)
    scratch = {op.call.key: moves[i][2] for i, op in enumerate(ops)}
    after = list(accumulate((made - freed for freed, made, _ in moves), initial=held))
    during = [left + scratch for left, (_, _, scratch) in zip(after[1:], moves, strict=True)]
    assert found.peak_bytes(scratch) == max([held, *during])
    assert found.peak_bytes() == max(after), "what was not timed needs no more than its results"


def test_steady_times_are_kept_for_another_process_and_others_measured_again(
    empty_store: Store[CallTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds of the first call differ."""
    asked: list[PlacedCall] = []

    def planted(target: Target, calls: list[PlacedCall], doing: object) -> list[CallTime]:
        asked.extend(calls)
        return [CallTime((1.0, 2.0, 3.0)), *(CallTime((1.0, 1.1, 1.2)) for _ in calls[1:])]

    monkeypatch.setattr("e2e.prediction.predictor.time_calls", planted)
    predicted(empty_store)
    first, *others = asked
    assert others
    predicted(empty_store)
    assert asked[1 + len(others) :] == [first]


def test_a_step_of_which_nothing_has_a_time_or_that_breaks_is_not_predicted(
    empty_store: Store[CallTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "e2e.prediction.predictor.time_calls", lambda target, calls, doing: ["planted"] * len(calls)
    )
    found = Predictor(NETWORK, CPU, CLASSES, empty_store).predict(CASE, quietly)
    assert found.predicted is None
    assert "nothing could be timed: 4 x aten.convolution" in (found.reason or "")

    def broken(key: str, stage: str) -> None:
        raise RuntimeError("planted\nand more")

    found = Predictor(NETWORK, CPU, CLASSES, empty_store).predict(CASE, broken)
    assert (found.predicted, found.reason, found.status) == (
        None,
        "RuntimeError: planted",
        "failed",
    )


@pytest.mark.parametrize(
    ("network", "settings", "named"),
    [
        (NETWORK, {"batch": 10**6}, "of the device's 1.0"),
        (NETWORK, {"compile": True}, "compiled"), (NETWORK, {"graph": True}, "captured"),
        (NETWORK, {"recipe": "tf32"}, "Tensor"),
        (network_of(Undecided, False), {}, "cannot be traced: DynamicOutputShape"),
    ],
)  # fmt: skip
def test_what_is_not_predicted_has_a_reason(
    network: Network, settings: Mapping[str, object], named: str, store: Store[CallTime]
) -> None:
    case = case_of(network, **{"batch": 4, **settings})
    found = Predictor(network, CPU, CLASSES, store, memory_bytes=10**9).predict(case, quietly)
    assert found.predicted is None
    assert named in (found.reason or "")
    assert "\n" not in (found.reason or "")
    assert found.status == "skipped"


@pytest.mark.parametrize("content", [
    "{", "[]", '{"calls": 3}', '{"calls": {"a": {"times_s": [-1.0]}}}',
    '{"calls": {"a": {"times_s": []}}}', '{"calls": {"a": {"times_s": "1"}}}',
])  # fmt: skip
def test_a_damaged_store_is_measured_again(
    content: str, empty_store: Store[CallTime], caplog: pytest.LogCaptureFixture
) -> None:
    empty_store.add({"kept": CallTime((1.0, 2.0), 3, 4)})
    again = Store({"name": "a CPU"}, {}, "calls", CallTime)
    assert again.get("kept") == CallTime((1.0, 2.0), 3, 4)
    again.path.write_text(content)
    assert Store({"name": "a CPU"}, {}, "calls", CallTime).get("a") is None
    assert "cannot be read" in caplog.text
    again.add({"new": CallTime((1.0,))})
    assert set(json.loads(again.path.read_text())["calls"]) == {"kept", "new"}


# ---------------------------------------------------------------- calls launched alone


def seen(*names: str) -> list[KernelTime]:
    return [KernelTime(name, 1e-6, i * 1e-5) for i, name in enumerate(names)]


def test_kernels_belong_to_the_mark_before_them_and_the_first_finds_another_cache() -> None:
    found = kernels_of(seen("lost", "empty", "a", "b", "empty", "c", "empty", "fill"), [1, 2, None])
    assert {owner: [[k.name for k in row] for row in rows] for owner, rows in found.items()} == {
        1: [["a", "b"]], 2: [["c"]],
    }  # fmt: skip
    late = kernels_of(seen("a", "empty", "c", "empty", "d"), [1, 2, 1])  # without the first mark
    assert {owner: len(rows) for owner, rows in late.items()} == {2: 1, 1: 1}
    assert kernels_of(seen("empty", "a", "empty"), [1]) == {}, "marks of somebody else"
    rows = [KernelTime("k", s, 10.0 * i) for i, s in enumerate([9, 9, 1, 2, 3, 4])]
    assert launch_s(rows, 3) == (1 + 2 + 3 + 4) / 2
    assert launch_s(rows, 1) == 28
    assert launch_s(rows[:5], 3) == pytest.approx(24 / 3), "a kernel was lost"
    beside = [KernelTime("k", 2.0, 0.0), KernelTime("k", 2.0, 1.0)]
    assert launch_s(beside, 1) == 3.0, "kernels that overlap count once"


def test_calls_have_times_or_reasons_in_order_and_autograd_launches_the_backward_pass() -> None:
    x = torch.ones(64, 64)
    product = describe(torch.ops.aten.mm.default, (x, x), {})
    calls = [
        PlacedCall(product, 3),
        PlacedCall(Call("aten.nonzero.default", product.args[:1])),
        PlacedCall(product, backward=True),
        PlacedCall(Call("aten.mm.default", (TensorSpec((2, 3), (3, 1), "float32", "cpu"),) * 2)),
    ]
    first, unknown, backward, wrong = time_calls(CPU, calls)
    for time in (first, backward):
        assert isinstance(time, CallTime)
        assert len(time.times_s) == ROUNDS
        assert min(time.times_s) > 0
    assert unknown == "the shape of its output depends on data"
    assert isinstance(wrong, str)
    assert "\n" not in wrong
    assert time_calls(CPU, []) == []

    library = torch.library.Library("halfway_timer", "DEF")
    library.define("note(Tensor x) -> Tensor")
    nodes: list[object] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        nodes.append(torch._C._current_autograd_node())
        return x * 2

    library.impl("note", note, "CPU")
    spec = TensorSpec((3,), (1,), "float32", "cpu")
    call = Call("halfway_timer.note.default", (spec,))
    (found,) = time_calls(CPU, [PlacedCall(call, backward=True)])
    assert isinstance(found, CallTime)
    assert nodes[0] is not None


# ---------------------------------------------------------------- traces


BASE_NS = 4_612_345_678_901_123  # a time of day in us has sixteen digits: a float loses some


def small() -> Made:
    made = Made(header={"schemaVersion": 1, "deviceProperties": [{"name": "NVIDIA H200"}]})
    made.steps(1_000_000, 2_000_000)
    made.op("aten::mm", 10_000, 90_000, **{"Input Dims": [[2, 3], [3, 4]]})
    made.kernel("gemm", 50_000, 450_001, 20_000)
    return made


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "packed"])
def test_times_are_whole_nanoseconds_whatever_the_file_is_called(tmp_path: Path, name: str) -> None:
    found = read_trace(small().write(tmp_path / name, BASE_NS))
    (work,) = found.spans[WORK]
    assert (work.start, work.end) == (BASE_NS + 50_000, BASE_NS + 450_001)
    assert [span.name for span in found.spans[OP]] == ["aten::mm"]
    assert [span.ns for span in found.spans[NOTE]] == [1_000_000, 1_000_000]
    assert (found.device, found.lost) == ("NVIDIA H200", 0)
    made = small()
    for number, call in enumerate(("LaunchKernel", "StreamSynchronize", "MemsetAsync")):
        # A fill of 0 bytes launches nothing.
        made.span("cuda_runtime", f"cuda{call}", 30_000, 31_000, correlation=99 + number)
    assert read_trace(made.write(tmp_path / name)).lost == 1
    listed = tmp_path / "list.json"  # a bare list of events
    listed.write_text(json.dumps([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1}]))
    assert [op.name for op in read_trace(listed).spans[OP]] == ["aten::mm"]


def test_a_trace_of_an_older_profiler_is_divided(tmp_path: Path) -> None:
    """As torch 1.8 to 1.13 wrote it: whole microseconds, no External id, notes among operators."""
    made = Made(header={"schemaVersion": 1})
    for number, (start, end) in enumerate([(0, 9 * MS), (9 * MS, 18 * MS)]):
        made.span("Operator", f"ProfilerStep#{number}", start, end)
    shapes = {"Input dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
    for number, launch in enumerate((8 * MS, 12 * MS)):
        made.span("Operator", "aten::mm", launch, launch + 50_000, **shapes)
        made.span("Runtime", "cudaLaunchKernel", launch + 9_000, launch + 10_000,
                  correlation=5 + number)  # fmt: skip
        made.span("Kernel", "volta_sgemm_128x64_nn", launch + MS, launch + 2 * MS, 7,
                  correlation=5 + number, stream=7, device=0)  # fmt: skip
    made.span("Memcpy", "Memcpy HtoD", 16 * MS, 17 * MS, 7, correlation=9, stream=7, device=0)
    found = read_trace(made.write(tmp_path / "old.json"))
    assert [len(found.spans[kind]) for kind in (OP, LAUNCH, WORK)] == [2, 2, 3]
    step = step_of(found)
    assert step.recorded["matrix products"] == MS
    assert (step.start, step.end, step.steps) == (10 * MS, 14 * MS, 1)
    (product,) = products(step, None)
    assert (product.flops, product.count) == (2 * 64 * 32 * 16, 1)


DAMAGED = {
    "empty": "",
    "no JSON": "import torch\n",
    "cut off": small().text()[:-40],
    "no events": '{"schemaVersion": 1}',
    "a time that is no number": '{"traceEvents": [{"ph":"X","cat":"kernel","ts":"x","dur":1}]}',
    "an endless time": '{"traceEvents": [{"ph":"X","cat":"kernel","ts":1e999,"dur":1}]}',
    "NaN": '{"traceEvents": [{"ph":"X","cat":"kernel","ts":NaN,"dur":1}]}',
    "a power of no universe": '{"traceEvents": [{"ph":"X","cat":"kernel","ts":1e99999999999}]}',
    "a number without end": '{"bare": 1' + 400 * "0" + ', "traceEvents": []}',
    "args that are a list": '{"traceEvents": [{"ph":"X","cat":"cpu_op","ts":1,"args":[1]}]}',
    "deep": '{"traceEvents": [' + 100_000 * "[",
    "a number": "1",
    "events that are none": '{"traceEvents": {"ph": "X"}}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_trace(path)
    assert "bad.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_unpacks_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut, bomb = small().write(tmp_path / "cut.json.gz"), small()
    cut.write_bytes(cut.read_bytes()[:-12])
    bomb.header["padding"] = (1 << 20) * " "
    assert bomb.write(tmp_path / "bomb.json.gz").stat().st_size < 1 << 16
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    monkeypatch.setattr("e2e.profile.trace.MAX_BYTES", 1 << 18)
    for name in ("cut.json.gz", "bomb.json.gz", "pipe", "zeros", "."):
        with pytest.raises(UserError, match="cannot be read"):
            read_trace(tmp_path / name)
    with pytest.raises(UserError, match="no such trace file"):
        read_trace(tmp_path / "none.json")


# ---------------------------------------------------------------- what the recorder wrote


def played(tape: Tape) -> None:
    tape.product(MS)
    tape.read()


def twice_recorded() -> Tape:
    return recorded(played, times=recorded(played), rank=0)


def test_the_recording_of_kernels_alone_has_the_same_kernels_and_steps(tmp_path: Path) -> None:
    both = read_trace(twice_recorded().write(tmp_path / "t.json"))
    alone = kernels_alone(both)
    for kind in (WORK, LAUNCH):
        named = [(span.name, span.ns, span.lane, span.correlation) for span in both.spans[kind]]
        assert [(s.name, s.ns, s.lane, s.correlation) for s in alone.spans[kind]] == named
    assert (step_of(alone).steps, alone.spans[OP]) == (2, [])


JUNK = (None, True, -3, 1e400, "text", [], [[]], [[*"abcdef"]], [[1, 2]], {"a": 1})
ARGS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Sequence number",
        "Fwd thread id", "correlation", "stream", "device")  # fmt: skip


@pytest.mark.parametrize("name", [*ARGS, *sorted(twice_recorded().header["halfway"])])
def test_damage_in_arguments_and_facts_is_passed_over_or_refused(name: str, tmp_path: Path) -> None:
    for value in JUNK:
        made = twice_recorded()
        for place in [e["args"] for e in made.events] if name in ARGS else [made.header["halfway"]]:
            place[name] = value
        with contextlib.suppress(UserError):
            (run,) = diagnose([made.write(tmp_path / "t.json")]).runs
            assert sum(term.ns for term in run.terms) == run.window_ns
