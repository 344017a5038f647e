"""The parent's end of the training process: what can be asked of it, and how it is replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from e2e.case import TrainCase, TrainSettings
from e2e.commands.child import DataFacts, train_on_request
from e2e.commands.torchrun import torchrun_of
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.terms import TracedStep
from e2e.results.types import Repeat, Training
from e2e.training.distributed.place import place_of
from microbench.errors import UserError
from microbench.worker import HANG_S, Child, OnStage

if TYPE_CHECKING:
    from e2e.prediction.predictor import Prediction

SET_UP_S = 900.0  # compiling a large network may take minutes without a word


class TrainWorker(Child):
    """A child process that trains. Greet it, open the data, then ask.

    Over several GPUs it is rank 0 of a torchrun: of ours, or of the one that this process is of.
    """

    def __init__(self, settings: TrainSettings, *, here: bool = False, gpus: int = 1) -> None:
        self._settings, self._here = settings, here
        self.place = place_of(os.environ)
        self.gpus = self.place.world if self.place else gpus
        own = self.gpus > 1 and self.place is None
        if own and here:
            raise UserError("a network of this process trains on one GPU; write module:function")
        # Not a daemon: those may have no children, and data loaders have.
        super().__init__(
            train_on_request, settings, daemon=False, here=here,
            start=torchrun_of(gpus, settings.device) if own else None,
        )  # fmt: skip

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
