"""The comparisons that measuring a network's layers takes, and where the network uses each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from kernels import OPS
from kernels.case import DATA, Case
from microbench.layers.products import Layer
from microbench.layers.trace import Traced, trace
from microbench.plans import Arm, group_of, plan_arms
from microbench.results.types import LayerUse, NetworkUse, NotMeasured
from microbench.sweep import Group, parse_choice, parse_names

BACKENDS = ("library", "triton")  # library: cuDNN and cuBLAS, or torch on a CPU

traced = lru_cache(maxsize=4)(trace)


def plan_layers(
    found: Traced, *, dtypes: str, backends: str | None, layout: str, data: str, vs: str, kind: str
) -> tuple[list[Group], NetworkUse]:
    """A comparison for each distinct product of the network; convolutions in the layout."""
    parse_choice(layout, OPS["conv"].layouts, "--layout")
    parse_choice(data, DATA, "--data")
    groups: list[Group] = []
    uses: list[LayerUse] = []
    for layer in found.layers:
        arms = _arms(layer.op, dtypes, backends, vs, kind)
        group = group_of(_problem(layer, layout, data, arms[0]), arms)
        if group.name not in {known.name for known in groups}:
            groups.append(group)
        uses.append(LayerUse(group.name, layer.which, layer.count, layer.names))
    skipped = tuple(NotMeasured(s.what, s.reason, s.count, s.flops) for s in found.skipped)
    return groups, NetworkUse(found.network, found.batch, found.image, tuple(uses), skipped)


def _arms(op: str, dtypes: str, backends: str | None, vs: str, kind: str) -> Sequence[Arm]:
    names = parse_names("library" if backends is None else backends, BACKENDS, "--backend")
    library = OPS[op].library_backend(kind)
    named = ",".join(library if name == "library" else name for name in names)
    return plan_arms(op, dtypes=dtypes, backends=named, vs=vs, kind=kind)


def _problem(layer: Layer, layout: str, data: str, arm: Arm) -> Case:
    dims = dict(layer.dims)
    if layer.op == "conv":
        dims["pass"] = layer.which
    return Case(layer.op, dims, *arm, layer.layout or layout, data)
