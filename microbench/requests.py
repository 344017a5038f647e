"""What the measuring commands were asked, as given on the command line, and what that means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from microbench.errors import UserError
from microbench.payoff import BASELINES
from microbench.payoff_map import Refine
from microbench.plans import plan_conv, plan_gemm
from microbench.results.types import NetworkUse, Run
from microbench.run_output import Outputs, outputs_from
from microbench.runner import CPU_BUDGET_S, InOrder, Schedule, default_budget_s, missing
from microbench.sweep import Group, parse_precisions

# Seconds of sampling in all when the user sets no --budget: what lets a sweep end within a minute,
# a network within four.
CONV_MOST_S = 20.0
LAYERS_MOST_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How to measure, whatever is measured."""

    dtype: str
    backend: str | None
    vs: str
    data: str
    device: str
    l2: str
    regime: str
    timer: str
    budget: float | None
    autotune: bool
    seed: int | None
    outputs: Outputs


class Request(Protocol):
    """A command's options: the conditions, and a plan made from the rest."""

    @property
    def conditions(self) -> Conditions:
        """How to measure."""
        ...

    @property
    def name(self) -> str:
        """The command's."""
        ...

    def plan(self, kind: str) -> list[Group]:
        """The comparisons to make on a device of this kind; UserError for bad words."""
        ...

    def remaining(self, groups: Sequence[Group], run: Run) -> Sequence[Group]:
        """What a run still has to measure, or (a map) to choose from."""
        ...

    def schedule(self, groups: Sequence[Group], kind: str) -> Schedule:
        """In which order, and for how long each, to measure those that are missing."""
        ...

    def network(self, kind: str) -> NetworkUse | None:
        """The network whose layers these are, if they are."""
        ...


class _Sweep:
    """What requests share that measure everything they planned."""

    conditions: Conditions
    most_s: float = math.inf  # of sampling, when the user sets no --budget

    def remaining(self, groups: Sequence[Group], run: Run) -> Sequence[Group]:
        """The groups with cases that the run has not measured."""
        return missing(groups, run, retry_skipped=self.conditions.budget is not None)

    def schedule(self, groups: Sequence[Group], kind: str) -> Schedule:
        """All of them, in order."""
        budget_s = self.conditions.budget or default_budget_s(groups, kind, self.most_s)
        return InOrder(groups, budget_s)

    def network(self, kind: str) -> NetworkUse | None:
        """None."""
        return None


@dataclass(frozen=True)
class GemmRequest(_Sweep):
    """`microbench gemm`."""

    conditions: Conditions
    sizes: str
    layout: str
    name: str = "gemm"

    def plan(self, kind: str) -> list[Group]:
        """One comparison a size and layout."""
        asked = self.conditions
        return plan_gemm(
            sizes=self.sizes, dtypes=asked.dtype, backends=asked.backend, layouts=self.layout,
            data=asked.data, vs=asked.vs, kind=kind,
        )  # fmt: skip


@dataclass(frozen=True)
class ConvRequest(_Sweep):
    """`microbench conv`."""

    conditions: Conditions
    channels: str
    passes: str
    layout: str
    image: str
    batch: str
    kernel: str
    stride: int
    padding: str
    dilation: int
    groups: str
    name: str = "conv"
    most_s: float = CONV_MOST_S

    def plan(self, kind: str) -> list[Group]:
        """One comparison a width, pass, layout, image, batch and kernel."""
        asked = self.conditions
        return plan_conv(
            channels=self.channels, passes=self.passes, layouts=self.layout, image=self.image,
            batch=self.batch, kernel=self.kernel, stride=self.stride, padding=self.padding,
            dilation=self.dilation, groups=self.groups, dtypes=asked.dtype, backends=asked.backend,
            data=asked.data, vs=asked.vs, kind=kind,
        )  # fmt: skip


@dataclass(frozen=True)
class PayoffRequest(ConvRequest):
    """`microbench payoff`: a convolution sweep of which only the boundary is measured."""

    name: str = "payoff"

    def plan(self, kind: str) -> list[Group]:
        """Every cell that may be measured: no padded twins, both baselines."""
        for name in parse_precisions(self.conditions.vs, "--vs"):
            if name not in BASELINES:
                raise UserError(
                    f"--vs {name}: the map holds a precision against {' or '.join(BASELINES)}"
                )
        cells = super().plan(kind)
        return [group for group in cells if len(group.cases) > 1]

    def remaining(self, groups: Sequence[Group], run: Run) -> Sequence[Group]:
        """All cells: the search passes over those that the run holds."""
        return groups

    def schedule(self, groups: Sequence[Group], kind: str) -> Schedule:
        """Refined around the boundary."""
        asked = self.conditions
        budget_s = asked.budget or (CPU_BUDGET_S if kind == "cpu" else None)
        return Refine(groups, parse_precisions(asked.dtype), budget_s)


@dataclass(frozen=True)
class LayersRequest(_Sweep):
    """`microbench layers`."""

    conditions: Conditions
    network_name: str
    batch: int
    image: int | None
    layout: str
    name: str = "layers"
    most_s: float = LAYERS_MOST_S

    def plan(self, kind: str) -> list[Group]:
        """One comparison for each distinct product of the network."""
        return self._planned(kind)[0]

    def network(self, kind: str) -> NetworkUse | None:
        """Where the network uses them."""
        return self._planned(kind)[1]

    def _planned(self, kind: str) -> tuple[list[Group], NetworkUse]:
        from microbench.layers.plan import plan_layers, traced

        asked = self.conditions
        for option, value in (("--batch", self.batch), ("--image", self.image)):
            if value is not None and value < 1:
                raise UserError(f"{option} starts at 1, not {value}")
        return plan_layers(
            traced(self.network_name, self.batch, self.image), dtypes=asked.dtype,
            backends=asked.backend, layout=self.layout, data=asked.data, vs=asked.vs, kind=kind,
        )  # fmt: skip


CONDITIONS = tuple(name for name in Conditions.__dataclass_fields__ if name != "outputs")


def conditions_from(options: dict[str, Any]) -> Conditions:
    """The conditions among a command's options, taken out of them."""
    outputs = outputs_from(options)
    return Conditions(**{name: options.pop(name) for name in CONDITIONS}, outputs=outputs)
