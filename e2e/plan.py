"""From options to cases: which trainings a run has, and which of them are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from e2e.case import COMPRESSIONS, FULL, LAYOUTS, NO_COMPRESSION, ON_CPU, TrainCase
from e2e.networks.table import NetworkFacts, written
from e2e.options import TrainOptions
from e2e.recipes import RECIPES, parse_recipes
from microbench.errors import UserError
from microbench.sweep import parse_names, parse_numbers

AMP = "fp32,tf32,amp"
LEVELS = ("O0", "O1", "O2", "O3")
# A card with less memory starts from a quarter of the usual batch.
SMALL_CARD_BYTES = 32e9

Cases = list[TrainCase]  # of one comparison, which are timed interleaved


def plan(
    options: TrainOptions, network: NetworkFacts, kind: str, memory_bytes: int | None
) -> list[Cases]:
    """One comparison per batch size and number of GPUs, on a device of kind "cuda" or "cpu".

    UserError for options that contradict each other.
    """
    _check(options, network)
    given: dict[str, Any] = options.of_case | {
        "network": network.name, "input": written(network.input),
        "optimizer": options.optimizer or network.optimizer,
    }  # fmt: skip
    if kind == "cpu" or not network.takes_images:  # nothing that cuDNN searches for
        given["search"] = FULL
    if options.ladder:
        changes = [change for _, change in ladder(network, kind)]
        if options.loss_scale is not None:
            changes = [change | _scaled(change, options.loss_scale) for change in changes]
    else:
        recipes = _recipes_of(options)
        if kind == "cpu":
            recipes = [ON_CPU.get(name, name) for name in recipes]
        changes: list[dict[str, Any]] = [
            {"layout": layout, "recipe": recipe}
            for layout in _layouts(network, options, kind)
            for recipe in dict.fromkeys(recipes)
        ]
    ways = parse_names(options.compress or NO_COMPRESSION, COMPRESSIONS, "--compress")
    comparisons: list[Cases] = []
    for gpus in options.all_gpus:
        for batch in _batches(network, options, kind, memory_bytes, gpus):
            own: dict[str, Any] = {"batch": batch, "gpus": gpus}
            cases = [TrainCase(**{**given, **change, **own}) for change in changes]
            each = ways if gpus > 1 else [NO_COMPRESSION]
            comparisons.append([replace(case, compress=way) for case in cases for way in each])
    return comparisons


def _recipes_of(options: TrainOptions) -> list[str]:
    if options.recipe is None:
        return parse_recipes(AMP)
    names = parse_recipes(options.recipe)
    return [*parse_recipes(AMP), *names] if options.amp else names


def _layouts(network: NetworkFacts, options: TrainOptions, kind: str) -> Sequence[str]:
    if not network.takes_images:
        if options.layout is not None:
            raise UserError(f"--layout needs a network of images; {network.name} takes none")
        return ("",)
    if options.layout is not None:
        return parse_names(options.layout, LAYOUTS, "--layout")
    return ("nhwc",) if kind == "cuda" else ("nchw",)


def _batches(
    network: NetworkFacts, options: TrainOptions, kind: str, memory_bytes: int | None, gpus: int
) -> list[int]:
    """The batches of one GPU. UserError for one that cannot be divided among the GPUs."""
    usual = network.cpu_batch if kind == "cpu" else network.batch
    memory = options.of_case.get("memory_limit") or memory_bytes
    if kind != "cpu" and memory is not None and memory < SMALL_CARD_BYTES:
        usual = max(1, usual // 4)
    batches = list(dict.fromkeys((1, usual))) if options.evaluation else [usual]
    if options.batch is not None:
        batches = parse_numbers(options.batch, "--batch")
    if not options.strong:
        return batches
    for batch in batches:
        if batch % gpus:
            raise UserError(f"--strong: a batch of {batch} cannot be divided among {gpus} GPUs")
    return [batch // gpus for batch in batches]


def ladder(network: NetworkFacts, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """From plain float32 to a captured step: the name of each rung and its settings."""
    images = network.takes_images
    settings: dict[str, Any] = {
        "recipe": "fp32", "layout": "nchw" if images else "", "fused": False, "compile": False,
        "graph": False, "loss_scale": None,
    }  # fmt: skip
    changes: dict[str, dict[str, Any]] = {
        "tf32": {"recipe": "tf32"},
        "channels_last": {"layout": "nhwc"},
        "AMP": {"recipe": ON_CPU["amp"] if kind == "cpu" else "amp"},
        "fused optimizer": {"fused": True},
        "compile": {"compile": True},
        "CUDA graph": {"graph": True},
    }
    if not images:
        del changes["channels_last"]
    rungs = [("fp32", settings)]
    for name, change in changes.items():
        rungs.append((name, settings | change))
        if kind != "cpu" or name != "tf32":  # which a CPU skips: the next rung goes on from fp32
            settings = settings | change
    return rungs


def _scaled(settings: dict[str, Any], scale: float) -> dict[str, Any]:
    """The loss scale that the user gives, from the rung of AMP on."""
    return {"loss_scale": scale} if settings["recipe"] in ("amp", ON_CPU["amp"]) else {}


def rungs_of(
    options: TrainOptions, network: NetworkFacts, kind: str, cases: Cases
) -> dict[str, str | None]:
    """What each case of a ladder adds to the one before, by the case's key; else nothing."""
    names = [name for name, _ in ladder(network, kind)] if options.ladder else []
    return {case.key: name for case, name in zip(cases, names, strict=False)}


