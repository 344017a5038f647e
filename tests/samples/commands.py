"""Commands run in the process of the tests, with warm children, and processes that tests end."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing.context import BaseContext, ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

Ran = subprocess.CompletedProcess[str]
Main = Callable[[list[str]], int]
ROOT = Path(__file__).resolve().parents[2]

# What a measuring process imports: five seconds of processor time for each that starts afresh.
PRELOADED = [
    "torch", "torchvision", "e2e.training.variants", "e2e.data.datasets", "e2e.data.loader_bench",
    "e2e.prediction.predictor", "microbench.measure", "microbench.roofline.ceilings",
]  # fmt: skip


# What a child measures or makes besides its task, in sizes that take a second in all.
SMALLER: dict[tuple[str, str], object] = {
    ("e2e.data.sources.generated", "TRAIN"): 1600,
    ("e2e.data.sources.generated", "HELD_OUT"): 400,
    ("kernels.ceilings", "COPY_BYTES"): {"cuda": 1 << 30, "cpu": 1 << 22},
    ("microbench.roofline.ceilings", "CALIBRATED_SIZE"): {"cuda": 4096, "cpu": 512},
    ("microbench.roofline.ceilings", "FLOOR_BUDGET_S"): 0.02,
    ("microbench.roofline.ceilings", "LARGE_BUDGET_S"): 0.1,
    ("microbench.timing.timers", "CPU_FLUSH_FACTOR"): 0,
}


def run_here(
    main: Main, program: str, *words: object, cwd: Path | None = None,
    out: TextIO | None = None, **environment: str,
) -> Ran:  # fmt: skip
    """A command as a process of its own would end, without the process. `out` is its stdout."""
    told = [str(word) for word in words]
    out, errors = out or io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *told])
        for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
            patch.syspath_prepend(str(cwd))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(told)
    for name, module in list(sys.modules.items()):
        place = Path(getattr(module, "__file__", None) or "/")
        if cwd is not None and cwd in place.parents and ROOT not in place.parents:
            del sys.modules[name]  # a user's own: another test has another of this name
    printed = out.getvalue() if isinstance(out, io.StringIO) else ""
    return Ran([program, *told], code, printed, errors.getvalue())


def environment(**more: str) -> dict[str, str]:
    """This process's, with the checkout to import and no word on colours."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def on_a_terminal(main: Main, program: str, *words: object, **how: Any) -> str:
    """What a command writes to a terminal of 80 columns."""
    parent, child = pty.openpty()
    out: list[bytes] = []

    def read() -> None:
        # Linux's way to say that the other end is closed is an error
        with contextlib.suppress(OSError):
            while chunk := os.read(parent, 65536):
                out.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    size = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"}
    with open(child, "w") as terminal:
        ran = run_here(main, program, *words, out=terminal, **size, **how)
    reader.join()
    os.close(parent)
    assert ran.returncode == 0, ran.stderr
    return b"".join(out).decode()


def interrupted(
    main: Main, program: str, *words: object, when: Callable[[], object], **how: Any
) -> Ran:
    """A command that gets a Ctrl-C as soon as `when` is true."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            if when():
                os.kill(os.getpid(), signal.SIGINT)
                return

    def stop(*_: object) -> None:
        if ended.is_set():
            pytest.fail("the command had ended before")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return run_here(main, program, *words, **how)
    finally:
        ended.set()
        watcher.join()
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def warm_children() -> Iterator[None]:
    """Processes that are to be spawned are forked instead, from one that has imported the rest."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(PRELOADED)
    real = multiprocessing.get_context

    def get_context(method: str | None = None) -> BaseContext:
        return _Warm(forking) if method == "spawn" else real(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # read when torch is imported
        patch.setattr(multiprocessing, "get_context", get_context)
        yield


@contextlib.contextmanager
def no_children() -> Iterator[None]:
    """No process starts: a command that waits for one is told that it has ended."""
    real = multiprocessing.get_context
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda _=None: _Never(real("spawn")))
        yield


class _Never(BaseContext):
    """A context whose processes never start."""

    def __init__(self, real: BaseContext) -> None:
        self.Pipe = real.Pipe  # type: ignore[method-assign]

    def Process(self, **_: Any) -> Any:  # type: ignore[override]
        """A process that has ended before it began."""
        nothing = dict.fromkeys(("start", "join", "terminate", "kill"), lambda *_: None)
        return SimpleNamespace(**nothing, daemon=True, exitcode=None, is_alive=lambda: False)


class _Warm(BaseContext):
    """A context whose processes have this one's environment, as spawned ones have."""

    def __init__(self, forking: ForkServerContext) -> None:
        self._forking = forking

    def Process(self, *, target: Any, args: tuple[Any, ...], daemon: bool | None = None) -> Any:  # type: ignore[override]
        """A process, forked when it starts."""
        told = (dict(os.environ), target, args)
        return self._forking.Process(target=_in_environment, args=told, daemon=daemon)


def _in_environment(environment: dict[str, str], target: Any, args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for (module, name), value in SMALLER.items():
        setattr(import_module(module), name, value)
    target(*args)


# ---------------------------------------------------------------- processes of others

MARK = "HALFWAY_TEST_MARK"  # in the environment of a command and of all its descendants


def marked(mark: str) -> list[tuple[int, str]]:
    """(pid, command line) of the processes that have the mark and have not ended."""
    found: list[tuple[int, str]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            has = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if has and not is_gone(int(folder.name)):
            found.append((int(folder.name), line))
    return found


def wait_for(done: Callable[[], bool]) -> None:
    """Until it is so; three minutes at most, as a machine may do much else."""
    deadline_s = time.monotonic() + 180
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.03)


def kill(pid: int) -> None:
    """End a child at once, and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it leaves the reaping to its owner


def is_gone(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
