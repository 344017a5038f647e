"""What launches cost the host: passes over calls in the step's order, by a clock of the tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from samples.host_speeds import PlannedSpeeds

from e2e.predict.host_speed import ConstantSpeed
from e2e.predict.op_timer import cuda as cuda_replay
from e2e.predict.op_timer.launch_times import (
    LEAST_PASSES,
    LEFT_S,
    PASSING_S,
    SURE_LAUNCHES,
    HostTimedCall,
    forward_thread,
    host_times,
    spin_until,
)
from e2e.predict.op_timer.op_timer import OpTime, PlacedCall


class Fake:
    """A replay whose launches take some time of a clock, and are noted."""

    def __init__(self, name: str, seconds: float, clock: list[float], seen: list[str]) -> None:
        self.name, self.seconds, self.clock, self.seen = name, seconds, clock, seen
        self.slower: Iterator[int] | None = None  # how many times as long the next launches take
        self.matching: Callable[[], object] | None = None

    def launch(self) -> None:
        self.clock[0] += self.seconds * (next(self.slower) if self.slower else 1)
        self.seen.append(self.name)

    def restore(self) -> None:
        self.seen.append("restored " + self.name)


class Watched(cuda_replay.CudaStopwatch):
    """A stopwatch without a device: calls move its clock, and what is launched is noted."""

    def __init__(self) -> None:
        self.clock, self.seen = [0.0], list[str]()
        self._host_speed = ConstantSpeed()

        def backward(work: Callable[[], Any]) -> Any:
            self.seen.append("backward:")
            return work()

        self._threads = (forward_thread, backward)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched()
    monkeypatch.setattr(cuda_replay.time, "perf_counter", lambda: made.clock[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: made.seen.append("wait"))

    def moved_on(at_s: float) -> None:
        made.clock[0] = max(made.clock[0], at_s)

    monkeypatch.setattr("e2e.predict.op_timer.launch_times.spin_until", moved_on)
    return made


def met(
    watch: Watched,
    name: str,
    seconds: float,
    *places: int,
    backward: tuple[int, ...] = (),
) -> cuda_replay._TriedCall:
    replay = Fake(name, seconds, watch.clock, watch.seen)
    counted = PlacedCall(replay, places, frozenset(backward))  # type: ignore[arg-type]
    return cuda_replay._TriedCall(
        counted, 0.0, rough_s=1e-4, scratch_bytes=0, waits=name == "waits"
    )


def test_host_times_are_of_calls_in_the_steps_order_and_as_at_pace_1(
    watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "e2e.predict.op_timer.launch_times.WARM_S", 0.0
    )  # one untimed pass before each
    a = met(watch, "a", 1e-3, 0, 2, 3, backward=(2,))
    b = met(watch, "b", 2e-3, 1, backward=(1,))
    # Each pass between two looks: the first at pace 4, in the mean, the second at 8.
    watch._host_speed = PlannedSpeeds(2.0, 6.0, 10.0)
    a.host_s, b.host_s = host_times([a.ready, b.ready], watch._threads, watch._host_speed, 2)
    once = ["wait", "a", "restored a", "wait", "backward:", "wait", "b", "a",
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
    monkeypatch.setattr("e2e.predict.op_timer.launch_times.WARM_S", 0.0)
    some = [Fake("a", 2e-3, watch.clock, watch.seen) for _ in range(3)]
    for i, one in enumerate(some):
        one.slower = itertools.cycle([3 if i == n else 1 for n in range(3)])
    counted = [PlacedCall(one, (i,)) for i, one in enumerate(some)]  # type: ignore[arg-type]
    calls = [HostTimedCall(one, 0.0) for one in counted]
    found = host_times(calls, watch._threads, ConstantSpeed(), 9)
    assert found == pytest.approx([10e-3 / 3] * 3)


def test_what_a_launch_does_for_python_alone_is_not_the_steps(watch: Watched) -> None:
    """Of 10 us matching takes 4, after the launch as in it."""
    some = Fake("a", 10e-6, watch.clock, watch.seen)

    def match() -> None:
        watch.clock[0] += 4e-6

    some.matching = match
    twice = PlacedCall(some, (0, 1))  # type: ignore[arg-type]
    found = host_times([HostTimedCall(twice, 0.0)], watch._threads, ConstantSpeed(), 5)
    assert found == pytest.approx([6e-6])


def test_a_pass_is_timed_when_what_was_done_before_is_no_longer_seen(watch: Watched) -> None:
    """Planted: for 25 ms after the pace is read, a launch takes ten times as long."""
    some = Fake("a", 1e-3, watch.clock, watch.seen)

    class Disturbing(ConstantSpeed):
        def slowdown(self) -> float:
            some.slower = itertools.chain([10, 10, 5], itertools.repeat(1))
            return 1.0

    call = PlacedCall(some, (0,))  # type: ignore[arg-type]
    found = host_times([HostTimedCall(call, 0.0)], watch._threads, Disturbing(), 5)
    assert found == pytest.approx([1e-3])


def test_passes_that_take_long_are_few(watch: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.predict.op_timer.launch_times.WARM_S", 0.0)
    for name, seconds, passes in (("long", 0.6 * PASSING_S, LEAST_PASSES), ("short", 1e-3, 9)):
        one = met(watch, name, seconds, 0)
        host_times([one.ready], watch._threads, ConstantSpeed(), 9)
        assert watch.seen.count(name) == 2 * passes


class Device:
    """A device that works off what is launched; the host can wait until it is done."""

    def __init__(self, watch: Watched) -> None:
        self.watch, self.done_s, self.waited_until_s = watch, 0.0, set[float]()

    @property
    def left_s(self) -> float:
        """Seconds of work."""
        return max(0.0, self.done_s - self.watch.clock[0])

    def wait(self) -> None:
        """Until it is idle."""
        self.watch.seen.append("wait")
        self.watch.clock[0] += self.left_s
        self.waited_until_s.add(self.watch.clock[0])


class Queued(Fake):
    """A replay whose launches also take the device some time; notes what work each found there."""

    def __init__(self, seconds: float, device_s: float, device: Device) -> None:
        super().__init__("a", seconds, device.watch.clock, device.watch.seen)
        self.device, self.device_s = device, device_s
        self.found, self.began_s = list[float](), list[float]()

    def launch(self) -> None:
        self.found.append(self.device.left_s)
        self.began_s.append(self.clock[0])
        super().launch()
        self.device.done_s = self.clock[0] + self.device.left_s + self.device_s


@pytest.mark.parametrize("device_s", [5e-6, 20e-6, 50e-6])
@pytest.mark.parametrize("error", [0.5, 0.95, 1.0, 1.05, 2.0])
def test_a_call_is_launched_when_the_device_has_done_about_all_before_it(
    device_s: float, error: float, watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch takes the host 10 us, and the device `device_s`, or `error` times that as told."""
    device, launches = Device(watch), 2 * SURE_LAUNCHES + 1
    monkeypatch.setattr("e2e.predict.op_timer.launch_times.WARM_S", 0.0)
    monkeypatch.setattr(torch.cuda, "synchronize", device.wait)
    one = Queued(10e-6, device_s, device)
    call = PlacedCall(one, tuple(range(launches)))  # type: ignore[arg-type]
    ready = HostTimedCall(call, error * device_s)
    found = host_times([ready], watch._threads, ConstantSpeed(), 1)
    assert found == pytest.approx([10e-6])
    assert watch.seen.count("wait") == 2 * (3 + 1), (
        "at the begin, after so many launches twice, at the end"
    )
    most_s = LEFT_S + max(0.0, 1 - error) * SURE_LAUNCHES * device_s
    assert max(one.found) <= 1.001 * most_s
    if device_s > 10e-6 and error == 1.0:  # and not later
        assert min(one.found[2:SURE_LAUNCHES]) >= 0.999 * LEFT_S
    took_s = watch.clock[0] / (2 * launches)
    assert took_s <= 1.01 * max(10e-6, device_s * max(1.0, error)) + 0.1e-6
    after_wait = {i for i, began_s in enumerate(one.began_s) if began_s in device.waited_until_s}
    firsts = {n * launches + i for n in (0, 1) for i in range(0, launches, SURE_LAUNCHES)}
    assert after_wait >= firsts, "what was reckoned before is of no interest then"


