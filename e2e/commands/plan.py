"""From options to arms: which cases a run trains, and which of them are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from e2e.case import (
    COMPRESSIONS,
    FULL,
    LAYOUTS,
    NO_COMPRESSION,
    ON_CPU,
    ArmOptions,
    TrainCase,
    TrainRequest,
)
from e2e.commands.child import DataFacts
from e2e.commands.requests import gpus_of
from e2e.networks.table import GPTS, NetworkFacts, written
from e2e.recipes import RECIPES, parse_recipes
from microbench.errors import UserError
from microbench.sweep import parse_names, parse_numbers
from microbench.worker import Greeting

AMP = "fp32,tf32,amp"
# A card with less memory starts from a quarter of the usual batch.
SMALL_CARD_BYTES = 32e9


@dataclass(frozen=True)
class Planned:
    """An arm; `rung` is what it adds to the one before on a ladder."""

    case: TrainCase
    rung: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Arms that are timed interleaved."""

    arms: tuple[Planned, ...]

    @property
    def cases(self) -> tuple[TrainCase, ...]:
        """The cases of the arms."""
        return tuple(arm.case for arm in self.arms)


@dataclass(frozen=True)
class Work:
    """What all comparisons share: the request, and the device and data that were found.

    `comparisons` are those that were asked for.
    """

    request: TrainRequest
    path: Path
    greeting: Greeting
    facts: DataFacts
    comparisons: Sequence[Comparison]

    @property
    def network(self) -> NetworkFacts:
        """What the training process says of the network."""
        return self.facts.network

    @property
    def kind(self) -> str:
        """The kind of device: "cuda" or "cpu"."""
        return self.greeting.target.kind


def plan(
    network: NetworkFacts, options: ArmOptions, kind: str, memory_bytes: int | None
) -> list[Comparison]:
    """One comparison per batch size and number of GPUs. UserError for options that contradict each
    other.
    """
    if kind == "cpu" or not network.takes_images:  # nothing that cuDNN searches for
        options = replace(options, base=replace(options.base, search=FULL))
    if options.base.freeze and network.name in GPTS:
        raise UserError(
            f"--freeze {options.base.freeze}: the output layer of {network.name} is its token "
            "embedding, which nothing can train alone"
        )
    if options.ladder:
        _check_ladder(options)
    if options.base.graph:
        _check_graph(options.base)
    batches = [_usual_batch(network, kind, options.base.memory_limit or memory_bytes)]
    if options.batch is not None:
        batches = parse_numbers(options.batch, "--batch")
    arms = _ladder(network, options, kind) if options.ladder else _recipes(network, options, kind)
    found: list[Comparison] = []
    for gpus in gpus_of(options):
        own = [one for arm in arms for one in _compressed(arm, options, gpus)]
        found += [
            Comparison(tuple(replace(a, case=replace(a.case, batch=batch, gpus=gpus)) for a in own))
            for batch in (_shares(batches, gpus) if options.strong else batches)
        ]
    return found


