"""How the host's pace is summed up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tracing import case_of

from e2e.arms import Task
from e2e.datasets.synthetic import Synthetic
from e2e.measure import Trainer
from e2e.networks import find
from e2e.predict import cuda_replay, pace
from e2e.predict.host_times import LEAST_PASSES, MOST_BEHIND_S, PASSING_S, Ready, host_times
from e2e.predict.pace import Between, Looks, Noted, SmallStepPace, Steady, pace_of
from e2e.predict.replay import Counted, OpTime
from e2e.predict.spread import Spread, spread
from e2e.predict.threads import forward_thread
from e2e.recipes import switch_tf32
from microbench.device import describe, open_telemetry
from microbench.interleave import FEWEST_ROUNDS

PACES = st.lists(
    st.tuples(st.floats(0.0, 60.0), st.floats(0.1, 10.0)), min_size=2, max_size=200
)  # fmt: skip


@given(PACES)
def test_most_values_lie_between_low_and_high(seen: list[tuple[float, float]]) -> None:
    told, found = spread(seen), [pace for _, pace in seen]
    assert min(found) <= told.low <= told.middle <= told.high <= max(found)
    outside = [at_s for at_s, pace in seen if not told.low <= pace <= told.high]
    assert weight_of(outside, seen) <= 0.1 * (1 + 1e-9)


def weight_of(chosen: list[float], seen: list[tuple[float, float]]) -> float:
    """Their share of all seconds that were looked at."""
    seconds = [int(at_s) for at_s, _ in seen]
    return sum(1 / seconds.count(int(at_s)) for at_s in chosen) / len(set(seconds))


def test_the_spread_of_known_values() -> None:
    assert spread([(float(at), float(1 + at)) for at in range(100)]) == Spread(50.0, 5.0, 95.0)
    assert spread([(0.1, 2.0), (0.2, 3.0)]) == Spread(2.0, 2.0, 3.0)


def test_a_second_counts_as_much_as_another_however_often_it_was_looked_at() -> None:
    """150 looks within two slow seconds, one in each of seven quick ones."""
    seen = [(float(at), 2.0) for at in range(7)]
    seen += [(7 + i / 75, 3.0) for i in range(150)]
    assert spread(seen) == Spread(2.0, 2.0, 3.0)


def test_a_cpu_has_no_pace_of_its_own() -> None:
    pace = pace_of(torch.device("cpu"))
    assert isinstance(pace, Steady)
    noted = Noted(pace)
    noted.look()
    assert {found for _, found in noted.take()} == {1.0}
    assert spread(()) == Spread(1.0, 1.0, 1.0)


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> SmallStepPace:
    """As on a GPU, by a recipe that a CPU has, and with nothing to wait for."""
    monkeypatch.setattr(pace, "RECIPE", "amp-bf16")
    monkeypatch.setattr(SmallStepPace, "look_s", 0.2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return SmallStepPace(torch.device("cpu"))


@pytest.mark.parametrize("tf32", [True, False])
def test_the_switches_of_the_recipe_that_is_measured_stay(
    on_a_cpu: SmallStepPace, tf32: bool
) -> None:
    switch_tf32(tf32)
    matmul = torch.get_float32_matmul_precision()
    assert on_a_cpu.now() > 0
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.get_float32_matmul_precision() == matmul


def test_a_slower_clock_is_a_slower_pace(
    on_a_cpu: SmallStepPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of the test's own, which a step moves on by as much as it is told to."""
    clock = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    for took_s in (pace.REFERENCE_S, 3 * pace.REFERENCE_S):

        def step(took_s: float = took_s) -> None:
            clock[0] += took_s

        monkeypatch.setattr(on_a_cpu, "_searched_step", lambda step=step: step)
        assert on_a_cpu.now() == pytest.approx(took_s / pace.REFERENCE_S)
    noted = Noted(on_a_cpu)
    noted.look()
    seen = noted.take()
    assert [found for _, found in seen] == pytest.approx([3.0] * len(seen))
    assert seen[-1][0] >= seen[0][0] + 0.1


