"""Arguments for a recorded call, and a launch of it alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from e2e.aten.arena import ALIGNMENT_BYTES, WARM, Area, Cold, Pool, fill, writable
from e2e.aten.call import (
    Argument,
    Call,
    CannotReplay,
    Named,
    Slot,
    TensorSpec,
)
from e2e.aten.contents import REFUSED, SAVED, Site, fill_of, run_forward

# Torch says of these that their shape may depend on data; it does for masks, not for indices.
_INDEXED = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_")
_MASKS = ("bool", "uint8")
_OWN_NAMESPACES = ("aten", "prims")
_TAGGED = {
    torch.Tag.dynamic_output_shape: "the shape of its output depends on data",
    torch.Tag.data_dependent_output: "waits for the device to read a value",
    torch.Tag.inplace_view: "changes its argument's shape in place, so it cannot be repeated",
}


@dataclass(frozen=True)
class Replay:
    """A recorded call ready to run: `launch` calls the operator, with arguments and results that
    the cache does not hold, where there are any; `plain` without that, and returns its result.

    Where arguments are written, `restore` gives them fresh content: call it before each block of
    launches, since calls share the memory, and repeated additions in place would grow to infinity.
    It launches a few kernels, and does not wait for them.
    """

    launch: Callable[[], object]
    plain: partial[Any]
    restore: Callable[[], None]


def materialise(call: Call, device: torch.device, pool: Pool, cold: Cold = WARM) -> Replay:
    """Arguments with the recorded shapes, strides and dtypes on `device`, and a launch with them.

    What the shared memory of `pool` cannot hold (indices, masks, what a forward pass saved) belongs
    to the replay and is freed with it. Raises CannotReplay, with the reason, for calls whose output
    shape or flow depends on data, for custom operators that take integers, and for calls without
    valid arguments here; torch.OutOfMemoryError where memory does not suffice.
    """
    assert pool.device == device, "a pool is for one device"
    if reason := why_not(call):
        raise CannotReplay(reason)
    layout = _layout(call, pool, cold)
    pool.grow(layout.needs)
    made: dict[_At, Tensor] = {}
    once: list[Callable[[], object]] = []
    again: list[Callable[[], object]] = []
    for slot in call.slots:
        if slot.name in _saved(call):
            continue
        spec, place = slot.spec, layout.places.get(slot)
        made[slot.name, slot.position] = tensor = (
            pool.view(*place, spec)
            if place
            else torch.empty_strided(
                spec.shape, spec.stride, dtype=spec.torch_dtype,
                device=pool.area(spec, False).device,
            )
        )  # fmt: skip
        if (content := fill_of(call.operator, slot)) is not None:
            site = Site(call.named, slot.position, pool.generator(tensor.device))
            (again if slot.written else once).append(partial(content, writable(tensor), site))
    written = [
        (pool.flats[area][:elements], pool.generator(area.device))
        for area, elements in layout.needs.items()
        if area.written
    ]

    def restore() -> None:
        for flat, rng in written:
            fill(flat, rng)
        for give_content in again:
            give_content()

    restore()
    for give_content in once:
        give_content()
    saved = run_forward(call, _values(call, made, device))
    launches: list[partial[Any]] = []
    for turn in layout.turns:
        there = {(s.name, s.position): pool.view(*at, s.spec) for s, at in turn.items()}
        values = _values(call, made | there, device) | saved
        args = [values[name] for name in list(call.named)[: len(call.args)]]
        launches.append(
            partial(call.func, *args, **{name: values[name] for name, _ in call.kwargs})
        )
    launch = pool.in_turns(launches, cold) if cold else launches[0]
    return Replay(launch, launches[0], restore)


def reserve(calls: Iterable[tuple[Call, Cold]], pool: Pool) -> None:
    """Make the pool as large as the largest of these calls needs; calls that cannot run need
    nothing. torch.OutOfMemoryError where it does not fit.
    """
    most: dict[Area, int] = {}
    for call, cold in calls:
        if why_not(call) is None:
            needs = _layout(call, pool, cold).needs
            most |= {area: max(most.get(area, 0), n) for area, n in needs.items()}
    pool.grow(most)


def why_not(call: Call) -> str | None:
    """Why a call cannot be replayed, as reports print it; None if, as far as is known, it can."""
    try:
        if reason := _refusal(call):
            return f"{call.name}: {reason}"
        _ = call.slots
        return None
    except CannotReplay as error:
        return str(error)


def movable(call: Call) -> tuple[int, ...]:
    """Arguments that can be measured as cold, by their places in `Call.tensors`.

    Only those that are read and hold normal values: those with rules of their own, or saved by a
    forward pass, stay in place. Empty for a call that cannot be replayed.
    """
    if why_not(call) is not None:
        return ()
    return tuple(
        i for i, slot in enumerate(call.slots) if _is_shared(call, slot) and not slot.written
    )


# ------------------------------------------------------------ what cannot run


def _refusal(call: Call) -> str | None:
    func = call.func
    if call.operator in REFUSED:
        return REFUSED[call.operator]
    if func.namespace not in _OWN_NAMESPACES and any(
        not spec.torch_dtype.is_floating_point for spec in call.tensors
    ):
        return "a custom operator; the valid values of its integer arguments are unknown"
    if call.operator in _INDEXED:
        indices = call.args[1] if len(call.args) > 1 else ()
        assert isinstance(indices, tuple)
        if any(isinstance(spec, TensorSpec) and spec.dtype in _MASKS for spec in indices):
            return "indexes by a mask: the amount of work depends on data"
        return None
    return next((reason for tag, reason in _TAGGED.items() if tag in func.tags), None)


# ------------------------------------------------------------ where arguments lie


_At = tuple[str, int | None]  # an argument's name, and its place in a list of tensors
_Places = dict[Slot, tuple[Area, int]]  # an area of the pool, and elements from its beginning


@dataclass(frozen=True)
class _Layout:
    """Places of arguments in the pool, no two of which share memory, and the elements that all need
    of each area. What has no place has memory of its own.

    `turns` are further places of the cold arguments; the first turn has none.
    """

    places: _Places
    turns: list[_Places]
    needs: dict[Area, int]


def _layout(call: Call, pool: Pool, cold: Cold) -> _Layout:
    needs: dict[Area, int] = defaultdict(int)

    def placed(slots: Iterable[Slot]) -> _Places:
        found: _Places = {}
        for slot in slots:
            area = pool.area(slot.spec, slot.written)
            found[slot] = area, needs[area]
            unit = max(1, ALIGNMENT_BYTES // area.dtype.itemsize)
            needs[area] += -(-slot.spec.span // unit) * unit
        return found

    places = placed(slot for slot in call.slots if _is_shared(call, slot))
    moving = [call.slots[i] for i in movable(call) if i in cold.arguments]
    turn_bytes = sum(slot.spec.distinct * slot.spec.itemsize for slot in moving)
    more = range(1, cold.turns(turn_bytes) if moving else 1)
    return _Layout(places, [{}, *(placed(moving) for _ in more)], needs)


def _is_shared(call: Call, slot: Slot) -> bool:
    """Whether it lies in the pool: it is written, or holds normal values."""
    own = slot.name in _saved(call)
    return not own and (slot.written or fill_of(call.operator, slot) is None)


def _saved(call: Call) -> Iterable[str]:
    """Arguments that a forward pass saved, which has yet to run."""
    return SAVED[call.operator].outputs if call.operator in SAVED else ()


def _values(call: Call, made: Mapping[_At, Tensor], device: torch.device) -> dict[str, Any]:
    """The arguments as torch takes them; None for a tensor that has not been made yet."""

    def value_of(name: str, value: Argument, position: int | None = None) -> Any:
        if isinstance(value, TensorSpec):
            return made.get((name, position))
        if isinstance(value, tuple):
            return [value_of(name, item, place) for place, item in enumerate(value)]
        if not isinstance(value, Named):
            return value
        if value.kind == "device":  # the recorded device "cuda" is `device`
            return device if value.name == "cuda" else torch.device(value.name)
        return getattr(torch, value.name)

    return {name: value_of(name, value) for name, value in call.named.items()}
