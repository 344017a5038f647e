"""A GPU that runs what is queued at the next synchronisation, by a clock of its own.

In place of torch's events and graphs, and of our instruments: timers run on it unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

Work = Callable[[], None]


@dataclass
class FakeCard:
    """Seconds pass when a kernel runs. `tick_s` is what events round to, `event_s` what a pair of
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

        @contextmanager
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
