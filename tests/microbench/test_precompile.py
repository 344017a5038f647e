"""Kernels compiled ahead in other processes, for a GPU that is not there: the parent finds them."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from samples.processes import is_gone, wait_for

pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels.case import Case, Target
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.conv.triton import backend as conv_backend
from kernels.gemm import Gemm
from kernels.gemm.triton import backend as gemm_backend
from kernels.tune import QUICK
from microbench.precompile import compile_ahead

H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
ODD = Case(Gemm(200, 136, 99), "fp16", "triton")  # packed, direct
CONV = {"n": 8, "c": 64, "h": 14, "w": 14, "k": 64, "r": 3, "s": 3, "stride": 1, "padding": 1,
        "dilation": 1, "groups": 1}  # fmt: skip

# The measuring process, with real tensors: which kernels it finds compiled.
PARENT = """
import json, pickle, sys, torch
from triton import knobs
from triton.runtime.driver import driver
from kernels import OPS
from kernels.case import Target
from kernels.op import Session
from microbench.precompile import StandIn

driver.set_active(StandIn((9, 0)))
hits = []
knobs.compilation.listener = lambda src, metadata, metadata_group, times, cache_hit: hits.append(
    [src.name, cache_hit])
for case, label in pickle.load(sys.stdin.buffer):
    target = Target("cuda", "NVIDIA H200", (9, 0), 132)
    backend = OPS[case.op].entries["triton"].load()
    operands = Session(Target("cpu", "cpu"), 0).pool.get(case)
    config = backend.parse(label)
    if case.op == "gemm":
        from kernels.gemm.triton.config import GemmProblem
        steps = backend.Launcher(
            GemmProblem.of(case), operands.a, operands.b, operands.c, 132).bind(config)
    else:
        steps = backend.bind(config, case, operands, target)
    for step in steps:
        step.compile()
print(json.dumps(hits))
"""


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of Triton, for the process that compilers are forked from: it starts once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def compile_here(case: Case, labels: Sequence[str]) -> dict[str, str]:
    """However busy this machine is."""
    return compile_ahead(case, H200, labels, patience_s=600.0)


def found_by_parent(asked: list[tuple[Case, str]]) -> list[tuple[str, bool]]:
    run = subprocess.run(
        [sys.executable, "-c", PARENT], input=pickle.dumps(asked), capture_output=True, check=True
    )
    return json.loads(run.stdout.splitlines()[-1])


def test_the_measuring_process_compiles_only_what_was_not_compiled_before() -> None:
    first, second, *_ = gemm_backend.configurations(ODD, H200).tried(QUICK)
    compiled = [(ODD, first.label)]
    for which in ("fprop", "dgrad", "wgrad"):
        case = Case(Conv(ConvShape(**CONV), which), "fp16", "triton")
        labels = [config.label for config in conv_backend.configurations(case, H200).ranked]
        split = (label for label in labels if re.search(r"/x([2-9]|1\d)", label))
        compiled.append((case, next(split, labels[0])))
    for case, label in compiled:
        assert not compile_here(case, [label])
    hits = found_by_parent(compiled)
    assert len(hits) > len(compiled)  # the reduction of wgrad is a kernel too
    assert all(hit for _, hit in hits), hits
    assert not any(hit for _, hit in found_by_parent([(ODD, second.label)]))


class Ends(str):
    """A label that ends the process that reads it, as a compiler's own defect would."""

    def __reduce__(self) -> tuple[Callable[[int], NoReturn], tuple[int]]:
        return os._exit, (7,)


def test_what_does_not_compile_or_ends_its_process_is_told_and_the_others_go_on() -> None:
    good = gemm_backend.configurations(ODD, H200).tried(QUICK)[0].label
    # 48 is no power of two; the second is no label.
    wrong = ["pointer/48x64x64/s2/w4/g8", "no/label", Ends("ends")]
    failed = compile_here(ODD, [*wrong, good])
    assert set(failed) == set(wrong)
    assert all(failed.values())
    assert failed["ends"] == "the compiler ended its process"
    # One that is slow costs nothing but its work.
    assert compile_ahead(ODD, H200, [good], patience_s=0.0) == {}
    assert set(compile_here(ODD, ["no/label"])) == {"no/label"}


# The first process that compiles is seen, and this one is killed.
STARTS = """
import multiprocessing, os, threading, time
from multiprocessing.forkserver import _forkserver as forkserver
from kernels.case import Case, Target
from kernels.gemm import Gemm
from microbench.precompile import compile_ahead

def watch():
    while not (found := multiprocessing.active_children()):
        time.sleep(0.001)
    print(found[0].pid, forkserver._forkserver_pid, flush=True)
    os.kill(os.getpid(), 9)

if __name__ == "__main__":
    threading.Thread(target=watch).start()
    while True:
        compile_ahead(Case(Gemm(64, 64, 64), "fp16", "triton"), Target("cuda", "x"), ["any"])
"""


def test_they_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(STARTS)
    run = subprocess.run(
        [sys.executable, tmp_path / "starts.py"], text=True, stdout=subprocess.PIPE
    )
    pids = [int(pid) for pid in run.stdout.split()]
    assert len(pids) == 2
    wait_for(lambda: all(is_gone(pid) for pid in pids))
