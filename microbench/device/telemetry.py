"""The sensors of a GPU by NVML, and what they read while the device is measured, by variant.

Variants are interleaved, so samples are filed under the one that runs: `with
telemetry.during(key)`. The caller passes the pynvml module (`microbench.device.device.load_nvml`).
Virtual machines, MIG slices and consumer cards refuse many calls; each refusal becomes None, never
an error. Nothing here changes a setting.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Hashable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

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
        self._open: list[GpuState] | None = None  # of the variant that runs
        self._samples: dict[Hashable, list[GpuState]] = {}

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
            self._open = samples = self._samples.setdefault(key, [])
        before = len(samples)
        try:
            yield
            if len(samples) == before:
                self.poll()
        finally:
            with self._lock:
                self._open = None

    def poll(self) -> None:
        """Take one sample for the open segment. The thread does this every `interval_s`."""
        samples, sensors = self._open, self._sensors
        if samples is None or sensors is None:
            return
        sample = sensors.readings()
        with self._lock:
            if self._open is samples:  # it may have ended while the sensors were read
                samples.append(sample)

    def summary(self, key: Hashable) -> TelemetrySummary:
        """Summary of the samples under `key`; all None, and 0 samples, for an unknown key."""
        with self._lock:
            samples = tuple(self._samples.get(key, ()))
        seen = {word for sample in samples for word in throttle_words(sample.event_reasons)}
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


POWER_INSTANT_FIELD = 186  # NVML_FI_DEV_POWER_INSTANT of nvml.h, in milliwatts
SM_CLOCK = 1  # NVML_CLOCK_SM
GPU_TEMPERATURE = 0  # NVML_TEMPERATURE_GPU
SLOWDOWN_THRESHOLD = 1  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
CARD_SALT, CARD_DIGITS = "halfway ", 12


@dataclass(frozen=True)
class GpuState:
    """Settings and condition of a GPU by NVML; None where NVML gave no answer."""

    driver_cuda: tuple[int, int] | None = None  # the newest CUDA that the driver supports
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    sm_clock_mhz: int | None = None
    application_clock_mhz: int | None = None
    application_clock_default_mhz: int | None = None
    event_reasons: int | None = None
    temperature_c: int | None = None
    temperature_margin_c: int | None = None  # degrees left before the card slows itself down
    utilization_pct: int | None = None
    mig: bool | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    processes: tuple[tuple[int, int | None], ...] | None = None  # (pid, bytes) of each compute one


class NvmlGpu:
    """One GPU as NVML sees it: the sensors of telemetry and the settings that doctor checks.

    `nvml` is the pynvml module, initialised. A reading takes 7 to 24 us on an H200.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def ask(self, function: str, *args: object) -> Any:
        """The answer of an NVML call about this GPU; None where it is refused."""
        return self._call(function, self._handle, *args)

    def _call(self, function: str, *args: object) -> Any:
        try:
            return getattr(self._nvml, function)(*args)
        except self._nvml.NVMLError:
            return None

    def watts(self, function: str) -> float | None:
        """The answer of an NVML call that gives milliwatts, in watts; None where refused."""
        milliwatts = self.ask(function)
        return None if milliwatts is None else milliwatts / 1e3

    def driver(self) -> str | None:
        """The driver's version; None where refused."""
        return self._call("nvmlSystemGetDriverVersion")

    def card(self) -> str | None:
        """A hash of the GPU's UUID, 12 hex digits: the same for one card, without its UUID."""
        uuid = self.ask("nvmlDeviceGetUUID")
        if not uuid:
            return None
        text = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
        return hashlib.sha256(f"{CARD_SALT}{text}".encode()).hexdigest()[:CARD_DIGITS]

    def power_w(self) -> float | None:
        """Instant power in watts; where the card has none, its average over up to a second."""
        fields = self.ask("nvmlDeviceGetFieldValues", [POWER_INSTANT_FIELD])
        if fields and fields[0].nvmlReturn == 0 and fields[0].value.uiVal:
            return fields[0].value.uiVal / 1e3
        return self.watts("nvmlDeviceGetPowerUsage")

    def readings(self) -> GpuState:
        """What changes from moment to moment, and nothing else."""
        power_w, clock = self.power_w(), self.ask("nvmlDeviceGetClockInfo", SM_CLOCK)
        temperature = self.ask("nvmlDeviceGetTemperature", GPU_TEMPERATURE)
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # a driver before 535
            reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        return GpuState(
            power_w=power_w, sm_clock_mhz=clock, temperature_c=temperature, event_reasons=reasons,
            utilization_pct=rates and rates.gpu,
        )  # fmt: skip

    def state(self) -> GpuState:
        """All settings and conditions, each None where the call is refused."""
        mig, _ = self.ask("nvmlDeviceGetMigMode") or (None, None)
        cuda = self._call("nvmlSystemGetCudaDriverVersion")
        found = replace(
            self.readings(),
            driver_cuda=cuda and (cuda // 1000, cuda % 1000 // 10),
            power_limit_w=self.watts("nvmlDeviceGetEnforcedPowerLimit"),
            power_limit_default_w=self.watts("nvmlDeviceGetPowerManagementDefaultLimit"),
            application_clock_mhz=self.ask("nvmlDeviceGetApplicationsClock", SM_CLOCK),
            application_clock_default_mhz=self.ask(
                "nvmlDeviceGetDefaultApplicationsClock", SM_CLOCK
            ),
            temperature_margin_c=self.ask("nvmlDeviceGetMarginTemperature"),
            mig=None if mig is None else bool(mig),
            pcie_width=self.ask("nvmlDeviceGetCurrPcieLinkWidth"),
            pcie_width_max=self.ask("nvmlDeviceGetMaxPcieLinkWidth"),
            processes=self.processes(),
        )
        slowdown = self.ask("nvmlDeviceGetTemperatureThreshold", SLOWDOWN_THRESHOLD)
        if None in (slowdown, found.temperature_c) or found.temperature_margin_c is not None:
            return found
        return replace(found, temperature_margin_c=slowdown - found.temperature_c)

    def processes(self) -> tuple[tuple[int, int | None], ...] | None:
        """(id, bytes or None) of each compute process; None where NVML does not say."""
        running = self.ask("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return None
        return tuple((process.pid, process.usedGpuMemory) for process in running)
