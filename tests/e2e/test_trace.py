"""Traces of torch's profiler are read exactly, or refused in one line."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from samples.field_traces import Tape, recorded
from samples.traces import MS, Made

from e2e.profile.diagnosis import diagnose
from e2e.profile.products import products
from e2e.profile.step import step_of
from e2e.profile.trace import LAUNCH, NOTE, OP, WORK, kernels_alone, read_trace
from microbench.errors import UserError

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


def test_what_cannot_be_read_or_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert alone is not None
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
