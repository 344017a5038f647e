"""How arms take turns, with made-up times and a made-up clock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from samples.measuring import PlantedTimer

from microbench.timing import FEWEST_OF_SEVERAL, FEWEST_ROUNDS
from microbench.timing.interleave import (
    BURST_IDLE_FACTOR,
    BURST_SAMPLES,
    INTERIM_LOOKS,
    MAX_ROUNDS,
    Arm,
    ArmFailed,
    Turns,
)
from microbench.timing.interleave import HEAVY as HEAVY_PACE
from microbench.timing.stats import MAX_INTERVAL_PCT, half_width_pct, median, median_interval
from microbench.timing.timers import Block, Launch

HEAVY = 1e-3
LIGHT = 5e-6


@dataclass
class FakeClock:
    """Time passes only when somebody sleeps or the timer takes samples."""

    seconds: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


@dataclass
class FakeTimer(PlantedTimer):
    """Takes made-up samples and notes who was asked for how many."""

    clock: FakeClock = field(default_factory=FakeClock)
    times: dict[str, Callable[[int], float]] = field(default_factory=dict)
    taken: list[tuple[str, int]] = field(default_factory=list)
    warmed: list[tuple[str, int]] = field(default_factory=list)

    def block(self, launch: Launch, samples: int) -> Block:
        key = str(launch())
        turn = sum(name == key for name, _ in self.taken)
        self.taken.append((key, samples))
        seconds = self.times[key](turn)
        self.clock.seconds += samples * (seconds + self.flush_s)
        return Block((seconds,) * samples, 1500.0 + turn)

    def run(self, launch: Launch, times: int) -> None:
        key = str(launch())
        self.warmed.append((key, times))
        self.clock.seconds += times * self.times[key](0)


def constant(seconds: float) -> Callable[[int], float]:
    return lambda _: seconds


def jumping(seconds: float, share: float) -> Callable[[int], float]:
    return lambda turn: seconds * (1 + share * (-1) ** turn)


def arms_of(*estimates: float) -> list[Arm]:
    return [Arm(f"arm{i}", lambda i=i: f"arm{i}", s) for i, s in enumerate(estimates)]


def set_up(
    times: dict[str, Callable[[int], float]], **changes: object
) -> tuple[FakeClock, FakeTimer]:
    timer = FakeTimer(times=times, **changes)  # type: ignore[arg-type]
    return timer.clock, timer


def rounds_of(timer: FakeTimer, count: int) -> list[list[str]]:
    names = [name for name, _ in timer.taken]
    return [names[i : i + count] for i in range(0, len(names), count)]


def test_every_arm_takes_part_in_every_round_in_changing_order() -> None:
    clock, timer = set_up({f"arm{i}": jumping(LIGHT, 0.3) for i in range(4)})
    arms = arms_of(*[LIGHT] * 4)
    rounds = Turns(timer, "sustained", 1e9, clock).take(arms)
    orders = rounds_of(timer, 4)
    assert len(orders) == rounds
    assert all(sorted(order) == ["arm0", "arm1", "arm2", "arm3"] for order in orders)
    assert len({tuple(order) for order in orders}) > len(orders) / 4
    for first in range(4):  # nobody always goes first, or always after the same other
        assert 0 < sum(order[0] == f"arm{first}" for order in orders) < rounds
    followers = {pair for order in orders for pair in itertools.pairwise(order)}
    assert len(followers) == 12
    assert all(len(arm.blocks) == rounds for arm in arms)


def test_every_comparison_has_an_order_of_its_own() -> None:
    """Else what happens in one turn of a comparison would fall to the same variant every time."""

    def orders(**changes: random.Random) -> list[list[str]]:
        clock, timer = set_up({f"arm{i}": jumping(LIGHT, 0.3) for i in range(2)})
        Turns(timer, "sustained", 1e9, clock, **changes).take(arms_of(LIGHT, LIGHT))
        return rounds_of(timer, 2)

    assert len({str(orders()) for _ in range(5)}) == 5
    assert orders(chance=random.Random(1)) == orders(chance=random.Random(1))
    firsts = [orders()[0][0] for _ in range(40)]
    assert 5 < firsts.count("arm0") < 35


def test_stops_when_every_median_is_known_to_half_a_per_cent() -> None:
    clock, timer = set_up({"arm0": jumping(HEAVY, 0.008), "arm1": constant(HEAVY)})
    arms = arms_of(HEAVY, HEAVY)
    rounds = Turns(timer, "sustained", 1e9, clock).take(arms)
    assert INTERIM_LOOKS[0] < rounds < MAX_ROUNDS
    blocks = [block.times_s for block in arms[0].blocks]

    def width(upto: int) -> float:
        interval = median_interval(blocks[:upto])
        assert interval is not None
        return half_width_pct(median([t for b in blocks[:upto] for t in b]), interval)

    assert width(rounds) <= MAX_INTERVAL_PCT
    assert rounds in INTERIM_LOOKS
    assert all(width(look) > MAX_INTERVAL_PCT for look in INTERIM_LOOKS if look < rounds)


@pytest.mark.parametrize(("noise", "rounds"), [(0.2, MAX_ROUNDS), (0.0, INTERIM_LOOKS[0])])
def test_one_noisy_arm_keeps_all_at_it_and_steady_ones_stop_at_once(
    noise: float, rounds: int
) -> None:
    clock, timer = set_up({"arm0": jumping(HEAVY, noise), "arm1": constant(LIGHT)})
    arms = arms_of(HEAVY, LIGHT)
    assert Turns(timer, "sustained", 1e9, clock).take(arms) == rounds
    assert [len(arm.blocks) for arm in arms] == [rounds, rounds], "rounds pair up"


@pytest.mark.parametrize("fewest", [1, FEWEST_OF_SEVERAL, FEWEST_ROUNDS, 5])
@pytest.mark.parametrize("budget_s", [0.0, 1e-9, 25.0])
def test_stops_at_the_budget_but_never_before_the_fewest_rounds(
    budget_s: float, fewest: int
) -> None:
    clock, timer = set_up({"arm0": jumping(1.0, 0.5), "arm1": constant(1.0)}, name="clock")
    arms = arms_of(1.0, 1.0)
    rounds = Turns(timer, "sustained", budget_s, clock, fewest=fewest).take(arms)
    assert [len(arm.blocks) for arm in arms] == [rounds, rounds]
    if budget_s < 1:
        assert rounds == fewest
    else:
        assert rounds > fewest
        assert budget_s <= clock.seconds <= budget_s + 3 * 2.5  # at most one round too many


def warm_s(timer: FakeTimer, name: str) -> float:
    return sum(n * timer.times[name](0) for who, n in timer.warmed if who == name)


def test_one_heavy_arm_makes_the_whole_comparison_heavy() -> None:
    """Arms that are warmed differently would be compared at different clocks."""
    clock, timer = set_up({"arm0": constant(HEAVY), "arm1": constant(LIGHT)})
    rounds = Turns(timer, "sustained", 1e9, clock).take(arms_of(HEAVY, LIGHT))
    for name in ("arm0", "arm1"):
        assert warm_s(timer, name) >= 0.99 * rounds * HEAVY_PACE.warm_s
        assert dict(timer.taken)[name] <= HEAVY_PACE.most
    clock, timer = set_up({"arm0": constant(LIGHT)})
    light = Turns(timer, "sustained", 1e9, clock).take(arms_of(LIGHT))
    assert warm_s(timer, "arm0") < 0.3 * light * HEAVY_PACE.warm_s
    clock, timer = set_up({"arm0": constant(LIGHT)})
    Turns(timer, "sustained", 1e9, clock, heavy=True).take(arms_of(LIGHT))
    assert warm_s(timer, "arm0") >= HEAVY_PACE.warm_s


@pytest.mark.parametrize(("launch_s", "flush_s"), [(2.0, 0.0), (1e-4, 1.0)])
def test_a_very_slow_launch_or_flush_is_taken_once_a_round(launch_s: float, flush_s: float) -> None:
    clock, timer = set_up({"arm0": constant(launch_s)}, flush_s=flush_s, name="clock")
    Turns(timer, "sustained", 1.0, clock).take(arms_of(launch_s))
    assert [n for _, n in timer.taken] == [1, 1, 1]


def test_the_first_round_of_a_heavy_comparison_is_not_kept() -> None:
    """The first block of each falls into a swing of the power limit."""
    names = ("arm0", "arm1")
    clock, timer = set_up(dict.fromkeys(names, lambda turn: HEAVY * (1.0 if turn else 1.4)))
    arms = arms_of(HEAVY, HEAVY)
    rounds = Turns(timer, "sustained", 1e9, clock).take(arms)
    for arm in arms:
        assert len(arm.blocks) == rounds
        assert {t for block in arm.blocks for t in block.times_s} == {HEAVY}
    assert len(timer.taken) == 2 * (rounds + HEAVY_PACE.discarded)


def test_burst_rests_the_card_before_each_heavy_sample_and_sustained_never_sleeps() -> None:
    """And a CPU's clock needs no warming."""
    clock, timer = set_up({"arm0": constant(HEAVY)})
    arms = arms_of(HEAVY)
    rounds = Turns(timer, "burst", 1e9, clock).take(arms)
    assert timer.warmed == []
    assert all(n == 1 for _, n in timer.taken)
    assert len(clock.slept) == len(timer.taken) == rounds * BURST_SAMPLES
    assert min(clock.slept) >= BURST_IDLE_FACTOR * HEAVY
    assert all(len(block.times_s) == BURST_SAMPLES for block in arms[0].blocks)
    assert arms[0].blocks[0].sm_clock_mhz == pytest.approx(1501.0)
    for name in ("events", "clock"):
        clock, timer = set_up({"arm0": constant(HEAVY)}, name=name)
        Turns(timer, "sustained", 1.0, clock).take(arms_of(HEAVY))
        assert clock.slept == []
        assert bool(timer.warmed) == (name == "events")


