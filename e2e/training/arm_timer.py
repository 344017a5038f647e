"""Times the arms of one comparison interleaved, then their phases. Runs in the child process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from e2e.case import TrainCase
from e2e.data.loaders.device_copy import FixedBatch
from e2e.data.types import Loader
from e2e.results.exchange import Exchange
from e2e.results.types import Spread, State, StepTimes, Training
from e2e.training.arms import LOCAL, Announce, Arms, Held, Task
from e2e.training.distributed.exchange import bytes_of, copies_of, curve_of, exchange_of
from e2e.training.distributed.ranks import Ranks
from e2e.training.step_timer import (
    HOST_STEPS,
    PHASE_STEPS,
    PROFILE_STEPS,
    Bursts,
    HostSpeed,
    SpeedByTurn,
    StepBlock,
    Tally,
    batches_per_s,
    busy_time,
    host_time,
    time_phases,
)
from kernels.case import Target
from kernels.error_words import one_line
from microbench import fmt
from microbench.device.telemetry import Telemetry
from microbench.errors import UserError
from microbench.results.types import TIME_DECIMALS, Warning
from microbench.timing import FEWEST_ROUNDS
from microbench.timing.interleave import INTERIM_LOOKS, Arm, ArmFailed, Pace, Turns
from microbench.timing.stats import median, median_interval
from microbench.timing.timers import Launch, Timer

# Of a turn's seconds: at most 0.6 of timed steps after 0.2 to warm up, which is enough for the
# median of a turn to be known to a fraction of a per cent; less when the budget is short.
TURN_S, WARM_SHARE = 0.8, 0.25
ROUNDS = INTERIM_LOOKS[0]  # that a budget is meant to last for
# Of a case that is fed: some bursts of its workers, after what lay ready has been thrown away.
FED_TURN_S, FED_WARM_SHARE, FED_BURSTS = 4.0, 0.25, 4
LOOK_S = 1.0  # for each closer look at steps, where they are long
FEWEST_LOOKED_AT = 3  # of them, on a GPU
CPU_BLOCK_S = 2.0
CPU_PHASE_STEPS = 2
BEGIN, RUN, BLOCK, DONE = "begin", "run", "block", "done"  # what rank 0 tells the others


class ArmTimer(Arms):
    """Arms that can be timed interleaved; they stay set up, to train to convergence afterwards."""

    def __init__(self, task: Task, target: Target, telemetry: Telemetry) -> None:
        super().__init__(task, target)
        self.telemetry = telemetry
        self._turn = ""  # the key of what has the turn

    def time(
        self, budget_s: float, announce: Announce, host_speed: HostSpeed | None = None
    ) -> list[Training]:
        """The held arms with times, state and phases; `budget_s` is seconds of timing in all.

        An arm that raises is "failed", the others go on. RuntimeError after a fault that the device
        does not survive; UserError for broken strict data. With a `host_speed`, each arm's slowdown
        is noted.
        """
        failed: list[Training] = []
        speeds: SpeedByTurn | None = None
        while self.held:
            speeds = SpeedByTurn(host_speed) if host_speed else None
            try:
                self._take_turns(budget_s, announce, speeds)
                break
            except ArmFailed as failure:
                failed.append(self._dropped(failure))
            finally:
                if host_speed:
                    host_speed.forget()
        for key in list(self.held):
            held = self.held[key]
            announce(key, "timing phases")
            held.training = self._timed(held, speeds.of(key) if speeds else None)
            try:
                with self._part(exchanges=True):
                    held.training = self._looked_closer(held.training)
            except UserError:
                raise
            except Exception as error:
                self.raise_if_dead(error)
                held.training = replace(held.training, warnings=(_unseen(held.training, error),))
        return [*(held.training for held in self.held.values()), *failed]

    def _take_turns(self, budget_s: float, announce: Announce, speeds: SpeedByTurn | None) -> None:
        def begin(key: str, number: int) -> None:
            held = self._of_turn(key)
            if self.ranks and self.ranks.leads:
                self.ranks.tell((BEGIN, key, number))
            if speeds:
                # The first turn of all only warms the device.
                speeds.begin(key if number else "")
            self._equalise()
            self._turn = key
            held.trainer.switch()
            announce(held.arm.key, f"timing, round {number}{_rate_so_far(held)}")
            # Whoever waits for its loader must not live on what came in another arm's turn; others
            # have batches ready at all times, and workers that fill up would only slow them.
            if len(self.held) > 1:
                held.feed.skip_ready() if held.waits else held.feed.refill()

        self._forget_times()
        self.start_loading()
        cases = [held.training.case for held in self.held.values()]
        fed = any(case.fed for case in cases)
        # A pinned batch is timed as fed ones are, or their difference would be the stopwatch's.
        in_bursts = fed or any(case.loader == "pinned" for case in cases)
        workers = max(case.workers for case in cases)
        timer: Timer = self._bursts(workers) if in_bursts else self.timer
        arms = {arm.key: arm for held in self.held.values() for arm in held.arms}
        if self.ranks:
            timer = TogetherTimer(timer, self.ranks)
        if self.ranks and not self.ranks.leads:
            self._follow(arms, timer, begin)
        else:
            Turns(
                timer, "sustained", budget_s, during=self.telemetry.during, begin=begin,
                own_pace=self._pace(budget_s, fed),
            ).take(list(arms.values()))  # fmt: skip
            if self.ranks:
                self.ranks.tell((DONE,))
        self._equalise()
        if speeds:
            speeds.begin("")

    def _forget_times(self) -> None:
        self._turn = ""
        for held in self.held.values():
            for arm in held.arms:
                arm.blocks.clear()
            held.skipped_before = held.trainer.skipped_steps

    def _follow(
        self, arms: Mapping[str, Arm], timer: Timer, begin: Callable[[str, int], None]
    ) -> None:
        """Take the turns that rank 0 takes."""
        assert self.ranks

        def run(times: int) -> None:
            timer.run(arms[self._turn].launch, times)

        def block(samples: int) -> None:
            arm = arms[self._turn]
            arm.blocks.append(timer.block(arm.launch, samples))

        follow(self.ranks, begin, run, block)

    def _of_turn(self, key: str) -> Held:
        """The arm that takes a turn, or whose exchange is looked at in it."""
        return next(held for held in self.held.values() if any(a.key == key for a in held.arms))

    def _equalise(self) -> None:
        """After steps without an exchange: give every rank the weights of rank 0 again."""
        if self._turn.endswith(LOCAL):
            self._of_turn(self._turn).trainer.equalise()

    def _bursts(self, workers: int) -> Bursts:
        def tally() -> Tally:
            parts = [held.feed.tally for held in self.held.values()]
            came_s = max((part.came_s for part in parts), key=len)  # arms share a loader
            return Tally(sum(part.waited_s for part in parts), came_s)

        return Bursts(self.timer, workers, tally)

    def _pace(self, budget_s: float, fed: bool) -> Pace:
        arm_s = budget_s / sum(len(held.arms) for held in self.held.values())
        if not self.cuda:
            block_s = min(CPU_BLOCK_S, arm_s / FEWEST_ROUNDS)
            return Pace(settle_s=0.0, warm_s=0.0, block_s=block_s, least=1, most=100)
        turn_s = self._fed_turn_s(arm_s) if fed else min(TURN_S, arm_s / ROUNDS)
        warm_s = (FED_WARM_SHARE if fed else WARM_SHARE) * turn_s
        least = 1 if fed else 3  # `Bursts` adds what makes a round of the workers whole
        return Pace(settle_s=TURN_S, warm_s=warm_s, block_s=turn_s - warm_s, least=least, most=400)

    def _fed_turn_s(self, arm_s: float) -> float:
        """Seconds per turn of fed arms, at most FED_TURN_S: each turn has some bursts.

        Beside discarded batches, as long as possible.
        """
        cases = [(held.training.case, held.arm.estimate_s) for held in self.held.values()]
        burst_s = max(case.workers * estimate_s for case, estimate_s in cases)
        cached = any(case.cached for case, _ in cases)
        wanted_s = FED_TURN_S if cached else max(arm_s / ROUNDS, FED_BURSTS * burst_s)
        return min(FED_TURN_S, arm_s / FEWEST_ROUNDS, wanted_s)

    def _dropped(self, failure: ArmFailed) -> Training:
        cause = failure.__cause__
        assert isinstance(cause, Exception)
        if isinstance(cause, UserError):
            raise cause  # strict data: the run ends
        self.raise_if_dead(cause)
        training = replace(
            self.held[failure.arm.key].training, status="failed", reason=one_line(cause)
        )
        self.drop(failure.arm.key)
        return training

    def _timed(self, held: Held, host_pace: float | None) -> Training:
        blocks = [block for block in held.arm.blocks if isinstance(block, StepBlock)]
        times = [block.times_s for block in blocks]
        steps = StepTimes(
            times_s=_rounded(t for block in times for t in block),
            wall_times_s=_rounded(t for block in blocks for t in block.wall_times_s),
            blocks=tuple(len(block) for block in times),
            median_s=median([t for block in times for t in block]),
            ci95_s=median_interval(times, self.timer.resolution_s),
            wall_s=sum(block.wall_s for block in blocks),
            wall_steps=sum(block.wall_steps for block in blocks),
            host_pace=host_pace,
        )
        if held.training.case.fed:
            steps = _fed(steps, blocks, held.training.case)
        clocks = [block.sm_clock_mhz for block in blocks if block.sm_clock_mhz]
        seen = self.telemetry.summary(held.arm.key)
        busy = seen.utilization_pct
        state = State(
            gpu_util_pct=Spread(sum(busy) / len(busy), min(busy), max(busy)) if busy else None,
            sm_clock_mhz=sum(clocks) / len(clocks) if clocks else seen.sm_clock_mhz,
            power_w=seen.power_w,
            temperature_c=seen.temperature_c,
            throttle=seen.throttle,
        )
        skipped = held.trainer.skipped_steps - held.skipped_before
        if self.ranks:  # the sensors are those of one GPU
            state = replace(state, power_w=None)
        return replace(
            held.training, steps=steps, state=state, skipped_steps=skipped,
            exchange=self._exchange(held),
        )  # fmt: skip

    def _exchange(self, held: Held) -> Exchange | None:
        """What exchanging gradients costs the arm's step; None without ranks."""
        found = held.exchange
        if self.ranks is None or found is None:
            return None
        arms = (held.arm, found.local, found.alone)
        rounds = [[median(block.times_s) for block in arm.blocks] for arm in arms]
        local = [block.ranks_s for block in found.local.blocks if isinstance(block, StepBlock)]
        ranks_s = [median(times) for times in zip(*local, strict=True)]
        sizes = [bytes_of(bucket) for bucket in found.buckets]
        return exchange_of(self.ranks.world, sizes, list(zip(*rounds, strict=True)), ranks_s)

    def step_alone(self, key: str) -> Callable[[], object]:
        """An arm's step, call by call and without its loader; the process is switched to it."""
        held = self.held[key]
        held.trainer.switch()
        return _without_loading(held, uncaptured=True)

    def _looked_closer(self, training: Training) -> Training:
        """Add measurements that would slow the timed steps, taken afterwards."""
        held = self.held[training.case.key]
        held.trainer.switch()
        assert training.steps is not None
        count = PHASE_STEPS if self.cuda else CPU_PHASE_STEPS
        fit = int(LOOK_S / (training.step_s or training.steps.median_s))
        fit = self.ranks.same(fit) if self.ranks else fit
        count = max(CPU_PHASE_STEPS, min(count, fit))
        phases = time_phases(lambda clock: held.trainer.step(held.feed, clock), self.cuda, count)
        steps = training.steps
        step = _without_loading(held)
        if training.case.fed and not training.case.cached:
            held.feed.refill()  # busy workers slow the measurement
            steps = replace(steps, unfed_s=median(self.timer.block(step, count).times_s))
        if self.cuda:
            looked_at = max(FEWEST_LOOKED_AT, min(PROFILE_STEPS, fit))
            exchange = held.training.exchange
            most_s = exchange.longest_wait_s if exchange else 0.0
            busy_s, launches = busy_time(step, looked_at, most_s)
            # An unfused optimizer makes the loss scaler wait for the device: no time of its own.
            host_steps = max(FEWEST_LOOKED_AT, min(HOST_STEPS, fit))
            waits = held.trainer.optimizer.waits
            host_s = None if waits else host_time(step, host_steps)
            steps = replace(steps, busy_s=busy_s, launches=launches, host_s=host_s)
        return replace(training, phases=phases, steps=steps, exchange=self._with_curve(held))

    def _with_curve(self, held: Held) -> Exchange | None:
        """What is known of the arm's exchange, with its all-reduce by size and its copies."""
        known, timed = held.training.exchange, held.exchange
        if self.ranks is None or known is None or timed is None or self.ranks.world == 1:
            return known
        curve = curve_of(timed.buckets, known.alone_s, self.timer, self.ranks)
        weights = [one.detach() for one in held.trainer.spread.parameters() if one.requires_grad]
        copies = copies_of(weights, timed.buckets, self.timer, self.ranks)
        return replace(known, curve=curve, copies=copies)


