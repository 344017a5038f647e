"""Ctrl-C, SIGTERM and SIGHUP: a command ends, and none of its processes outlives it.

Imports nothing heavy: a command listens to signals before it loads anything else.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 4.0  # that a command gets to end by itself; then it is ended, whatever Python is doing
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
TRIES = 5  # to remove a folder
_LIBC = ctypes.CDLL(None)

_temporary: dict[str, int] = {}  # files and folders, with the process that they are of


class Stopped(KeyboardInterrupt):
    """The command got one of SIGNALS."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number  # as a shell reports it


def listen() -> None:
    """From now on one of SIGNALS ends this process, which is a command, with its exit code.

    Stopped is raised where the main thread is, so that files and terminals are tidied up. Where
    that has not ended the process after GRACE_S, because the exception was lost, it ends without.
    Further signals are ignored: `timeout` sends two. One that was ignored (nohup, `&` in a script)
    stays so.
    """
    owner = os.getpid()
    heard = [n for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN]

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:  # a fork, which ends as other programs do
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        for other in heard:
            signal.signal(other, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, lambda _number, _frame: end(128 + number))
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        raise Stopped(number)

    for number in heard:
        signal.signal(number, stop)
    usual, unraisable = sys.excepthook, sys.unraisablehook

    def show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, Stopped):
            end(error.code)
        usual(kind, error, trace)

    def show_lost(args: Any) -> None:
        if not isinstance(args.exc_value, Stopped):  # lost in a destructor: the alarm ends it
            unraisable(args)

    sys.excepthook, sys.unraisablehook = show, show_lost


def end(code: int) -> NoReturn:
    """End this process now, without waiting for threads and children, which end with it.

    Output is flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    for path in [*_temporary]:
        _remove(path)
    os._exit(code)


@contextmanager
def on_interrupt(say: Callable[[], None]) -> Generator[None]:
    """Call `say` if the command is stopped in this block; its errors are not raised."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception):  # a closed terminal, say
            say()
        raise


# ---------------------------------------------------------------- temporary files


@contextmanager
def scratch_folder() -> Generator[Path]:
    """A temporary folder, removed at the end of the block, however the command ends but by SIGKILL.

    OSError where there is no place for one.
    """
    import tempfile

    folder = tempfile.mkdtemp(prefix="halfway-")
    with temporary(folder):
        yield Path(folder)


@contextmanager
def temporary(path: str | Path) -> Generator[None]:
    """Remove a file or folder at the end of the block, as `scratch_folder` does."""
    _temporary[str(path)] = os.getpid()
    try:
        yield
    finally:
        _remove(str(path))


def remove_at_end(path: str | Path) -> None:
    """Remove a file or folder when this process ends, unless by SIGKILL."""
    _temporary[str(path)] = os.getpid()
    atexit.register(_remove, str(path))


def _remove(path: str) -> None:
    """Remove what is of this process, and not of the one that it was forked from."""
    import shutil

    if _temporary.get(path) == os.getpid():
        with suppress(OSError):
            os.unlink(path)  # a file
        for _ in range(TRIES):  # a child that ends just now may add to a folder
            shutil.rmtree(path, ignore_errors=True)
            if not os.path.lexists(path):
                break
            time.sleep(0.02)
    _temporary.pop(path, None)


# ---------------------------------------------------------------- children


@contextmanager
def uninterrupted() -> Generator[None]:
    """Hold back SIGNALS meanwhile, from a child process that starts too until `die_with_parent`."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would let the signal through at its start
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """In a child process: leave Ctrl-C to the parent, and be killed when the parent ends.

    Call it in the child's main thread, first of all. Linux counts the end of the thread that
    started the process as the parent's.
    """
    import multiprocessing

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    control(DIE_WITH_PARENT, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it ended before
        os._exit(1)


def control(option: int, value: int) -> None:
    """prctl(2), where there is one."""
    with suppress(OSError, AttributeError):
        _LIBC.prctl(option, value)