def test_a_reading_does_not_depend_on_what_was_done_before(
    on_a_cpu: SmallStepPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the six steps that follow other work are ten times as long, each a bit less."""
    clock, since = [0.0], [0]

    def step() -> None:
        since[0] += 1
        clock[0] += pace.REFERENCE_S * (1 if since[0] > 6 else 10 - since[0])

    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(on_a_cpu, "_searched_step", lambda: step)
    timed: list[float] = []
    seconds = on_a_cpu._seconds
    monkeypatch.setattr(on_a_cpu, "_seconds", lambda step: timed.append(seconds(step)) or timed[-1])
    assert on_a_cpu.now() == pytest.approx(1.0)
    since[0] = 0  # other work
    assert on_a_cpu.now() == pytest.approx(1.0)
    assert timed == pytest.approx([pace.REFERENCE_S] * 2 * pace.STEPS)


@pytest.mark.parametrize("search", [True, False])
def test_algorithms_are_searched_once_for_each_switch_and_the_switch_stays(
    on_a_cpu: SmallStepPace, monkeypatch: pytest.MonkeyPatch, search: bool
) -> None:
    searching: list[bool] = []
    made: list[torch.device] = []

    def fake_step(_network: object, _recipe: str, device: torch.device) -> Callable[[], None]:
        made.append(device)
        return lambda: searching.append(torch.backends.cudnn.benchmark)

    monkeypatch.setattr(pace, "small_step", fake_step)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", search)

    def searched(tf32: bool) -> int:
        searching.clear()
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
        on_a_cpu.now()
        assert torch.backends.cudnn.benchmark is search
        steps = pace.WARM_STEPS + pace.STEPS
        assert searching[-steps:] == [search] * steps
        assert all(searching[:-steps])
        return len(searching) - steps

    assert [searched(tf32) for tf32 in (True, False, True, False)] == [1, 1, 0, 0]
    on_a_cpu.forget()
    assert [searched(True), len(made)] == [1, 2]


def test_the_end_of_one_stretch_is_the_beginning_of_the_next() -> None:
    between = Between(Planned(1.0, 3.0, 7.0))
    assert [between.ends(), between.ends()] == [2.0, 5.0]


def test_what_was_seen_is_taken_once_and_looks_beside_are_not_in_it(
    on_a_cpu: SmallStepPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another asks for the same pace while steps are timed."""
    paces = iter((1.0, 2.0, 9.0, 3.0))
    monkeypatch.setattr(on_a_cpu, "now", lambda: next(paces))
    noted, looks = Noted(on_a_cpu), Looks(on_a_cpu)
    assert (noted.now(), noted.now()) == (1.0, 2.0)
    assert [found for _, found in noted.take()] == [1.0, 2.0]
    looks.begin("an arm")
    noted.now()
    assert [found for _, found in noted.take()] == [3.0]
    assert noted.take() == ()


def test_a_look_counts_beside_what_was_seen_before(
    on_a_cpu: SmallStepPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten quick seconds, then a look in which all is slow."""
    clock, took_s = [0.0], [pace.REFERENCE_S]

    def step() -> None:
        clock[0] += took_s[0]

    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(on_a_cpu, "_searched_step", lambda: step)
    noted = Noted(on_a_cpu)
    for second in range(10):
        clock[0] = float(second)
        noted.now()
    took_s[0] = 3 * pace.REFERENCE_S
    clock[0] = 10.0
    noted.look()
    found = spread(noted.take())
    assert found.middle == pytest.approx(1.0)
    assert found.high == pytest.approx(3.0)


class Planned(Steady):
    """Paces in the order that they are asked for."""

    def __init__(self, *paces: float) -> None:
        self.left = list(paces)

    def now(self) -> float:
        return self.left.pop(0)


def test_the_pace_of_a_turn_is_that_of_both_its_ends() -> None:
    looks = Looks(Planned(1.0, 2.0, 4.0, 3.0, 5.0, 6.0))
    for turn in ("a", "b", "a", "b", "b", ""):
        looks.begin(turn)
    assert looks.of("a") == fmean((1.5, 3.5))
    assert looks.of("b") == 4.0  # of 3, 4 and 5.5
    assert looks.of("c") is None


def test_a_trainer_notes_the_pace_of_each_arm_s_turns() -> None:
    """Ever slower by 1, of which the first turn, to warm up, has none."""
    info, network = describe("cpu"), find("cnn-cifar")
    data = Synthetic(network.input, network.classes or 0, network.tokens)
    cases = [case_of(network, 4, recipe=recipe) for recipe in ("fp32", "amp-bf16")]
    pace = Planned(*(float(number) for number in range(100)))
    with open_telemetry(info, 0.05) as telemetry:
        task = Task(network, data, seed=1, lr=None, warmup=0)
        trainer = Trainer(task, info.target(), telemetry)
        try:
            trainer.set_up(cases, lambda key, stage: None)
            found = trainer.time(0.2, lambda key, stage: None, pace)
        finally:
            trainer.close()
    looks = 100 - len(pace.left)
    paces = [t.steps.host_pace for t in found if t.steps]
    assert looks >= 2 + 2 * FEWEST_ROUNDS
    rounds = len(found[0].steps.blocks) if found[0].steps else 0
    assert looks == 2 + 2 * rounds
    # Turn n is between n and n + 1; which arm begins varies, and both take part in each round.
    assert sum(pace or 0 for pace in paces) == pytest.approx(looks - 1, abs=1.1)


def test_a_pace_that_cannot_be_seen_ends_no_measurement() -> None:
    class Full(Planned):
        def now(self) -> float:
            if len(self.left) == 1:
                raise torch.OutOfMemoryError("no room")
            return super().now()

    looks = Looks(Full(1.0, 2.0, 3.0))
    for turn in ("a", "b", "a", ""):
        looks.begin(turn)
    assert looks.of("a") is None


class Fake:
    """A replay whose launches take some time of a clock, and are noted."""

    def __init__(self, name: str, seconds: float, clock: list[float], seen: list[str]) -> None:
        self.name, self.seconds, self.clock, self.seen = name, seconds, clock, seen
        self.slower: Iterator[int] | None = None  # how many times as long the next launches take

    def launch(self) -> None:
        self.clock[0] += self.seconds * (next(self.slower) if self.slower else 1)
        self.seen.append(self.name)

    def restore(self) -> None:
        self.seen.append("restored " + self.name)


class Watched(cuda_replay.CudaStopwatch):
    """A stopwatch without a device: calls move its clock, and what is launched is noted."""

    def __init__(self) -> None:
        self.clock, self.seen = [0.0], list[str]()
        self._pace = Steady()

        def backward(work: Callable[[], Any]) -> Any:
            self.seen.append("backward:")
            return work()

        self._threads = (forward_thread, backward)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched()
    monkeypatch.setattr(cuda_replay.time, "perf_counter", lambda: made.clock[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: made.seen.append("wait"))
    return made


def met(
    watch: Watched,
    name: str,
    seconds: float,
    *places: int,
    backward: tuple[int, ...] = (),
) -> cuda_replay._Met:
    replay = Fake(name, seconds, watch.clock, watch.seen)
    counted = Counted(replay, places, frozenset(backward))  # type: ignore[arg-type]
    return cuda_replay._Met(counted, 0.0, rough_s=1e-4, scratch_bytes=0, waits=name == "waits")


def test_host_times_are_of_calls_in_the_steps_order_and_as_at_pace_1(
    watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.predict.host_times.WARM_S", 0.0)  # one untimed pass before each
    a = met(watch, "a", 1e-3, 0, 2, 3, backward=(2,))
    b = met(watch, "b", 2e-3, 1, backward=(1,))
    # Each pass between two looks: the first at pace 4, in the mean, the second at 8.
    watch._pace = Planned(2.0, 6.0, 10.0)
    a.host_s, b.host_s = host_times([a.ready, b.ready], watch._threads, watch._pace, 2)
    once = ["wait", "a", "restored a", "wait", "backward:", "wait", "b", "wait", "a",
            "restored b", "restored a", "wait", "wait", "a", "restored a", "wait"]  # fmt: skip
    assert watch.seen == 2 * 2 * once
    middle = (1 / 4 + 1 / 8) / 2
    assert [a.host_s, b.host_s] == pytest.approx([middle * 1e-3, middle * 2e-3])
    taken = cuda_replay._taken(a, [3e-3] * 7, overhead_s=0.0)
    assert taken.time.host_s == cuda_replay._rough(a).host_s == a.host_s
    assert taken.time.gpu_s == pytest.approx(3e-3 / a.launches)


def test_calls_add_up_to_what_a_pass_takes_though_another_is_slow_in_each(
    watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By medians alone they would take 6 ms of 10."""
    monkeypatch.setattr("e2e.predict.host_times.WARM_S", 0.0)
    some = [Fake("a", 2e-3, watch.clock, watch.seen) for _ in range(3)]
    for i, one in enumerate(some):
        one.slower = itertools.cycle([3 if i == n else 1 for n in range(3)])
    counted = [Counted(one, (i,)) for i, one in enumerate(some)]  # type: ignore[arg-type]
    calls = [Ready(one, 0.0) for one in counted]
    found = host_times(calls, watch._threads, Steady(), 9)
    assert found == pytest.approx([10e-3 / 3] * 3)


def test_a_pass_is_timed_when_what_was_done_before_is_no_longer_seen(watch: Watched) -> None:
    """Planted: for 25 ms after the pace is read, a launch takes ten times as long."""
    some = Fake("a", 1e-3, watch.clock, watch.seen)

    class Disturbing(Steady):
        def now(self) -> float:
            some.slower = itertools.chain([10, 10, 5], itertools.repeat(1))
            return 1.0

    call = Counted(some, (0,))  # type: ignore[arg-type]
    found = host_times([Ready(call, 0.0)], watch._threads, Disturbing(), 5)
    assert found == pytest.approx([1e-3])


def test_passes_that_take_long_are_few(watch: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.predict.host_times.WARM_S", 0.0)
    for name, seconds, passes in (("long", 0.6 * PASSING_S, LEAST_PASSES), ("short", 1e-3, 9)):
        one = met(watch, name, seconds, 0)
        host_times([one.ready], watch._threads, Steady(), 9)
        assert watch.seen.count(name) == 2 * passes


@pytest.mark.parametrize(
    ("device_s", "waits"),
    [(5e-6, 0), (20e-6, 1), (50e-6, 4)],
    ids=["keeps up", "falls behind slowly", "falls behind at once"],
)
def test_a_call_is_launched_when_the_device_has_done_about_all_before_it(
    device_s: float, waits: int, watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch takes the host 10 us, and the device `device_s`."""
    monkeypatch.setattr("e2e.predict.host_times.WARM_S", 0.0)
    done_s = [0.0]

    class Queued(Fake):
        def launch(self) -> None:
            assert done_s[0] - watch.clock[0] <= 1.001 * MOST_BEHIND_S
            super().launch()
            done_s[0] = max(done_s[0], watch.clock[0]) + device_s

    def wait() -> None:
        watch.seen.append("wait")
        watch.clock[0] = max(watch.clock[0], done_s[0])

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    call = Counted(Queued("a", 1e-5, watch.clock, watch.seen), tuple(range(5)))  # type: ignore[arg-type]
    assert host_times([Ready(call, device_s)], watch._threads, Steady(), 1) == pytest.approx([1e-5])
    assert watch.seen.count("wait") == 2 * (2 + waits)


def test_calls_are_first_launched_in_their_thread_and_answered_in_order(
    watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {
        name: met(watch, name, 1e-3, i, backward=(i,) if name == "b" else ())
        for i, name in enumerate(("b", "fails", "waits"))
    }

    def meet(counted: Counted) -> cuda_replay._Met:
        name = counted.replay.name
        watch.seen.append(f"met {name}")
        if name == "fails":
            raise RuntimeError("no such kernel")
        return some[name]

    monkeypatch.setattr(watch, "_meet", meet)
    counted = [one.counted for one in some.values()]
    monkeypatch.setattr(watch, "_in_rounds", lambda met: [cuda_replay._rough(one) for one in met])
    b, fails, waits = watch.times(counted)
    assert watch.seen[:4] == ["backward:", "met b", "met fails", "met waits"]
    assert fails == "RuntimeError: no such kernel"
    assert isinstance(b, OpTime)
    assert isinstance(waits, OpTime)
    assert (b.host_s, waits.host_s, waits.waits) == (pytest.approx(1e-3), 0.0, True)
    assert watch.times([]) == []


def test_calls_are_launched_on_the_host_among_the_rest_of_the_step(
    watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is not asked for, and what of it fails or waits is left out."""
    names = ("a", "wanted", "fails", "waits", "b")
    some = {name: met(watch, name, 1e-3, i) for i, name in enumerate(names)}

    by_call = {one.counted: one for one in some.values()}

    def meet(counted: Counted) -> cuda_replay._Met:
        if counted is some["fails"].counted:
            raise RuntimeError("no such kernel")
        return by_call[counted]

    monkeypatch.setattr(watch, "_meet", meet)
    monkeypatch.setattr(watch, "_in_rounds", lambda met: [cuda_replay._rough(one) for one in met])
    rest = [one.counted for name, one in some.items() if name != "wanted"]
    (wanted,) = watch.times([some["wanted"].counted], rest)
    assert isinstance(wanted, OpTime)
    assert wanted.host_s == pytest.approx(1e-3)
    launched = [name for name in watch.seen if name in names]
    assert launched[:6] == ["a", "wanted", "b"] * 2


def test_a_pass_leaves_out_what_fails_and_what_waits_and_is_by_the_clock(
    watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [
        met(watch, name, seconds, *places)
        for name, seconds, places in (
            ("a", 1e-3, (0, 2)),
            ("fails", 1.0, (1,)),
            ("waits", 1.0, (3,)),
        )
    ]

    def meet(counted: Counted) -> cuda_replay._Met:
        if counted.replay.name == "fails":
            raise RuntimeError("no such kernel")
        return next(one for one in some if one.counted is counted)

    monkeypatch.setattr(watch, "_meet", meet)
    launch = watch.passes([one.counted for one in some])
    watch._pace = Planned()  # nobody asks
    assert [launch(), launch()] == pytest.approx([2e-3, 2e-3])
    assert watch.seen.count("a") == 4
