"""The factors that a study may vary: a closed list.

A factor becomes an option of a training by its name in `option`. One that training has not is said
in the report, with the reason in `lacking`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from e2e.case import OFF, SHORT

Value = Any  # of a factor, as TOML has it: a number, a text, true or false, a table, or a list
Factors = Mapping[str, Value]


@dataclass(frozen=True)
class Factor:
    """One factor: the types of a single value, and what makes it an option of a training.

    `option` is the training's option ("" where the engine deals with it itself), `write` makes the
    option's value. `neutral` is the value that a training has anyway. `lacking` is why training
    cannot vary it: the cell runs as usual, and the report says so; "" where it can.
    """

    says: str
    types: tuple[type, ...]
    option: str = ""
    lacking: str = ""
    neutral: Value = None
    write: Callable[[Value], Value] = lambda value: value
    crossed: bool = True  # a list is crossed: a cell a value
    fields: tuple[str, ...] = ()  # of a table, where one is fixed


def _schedule(value: Mapping[str, Value]) -> str:
    """ "triangle:25", "cosine:4", "step:50,75/10": a table as --schedule takes it."""
    kind = str(value["kind"])
    if "rise" in value:
        return f"{kind}:{100 * value['rise']:g}"
    if "cycles" in value:
        return f"{kind}:{value['cycles']}"
    if "at" in value:
        return f"{kind}:{','.join(f'{100 * one:g}' for one in value['at'])}" + (
            f"/{value['divisor']:g}" if "divisor" in value else ""
        )
    return kind


NUMBER = (int, float)
FACTORS: dict[str, Factor] = {
    "networks": Factor("networks, by name or module:function", (str,)),
    "recipes": Factor("recipes: NAME, NAME+bn32, NAME+scale256, NAME@dynamic", (str,)),
    "batch": Factor("samples of a batch", (int,)),
    "global_batch": Factor("samples of a step, over all GPUs", (int,)),
    "gpus": Factor('GPUs: numbers, or "1..N"', (int, str), neutral=1),
    "compress": Factor("compression of gradients", (str,), "compress", neutral="none"),
    "layout": Factor("nchw or nhwc", (str,), "layout"),
    "optimizer": Factor("sgd, adam or adamw", (str,), "optimizer"),
    "lr": Factor(
        "learning rate: a number, or { value, per } for a rate that grows with the batch",
        (*NUMBER, dict), "lr", fields=("value", "per"),
    ),
    "schedule": Factor(
        "how the learning rate changes", (dict,), "schedule", write=_schedule,
        fields=("kind", "rise", "cycles", "at", "divisor"),
    ),
    "warmup": Factor("steps of learning-rate warm-up", (int,), "warmup"),
    "clip": Factor(
        "largest norm of the gradients; 0: any", NUMBER, "clip", neutral=0, write=float
    ),
    "loss_scale": Factor("static loss scale, or { RECIPE = scale }", (*NUMBER, dict)),
    "keep_batchnorm_fp32": Factor(
        "batch-norm in float32 in every recipe", (bool,), "keep_batchnorm_fp32"
    ),
    "data": Factor("data: the first of these that is there", (str,), crossed=False),
    "samples": Factor(
        "training samples", (int,), lacking="all samples of the data are used", crossed=False
    ),
    "classes": Factor(
        "classes", (int,), lacking="classes are those of the data", crossed=False
    ),
    "loader": Factor("data loader", (str,), "loader"),
    "workers": Factor('data-loader workers: numbers, or "cores/gpus"', (int, str), "workers"),
    "cpus": Factor("cores that the run may use", (int,), "cpus"),
    "iterations": Factor("steps of a training", (int,), "iterations"),
    "epochs": Factor("epochs of a training", (int,), "epochs"),
    "measured_epochs": Factor("epochs that are run; the others are projected", (int,)),
    "repeats": Factor("trainings, each from its own seed", (int,), "repeats"),
    "seeds": Factor(
        "the seed of each training: one seed again and again, or consecutive ones", (int,),
        crossed=False,
    ),
    "held_out": Factor("held-out samples that are evaluated", (int,), "held_out"),
    "evaluate": Factor('when to evaluate: "epoch"', (str,), neutral="end"),
    "targets": Factor("accuracies, 0 to 1, whose time is asked", NUMBER, crossed=False),
    "pretrained": Factor(
        "files of weights, by network, looked for in --weights DIR", (dict,), "weights"
    ),
    "memory_gb": Factor(
        "memory of the card, emulated", NUMBER, "memory_limit", write=lambda v: f"{v:g}GB"
    ),
    "cudnn_search": Factor(
        "whether cuDNN searches for algorithms", (bool,), "search", neutral=True,
        write=lambda on: SHORT if on else OFF,
    ),
    "deterministic": Factor("deterministic algorithms", (bool,), "deterministic", neutral=False),
    "device": Factor("auto, cuda, cuda:N or cpu", (str,), "device"),
    "input": Factor("shape of a sample", (str,), "input"),
    "timing_s": Factor("seconds of timing a comparison", NUMBER, "budget", write=float),
}  # fmt: skip
