"""Convolution through this project's Triton kernels: which configuration, and ready to launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

from kernels.case import Candidate, Case, Target
from kernels.choosing import Choice, Options
from kernels.conv import OP
from kernels.conv.operands import ConvOperands, without_memory
from kernels.conv.shape import ConvShape
from kernels.conv.triton import (
    PRECISIONS,
    data_config,
    data_launch,
    gluon_config,
    layouts,
    wgrad_config,
    wgrad_launch,
)
from kernels.gpus import has_tma
from kernels.triton_config import Step, bound, candidate, some
from kernels.tuned import apart, sizes_of, tables_for

Config = data_config.Config | wgrad_config.Config

SEARCHED = 24  # configurations that --autotune times
LENDERS = {"bf16": "fp16"}  # precisions that lay tensors out alike share tuned configurations


def cannot_run(case: Case, target: Target) -> str | None:
    """Why these kernels cannot run the case, or None."""
    if case.precision_name not in PRECISIONS:
        return f"the Triton convolution supports {', '.join(PRECISIONS)}"
    if case.precision.is_float8 and (reason := _no_float8(case, target)):
        return f"the Triton convolution in fp8 {reason}"
    what = data_config.Sum.of(case)
    missing = gluon_config.missing(what, target.capability or (0, 0))
    if what.shape.groups > 1 and not what.shape.depthwise and missing:
        return f"the Triton convolution does not support these groups: {missing}"
    return None


def _no_float8(case: Case, target: Target) -> str | None:
    if case.dims["pass"] == "wgrad" or case.dim("groups") > 1:
        # wgmma adds up adjacent elements of 8 bits; the gradient of the weights adds up pixels.
        return "is for fprop and dgrad without groups"
    if not has_tma(target.capability or (0, 0)):
        return "needs a GPU of compute capability 9.0 or above"
    return None


def candidates(case: Case, operands: ConvOperands, target: Target) -> Sequence[Candidate]:
    """What `chosen` says. Raises CannotRun where no configuration fits the GPU."""
    return _bound([configuration(case, target)], case, operands, target)


def quick_candidates(case: Case, operands: ConvOperands, target: Target) -> Sequence[Candidate]:
    """What a quick tune times; one where the tables or the user's cache know the case already.
    Raises CannotRun where no configuration fits the GPU.
    """
    return _bound(options_of(case, target).short_list(), case, operands, target)


def tuning_candidates(case: Case, operands: ConvOperands, target: Target) -> Sequence[Candidate]:
    """What a wide search times: the present choice, then the SEARCHED most promising others. Raises
    CannotRun where no configuration fits the GPU.
    """
    tried = (configuration(case, target), *ranked(case, target)[:SEARCHED])
    return _bound(tuple(dict.fromkeys(tried)), case, operands, target)


def save_tuned(case: Case, target: Target, label: str) -> Path:
    """Record a winner's label for the case in the user's table; the table's path. ValueError for a
    label that is no configuration, OSError where the table cannot be written.
    """
    parse(label)
    return OP.tables.save(target.name, case.precision_name, *OP.tuned_key(case), label)


def configuration(case: Case, target: Target) -> Config:
    """The configuration that runs untimed. Raises CannotRun where none fits the GPU."""
    return chosen(case, target)[0]


def chosen(case: Case, target: Target) -> tuple[Config, Choice]:
    """The configuration that runs untimed, and how it was chosen: tuned, in this precision or one
    that lays tensors out alike, quick-tuned before, or first by the model. Raises CannotRun where
    none fits the GPU.
    """
    return options_of(case, target).chosen()


def options_of(case: Case, target: Target) -> Options[Config]:
    """The configurations that a case may run, by where they come from."""
    which, key = OP.tuned_key(case)
    own = _listed(case, target, case.precision_name, which)
    alike = _listed(case, target, LENDERS.get(case.precision_name, ""), which)
    near = _nearest(alike | own, key)
    return Options(
        case=case,
        target=target,
        tuned=own.get(key),
        lent=alike.get(key, near),
        agrees=False,
        settled=key in alike,
        rank=lambda: ranked(case, target),
        tile=attrgetter("tile"),
        families=(
            attrgetter("family"),
            lambda config: None if config.padded else "as it is",
        ),
        parse=parse,
        valid=lambda config: valid(config, case, target),
    )


def compiled(case: Case, target: Target, label: str) -> Sequence[object]:
    """The kernels of a configuration, compiled for the driver's target on tensors without memory.

    ValueError for a label that is no configuration; what Triton raises is passed on.
    """
    steps = _binder(case, without_memory(case), target)
    return [step.compile() for step in steps(parse(label))]


def _listed(case: Case, target: Target, precision: str, which: str) -> dict[str, Config]:
    """What the tables have for a pass in a precision, of what can run the case."""
    listed = OP.tables.section(tables_for(target), precision, which)
    found = {key: parse(label) for key, label in listed.items() if target.has(label)}
    return {key: config for key, config in found.items() if valid(config, case, target)}


def _nearest(found: dict[str, Config], key: str) -> Config | None:
    """The configuration of the size that is least apart."""
    size = sizes_of(key)
    return min(found.items(), key=lambda item: apart(size, sizes_of(item[0])), default=(key, None))[
        1
    ]


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


def _bound(
    tried: Sequence[Config], case: Case, operands: ConvOperands, target: Target
) -> Sequence[Candidate]:
    steps = _binder(case, operands, target)
    return bound(tried, lambda config: candidate(config.label, config.tile, steps(config)))


def _binder(
    case: Case, operands: ConvOperands, target: Target
) -> Callable[[Config], Sequence[Step]]:
    """The launches of a configuration; copies in channels_last are those of all configurations."""
    before: Sequence[Step] = ()
    after: Sequence[Step] = ()
    if case.layout == "nchw":
        operands, before, after = layouts.channels_last(operands)

    def steps(config: Config) -> Sequence[Step]:
        rest = (operands, case.precision, target.sm_count)
        if isinstance(config, wgrad_config.Config):
            return [*before, *wgrad_launch.bind(config, *rest), *after]
        return [*before, *data_launch.bind(config, *rest), *after]

    return steps
