"""The measuring process, for real on the CPU: it measures, it dies, the right case is blamed."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kernels.case import Case, Target
from microbench.conditions import Conditions, check_without, patterns
from microbench.errors import UserError
from microbench.requests import REQUESTS, request_of
from microbench.sweep import Group
from microbench.worker import Worker, WorkerDied, Workers

ON_CPU = Conditions(device="cpu", l2="warm", seed=0)


def group_of(*precisions: str, size: int = 16) -> Group:
    dims = {"m": size, "n": size, "k": size}
    return Group(tuple(Case("gemm", dims, p, "cpu") for p in precisions))


def process_of(worker: Worker) -> Any:
    return worker._process


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One child for the whole file: the tests below use it in order, and the last one kills it."""
    child = Worker(ON_CPU)
    yield child
    child.close()
    assert not process_of(child).is_alive()


def test_it_greets_with_its_device_and_not_with_its_owner(worker: Worker) -> None:
    greeting = worker.greet()
    assert greeting.target.kind == greeting.device["kind"] == "cpu"
    assert set(greeting.device) >= {
        "name", "kind", "capability", "sm_count", "memory_bytes", "l2_bytes", "driver",
        "power_limit_w", "sm_clock_max_mhz", "card",
    }  # fmt: skip
    assert set(greeting.software) >= {
        "project", "python", "torch", "triton", "cupy", "cuda", "cudnn", "cublas",
    }  # fmt: skip
    assert os.uname().nodename not in str(greeting)


def test_it_measures_a_group_and_tells_where_it_is(worker: Worker) -> None:
    stages: list[tuple[str, str]] = []
    group = group_of("fp32", "tf32", "bf16")
    results = worker.measure(group, 0.1, lambda *what: stages.append(what))
    assert [result.case for result in results] == list(group.cases)
    assert [result.status for result in results] == ["ok", "skipped", "ok"]
    assert {key for key, _ in stages} == {case.key for case in group.cases}


def test_ctrl_c_is_not_its_business(worker: Worker) -> None:
    os.kill(process_of(worker).pid, signal.SIGINT)
    assert worker.measure(group_of("fp32"), 0.1, lambda *_: None)[0].status == "ok"


def test_killed_while_measuring_it_names_the_case_and_the_signal(worker: Worker) -> None:
    group = group_of("fp32", size=1536)  # which takes longer than the signal, on a busy machine too
    killed: list[str] = []

    def kill(key: str, stage: str) -> None:
        if stage == "checking" and not killed:
            killed.append(key)
            os.kill(process_of(worker).pid, signal.SIGKILL)

    with pytest.raises(WorkerDied) as caught:
        # A budget that admits it, however slow the small case before it was on a busy machine.
        worker.measure(group, 1e5, kill)
    assert caught.value.key == group.cases[0].key
    assert "SIGKILL" in caught.value.reason
    assert "\n" not in caught.value.reason
    with pytest.raises(WorkerDied):  # and it stays dead, at once
        worker.measure(group, 30.0, lambda *_: None)


def test_a_device_that_is_not_there_is_a_users_mistake() -> None:
    child = Worker(Conditions(device="tpu", l2="warm", seed=0))
    try:
        with pytest.raises(UserError) as caught:
            child.greet()
        assert "tpu" in str(caught.value)
        assert "\n" not in str(caught.value)
    finally:
        child.close()


def test_a_next_worker_without_its_device_leaves_no_process() -> None:
    workers = Workers(Conditions(device="cuda:99"))
    before = multiprocessing.active_children()
    with pytest.raises(UserError, match="CUDA"):
        workers.next()
    assert multiprocessing.active_children() == before


def test_a_child_that_falls_silent_counts_as_hung_and_is_ended() -> None:
    child = Worker(ON_CPU, hang_s=0.5)
    try:
        child.greet()
        group = group_of("fp32", size=48)

        def freeze(key: str, stage: str) -> None:
            if stage == "checking":
                os.kill(process_of(child).pid, signal.SIGSTOP)

        with pytest.raises(WorkerDied) as caught:
            child.measure(group, 0.5, freeze)
        assert caught.value.key == group.cases[0].key
        assert "hung" in caught.value.reason
        process_of(child).join(5)
        assert not process_of(child).is_alive()
    finally:
        closer = threading.Thread(target=child.close)
        closer.start()
        closer.join(10)
        assert not closer.is_alive()


def test_a_kernel_s_name_leaves_out_all_of_its_labels() -> None:
    assert patterns("gluon, conv_*,tma/*x128*") == ("gluon/*", "conv_*/*", "tma/*x128*")


@pytest.mark.parametrize(
    ("command", "words", "without", "refused"),
    [
        ("gemm", {}, "gluon", None),
        ("gemm", {}, "pointer/*,gluon/nothing", "gluon/nothing"),
        ("gemm", {}, "gluon,wgrad_tma", "wgrad_tma/*"),  # of convolutions
        ("gemm", {"backend": "cublas"}, "gluon", "gluon/*"),
        ("gemm", {"sizes": "4096"}, "skinny", "skinny/*"),  # no narrow side
        ("gemm", {"sizes": "16x4096x4096"}, "skinny", None),
        ("conv", {"backend": "cudnn,triton"}, "conv_gluon,conv_t?a/*", None),
        ("conv", {"backend": "cudnn,triton"}, "conv_gluon/nothing", "conv_gluon/nothing"),
        ("payoff", {"backend": "cudnn,triton"}, "conv_*/s99", "conv_*/s99"),
        ("peak", {}, "gluon/*/direct", "gluon/*/direct"),  # no rows of C that TMA cannot store
        ("peak", {"sizes": "16,4096,8192"}, "skinny", None),  # only the climb gets there
    ],
)
def test_a_pattern_that_leaves_out_nothing_is_refused(
    command: str, words: dict[str, str], without: str, refused: str | None
) -> None:
    pytest.importorskip("kernels.gemm.triton.backend")
    request = request_of(REQUESTS[command], {**words, "without": without})
    target = Target("cuda", "NVIDIA H200", (9, 0), 132)
    cases = request.cases(request.plan("cuda"))
    if refused is None:
        check_without(without, cases, target)
    else:
        with pytest.raises(UserError, match=re.escape(f"{refused!r} leaves out no Triton")):
            check_without(without, cases, target)
