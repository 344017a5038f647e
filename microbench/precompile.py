"""Compiles Triton configurations ahead, in parallel processes that never touch the device.

One process loads torch and Triton and forks for each configuration. A fork compiles on tensors
without memory, for the target's capability, into Triton's own cache: the measuring process then
finds the files, under the same keys. It ends when the measuring process closes the pipe or dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NamedTuple, NoReturn

from kernels import OPS
from kernels.case import Case, Target
from kernels.error_words import one_line
from kernels.op import TUNED
from microbench.stopping import die_with_parent

PATIENCE_S = 60.0  # for all configurations of one case; the first waits until torch is loaded
POLL_S = 0.005
END_S = 1.0  # that the process gets to end by itself
MOST_FORKS = 16
MOST_REASON = 300  # letters: an answer is one write to a pipe, which forks share
LOADED = ("triton.compiler", "triton.backends.nvidia.compiler", "triton.backends.nvidia.driver",
          "triton.experimental.gluon.nvidia.hopper")  # fmt: skip

Answer = tuple[int, str]  # a job's number, and why it failed or ""


class Job(NamedTuple):
    """A configuration to compile, as it crosses the pipe."""

    number: int
    case: Case
    target: Target
    label: str


class Precompiler:
    """The compiling process of one device. It starts at `start` or at the first `compile`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = 0

    @property
    def pid(self) -> int | None:
        """The process that compiles; None where there is none."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Begin to load what compiling needs. OSError where no process can be started."""
        if self._process is not None:
            return
        requests, self._requests = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        theirs = requests.fileno(), answers.fileno()
        # The same search path, so that the same packages are compiled as are launched.
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; "
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{program}serve{theirs}"], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=theirs,
            )  # fmt: skip
        finally:
            requests.close()
            answers.close()

    def compile(
        self,
        case: Case,
        labels: Sequence[str],
        told: Callable[[int], None] = lambda _done: None,
        patience_s: float = PATIENCE_S,
    ) -> dict[str, str]:
        """Compile the configurations of a case side by side. Those that failed, with the reason.

        `told` is called with the number done whenever one is. Where the process cannot start, or
        ends, or takes longer than `patience_s`, what is not compiled yet is left to the caller.
        """
        failed: dict[str, str] = {}
        try:
            self.start()
            jobs = dict(enumerate(labels, self._asked))
            self._asked += len(jobs)
            for number, label in jobs.items():
                self._requests.send(Job(number, case, self._target, label))
            for done, (number, reason) in enumerate(self._answered(jobs, patience_s), 1):
                told(done)
                if reason:
                    failed[jobs[number]] = reason
        except (OSError, EOFError, TimeoutError):
            self.close()
        return failed

    def close(self) -> None:
        """End the process and its forks; a later `compile` starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        self._requests.close()
        self._answers.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _answered(self, jobs: Mapping[int, str], patience_s: float) -> Iterator[Answer]:
        """The answer to each job, as they end. EOFError, TimeoutError as named."""
        left, end = set(jobs), time.monotonic() + patience_s
        while left:
            if not self._answers.poll(max(0.0, end - time.monotonic())):
                raise TimeoutError
            number, reason = self._answers.recv()
            left.remove(number)
            yield number, reason


# ---------------------------------------------------------------- in the compiling process


def serve(requests_fd: int, answers_fd: int) -> None:
    """Compile every `Job` that comes by one pipe, until it closes; answer each by the other."""
    die_with_parent()
    requests, answers = Connection(requests_fd), Connection(answers_fd)
    load_compiler()
    forks: dict[int, int] = {}  # process -> job
    queued: list[Job] = []
    most = min(MOST_FORKS, os.cpu_count() or 1)
    try:
        while True:
            if wait([requests], POLL_S if forks else None):
                queued.append(requests.recv())
            _reap(forks, answers)
            while queued and len(forks) < most:
                job = queued.pop(0)
                forks[_fork(job, answers)] = job.number
    except (EOFError, OSError):
        pass  # the measuring process has closed it, or ended
    finally:
        for process in forks:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def load_compiler() -> None:
    """Load our Triton kernels and their compiler, and hash what the keys of its cache hold.

    It leaves the device alone; once done, a compile, or a look into the cache, is faster.
    """
    for op in OPS.values():
        with suppress(ImportError):
            op.entries[TUNED].load()
    for name in LOADED:
        with suppress(ImportError):
            import_module(name)
    with suppress(ImportError, AttributeError):
        import_module("triton.runtime.cache").triton_key()


def _reap(forks: dict[int, int], answers: Any) -> None:
    """Forget the forks that ended; answer for those that could not."""
    for process in list(forks):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            number = forks.pop(process)
            if status:
                answers.send((number, f"the compiler ended with status {status}"))


def _fork(job: Job, answers: Any) -> int:
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        die_with_parent()
        answers.send((job.number, compiled(job)[:MOST_REASON]))
        status = 0
    finally:
        os._exit(status)


def compiled(job: Job) -> str:
    """Compile here, in place of a device; "" or why it failed."""
    driver = import_module("triton.runtime.driver").driver
    driver.set_active(StandIn(job.target.capability or (0, 0)))
    try:
        backend = OPS[job.case.op].entries[TUNED].load()
        for kernel in backend.compiled(job.case, job.target, job.label):
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