def test_the_host_spins_until_the_moment_and_no_longer_than_asked() -> None:
    began_s = time.perf_counter()
    spin_until(began_s + 0.01)
    assert time.perf_counter() >= began_s + 0.01
    ticks = itertools.chain((1.0, 2.0), itertools.repeat(3.0))
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(time, "perf_counter", lambda: next(ticks))
        spin_until(2.0)
        assert next(ticks) == 3.0
        spin_until(0.0)


def test_calls_are_first_launched_in_their_thread_and_answered_in_order(
    watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {
        name: met(watch, name, 1e-3, i, backward=(i,) if name == "b" else ())
        for i, name in enumerate(("b", "fails", "waits"))
    }

    def meet(counted: PlacedCall) -> cuda_replay._TriedCall:
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

    def meet(counted: PlacedCall) -> cuda_replay._TriedCall:
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

    watch.seen.clear()
    (failed,) = watch.times([some["fails"].counted], [some["a"].counted])
    assert isinstance(failed, str)
    assert "a" not in watch.seen, "nothing is launched among others"


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

    def meet(counted: PlacedCall) -> cuda_replay._TriedCall:
        if counted.replay.name == "fails":
            raise RuntimeError("no such kernel")
        return next(one for one in some if one.counted is counted)

    monkeypatch.setattr(watch, "_meet", meet)
    launch = watch.passes([one.counted for one in some])
    watch._host_speed = PlannedSpeeds()  # not asked for
    assert [launch(), launch()] == pytest.approx([2e-3, 2e-3])
    assert watch.seen.count("a") == 4
