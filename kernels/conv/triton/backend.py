"""Convolution through this project's Triton kernels: which configuration, and ready to launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import Any

from kernels.case import Candidate, CannotRun, Case, Target
from kernels.conv.operands import ConvOperands, unfilled
from kernels.conv.triton import data_configs, wgrad_configs
from kernels.conv.triton.problem import ImplicitGemm
from kernels.gpus import has_tma
from kernels.triton_util import Step, bound, candidate
from kernels.tune import NONE, Configurations

ConvConfig = data_configs.DataConfig | wgrad_configs.WgradConfig

PRECISIONS = ("fp16", "bf16", "fp8-e4m3")
KERNELS = (*data_configs.KERNELS, *wgrad_configs.KERNELS)


def check(case: Case, target: Target) -> None:
    """CannotRun, with the reason, where these kernels cannot run the case."""
    if case.precision_name not in PRECISIONS:
        raise CannotRun(f"the Triton convolution supports {', '.join(PRECISIONS)}")
    if case.problem.layout != "nhwc":
        raise CannotRun("the Triton convolution is NHWC; use --layout nhwc")
    problem, capability = ImplicitGemm.of(case), target.capability or (0, 0)
    if problem.shape.groups > 1:
        raise CannotRun("the Triton convolution has no groups")
    if case.precision.is_float8:
        # wgmma adds up adjacent elements of 8 bits; the gradient of the weights adds up pixels.
        if problem.weights:
            raise CannotRun("the Triton convolution in fp8 is for fprop and dgrad")
        if not has_tma(capability):
            raise CannotRun(
                "the Triton convolution in fp8 needs a GPU of compute capability 9.0 or above"
            )
    if slow := data_configs.too_slow(problem, capability, target.sm_count):
        raise CannotRun(f"the Triton convolution is left out: {slow}")


def candidates(
    case: Case, operands: ConvOperands, target: Target, search: int = NONE
) -> Sequence[Candidate]:
    """What a search times, one for NONE. CannotRun where no configuration fits the GPU."""
    problem = ImplicitGemm.of(case)

    def ready(config: ConvConfig) -> Candidate:
        launch = candidate(config.label, config.tile, bind(config, case, operands, target))
        return replace(launch, tiles=rules(config.label).tiles(config, problem))

    return bound(configurations(case, target).tried(search), ready)


def configurations(case: Case, target: Target) -> Configurations:
    problem, capability = ImplicitGemm.of(case), target.capability or (0, 0)
    ranked: Any = (wgrad_configs if problem.weights else data_configs).ranked
    return Configurations(
        case=case,
        target=target,
        rank=lambda: ranked(problem, capability, target.sm_count),
        tile=attrgetter("tile"),
        parse=parse,
        valid=lambda config: rules(config.label).valid(config, problem, capability),
        families=(
            attrgetter("kernel"),
            lambda config: None if config.padded else "as it is",
        ),
    )


def compiled(case: Case, target: Target, label: str) -> Sequence[object]:
    """As `kernels.gemm.triton.backend.compiled`."""
    operands = unfilled(case, "meta")
    return [step.compile() for step in bind(parse(label), case, operands, target)]


def parse(label: str) -> ConvConfig:
    """The configuration a label names. Raises ValueError for any other text."""
    return rules(label).parse(label)


def rules(label: str) -> Any:
    """The module of what a configuration may be, and costs."""
    return wgrad_configs if label.startswith(wgrad_configs.KERNELS) else data_configs


def bind(config: ConvConfig, case: Case, operands: ConvOperands, target: Target) -> Sequence[Step]:
    """The launches of a configuration that is valid, in order, on operands that are channels_last
    without gaps. Scratch is allocated here (torch.OutOfMemoryError).
    """
    name = "wgrad" if isinstance(config, wgrad_configs.WgradConfig) else "data"
    if config.kernel == data_configs.GLUON:  # loaded only where this Triton has Gluon
        name = "gluon"
    launch = import_module(f"kernels.conv.triton.{name}_launch")
    return launch.bind(config, operands, ImplicitGemm.of(case), target.sm_count)
