"""Tries cases in forked processes, each case under a time limit; a case that ends one is found."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import random
import resource
import selectors
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from .judge import Outcome

CASES_A_FORK = 40
MEMORY = 6 << 30  # bytes that a case may take
DIE_WITH_PARENT, ADOPT = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)
ENDING_S = 2.0  # that a process may take to give its memory back
WAITING = 4  # times as long as its limit may a case take that does not compute so long
PLACES = ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TMPDIR")


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `attempt` tries one case in a new folder, which is its working directory.

    A case is `random.Random` of kind, seed and number; it may take `limit_s` seconds. `share` is
    its part of the bench's time.
    """

    name: str
    attempt: Callable[[random.Random, Path], Attempt]
    limit_s: float
    share: float
    a_fork: int = 1  # cases in one forked process
    prepare: Callable[[], None] = lambda: None  # what the forks inherit


@dataclass(frozen=True)
class Attempt:
    """What was tried, in words, and what was wrong with it; nothing in the usual case."""

    words: str
    complaints: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Tried:
    """One case that was tried."""

    number: int
    attempt: Attempt


def case(kind: Kind, seed: int, number: int, folder: Path) -> Attempt:
    """Try one case in this process, in `folder`, with places of its own."""
    home = folder / "home"
    home.mkdir()
    work = folder / "work"
    work.mkdir()
    for name in PLACES:
        os.environ.pop(name, None)
    os.environ["HOME"] = str(home)
    scratch = folder / "tmp"
    scratch.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    os.chdir(work)
    before = _children()
    found = kind.attempt(random.Random(f"{seed} {kind.name} {number}"), work)
    left = [f"a process is left: {name}" for name in _ended_children(before)]
    return replace(found, complaints=[*found.complaints, *left])


def _children() -> dict[int, str]:
    """pid -> name of the processes that this one, or one of it that has ended, started."""
    found: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            start, _, rest = stat.read_text(errors="replace").rpartition(")")
            if int(rest.split()[1]) == os.getpid():
                found[int(stat.parent.name)] = start.partition("(")[2]
    return found


def _ended_children(before: Collection[int]) -> Iterator[str]:
    """End the children that were not there before; the names of those that still run in a while."""
    for pid in _children().keys() - before:
        until_s = time.monotonic() + ENDING_S
        with contextlib.suppress(OSError):
            while not (gone := os.waitpid(pid, os.WNOHANG)[0]) and time.monotonic() < until_s:
                time.sleep(0.02)
            if gone:
                continue
            name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            yield name


def tried(
    kind: Kind, seed: int, numbers: Iterable[int], *, until_s: float, jobs: int
) -> Iterator[Tried]:
    """The cases of a kind, by several processes side by side, until a time of the clock."""
    kind.prepare()
    waiting = iter(numbers)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        forks = [stack.enter_context(contextlib.closing(_Fork(kind, seed))) for _ in range(jobs)]
        busy: set[_Fork] = set()

        def start(fork: _Fork) -> None:
            if not fork.left:
                over = time.monotonic() > until_s
                fork.left = [] if over else list(islice(waiting, kind.a_fork))
            if fork.left:
                fork.start()
                selector.register(fork.pipe, selectors.EVENT_READ, fork)
                busy.add(fork)

        for fork in forks:
            start(fork)
        while busy:
            ready = {key.data for key, _ in selector.select(0.2)}
            for fork in list(busy):
                found = fork.receive() if fork in ready else fork.overdue()
                if found is not None:
                    yield found
                if fork.ended:
                    selector.unregister(fork.pipe)
                    fork.close()
                    busy.remove(fork)
                    start(fork)


