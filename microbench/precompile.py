"""Compiles Triton configurations ahead, in parallel processes that never touch the device.

Each is forked from one process that has torch and Triton loaded. It compiles on tensors without
memory, for the target's capability, into Triton's own cache: the measuring process then finds the
files, under the same keys. They end with the measuring process.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, NoReturn

from kernels import OPS
from kernels.case import Case, Target
from kernels.messages import one_line
from kernels.op import TUNED
from microbench.stopping import die_with_parent

PATIENCE_S = 60.0  # for all configurations of one case; the first waits until torch is loaded
MOST_PROCESSES = 16
NICE = 5  # so that the process that measures comes first
LOADED = ("triton.compiler", "triton.backends.nvidia.compiler", "triton.backends.nvidia.driver",
          "triton.experimental.gluon.nvidia.hopper")  # fmt: skip

_context = multiprocessing.get_context("forkserver")


def start() -> None:
    """Begin to load what compiling needs, once a process. OSError where no process can be started.

    It ends with this process.
    """
    # A daemon may have no children of multiprocessing; these end with it all the same.
    multiprocessing.current_process().daemon = False
    _context.set_forkserver_preload(["microbench.precompile_server"])
    forkserver.ensure_running()


def compile_ahead(
    case: Case,
    target: Target,
    labels: Sequence[str],
    patience_s: float = PATIENCE_S,
) -> dict[str, str]:
    """Compile the configurations of a case side by side. Those that failed, with the reason.

    Where no process can start, or it takes longer than `patience_s`, what is not compiled yet is
    left to the caller.
    """
    failed: dict[str, str] = {}
    waiting, end_s = list(reversed(labels)), time.monotonic() + patience_s
    under_way: dict[Any, tuple[str, ForkServerProcess]] = {}
    try:
        start()
        while waiting or under_way:
            while waiting and len(under_way) < min(MOST_PROCESSES, len(os.sched_getaffinity(0))):
                label = waiting.pop()
                answers, theirs = _context.Pipe(duplex=False)
                job = theirs, dict(os.environ), case, target, label
                process = _context.Process(target=_answer, args=job)
                process.start()
                theirs.close()
                under_way[answers] = label, process
            ended = wait(list(under_way), max(0.0, end_s - time.monotonic()))
            if not ended:
                break
            for answers in ended:
                label, _ = under_way.pop(answers)
                if reason := _reason(answers):
                    failed[label] = reason
    except OSError:
        pass
    finally:
        for _, process in under_way.values():
            process.kill()
    return failed


def _reason(answers: Any) -> str:
    """Why a configuration failed, as its process says; "" where it did not."""
    with answers:
        try:
            return answers.recv()
        except EOFError:
            return "the compiler ended its process"


# ---------------------------------------------------------------- in the compiling processes


def _answer(
    answers: Connection, environment: dict[str, str], case: Case, target: Target, label: str
) -> None:
    die_with_parent()
    os.nice(NICE)
    os.environ.update(environment)  # which may name another cache than when the first one began
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    answers.send(compiled(case, target, label))


def load_compiler() -> None:
    """Load our Triton kernels and their compiler, and hash what the keys of its cache hold.

    It leaves the device alone; once done, a compile, or a look into the cache, is faster.
    """
    for op in OPS.values():
        with suppress(ImportError, KeyError):  # ops without kernels of ours
            op.entries[TUNED].load()
    for name in LOADED:
        with suppress(ImportError):
            import_module(name)
    with suppress(ImportError, AttributeError):
        import_module("triton.runtime.cache").triton_key()


def compiled(case: Case, target: Target, label: str) -> str:
    """Compile here, in place of a device; "" or why it failed."""
    driver = import_module("triton.runtime.driver").driver
    driver.set_active(StandIn(target.capability or (0, 0)))
    try:
        for kernel in OPS[case.op].entries[TUNED].load().compiled(case, target, label):
            _build_launcher(kernel)
    except Exception as error:
        return one_line(error)
    return ""


def _build_launcher(kernel: Any) -> None:
    """Compile the C code that launches a kernel, where this version of Triton has such code."""
    with suppress(Exception):
        launcher = import_module("triton.backends.nvidia.driver").CudaLauncher
        launcher(kernel.src, kernel.metadata)


class StandIn:
    """In place of the CUDA driver: says for which GPU to compile, and has none."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._arch = 10 * capability[0] + capability[1]

    def get_current_device(self) -> int:
        """A number that no device has."""
        return 1000

    def get_current_stream(self, device: int | None = None) -> int:
        """The default stream."""
        return 0

    def get_current_target(self) -> object:
        """The GPU, as Triton's compiler names it."""
        return import_module("triton.backends.compiler").GPUTarget("cuda", self._arch, 32)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a compiling process has no device: {name}")
