"""Ctrl-C, SIGTERM and SIGHUP: a command ends at once, and none of its processes outlives it.

Imports nothing heavy: a command listens to signals before it loads anything else.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from microbench.streams import open_closed_streams

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 1.0  # that a command gets to end by itself; then it is ended, whatever it is doing
DIE_WITH_PARENT, ADOPT = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)
KILLING_S = 0.5  # that killed processes may take to end
TRIES = 5  # to remove a folder
SHOW_CURSOR = b"\x1b[?25h"
_LIBC = ctypes.CDLL(None)

_last_words: list[Callable[[], None]] = []
_listening: list[signal.Signals] = []
_temporary: list[tuple[int, str]] = []  # files and folders, with the process that they are of
_owner: list[int] = []  # the process that listens; its forks do not


class Stopped(KeyboardInterrupt):
    """The command got one of SIGNALS."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number  # as a shell reports it


def listen() -> None:
    """From now on one of SIGNALS ends this process, which is a command, with its exit code.

    Stopped is raised where the main thread is, so that files and terminals are tidied up. Where
    that has not ended the process after GRACE_S, because it computes in C or the exception was
    lost, it ends without. A signal that was ignored (nohup, `&` in a script) stays so.
    """
    if _listening:
        return
    open_closed_streams()  # else the pipe takes their numbers
    _owner.append(os.getpid())
    _listening.extend(n for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _listening:
        signal.signal(number, _stop)
    sys.excepthook = _or_end(sys.excepthook)
    sys.unraisablehook = _unless_stopped(sys.unraisablehook)
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_enforce, args=(reader,), name="stopping", daemon=True).start()


def end(code: int) -> NoReturn:
    """End this process now, without waiting for threads and children. Output is flushed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _remove_temporary()
    os._exit(code)


def share_sockets_folder() -> None:
    """Have the sockets of child processes, and of their children, in one folder of this process.

    Else each process makes one, which stays where a signal ends it. This one goes when this process
    ends, unless by SIGKILL.
    """
    import tempfile
    from multiprocessing import process

    config: dict[str, Any] = vars(process.current_process())["_config"]  # as children have it too
    if not config.get("tempdir"):
        with suppress(OSError):  # no temporary folder: they will say so themselves
            config["tempdir"] = tempfile.mkdtemp(prefix="pymp-")
            _temporary.append((os.getpid(), config["tempdir"]))
            atexit.register(_remove_temporary)


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
    entry = os.getpid(), str(path)
    _temporary.append(entry)
    try:
        yield
    finally:
        if entry in _temporary:  # a fork of this process knows nothing of it
            _remove(entry[1])
            _temporary.remove(entry)


def _remove_temporary() -> None:
    for pid, path in _temporary:
        if pid == os.getpid():
            _remove(path)


def _remove(path: str) -> None:
    import shutil

    with suppress(OSError):
        os.unlink(path)  # a file
    for _ in range(TRIES):  # a child that ends just now may add to a folder
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            break
        time.sleep(0.02)


@contextmanager
def last_words(say: Callable[[], None]) -> Generator[None]:
    """Call `say` once if the command is stopped in this block; its errors are not raised."""
    _last_words.append(say)
    try:
        yield
    except KeyboardInterrupt:
        _say_last(say)
        raise
    finally:
        if say in _last_words:
            _last_words.remove(say)


@contextmanager
def uninterrupted() -> Generator[None]:
    """Hold back Ctrl-C meanwhile, from a child process that starts too until `die_with_parent`."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would let the signal through at its start
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    _control(DIE_WITH_PARENT, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it ended before
        os._exit(1)


def ends_with_us() -> Callable[[], None]:
    """What to call in a program before it begins (`preexec_fn`): it is killed when this process is.

    Linux counts the end of the thread that starts the program as that of the process.
    """
    me = os.getpid()

    def begin() -> None:
        _control(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != me:  # it ended before
            os._exit(1)

    return begin


@contextmanager
def programs_end_with_us() -> Generator[Callable[[], None]]:
    """Where the block is stopped, every program that it has started ends, and what those started.

    It gives what to call in a program of another's before it begins (`preexec_fn`): that one is
    killed when this process is.
    """
    _control(ADOPT, 1)  # what loses its parent stays below this process
    try:
        yield ends_with_us()
    except BaseException:
        until_s = time.monotonic() + KILLING_S
        while (left := _descendants()) and time.monotonic() < until_s:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        raise


def _control(what: int, value: int) -> None:
    """prctl(2), where there is one."""
    with suppress(OSError, AttributeError):
        _LIBC.prctl(what, value)


def _stop(number: int, _: FrameType | None) -> None:
    if os.getpid() not in _owner:  # a child that was forked a moment ago, before `_forget`
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    for other in _listening:
        signal.signal(other, signal.SIG_IGN)
    _end_descendants()
    raise Stopped(number)


def _enforce(reader: int) -> None:
    """In a thread: end the process GRACE_S after the first signal, if it is still there."""
    while (number := os.read(reader, 1)[0]) not in _listening:
        pass
    threading.Event().wait(GRACE_S)
    for say in reversed(_last_words):
        _say_last(say)
    _end_descendants()
    if sys.stdout.isatty():
        with suppress(OSError):
            os.write(sys.stdout.fileno(), SHOW_CURSOR)
    end(128 + number)


def _say_last(say: Callable[[], None]) -> None:
    if say in _last_words:
        _last_words.remove(say)
        with suppress(Exception):  # a closed terminal, say
            say()


def _end_descendants() -> None:
    """SIGTERM to every process below this one."""
    for pid in _descendants():
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)


def _descendants() -> list[int]:
    """The processes below this one that have not ended."""
    below: dict[int, list[int]] = {}
    with suppress(OSError):  # no file can be opened any more
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError, IndexError):
                state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state != "Z":
                    below.setdefault(int(parent), []).append(int(path.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += below.get(pid, [])
    return found[1:]


def _forget() -> None:
    """In a forked child, which the parent's signals are no business of."""
    signal.set_wakeup_fd(-1)
    for number in _listening:
        signal.signal(number, signal.SIG_DFL)
    _listening.clear()
    _last_words.clear()
    _temporary.clear()


def _or_end(hook: Callable[..., Any]) -> Callable[..., Any]:
    def show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, Stopped):
            end(error.code)
        hook(kind, error, trace)

    return show


def _unless_stopped(hook: Callable[..., Any]) -> Callable[..., Any]:
    def show(args: Any) -> None:
        if not isinstance(args.exc_value, Stopped):  # lost in a destructor: `_enforce` ends it
            hook(args)

    return show
