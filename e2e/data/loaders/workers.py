"""Batches from worker processes: torch's DataLoader, and what it does not say."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from e2e.data.types import ALL, PREFETCH, Loader, LoadSpec, Share
from microbench.errors import UserError
from microbench.stopping import DIE_WITH_PARENT, control

# As in a user's own script. What torch would choose here is what the training process was started
# by, and each worker would import torch, which takes seconds.
START = "fork"
DYING_S = 1.0  # at most from a worker's last sign of life to its end
NOT_HANDED_OVER = 79  # exit code of a worker whose batch could not be sent
MEMORY = "fewer --workers and a smaller --batch take less"
SHARED_MEMORY = "shared memory (/dev/shm) ran out"
ADVICE = f"{MEMORY}; in a container, --shm-size gives more"
MEANINGS = {
    signal.SIGKILL: f"out of memory, most likely: {MEMORY}",
    signal.SIGBUS: f"{SHARED_MEMORY}, most likely: {ADVICE}",
    signal.SIGSEGV: "a decoder crashed on an image, most likely; another --loader may not",
}

# A CUDA event or stream that is collected in a process which did not make it ends that process.
os.register_at_fork(after_in_child=gc.freeze)


class Workers(Loader):
    """A DataLoader with these options, of which a spec says workers, prefetching and pinning.

    What is random must follow from what the dataset is asked for. Workers start at the first
    `next`; without workers, batches are made in this process. When one dies, `next` raises a
    UserError that names it. `on_start` is called in each worker with its number.
    """

    def __init__(
        self, dataset: Dataset[Any], spec: LoadSpec, *, pinned: bool = False,
        on_start: Callable[[int], object] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self._dataset, self._spec, self._options = dataset, spec, options
        self._pinned, self._on_start = pinned, on_start
        self._batches: Iterator[Any] | None = None
        self._processes: tuple[BaseProcess, ...] = ()
        self._closed = False

    @property
    def queue_depth(self) -> int:
        """How many batches may be ready before they are fetched."""
        return self._spec.workers * PREFETCH

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the workers so far."""
        return tuple(process.pid for process in self._processes if process.pid is not None)

    def __next__(self) -> Any:
        assert not self._closed, "closed"
        if self._batches is None:
            self._batches = self._started()
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            until_s = time.monotonic() + DYING_S
            while self._processes and time.monotonic() < until_s:
                self._check_alive()  # the connections of a dying one end before it does
                time.sleep(DYING_S / 100)
            if "unable to allocate shared memory" in str(error):  # as torch says it
                raise UserError(f"{SHARED_MEMORY}: {ADVICE}") from None
            raise

    def close(self) -> None:
        """End the workers. A `next` waiting in another thread raises within some seconds."""
        self._closed, self._batches = True, None  # its end is theirs, unless a thread waits in it
        processes, self._processes = self._processes, ()
        for process in processes:
            if process.is_alive():
                process.terminate()

    def _started(self) -> Iterator[Any]:
        workers = self._spec.workers
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # a note says it
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork")  # as torch does it
            loader: DataLoader[Any] = DataLoader(
                self._dataset,
                num_workers=workers,
                multiprocessing_context=START if workers else None,
                pin_memory=self._pinned,
                prefetch_factor=PREFETCH if workers else None,
                generator=torch.Generator().manual_seed(self._spec.seed),
                worker_init_fn=partial(_in_worker, self._on_start),
                **self._options,
            )
            before = signal.getsignal(signal.SIGCHLD)
            try:
                batches = iter(loader)
            except OSError as error:
                # torch's iterator complains that it is half made when it is let go.
                hook, sys.unraisablehook = sys.unraisablehook, _ignore
                traceback.clear_frames(error.__traceback__)
                sys.unraisablehook = hook
                raise UserError(
                    f"{workers} loader workers cannot be started ({error.strerror}): they need "
                    "shared memory (/dev/shm) that can be written, and open files (ulimit -n); "
                    "fewer --workers need less, 0 none"
                ) from None
            if threading.current_thread() is threading.main_thread():
                # torch's handler raises wherever the main thread is when a worker dies.
                signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
        self._processes = tuple(getattr(batches, "_workers", ()))
        return batches

    def _check_alive(self) -> None:
        """End the workers and raise a UserError when one of them is dead.

        One that has come to the end of its part of an IterableDataset has exit code 0.
        """
        for number, process in enumerate(self._processes, 1):
            if process.exitcode:
                self.close()
                raise UserError(
                    f"loader worker {number} of {self._spec.workers} (pid {process.pid}) "
                    f"{_end_of(process.exitcode)}"
                )


def _ignore(_fault: object) -> None:
    pass


def _in_worker(on_start: Callable[[int], object] | None, number: int) -> None:
    """In a worker: end when its parent does, or when a batch cannot be handed to it.

    torch's would wait for ever, in the first case for someone to read what it made; in the second
    the parent would.
    """
    control(DIE_WITH_PARENT, signal.SIGKILL)
    Queue._on_queue_feeder_error = staticmethod(_cannot_hand_over)  # type: ignore[attr-defined]
    sys.excepthook = partial(_cannot_share, sys.excepthook)
    if on_start is not None:
        on_start(number)


def _cannot_hand_over(_error: Exception, _batch: object) -> None:
    os._exit(NOT_HANDED_OVER)


def _cannot_share(usual: Callable[..., object], kind: object, error: object, trace: object) -> None:
    """The thread that hands over memory by its file: where it gets none, a batch has no way out."""
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        _cannot_hand_over(error, None)
    usual(kind, error, trace)


def _end_of(code: int) -> str:
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


SeededIndex = tuple[int, int]  # which image, and the seed of how it is cut
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

    def __iter__(self) -> Iterator[list[SeededIndex]]:
        draws, (rank, ranks) = self._draws(), self.share
        while True:
            yield list(itertools.islice(draws, self.batch * ranks))[rank::ranks]

    def _draws(self) -> Iterator[SeededIndex]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(self.count, generator=generator)
            seeds = torch.randint(2**62, (self.count,), generator=generator)
            for some in torch.split(torch.stack([order, seeds]), LISTED, dim=1):
                yield from zip(*some.numpy().tolist(), strict=True)