def _fed(steps: StepTimes, blocks: Sequence[StepBlock], case: TrainCase) -> StepTimes:
    """The steps with the fields of fed cases: waits, and discarded batches."""
    waited_s = sum(block.waited_s for block in blocks)
    # Of the time from the first timed launch on, as what came is counted.
    came = [(sum(block.wall_times_s), block.came_s) for block in blocks]
    came_per_s = batches_per_s(came, case.workers)
    return replace(
        steps,
        wait_s=waited_s / steps.wall_steps,
        loaded_per_s=came_per_s * case.batch if came_per_s else None,
    )


def _without_loading(held: Held, *, uncaptured: bool = False) -> Callable[[], object]:
    """The arm's step; of a fed case, on a preloaded batch."""
    feed: Loader = held.feed
    if held.training.case.fed:
        feed = FixedBatch(*held.feed.to_device(next(held.feed)))
    return lambda: held.trainer.step(feed, uncaptured=uncaptured)


def _rate_so_far(held: Held) -> str:
    """ ": 6137 img/s", from the last turn."""
    if not held.arm.blocks:
        return ""
    per_s = held.training.step_units / median(held.arm.blocks[-1].times_s)
    return f": {fmt.number(per_s)} {held.training.unit}/s"


def _unseen(training: Training, error: Exception) -> Warning:
    return Warning(
        f"{training.case.recipe}: phases and kernels were not recorded",
        one_line(error),
        "the step times are complete; run again for phases and kernels",
    )


