"""The changes to a training whose counterfactual steps are predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from e2e.case import RESIDENT, USUAL_LOADER, TrainCase
from e2e.data.types import PREFETCH
from e2e.prediction.padding import PaddedCase
from e2e.recipes import DYNAMIC, recipe_of


@dataclass(frozen=True)
class Change:
    """A named change, and the fields of a case that it sets."""

    name: str
    fields: dict[str, Any]

    def of(self, case: TrainCase) -> TrainCase:
        """The changed case."""
        return replace(case, **self.fields)


@dataclass(frozen=True)
class Pad(Change):
    """Padding of the network; see `PaddedCase`."""

    def of(self, case: TrainCase) -> TrainCase:
        """The case with a padded network."""
        return PaddedCase(**{field.name: getattr(case, field.name) for field in fields(case)})


# What a step that waits for its loader may be fed by instead, where it can run.
OTHER_LOADERS = ("torchvision-io", "torchvision-draft", "gpu-decode")
AHEAD = 2 * PREFETCH  # batches that each worker may be instead


def changes(case: TrainCase, kind: str, cores: int = 1) -> Iterator[Change]:
    """The changes that command-line options can make on a kind of device, one at a time.

    `cores` are available to loader workers.
    """
    if case.layout == "nchw":
        yield Change("channels_last", {"layout": "nhwc"})
    if not case.fused:
        yield Change("fused optimizer", {"fused": True})
    if case.fed:
        yield from _loaders(case, cores)
    yield Change("larger batch", {"batch": 2 * case.batch})
    if not case.compile:
        yield Change("torch.compile", {"compile": True})
    if kind == "cuda":
        yield Pad("pad channels", {})
        yield from _on_a_gpu(case)


def _loaders(case: TrainCase, cores: int) -> Iterator[Change]:
    if case.workers < cores:
        yield Change("more workers", {"workers": min(cores, max(1, 2 * case.workers))})
    if case.workers and case.prefetch < AHEAD:
        yield Change("more batches ahead", {"prefetch": AHEAD})
    yield Change("data on the device", {"loader": RESIDENT, "workers": 0, "prefetch": 0})
    if USUAL_LOADER.get(case.data) == RESIDENT:
        return  # it is no files
    for name in OTHER_LOADERS:
        if name != case.loader:
            yield Change(f"loader {name}", {"loader": name})


def _on_a_gpu(case: TrainCase) -> Iterator[Change]:
    if not case.graph and case.accumulate == 1:
        yield Change("CUDA graph", {"graph": True})
    if case.recipe == "fp32":
        yield Change("TF32", {"recipe": "tf32"})
    elif case.recipe == "tf32":
        yield Change("AMP", {"recipe": "amp"})
    elif case.recipe == "amp" and recipe_of(case).scale == DYNAMIC:
        yield Change("bfloat16 without a loss scale", {"recipe": "amp-bf16"})
    elif case.recipe == "amp-bf16":
        yield Change("float16", {"recipe": "amp"})