def _shares(batches: Sequence[int], gpus: int) -> list[int]:
    """Each batch divided among the GPUs. UserError where it cannot be."""
    for batch in batches:
        if batch % gpus:
            raise UserError(f"--strong: a batch of {batch} cannot be divided among {gpus} GPUs")
    return [batch // gpus for batch in batches]


def _compressed(arm: Planned, options: ArmOptions, gpus: int) -> list[Planned]:
    """The arm with each way to exchange gradients; as it is where there is no other GPU."""
    if options.compress is None:
        return [arm]
    ways = parse_names(options.compress, COMPRESSIONS, "--compress")
    ways = ways if gpus > 1 else [NO_COMPRESSION]
    return [replace(arm, case=replace(arm.case, compress=way)) for way in ways]


def notes(options: ArmOptions, kind: str) -> list[str]:
    """Remarks for the screen on options with another meaning on this device."""
    if kind != "cpu":
        return []
    asked, found = _asked(options), list[str]()
    if max(gpus_of(options)) > 1:
        found.append("On a CPU, GPUs are processes that share its cores.")
    if any(name in ON_CPU for name in asked):
        found.append("On a CPU, amp means amp-bf16: most CPUs have no fast float16 arithmetic.")
    slow = [name for name in asked if name not in ON_CPU and RECIPES[name].half]
    if slow:
        found.append(f"Most CPUs have no fast float16 arithmetic: {', '.join(slow)} will be slow.")
    return found


def _usual_batch(network: NetworkFacts, kind: str, memory_bytes: int | None) -> int:
    if kind == "cpu":
        return network.cpu_batch
    small = memory_bytes is not None and memory_bytes < SMALL_CARD_BYTES
    return max(1, network.batch // 4) if small else network.batch


def _asked(options: ArmOptions) -> list[str]:
    if options.recipe is None:
        return parse_recipes(AMP)
    names = parse_recipes(options.recipe)
    return [*parse_recipes(AMP), *names] if options.amp else names


def _base(network: NetworkFacts, options: ArmOptions, recipe: str, layout: str) -> TrainCase:
    return replace(
        options.base, network=network.name, recipe=recipe, batch=1, input=written(network.input),
        layout=layout, optimizer=options.optimizer or network.optimizer,
    )  # fmt: skip


def _recipes(network: NetworkFacts, options: ArmOptions, kind: str) -> list[Planned]:
    names = _asked(options)
    if kind == "cpu":
        names = [ON_CPU.get(name, name) for name in names]
    return [
        Planned(_base(network, options, recipe, layout))
        for layout in _layouts(network, options, kind)
        for recipe in dict.fromkeys(names)
    ]


def _layouts(network: NetworkFacts, options: ArmOptions, kind: str) -> Sequence[str]:
    if not network.takes_images:
        if options.layout is not None:
            raise UserError(f"--layout needs a network of images; {network.name} takes none")
        return ("",)
    if options.layout is not None:
        return parse_names(options.layout, LAYOUTS, "--layout")
    return ("nhwc",) if kind == "cuda" else ("nchw",)


def _ladder(network: NetworkFacts, options: ArmOptions, kind: str) -> list[Planned]:
    """From plain float32 to a captured step, one change a rung."""
    images = network.takes_images
    start = "nchw" if images else ""
    case = replace(
        _base(network, options, "fp32", start), fused=False, compile=False, graph=False,
        loss_scale=None,
    )  # fmt: skip
    amp = ON_CPU["amp"] if kind == "cpu" else "amp"
    changes: dict[str, dict[str, Any]] = {
        "tf32": {"recipe": "tf32"},
        "channels_last": {"layout": "nhwc"},
        "AMP": {"recipe": amp, "loss_scale": options.base.loss_scale},
        "fused optimizer": {"fused": True},
        "compile": {"compile": True},
        "CUDA graph": {"graph": True},
    }
    if not images:
        del changes["channels_last"]
    arms = [Planned(case, "fp32")]
    for name, change in changes.items():
        changed = replace(case, **change)
        arms.append(Planned(changed, name))
        if kind != "cpu" or name != "tf32":  # which a CPU skips: the next rung goes on from fp32
            case = changed
    return arms


def _check_ladder(options: ArmOptions) -> None:
    for given, name in (
        (options.recipe, "--recipe"), (options.layout, "--layout"), (options.amp, "--amp"),
        (options.base.compile, "--compile"), (options.base.graph, "--graph"),
    ):  # fmt: skip
        if given:
            raise UserError(f"--ladder sets the variants itself; leave out {name}")
    if options.base.accumulate > 1:
        raise UserError(
            "--ladder ends with a CUDA graph of one batch per step; leave out --accumulate"
        )


def _check_graph(base: TrainCase) -> None:
    if base.accumulate > 1:
        raise UserError("--graph needs one batch per step; leave out --accumulate")
    if not base.fused:
        raise UserError("--graph needs the fused optimizer; leave out --no-fused")


def check_device(base: TrainCase, kind: str, memory_bytes: int | None) -> None:
    """UserError for options that this device does not have."""
    limit = base.memory_limit
    if base.graph and kind == "cpu":
        raise UserError("--graph needs a CUDA device; a CPU has no CUDA graphs")
    if limit and kind == "cpu":
        raise UserError("--memory-limit needs a CUDA device; on a CPU torch has no such limit")
    if memory_bytes is not None and limit > memory_bytes:
        raise UserError(
            f"--memory-limit is {limit / 1e9:g} GB; the GPU has {memory_bytes / 1e9:.1f} GB"
        )
