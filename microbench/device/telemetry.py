"""Clock, power, temperature and throttling of the device while it is measured, by variant.

Variants are interleaved, so samples are filed under the one that runs: `with
telemetry.during(key)`. The sensors come from the caller (`microbench.device.device.open_sensors`).
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Hashable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

from microbench.device.nvml import NvmlGpu

POLL_INTERVAL_S = 0.02

# nvmlClocksEventReasons of NVML's nvml.h, in the words of reports. 0x1 (idle) is no throttle.
THROTTLE_REASONS: dict[int, str] = {
    0x4: "power cap",
    0x20: "thermal",  # by software
    0x40: "thermal",  # by hardware
    0x80: "power brake",
    0x8: "hw slowdown",
    0x10: "sync boost",
    0x2: "application clocks",
    0x100: "display",
    0x200: "board limit",
    0x400: "reliability",
}


@dataclass(frozen=True)
class Sample:
    """One reading of the sensors; None where the device does not report a value."""

    power_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    throttle: tuple[str, ...]
    utilization_pct: float | None


@dataclass(frozen=True)
class TelemetrySummary:
    """Means over a variant's samples (W, MHz, °C) and all of their throttle reasons."""

    power_w: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    samples: int = 0
    utilization_pct: tuple[float, ...] = ()  # every reading


def throttle_words(reasons: int | None) -> tuple[str, ...]:
    """The words for NVML's bit mask of clock event reasons, each once; () for None or idle."""
    return tuple(
        dict.fromkeys(word for bit, word in THROTTLE_REASONS.items() if (reasons or 0) & bit)
    )


class Telemetry:
    """Samples the sensors in a background thread, while it is entered as a context.

    Without sensors (a CPU, no NVML) there is no thread, and every value is None.
    AssertionError when it is started twice or two segments are open: a mistake of the caller.
    """

    def __init__(self, sensors: NvmlGpu | None, interval_s: float = POLL_INTERVAL_S) -> None:
        self._sensors = sensors
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._open: list[Sample] | None = None  # of the variant that runs
        self._samples: dict[Hashable, list[Sample]] = {}

    def __enter__(self) -> Telemetry:
        """Start the thread. Does nothing where there are no sensors."""
        assert self._thread is None, "telemetry is already running"
        if self._sensors is not None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Join the thread."""
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join()
        self._thread = None

    @contextmanager
    def during(self, key: Hashable) -> Generator[None]:
        """File the samples taken inside under `key`. If there was none, one is taken at the end."""
        with self._lock:
            assert self._open is None, f"a segment is open as {key!r} begins"
            self._open = found = self._samples.setdefault(key, [])
        before = len(found)
        try:
            yield
            if len(found) == before:
                self.poll()
        finally:
            with self._lock:
                self._open = None

    def poll(self) -> None:
        """Take one sample for the open segment. The thread does this every `interval_s`."""
        found, sensors = self._open, self._sensors
        if found is None or sensors is None:
            return
        sample = Sample(
            power_w=sensors.power_w(),
            sm_clock_mhz=sensors.sm_clock_mhz(),
            temperature_c=sensors.temperature_c(),
            throttle=throttle_words(sensors.event_reasons()),
            utilization_pct=sensors.utilization_pct(),
        )
        with self._lock:
            if self._open is found:  # it may have ended while the sensors were read
                found.append(sample)

    def summary(self, key: Hashable) -> TelemetrySummary:
        """Summary of the samples under `key`; all None, and 0 samples, for an unknown key."""
        with self._lock:
            samples = tuple(self._samples.get(key, ()))
        seen = {word for sample in samples for word in sample.throttle}
        return TelemetrySummary(
            power_w=_mean(sample.power_w for sample in samples),
            sm_clock_mhz=_mean(sample.sm_clock_mhz for sample in samples),
            temperature_c=_mean(sample.temperature_c for sample in samples),
            throttle=tuple(
                word for word in dict.fromkeys(THROTTLE_REASONS.values()) if word in seen
            ),
            samples=len(samples),
            utilization_pct=tuple(
                sample.utilization_pct for sample in samples if sample.utilization_pct is not None
            ),
        )

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self.poll()


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