class _Fork:
    """A forked process that tries cases and reports each through a pipe."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.left: list[int] = []
        self.ended = True
        self._process = 0

    def start(self) -> None:
        sys.stdout.flush()
        self.pipe, write = os.pipe()
        self.folder = Path(tempfile.mkdtemp(prefix="halfway-faults-"))
        self._process = os.fork()
        if not self._process:
            code = 1
            try:
                os.close(self.pipe)
                self._serve(write)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)
        self.ended = False
        self._count_from_now()

    def _count_from_now(self) -> None:
        self._until_s = time.monotonic() + self.kind.limit_s
        self._computed_s = self._cpu_s()

    def _serve(self, write: int) -> None:
        os.setsid()
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        ctypes.CDLL(None).prctl(ADOPT, 1)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in self.left:
            folder = self.folder / str(number)
            folder.mkdir()
            done = pickle.dumps(Tried(number, case(self.kind, self.seed, number, folder)))
            os.write(write, struct.pack("I", len(done)) + done)
            os.chdir("/")
            shutil.rmtree(folder, ignore_errors=True)

    def receive(self) -> Tried | None:
        """The case that has been tried. One that ended the process is a failure."""
        header = os.read(self.pipe, 4)
        if len(header) < 4:
            _, status = os.waitpid(self._process, 0)
            self._process = 0
            code = os.waitstatus_to_exitcode(status)
            return self._failed(f"the process ended ({code})") if self.left else self._end()
        (length,) = struct.unpack("I", header)
        content = b""
        while len(content) < length:
            content += os.read(self.pipe, length - len(content))
        found: Tried = pickle.loads(content)
        self.left.remove(found.number)
        self._count_from_now()
        return found

    def overdue(self) -> Tried | None:
        """The case that takes too long, if it does; its process is ended.

        On a busy machine a case that computes takes longer than its limit, and is none.
        """
        over_s = time.monotonic() - self._until_s
        limit_s = self.kind.limit_s
        computed_s = self._cpu_s() - self._computed_s
        if over_s < 0 or (computed_s < limit_s and over_s < (WAITING - 1) * limit_s):
            return None
        return self._failed(f"more than {limit_s:g} s")

    def _cpu_s(self) -> float:
        """Seconds of CPU that the process has taken."""
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self._process}/stat").read_text(errors="replace")
            ticks = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
            return ticks / os.sysconf("SC_CLK_TCK")
        return 0.0

    def _failed(self, why: str) -> Tried:
        self._end()
        return Tried(self.left.pop(0), Attempt("", [why]))

    def _end(self) -> None:
        self.ended = True

    def close(self) -> None:
        """End the process, and remove what it wrote."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0
        if hasattr(self, "pipe") and self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1
            shutil.rmtree(self.folder, ignore_errors=True)


# ---------------------------------------------------------------- a command in this process


class Reached(BaseException):
    """The command would now start the process that measures: as far as these cases go."""


def no_children() -> None:
    """From here on in this process, and its forks, a command that starts to measure ends there."""
    import multiprocessing

    from microbench.selftest import aa

    def refuse(*_: object, **__: object) -> object:
        raise Reached

    multiprocessing.get_context = refuse  # type: ignore[assignment]
    aa.same_kernel_twice = refuse  # type: ignore[assignment]  # it measures in this process


def here(main: Callable[[list[str]], int], program: str, words: list[str]) -> Outcome:
    """A command as a process of its own would end, in this process, which is a fork."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(os.memfd_create(n), "r+b")) for n in ("out", "err")]
        kept = [os.dup(number) for number in (1, 2)]
        streams = sys.stdout, sys.stderr
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        sys.argv = [program, *words]
        try:
            code = _ended(main, words)
            for stream in (sys.stdout, sys.stderr):
                if not stream.closed:
                    stream.flush()
        finally:
            sys.stdout, sys.stderr = streams
            for number, copy in enumerate(kept, 1):
                os.dup2(copy, number)
                os.close(copy)
        contents: list[bytes] = []
        for file in files:
            file.seek(0)
            contents.append(file.read())
    return Outcome(code, *contents)


def _ended(main: Callable[[list[str]], int], words: list[str]) -> int:
    try:
        return main(words)
    except Reached:
        return 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
