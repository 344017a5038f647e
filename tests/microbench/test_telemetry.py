"""Telemetry with sensors that come from the test."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.device.telemetry import (
    THROTTLE_REASONS,
    Telemetry,
    TelemetrySummary,
    throttle_words,
)


@dataclass
class FakeSensors:
    """Each reading gives the next value of its list, and its last value from then on."""

    power: list[float | None] = field(default_factory=lambda: [None])
    clock: list[float | None] = field(default_factory=lambda: [None])
    reasons: list[int | None] = field(default_factory=lambda: [None])
    utilization: list[float | None] = field(default_factory=lambda: [None])
    asked: Counter[str] = field(default_factory=Counter)

    def _next(self, name):
        self.asked[name] += 1
        values = getattr(self, name)
        return values.pop(0) if len(values) > 1 else values[0]

    def power_w(self):
        return self._next("power")

    def sm_clock_mhz(self):
        return self._next("clock")

    def temperature_c(self):
        return None

    def event_reasons(self):
        return self._next("reasons")

    def utilization_pct(self):
        return self._next("utilization")


def test_means_are_kept_apart_while_arms_alternate():
    sensors = FakeSensors(power=[100, 500, 200, 700], clock=[1980, 1500, 1980, 1400])
    telemetry = Telemetry(sensors)
    for arm in ("fp32", "fp16", "fp32", "fp16"):
        with telemetry.during(arm):
            telemetry.poll()
    assert telemetry.summary("fp32") == TelemetrySummary(150, 1980, None, (), 2)
    assert telemetry.summary("fp16") == TelemetrySummary(600, 1450, None, (), 2)


def test_throttle_is_the_union_over_samples_and_utilization_keeps_every_reading():
    reasons = [0x4, 0x1, 0x20 | 0x4, 0x40, 0x8 | 0x80]
    telemetry = Telemetry(FakeSensors(reasons=reasons, utilization=[10, 90, None, 50, 60]))
    with telemetry.during("a"):
        for _ in range(5):
            telemetry.poll()
    found = telemetry.summary("a")
    assert found.throttle == ("power cap", "thermal", "power brake", "hw slowdown")
    assert found.utilization_pct == (10, 90, 50, 60)


@pytest.mark.parametrize("polls", [0, 1])
def test_a_segment_has_a_sample_at_its_end_where_it_got_none_before(polls):
    telemetry = Telemetry(FakeSensors(power=[1.0, 99.0]))
    telemetry.poll()  # between segments a sample belongs to none
    assert telemetry.summary("a") == TelemetrySummary()
    with telemetry.during("a"):
        for _ in range(polls):
            telemetry.poll()
    assert telemetry.summary("a") == TelemetrySummary(power_w=1.0, samples=1)


def test_sample_that_outlives_its_segment_is_dropped():
    reading, ended = threading.Event(), threading.Event()
    sampler = threading.Thread(target=lambda: telemetry.poll())

    class Slow(FakeSensors):
        def power_w(self):
            if threading.current_thread() is not sampler:
                return 10.0
            reading.set()
            ended.wait(5)
            return 999.0

    telemetry = Telemetry(Slow())
    with telemetry.during("first"):
        sampler.start()
        reading.wait(5)
    with telemetry.during("second"):
        ended.set()
        sampler.join()
    assert telemetry.summary("first") == TelemetrySummary(power_w=10.0, samples=1)
    assert telemetry.summary("second") == TelemetrySummary(power_w=10.0, samples=1)


def test_readings_that_fail_leave_the_mean_of_the_rest():
    telemetry = Telemetry(FakeSensors(power=[None, 100.0, None, 300.0], clock=[None]))
    with telemetry.during("a"):
        for _ in range(4):
            telemetry.poll()
    assert telemetry.summary("a") == TelemetrySummary(power_w=200.0, samples=4)


def test_an_error_in_the_block_comes_through_and_the_next_segment_opens():
    telemetry = Telemetry(FakeSensors(power=[5.0]))
    with pytest.raises(KeyError), telemetry.during("broken"):
        raise KeyError
    with telemetry.during("next"):
        pass
    assert telemetry.summary("next").samples == 1


def test_thread_polls_and_ends():
    before = threading.active_count()
    deadline = time.monotonic() + 5
    with Telemetry(FakeSensors(power=[7.0]), interval_s=0.001) as telemetry, telemetry.during("a"):
        while telemetry.summary("a").samples < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert telemetry.summary("a").samples >= 3
    assert telemetry.summary("a").power_w == 7.0
    assert threading.active_count() == before


def test_without_sensors_there_is_no_thread_and_no_figure():
    before = threading.active_count()
    with Telemetry(None) as telemetry, telemetry.during("a"):
        assert threading.active_count() == before
        telemetry.poll()
    assert telemetry.summary("a") == TelemetrySummary()


@given(st.integers(0, 2**63 - 1))
def test_words_are_unique_and_known_for_any_mask(mask):
    words = throttle_words(mask)
    assert len(set(words)) == len(words)
    assert set(words) <= set(THROTTLE_REASONS.values())
    assert bool(words) == any(mask & bit for bit in THROTTLE_REASONS)
    assert throttle_words(None) == throttle_words(1) == ()  # not known; idle
