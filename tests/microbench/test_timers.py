"""Timers of a GPU on a card that is simulated: what they read, subtract and average."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from microbench.timing import timers
from microbench.timing.timers import (
    EMPTY_KERNEL_S,
    EVENT_TICK_S,
    PROFILER_LESS_S,
    SAMPLES_BEHIND_GATE,
    CpuClock,
    Renewed,
    empty_kernel_s,
    make_timer,
    tick_of,
)

Work = Callable[[], None]


@dataclass
class FakeCard:
    """A GPU that runs what is queued at the next synchronisation, in place of torch's events and
    graphs and of our instruments.

    Seconds pass when a kernel runs. `tick_s` is what events round to, `event_s` what a pair of
    them reads beyond what lies between; `mhz` gives the clock of each batch in turn."""

    tick_s: float = 32e-9
    event_s: float = 0.0
    empty_s: float = 0.0
    flush_s: float = 50e-6
    mhz: list[float] = field(default_factory=list[float])
    persisting: int = 0  # bytes of L2 that a launch has set aside
    now_s: float = 0.0
    queue: list[Work] = field(default_factory=list[Work])
    log: list[str] = field(default_factory=list[str])  # what ran, by name

    def launch(self, seconds: float, name: str = "kernel", does: Work = lambda: None) -> None:
        """Queue a kernel that takes `seconds` and `does` something."""

        def run() -> None:
            self.now_s += seconds
            self.log.append(name)
            does()

        self.queue.append(run)

    def synchronize(self) -> None:
        """Run all that is queued."""
        while self.queue:
            self.queue.pop(0)()

    def install(self, patch: pytest.MonkeyPatch, name: str = "NVIDIA Test") -> None:
        """Stand in for torch's CUDA device, called `name`, and for the instruments."""
        card = self

        class Event:
            def __init__(self, **_: object) -> None:
                self.at_s = 0.0

            def record(self) -> None:
                def stamp() -> None:
                    self.at_s = card.now_s
                    card.now_s += card.event_s

                card.queue.append(stamp)

            def elapsed_time(self, end: Event) -> float:
                ticks = round(end.at_s / card.tick_s) - round(self.at_s / card.tick_s)
                return 1e3 * ticks * card.tick_s

        class Graph:
            def __init__(self) -> None:
                self.held: list[Work] = []

            def replay(self) -> None:
                card.queue += self.held

        @contextlib.contextmanager
        def capture(graph: Graph) -> Generator[None]:
            before, card.queue = card.queue, []
            yield
            graph.held, card.queue = card.queue, before

        for attribute, value in {
            "Event": Event, "CUDAGraph": Graph, "graph": capture,
            "synchronize": card.synchronize, "get_device_name": lambda _: name,
        }.items():  # fmt: skip
            patch.setattr(torch.cuda, attribute, value)
        module = SimpleNamespace(Instruments=lambda *_: _Instruments(card))
        patch.setitem(sys.modules, "microbench.timing.instruments", module)


class _Instruments:
    gate_expired = False

    def __init__(self, card: FakeCard) -> None:
        self.card, self.flushes = card, 0

    def close_gate(self) -> None:
        """Nothing runs before the next synchronisation anyway."""

    def open_gate(self) -> None:
        """As `close_gate`."""

    def release_l2(self) -> bool:
        """What is set aside is the card's number, as the real one's limit is."""
        was, self.card.persisting = self.card.persisting, 0
        return was > 0

    def stamp_clock(self, which: int) -> None:
        """The clock is planted."""

    def clock_mhz(self) -> float | None:
        return self.card.mhz.pop(0) if self.card.mhz else None

    def flush_l2(self) -> None:
        self.flushes += 1  # no two take the same number of ticks
        self.card.launch(self.card.flush_s + self.flushes % 7 * self.card.tick_s, "flush")

    def launch_empty(self) -> None:
        self.card.launch(self.card.empty_s, "empty")


@pytest.fixture(autouse=True)
def _new_process() -> Iterator[None]:
    empty_kernel_s.cache_clear()
    yield
    empty_kernel_s.cache_clear()


