"""Judges whether the diagnosis names the planted condition, and whether it was present at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from microbench.results.types import Result, Run
from microbench.roofline.limits import limits_for
from microbench.selftest.plant import Plant

RIGHT, WRONG, NOT_APPLICABLE = "right", "wrong", "not applicable"
TARGET_PCT = 95.0
TINY_SHARE = 0.05  # of the launch latency that the work of a launch plant may take
THIN_SHARE = 0.5  # of the time for its bytes that the arithmetic of a memory plant may take
LAYOUT_COSTS = 1.1  # times slower than in nhwc: below this, the layout was not the bottleneck
DEFECT_COSTS = 1.15  # times slower than without the defect: below this, it was not planted
ZEROS_GAIN = 1.03  # times faster on zeros: below this, power was not the bottleneck


@dataclass(frozen=True)
class Runs:
    """The measured cases: with the L2 flushed before each launch, and back to back with it warm."""

    cold: Run
    warm: Run | None = None


@dataclass(frozen=True)
class Judged:
    """A plant, its verdict, the bottleneck that was diagnosed, and the reason given."""

    plant: Plant
    verdict: str
    named: str | None
    why: str

    def as_dict(self, runs: Runs) -> dict[str, Any]:
        """The row of the evidence file, with the numbers of each case, in SI units and per cent."""
        plant = self.plant
        return {
            "name": plant.name,
            "condition": plant.condition,
            "control": plant.control,
            "because": plant.because,
            "expected": plant.right,
            "named": self.named,
            "why": self.why,
            "verdict": self.verdict,
            "held_out": plant.held_out,
            "subject": _numbers(runs.cold, plant.subject.key),
            "beside": [_numbers(runs.cold, case.key) for case in plant.companions],
            "warm": [_numbers(runs.warm, case.key) for case in plant.apart],
        }


def judge(plant: Plant, runs: Runs) -> Judged:
    """The verdict on one plant: RIGHT, WRONG or NOT_APPLICABLE.

    Not applicable: the device cannot run it, or a check independent of the diagnosis shows that the
    condition was not present. A case that failed is wrong: it has no bottleneck.
    """
    result = runs.cold.result(plant.subject.key)
    if result is None or result.status == "skipped":
        reason = result.reason if result else "not measured"
        return Judged(plant, NOT_APPLICABLE, None, reason or "skipped")
    if result.status != "ok" or result.bound is None:
        return Judged(plant, WRONG, None, f"no bottleneck: {result.reason or 'failed'}")
    missing = _not_planted(plant, result, runs)
    if missing:
        return Judged(plant, NOT_APPLICABLE, None, missing)
    named, why = result.bound, result.why or ""
    if plant.condition == "cache":
        assert runs.warm is not None
        warm = runs.warm.result(plant.subject.key)
        assert warm is not None
        named, why = cache_effect(result, warm, runs.cold, runs.warm)
    right = named not in plant.never if plant.control else named == plant.condition
    return Judged(plant, RIGHT if right else WRONG, named, why)


class Counted(Protocol):
    """Anything with a verdict: a judged plant, or its row in a file."""

    @property
    def verdict(self) -> str:
        """RIGHT, WRONG or NOT_APPLICABLE."""
        ...


def score(judged: Iterable[Counted]) -> tuple[int, int]:
    """(right, counted) of the verdicts; those that are not applicable are not counted."""
    counted = [item for item in judged if item.verdict != NOT_APPLICABLE]
    return sum(item.verdict == RIGHT for item in counted), len(counted)


def passed(judged: Sequence[Counted]) -> bool:
    """Whether at least TARGET_PCT per cent are right; False where none is counted."""
    right, counted = score(judged)
    return counted > 0 and 100 * right >= TARGET_PCT * counted


# ---------------------------------------------------------------- was it planted?


def _not_planted(plant: Plant, result: Result, runs: Runs) -> str | None:
    """Why the condition did not come about, or None."""
    if plant.tile and (result.tile is None or tuple(result.tile[:2]) != plant.tile):
        return f"the kernel took tiles of {result.tile}, not {plant.tile}"
    if any(not _measured(runs.warm, case.key) for case in plant.apart):
        return "the same case was not measured with a warm cache"
    if plant.control:
        return None
    check = _costly if plant.held_out else CHECKS.get(plant.condition)
    return check(plant, result, runs) if check else None


def _measured(run: Run | None, key: str) -> Result | None:
    found = run.result(key) if run else None
    return found if found and found.measurement else None


def _tiny(plant: Plant, result: Result, runs: Runs) -> str | None:
    limits = limits_for(result, runs.cold)
    if not limits.compute_s or not limits.memory_s or not limits.floor_s:
        return "the device's peaks and its launch latency were not measured"
    share = (limits.compute_s + limits.memory_s) / limits.floor_s
    return f"its work takes {100 * share:.0f} % of a launch" if share > TINY_SHARE else None


def _thin(plant: Plant, result: Result, runs: Runs) -> str | None:
    limits = limits_for(result, runs.cold)
    if not limits.compute_s or not limits.memory_s:
        return "the device's peaks were not measured"
    share = limits.compute_s / limits.memory_s
    if share <= THIN_SHARE:
        return None
    return f"its arithmetic takes {100 * share:.0f} % of the time for its bytes"


def _slower_than_twin(plant: Plant, result: Result, runs: Runs) -> str | None:
    gain = _times_companion(plant, result, runs)
    if gain is None:
        return "the same case in nhwc was not measured"
    return f"nhwc is {gain:.2f} times as fast: no cost" if gain < LAYOUT_COSTS else None


def _costly(plant: Plant, result: Result, runs: Runs) -> str | None:
    cost = _times_companion(plant, result, runs)
    if cost is None:
        return "the same GEMM without the defect was not measured"
    return f"the defect takes {cost:.2f} times as long: no cost" if cost < DEFECT_COSTS else None


def _times_companion(plant: Plant, result: Result, runs: Runs) -> float | None:
    """The result's time over that of the same case without what was planted."""
    twin = _measured(runs.cold, plant.companions[0].key)
    return (result.median_s or 0.0) / (twin.median_s or 1.0) if twin else None


