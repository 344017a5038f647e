"""What would make a step faster: changes to a training, and fixes, each a step predicted under one.

Pure functions of predicted steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from e2e.case import RESIDENT, USUAL_LOADER, TrainCase
from e2e.data.types import PREFETCH
from e2e.explain.ledger import NO_LAYER, Step, op_terms_ms
from e2e.prediction.padding import PaddedCase
from e2e.prediction.queue_model import OpCost
from e2e.recipes import DYNAMIC, recipe_of
from e2e.results.types import Cause, Setting
from microbench import fmt
from microbench.fmt import as_ms


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


# ---------------------------------------------------------------- fixes


NAMED = 3  # layers or terms that a sentence names
MIN_GAIN_PCT = 1.0  # of throughput: smaller gains are not proposed


@dataclass(frozen=True)
class Counterfactual:
    """The step as predicted under one change.

    `change` has fields of TrainCase with their new values, empty for a change to the network;
    `units` is how many images, tokens or samples the step then has.
    """

    name: str
    change: Mapping[str, Setting]
    step: Step
    units: int


def fixes(
    present: Step, units: int, counterfactuals: Iterable[Counterfactual], unit: str = "img"
) -> list[Cause]:
    """Fixes of a predicted step by predicted gain (%); those of at most MIN_GAIN_PCT are left out.

    The present step has `units` of `unit`. Predicted times are compared with predicted ones.
    """
    if present.predicted.step_s <= 0:
        return []
    timed = [other for other in counterfactuals if other.step.predicted.step_s > 0]
    found = [_fix(present, units, other, unit) for other in timed]
    proposed = [fix for fix in found if (fix.predicted_gain_pct or 0.0) > MIN_GAIN_PCT]
    return sorted(proposed, key=lambda fix: -(fix.predicted_gain_pct or 0.0))


def _fix(present: Step, units: int, other: Counterfactual, unit: str) -> Cause:
    rates = [units / present.expected_s, other.units / other.step.expected_s]
    why = (
        f"predicted {_rate(rates[1])} instead of {_rate(rates[0])} {unit}/s"
        f"{_difference(present, other, units)}"
    )
    gain_pct = 100 * (rates[1] / rates[0] - 1)
    fix = as_options(other.change) or other.name
    padded = [op.padded for op in other.step.ops if op.padded]
    if padded:
        why += f"; the padded layers save {largest(_saved_ms(present, other))}"
        fix = f"pad {named(padded)}"
    return Cause(other.name, why, fix, gain_pct, other.change or None)


def _saved_ms(present: Step, other: Counterfactual) -> dict[str, float]:
    """Milliseconds that each padded layer saves."""
    saved_ms: dict[str, float] = defaultdict(float)
    for before, after in zip(present.ops, other.step.ops, strict=True):
        if after.padded:
            saved_ms[layer_of(after)] += 1e3 * (before.device_s - after.device_s)
    return saved_ms


def _difference(present: Step, other: Counterfactual, units: int) -> str:
    """The largest changes, in ms of a step of as many units as the present one."""
    scale = 1e3 * units / other.units
    now, then = present.predicted, other.step.predicted
    said = (
        f": {as_ms(other.step.expected_s * scale)} instead of {as_ms(present.expected_s * 1e3)} ms"
    )
    if other.units != units:
        said += f" for {units:,}"
    then_wait_s, now_wait_s = other.step.predicted_wait_s, present.predicted_wait_s
    changes = {
        "CPU launch gaps": then.idle_s * scale - now.idle_s * 1e3,
        "data loading wait": then_wait_s * scale - now_wait_s * 1e3,
    }
    before, after = op_terms_ms(present.ops), op_terms_ms(other.step.ops)
    for term in {**before, **after}:
        changes[term] = after.get(term, 0.0) * units / other.units - before.get(term, 0.0)
    least = MIN_GAIN_PCT / 100 * present.expected_s * 1e3
    saved = sorted((ms, term) for term, ms in changes.items() if ms < -least)[:NAMED]
    if not saved:
        return said
    return f"{said}, by {fmt.joined([f'{as_ms(-ms)} ms less in {term}' for ms, term in saved])}"


def as_options(change: Mapping[str, Setting]) -> str:
    """A change to a case as command-line options."""
    options: list[str] = []
    for name, value in change.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        elif value != 0:  # 0 is the default
            options.append(f"--{option} {value}")
    return " ".join(options)


def _rate(per_s: float) -> str:
    """ "6,078", "3.47"."""
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"


# ---------------------------------------------------------------- in words


def largest(taken_ms: Mapping[str, float]) -> str:
    """ "layer3 (4.00 ms), layer4 (2.00 ms) and 5 more"."""
    most = sorted(taken_ms, key=lambda name: -taken_ms[name])
    return named([f"{called(name)} ({as_ms(taken_ms[name])} ms)" for name in most])


def named(words: Iterable[str]) -> str:
    """The first ones, each once, and how many more there are."""
    return fmt.listed(list(dict.fromkeys(words)), NAMED)


def layer_of(op: OpCost) -> str:
    """The op's layer, or a name for none."""
    return op.layer or NO_LAYER


def called(layer: str) -> str:
    """A layer that has a number for a name in a sentence."""
    return f"layer {layer}" if layer[:1].isdigit() else layer
