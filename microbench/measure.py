"""Measures one comparison: prepare, check, choose, time interleaved. Runs in the child process.

Each variant is first asked whether it can run, then prepared, checked against float64 and, where it
has several candidates, tuned. All that pass are then timed interleaved. Every case gets a Result,
whatever happens to it.
"""

from __future__ import annotations

import math
import os
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from kernels import OPS
from kernels.case import Candidate, CannotRun, Case, LeftBehind, Target
from kernels.conv import Conv
from kernels.gpus import find_card
from kernels.messages import first_line
from kernels.op import OWN, Session
from kernels.tune import NONE, TUNED
from kernels.user import described
from microbench.device import profiler as kernel_names
from microbench.device.device import held_by_others, raise_if_dead
from microbench.device.telemetry import Telemetry, TelemetrySummary
from microbench.results import types
from microbench.results.merging import with_ratios
from microbench.results.types import Measurement, Result
from microbench.sweep import Group
from microbench.timing import FEWEST_ROUNDS, LARGE_FLOPS, interleave
from microbench.timing.interleave import HEAVY, INTERIM_LOOKS, Variant, VariantFailed, blaming
from microbench.timing.stats import median, median_interval
from microbench.timing.timers import Launch, Renewed, Timer
from microbench.tuning import Tuner

if TYPE_CHECKING:
    from kernels.checking import Prepared

PROBE_LAUNCHES = 3
PROBE_S = 0.05  # a shorter launch may be overhead, which does not grow with the work
LAUNCHES_NEEDED = FEWEST_ROUNDS + 3  # two to check, one to estimate, others to time in a process
MORE = "--budget SECONDS allows more"  # in the reason of what is skipped for want of time

Kind = tuple[str, str, str]  # op, precision, back end


@dataclass
class Estimator:
    """Seconds per launch of the largest case seen so far, by op, precision and back end.

    A case that does not fit the budget is not begun: half-precision GEMMs on many CPUs, which have
    no hardware for them, run 500 times slower than float32, and one launch of a large one takes
    minutes.
    """

    known: dict[Kind, tuple[int, float]] = field(default_factory=dict[Kind, tuple[int, float]])

    def learn(self, case: Case, seconds: float) -> None:
        """Note the seconds that a launch of this case took."""
        flops = case.problem.flops
        if flops >= self.known.get(_kind(case), (0, 0.0))[0]:
            self.known[_kind(case)] = (flops, seconds)

    def expected_s(self, case: Case) -> float:
        """Expected seconds per launch, by FLOPs from the largest case seen; 0 when none was."""
        flops, seconds = self.known.get(_kind(case), (1, 0.0))
        return seconds * case.problem.flops / flops

    def admit(self, case: Case, target: Target, budget_s: float, spoken_for_s: float) -> None:
        """CannotRun when checking and timing the case would exceed the budget in seconds.

        `spoken_for_s` is the seconds of one launch of each variant already admitted. A kind of case
        never seen is timed at a small size first; what that raises is passed on. Before a case is
        refused, that size grows until a launch takes PROBE_S, or is the case itself: on a busy CPU
        a small one is mostly waiting for threads.
        """
        if _kind(case) not in self.known:
            self._probe(replace(case, problem=case.problem.probe()), target)
        left_s = budget_s - LAUNCHES_NEEDED * spoken_for_s
        scale = 1
        while LAUNCHES_NEEDED * self.expected_s(case) > left_s:
            flops, seconds = self.known[_kind(case)]
            if seconds >= PROBE_S or flops >= case.problem.flops:
                break
            scale *= 2
            larger = replace(case, problem=case.problem.probe(scale))
            if larger.problem.flops > flops:
                self._probe(larger, target)
        launch_s = self.expected_s(case)
        if LAUNCHES_NEEDED * launch_s > left_s:
            raise CannotRun(
                f"about {_words(launch_s)} a launch, estimated from a smaller size; "
                f"{LAUNCHES_NEEDED} launches do not fit the {_words(max(left_s, 0.0))} left for it "
                f"({MORE})"
            )

    def _probe(self, small: Case, target: Target) -> None:
        """Learn the shortest of a few launches: one that another program delays says nothing."""
        session = Session(target, seed=0)  # its own: the others keep operands
        prepared = session.prepare(small)
        prepared.candidates[0].call()
        times: list[float] = []
        while len(times) < PROBE_LAUNCHES and sum(times) < 1.0:
            start = time.perf_counter()
            prepared.candidates[0].call()
            times.append(time.perf_counter() - start)
        self.learn(small, min(times))
        session.close()


