"""What a child process sends to its parent: answers, and why it ended."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from functools import partial

import pytest
from samples import serving
from samples.commands import warm_children

from e2e.commands.child_errors import MOST_ALIKE, PassedOn, into
from microbench.errors import UserError
from microbench.worker import Child, WorkerDied


@pytest.fixture(autouse=True)
def _warm() -> Iterator[None]:
    with warm_children():
        yield


def test_a_process_that_says_nothing_is_ended() -> None:
    child = Child(serving.hangs, None)
    child.greet()
    with pytest.raises(WorkerDied, match=r"hung: no response for 2 s"):
        child.ask(("work",), lambda _key, _stage: None, 2.0)
    child.close()


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
    assert [line for line in lines if "extraneous bytes" in line][MOST_ALIKE:] == [
        "(497 more lines as: Corrupt JPEG data: N extraneous bytes before marker N)"
    ]
    assert "something else, unfinished" in lines


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
