"""The measuring process, for real on the CPU: what it measures and sends, and when it dies."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections.abc import Iterator
from functools import partial

import pytest
from samples import serving
from samples.commands import warm_children

from e2e.commands.worker import MOST_ALIKE, PassedOn, into
from kernels.case import Case, Target
from kernels.gemm import Gemm
from microbench.errors import UserError
from microbench.requests import REQUESTS, Conditions, check_without, patterns, request_of
from microbench.sweep import Group
from microbench.worker import Child, Worker, WorkerDied, Workers


@pytest.fixture(autouse=True)
def _all_end() -> Iterator[None]:
    """Children are forks here, and none outlives its test."""
    before = set(multiprocessing.active_children())
    with warm_children():
        yield
    assert set(multiprocessing.active_children()) <= before


def test_one_that_loads_early_with_a_compiler_measures_and_ctrl_c_is_not_its_business() -> None:
    child = Worker(Conditions(device="cpu", l2="warm", seed=0), early=True, compiles=True)
    group = Group((Case(Gemm(16, 16, 16), "fp32", "cpu"),))
    stages: list[tuple[str, str]] = []
    try:
        for _ in range(2):  # it is greeted by the way
            (result,) = child.measure(group, 0.1, lambda *what: stages.append(what))
            assert result.status == "ok"
            last = max(process.pid or 0 for process in multiprocessing.active_children())
            os.kill(last, signal.SIGINT)
        assert {key for key, _ in stages} == {result.case.key}, "it tells where it is"
    finally:
        child.close()


def test_a_device_that_is_not_there_leaves_no_process() -> None:
    workers = Workers(Conditions(device="cuda:99"))
    with pytest.raises(UserError, match="CUDA"):
        workers.next()


@pytest.mark.parametrize(
    ("command", "words", "without", "refused"),
    [
        ("gemm", {}, "tma", None),
        ("gemm", {}, "pointer/*,tma/nothing", "tma/nothing"),
        ("gemm", {}, "tma,wgrad_tma", "wgrad_tma/*"),  # of convolutions
        ("gemm", {"backend": "cublas"}, "tma", "tma/*"),
        ("gemm", {"sizes": "4096"}, "*/swapped", "*/swapped"),  # no narrow side
        ("gemm", {"sizes": "16x4096x4096"}, "*/swapped", None),
        ("conv", {"backend": "cudnn,triton"}, "conv_gluon,conv_g?ther/*", None),
        ("conv", {"backend": "cudnn,triton"}, "conv_gluon/nothing", "conv_gluon/nothing"),
        ("payoff", {"backend": "cudnn,triton"}, "conv_*/s99", "conv_*/s99"),
    ],
)
def test_a_pattern_that_leaves_out_nothing_is_refused(
    command: str, words: dict[str, str], without: str, refused: str | None
) -> None:
    pytest.importorskip("kernels.gemm.triton.backend")
    assert patterns("split_k, conv_*,tma/*x128*") == ("split_k/*", "conv_*/*", "tma/*x128*")
    request = request_of(REQUESTS[command], {**words, "without": without})
    target = Target("cuda", "NVIDIA H200", (9, 0), 132)
    cases = [case for group in request.plan("cuda") for case in group.cases]
    if refused is None:
        check_without(without, cases, target)
    else:
        with pytest.raises(UserError, match=re.escape(f"{refused!r} leaves out no Triton")):
            check_without(without, cases, target)


# ---------------------------------------------------------------- a child process


def test_lines_that_differ_in_numbers_only_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    """Of a training process, whose loaders write too."""
    reader, errors = multiprocessing.get_context("spawn").Pipe(duplex=False)
    child = Child(partial(into, errors, serving.complains), 500)
    errors.close()
    passed_on = PassedOn(reader)
    child.greet()
    child.close()
    passed_on.finish()
    lines = capfd.readouterr().err.splitlines()
    assert lines[MOST_ALIKE:] == [
        "something else, unfinished",
        "(497 more lines as: Corrupt JPEG data: N extraneous bytes before marker N)",
    ]
    assert passed_on.watchdog == "timeout", "of a rank that it has ended"


@pytest.mark.parametrize("error", [UserError("no memory"), OSError("no library")])
def test_what_ends_a_child_after_its_parent_is_not_said(
    error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    child = Child(serving.fails_after_its_parent, error)
    child.greet()
    child.close()
    assert capfd.readouterr().err == ""


def test_why_a_child_ended_while_idle_is_said_when_it_is_asked_next() -> None:
    before = set(multiprocessing.active_children())
    child = Child(serving.gives_up_while_idle, "rank 1 does not answer")
    child.greet()
    for process in set(multiprocessing.active_children()) - before:
        process.join(180)
    with pytest.raises(WorkerDied, match=r"^rank 1 does not answer while starting"):
        child.ask(("work",), lambda _key, _stage: None, 30)
    with pytest.raises(WorkerDied, match=r"^the measuring process ended"):
        child.ask(("work",), lambda _key, _stage: None, 30)
    child.close()
    with pytest.raises(WorkerDied):
        child.ask(("work",), lambda _key, _stage: None, 30)
