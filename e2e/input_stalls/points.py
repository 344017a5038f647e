"""Which numbers of workers are measured, of all that are predicted. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from microbench.payoff import MIN_GAIN

BUSY_POINTS = 2


def busy_points(workers: Sequence[int]) -> list[int]:
    """How many workers are kept busy beside a training: all of them, and about half as many."""
    counts = sorted({count for count in workers if count > 0})
    if not counts:
        return []
    half = min(counts, key=lambda count: abs(count - counts[-1] / 2))
    return sorted({half, counts[-1]})[-BUSY_POINTS:]


def measured_points(speedups: Mapping[int, float]) -> list[int]:
    """Where a prediction is worth a look: both ends, and both sides of where it begins to pay.

    `speedups` are predicted, by the number of workers.
    """
    counts = sorted(speedups)
    if not counts:
        return []
    chosen = {counts[0], counts[-1]}
    start = pays_from(speedups)
    if start is not None:
        at = counts.index(start)
        chosen |= {counts[max(0, at - 1)], start}
    return sorted(chosen)


def pays_from(speedups: Mapping[int, float]) -> int | None:
    """The fewest workers from which on every speed-up is worth something; None for none."""
    found: int | None = None
    for count in sorted(speedups, reverse=True):
        if speedups[count] < MIN_GAIN:
            break
        found = count
    return found
