"""The parent's end of the training process: what can be asked of it, and how it is replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from e2e.case import TrainCase, TrainSettings
from e2e.commands.child import DataFacts, train_on_request
from e2e.commands.child_errors import PassedOn, into
from e2e.commands.torchrun import Torchrun
from e2e.interrupts import share_sockets_folder
from e2e.prediction import Prediction
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.terms import TracedStep
from e2e.results.types import Repeat, Training
from e2e.training.distributed import place_of
from microbench.errors import UserError
from microbench.worker import GENTLE_S, HANG_S, Child, OnStage, Serve, serve_requests

SET_UP_S = 600.0  # compiling a large network may take minutes without a word


class TrainWorker(Child):
    """A child process that trains. Greet it, open the data, then ask.

    Over several GPUs it is rank 0 of a torchrun: of ours, or of the one that this process is of.
    `here` serves in a thread of this process, for objects that only this process has.
    """

    daemon = False  # those may have no children, and data loaders have

    def __init__(self, settings: TrainSettings, *, here: bool = False, gpus: int = 1) -> None:
        self._settings, self._here = settings, here
        self.place = place_of(os.environ)
        self.gpus = self.place.world if self.place else gpus
        self._errors: PassedOn | None = None
        if self.gpus > 1 and self.place is None and here:
            raise UserError("a network of this process trains on one GPU; write module:function")
        super().__init__(train_on_request, settings)

    def _start(self, serve: Serve, settings: object) -> None:
        context = multiprocessing.get_context("spawn")
        if self._here:
            self._pipe, theirs = context.Pipe()
            self._process = _Thread(theirs, serve, settings)
            self._process.start()
            return
        reader, errors = context.Pipe(duplex=False)
        if self.gpus > 1 and self.place is None:
            self._process = Torchrun(self.gpus, self._settings.device, errors.fileno())
            self._pipe = self._process.pipe
            self._pipe.send((settings,))
        else:
            share_sockets_folder()  # before: the process has it from its start
            super()._start(partial(into, errors, serve), settings)
        errors.close()
        self._errors = PassedOn(reader)

    def close(self) -> None:
        """End the child, and wait a moment for what it wrote to standard error."""
        super().close()
        if self._errors:
            self._errors.finish()

    def restart(self) -> None:
        """Replace a process that died by a new one, and open the data again.

        UserError under a torchrun of the user's: its other ranks have ended too.
        """
        if self.place:
            raise UserError(f"rank 0 ended while {self._stage[1]}: torchrun's ranks end together")
        self._renew(self.gpus)

    def use(self, gpus: int) -> None:
        """Train over this number of GPUs from now on, in new processes where it changes."""
        if gpus != self.gpus:
            self._renew(gpus)

    def _renew(self, gpus: int) -> None:
        self.close()
        self.__init__(self._settings, here=self._here, gpus=gpus)
        self.greet()
        self.open_data()

    def _end(self, reason: str) -> tuple[str, str]:
        """With the rank that ended first, where that was not rank 0 by itself."""
        key, said = super()._end(reason)
        first = getattr(self._process, "first_to_end", None)
        if not first or first[1] >= 0:
            return key, said
        how = signal.Signals(-first[1])
        waited = ", as where another rank is waited for in vain" * (how == signal.SIGABRT)
        return key, f"rank {first[0]} ended ({how.name}{waited}) while {self._stage[1]}"

    def open_data(self) -> DataFacts:
        """Open the data and build the network once. UserError if either is wrong; WorkerDied."""
        return self.ask(("open",), lambda _key, _stage: None, SET_UP_S)

    def predict(self, case: TrainCase, on_stage: OnStage) -> Prediction:
        """The prediction of a case's step. Raises WorkerDied."""
        return self.ask(("predict", case), on_stage, SET_UP_S)

    def load(self, case: LoadCase, budget_s: float) -> Loading:
        """Measure a loader alone for `budget_s` seconds, without arms. Raises WorkerDied."""
        return self.ask(("load", case, budget_s), lambda _key, _stage: None, budget_s + SET_UP_S)

    def set_up(self, cases: Sequence[TrainCase], on_stage: OnStage) -> list[Training]:
        """Hold these arms only; returns a Training for each. Raises WorkerDied."""
        return self.ask(("set_up", tuple(cases)), on_stage, SET_UP_S)

    def time(self, budget_s: float, on_stage: OnStage) -> list[Training]:
        """Time the held arms for `budget_s` seconds. Raises WorkerDied."""
        return self.ask(("time", budget_s), on_stage, budget_s + 2 * HANG_S)

    def trace(self, on_stage: OnStage) -> dict[str, TracedStep | str]:
        """Steps of each held arm as the profiler records them, or why there are none, by key.

        Raises WorkerDied.
        """
        return self.ask(("trace",), on_stage, SET_UP_S)

    def train(
        self, key: str, seed: int, steps: int, on_stage: OnStage, epoch: int | None = None,
        count_every: int | None = None,
    ) -> Repeat:  # fmt: skip
        """Train one of the arms from scratch; it is evaluated after each `epoch` steps, or at the
        end, and its gradients are counted each `count_every` steps.

        Raises WorkerDied, UserError (strict data).
        """
        return self.ask(("train", key, seed, steps, epoch, count_every), on_stage, SET_UP_S)

    def others(self) -> int:
        """How many other processes are on the GPU now; 0 where unknown. Raises WorkerDied."""
        return self.ask(("others",), lambda _key, _stage: None, HANG_S)

    def notes(self) -> tuple[str, ...]:
        """Remarks on the data so far: broken images that were left out. Raises WorkerDied."""
        return self.ask(("notes",), lambda _key, _stage: None, HANG_S)


class _Thread(threading.Thread):
    """A thread of this process in place of a child process. It cannot be ended from outside."""

    exitcode = None

    def __init__(self, pipe: Any, serve: Serve, settings: object) -> None:
        super().__init__(target=serve_requests, args=(pipe, serve, settings), daemon=True)
        self._theirs = pipe

    def run(self) -> None:
        """Serve requests until the parent closes the pipe."""
        try:
            super().run()
        finally:
            self._theirs.close()

    def terminate(self) -> None:
        """Nothing: it sees that the pipe has closed."""

    def kill(self) -> None:
        """Nothing: a thread cannot be killed, and dies with the process."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, a while at most."""
        super().join(GENTLE_S if timeout is None else timeout)
