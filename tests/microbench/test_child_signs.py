"""A process that hangs is ended after the stated time; one that compiles may take longer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from samples import serving
from samples.commands import warm_children

from microbench import worker
from microbench.worker import Child, Serve, WorkerDied

LONGEST_S = 600.0


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "HANG_S", 6.0)
    with warm_children():
        yield


def answer(serve: Serve, seconds: float, longest_s: float = LONGEST_S) -> object:
    child = Child(serve, seconds)
    try:
        child.greet()
        return child.ask(("work",), lambda _key, _stage: None, longest_s)
    finally:
        child.close()


def test_a_process_without_a_sign_of_life_is_ended() -> None:
    began_s = time.monotonic()
    with pytest.raises(WorkerDied, match=r"hung: no response for \d+ s"):
        answer(serving.hangs, 0)
    assert time.monotonic() - began_s < 30


@pytest.mark.slow
@pytest.mark.parametrize("serve", [serving.compiles, serving.waits_for_a_compiler])
def test_a_process_that_compiles_may_take_longer(serve: Serve) -> None:
    assert answer(serve, 14.0) == "done"


@pytest.mark.slow
def test_nothing_may_compile_for_ever() -> None:
    with pytest.raises(WorkerDied, match=r"hung: no response for \d+ s"):
        answer(serving.compiles, 60.0, longest_s=9.0)
