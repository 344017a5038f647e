"""Times of the calls that a step is made of: from disk or measured now, each distinct one once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import torch

from e2e.aten import CannotReplay, Pool, materialise, reserve, why_not
from e2e.case import FULL, TrainCase
from e2e.prediction.op_timer.cuda import CudaStopwatch, silent
from e2e.prediction.op_timer.op_timer import (
    TOO_LARGE,
    CpuStopwatch,
    MeasuredTime,
    OpTime,
    PlacedCall,
    Stopwatch,
)
from e2e.prediction.op_timer.store import Store
from e2e.prediction.padding import CONVOLUTIONS
from e2e.prediction.trace.fake_trace import Trace
from e2e.prediction.trace.recorder import TracedOp, is_view, kind
from e2e.recipes import algorithms_timed, recipe_of, switch_process
from e2e.training.speed_readings import HostSpeed
from kernels.case import Target
from kernels.error_words import first_line


@dataclass(frozen=True)
class CallTimes:
    """The times of a trace's calls by `key_of`, and the reasons why others have none."""

    known: Mapping[str, OpTime]
    problems: Mapping[str, str]


class CallTimer:
    """Times calls on one device and stores their times on disk."""

    def __init__(self, target: Target, store: Store, host_speed: HostSpeed) -> None:
        self.device = torch.device(target.torch_device)
        self.store = store
        self.doing: Callable[[str], object] = silent  # called with each part as it begins
        self.stopwatch: Stopwatch = CpuStopwatch()
        if target.kind == "cuda":
            self.stopwatch = CudaStopwatch(target, host_speed, lambda part: self.doing(part))
        self._launched = set[str]()  # timed by this process, by key

    def times(self, traced: Trace, only: Container[int] | None = None) -> CallTimes:
        """Times of every call that launches something, or `only` of those at some places.

        Calls that are not on disk are measured; the host's time among the known calls of the step.
        """
        calls, _ = _distinct(traced, only)
        known = {key: time for key in calls if (time := self.store.get(key)) is not None}
        missing = {key: op for key, op in calls.items() if key not in known}
        switch_process(recipe_of(traced.case), self.device.type, traced.case.search)
        problems = {
            key: _without_name(why, op)
            for key, op in missing.items()
            if (why := why_not(op.call)) is not None
        }
        missing = {key: op for key, op in missing.items() if key not in problems}
        if not missing:
            return CallTimes(known, problems)
        step, places = _distinct(traced)
        rest = {key: op for key, op in step.items() if self._goes_on(key, op)}
        made, more = self._made(traced, {**missing, **rest}, places)
        counted = {key: made.pop(key) for key in missing if key in made}
        among = list(made.values())
        found = dict(zip(counted, self.stopwatch.times(list(counted.values()), among), strict=True))
        self._launched |= found.keys()
        problems |= {key: more[key] for key in missing if key in more}
        new = {key: taken for key, taken in found.items() if isinstance(taken, MeasuredTime)}
        problems |= {key: why for key, why in found.items() if isinstance(why, str)}
        self.store.add({key: taken.time for key, taken in new.items() if taken.steady})
        return CallTimes(known | {key: taken.time for key, taken in new.items()}, problems)

    def passes(self, traced: Trace) -> Callable[[], float]:
        """A function that launches every call as the step does and returns the host's seconds.

        cuDNN takes its first algorithm. The process's switches are set for the recipe now, and
        should be so at every pass.
        """
        switch_process(recipe_of(traced.case), self.device.type, None)
        counted, _ = self._made(traced, *_distinct(traced))
        return self.stopwatch.passes(list(counted.values()))

    def counted(self, traced: Trace, known: Mapping[str, OpTime]) -> list[PlacedCall]:
        """The `known` calls, ready to launch as often as the step does. RuntimeError if one is not.

        Each launch has small arguments of its own where the step does not find them in the cache.
        """
        calls, places = _distinct(traced)
        calls = {key: op for key, op in calls.items() if key in known}
        switch_process(recipe_of(traced.case), self.device.type, traced.case.search)
        small = {key: [traced.ops[i].cold.small for i in places[key]] for key in calls}
        counted, problems = self._made(traced, calls, places, small)
        for key, why in problems.items():
            raise RuntimeError(f"{calls[key].call.name}, among the others: {why}")
        return list(counted.values())

    def _goes_on(self, key: str, op: TracedOp) -> bool:
        """Whether to launch a known call while others are timed on the host.

        Not one for which cuDNN would search first, because this process has not launched it.
        """
        time = self.store.get(key)
        if not self.stopwatch.others_matter or time is None or time.waits:
            return False
        return key in self._launched or op.call.operator not in CONVOLUTIONS

    def _made(
        self, traced: Trace, ops: Mapping[str, TracedOp], places: Mapping[str, Sequence[int]],
        apart: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> tuple[dict[str, PlacedCall], dict[str, str]]:  # fmt: skip
        """The calls at these places, ready to launch, in the step's order; and why others are not.

        The launches of each differ in their small arguments, as `apart` says; see `materialise`.
        """
        counted: dict[str, PlacedCall] = {}
        problems: dict[str, str] = {}
        pool = self._pool(dict(ops), problems)
        for key in ops.keys() - problems.keys():
            try:
                replay = materialise(
                    ops[key].call, self.device, pool, ops[key].cold,
                    apart=apart[key] if apart else (),
                )  # fmt: skip
            except torch.OutOfMemoryError:
                problems[key] = TOO_LARGE
            except CannotReplay as problem:
                problems[key] = _without_name(first_line(problem), ops[key])
            else:
                backward = [place for place in places[key] if traced.ops[place].phase == "backward"]
                counted[key] = PlacedCall(replay, tuple(places[key]), frozenset(backward))
        return {key: counted[key] for key in ops if key in counted}, problems

    def _pool(self, ops: dict[str, TracedOp], problems: dict[str, str]) -> Pool:
        """Memory for the largest call; calls that the device cannot hold become problems."""
        while True:
            pool = Pool(self.device)
            try:
                reserve([(op.call, op.cold) for op in ops.values()], pool)
            except torch.OutOfMemoryError:
                largest = max(ops, key=lambda key: sum(t.bytes for t in ops[key].call.tensors))
                del ops[largest]
                problems[largest] = TOO_LARGE
                continue
            return pool


def _distinct(
    traced: Trace, only: Container[int] | None = None
) -> tuple[dict[str, TracedOp], dict[str, list[int]]]:
    """The calls that launch something and their places in the step, by `key_of`.

    At `only` some places, or at all.
    """
    calls: dict[str, TracedOp] = {}
    places: dict[str, list[int]] = {}
    for place, op in enumerate(traced.ops):
        if not is_view(op) and (only is None or place in only):
            key = key_of(traced.case, op)
            calls.setdefault(key, op)
            places.setdefault(key, []).append(place)
    return calls, places


def key_of(case: TrainCase, op: TracedOp) -> str:
    """The key of a call's time: the call, what the cache does not hold of it, TF32 if on, and the
    search for a convolution's algorithm unless it is the full one.
    """
    recipe = recipe_of(case)
    tf32 = recipe.tf32 and kind(op) == "product"
    search = ""
    if case.search != FULL and op.call.operator in CONVOLUTIONS:
        search = "short search" if algorithms_timed(recipe, case.search) else "no search"
    return " ".join(filter(None, ("tf32" * tf32, search, op.cold.key, op.call.key)))


def step_key(traced: Trace, known: Container[str]) -> str:
    """A hash of the step's `known` calls that launch something, in order: 16 hexadecimal digits."""
    keys = (key_of(traced.case, op) for op in traced.ops if not is_view(op))
    keys = (key for key in keys if key in known)
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]


def _without_name(why: str, op: TracedOp) -> str:
    return why.removeprefix(f"{op.call.name}: ")
