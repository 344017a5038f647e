"""Progress of a run: one changing line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.console import Console

from e2e.case import TrainCase
from e2e.report.arms import in_words
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import Repeat, Training
from microbench import fmt
from microbench.report.live import LiveLine

START_UP, OPENING = "start-up", "network and data"


class StageTimes:
    """Seconds of a run by stage; there is exactly one at each moment, from start-up on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._took_s: dict[str, float] = {}
        self._stage, self._since_s = START_UP, clock()

    def enter(self, stage: str) -> None:
        """A stage begins, and the one before ends; what follows a comma or a colon is detail."""
        name = stage.split(",")[0].split(":")[0].strip()
        now_s = self._clock()
        self._took_s[self._stage] = self._took_s.get(self._stage, 0.0) + now_s - self._since_s
        self._stage, self._since_s = name, now_s

    def so_far(self, before: Mapping[str, float]) -> dict[str, float]:
        """Seconds by stage up to now, in the order in which they began, added to those before."""
        self.enter(self._stage)
        names = dict.fromkeys((*before, *self._took_s))
        return {
            name: round(before.get(name, 0.0) + self._took_s.get(name, 0.0), 2) for name in names
        }


class TrainProgress(LiveLine):
    """Shows which arm runs, results so far, and the time left.

    `total` counts what is saved one after another: timed comparisons, trainings, and measured
    loaders.
    """

    _total: int

    def __init__(
        self,
        console: Console,
        total: int,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        stages: StageTimes | None = None,
    ) -> None:
        super().__init__(console, total, quiet=quiet)
        self._clock = clock
        self.stages = stages or StageTimes(clock)
        self._began_s = clock()
        self._names: dict[str, str] = {}
        self._until_s: float | None = None
        self._process = ""

    def expect(self, more: int) -> None:
        """Add to the number of results that will be saved."""
        self._total += more

    def next_process(self, number: int, of: int) -> None:
        """A fresh process times comparisons once more."""
        self._process = f"process {number} of {of}: "
        self._doing = f"{self._process}starting"

    def begins(self, cases: tuple[TrainCase, ...]) -> None:
        """A comparison begins. How long it takes is known when its steps are timed."""
        self.about(cases)
        first = cases[0]
        variants = fmt.count(len(cases), "variant")
        self.say(fmt.clean(f"{self._process}{first.network} {_size(first)}, {variants}"))

    def timing(self, rest_s: float) -> None:
        """The timing of a comparison begins, which ends in about this many seconds."""
        self._until_s = self._clock() + rest_s

    def about(self, cases: tuple[TrainCase, ...]) -> None:
        """Set the names of the next comparison's arms."""
        self._names = {case.key: arm_name(case) for case in cases}

    def stage(self, key: str, stage: str) -> None:
        """An arm entered a stage."""
        self.stages.enter(stage)
        name = self._names.get(key, "")
        self._doing = self._process + fmt.clean(f"{name}: {stage}" if name else stage)

    def timed(self, trainings: list[Training]) -> None:
        """A comparison, timed or only predicted, was saved."""
        found = ((t, fmt.throughput(t.per_s) if t.per_s else t.status) for t in trainings)
        parts = [f"{arm_name(training.case)} {what}" for training, what in found]
        case, unit = trainings[0].case, trainings[0].unit
        timed = f" {unit}/s" * any(t.per_s for t in trainings)
        network = f"{self._process}{case.network}"
        self._advance(f"{network} {_size(case)}: {', '.join(parts)}{timed}")

    def loading(self, case: LoadCase) -> None:
        """A loader is about to be measured alone."""
        self._doing = fmt.clean(f"{loader_name(case)}: loading")

    def loaded(self, loading: Loading) -> None:
        """A loader's measurement was saved."""
        per_s = f"{fmt.throughput(loading.per_s)} img/s" if loading.per_s else loading.status
        self._advance(f"{loader_name(loading.case)}: {per_s}")

    def trained(self, case: TrainCase, repeat: Repeat) -> None:
        """A training was saved."""
        result = "no held-out data" if repeat.loss is None else f"loss {repeat.loss:.3f}"
        if repeat.accuracy is not None:
            result = f"accuracy {repeat.accuracy:.1%}"
        if repeat.train_loss is None:
            result = "the loss is not finite"
        took = fmt.duration(repeat.train_s)
        self._advance(
            f"{arm_name(case)} batch {case.batch} seed {repeat.seed}: {result} after "
            f"{fmt.count(repeat.steps, 'step')} in {took}"
        )

    def _advance(self, line: str) -> None:
        self._done += 1
        self.say(fmt.clean(f"[{self._done}/{self._total}] {line}"))

    def left_s(self) -> float | None:
        """Estimated seconds to the end, at the rate so far; None if unknown.

        Before the first result: the rest of a comparison, if it is the only one.
        """
        now_s = self._clock()
        if self._done:
            return (now_s - self._began_s) / self._done * (self._total - self._done)
        if self._total == 1 and self._until_s is not None:
            return max(0.0, self._until_s - now_s)
        return None


def loader_name(case: LoadCase) -> str:
    """Such as "torchvision, 4 workers, cold files, prefetch 4"."""
    parts = [case.loader, fmt.count(case.workers, "worker"), *["cold files"] * case.cold]
    parts += [f"prefetch {case.prefetch}"] if case.prefetch else []
    return ", ".join(parts)


def arm_name(case: TrainCase) -> str:
    """Such as "amp nhwc +compile"."""
    return " ".join(in_words(case, ("recipe", "layout", "fused", "compile", "graph", "compress")))


def _size(case: TrainCase) -> str:
    """ "batch 256", "batch 256, 2 GPUs"."""
    return ", ".join(in_words(case, ("batch", "gpus")))
