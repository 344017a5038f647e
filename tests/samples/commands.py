"""Commands run in the process of the tests, their children forked from one that has torch."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing.context import BaseContext, ForkServerContext
from pathlib import Path
from typing import Any

import pytest

Ran = subprocess.CompletedProcess[str]
Main = Callable[[list[str]], int]
ROOT = Path(__file__).resolve().parents[2]

# What a measuring process imports: five seconds of processor time for each that starts afresh.
PRELOADED = [
    "torch", "torchvision", "e2e.train.arm_timer", "e2e.data.datasets", "e2e.data.loader_bench",
    "e2e.predict.predictor", "microbench.measure", "microbench.roofline.ceilings",
]  # fmt: skip


# Generated images take half a minute to make and to evaluate in full.
SMALLER = {("e2e.data.sources.generated", "TRAIN"): 3200,
           ("e2e.data.sources.generated", "HELD_OUT"): 500}  # fmt: skip


def run_here(
    main: Main, program: str, *words: object, cwd: Path | None = None, **environment: str
) -> Ran:
    """A command as a process of its own would end, without the process."""
    told = [str(word) for word in words]
    out, errors = io.StringIO(), io.StringIO()
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
    return Ran([program, *told], code, out.getvalue(), errors.getvalue())


def environment(**more: str) -> dict[str, str]:
    """This process's, with the checkout to import and no word on colours."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def on_a_terminal(program: str, *words: object, cwd: Path = ROOT, **more: str) -> str:
    """What a command, as a process of its own, writes to a terminal of 80 columns."""
    parent, child = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="80", LINES="40", **more)
    command = [sys.executable, "-m", program, *map(str, words)]
    with subprocess.Popen(command, stdout=child, stderr=child, cwd=cwd, env=env) as process:
        os.close(child)
        out = b""
        # Linux's way to say that the other end is closed is an error
        with contextlib.suppress(OSError):
            while chunk := os.read(parent, 65536):
                out += chunk
        assert process.wait(60) == 0, out
    os.close(parent)
    return out.decode()


def interrupted(
    program: str, *words: object, when: Callable[[], object], after_s: float = 0.0, cwd: Path = ROOT
) -> Ran:
    """A command, as a process of its own, that gets a Ctrl-C so long after `when` is true."""
    command = [sys.executable, "-m", program, *map(str, words)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env=environment(), start_new_session=True,
    ) as process:  # fmt: skip
        try:
            until_s = time.monotonic() + 90
            while not when():
                assert time.monotonic() < until_s
                assert process.poll() is None
                time.sleep(0.02)
            time.sleep(after_s)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and child
            out, errors = process.communicate(timeout=30)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Ran(command, process.returncode, out, errors)


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


class _Warm(BaseContext):
    """A context whose processes have this one's environment, as spawned ones have."""

    def __init__(self, forking: ForkServerContext) -> None:
        self._forking = forking

    def Process(self, *, target: Any, args: tuple[Any, ...], daemon: bool) -> Any:  # type: ignore[override]
        """A process, forked when it starts."""
        told = (dict(os.environ), target, args)
        return self._forking.Process(target=_in_environment, args=told, daemon=daemon)


def _in_environment(environment: dict[str, str], target: Any, args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for (module, name), value in SMALLER.items():
        setattr(import_module(module), name, value)
    target(*args)
