"""What limits a step, and what would make it faster: findings and fixes, ranked.

Pure functions of predicted steps. A fix is a counterfactual, a step predicted under one change;
a finding follows from the numbers of the given step and of its baseline.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from e2e.explain.ledger import NO_LAYER, TERMS, Step, bound, layer_table, op_terms_ms
from e2e.prediction.queue_model import OpCost
from e2e.results.baselines import BASELINES
from e2e.results.types import Cause, Setting
from microbench import fmt
from microbench.fmt import as_ms

NAMED = 3  # layers or terms that a sentence names
MIN_GAIN_PCT = 1.0  # of throughput: smaller gains are not proposed
SLOWER_SHARE = 0.05  # a layer this much slower in low precision is named ...
SLOWER_STEP_SHARE = 0.001  # ... where this share of the step is lost by it
MISSED_SHARE = (
    0.05  # of the time of GEMMs and convolutions: more in float32 means autocast misses some
)
MEMORY_SHARE = 0.5  # of the step
MISALIGNED_SHARE = 0.01  # of the step
FULL_PRECISION = frozenset(recipe for recipes in BASELINES.values() for recipe in recipes)
# Kinds whose time is that of moving their bytes.
MEMORY_KINDS = (
    "norm", "activation", "pooling", "softmax", "elementwise", "reduce", "index", "copy", "cast",
    "layout",
)  # fmt: skip
MEMORY_TERMS = tuple(TERMS[kind] for kind in MEMORY_KINDS)


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


def causes(
    present: Step,
    base: Step | None,
    units: int,
    counterfactuals: Iterable[Counterfactual],
    *,
    recipe: str,
    base_recipe: str,
    unit: str = "img",
) -> list[Cause]:
    """Fixes by predicted gain (%), then findings by the time that they explain.

    The present step has `units` of `unit`; `base` is the same step under `base_recipe`, None if
    unknown. Predicted times are compared with predicted ones. A change that gains at most
    MIN_GAIN_PCT is left out.
    """
    if present.predicted.step_s <= 0:
        return []
    timed = [other for other in counterfactuals if other.step.predicted.step_s > 0]
    fixes = [_fix(present, units, other, unit) for other in timed]
    proposed = [fix for fix in fixes if (fix.predicted_gain_pct or 0.0) > MIN_GAIN_PCT]
    proposed.sort(key=lambda fix: -(fix.predicted_gain_pct or 0.0))
    return proposed + _findings(_Steps(present, base, recipe, base_recipe))


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
        why += f"; the padded layers save {_largest(_saved_ms(present, other))}"
        fix = f"pad {_named(padded)}"
    return Cause(other.name, why, fix, gain_pct, other.change or None)


def _saved_ms(present: Step, other: Counterfactual) -> dict[str, float]:
    """Milliseconds that each padded layer saves."""
    saved_ms: dict[str, float] = defaultdict(float)
    for before, after in zip(present.ops, other.step.ops, strict=True):
        if after.padded:
            saved_ms[_layer_of(after)] += 1e3 * (before.device_s - after.device_s)
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


# ---------------------------------------------------------------- findings


@dataclass(frozen=True)
class _Steps:
    """The present step and, if known, the baseline's, with their recipes."""

    present: Step
    base: Step | None
    recipe: str
    base_recipe: str

    @property
    def low(self) -> bool:
        """Whether the present recipe is of low precision."""
        return self.recipe not in FULL_PRECISION

    @property
    def step_s(self) -> float:
        """The present step's predicted time."""
        return self.present.expected_s


# (seconds of the step that it concerns, 0 if it concerns the comparison; the finding)
_Finding = tuple[float, Cause]


def _findings(steps: _Steps) -> list[Cause]:
    """All findings, those about the most time first."""
    finders = (_loading, _launching, _memory, _slower_layers, _missed, _misaligned, _tf32_baseline)
    found = [finding for find in finders if (finding := find(steps))]
    found.sort(key=lambda finding: -finding[0])
    return [cause for _, cause in found]


