"""Work spread over processes that end with this one, whether it is done, stopped or killed."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import TypeVar

from microbench.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def spread(
    work: Callable[[Task], Result], tasks: Sequence[Task], processes: int
) -> Generator[Result, None, None]:
    """What `work` makes of each task, as it is ready; in this process when one is enough.

    The processes are forked, so they share what is in memory. Closing the iterator lets the tasks
    that are under way end and drops the others. UserError when a process was killed.
    """
    if min(processes, len(tasks)) <= 1:
        yield from map(work, tasks)
        return
    pool = ProcessPoolExecutor(
        min(processes, len(tasks)), multiprocessing.get_context("fork"), _settle
    )
    try:
        for future in as_completed([pool.submit(work, task) for task in tasks]):
            yield future.result()
    except BrokenProcessPool:
        raise UserError(
            "a process that makes images was killed (out of memory?); the same command goes on "
            "with what is left, --workers with fewer processes"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _settle() -> None:
    """Ctrl-C is the first process's to act on, and this one ends when that one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