def test_telemetry_and_progress_follow_the_turns() -> None:
    clock, timer = set_up({"arm0": constant(LIGHT), "arm1": constant(LIGHT)})
    watched: list[str] = []
    told: list[tuple[str, int]] = []

    @contextmanager
    def during(key: str) -> Iterator[None]:
        before = len(timer.taken)
        yield
        assert [name for name, _ in timer.taken[before:]] == [key]
        watched.append(key)

    def begin(key: str, number: int) -> None:
        told.append((key, number))

    turns = Turns(timer, "sustained", 1.0, clock, during=during, begin=begin)
    rounds = turns.take(arms_of(LIGHT, LIGHT))
    assert watched == [name for name, _ in timer.taken]
    # Round 0 settles the card; after it, whoever was announced last is the one that is timed.
    assert told[0] == ("arm0", 0)
    assert [key for key, _ in told[1:]] == watched
    assert [number for _, number in told[1:]] == [i for i in range(1, rounds + 1) for _ in "ab"]


def test_a_launch_that_fails_is_not_hidden() -> None:
    clock, timer = set_up({"arm0": constant(LIGHT)})

    def broken() -> object:
        raise RuntimeError("illegal instruction")

    with pytest.raises(ArmFailed, match="bad") as caught:
        Turns(timer, "sustained", 1.0, clock).take([Arm("bad", broken, LIGHT)])
    assert str(caught.value.__cause__) == "illegal instruction"
    calls = itertools.count()

    def breaks_soon() -> object:
        if next(calls) > 5:
            broken()
        return "arm1"

    clock, timer = set_up({"arm0": constant(HEAVY), "arm1": constant(HEAVY)})
    arms = [*arms_of(HEAVY), Arm("arm1", breaks_soon, HEAVY)]
    with pytest.raises(ArmFailed, match="arm1"):  # also in the round that is not kept
        Turns(timer, "sustained", 1.0, clock).take(arms)