def notes(options: TrainOptions, kind: str) -> list[str]:
    """Remarks for the screen on options with another meaning on this device."""
    if kind != "cpu":
        return []
    recipes, remarks = _recipes_of(options), list[str]()
    if max(options.all_gpus) > 1:
        remarks.append("On a CPU, GPUs are processes that share its cores.")
    if any(name in ON_CPU for name in recipes):
        remarks.append("On a CPU, amp means amp-bf16: most CPUs have no fast float16 arithmetic.")
    slow = [name for name in recipes if name not in ON_CPU and RECIPES[name].needs_loss_scaling]
    if slow:
        remarks.append(
            f"Most CPUs have no fast float16 arithmetic: {', '.join(slow)} will be slow."
        )
    return remarks


# ---------------------------------------------------------------- what contradicts itself


def _check(options: TrainOptions, network: NetworkFacts) -> None:
    if options.ladder:
        _check_ladder(options)
    if options.graph and options.accumulate > 1:
        raise UserError("--graph needs one batch per step; leave out --accumulate")
    if options.graph and not options.fused:
        raise UserError("--graph needs the fused optimizer; leave out --no-fused")
    if (options.graph or options.ladder) and options.loader == "dali":
        raise UserError(
            "--loader dali waits for the device in a thread, which CUDA forbids while a graph is "
            "captured; leave out --graph and --ladder, or take another loader"
        )
    levels = [name for name in _recipes_of(options) if name in LEVELS]
    if options.evaluation and levels:
        raise UserError(
            f"--eval has no optimizer, and {levels[0]} is about it; take fp32, tf32, amp, "
            "amp-bf16, fp16, bf16 or fp8"
        )


def _check_ladder(options: TrainOptions) -> None:
    for name in ("recipe", "layout", "amp", "compile", "graph", "compress"):
        if getattr(options, name):
            raise UserError(f"--ladder sets the variants itself; leave out --{name}")
    if options.accumulate > 1:
        raise UserError(
            "--ladder ends with a CUDA graph of one batch per step; leave out --accumulate"
        )


def check_device(options: TrainOptions, kind: str, memory_bytes: int | None) -> None:
    """UserError for options that this device does not have."""
    limit = options.of_case.get("memory_limit", 0)
    if options.graph and kind == "cpu":
        raise UserError("--graph needs a CUDA device; a CPU has no CUDA graphs")
    if limit and kind == "cpu":
        raise UserError("--memory-limit needs a CUDA device; on a CPU torch has no such limit")
    if memory_bytes is not None and limit > memory_bytes:
        raise UserError(
            f"--memory-limit is {limit / 1e9:g} GB; the GPU has {memory_bytes / 1e9:.1f} GB"
        )