def profiler_sees(monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float] | None) -> list[int]:
    """torch's profiler reports empty kernels of these durations; None: it may not. The list has an
    entry each time it is asked."""
    asked: list[int] = []

    @contextlib.contextmanager
    def profile(**_: object) -> Iterator[SimpleNamespace]:
        asked.append(1)
        if seconds is None:
            raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")
        events = [
            SimpleNamespace(
                name="empty", time_range=SimpleNamespace(elapsed_us=lambda s=s: s * 1e6)
            )
            for s in seconds
        ]
        other = SimpleNamespace(name="gate", time_range=SimpleNamespace(elapsed_us=lambda: 1e6))
        yield SimpleNamespace(function_events=[*events, other])

    monkeypatch.setattr(torch.autograd.profiler, "profile", profile)
    return asked


def timer_on(card: FakeCard, monkeypatch: pytest.MonkeyPatch, name: str, l2: str) -> timers.Timer:
    card.install(monkeypatch)
    return make_timer(name, l2, "cuda", 0, 1 << 20, 8)


# ---------------------------------------------------------------- the clock of a block


@pytest.mark.parametrize("name", ["events", "graph"])
def test_a_blocks_clock_is_the_mean_of_all_its_batches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FakeCard()
    timer = timer_on(card, monkeypatch, name, "warm")
    card.mhz[:] = [1900.0, 1600.0, 1500.0]
    block = timer.block(lambda: card.launch(5e-6), 2 * SAMPLES_BEHIND_GATE + 1)
    assert len(block.times_s) == 2 * SAMPLES_BEHIND_GATE + 1
    assert block.times_s == pytest.approx([5e-6] * len(block.times_s), abs=card.tick_s)
    assert block.sm_clock_mhz == pytest.approx((1900 + 1600 + 1500) / 3)


def test_where_a_gate_opens_too_early_the_launch_alone_is_not_accused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = FakeCard()
    timer = timer_on(card, monkeypatch, "events", "warm")
    monkeypatch.setattr(_Instruments, "gate_expired", True)
    with pytest.raises(RuntimeError, match="or the CPU was too busy to launch in time"):
        timer.block(lambda: card.launch(5e-6), 3)