def _rounded(times: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(t, TIME_DECIMALS) for t in times)


# ---------------------------------------------------------------- over several ranks


class TogetherTimer:
    """A `Timer` whose blocks and runs are of all ranks. A block is that of the slowest one.

    Where a rank fails RanksLost is raised on all, or UserError if that was the reason.
    """

    overhead_s = 0.0

    def __init__(self, timer: Timer, ranks: Ranks) -> None:
        self._timer, self._ranks = timer, ranks
        self.name, self.l2 = timer.name, timer.l2
        self.resolution_s, self.flush_s = timer.resolution_s, timer.flush_s

    def block(self, launch: Launch, samples: int) -> StepBlock:
        """Time `samples` steps on every rank; see `StepBlock`."""
        if self._ranks.leads:
            self._ranks.tell((BLOCK, samples))
        with self._ranks.part(exchanges=True):
            own = self._timer.block(launch, samples)
        assert isinstance(own, StepBlock)
        blocks = self._ranks.gather(own)
        medians = [median(block.times_s) for block in blocks]
        return replace(blocks[medians.index(max(medians))], ranks_s=tuple(medians))

    def run(self, launch: Launch, times: int) -> None:
        """Run steps untimed on every rank."""
        if self._ranks.leads:
            self._ranks.tell((RUN, times))
        with self._ranks.part(exchanges=True):
            self._timer.run(launch, times)

    def forget(self) -> None:
        """Nothing is kept."""


def follow(
    ranks: Ranks,
    begin: Callable[[str, int], None],
    run: Callable[[int], None],
    block: Callable[[int], None],
) -> None:
    """Do what rank 0 says, on another rank, until its turns are over. RanksLost, UserError."""
    does = {BEGIN: begin, RUN: run, BLOCK: block}
    while (message := ranks.hear())[0] != DONE:
        does[message[0]](*message[1:])
