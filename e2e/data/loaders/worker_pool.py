"""Batches from worker processes: torch's DataLoader, and what is said when a worker dies."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from e2e.data.loaders.cpus import free_shared_memory
from e2e.data.types import ALL, Share, Wanted
from microbench.errors import UserError

# As in a user's own script. What torch would choose here is what the training process was started
# by, and each worker would import torch, which takes seconds.
START = "fork"
DYING_S = 1.0  # at most from a worker's last sign of life to its end
WATCH_S = 0.5  # how often a worker looks whether its parent lives
NOT_HANDED_OVER = 79  # exit code of a worker whose batch could not be sent
MEANINGS = {
    signal.SIGKILL: "out of memory, most likely: fewer --workers and a smaller --batch take less",
    signal.SIGBUS: "shared memory ran out, most likely: fewer --workers and a smaller --batch take "
    "less; in a container, --shm-size gives more",
    signal.SIGSEGV: "a decoder crashed on an image, most likely; another --loader may not",
}

# A CUDA event or stream that is collected in a process which did not make it ends that process.
os.register_at_fork(after_in_child=gc.freeze)

Batch = TypeVar("Batch")
_starting = threading.Lock()


class Workers(Iterator[Batch], Generic[Batch]):
    """`collate([dataset[draw] for draw in draws])` for the draws of each of `batches`, in order.

    The draws must decide all that is random. Workers start at the first `next`; without workers,
    batches are made in this process. When one dies, `next` raises a UserError that names it.

    `batch_bytes` is the shared memory of a batch (None: of the one that is wanted): UserError,
    before any worker starts, when the batches under way do not fit. A `LoaderFeed` derived from
    this class adds `fetch` and `place`.
    """

    idle_cpu_s = 0.0

    def __init__(
        self, dataset: Dataset[Any], batches: Iterable[list[Any]], wanted: Wanted, *,
        collate: Callable[[list[Any]], Batch], pinned: bool | None = None,
        batch_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self._dataset, self._batches, self._wanted = dataset, batches, wanted
        self._collate = collate
        self._pinned = wanted.pinned if pinned is None else pinned
        self._batch_bytes = wanted.batch_bytes if batch_bytes is None else batch_bytes
        self._running: Iterator[Batch] | None = None
        self._processes: tuple[BaseProcess, ...] = ()

    @property
    def ahead(self) -> int:
        """How many batches may be ready before they are fetched."""
        return self._wanted.workers * self._wanted.prefetch

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the workers so far."""
        return tuple(process.pid for process in self._processes if process.pid is not None)

    def __next__(self) -> Batch:
        self._check_alive()
        if self._running is None:
            self._running = self._start()
        try:
            return next(self._running)
        except StopIteration:
            raise
        except Exception:
            until_s = time.monotonic() + DYING_S
            while self._processes and time.monotonic() < until_s:
                self._check_alive()  # the connections of a dying one end before it does
                time.sleep(DYING_S / 100)
            raise

    def close(self) -> None:
        """End the workers. A `next` waiting in another thread raises within some seconds."""
        self._running = None  # its end is theirs, unless another thread waits in it
        processes, self._processes = self._processes, ()
        for process in processes:
            if process.is_alive():
                process.terminate()

    def _start(self) -> Iterator[Batch]:
        self._check_shared_memory()
        workers = self._wanted.workers
        with _starting, _quiet_children(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # a note says it
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork")  # as torch does it
            before = set(multiprocessing.active_children())
            loader = DataLoader(
                self._dataset,
                batch_sampler=self._batches,  # type: ignore[arg-type]
                num_workers=workers,
                multiprocessing_context=START if workers else None,
                collate_fn=self._collate,
                pin_memory=self._pinned,
                prefetch_factor=self._wanted.prefetch if workers else None,
                generator=torch.Generator(),  # else it draws from the training's random numbers
                worker_init_fn=partial(_end_with, os.getpid()),
            )
            if workers and self._pinned and threading.excepthook is threading.__excepthook__:
                threading.excepthook = unless_pinning
            try:
                running = iter(loader)
            except OSError as error:
                for process in set(multiprocessing.active_children()) - before:
                    process.kill()
                # torch's iterator complains that it is half made when it is let go.
                hook, sys.unraisablehook = sys.unraisablehook, _ignore
                traceback.clear_frames(error.__traceback__)
                sys.unraisablehook = hook
                raise UserError(
                    f"{workers} loader workers cannot be started ({error.strerror}): they need "
                    "shared memory (/dev/shm) that can be written, and open files (ulimit -n); "
                    "fewer --workers need less, 0 none"
                ) from None
            started = set(multiprocessing.active_children()) - before
        self._processes = tuple(sorted(started, key=lambda process: process.pid or 0))
        return running

    def _check_shared_memory(self) -> None:
        needed, free = (self.ahead + 1) * self._batch_bytes, free_shared_memory()
        if not self.ahead or free is None or needed <= free:
            return
        raise UserError(
            f"--workers {self._wanted.workers} has {self.ahead + 1} batches of "
            f"{self._batch_bytes / 1e6:,.1f} MB under way, {needed / 1e6:,.0f} MB; shared memory "
            f"(/dev/shm) has {free / 1e6:,.0f} MB free: take fewer --workers or a smaller --batch; "
            "in a container, --shm-size gives more"
        )

    def _check_alive(self) -> None:
        """End the workers and raise a UserError when one of them is dead."""
        for number, process in enumerate(self._processes, 1):
            if not process.is_alive():
                self.close()
                raise UserError(
                    f"loader worker {number} of {self._wanted.workers} (pid {process.pid}) "
                    f"{_end_of(process)}"
                )


def _ignore(_fault: object) -> None:
    pass


def _end_with(parent: int, _: int) -> None:
    """In a worker: end when its parent does, or when a batch cannot be handed to it.

    torch has it leave its loop in the first case, and wait for ever for someone to read what it
    made; in the second the parent waits for ever.
    """
    Queue._on_queue_feeder_error = staticmethod(_cannot_hand_over)  # type: ignore[attr-defined]

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, name="watch", daemon=True).start()


