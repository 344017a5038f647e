"""Traces of torch's profiler are read exactly, and refused in one line."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples.traces import Made

from e2e.profile import reader
from e2e.profile.partition import partition
from e2e.profile.products import products
from e2e.profile.reader import read_trace
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
    (work,) = found.work
    assert (work.start, work.end) == (BASE_NS + 50_000, BASE_NS + 450_001)
    assert [span.name for span in found.ops] == ["aten::mm"]
    assert [span.ns for span in found.notes] == [1_000_000, 1_000_000]
    assert found.header["deviceProperties"] == [{"name": "NVIDIA H200"}]
    assert found.dropped == 0


def test_a_trace_of_an_older_profiler_is_divided(tmp_path: Path) -> None:
    """As torch 1.8 to 1.13 wrote it: whole microseconds, no External id, notes among operators."""
    made = Made(header={"schemaVersion": 1})
    for number, (start, end) in enumerate([(0, 9_000_000), (9_000_000, 18_000_000)]):
        made.span("Operator", f"ProfilerStep#{number}", start, end)
    shapes = {"Input dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
    for number, launch in enumerate((8_000_000, 12_000_000)):
        made.span("Operator", "aten::mm", launch, launch + 50_000, **shapes)
        made.span("Runtime", "cudaLaunchKernel", launch + 9_000, launch + 10_000,
                  correlation=5 + number)  # fmt: skip
        made.span("Kernel", "volta_sgemm_128x64_nn", launch + 1_000_000, launch + 2_000_000, 7,
                  correlation=5 + number, stream=7, device=0)  # fmt: skip
    made.span("Memcpy", "Memcpy HtoD", 16_000_000, 17_000_000, 7, correlation=9, stream=7, device=0)
    found = read_trace(made.write(tmp_path / "old.json"))
    assert [len(group) for group in (found.ops, found.launches, found.work)] == [2, 2, 3]
    parts = partition(found)
    assert parts.terms["matrix products"] == 1_000_000
    assert (parts.start, parts.end, parts.steps) == (10_000_000, 14_000_000, 1)
    (product,) = products(found, parts, "")
    assert (product.flops, product.count) == (2 * 64 * 32 * 16, 1)


def test_launches_without_a_kernel_are_counted(tmp_path: Path) -> None:
    made = small()
    made.span("cuda_runtime", "cudaLaunchKernel", 30_000, 31_000, correlation=99)
    made.span("cuda_runtime", "cudaStreamSynchronize", 40_000, 41_000, correlation=100)
    made.span("cuda_runtime", "cudaMemsetAsync", 50_000, 51_000, correlation=101)  # of 0 bytes
    assert read_trace(made.write(tmp_path / "a.json")).dropped == 1


DAMAGED = {
    "empty": "",
    "no JSON": "import torch\n",
    "cut off": small().text()[:-40],
    "no events": '{"schemaVersion": 1}',
    "events of another kind": '{"traceEvents": [1, 2]}',
    "a time that is no number": '{"traceEvents": [{"ph":"X","cat":"kernel","ts":"x","dur":1}]}',
    "an endless time": '{"traceEvents": [{"ph":"X","cat":"kernel","ts":1e999,"dur":1}]}',
    "NaN": '{"traceEvents": [{"ph":"X","cat":"kernel","ts":NaN,"dur":1}]}',
    "a power of no universe": '{"traceEvents": [{"ph":"X","cat":"kernel","ts":1e99999999999}]}',
    "a number without end": '{"bare": 1' + 400 * "0" + ', "traceEvents": []}',
    "args that are a list": '{"traceEvents": [{"ph":"X","cat":"cpu_op","ts":1,"args":[1]}]}',
    "deep args": '{"traceEvents": [{"args":' + 200 * "[" + 200 * "]" + "}]}",
    "deep": '{"traceEvents": [' + 100_000 * "[",
    "a list of numbers": "[1, 2]",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_trace(path)
    assert "bad.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_unread(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "odd.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "odd.json")


@given(at=st.integers(10, 400), byte=st.integers(0, 255))
def test_a_damaged_archive_is_refused_or_read(at: int, byte: int, tmp_path_factory) -> None:
    path = small().write(tmp_path_factory.mktemp("t") / "a.json.gz")
    content = bytearray(path.read_bytes())
    content[at % len(content)] = byte
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        read_trace(path)


def test_a_cut_archive_a_missing_file_and_one_that_unpacks_to_far_more_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bomb = small().write(tmp_path / "a.json.gz"), tmp_path / "bomb.json.gz"
    path.write_bytes(path.read_bytes()[:-12])
    for wrong in (path, tmp_path / "none.json", tmp_path):
        with pytest.raises(UserError):
            read_trace(wrong)
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + (1 << 18) * b"{}," + b"{}]}", 9))
    assert not read_trace(bomb).ops
    monkeypatch.setattr(reader, "SMALL_TEXT", 1 << 12)
    with pytest.raises(UserError, match="record fewer"):
        read_trace(bomb)


def test_a_bare_list_of_events_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1}]))
    assert [op.name for op in read_trace(path).ops] == ["aten::mm"]
