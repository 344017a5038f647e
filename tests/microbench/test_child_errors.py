"""Lines that a library writes to standard error in a child: a few of each kind are passed on."""

from __future__ import annotations

import multiprocessing

import pytest
from samples import serving
from samples.commands import warm_children

from microbench.child_pipes import MOST_ALIKE
from microbench.errors import UserError
from microbench.worker import Child, WorkerDied


def test_lines_that_differ_in_numbers_only_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    with warm_children():
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
    with warm_children():
        child = Child(serving.fails_after_its_parent, error, daemon=False)
        child.greet()
        child.close()
    assert capfd.readouterr().err == ""


def test_why_a_child_ended_while_idle_is_said_when_it_is_asked_next() -> None:
    before = set(multiprocessing.active_children())
    with warm_children():
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
