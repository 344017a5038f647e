"""Kernels compiled ahead in other processes, for a GPU that is not there: the parent finds them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples.processes import is_gone, wait_for

pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels.case import Case, Target
from kernels.conv.triton import backend as conv_backend
from kernels.gemm.triton import backend as gemm_backend
from kernels.tune import QUICK
from microbench.precompile import Precompiler

H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
ODD = Case("gemm", {"m": 200, "n": 136, "k": 99}, "fp16", "triton", "nt")  # packed, direct
CONV = {"n": 8, "c": 64, "h": 14, "w": 14, "k": 64, "r": 3, "s": 3, "stride": 1, "padding": 1,
        "dilation": 1, "groups": 1}  # fmt: skip

# The measuring process, with real tensors: which kernels it finds compiled.
PARENT = """
import json, sys, torch
from triton import knobs
from triton.runtime.driver import driver
from kernels import OPS
from kernels.case import Case, Target
from microbench.precompile import StandIn

driver.set_active(StandIn((9, 0)))
hits = []
knobs.compilation.listener = lambda src, metadata, metadata_group, times, cache_hit: hits.append(
    [src.name, cache_hit])
for op, dims, precision, layout, label in json.load(sys.stdin):
    case = Case(op, dims, precision, "triton", layout)
    target = Target("cuda", "NVIDIA H200", (9, 0), 132)
    backend = OPS[op].entries["triton"].load()
    operands = OPS[op].session(Target("cpu", "cpu"), 0).pool.get(case)
    config = backend.parse(label)
    if op == "gemm":
        from kernels.gemm.triton.config import Problem
        steps = backend.Launcher(
            Problem.of(case), operands.a, operands.b, operands.c, 132).bind(config)
    else:
        steps = backend.bind(config, case, operands, target)
    for step in steps:
        step.compile()
print(json.dumps(hits))
"""


@pytest.fixture
def precompiler(
    tmp_path: Path, quick_python: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Precompiler]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(sys, "executable", quick_python)
    made = Precompiler(H200)
    yield made
    made.close()


def found_by_parent(asked: list[tuple[Case, str]]) -> list[tuple[str, bool]]:
    lines = [[c.op, dict(c.dims), c.precision_name, c.layout, label] for c, label in asked]
    run = subprocess.run(
        [sys.executable, "-c", PARENT], input=json.dumps(lines), text=True, capture_output=True,
        check=True,
    )  # fmt: skip
    return json.loads(run.stdout.splitlines()[-1])


def test_the_measuring_process_compiles_only_what_was_not_compiled_before(
    precompiler: Precompiler,
) -> None:
    first, second, *_ = gemm_backend.configurations(ODD, H200).tried(QUICK)
    compiled = [(ODD, first.label)]
    for which in ("fprop", "dgrad", "wgrad"):
        case = Case("conv", {**CONV, "pass": which}, "fp16", "triton", "nhwc")
        labels = [config.label for config in conv_backend.configurations(case, H200).ranked]
        split = (label for label in labels if re.search(r"/x([2-9]|1\d)", label))
        compiled.append((case, next(split, labels[0])))
    for case, label in compiled:
        assert not precompiler.compile(case, [label])
    hits = found_by_parent(compiled)
    assert len(hits) > len(compiled)  # the reduction of wgrad is a kernel too
    assert all(hit for _, hit in hits), hits
    assert not any(hit for _, hit in found_by_parent([(ODD, second.label)]))


def test_what_does_not_compile_is_told_and_the_others_go_on(precompiler: Precompiler) -> None:
    good = gemm_backend.configurations(ODD, H200).tried(QUICK)[0].label
    done: list[int] = []
    # 48 is no power of two; the second is no label.
    failed = precompiler.compile(ODD, ["pointer/48x64x64/s2/w4/g8", "no/label", good], done.append)
    assert set(failed) == {"pointer/48x64x64/s2/w4/g8", "no/label"}
    assert all(failed.values())
    assert done == [1, 2, 3]


def test_a_compiling_process_that_dies_or_is_slow_costs_nothing_but_its_work(
    precompiler: Precompiler,
) -> None:
    good = gemm_backend.configurations(ODD, H200).tried(QUICK)[0].label
    assert precompiler.compile(ODD, [good], patience_s=0.0) == {}
    precompiler.start()
    assert precompiler.pid is not None
    os.kill(precompiler.pid, signal.SIGKILL)
    assert precompiler.compile(ODD, [good]) == {}
    assert set(precompiler.compile(ODD, ["no/label"])) == {"no/label"}  # another has started


def test_it_ends_with_the_process_that_started_it() -> None:
    starts = (
        "import os\nfrom kernels.case import Target\n"
        "from microbench.precompile import Precompiler\n"
        "one = Precompiler(Target('cuda', 'x', (9, 0), 132))\none.start()\n"
        "print(one.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    run = subprocess.run([sys.executable, "-c", starts], text=True, capture_output=True)
    wait_for(lambda: is_gone(int(run.stdout)))
