"""Linear layers that multiply in FP8: forward, and both products of backward, by torchao; and which
of a network's FP8 makes faster.

Inputs, weights and gradients are cast with scales from their largest values at that moment, one a
tensor ("tensorwise") or one a row of a product ("rowwise"): torchao's recipes of these names.

What casts cost depends on what stands around a layer, which a compiler joins them with. So a shape
of layer is measured in its part of the network: the largest module around it that the network has
several times, such as a transformer's block.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from e2e.results.types import LayerGain, PartGain
from e2e.training.step_timer import StepTimer
from kernels.linear.torch_linear import captured, compiled
from microbench.network.networks import tensors_in
from microbench.results.types import Ratio
from microbench.timing.stats import median, ratio_interval
from microbench.timing.timers import Launch

MULTIPLE = 16  # of sizes that the card's FP8 products take
WARM_STEPS = 3  # the first ones compile
ESTIMATE_STEPS = 3
# Of timing: rounds after the first, which is thrown away, and seconds of a turn, first untimed.
ROUNDS, WARM_S, BLOCK_S = 9, 0.1, 0.1

Shape = tuple[int, int]  # K and N of a layer


class NothingToConvert(Exception):
    """A network without a linear layer of sizes that FP8 takes."""


def convert(
    module: nn.Module, scaling: str, batch: int, chosen: Collection[str] | None = None
) -> tuple[nn.Module, tuple[int, int]]:
    """(the network with its linear layers in FP8, (how many of them, of how many)).

    Left as they are: layers whose sizes are no multiples of 16, subclasses of nn.Linear, whose
    weights others may read (attention's in torch.nn.MultiheadAttention), and those whose names are
    not `chosen`. NothingToConvert where no layer could be. Backward sums over the rows of a batch:
    unless `batch` is a multiple of 16, they are padded to one.
    """
    # torch warns of what torchao registers when it is imported
    logging.getLogger("torch.utils._pytree").addFilter(
        lambda record: "register_constant" not in record.getMessage()
    )
    from torchao.float8 import (  # pyright: ignore[reportMissingTypeStubs]
        Float8LinearConfig,
        convert_to_float8_training,
    )

    able, linear = _fitting(module)
    names = set(able if chosen is None else chosen)
    config = Float8LinearConfig.from_recipe_name(scaling)
    converted = convert_to_float8_training(
        module,
        config=replace(config, pad_inner_dim=batch % MULTIPLE > 0),
        module_filter_fn=lambda _, name: name in names,
    )
    return converted, (len(names), linear)


def _named(module: nn.Module) -> dict[str, nn.Module]:
    return dict(cast("Iterator[tuple[str, nn.Module]]", module.named_modules()))


def _fitting(module: nn.Module) -> tuple[dict[str, nn.Linear], int]:
    """(The linear layers that FP8 takes, by name; how many there are of all.)"""
    linear = {name: layer for name, layer in _named(module).items() if isinstance(layer, nn.Linear)}
    able = {
        name: layer for name, layer in linear.items()
        if type(layer) is nn.Linear
        and layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0
    }  # fmt: skip
    if not able:
        raise NothingToConvert(
            f"FP8 is for linear layers with sizes that are multiples of {MULTIPLE}: it has none"
        )
    return able, len(linear)


# ---------------------------------------------------------------- which layers gain


@dataclass(frozen=True)
class Way:
    """How a training casts and launches, which decides what FP8 gains. Compiled steps launch faster
    than the GPU runs: of them a graph is captured, as where the training `captures` its step.
    """

    scaling: str
    batch: int
    evaluates: bool
    compiles: bool
    captures: bool


@dataclass
class _Part:
    """A module that a network has at `places`, as it was called first; `layers` are the names in it
    of those that FP8 takes.
    """

    module: nn.Module
    arguments: tuple[Any, Any]
    key: str
    places: list[str] = field(default_factory=list[str])
    layers: dict[Shape, list[str]] = field(default_factory=dict[Shape, list[str]])
    rows: dict[Shape, int] = field(default_factory=dict[Shape, int])


def part_gains(
    module: nn.Module,
    forward: Callable[[], object],
    way: Way,
    timer: StepTimer,
    known: Callable[[str], PartGain | None],
    announce: Callable[[str], object],
) -> tuple[dict[str, PartGain], frozenset[str]]:
    """(What FP8 gains in each part of the network, by a name; the names of the layers to convert.)

    What is `known` by its name is not measured. `forward` calls the module on a batch.
    NothingToConvert where no layer could be converted.
    """
    by_name: dict[str, PartGain] = {}
    chosen: set[str] = set()
    for part in _parts(module, forward, way):
        name = "/".join([
            version("torchao"), way.scaling, "forward" if way.evaluates else "both",
            "compiled" if way.compiles else "eager", "graph" if way.captures else "launched",
            "padded" if way.batch % MULTIPLE else "whole", part.key,
        ])  # fmt: skip
        gains = known(name)
        if gains is None:
            announce("timing a part of the network with and without FP8")
            try:
                gains = _measured(part, way, timer)
            except RuntimeError:
                if not way.captures:
                    raise
                gains = _measured(part, replace(way, captures=False), timer)  # it may wait
        by_name[name] = replace(gains, places=len(part.places))
        for gain in gains.layers:
            layers = part.layers[gain.k, gain.n] if gain.converted else []
            chosen |= {
                ".".join(filter(None, (place, layer))) for place in part.places for layer in layers
            }
    return by_name, frozenset(chosen)


def choice(
    alone: Sequence[Ratio], every: Ratio, both: Callable[[frozenset[int]], tuple[Ratio, Ratio]]
) -> tuple[frozenset[int], Ratio | None]:
    """(Which shapes are converted, what that gains): those that gain `alone`, or all, whichever is
    faster; none where neither gains beyond its interval.

    `every` is what all of them gain; `both` times some of them and all once more.
    """
    whole = frozenset(range(len(alone)))
    some = frozenset(place for place in whole if alone[place].ratio > 1)
    gains = {whole: every}
    if some and some != whole:
        gains[some], gains[whole] = both(some)
    sure = [shapes for shapes, gain in gains.items() if gain.ci95 and gain.ci95[0] > 1]
    best = max(sure, key=lambda shapes: gains[shapes].ratio, default=frozenset[int]())
    return best, gains.get(best)


def _parts(module: nn.Module, forward: Callable[[], object], way: Way) -> list[_Part]:
    """The parts with layers that FP8 takes, as a forward pass calls them."""
    able, _ = _fitting(module)
    modules = _named(module)
    kinds = {name: _structure(child) for name, child in modules.items()}
    count = Counter(kinds.values())
    inside: dict[str, list[str]] = {}
    for name in able:
        steps = name.split(".")
        around = [".".join(steps[:depth]) for depth in range(1, len(steps) + 1)]
        place = next((path for path in around if count[kinds[path]] > 1), name)
        inside.setdefault(place, []).append(name)
    parts: dict[str, _Part] = {}
    rows: dict[str, int] = {}

    def met(place: str, called: nn.Module, given: Any, named: Any) -> None:
        shapes = tree_map(_described, (given, named))
        key = hashlib.sha256(f"{kinds[place]} {shapes}".encode()).hexdigest()[:16]
        part = parts.setdefault(key, _Part(called, tree_map(_leaf, (given, named)), key))
        if place not in part.places:
            part.places.append(place)

    def counted(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        rows[name] = given[0].numel() // able[name].in_features

    handles = [
        *(modules[place].register_forward_pre_hook(partial(met, place), with_kwargs=True)
          for place in inside),
        *(layer.register_forward_pre_hook(partial(counted, name)) for name, layer in able.items()),
    ]  # fmt: skip
    try:
        with torch.set_grad_enabled(not way.evaluates):
            forward()
    finally:
        for handle in handles:
            handle.remove()
    for part in parts.values():
        first = part.places[0]
        for name in inside[first]:
            if name in rows:
                shape = able[name].in_features, able[name].out_features
                part.layers.setdefault(shape, []).append(name[len(first) :].removeprefix("."))
                part.rows[shape] = rows[name]
    return [part for part in parts.values() if part.layers]


def _structure(module: nn.Module) -> str:
    """What a module is made of and does: its layers with their settings, and their code."""
    kinds = {type(child) for child in module.modules()}
    codes = sorted(
        f"{kind.__module__}.{kind.__qualname__} {code.co_code.hex()}"
        for kind in kinds
        if (code := getattr(kind.forward, "__code__", None))
    )
    return f"{module!r} {codes}"


def _described(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.dtype, tuple(value.shape), value.stride(), value.requires_grad


def _leaf(value: Any) -> Any:
    """A copy of a tensor, which gets a gradient where it has one."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _measured(part: _Part, way: Way, timer: StepTimer) -> PartGain:
    """What FP8 gains in each shape of the part alone, and in those that are to be converted."""
    shapes = [*part.layers]

    def layers_of(places: Collection[int]) -> list[str]:
        return [name for place in sorted(places) for name in part.layers[shapes[place]]]

    every = layers_of(range(len(shapes)))
    ways = [*part.layers.values(), *[every] * (len(shapes) > 1)]
    bf16_s, ratios = _timed(part, ways, way, timer)
    alone = ratios[: len(shapes)]
    converted, gain = choice(
        alone, ratios[-1],
        lambda some: cast(
            "tuple[Ratio, Ratio]", tuple(_timed(part, [layers_of(some), every], way, timer)[1])
        ),
    )  # fmt: skip
    layers = tuple(
        LayerGain(part.rows[shape], *shape, len(part.layers[shape]), ratio, place in converted)
        for place, (shape, ratio) in enumerate(zip(shapes, alone, strict=True))
    )
    return PartGain(1, bf16_s, layers, gain)


def _timed(
    part: _Part, ways: Sequence[Sequence[str]], way: Way, timer: StepTimer
) -> tuple[float, list[Ratio]]:
    """(Seconds of the part in bfloat16; how many times as fast it is with these layers in FP8.)

    All take turns, in a new order each round; steps follow each other without a stop, as in
    training.
    """
    every: list[Sequence[str]] = [[], *ways]
    steps = [_step(part, layers, way) for layers in every]
    each_s: list[float] = []
    for step in steps:
        timer.run(step, WARM_STEPS)
        each_s.append(median(timer.block(step, ESTIMATE_STEPS).times_s))
    blocks: list[list[tuple[float, ...]]] = [[] for _ in steps]
    order = [*range(len(steps))]
    for _ in range(1 + ROUNDS):
        random.shuffle(order)
        for place in order:
            timer.run(steps[place], int(WARM_S / each_s[place]) + 1)
            count = int(BLOCK_S / each_s[place]) + 1
            blocks[place].append(timer.block(steps[place], count).times_s)
    base, *others = (block[1:] for block in blocks)
    return median([median(times) for times in base]), [
        Ratio(*ratio_interval(base, other)) for other in others
    ]


def _step(part: _Part, layers: Sequence[str], way: Way) -> Launch:
    """Forward, and backward of a training, of a copy of the part with these layers in FP8."""
    module: nn.Module = copy.deepcopy(part.module)
    if layers:
        module, _ = convert(module, way.scaling, way.batch, layers)
    given, named = part.arguments
    leaves = [tensor for tensor in tensors_in((given, named)) if tensor.requires_grad]
    leaves += [weight for weight in module.parameters() if weight.requires_grad]
    kind = next(module.parameters()).device.type

    def forward(given: Any, named: Any) -> Any:
        with torch.autocast(kind, torch.bfloat16):
            return module(*given, **named)

    run = compiled(forward) if way.compiles else forward

    def evaluated() -> Sequence[Tensor]:
        with torch.no_grad():
            return [*tensors_in(run(given, named))]

    if way.evaluates:
        return captured(evaluated) if way.captures else evaluated
    gradients: list[Tensor] = []  # made in a step: a capture must not wait for other streams

    def step() -> Sequence[Tensor]:
        results = [tensor for tensor in tensors_in(run(given, named)) if tensor.requires_grad]
        if not gradients:
            gradients.extend(torch.randn_like(tensor) for tensor in results)
        return torch.autograd.grad(results, leaves, gradients, materialize_grads=True)

    return captured(step) if way.captures else step