def _capped(plant: Plant, result: Result, runs: Runs) -> str | None:
    if result.measurement is None or "power cap" not in result.measurement.throttle:
        return "the card did not report its power cap during the run"
    normal, zeros = (_measured(runs.warm, case.key) for case in plant.apart)
    assert normal is not None
    assert zeros is not None
    gain = (normal.median_s or 0.0) / (zeros.median_s or 1.0)
    return f"zeros are {gain:.2f} times as fast: no power limit" if gain < ZEROS_GAIN else None


Check = Callable[[Plant, Result, Runs], str | None]
CHECKS: Mapping[str, Check] = {
    "launch": _tiny,
    "memory": _thin,
    "layout": _slower_than_twin,
    "power": _capped,
}


def _numbers(run: Run | None, key: str) -> dict[str, Any]:
    """The numbers of a case, without its samples."""
    result = run.result(key) if run else None
    if result is None:
        return {"case": key, "status": "not measured"}
    seen: dict[str, Any] = {"case": key, "status": result.status}
    measurement = result.measurement
    if measurement is None:
        return seen | {"reason": result.reason}
    parts = (
        (measurement, ("median_s", "ci95_s")),
        (result, ("flops", "min_bytes", "efficiency_pct", "bound")),
        (measurement, ("sm_clock_mhz", "power_w", "throttle")),
        (result, ("tile", "kernels", "kernels_s")),
    )
    return seen | {name: getattr(part, name) for part, names in parts for name in names}


# ---------------------------------------------------------------- the cache

GAINS = 1.1  # times faster warm: clocks differ by less between two sessions
SAVED_SHARE = 0.08  # of the cold time that must be saved beyond what the launch latency saves


def cache_effect(cold: Result, warm: Result, run: Run, warm_run: Run) -> tuple[str, str]:
    """("cache", why) if the launch is faster with its tensors in the L2; else ("none", why).

    Cold samples are of one launch with the events' overhead subtracted; warm ones are of ten back
    to back with the gaps between them. So each is compared with the launch latency of its own
    session: what the shortest launch saves too is not due to the tensors.
    """
    if not cold.median_s or not warm.median_s:
        return "none", "one of the two was not measured"
    if cold.kernels != warm.kernels:
        return "none", "a different kernel ran with a warm cache: not comparable"
    gain = cold.median_s / warm.median_s
    change = f"{1e6 * cold.median_s:.1f} us cold, {1e6 * warm.median_s:.1f} us warm"
    size, held = cold.min_bytes, int(run.device.get("l2_bytes") or 0)
    if size > held:
        return "none", f"its {size / 1e6:.0f} MB do not fit the L2's {held / 1e6:.0f} MB: {change}"
    floors = _floor_s(run), _floor_s(warm_run)
    if floors[0] is None or floors[1] is None:
        return "none", "launch latency was not measured"
    saved_s = (cold.median_s - floors[0]) - (warm.median_s - floors[1])
    if gain < GAINS or saved_s < SAVED_SHARE * cold.median_s:
        return "none", f"a warm cache saves {max(0.0, 1e6 * saved_s):.1f} us: {change}"
    return "cache", (
        f"{gain:.1f} times faster when its {size / 1e6:.0f} MB are in the L2 already ({change}; "
        f"{1e6 * saved_s:.1f} us more than a 64x64x64 GEMM saves)"
    )


def _floor_s(run: Run) -> float | None:
    floors = [c.seconds for c in run.ceilings if c.name == "latency floor" and c.seconds]
    return min(floors, default=None)
