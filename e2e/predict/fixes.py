"""What could be changed about a training: the cases that counterfactuals are predicted for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from e2e.recipes import DYNAMIC, recipe_of
from microbench.train_results import TrainCase


@dataclass(frozen=True)
class Change:
    """A name for a change, and the fields of a case that it sets."""

    name: str
    fields: dict[str, Any]

    def of(self, case: TrainCase) -> TrainCase:
        """The case as changed."""
        return replace(case, **self.fields)


def changes(case: TrainCase, kind: str) -> Iterator[Change]:
    """What a user could try with words of the command line on a kind of device, one change each."""
    if case.layout == "nchw":
        yield Change("channels_last", {"layout": "nhwc"})
    if not case.fused:
        yield Change("fused optimizer", {"fused": True})
    yield Change("larger batch", {"batch": 2 * case.batch})
    if not case.compile:
        yield Change("torch.compile", {"compile": True})
    if kind == "cuda":
        yield from _on_a_gpu(case)


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
