"""The factors that a study may vary: a closed list. One that training lacks says so in one entry.

A factor becomes an option of a training by its name in `option`. Where no such option exists yet,
its cells are "not testable here", with the reason in `lacking`; once the option is there, they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from e2e.case import OFF, SCHEMAS, SHORT
from e2e.results.types import Repeat
from microbench.command_line import options_of

Value = Any  # of a factor, as TOML has it: a number, a text, true or false, a table, or a list
Factors = Mapping[str, Value]


@dataclass(frozen=True)
class Factor:
    """One factor: the types of a single value, and what makes it an option of a training.

    `option` is the training's option ("" where the engine deals with it itself), `write` makes the
    option's value; `result` is a field of a training's results that has it without an option.
    `neutral` is the value that a training has anyway. `vital`: without the option there is no such
    cell; else the cell runs as usual, and the report says so.
    """

    says: str
    types: tuple[type, ...]
    option: str = ""
    lacking: str = ""
    neutral: Value = None
    vital: bool = False
    write: Callable[[Value], Value] = lambda value: value
    crossed: bool = True  # a list is crossed: a cell a value
    result: str = ""
    fields: tuple[str, ...] = ()  # of a table, where one is fixed

    @property
    def missing(self) -> str:
        """Why training cannot vary it; "" where it can."""
        there = self.option in options_of(*SCHEMAS) or self.result in Repeat.__dataclass_fields__
        return "" if there or not self.lacking else self.lacking


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
    "gpus": Factor('GPUs: numbers, or "1..N"', (int, str), neutral=1, vital=True),
    "compress": Factor(
        "compression of gradients", (str,), "compress", neutral="none", vital=True
    ),
    "layout": Factor("nchw or nhwc", (str,), "layout"),
    "optimizer": Factor("sgd, adam or adamw", (str,), "optimizer"),
    "lr": Factor(
        "learning rate: a number, or { value, per } for a rate that grows with the batch",
        (*NUMBER, dict), "lr", fields=("value", "per"),
    ),
    "schedule": Factor(
        "how the learning rate changes", (dict,), "schedule",
        "training has no learning-rate schedule yet: the rate is constant",
        write=_schedule,
        fields=("kind", "rise", "cycles", "at", "divisor"),
    ),
    "warmup": Factor("steps of learning-rate warm-up", (int,), "warmup"),
    "clip": Factor(
        "largest norm of the gradients; 0: any", NUMBER, "clip",
        "training cannot clip gradients yet: they are as they come", 0, write=float,
    ),
    "loss_scale": Factor("static loss scale, or { RECIPE = scale }", (*NUMBER, dict)),
    "keep_batchnorm_fp32": Factor(
        "batch-norm in float32 in every recipe", (bool,), "keep_batchnorm_fp32"
    ),
    "data": Factor("data: the first of these that is there", (str,), crossed=False),
    "samples": Factor(
        "training samples", (int,), "samples", "all samples of the data are used"
    ),
    "classes": Factor("classes", (int,), "classes", "classes are those of the data"),
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
    "held_out": Factor(
        "held-out samples that are evaluated", (int,), "held_out",
        "all held-out samples are evaluated",
    ),
    "evaluate": Factor(
        'when to evaluate: "epoch"', (str,),
        lacking="training evaluates at its end only", neutral="end", result="evaluations",
    ),
    "targets": Factor("accuracies, 0 to 1, whose time is asked", NUMBER, crossed=False),
    "pretrained": Factor(
        "files of weights, by network, looked for in --weights DIR", (dict,), "weights",
        "training cannot start from a file of weights yet: weights are from a seed, so accuracy "
        "is not that of fine-tuning",
    ),
    "memory_gb": Factor(
        "memory of the card, emulated", NUMBER, "memory_limit",
        "training cannot emulate a smaller card yet", vital=True, write=lambda v: f"{v:g}GB",
    ),
    "cudnn_search": Factor(
        "whether cuDNN searches for algorithms", (bool,), "search", neutral=True, vital=True,
        write=lambda on: SHORT if on else OFF,
    ),
    "deterministic": Factor(
        "deterministic algorithms", (bool,), "deterministic",
        "training has no deterministic mode yet", False, vital=True,
    ),
    "device": Factor("auto, cuda, cuda:N or cpu", (str,), "device"),
    "input": Factor("shape of a sample", (str,), "input"),
    "timing_s": Factor("seconds of timing a comparison", NUMBER, "budget", write=float),
}  # fmt: skip