def _loading(steps: _Steps) -> _Finding | None:
    wait_s = steps.present.predicted_wait_s
    if wait_s <= MIN_GAIN_PCT / 100 * steps.step_s:
        return None
    why = (
        f"the loader takes {as_ms(1e3 * steps.step_s)} ms for one step's images; the step itself "
        f"takes {as_ms(1e3 * (steps.step_s - wait_s))} ms"
    )
    return wait_s, Cause("data loading is the bottleneck", why)


def _launching(steps: _Steps) -> _Finding | None:
    step = steps.present.predicted
    if step.limit != "host":
        return None
    if all(op.waits for op in steps.present.ops):  # a CPU's
        why = (
            f"no operation runs for {_share(step.idle_s, step.step_s)}: Python, autograd and the "
            f"optimizer take that time around operations of {as_ms(1e3 * step.gpu_s)} ms"
        )
        return step.idle_s, Cause("framework overhead between operations", why)
    launches = sum(op.kind != "view" for op in steps.present.ops)
    waits = sum(op.waits for op in steps.present.ops)
    why = (
        f"the GPU is idle for {_share(step.idle_s, step.step_s)}: the CPU needs "
        f"{as_ms(1e3 * step.host_s)} ms to launch {launches:,} ops that run for "
        f"{as_ms(1e3 * step.gpu_s)} ms"
    )
    if waits:
        why += f"; {waits} of them {'makes' if waits == 1 else 'make'} the CPU wait for the GPU"
    return step.idle_s, Cause("CPU launch is the bottleneck", why)


def _memory(steps: _Steps) -> _Finding | None:
    """The finding that most of the step is neither GEMM nor convolution."""
    subjects = [(steps.base, steps.base_recipe)] if steps.base and steps.low else []
    for step, recipe in [*subjects, (steps.present, steps.recipe)]:
        assert step
        terms = op_terms_ms(step.ops)
        memory = {term: terms[term] for term in MEMORY_TERMS if term in terms}
        memory_ms, step_ms = sum(memory.values()), 1e3 * step.predicted.step_s
        at_most = bound(Step(step.ops, step.predicted))
        if at_most is None or memory_ms <= MEMORY_SHARE * step_ms:
            continue
        why = (
            f"in {recipe}, memory-bound work takes {_share(memory_ms / 1e3, step_ms / 1e3)}: "
            f"{_largest(memory)}; GEMMs and convolutions take {as_ms(1e3 * step.product_s)} ms: if "
            f"they took no time, the step would be {at_most:.2f} times faster"
        )
        return memory_ms / 1e3, Cause("memory-bound work is most of the step", why)
    return None


def _slower_layers(steps: _Steps) -> _Finding | None:
    """GEMMs and convolutions that take longer in low precision than in the baseline."""
    if steps.base is None or not steps.low:
        return None
    rows = [
        row
        for row in reversed(layer_table(steps.base, steps.present))
        if row.other_ms > (1 + SLOWER_SHARE) * row.base_ms > 0
        and -row.saving_ms > SLOWER_STEP_SHARE * 1e3 * steps.step_s
    ]
    if not rows:
        return None
    lost_s = -math.fsum(row.saving_ms for row in rows) / 1e3
    slow = [
        f"{_called(row.layer)} ({as_ms(row.other_ms)} ms in {steps.recipe}, "
        f"{as_ms(row.base_ms)} in {steps.base_recipe})"
        for row in rows[:NAMED]
    ]
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    why = (
        f"GEMMs and convolutions are slower in low precision in {fmt.joined(slow)}{more}: "
        f"{_share(lost_s, steps.step_s)} lost{_conversions(steps, {row.layer for row in rows})}"
    )
    fix = f"keep {'it' if len(rows) == 1 else 'them'} in {steps.base_recipe}"
    return lost_s, Cause("layers that are slower in low precision", why, _worth(fix, lost_s, steps))


def _conversions(steps: _Steps, slow: set[str]) -> str:
    """How much of these layers' time only changes the layout, if it is much."""
    ops = [op for op in steps.present.ops if op.kind == "product" and _layer_of(op) in slow]
    taken_s = math.fsum(op.device_s for op in ops)
    changing_s = math.fsum(op.conversion_s for op in ops)
    if changing_s <= SLOWER_SHARE * taken_s:
        return ""
    return f"; layout changes take {_share(changing_s, taken_s)} of that"


