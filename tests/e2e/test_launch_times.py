"""How calls are launched in a step's threads, and what that costs the host by a planned clock."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from samples.host_speeds import PlannedSpeeds

from e2e.predict.host_speed import ConstantSpeed
from e2e.predict.op_timer import cuda, launch_times
from e2e.predict.op_timer.launch_times import (
    LEAST_PASSES,
    LEFT_S,
    PASSING_S,
    SURE_LAUNCHES,
    HostTimedCall,
    backward_thread,
    forward_thread,
    host_times,
    in_backward,
    spin_until,
)
from e2e.predict.op_timer.op_timer import MeasuredTime, PlacedCall
from e2e.train.step_timer import busy_time

CPU = torch.device("cpu")
WARM_S = launch_times.WARM_S


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


class Watched(cuda.CudaStopwatch):
    """A stopwatch without a device: calls move its clock, and what is launched is noted."""

    def __init__(self) -> None:
        self.clock, self.seen = [0.0], list[str]()
        self.planted: dict[PlacedCall, cuda._TriedCall] = {}
        self._host_speed = ConstantSpeed()

        def backward(work: Callable[[], Any]) -> Any:
            self.seen.append("backward:")
            return work()

        self.threads = self._threads = (forward_thread, backward)

    def plant(
        self, name: str, seconds: float, *places: int, backward: tuple[int, ...] = ()
    ) -> PlacedCall:
        """A call that "fails" when it is first launched, or "waits" for the device, by its name."""
        replay = Fake(name, seconds, self.clock, self.seen)
        call = PlacedCall(replay, places, frozenset(backward))  # type: ignore[arg-type]
        self.planted[call] = cuda._TriedCall(call, 0.0, 1e-4, 0, waits=name == "waits")
        return call

    def host_times(self, most: int, *calls: HostTimedCall) -> list[float]:
        return host_times(calls, self.threads, self._host_speed, most)

    def _meet(self, counted: PlacedCall) -> cuda._TriedCall:
        name = counted.replay.name  # type: ignore[attr-defined]
        self.seen.append(f"met {name}")
        if name == "fails":
            raise RuntimeError("no such kernel")
        return self.planted[counted]

    def _in_rounds(self, met: Sequence[cuda._TriedCall]) -> list[MeasuredTime]:
        return [cuda._taken(one, [1e-3] * 7, overhead_s=0.0) for one in met]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched()
    monkeypatch.setattr(time, "perf_counter", lambda: made.clock[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: made.seen.append("wait"))
    monkeypatch.setattr(launch_times, "WARM_S", 0.0)  # one untimed pass before each

    def moved_on(at_s: float) -> None:
        made.clock[0] = max(made.clock[0], at_s)

    monkeypatch.setattr(launch_times, "spin_until", moved_on)
    return made


def timed_call(replay: Fake, *places: int, device_s: float = 0.0) -> HostTimedCall:
    return HostTimedCall(PlacedCall(replay, places), device_s)  # type: ignore[arg-type]


def test_host_times_are_of_calls_in_the_steps_order_and_at_the_reference_speed(
    watch: Watched,
) -> None:
    a = watch.planted[watch.plant("a", 1e-3, 0, 2, 3, backward=(2,))]
    b = watch.planted[watch.plant("b", 2e-3, 1, backward=(1,))]
    # Each pass between two readings: the first at a slowdown of 4, in the mean, the second at 8.
    watch._host_speed = PlannedSpeeds(2.0, 6.0, 10.0)
    a.host_s, b.host_s = watch.host_times(2, a.ready, b.ready)
    once = ["wait", "a", "restored a", "wait", "backward:", "wait", "b", "a",
            "restored b", "restored a", "wait", "wait", "a", "restored a", "wait"]  # fmt: skip
    assert watch.seen == 2 * 2 * once
    middle = (1 / 4 + 1 / 8) / 2
    assert [a.host_s, b.host_s] == pytest.approx([middle * 1e-3, middle * 2e-3])
    taken = cuda._taken(a, [3e-3] * 7, overhead_s=0.0)
    assert taken.time.host_s == a.host_s
    assert taken.time.gpu_s == pytest.approx(3e-3 / a.launches)


def test_calls_add_up_to_what_a_pass_takes_though_another_is_slow_in_each(watch: Watched) -> None:
    """By medians alone they would take 6 ms of 10."""
    some = [Fake("a", 2e-3, watch.clock, watch.seen) for _ in range(3)]
    for i, one in enumerate(some):
        one.slower = itertools.cycle([3 if i == n else 1 for n in range(3)])
    found = watch.host_times(9, *(timed_call(one, i) for i, one in enumerate(some)))
    assert found == pytest.approx([10e-3 / 3] * 3)


def test_what_a_launch_does_for_python_alone_is_not_the_steps(watch: Watched) -> None:
    """Of 10 us matching takes 4, after the launch as in it."""
    some = Fake("a", 10e-6, watch.clock, watch.seen)

    def match() -> None:
        watch.clock[0] += 4e-6

    some.matching = match
    assert watch.host_times(5, timed_call(some, 0, 1)) == pytest.approx([6e-6])


def test_a_pass_is_timed_when_what_was_done_before_is_no_longer_seen(
    watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: for 25 ms after the host speed is read, a launch takes ten times as long."""
    monkeypatch.setattr(launch_times, "WARM_S", WARM_S)
    some = Fake("a", 1e-3, watch.clock, watch.seen)

    class Disturbing(ConstantSpeed):
        def slowdown(self) -> float:
            some.slower = itertools.chain([10, 10, 5], itertools.repeat(1))
            return 1.0

    watch._host_speed = Disturbing()
    assert watch.host_times(5, timed_call(some, 0)) == pytest.approx([1e-3])


