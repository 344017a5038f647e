"""The requests of the measuring commands: their options, and the plan made from them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from microbench.command_line import Outputs, Schema, at_least, check_options, choice, filled
from microbench.conditions import Conditions

if TYPE_CHECKING:  # --help is to load nothing heavy
    from microbench.results.types import NetworkUse
    from microbench.sweep import Group

S = TypeVar("S", bound=Schema)

# Seconds of sampling in all without --budget: a sweep ends within a minute, a network within four.
CONV_MOST_S = 20.0
PAYOFF_MOST_S = 120.0
LAYERS_MOST_S = 60.0
SHAPES = "CSV file of problems, in place of the sizes above: see docs/kernels.md"
CHANNELS_LAST = {"--channels-last": "nhwc"}  # torch's word for the layout


@dataclass(frozen=True)
class Request(ABC):
    """A command's options: the conditions, and a plan made from the others."""

    name: ClassVar[str]  # the command's
    most_s: ClassVar[float] = math.inf  # of sampling, when the user sets no --budget

    conditions: Conditions

    @abstractmethod
    def plan(self, kind: str) -> list[Group]:
        """The comparisons for a device of kind "cuda" or "cpu". UserError for a bad value."""

    def network(self, kind: str) -> NetworkUse | None:
        """The network whose layers these are; None for other commands."""
        return None


@dataclass(frozen=True)
class GemmRequest(Request):
    """The options of `microbench gemm`."""

    name = "gemm"

    sizes: str = choice("256..8192", "256..8192 doubles; 64..1024:+32 steps; 63,64; MxNxK")
    layout: str = choice("nt", "nn,nt,tn,tt: t is transposed; nt is torch.nn.Linear")
    shapes: Path | None = choice(None, SHAPES)

    def plan(self, kind: str) -> list[Group]:
        """One comparison per size and layout. UserError for an invalid value."""
        from microbench.plans import plan_gemm, plan_shapes

        if self.shapes:
            return plan_shapes("gemm", self.conditions, kind, self.shapes)
        return plan_gemm(self.conditions, kind, sizes=self.sizes, layouts=self.layout)


@dataclass(frozen=True)
class ConvRequest(Request):
    """The options of `microbench conv`; `most_s` is seconds of sampling without --budget."""

    name = "conv"
    most_s = CONV_MOST_S

    channels: str = choice("8..2048", "8..2048 doubles; 1..72:+1 steps; 64x256 is CxK")
    passes: str = choice("fprop", "fprop (forward), dgrad and wgrad (gradients)", written="--pass")
    image: str = choice("28", "Input height and width: 28, 7..56, 28x56")
    batch: str = choice("16", "Batch size: 16, 8..256")
    kernel: str = choice("3", "Filter height and width: 3; 1,3; 1x7")
    layout: str = choice(
        "nhwc,nchw", "nhwc (channels_last), nchw (PyTorch's default)", switches=CHANNELS_LAST
    )
    stride: str = choice("1", "Stride: 2, or rows x columns: 1x2")
    padding: str = choice("same", "Padding: 1, or rows x columns: 0x15, or same")
    dilation: str = choice("1", "Dilation: 2, or rows x columns: 1x2")
    groups: str = choice("1", "Groups: a number, or depthwise")
    shapes: Path | None = choice(None, SHAPES)

    def plan(self, kind: str) -> list[Group]:
        """One comparison per width, pass, layout, image, batch, kernel. UserError: bad value."""
        from microbench.plans import plan_conv, plan_shapes

        if self.shapes:
            return plan_shapes("conv", self.conditions, kind, self.shapes)
        return plan_conv(
            self.conditions, kind, channels=self.channels, passes=self.passes, layouts=self.layout,
            image=self.image, batch=self.batch, kernel=self.kernel, stride=self.stride,
            padding=self.padding, dilation=self.dilation, groups=self.groups,
        )  # fmt: skip


@dataclass(frozen=True)
class PayoffRequest(ConvRequest):
    """`microbench payoff`: a convolution sweep that is shown as a map."""

    name = "payoff"
    most_s = PAYOFF_MOST_S

    def plan(self, kind: str) -> list[Group]:
        """Every cell. UserError for --vs that is not in BASELINES."""
        from microbench.break_even import BASELINES
        from microbench.errors import UserError
        from microbench.sweep import parse_precisions

        if self.shapes:
            raise UserError("payoff takes no --shapes: its map has a row for each width")
        for name in parse_precisions(self.conditions.vs, "--vs"):
            if name not in BASELINES:
                raise UserError(f"--vs {name}: the map compares with {' or '.join(BASELINES)}")
        cells = super().plan(kind)
        return [group for group in cells if len(group.cases) > 1]


@dataclass(frozen=True)
class LayersRequest(Request):
    """The options of `microbench layers`; `image` is pixels a side."""

    name = "layers"
    most_s = LAYERS_MOST_S

    network_name: str
    batch: int = choice(32, "Batch size", check=at_least(1))
    image: int | None = choice(
        None, "Image height and width  [default: of the network]", check=at_least(1)
    )
    layout: str = choice(
        "nhwc", "nhwc (channels_last) or nchw (PyTorch's default)", switches=CHANNELS_LAST
    )

    def plan(self, kind: str) -> list[Group]:
        """One comparison per distinct GEMM or convolution. UserError: cannot be traced."""
        return self._planned(kind)[0]

    def network(self, kind: str) -> NetworkUse | None:
        """The network, and where it uses each problem."""
        return self._planned(kind)[1]

    def _planned(self, kind: str) -> tuple[list[Group], NetworkUse]:
        from microbench.network.trace import plan_layers, traced

        network = traced(self.network_name, self.batch, self.image)
        return plan_layers(network, self.conditions, kind, layout=self.layout)


REQUESTS: Mapping[str, type[Request]] = {
    one.name: one for one in (GemmRequest, ConvRequest, PayoffRequest, LayersRequest)
}


def request_of(kind: type[S], words: Mapping[str, Any]) -> S:
    """The request of a command, from its options by name. UserError for an invalid value."""
    check_options(words, kind, Conditions)
    conditions = filled(Conditions, words, outputs=filled(Outputs, words))
    return filled(kind, words, conditions=conditions)
