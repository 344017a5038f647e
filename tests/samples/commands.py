"""Commands run in the process of the tests, their children forked from one that has torch."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing.context import BaseContext, ForkServerContext
from pathlib import Path
from typing import Any

import pytest

Ran = subprocess.CompletedProcess[str]
Main = Callable[[list[str]], int]

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