@pytest.mark.parametrize(
    ("end", "mhz"), [((1900, 9000, 3), 1800.0), ((1900, 9000, 4), None), ((40, 9000, 3), None)]
)
def test_a_counter_of_another_sm_or_one_that_began_anew_is_no_clock(
    end: tuple[int, int, int], mhz: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "microbench.timing.instruments"
    for name in ("cupy", "cupyx", module):  # each is taken out again
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    del sys.modules[module]
    stamps = SimpleNamespace(stamps=torch.tensor([(100, 8000, 3), end]))  # cycles, ns, SM
    assert import_module(module).Instruments.clock_mhz(stamps) == mhz


# ---------------------------------------------------------------- before a sample


@pytest.mark.parametrize(
    ("name", "l2", "ran"),
    [("events", "cold", ["renew", "flush", "kernel"] * 3),
     ("events", "warm", ["renew", *["kernel"] * 30]),
     ("graph", "warm", ["renew", *["kernel"] * 10] * 3)],
)  # fmt: skip
def test_operands_are_renewed_before_a_sample_and_outside_of_its_time(
    name: str, l2: str, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler_sees(monkeypatch, [0.0])
    card = FakeCard()
    timer = timer_on(card, monkeypatch, name, l2)
    launch = Renewed(lambda: card.launch(5e-6), lambda: card.launch(1e-3, "renew"))
    timer.block(launch, 1)  # a graph is launched once before it is captured
    card.log.clear()
    block = timer.block(launch, 3)
    assert [each for each in card.log if each != "empty"] == ran
    assert block.times_s == pytest.approx([5e-6] * 3, abs=card.tick_s)


def test_what_is_timed_as_launched_begins_on_an_idle_card(monkeypatch: pytest.MonkeyPatch) -> None:
    profiler_sees(monkeypatch, [0.0])
    card = FakeCard()
    timer = timer_on(card, monkeypatch, "events", "cold")
    queued: list[int] = []

    def launch() -> None:
        queued.append(len(card.queue))
        card.launch(5e-6)

    card.log.clear()
    block = timer.block(Renewed(launch, lambda: card.launch(1e-3, "renew"), gated=False), 3)
    assert card.log == ["renew", "flush", "kernel"] * 3
    assert queued == [1] * 3  # the event before it
    assert block.times_s == pytest.approx([5e-6] * 3, abs=card.tick_s)


@pytest.mark.parametrize("kernels", [1, 60, 300, 900])
def test_no_more_is_behind_the_gate_than_a_stream_queues(
    kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler_sees(monkeypatch, [0.0])
    card, queued = FakeCard(), [0]
    timer = timer_on(card, monkeypatch, "events", "cold")

    def launch() -> None:
        for _ in range(kernels):
            card.launch(1e-6)
        queued.append(len(card.queue))

    block = timer.block(Renewed(launch, lambda: card.launch(1e-3, "renew"), queued=kernels), 50)
    assert block.times_s == pytest.approx([kernels * 1e-6] * 50, abs=2 * card.tick_s)
    assert kernels <= max(queued) < 1000


def test_a_cpus_sample_is_of_the_launch_alone() -> None:
    ran: list[str] = []
    timer = CpuClock(1 << 16, "cold")
    timer.block(Renewed(lambda: ran.append("launch"), lambda: ran.append("renew")), 2)
    assert ran == ["renew", "launch"] * 2


@pytest.mark.parametrize("name", ["events", "graph"])
def test_l2_that_is_set_aside_is_given_back_and_no_launch_may_take_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FakeCard(persisting=1 << 20)
    timer = timer_on(card, monkeypatch, name, "warm")
    seen: list[int] = []

    def launch() -> None:
        seen.append(card.persisting)
        card.launch(5e-6)

    timer.block(launch, 3)
    assert set(seen) == {0}

    def takes() -> None:
        card.launch(5e-6, does=lambda: setattr(card, "persisting", 1 << 20))

    with pytest.raises(RuntimeError, match="sets a part of the L2 aside"):
        timer.block(takes, 3)


# ---------------------------------------------------------------- the card's own constants


@pytest.mark.parametrize("tick_s", [32e-9, 500e-9, 1.024e-6])
@pytest.mark.parametrize(("name", "l2"), [("events", "cold"), ("graph", "warm")])
def test_a_timers_resolution_is_the_tick_of_its_card(
    tick_s: float, name: str, l2: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler_sees(monkeypatch, [1e-6])
    timer = timer_on(FakeCard(tick_s=tick_s), monkeypatch, name, l2)
    assert timer.resolution_s == pytest.approx(tick_s, rel=1e-3)


@given(st.floats(5e-9, 2e-6), st.lists(st.integers(50, 4000), min_size=12, unique=True))
def test_a_tick_is_the_longest_that_divides_nearly_all_differences(
    tick_s: float, of: list[int]
) -> None:
    found = tick_of([n * tick_s for n in range(1, 30)] + [n * tick_s for n in of])
    assert found == pytest.approx(tick_s, rel=1e-3)
    off = tick_of([n * tick_s for n in range(1, 30)] + [1.37e-4])  # one reading of another clock
    assert off == pytest.approx(tick_s, rel=1e-3)
    assert tick_of([3 * tick_s] * 5) == EVENT_TICK_S  # equal readings do not say


def test_what_a_cold_sample_has_beyond_the_launch_is_measured_on_its_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events that read 2 us too much; an empty kernel of 1.5 us: 2 us are subtracted."""
    seen_s = 1.5e-6 - PROFILER_LESS_S
    asked = profiler_sees(monkeypatch, [seen_s, 0.1e-6, 5e-6, seen_s])
    card = FakeCard(tick_s=1e-9, event_s=2e-6, empty_s=1.5e-6)
    timer = timer_on(card, monkeypatch, "events", "cold")
    assert timer.overhead_s == pytest.approx(2e-6, abs=2e-9)
    again = timer_on(card, monkeypatch, "events", "cold")
    assert again.overhead_s == timer.overhead_s
    assert len(asked) == 1  # once a process
    (time_s,) = timer.block(lambda: card.launch(9e-6), 1).times_s
    assert time_s - timer.overhead_s == pytest.approx(9e-6, abs=3e-9)


@pytest.mark.parametrize(
    ("card", "seen", "empty_s", "times"),
    [
        ("NVIDIA Test", None, EMPTY_KERNEL_S, 1), ("NVIDIA Test", [], EMPTY_KERNEL_S, 1),
        ("NVIDIA H200", [9e-6], 1.41e-6, 0),  # which Nsight Compute has measured
    ],
)  # fmt: skip
def test_where_no_profiler_sees_a_kernel_the_h200s_duration_stands_for_it(
    card: str, seen: list[float] | None, empty_s: float, times: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked = profiler_sees(monkeypatch, seen)
    FakeCard().install(monkeypatch, card)
    assert empty_kernel_s(0) == empty_s
    assert len(asked) == times
