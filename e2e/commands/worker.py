"""The parent's end of a training process: what it says, and its end."""

from __future__ import annotations

import multiprocessing
from functools import partial
from typing import Any

from e2e.commands.child_errors import PassedOn, into
from e2e.commands.job import Begun, Ended, Job, Stage, serve
from e2e.interrupts import share_sockets_folder
from microbench.worker import GENTLE_S, HANG_S, Child, OnStage, Serve, WorkerDied

SET_UP_S = 600.0  # compiling a large network may take minutes without a word


class JobProcess(Child):
    """A process that carries out a job, and says what it finds."""

    daemon = False  # those may have no children, and data loaders have

    def __init__(self, job: Job) -> None:
        self.ended = False
        super().__init__(serve, job)

    def _start(self, serve: Serve, settings: object) -> None:
        reader, errors = multiprocessing.get_context("spawn").Pipe(duplex=False)
        share_sockets_folder()  # before: the process has it from its start
        super()._start(partial(into, errors, serve), settings)
        errors.close()
        self._errors = PassedOn(reader)

    def next(self, begun: Begun, on_stage: OnStage) -> Any:
        """What it says next. WorkerDied where it ends, or says nothing for long in what has begun;
        UserError for a mistake of the user.
        """
        patience_s = begun.budget_s + (2 * HANG_S if begun.what == Stage.TIMING else SET_UP_S)
        try:
            event = self._answer(on_stage, patience_s)
        except WorkerDied as death:
            why = f": {self._errors.watchdog}" if self._errors.watchdog else ""
            raise WorkerDied(death.key, death.reason + why) from None
        self.ended = isinstance(event, Ended)
        return event

    def close(self) -> None:
        """End it, at once unless it is done, and wait a moment for what it wrote to stderr."""
        if not self.ended:
            self._process.terminate()
            self._process.join(GENTLE_S)
        super().close()
        self._errors.finish()
