"""Arguments for a recorded call, and a launch of it alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from e2e.aten.arena import READ, WARM, WRITTEN, Area, Cold, Pool, fill, in_turns, writable
from e2e.aten.call import (
    Argument,
    Call,
    CannotReplay,
    Named,
    Slot,
    TensorSpec,
    named_arguments,
    resolve,
    slots_of,
)
from e2e.aten.contents import REFUSED, SAVED, Fill, Site, fill_of, run_forward

# Torch says of these that their shape may depend on data; it does for masks, not for indices.
_INDEXED = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_")
_MASKS = ("bool", "uint8")
_OWN_NAMESPACES = ("aten", "prims")


@dataclass(frozen=True)
class Replay:
    """A recorded call ready to run: `launch` calls the operator, with arguments and results that
    the cache does not hold, where there are any; `plain` without that, and returns its result.

    Where arguments are written (`mutated`), `restore` gives them fresh content: call it before each
    block of launches, since calls share the memory, and repeated additions in place would grow to
    infinity. It launches a few kernels, and does not wait for them.
    """

    launch: Callable[[], object]
    plain: Callable[[], object]
    mutated: bool
    restore: Callable[[], None]
    args: tuple[Any, ...] = field(repr=False)
    kwargs: Mapping[str, Any] = field(repr=False)


def materialise(call: Call, device: torch.device, pool: Pool, cold: Cold = WARM) -> Replay:
    """Arguments with the recorded shapes, strides and dtypes on `device`, and a launch with them.

    What the shared memory of `pool` cannot hold (indices, masks, what a forward pass saved) belongs
    to the replay and is freed with it. Raises CannotReplay, with the reason, for calls whose output
    shape or flow depends on data, for custom operators that take integers, and for calls without
    valid arguments here; torch.OutOfMemoryError where memory does not suffice.
    """
    assert pool.device == device, "a pool is for one device"
    func = _refuse_or_resolve(call)
    places = _places(call, pool)
    turns = _turns(places, cold)
    needs = _needs([*places, *itertools.chain(*turns)])
    pool.grow(needs)
    arguments = named_arguments(call, func)
    made = {place.at: _tensor(place, pool) for place in places if not place.saved}
    fills = {place: _filler(place, made, arguments, pool) for place in places if place.at in made}
    restore = _restorer(needs, [fills[place] for place in fills if place.slot.written], pool)
    restore()
    for place, give_content in fills.items():
        if not place.slot.written:
            give_content()
    values = {name: _value(name, value, made, device) for name, value in arguments.items()}
    if any(place.saved for place in places):
        values.update(run_forward(SAVED[call.operator], call, arguments, values))
    args, kwargs = _passed(call, arguments, values)
    launches = [partial(func, *args, **kwargs)]
    for turn in turns:
        there = made | {place.at: _tensor(place, pool) for place in turn}
        names = {place.slot.name for place in turn}
        moved = {name: _value(name, arguments[name], there, device) for name in names}
        its_args, its_kwargs = _passed(call, arguments, values | moved)
        launches.append(partial(func, *its_args, **its_kwargs))
    return Replay(
        in_turns(launches, cold, pool.held) if cold else launches[0],
        launches[0],
        mutated=any(place.slot.written for place in places),
        restore=restore,
        args=args,
        kwargs=kwargs,
    )


def reserve(calls: Iterable[tuple[Call, Cold]], pool: Pool) -> None:
    """Make the pool as large as the largest of these calls needs; calls that cannot run need
    nothing. torch.OutOfMemoryError where it does not fit.
    """
    most: dict[Area, int] = {}
    for call, cold in calls:
        if why_not(call) is None:
            places = _places(call, pool)
            needs = _needs([*places, *itertools.chain(*_turns(places, cold))])
            most |= {area: max(most.get(area, 0), n) for area, n in needs.items()}
    pool.grow(most)


def why_not(call: Call) -> str | None:
    """Why a call cannot be replayed, as reports print it; None if, as far as is known, it can."""
    try:
        _refuse_or_resolve(call)
        slots_of(call)
    except CannotReplay as error:
        return str(error)
    return None


# ------------------------------------------------------------ what cannot run


def _refuse_or_resolve(call: Call) -> OpOverload:
    func = resolve(call.name)
    if reason := _refusal(call, func):
        raise CannotReplay(f"{call.name}: {reason}")
    return func


def _refusal(call: Call, func: OpOverload) -> str | None:
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
    if torch.Tag.dynamic_output_shape in func.tags:
        return "the shape of its output depends on data"
    if torch.Tag.data_dependent_output in func.tags:
        return "waits for the device to read a value"
    if torch.Tag.inplace_view in func.tags:
        return "changes its argument's shape in place, so it cannot be repeated"
    return None


# ------------------------------------------------------------ where arguments lie


_At = tuple[str, int | None]


@dataclass(frozen=True)
class _Place:
    """Where an argument's memory comes from: an area of the pool, or (area None) of its own."""

    slot: Slot
    area: Area | None
    offset: int
    fill: Fill | None
    saved: bool  # by the forward pass, which has not run yet

    @property
    def at(self) -> _At:
        """Its name and place in a list of tensors."""
        return self.slot.name, self.slot.position