def test_passes_that_take_long_are_few(watch: Watched) -> None:
    for name, seconds, passes in (("long", 0.6 * PASSING_S, LEAST_PASSES), ("short", 1e-3, 9)):
        watch.host_times(9, timed_call(Fake(name, seconds, watch.clock, watch.seen), 0))
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
    """A launch takes the host 10 us, and the device `device_s`, `error` times that as expected."""
    device, launches = Device(watch), 2 * SURE_LAUNCHES + 1
    monkeypatch.setattr(torch.cuda, "synchronize", device.wait)
    one = Queued(10e-6, device_s, device)
    call = timed_call(one, *range(launches), device_s=error * device_s)
    assert watch.host_times(1, call) == pytest.approx([10e-6])
    assert watch.seen.count("wait") == 2 * (3 + 1), "first, after so many launches twice, last"
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


def test_calls_are_first_launched_in_their_thread_and_answered_in_order(watch: Watched) -> None:
    b = watch.plant("b", 1e-3, 0, backward=(0,))
    first, fails, waits = watch.times(
        [b, watch.plant("fails", 1e-3, 1), watch.plant("waits", 1e-3, 2)]
    )
    assert watch.seen[:4] == ["backward:", "met b", "met fails", "met waits"]
    assert fails == "RuntimeError: no such kernel"
    assert isinstance(first, MeasuredTime)
    assert isinstance(waits, MeasuredTime)
    assert first.time.host_s == pytest.approx(1e-3)
    assert (waits.time.host_s, waits.time.waits) == (0.0, True)
    assert watch.times([]) == []


def test_calls_are_launched_on_the_host_among_the_rest_of_the_step(watch: Watched) -> None:
    """The rest is not asked for, and what of it fails or waits is left out."""
    names = ("a", "wanted", "fails", "waits", "b")
    some = {name: watch.plant(name, 1e-3, i) for i, name in enumerate(names)}
    (wanted,) = watch.times([some["wanted"]], [some[name] for name in names if name != "wanted"])
    assert isinstance(wanted, MeasuredTime)
    assert wanted.time.host_s == pytest.approx(1e-3)
    launched = [name for name in watch.seen if name in names]
    assert launched[:6] == ["a", "wanted", "b"] * 2

    watch.seen.clear()
    (failed,) = watch.times([some["fails"]], [some["a"]])
    assert isinstance(failed, str)
    assert "a" not in watch.seen, "nothing is launched among others"


def test_a_pass_leaves_out_what_fails_and_what_waits_and_is_by_the_clock(watch: Watched) -> None:
    some = watch.plant("a", 1e-3, 0, 2), watch.plant("fails", 1.0, 1), watch.plant("waits", 1.0, 3)
    launch = watch.passes(some)
    watch._host_speed = PlannedSpeeds()  # not asked for
    assert [launch(), launch()] == pytest.approx([2e-3, 2e-3])
    assert watch.seen.count("a") == 4


# ------------------------------------------------------------ threads


def test_work_gives_what_it_gives_and_keeps_no_gradients() -> None:
    for within in (forward_thread, backward_thread(CPU)):
        assert within(lambda: [1, 2]) == [1, 2]
        assert within(lambda: None) is None
    with torch.no_grad():
        assert backward_thread(CPU)(torch.is_grad_enabled) is False


def test_what_the_work_raises_is_raised() -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        backward_thread(CPU)(fail)


def test_work_can_be_made_ready_and_run_later() -> None:
    runs: list[int] = []
    run = in_backward(lambda: runs.append(threading.get_ident()) or "done", CPU)
    assert runs == []
    assert run() == "done"
    assert len(runs) == 1


@pytest.mark.gpu
def test_it_is_the_thread_of_a_training() -> None:
    device = torch.device("cuda:0")
    seen: list[int] = []
    weight = torch.ones(3, device=device, requires_grad=True)
    weight.register_hook(lambda grad: seen.append(threading.get_ident()))
    weight.square().sum().backward()
    assert seen == [backward_thread(device)(threading.get_ident)]
    assert seen != [forward_thread(threading.get_ident)]


@pytest.mark.gpu
def test_running_it_launches_nothing_on_the_stream_that_it_was_made_on() -> None:
    """A graph of it holds what the work launches, from the thread of a training."""
    device = torch.device("cuda:0")
    stream, value, seen = torch.cuda.Stream(device), torch.zeros((), device=device), list[int]()

    def work() -> None:
        seen.append(threading.get_ident())
        value.add_(1)

    with torch.cuda.stream(stream):
        run = in_backward(work, device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        run()
    graph.replay()
    assert value.item() == 1
    assert seen != [threading.get_ident()]
    assert busy_time(graph.replay)[1] == 1
