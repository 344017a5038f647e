"""Choosing by planted times; compiling ahead in other processes, for a GPU that is not there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples.measuring import PlantedTimer

pytest.importorskip("torch")
pytest.importorskip("triton")

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from samples.commands import is_gone, wait_for

from kernels import tune
from kernels.case import Candidate, Case, Target
from kernels.checking import Prepared
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.conv.triton import backend as conv_backend
from kernels.gemm import Gemm
from kernels.gemm.triton import backend as gemm_backend
from kernels.tune import NONE, QUICK, QUICK_TUNED, TUNED, WIDE, Choice
from microbench import precompile, tuning
from microbench.precompile import compile_ahead
from microbench.timing.timers import Block, Launch
from microbench.tuning import LIBRARY_STAGES, QUICK_STAGES, Broken, Stage, Tuner, ranking

H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
CASE = Case(Gemm(1048, 1048, 1048), "fp16", "triton")

times = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12)


@given(times, st.sampled_from([QUICK_STAGES, LIBRARY_STAGES, (Stage(),)]))
def test_steady_times_are_ranked_as_they_are(planted: list[float], stages: Sequence[Stage]) -> None:
    found = ranking(range(len(planted)), stages, lambda i: [planted[i]])
    assert sorted(found) == list(range(len(planted)))
    assert [planted[i] for i in found] == sorted(planted)


@given(times)
def test_who_is_far_behind_is_timed_once_and_two_decide(planted: list[float]) -> None:
    turns: list[int] = []

    def sample(i: int) -> list[float]:
        turns.append(i)
        return [planted[i]]

    ranking(range(len(planted)), QUICK_STAGES, sample)
    counts = {i: turns.count(i) for i in range(len(planted))}
    best = min(planted)
    for i, seconds in enumerate(planted):
        assert counts[i] >= 1
        if seconds > 1.15 * best:
            assert counts[i] == 1
    assert sum(count > 2 for count in counts.values()) == min(
        2, sum(seconds <= 1.15 * best for seconds in planted)
    )


@given(times, st.sets(st.integers(0, 11)), st.integers(1, 3))
def test_what_fails_is_left_out_whenever_it_does(
    planted: list[float], broken: set[int], turn: int
) -> None:
    errors: list[int] = []
    seen = dict.fromkeys(range(len(planted)), 0)

    def sample(i: int) -> list[float]:
        seen[i] += 1
        if i in broken and seen[i] >= turn:
            raise ValueError(i)
        return [planted[i]]

    found = ranking(range(len(planted)), QUICK_STAGES, sample, lambda i, _: errors.append(i))
    assert set(found) == set(range(len(planted))) - set(errors)
    if turn == 1:
        assert set(errors) == broken & set(range(len(planted)))


def test_a_single_lucky_sample_does_not_win() -> None:
    samples = {0: iter([1.0] * 9), 1: iter([0.9, 1.1, 1.1, 1.1, 1.1])}
    assert ranking([0, 1], QUICK_STAGES, lambda i: [next(samples[i])]) == [0, 1]


# ------------------------------------------------------------ the whole choice


class Planted(PlantedTimer):
    """Reads what is planted for a launch; one without a time fails when it runs."""

    def __init__(self, seconds: dict[str, float]) -> None:
        super().__init__()
        self.seconds = seconds
        self.timed: list[str] = []

    def block(self, launch: Launch, samples: int) -> Block:
        label = str(launch())
        self.timed.append(label)
        return Block((self.seconds[label],) * samples)

    def run(self, launch: Launch, times: int) -> None:
        launch()


def candidate(label: str, *, works: bool = True) -> Candidate:
    def call() -> str:
        if not works:
            raise RuntimeError("out of resource: shared memory")
        return label

    return Candidate(label, call)


def prepared(candidates: Sequence[Candidate], wrong: Sequence[str] = ()) -> Prepared:
    class Planned(Prepared):
        def rel_error(self, candidate: Candidate) -> float:
            return 1.0 if candidate.label in wrong else 0.0

    return Planned(CASE, None, candidates)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    tune.forget()
    return tmp_path


def tuner_of(seconds: dict[str, float], search: int = QUICK) -> tuple[Tuner, Planted]:
    timer = Planted(seconds)
    return Tuner(H200, timer, search), timer


def test_a_quick_tune_compiles_drops_what_fails_and_keeps_the_fastest_right_one(
    cache: Path,
) -> None:
    labels = [config.label for config in gemm_backend.configurations(CASE, H200).tried(QUICK)]
    assert len(labels) > 3
    slow, fast, wrong, breaks, *rest = labels
    seconds = dict.fromkeys(rest, 5e-5) | {slow: 3e-5, fast: 2e-5, wrong: 1e-5}
    tuner, timer = tuner_of(seconds)
    no_config = "tma/64x64x64/s4/w4"  # no label: it fails in the process that compiles
    candidates = [candidate(label, works=label != breaks) for label in [*labels, no_config]]
    found, choice, _ = tuner.choose(CASE, prepared(candidates, [wrong]), lambda *_: None)
    assert found.label == fast
    assert choice == Choice(QUICK_TUNED, len(labels) - 1)
    assert breaks not in timer.timed
    assert no_config not in timer.timed
    # From now on it is known: one candidate, in this process and in those that follow.
    options = gemm_backend.configurations(CASE, H200)
    assert [config.label for config in options.tried(QUICK)] == [fast]
    assert options.chosen[1] == choice
    other = replace(CASE, precision_name="bf16")
    assert len(gemm_backend.configurations(other, H200).tried(QUICK)) > 1
    # What is not known to the process that compiles is tried here; all that fail are an error.
    library = [candidate("a"), candidate("b")]
    timer.seconds |= {"a": 2e-5, "b": 1e-5}
    assert tuner.choose(other, prepared(library), lambda *_: None)[0].label == "b"
    third = replace(CASE, precision_name="tf32")
    broken = [candidate(label, works=False) for label in ("c", "d")]
    with pytest.raises(RuntimeError, match="out of resource"):
        tuner.choose(third, prepared(broken), lambda *_: None)
    assert tune.find(third, H200) is None


def test_what_later_cases_time_is_compiled_while_earlier_ones_are_measured(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [CASE, replace(CASE, precision_name="bf16")]
    begun, go_on = list[Case](), threading.Event()

    def compile_ahead(case: Case, _target: Target, labels: Sequence[str], *_: object) -> Broken:
        begun.append(case)
        assert go_on.wait(30)
        return {labels[0]: "does not fit"} if len(labels) > 1 else {}

    monkeypatch.setattr(precompile, "compile_ahead", compile_ahead)
    monkeypatch.setattr(tuning, "SIGN_S", 0.01)
    labels = [config.label for config in gemm_backend.configurations(CASE, H200).tried(QUICK)]
    tuner, timer = tuner_of({label: 1e-5 + 1e-6 * i for i, label in enumerate(labels)})
    tuner.expect([*cases, replace(CASE, backend="cublas")])  # returns at once
    said = list[tuple[str, str]]()

    def announce(*what: str) -> None:
        said.append((what[0], what[1]))
        if len(said) == 3:  # waiting says that it is alive
            go_on.set()

    candidates = [candidate(label) for label in labels]
    found, *_ = tuner.choose(CASE, prepared(candidates), announce)
    assert found.label == labels[1]
    assert labels[0] not in timer.timed
    other = [c.label for c in gemm_backend.configurations(cases[1], H200).tried(QUICK)]
    timer.seconds |= {label: 1e-5 for label in other}
    tuner.choose(cases[1], prepared([candidate(label) for label in other]), announce)
    assert sorted(begun, key=cases.index) == cases, "each once"
    tuning.Tuner(H200, timer, NONE).expect(cases)
    assert len(begun) == len(cases), "where nothing is timed, nothing is compiled"


def test_a_wide_search_times_more_into_the_same_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = [config.label for config in gemm_backend.configurations(CASE, H200).tried(WIDE)]
    assert len(labels) == WIDE
    seconds = {label: 1e-5 * (50 - i) for i, label in enumerate(labels)}
    tuner, _ = tuner_of(seconds, WIDE)
    monkeypatch.setattr(precompile, "compile_ahead", lambda *_: {})
    candidates = [candidate(label) for label in labels]
    found, choice, _ = tuner.choose(CASE, prepared(candidates), lambda *_: None)
    assert (found.label, choice) == (labels[-1], Choice(TUNED, WIDE))
    known = gemm_backend.configurations(CASE, H200)
    assert (known.chosen[0].label, known.chosen[1]) == (found.label, choice)


def test_a_library_s_candidates_are_all_timed_and_none_is_kept(cache: Path) -> None:
    names = ["a", "b", "c", "d", "e", "wrong"]
    seconds = {name: 1e-5 * (9 - i) for i, name in enumerate(names)}
    candidates = [candidate(name) for name in names]
    library = replace(CASE, backend="cublaslt")
    for search in (NONE, QUICK, WIDE):
        tuner, timer = tuner_of(seconds, search)
        found, choice, _ = tuner.choose(library, prepared(candidates, ["wrong"]), lambda *_: None)
        assert (found.label, choice) == ("e", None)
        timer.timed.clear()
        found, *_ = tuner.choose(library, prepared(candidates), lambda *_: None, "b")
        assert found.label == "b"  # which another process has chosen
        assert not timer.timed
    assert tune.find(library, H200) is None


# ---------------------------------------------------------------- compiled ahead


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
