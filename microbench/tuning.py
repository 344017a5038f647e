"""Chooses among the ways to run a case by timing them: of our kernels as many as --tune says.

It compiles the model's first configurations side by side (`microbench.precompile`), those of later
cases while the GPU measures earlier ones, times each for milliseconds, interleaved, and keeps the
winner in the user's cache. What fails to compile or to launch is left out; it never ends the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from kernels import OPS, tune
from kernels.case import Candidate, CannotRun, Case, Target
from kernels.files import warn
from kernels.op import TUNED
from kernels.tune import QUICK, Choice
from microbench import precompile
from microbench.device.device import raise_if_dead
from microbench.timing.stats import median
from microbench.timing.timers import Timer

if TYPE_CHECKING:
    from kernels.checking import Prepared

CHOICE_SAMPLES = 5  # of a candidate, in each round
MOST_SAMPLES = 24  # of a short launch: what one gate holds
QUICK_S = 0.004  # that a candidate of a quick tune is timed for, in each round
WARM_S = 0.01  # of launches before the first is timed: a card that waited for a compiler is slow
ESTIMATE_SAMPLES = 3
MEASURING_CORES = 2  # that no compiler is to take
SIGN_S = 5.0  # between two signs of life while a compiler is waited for

Broken = Mapping[str, str]  # configurations that do not compile, and why
Announce = Callable[[str, str], None]


@dataclass(frozen=True)
class Stage:
    """A stage of successive halving: who is kept of the stage before, and how often each is timed.

    At most `most`, and none that took more than `within` times as long as the fastest.
    """

    rounds: int = 1
    most: int | None = None
    within: float = inf


LIBRARY_STAGES = (Stage(), Stage(rounds=3, most=4))
QUICK_STAGES = (Stage(), Stage(within=1.15), Stage(rounds=2, most=2))


def ranking(
    candidates: Sequence[int],
    stages: Sequence[Stage],
    sample: Callable[[int], Sequence[float]],
    failed: Callable[[int, Exception], None] = lambda _candidate, _error: None,
) -> list[int]:
    """The candidates that work, the fastest first: by medians of the last stage that each was in.

    In a stage they take turns, a `sample` (seconds) each a round. One whose sample raises is
    `failed` and left out; what `failed` raises is passed on.
    """
    left, behind = list(candidates), list[int]()
    for stage, following in zip(stages, (*stages[1:], None), strict=True):
        taken: dict[int, list[float]] = {candidate: [] for candidate in left}
        for _ in range(stage.rounds):
            for candidate in [e for e in left if e in taken]:
                try:
                    taken[candidate] += sample(candidate)
                except Exception as error:
                    failed(candidate, error)
                    del taken[candidate]
        times = {candidate: median(samples) for candidate, samples in taken.items()}
        left = sorted(times, key=times.__getitem__)
        kept = _kept(left, times, following)
        behind = left[len(kept) :] + behind
        left = kept
    return left + behind


def _kept(ranked: list[int], times: dict[int, float], following: Stage | None) -> list[int]:
    """Those that take part in the next stage; all after the last."""
    if following is None or not ranked:
        return ranked
    limit = following.within * times[ranked[0]]
    return [candidate for candidate in ranked if times[candidate] <= limit][: following.most]


class Chosen(NamedTuple):
    """A candidate, how it was chosen, and its error where it was checked last of all.

    `choice` is None where the back end has no configurations, and where another process chose.
    """

    candidate: Candidate
    choice: Choice | None = None
    rel_error: float | None = None


@dataclass
class Tuner:
    """Chooses candidates of one target by `timer`. `search` is how many it times of ours."""

    target: Target
    timer: Timer
    search: int
    _samples: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _ahead: dict[str, Future[Broken]] = field(default_factory=dict[str, Future[Broken]], init=False)

    def expect(self, cases: Sequence[Case]) -> None:
        """Begin to load our kernels, and to compile what these cases will time, in their order; it
        ends with the process.
        """
        tunes = self.search and self.target.kind == "cuda"
        ours = [case for case in cases if tunes and case.backend == TUNED]
        unknown = [
            case for case in ours if self.search > QUICK or tune.find(case, self.target) is None
        ]
        self._ahead = {case.key: Future[Broken]() for case in unknown}
        todo, cores = iter(unknown), len(os.sched_getaffinity(0)) - MEASURING_CORES
        for _ in range(max(1, cores // QUICK) if ours else 0):  # cases at once
            Thread(target=self._compile_ahead, args=(ours[0], todo), daemon=True).start()

    def _compile_ahead(self, first: Case, cases: Iterator[Case]) -> None:
        with suppress(Exception):  # a case meets it again, in its turn
            OPS[first.op].entries[TUNED].load()
        for case in cases:
            broken: Broken = {}
            with suppress(Exception):
                labels = [config.label for config in self._configurations(case).tried(self.search)]
                broken = precompile.compile_ahead(case, self.target, labels)
            self._ahead[case.key].set_result(broken)

    def _compiled(self, case: Case, labels: Sequence[str], announce: Announce) -> Broken:
        """Wait until these are compiled; those that failed."""
        while True:
            announce(case.key, f"compiling {len(labels)} configurations")
            if case.key not in self._ahead:
                return precompile.compile_ahead(case, self.target, labels)
            with suppress(TimeoutError):
                return self._ahead[case.key].result(SIGN_S)

    def choose(
        self, case: Case, prepared: Prepared, announce: Announce, known: str | None = None
    ) -> Chosen:
        """The fastest candidate that works and is right; where none is right, a wrong one; the only
        one, and the one called `known`, which another process has chosen, untimed.

        CannotRun, or the last candidate's error, where none works.
        """
        for candidate in prepared.candidates:
            if candidate.label == known:
                return Chosen(candidate)
        if len(prepared.candidates) == 1:
            ours = case.backend == TUNED
            choice = self._configurations(case).chosen[1] if ours else None
            return Chosen(prepared.candidates[0], choice)
        if case.backend == TUNED:
            return self._tune(case, prepared, announce)

        def sample(candidate: Candidate) -> Sequence[float]:
            announce(case.key, f"tuning, {candidate.label}")
            self.timer.run(candidate.call, 1)  # loads the module, which no gate can hold
            return self.timer.block(candidate.call, CHOICE_SAMPLES).times_s

        works = range(len(prepared.candidates))
        found, _, error = self._best(case, prepared, works, LIBRARY_STAGES, sample)
        return Chosen(found, None, error)

    def _configurations(self, case: Case) -> tune.Configurations:
        return OPS[case.op].entries[TUNED].load().configurations(case, self.target)

    def _best(
        self,
        case: Case,
        prepared: Prepared,
        works: Sequence[int],
        stages: Sequence[Stage],
        sample: Callable[[Candidate], Sequence[float]],
    ) -> tuple[Candidate, int, float]:
        """The fastest of these that is right, how many could be timed, and its error; where none is
        right, the fastest.
        """
        candidates, errors = prepared.candidates, list[Exception]()
        wrong: list[tuple[Candidate, int, float]] = []

        def failed(_i: int, error: Exception) -> None:
            raise_if_dead(error)
            errors.append(error)

        ranked = ranking(works, stages, lambda i: sample(candidates[i]), failed)
        for i in ranked:
            try:
                found = candidates[i], len(ranked), prepared.rel_error(candidates[i])
                if found[2] <= case.tolerance:
                    return found
                wrong.append(found)
            except Exception as error:
                failed(i, error)
        if wrong:
            return wrong[0]
        raise errors[-1] if errors else CannotRun("no candidates")

    # ------------------------------------------------------------ configurations of our kernels

    def _tune(self, case: Case, prepared: Prepared, announce: Announce) -> Chosen:
        """The fastest that is right; it is kept in the user's cache."""
        candidates = prepared.candidates
        labels = [candidate.label for candidate in candidates]
        broken = self._compiled(case, labels, announce)
        # Where nothing compiles there, it may be that process that is at fault: all are tried here.
        works = [i for i, label in enumerate(labels) if label not in broken] or [
            *range(len(labels))
        ]
        announce(case.key, f"timing {len(works)} configurations")
        self._samples.clear()
        found, timed, error = self._best(case, prepared, works, QUICK_STAGES, self._quick_sample)
        if error <= case.tolerance:
            try:
                tune.save(case, self.target, found.label, timed)
            except OSError as failure:
                where = f"{failure.filename}: " if failure.filename else ""
                why = f"{where}{failure.strerror or failure}"
                warn(f"what was tuned cannot be kept ({why})")
        return Chosen(found, Choice.timed(timed), error)

    def _quick_sample(self, candidate: Candidate) -> Sequence[float]:
        """As many samples as fit QUICK_S; the first time, after a warm-up."""
        if candidate.label not in self._samples:
            self.timer.run(candidate.call, 1)  # loads the module, which no gate can hold
            took_s = median(self.timer.block(candidate.call, ESTIMATE_SAMPLES).times_s)
            if not self._samples:
                self.timer.run(candidate.call, int(WARM_S / max(took_s, WARM_S / 1000)) + 1)
            wanted = int(QUICK_S / (took_s + self.timer.flush_s))
            self._samples[candidate.label] = min(MOST_SAMPLES, max(CHOICE_SAMPLES, wanted))
        return self.timer.block(candidate.call, self._samples[candidate.label]).times_s
