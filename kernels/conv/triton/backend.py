"""Convolution through this project's Triton kernels: which configuration, and ready to launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernels.case import Candidate, Case, Target
from kernels.conv import OP
from kernels.conv.operands import ConvOperands
from kernels.conv.shape import ConvShape
from kernels.conv.triton import (
    PRECISIONS,
    data_config,
    data_launch,
    gluon_config,
    wgrad_config,
    wgrad_launch,
)
from kernels.triton_config import candidate, some
from kernels.tuned import tables_for

Config = data_config.Config | wgrad_config.Config

SEARCHED = 24  # configurations that --autotune times
LENDERS = {"bf16": "fp16"}  # precisions that lay tensors out alike share tuned configurations


def cannot_run(case: Case, target: Target) -> str | None:
    """Why these kernels cannot run the case, or None."""
    if case.precision_name not in PRECISIONS:
        return f"the Triton convolution supports {', '.join(PRECISIONS)}"
    if case.layout != "nhwc":
        return "the Triton convolution supports NHWC (channels_last) only"
    what = data_config.Sum.of(case)
    missing = gluon_config.missing(what, target.capability or (0, 0))
    if what.shape.groups > 1 and missing:
        return f"the Triton convolution does not support these groups: {missing}"
    return None


def candidates(case: Case, operands: ConvOperands, target: Target) -> Sequence[Candidate]:
    """The tuned configuration; where there is none, the cost model's first choice. Raises CannotRun
    where no configuration fits the GPU.
    """
    return (_candidate(configuration(case, target), case, operands, target),)


def tuning_candidates(case: Case, operands: ConvOperands, target: Target) -> Sequence[Candidate]:
    """What a search times: the present choice, then the SEARCHED most promising others. Raises
    CannotRun where no configuration fits the GPU.
    """
    tried = (configuration(case, target), *ranked(case, target)[:SEARCHED])
    return tuple(_candidate(config, case, operands, target) for config in dict.fromkeys(tried))


def save_tuned(case: Case, target: Target, label: str) -> Path:
    """Record a winner's label for the case in the user's table; the table's path. ValueError for a
    label that is no configuration, OSError where the table cannot be written.
    """
    parse(label)
    return OP.tables.save(target.name, case.precision_name, *OP.tuned_key(case), label)


def configuration(case: Case, target: Target) -> Config:
    """The configuration that a default run uses. Raises CannotRun where none fits the GPU,
    ValueError for a damaged entry of a tuned table.
    """
    which, key = OP.tuned_key(case)
    for precision in (case.precision_name, LENDERS.get(case.precision_name, "")):
        label = OP.tables.section(tables_for(target), precision, which).get(key)
        if label and valid(parse(label), case, target):
            return parse(label)
    return ranked(case, target)[0]


def parse(label: str) -> Config:
    """The configuration a label names. Raises ValueError for any other text."""
    for rules in (data_config, wgrad_config):
        if label.split("/")[0] in rules.KERNELS:
            return rules.parse(label)
    raise ValueError(f"not a configuration of the Triton convolution: {label!r}")


def valid(config: Config, case: Case, target: Target) -> bool:
    """Whether the configuration can run the case on the target. ValueError for no convolution."""
    problem = (ConvShape.of(case), str(case.dims["pass"]), case.precision)
    capability = target.capability or (0, 0)
    if isinstance(config, wgrad_config.Config):
        return wgrad_config.valid(config, *problem, capability)
    return data_config.valid(config, *problem, capability)


def ranked(case: Case, target: Target) -> Sequence[Config]:
    """The configurations of the catalogue that can run, in the order of the cost model, the fastest
    first. Raises CannotRun where there are none.
    """
    rules = wgrad_config if case.dims["pass"] == "wgrad" else data_config
    found: Sequence[Config] = rules.choices(
        ConvShape.of(case), str(case.dims["pass"]), case.precision,
        target.capability or (0, 0), target.sm_count,
    )  # fmt: skip
    return some(found, case, target)


def _candidate(config: Config, case: Case, operands: ConvOperands, target: Target) -> Candidate:
    if isinstance(config, wgrad_config.Config):
        steps = wgrad_launch.bind(config, operands, case.precision, target.sm_count)
    else:
        steps = data_launch.bind(config, operands, case.precision, target.sm_count)
    return candidate(config.label, config.tile, steps)
