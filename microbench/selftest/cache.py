"""Whether the L2 holds a case: the same launch timed with the cache emptied and left as it is."""

from __future__ import annotations

from microbench.results.types import Result, Run

GAINS = 1.1  # times faster warm: a gain under this is within what clocks do between two sessions
SAVED_SHARE = 0.08  # of the cold time that must be saved beyond what the shortest launch saves


def cache_effect(cold: Result, warm: Result, run: Run, warm_run: Run) -> tuple[str, str]:
    """("cache", why) when the launch is faster for finding its tensors in the L2; else ("none", …).

    Cold and warm readings do not hold the same overhead: cold ones are of one launch with what
    events add taken off, warm ones of ten back to back with the gaps between them. So each is held
    against the shortest launch as its own session timed it: what that one saves too (gaps, code and
    descriptors that are in a cache already) is not the tensors'.
    """
    if not cold.median_s or not warm.median_s:
        return "none", "one of the two was not measured"
    if cold.kernels != warm.kernels:
        return "none", "another kernel ran with a warm cache: not comparable"
    gain = cold.median_s / warm.median_s
    change = f"{1e6 * cold.median_s:.1f} us cold, {1e6 * warm.median_s:.1f} us warm"
    size, held = cold.min_bytes, int(run.device.get("l2_bytes") or 0)
    if size > held:
        return "none", f"its {size / 1e6:.0f} MB do not fit the L2's {held / 1e6:.0f} MB: {change}"
    floors = _floor_s(run), _floor_s(warm_run)
    if floors[0] is None or floors[1] is None:
        return "none", "no latency floor to hold the two against"
    saved_s = (cold.median_s - floors[0]) - (warm.median_s - floors[1])
    if gain < GAINS or saved_s < SAVED_SHARE * cold.median_s:
        return "none", f"a warm cache saves {max(0.0, 1e6 * saved_s):.1f} us: {change}"
    return "cache", (
        f"{gain:.1f} times faster when its {size / 1e6:.0f} MB are in the L2 already ({change}; "
        f"{1e6 * saved_s:.1f} us of it beyond what a 64x64x64 product saves)"
    )


def _floor_s(run: Run) -> float | None:
    floors = [c.seconds for c in run.ceilings if c.name == "latency floor" and c.seconds]
    return min(floors, default=None)
