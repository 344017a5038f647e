"""Times of calls that cannot be launched alone, taken where a real step makes them.

What such a call does depends on data that only the step has. Other calls of the step run as always;
these are waited for, so that each is timed by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from e2e.learner import Learner
from e2e.networks import Network
from e2e.predict.pace import HostPace
from e2e.predict.recorder import SKIPPED
from e2e.predict.replay import OpTime, Stopwatch
from e2e.predict.trace import SEED, Trace, fixed_feed
from e2e.recipes import recipe_of
from microbench.stats import median

WARM_STEPS, STEPS = 2, 5


@dataclass(frozen=True)
class Nth:
    """A call of a step by its operator's name, and how many of that name came before it.

    By that a real step and its trace agree even where sizes depend on data, or where a fake step
    has a few calls less.
    """

    name: str
    before: int


def time_in_step(
    network: Network, traced: Trace, device: torch.device, classes: int,
    wanted: Mapping[int, str], stopwatch: Stopwatch, pace: HostPace,
) -> dict[str, OpTime]:  # fmt: skip
    """The times, by key, of the calls at these places of the trace, each with its key: the medians
    over STEPS steps of the mean of those that share a key. A call that the real step does not make
    has none. Raises what the step raises.
    """
    case = traced.case
    learner = Learner(network, case, recipe_of(case), device, seed=SEED)
    feed = fixed_feed(network, case, device, classes)
    for _ in range(WARM_STEPS):
        learner.step(feed)
    named = list(_numbered(op.call.name for op in traced.ops))
    chosen = {named[place]: key for place, key in wanted.items()}
    waiting: set[str] = set()
    steps: list[dict[str, OpTime]] = []
    while len(steps) < STEPS:
        known = len(waiting)
        before = pace.now()
        with _Timed(chosen, waiting, stopwatch) as timed:
            learner.step(feed)
        host_pace = fmean((before, pace.now()))
        if len(waiting) == known:  # else some were taken for what they are not
            steps.append({key: _mean(times, host_pace) for key, times in timed.found.items()})
    keys = dict.fromkeys(key for step in steps for key in step)
    return {key: _median([step[key] for step in steps if key in step]) for key in keys}


class _Timed(TorchDispatchMode):
    """Times the `chosen` calls, by their keys; learns which are `waiting` for the device."""

    def __init__(self, chosen: Mapping[Nth, str], waiting: set[str], stopwatch: Stopwatch) -> None:
        super().__init__()
        self.found: dict[str, list[OpTime]] = {}
        self._chosen, self._waiting, self._stopwatch = chosen, waiting, stopwatch
        self._seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one call."""
        name, kwargs = str(func), kwargs or {}
        key = None
        if not name.startswith(SKIPPED):
            key = self._chosen.get(Nth(name, self._seen[name]))
            self._seen[name] += 1
        if key is None:
            return func(*args, **kwargs)
        out, taken = self._stopwatch.once(lambda: func(*args, **kwargs), waits=key in self._waiting)
        if taken is None:
            self._waiting.add(key)
        else:
            self.found.setdefault(key, []).append(taken)
        return out


def _numbered(names: Iterable[str]) -> Iterator[Nth]:
    seen: Counter[str] = Counter()
    for name in names:
        yield Nth(name, seen[name])
        seen[name] += 1


def _mean(times: list[OpTime], host_pace: float) -> OpTime:
    """Of the launches of a step, the host's time as at pace 1."""
    return replace(
        times[0],
        gpu_s=fmean(one.gpu_s for one in times),
        host_s=fmean(one.host_s for one in times) / host_pace,
        scratch_bytes=max(one.scratch_bytes for one in times),
    )


def _median(times: list[OpTime]) -> OpTime:
    """Of the steps, in order, since it was known whether it waits."""
    times = [one for one in times if one.waits is times[-1].waits]
    return replace(
        times[0],
        gpu_s=median([one.gpu_s for one in times]),
        host_s=median([one.host_s for one in times]),
        scratch_bytes=max(one.scratch_bytes for one in times),
    )