def _cannot_hand_over(_error: Exception, _batch: object) -> None:
    os._exit(NOT_HANDED_OVER)


def _end_of(process: BaseProcess) -> str:
    code = process.exitcode or 0
    if code == NOT_HANDED_OVER:
        return (
            "could not hand over a batch: too few files may be open (ulimit -n), or shared memory "
            "(/dev/shm) takes no more; fewer --workers take less"
        )
    if code >= 0:
        return f"ended with exit code {code} in mid-run"
    number = signal.Signals(-code)
    meaning = MEANINGS.get(number)
    return f"was killed by signal {-code} ({number.name})" + (f": {meaning}" if meaning else "")


@contextmanager
def _quiet_children() -> Generator[None, None, None]:
    """Keep torch from installing a signal handler that raises when a worker dies.

    It raises wherever the main thread is just then, in the middle of a training step too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # where torch installs none
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


def unless_pinning(args: threading.ExceptHookArgs) -> None:
    """No traceback when a worker dies while torch's pinning thread reads from it: `Workers` says
    it.
    """
    pinning = "_pin_memory_loop" in getattr(args.thread, "name", "")
    gone = isinstance(args.exc_value, (ConnectionError, EOFError, FileNotFoundError))
    if not (pinning and gone):
        threading.__excepthook__(args)


Draw = tuple[int, int]  # which image, and the seed of how it is cut
LISTED = 1024  # draws that become Python's at once: a whole epoch's would hold up a training


@dataclass(frozen=True)
class Shuffled:
    """Lists of `batch` draws from `count` images, epoch after epoch; one may span two epochs.

    Of a `share` (rank, ranks) every rank has its own draws, of one order: together they are batches
    of `ranks` times as many.
    """

    count: int
    batch: int
    seed: int
    share: Share = ALL

    def __iter__(self) -> Iterator[list[Draw]]:
        draws, (rank, ranks) = self._draws(), self.share
        while True:
            yield list(itertools.islice(draws, self.batch * ranks))[rank::ranks]

    def _draws(self) -> Iterator[Draw]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(self.count, generator=generator)
            seeds = torch.randint(2**62, (self.count,), generator=generator)
            for some in torch.split(torch.stack([order, seeds]), LISTED, dim=1):
                yield from zip(*some.numpy().tolist(), strict=True)