def _missed(steps: _Steps) -> _Finding | None:
    if not steps.low:
        return None
    products = [op for op in steps.present.ops if op.kind == "product"]
    missed = [op for op in products if op.dtype == "float32"]
    missed_s = math.fsum(op.device_s for op in missed)
    if missed_s <= MISSED_SHARE * steps.present.product_s:
        return None
    why = (
        f"GEMMs and convolutions that {steps.recipe} leaves in float32 take "
        f"{_share(missed_s, steps.present.product_s)} of all of them: {_layers(missed)}"
    )
    fix = "call them under autocast, without .float() or autocast(enabled=False)"
    return missed_s, Cause(
        "GEMMs and convolutions still in float32", why, _worth(fix, missed_s, steps)
    )


def _misaligned(steps: _Steps) -> _Finding | None:
    ops = [op for op in steps.present.ops if op.misaligned]
    taken_s = math.fsum(op.device_s for op in ops)
    if taken_s <= MISALIGNED_SHARE * steps.step_s:
        return None
    why = (
        f"GEMMs and convolutions with unaligned sizes "
        f"({_named([op.misaligned for op in ops])}) take "
        f"{_share(taken_s, steps.step_s)}: {_layers(ops)}"
    )
    fix = "pad these sizes to a multiple of 8 (of 4 in TF32)"
    return taken_s, Cause("unaligned sizes", why, _worth(fix, taken_s, steps))


def _tf32_baseline(steps: _Steps) -> _Finding | None:
    if steps.base is None or steps.base_recipe not in BASELINES["tf32"] or not steps.low:
        return None
    products_ms = [1e3 * step.product_s for step in (steps.base, steps.present)]
    if not products_ms[0]:
        return None
    why = (
        f"GEMMs and convolutions take {as_ms(products_ms[0])} ms in {steps.base_recipe}, which "
        f"uses Tensor Cores too, and {as_ms(products_ms[1])} in {steps.recipe}: the gain over fp32 "
        "is larger"
    )
    return 0.0, Cause("the baseline already uses TF32", why)


def _worth(fix: str, stake_s: float, steps: _Steps) -> str:
    """The fix, where getting all of this time back would gain more than MIN_GAIN_PCT."""
    rest_s = steps.step_s - stake_s
    gain_pct = 100 * stake_s / rest_s if rest_s > 0 else math.inf
    return fix if gain_pct > MIN_GAIN_PCT else ""


# ---------------------------------------------------------------- in words


def _layers(ops: Sequence[OpCost]) -> str:
    """The layers of these ops, those that take most first, with their ms."""
    taken_ms: dict[str, float] = defaultdict(float)
    for op in ops:
        taken_ms[_layer_of(op)] += 1e3 * op.device_s
    return _largest(taken_ms)


def _largest(taken_ms: Mapping[str, float]) -> str:
    """ "layer3 (4.00 ms), layer4 (2.00 ms) and 5 more"."""
    most = sorted(taken_ms, key=lambda name: -taken_ms[name])
    return _named([f"{_called(name)} ({as_ms(taken_ms[name])} ms)" for name in most])


def _named(words: Iterable[str]) -> str:
    """The first ones, each once, and how many more there are."""
    return fmt.listed(list(dict.fromkeys(words)), NAMED)


def _layer_of(op: OpCost) -> str:
    """The op's layer, or a name for none."""
    return op.layer or NO_LAYER


def _called(layer: str) -> str:
    """A layer that has a number for a name in a sentence."""
    return f"layer {layer}" if layer[:1].isdigit() else layer


def _share(part_s: float, whole_s: float) -> str:
    """ "3.1 of 16.0 ms (19 %)"."""
    return f"{as_ms(1e3 * part_s)} of {as_ms(1e3 * whole_s)} ms ({100 * part_s / whole_s:.0f} %)"


def _rate(per_s: float) -> str:
    """ "6,078", "3.47"."""
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"
