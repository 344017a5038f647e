"""Convolution through this project's Triton kernels: which configuration, and ready to launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from kernels.case import Candidate, Case, Target
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
from kernels.triton_util import Step, bound, candidate
from kernels.tune import NONE, Configurations

Config = data_config.Config | wgrad_config.Config


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


def candidates(
    case: Case, operands: ConvOperands, target: Target, search: str = NONE
) -> Sequence[Candidate]:
    """What a search times, one for NONE. CannotRun where no configuration fits the GPU."""
    steps = _binder(case, operands, target)
    return bound(
        configurations(case, target).tried(search),
        lambda config: candidate(config.label, config.tile, steps(config)),
    )


def configurations(case: Case, target: Target) -> Configurations[Config]:
    """The configurations that may run a case."""
    return Configurations(
        case=case,
        target=target,
        rank=lambda: _ranked(case, target),
        tile=attrgetter("tile"),
        parse=parse,
        valid=lambda config: valid(config, case, target),
        families=(
            attrgetter("family"),
            lambda config: None if config.padded else "as it is",
        ),
    )


def compiled(case: Case, target: Target, label: str) -> Sequence[object]:
    """The kernels of a configuration, compiled for the driver's target on tensors without memory.

    ValueError for a label that is no configuration; what Triton raises is passed on.
    """
    steps = _binder(case, without_memory(case), target)
    return [step.compile() for step in steps(parse(label))]


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


def _ranked(case: Case, target: Target) -> Sequence[Config]:
    """The configurations of the catalogue that can run, in the order of the cost model."""
    rules = wgrad_config if case.dims["pass"] == "wgrad" else data_config
    return rules.choices(
        ConvShape.of(case), str(case.dims["pass"]), case.precision,
        target.capability or (0, 0), target.sm_count,
    )  # fmt: skip


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