def _places(call: Call, pool: Pool) -> list[_Place]:
    """One after another in their areas, so that no two share memory."""
    used: dict[Area, int] = {}
    places: list[_Place] = []
    saved = SAVED[call.operator].outputs if call.operator in SAVED else ()
    for slot in slots_of(call):
        fill_it = fill_of(call.operator, slot)
        area, offset = None, 0
        if slot.name not in saved and (slot.written or fill_it is None):
            use = WRITTEN if slot.written else READ
            area = Area(use, pool.place(slot.spec), slot.spec.torch_dtype)
            offset = used.get(area, 0)
            used[area] = offset + area.aligned(slot.spec.span)
        places.append(_Place(slot, area, offset, fill_it, slot.name in saved))
    return places


def _turns(places: Sequence[_Place], cold: Cold) -> list[list[_Place]]:
    """Further places for the cold arguments, behind all others: a turn each."""
    moving = [place for i, place in enumerate(places) if i in cold.arguments and _moves(place)]
    if not moving:
        return []
    ends = _needs(places)
    turns: list[list[_Place]] = []
    specs = [place.slot.spec for place in moving]
    for _ in range(1, cold.turns(sum(spec.distinct * spec.itemsize for spec in specs))):
        turn: list[_Place] = []
        for place in moving:
            assert place.area is not None
            turn.append(replace(place, offset=ends[place.area]))
            ends[place.area] += place.area.aligned(place.slot.spec.span)
        turns.append(turn)
    return turns


def movable(call: Call) -> tuple[int, ...]:
    """Arguments that can be measured as cold, by their places in `Call.tensors`.

    Only those that are read and hold normal values: those with rules of their own, or saved by a
    forward pass, stay in place. Empty for a call that cannot be replayed.
    """
    if why_not(call) is not None:
        return ()
    places = _places(call, Pool(torch.device("cpu")))
    return tuple(i for i, place in enumerate(places) if _moves(place))


def _moves(place: _Place) -> bool:
    return place.area is not None and place.area.use == READ


def _needs(places: Iterable[_Place]) -> dict[Area, int]:
    needs: dict[Area, int] = {}
    for place in places:
        if place.area is not None:
            needs[place.area] = place.offset + place.area.aligned(place.slot.spec.span)
    return needs


def _tensor(place: _Place, pool: Pool) -> Tensor:
    spec = place.slot.spec
    if place.area is not None:
        return pool.view(place.area, place.offset, spec)
    return torch.empty_strided(
        spec.shape, spec.stride, dtype=spec.torch_dtype, device=pool.place(spec)
    )


def _filler(
    place: _Place, made: Mapping[_At, Tensor], arguments: Mapping[str, Argument], pool: Pool
) -> Callable[[], None]:
    """Gives an argument its content; nothing to do where its area has it already."""
    tensor = writable(made[place.at])
    site = Site(arguments, place.slot.position, pool.generator(tensor.device))
    if place.fill is not None:
        return partial(place.fill, tensor, site)
    return (lambda: None) if place.area is not None else partial(fill, tensor, site.rng)


# ------------------------------------------------------------ what is passed


def _value(
    name: str, value: Argument, made: Mapping[_At, Tensor], device: torch.device,
    position: int | None = None,
) -> Any:  # fmt: skip
    """An argument as torch takes it; None for a tensor that has not been made yet."""
    if isinstance(value, TensorSpec):
        return made.get((name, position))
    if isinstance(value, Named):
        return _constant(value, device)
    if isinstance(value, tuple):
        return [_value(name, item, made, device, place) for place, item in enumerate(value)]
    return value


def _constant(named: Named, device: torch.device) -> Any:
    """The object of torch that a `Named` stands for; the recorded device "cuda" is `device`."""
    if named.kind == "device":
        return device if named.name == "cuda" else torch.device(named.name)
    return getattr(torch, named.name)


def _passed(
    call: Call, arguments: Mapping[str, Argument], values: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the operator is called with."""
    args = tuple(values[name] for name in list(arguments)[: len(call.args)])
    return args, {name: values[name] for name, _ in call.kwargs}


# ------------------------------------------------------------ again


def _restorer(
    needs: Mapping[Area, int], fills: Iterable[Callable[[], None]], pool: Pool
) -> Callable[[], None]:
    """Gives everything that is written fresh content: by type, then what has rules of its own."""
    begun = [
        (pool.beginning(area, elements), pool.generator(area.device))
        for area, elements in needs.items()
        if area.use == WRITTEN
    ]
    again = tuple(fills)

    def restore() -> None:
        for flat, rng in begun:
            fill(flat, rng)
        for give_content in again:
            give_content()

    return restore