def _kind(case: Case) -> Kind:
    return case.op, case.precision_name, case.backend


def _words(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


ESTIMATE_SAMPLES = 3
# A sheet's rate is at a boost clock that cards may pass: GH100 by 8 %, GeForce by up to 20 %.
CLOCK_ABOVE_SHEET = 1.25
QUICK_S = 0.02  # a launch up to this long is checked between two blocks too
WRONG = "wrong result"
UNMANAGED = "unmanaged"  # the regime of a CPU, whose clock is not controlled

Announce = Callable[[str, str], None]  # (case key, stage): a sign of life, and the case at work


@dataclass
class Measurer:
    """What comparisons share: target, timer, telemetry, regime, seed, operands and known times."""

    target: Target
    timer: Timer
    telemetry: Telemetry
    regime: str
    seed: int
    search: int = NONE  # how many configurations of our kernels are timed
    tracebacks: bool = False  # of a user's kernel, to standard error
    chance: random.Random = field(default_factory=random.Random)  # when to check again
    estimator: Estimator = field(default_factory=Estimator)

    def measure(
        self,
        group: Group,
        budget_s: float,
        announce: Announce,
        *,
        checked: Mapping[str, str] = {},
        fewest: int = FEWEST_ROUNDS,
    ) -> list[Result]:
        """A result for every case of the group, in order.

        `checked`: the variants, by case, that another process has chosen and found right, so that
        only times are new. `fewest` rounds are taken, however long they take. RuntimeError only
        for an error that leaves the device unusable; the case announced last is the one to blame.
        """
        results: dict[str, Result] = {}
        ready: list[_Ready] = []
        for case in sorted(group.cases, key=self.estimator.expected_s):
            outcome = self._ready(case, budget_s, ready, announce, checked.get(case.key))
            if isinstance(outcome, Result):
                results[case.key] = outcome
            else:
                ready.append(outcome)
        if ready:
            results.update(self._take_turns(ready, budget_s, announce, fewest))
        self.timer.forget()
        self.session.close()
        return [results[case.key] for case in group.cases]

    @cached_property
    def tuner(self) -> Tuner:
        """What chooses among several ways to run a case."""
        return Tuner(self.target, self.timer, self.search)

    @cached_property
    def session(self) -> Session:
        """What holds the operands of the cases on this target."""
        return Session(self.target, self.seed)

    # ------------------------------------------------------------ one variant, before it is timed

    def _ready(
        self,
        case: Case,
        budget_s: float,
        others: Sequence[_Ready],
        announce: Announce,
        known: str | None,
    ) -> _Ready | Result:
        announce(case.key, "preparing")
        blank = Result(case, "ok", flops=case.problem.flops, min_bytes=case.min_bytes)
        try:
            OPS[case.op].check(case, self.target)
            if self.target.kind == "cpu":
                spoken_for = sum(other.variant.estimate_s for other in others)
                self.estimator.admit(case, self.target, budget_s, spoken_for)
            prepared = self.session.prepare(case, search=self.search)
            candidate, choice, error = self.tuner.choose(case, prepared, announce, known)
            blank = replace(blank, choice=choice, tuned=choice and choice.how == TUNED)
            if known is None:
                blank = self._checked(candidate, prepared, error, blank, announce)
            return self._variant(candidate, prepared, blank, announce)
        except CannotRun as error:
            return replace(blank, status="skipped", reason=str(error))
        except Exception as error:
            return self._failed(blank, error)

    def _checked(
        self,
        candidate: Candidate,
        prepared: Prepared,
        error: float | None,
        blank: Result,
        announce: Announce,
    ) -> Result:
        """What is known of the case before it is timed; its `error`, if it was checked already.
        Wrong where its result is.
        """
        case, tolerance = blank.case, blank.case.tolerance
        announce(case.key, "checking")
        error = prepared.rel_error(candidate) if error is None else error
        if not error <= tolerance:
            raise Wrong(describe_wrong(error, tolerance), error)
        total_error = prepared.total_error()
        if too_exact(case, error) and not case.problem.may_run_exactly(
            case.precision, case.backend
        ):
            reason = f"too exact for {case.precision_name} ({error:.1g}): another arithmetic ran"
            raise Wrong(reason, error)
        seen: tuple[kernel_names.KernelTime, ...] = ()
        if self.target.kind == "cuda":
            seen = kernel_names.record(candidate.call)
        names = tuple(kernel.name for kernel in seen)
        return replace(
            blank,
            rel_error=error,
            total_error=total_error,
            kernels=names or ((candidate.kernel,) if candidate.kernel else ()),
            kernels_s=tuple(k.seconds for k in seen),
            tile=candidate.tile or kernel_names.tile_of(names, case),
            tiles=candidate.tiles,
        )

    def _variant(
        self, candidate: Candidate, prepared: Prepared, blank: Result, announce: Announce
    ) -> _Ready:
        """The variant to time, with what one launch takes."""
        case = blank.case
        announce(case.key, "estimating")
        self.timer.run(candidate.call, 1)  # the first launch loads modules, which no gate can hold
        gated, queued = not candidate.launched, candidate.queued
        launch = Renewed(candidate.call, prepared.renew, gated, queued)
        once = replace(launch, renew=lambda: None)
        estimate = median(self.timer.block(once, ESTIMATE_SAMPLES).times_s)
        self.estimator.learn(case, estimate)
        variant = Variant(case.key, launch, estimate)
        again = partial(prepared.rel_error_again, candidate)
        return _Ready(replace(blank, variant=candidate.label), variant, launch, again)

    # ------------------------------------------------------------ all variants, interleaved

    def _take_turns(
        self, ready: Sequence[_Ready], budget_s: float, announce: Announce, fewest: int
    ) -> dict[str, Result]:
        by_key = {item.variant.key: item for item in ready}
        variants = [item.variant for item in ready]
        for item in ready:  # once all are checked: they share inputs, whose errors are as drawn
            item.launch.renew()  # the first loads modules, as a launch does
        # A kernel that is wrong for a while only is seen by chance: it cannot know the round.
        watched = {
            variant.key: self.chance.randint(2, INTERIM_LOOKS[0])
            for variant in variants
            if variant.estimate_s <= QUICK_S
        }

        def begin(key: str, number: int) -> None:
            if watched.get(key) == number:
                with blaming(by_key[key].variant):
                    self._check_again(by_key[key], announce)
            announce(key, f"timing, round {number}")

        sampler = interleave.InterleavedSampler(
            self.timer,
            self.regime,
            budget_s,
            during=self.telemetry.during,
            begin=begin,
            heavy=ready[0].result.flops >= LARGE_FLOPS,
            fewest=fewest,
        )
        failed: dict[str, Result] = {}
        try:
            sampler.take(variants)
        except VariantFailed as failure:  # the others start again
            for variant in variants:
                variant.blocks.clear()
            key, cause = failure.variant.key, failure.__cause__
            assert isinstance(cause, Exception)
            failed[key] = self._failed(by_key[key].result, cause)
            sound = [item for item in ready if item.variant is not failure.variant]
            return failed | (self._take_turns(sound, budget_s, announce, fewest) if sound else {})
        heavy = sampler.plan(variants) is HEAVY
        regime = self.regime if self.target.kind == "cuda" else UNMANAGED
        timed: dict[str, Result] = {}
        for key, item in by_key.items():
            state = self.telemetry.summary(key)
            measurement = measurement_of(item.variant, self.timer, regime, state, heavy)
            try:
                self._check_again(item, announce)
                if reason := too_fast(item.result, measurement.median_s, self.target):
                    raise Wrong(reason, item.result.rel_error)
            except Exception as error:
                failed[key] = self._failed(item.result, error)
            else:
                timed[key] = replace(item.result, measurement=measurement)
        both = [*timed.values()]
        return failed | {key: with_ratios(result, both) for key, result in timed.items()}

    def _check_again(self, item: _Ready, announce: Announce) -> None:
        """Wrong where a timed sample leaves a wrong result, or work that is not done yet."""
        tolerance = item.result.case.tolerance
        announce(item.variant.key, "checking again")
        try:
            error = item.rel_error_again(
                lambda launch: self.timer.block(replace(item.launch, launch=launch), 1)
            )
        except LeftBehind:
            reason = f"{types.LEFT_WORK}: work was left on another stream"
            raise Wrong(reason, item.result.rel_error) from None
        if not error <= tolerance:
            reason = describe_wrong(error, tolerance).removeprefix(WRONG)
            raise Wrong(types.TURNED_WRONG + reason, error)

    def _failed(self, result: Result, error: Exception) -> Result:
        """The result of a variant that raised or is wrong. With `tracebacks`, what a kernel of the
        user's raised is printed.
        """
        raise_if_dead(error)
        case, rel_error = result.case, result.rel_error
        if isinstance(error, Wrong):
            rel_error = error.rel_error
        elif self.tracebacks and OWN in case.backend:
            traceback.print_exception(error)
        reason = describe_failure(error, case)
        return replace(result, status="failed", reason=reason, rel_error=rel_error)


@dataclass
class _Ready:
    """A case that passed its check, its variant to time, and a check for afterwards."""

    result: Result
    variant: Variant
    launch: Renewed
    rel_error_again: Callable[[Callable[[Launch], object]], float]


class Wrong(Exception):
    """What a variant computed, or its time, cannot be right. `rel_error` is None if not finite."""

    def __init__(self, reason: str, rel_error: float | None) -> None:
        super().__init__(reason)
        self.rel_error = rel_error if rel_error is not None and math.isfinite(rel_error) else None


def measurement_of(
    variant: Variant, timer: Timer, regime: str, state: TelemetrySummary, heavy: bool
) -> Measurement:
    """The samples of a variant, less the timer's overhead, and the device's state meanwhile.

    `heavy` says that the device was busy all the time; then energy per launch is power times time.
    """
    blocks = [[t - timer.overhead_s for t in block.times_s] for block in variant.blocks]
    times = [round(t, types.TIME_DECIMALS) for block in blocks for t in block]
    clocks = [block.sm_clock_mhz for block in variant.blocks if block.sm_clock_mhz]
    every = len(clocks) == len(blocks)
    centre = median(times)
    return Measurement(
        times_s=tuple(times),
        blocks=tuple(len(block) for block in blocks),
        median_s=centre,
        ci95_s=median_interval(blocks, timer.resolution_s),
        timer=timer.name,
        l2=timer.l2,
        regime=regime,
        timer_overhead_s=timer.overhead_s,
        timer_resolution_s=timer.resolution_s,
        sm_clock_mhz=sum(clocks) / len(clocks) if clocks else state.sm_clock_mhz,
        power_w=state.power_w,
        energy_j=state.power_w * centre if state.power_w and heavy else None,
        temperature_c=state.temperature_c,
        throttle=state.throttle,
        clocks_mhz=tuple(round(clock, 1) for clock in clocks) if every else (),
    )


def too_exact(case: Case, error: float) -> bool:
    """Whether a relative error is too small for the arithmetic of the precision on random data."""
    return error < case.precision.least_error and case.data in ("normal", "uniform")


def too_fast(result: Result, seconds: float, target: Target) -> str | None:
    """Why the time cannot be true: its rate is above the card's datasheet rate by more than its
    clock can be. None where it can, and for a card or a precision without a sheet.
    """
    card, case = find_card(target.name), result.case
    peak = card and card.peak(case.precision)
    if not peak:
        return None
    # A convolution by FFT or Winograd multiplies less, at least once an output and channel.
    problem = case.problem
    taps = problem.shape.r * problem.shape.s if isinstance(problem, Conv) else 1
    most = CLOCK_ABOVE_SHEET * taps * peak
    if seconds > 0 and result.flops / seconds <= most:
        return None
    unit = "TOP/s" if case.precision.storage == "int8" else "TFLOP/s"
    return f"{types.TOO_FAST}: {most / 1e12:.0f} {unit} in {case.precision_name} at most"


def describe_wrong(error: float, tolerance: float) -> str:
    """The reason, in words, of a wrong result; errors are relative to float64."""
    if not math.isfinite(error):
        return f"{WRONG}: some elements are NaN or were not written"
    return f"{WRONG}: relative error {error:.2g} against float64, tolerance {tolerance:g}"


def describe_failure(error: Exception, case: Case) -> str:
    """The reason, in words, of a case that raised this error."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        need_gb = case.min_bytes / 1e9
        reason = f"out of memory: the tensors alone take {need_gb:.1f} GB"
        others = held_by_others()
        return f"{reason}; {others}" if others else f"{reason}; try a smaller problem"
    own = OWN in case.backend and not isinstance(error, Wrong)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and case.precision.storage == "bfloat16"
    hint = "; Triton's interpreter gets bfloat16 wrong" * (interpreted and isinstance(error, Wrong))
    return (described(error) if own else first_line(error)) + hint
