"""Times calls that cannot be launched alone, inside a real training step.

What such a call does depends on data that only the step has. The step's other calls run as always;
these are waited for, so that each is timed by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from e2e.aten import tensors_among
from e2e.networks import Network
from e2e.prediction.op_timer.op_timer import OpTime, Stopwatch
from e2e.prediction.trace.fake_trace import SEED, Trace, fixed_feed
from e2e.recipes import recipe_of
from e2e.training.speed_readings import HostSpeed, SpeedBetween
from e2e.training.step_timer import union_s
from e2e.training.trainer import Trainer
from microbench.device.profiler import KernelTime
from microbench.network.call_recorder import CallRecorder, Origin
from microbench.timing.stats import median

WARM_STEPS, LOOKS, STEPS = 2, 3, 5
HELD = 2  # steps in which a call holds the host before it is taken for one that waits


class Nth(NamedTuple):
    """A call of a step: its operator's name, and how many calls of that name came before it.

    This finds the same call in a real step and in its trace, even where sizes depend on data or a
    fake step has a few calls less.
    """

    name: str
    before: int


@dataclass(frozen=True)
class Wanted:
    """A call to time: its key, and the (type, number of dimensions) of each of its tensors.

    These confirm that the real step's call is the same one.
    """

    key: str
    tensors: tuple[tuple[torch.dtype, int], ...]


def time_in_step(
    network: Network, traced: Trace, device: torch.device, classes: int,
    wanted: Mapping[int, str], stopwatch: Stopwatch, host_speed: HostSpeed,
) -> dict[str, OpTime]:  # fmt: skip
    """Times by key of the calls in `wanted` (place in the trace: key), from real steps.

    Each is the median over STEPS steps of the mean over calls that share the key. A call that the
    real step does not make has no time. Raises what the step raises.
    """
    case = traced.case
    trainer = Trainer(network, case, recipe_of(case), device, seed=SEED)
    feed = fixed_feed(network, case, device, classes)
    for _ in range(WARM_STEPS):
        trainer.step(feed)
    chosen = _chosen(traced, wanted)

    def marked_steps(mark: Callable[[str | None], None]) -> None:
        def watch(key: str, run: Callable[[], Any]) -> Any:
            mark(key)
            out = run()
            mark(None)
            return out

        for _ in range(LOOKS):
            with _Watching(chosen, watch):
                trainer.step(feed)

    seen = stopwatch.kernels_in(marked_steps)
    waiting: set[str] = set()
    held: Counter[str] = Counter()
    steps: list[dict[str, OpTime]] = []
    between = SpeedBetween(host_speed)
    while len(steps) < STEPS:
        timer = _Timer(stopwatch, waiting)
        with _Watching(chosen, timer.watch):
            trainer.step(feed)
        slowdown = between.ends()
        held.update(timer.held)
        waits = {key for key in timer.held if held[key] >= HELD}
        if waits:
            waiting |= waits
            steps.clear()
        elif not timer.held:
            found = timer.found.items()
            steps.append({key: _mean(times, slowdown, seen.get(key, ())) for key, times in found})
    keys = dict.fromkeys(key for step in steps for key in step)
    return {key: _median([step[key] for step in steps if key in step]) for key in keys}


class _Timer:
    """Times calls by key; `held` are those that unexpectedly waited for the device."""

    def __init__(self, stopwatch: Stopwatch, waiting: set[str]) -> None:
        self.found: dict[str, list[OpTime]] = {}
        self.held: set[str] = set()
        self._stopwatch, self._waiting = stopwatch, waiting

    def watch(self, key: str, run: Callable[[], Any]) -> Any:
        """Run a call."""
        out, taken = self._stopwatch.once(run, waits=key in self._waiting)
        if taken is None:
            self.held.add(key)
        else:
            self.found.setdefault(key, []).append(taken)
        return out


class _Watching(CallRecorder):
    """Runs the `chosen` calls of one step through `watch`, with their keys."""

    def __init__(
        self, chosen: Mapping[Nth, Wanted], watch: Callable[[str, Callable[[], Any]], Any]
    ) -> None:
        super().__init__()
        self._chosen, self._watch = chosen, watch
        self._seen: Counter[str] = Counter()

    def on_call(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], origin: Origin
    ) -> Any:
        """Run one call."""
        name = str(func)
        wanted = self._chosen.get(Nth(name, self._seen[name]))
        self._seen[name] += 1
        tensors = tuple((each.dtype, each.dim()) for each in tensors_among(args, kwargs))
        if wanted is None or tensors != wanted.tensors:
            return func(*args, **kwargs)
        return self._watch(wanted.key, partial(func, *args, **kwargs))


def _chosen(traced: Trace, wanted: Mapping[int, str]) -> dict[Nth, Wanted]:
    chosen: dict[Nth, Wanted] = {}
    seen: Counter[str] = Counter()
    for place, op in enumerate(traced.ops):
        name = op.call.name
        if place in wanted:
            tensors = tuple((spec.torch_dtype, len(spec.shape)) for spec in op.call.tensors)
            chosen[Nth(name, seen[name])] = Wanted(wanted[place], tensors)
        seen[name] += 1
    return chosen


def _mean(times: Sequence[OpTime], slowdown: float, seen: Sequence[Sequence[KernelTime]]) -> OpTime:
    """The mean over a step's launches, the host's time at the reference speed.

    Of a call that waits, the time without a running kernel is the host's: launching it, and
    noticing its end.
    """
    gpu_s, host_s = fmean(one.gpu_s for one in times), fmean(one.host_s for one in times)
    busy_s = min(gpu_s, fmean(map(union_s, seen))) if seen else None
    if times[0].waits and busy_s is not None:
        gpu_s, host_s = busy_s, gpu_s - busy_s
    return replace(
        times[0],
        gpu_s=gpu_s,
        host_s=host_s / slowdown,
        scratch_bytes=max(one.scratch_bytes for one in times),
        busy_s=busy_s,
        kernels=max(1, round(fmean(map(len, seen)))) if seen else 1,
    )


def _median(times: Sequence[OpTime]) -> OpTime:
    """Over steps, each number by itself: kernels run no longer than the call, as in each step."""
    busy_s = [one.busy_s for one in times if one.busy_s is not None]
    return replace(
        times[0],
        gpu_s=median([one.gpu_s for one in times]),
        host_s=median([one.host_s for one in times]),
        scratch_bytes=max(one.scratch_bytes for one in times),
        busy_s=median(busy_s) if busy_s else None,
    )
