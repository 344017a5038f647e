"""What a child process sends to its parent: signs of life, lines of errors, why it ended."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
from samples import serving
from samples.commands import warm_children

from microbench import worker
from microbench.child_pipes import MOST_ALIKE
from microbench.errors import UserError
from microbench.worker import Child, Serve, WorkerDied


@pytest.fixture(autouse=True)
def _warm() -> Iterator[None]:
    with warm_children():
        yield


def answer(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, seconds: float, longest_s: float = 600.0
) -> object:
    child = Child(serve, seconds)
    try:
        child.greet()
        monkeypatch.setattr(worker, "HANG_S", serving.HANG_S)  # no sooner: it starts for long
        return child.ask(("work",), lambda _key, _stage: None, longest_s)
    finally:
        child.close()


def test_a_process_without_a_sign_of_life_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkerDied, match=r"hung: no response for \d+ s"):
        answer(monkeypatch, serving.hangs, 0)


@pytest.mark.parametrize("serve", [serving.compiles, serving.waits_for_a_compiler])
def test_a_process_that_compiles_may_take_longer(
    monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    assert answer(monkeypatch, serve, 1.3 * serving.HANG_S) == "done"


def test_nothing_may_compile_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkerDied, match=r"hung: no response for \d+ s"):
        answer(monkeypatch, serving.compiles, 600.0, longest_s=2.0)


def test_lines_that_differ_in_numbers_only_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    child = Child(serving.complains, 500)
    child.greet()
    child.close()
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "extraneous bytes" in line][MOST_ALIKE:] == [
        "(497 more lines as: Corrupt JPEG data: N extraneous bytes before marker N)"
    ]
    assert "something else, unfinished" in lines


@pytest.mark.parametrize("error", [UserError("no memory"), OSError("no library")])
def test_what_ends_a_child_after_its_parent_is_not_said(
    error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    child = Child(serving.fails_after_its_parent, error, daemon=False)
    child.greet()
    child.close()
    assert capfd.readouterr().err == ""


def test_why_a_child_ended_while_idle_is_said_when_it_is_asked_next() -> None:
    before = set(multiprocessing.active_children())
    child = Child(serving.gives_up_while_idle, "rank 1 does not answer")
    child.greet()
    for process in set(multiprocessing.active_children()) - before:
        process.join(30)
    with pytest.raises(WorkerDied, match=r"^rank 1 does not answer while starting"):
        child.ask(("work",), lambda _key, _stage: None, 30)
    with pytest.raises(WorkerDied, match=r"^the measuring process ended"):
        child.ask(("work",), lambda _key, _stage: None, 30)
    child.close()
    with pytest.raises(WorkerDied):
        child.ask(("work",), lambda _key, _stage: None, 30)
