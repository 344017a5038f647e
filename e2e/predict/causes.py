"""Why a step is no faster, and what would make it so: findings and fixes, ranked.

Pure functions of predicted steps. A fix is a counterfactual, a step that somebody predicted under
one change; a finding is read off the numbers of the steps at hand.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from e2e.gains import BASELINES
from e2e.predict.ledger import (
    NO_LAYER,
    TERMS,
    Step,
    bound,
    layer_table,
    op_terms_ms,
)
from e2e.predict.model import OpCost, Simulated
from microbench.train_results import Cause, Setting

MIN_GAIN_PCT = 1.0  # of throughput: less is proposed to nobody
SLOWER_SHARE = 0.05  # a layer this much slower in low precision is named ...
SLOWER_STEP_SHARE = 0.001  # ... where this share of the step is lost by it
MISSED_SHARE = 0.05  # of the products' time: more of it in float32 is an autocast that misses
MEMORY_SHARE = 0.5  # of the step
MISALIGNED_SHARE = 0.01  # of the step
NAMED = 3  # layers or terms that a sentence names
FULL_PRECISION = frozenset(recipe for recipes in BASELINES.values() for recipe in recipes)
# Kinds whose time is that of moving their bytes.
MEMORY_KINDS = (
    "norm", "activation", "pooling", "softmax", "elementwise", "reduce", "index", "copy", "cast",
    "layout",
)  # fmt: skip
MEMORY_TERMS = tuple(TERMS[kind] for kind in MEMORY_KINDS)


@dataclass(frozen=True)
class Counterfactual:
    """The step as it would be under one change.

    `change` are fields of TrainCase with their new values, empty for a change to the network;
    `units` how many images, tokens or samples the step then has.
    """

    name: str
    change: Mapping[str, Setting]
    step: Step | Simulated
    units: int

    @property
    def predicted(self) -> Simulated:
        """What is predicted of its ops."""
        return self.step.predicted if isinstance(self.step, Step) else self.step

    @property
    def expected_s(self) -> float:
        """The predicted step's time, with its loader."""
        return self.step.expected_s if isinstance(self.step, Step) else self.step.step_s


@dataclass(frozen=True)
class Steps:
    """What findings are read off: the present step and, if known, the baseline's, by recipe."""

    present: Step
    base: Step | None
    recipe: str
    base_recipe: str

    @property
    def low(self) -> bool:
        """Whether the present step is of a low precision."""
        return self.recipe not in FULL_PRECISION

    @property
    def step_s(self) -> float:
        """The present step's predicted time."""
        return self.present.expected_s


# Seconds of the step that it is about (0: of the comparison), and what there is to say.
Finding = tuple[float, Cause]


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
    """Fixes by predicted gain, then findings by the time they are about.

    `units` of `unit` are in the present step; `base` is the same step under `base_recipe`, None
    where it is not known. Predicted times are compared with predicted ones. A change that gains no
    more than MIN_GAIN_PCT is left out.
    """
    if present.predicted.step_s <= 0:
        return []
    timed = [other for other in counterfactuals if other.predicted.step_s > 0]
    fixes = [_fix(present, units, other, unit) for other in timed]
    proposed = [fix for fix in fixes if (fix.predicted_gain_pct or 0.0) > MIN_GAIN_PCT]
    proposed.sort(key=lambda fix: -(fix.predicted_gain_pct or 0.0))
    steps = Steps(present, base, recipe, base_recipe)
    finders = (_loading, _launching, _memory, _slower_layers, _missed, _misaligned, _tf32_baseline)
    findings = [finding for find in finders if (finding := find(steps))]
    findings.sort(key=lambda finding: -finding[0])
    return proposed + [cause for _, cause in findings]


def _fix(present: Step, units: int, other: Counterfactual, unit: str) -> Cause:
    rates = [units / present.expected_s, other.units / other.expected_s]
    why = (
        f"predicted {_rate(rates[1])} instead of {_rate(rates[0])} {unit}/s"
        f"{_difference(present, other, units)}"
    )
    gain_pct = 100 * (rates[1] / rates[0] - 1)
    fix = as_options(other.change) or other.name
    padded = [op.padded for op in _ops(other) if op.padded]
    if padded:
        why += f"; the padded layers save {_largest(_saved_ms(present, other))}"
        fix = f"pad {_named(padded)}"
    return Cause(other.name, why, fix, gain_pct, other.change or None)


def _ops(other: Counterfactual) -> Sequence[OpCost]:
    return other.step.ops if isinstance(other.step, Step) else ()


def _saved_ms(present: Step, other: Counterfactual) -> dict[str, float]:
    """What each padded layer takes less."""
    saved_ms: dict[str, float] = defaultdict(float)
    for before, after in zip(present.ops, _ops(other), strict=True):
        if after.padded:
            saved_ms[_layer(after)] += 1e3 * (before.device_s - after.device_s)
    return saved_ms


def _difference(present: Step, other: Counterfactual, units: int) -> str:
    """What changes most, in ms of a step of as many units as the present one."""
    scale = 1e3 * units / other.units
    now, then = present.predicted, other.predicted
    said = f": {_ms(other.expected_s * scale)} instead of {_ms(present.expected_s * 1e3)} ms"
    if other.units != units:
        said += f" for {units:,}"
    changes = {"waiting for launches": then.idle_s * scale - now.idle_s * 1e3}
    if isinstance(other.step, Step):
        then_s, now_s = other.step.predicted_wait_s, present.predicted_wait_s
        changes["waiting for the loader"] = then_s * scale - now_s * 1e3
        before, after = op_terms_ms(present.ops), op_terms_ms(other.step.ops)
        for term in {**before, **after}:
            changes[term] = after.get(term, 0.0) * units / other.units - before.get(term, 0.0)
    least = MIN_GAIN_PCT / 100 * present.expected_s * 1e3
    saved = sorted((ms, term) for term, ms in changes.items() if ms < -least)[:NAMED]
    if not saved:
        return said
    return f"{said}, by {_listed([f'{_ms(-ms)} ms less in {term}' for ms, term in saved])}"


def as_options(change: Mapping[str, Setting]) -> str:
    """A change to a case in words of the command line."""
    options: list[str] = []
    for name, value in change.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            options.append(f"--{option} {value}")
    return " ".join(options)


def _loading(steps: Steps) -> Finding | None:
    """The loader is what the step waits for."""
    wait_s = steps.present.predicted_wait_s
    if wait_s <= MIN_GAIN_PCT / 100 * steps.step_s:
        return None
    why = (
        f"the loader alone takes {_ms(1e3 * steps.step_s)} ms for the images of a step, the step "
        f"without it {_ms(1e3 * (steps.step_s - wait_s))} ms"
    )
    return wait_s, Cause("the loader is slower than the training", why)


def _launching(steps: Steps) -> Finding | None:
    """The device has nothing to do for more than IDLE_SHARE of the step."""
    step = steps.present.predicted
    if step.limit != "host":
        return None
    launches = sum(op.kind != "view" for op in steps.present.ops)
    waits = sum(op.waits for op in steps.present.ops)
    why = (
        f"no kernel runs in {_of(step.idle_s, step.step_s)}: the host needs "
        f"{_ms(1e3 * step.host_s)} ms to launch {launches:,} ops, which the device does in "
        f"{_ms(1e3 * step.gpu_s)} ms"
    )
    if waits:
        why += f"; {waits} of them {'holds' if waits == 1 else 'hold'} the host until it is done"
    return step.idle_s, Cause("the host launches too slowly", why)


def _memory(steps: Steps) -> Finding | None:
    """Most of the baseline's step, or else of the present one, is no product."""
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
            f"in {recipe}, memory-bound work takes {_of(memory_ms / 1e3, step_ms / 1e3)}: "
            f"{_largest(memory)}; products take {_ms(1e3 * step.product_s)} ms, and even free ones "
            f"would make the step at most {at_most:.2f} times faster"
        )
        return memory_ms / 1e3, Cause("memory-bound work is most of the step", why)
    return None


def _slower_layers(steps: Steps) -> Finding | None:
    """Products that take longer in low precision than in the baseline."""
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
    named = _listed(
        [
            f"{_called(row.layer)} ({_ms(row.other_ms)} ms in {steps.recipe}, "
            f"{_ms(row.base_ms)} in {steps.base_recipe})"
            for row in rows[:NAMED]
        ]
    )
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    why = (
        f"products are slower in low precision in {named}{more}: "
        f"{_of(lost_s, steps.step_s)} lost{_conversions(steps, [row.layer for row in rows])}"
    )
    fix = f"keep {'it' if len(rows) == 1 else 'them'} in {steps.base_recipe}"
    return lost_s, Cause("layers that are slower in low precision", why, _worth(fix, lost_s, steps))


def _conversions(steps: Steps, layers: Sequence[str]) -> str:
    """What of the time of these layers only changes the layout, where it is much."""
    ops = [op for op in steps.present.ops if op.kind == "product" and _layer(op) in layers]
    taken_s = math.fsum(op.device_s for op in ops)
    changing_s = math.fsum(op.conversion_s for op in ops)
    if changing_s <= SLOWER_SHARE * taken_s:
        return ""
    return f"; {_of(changing_s, taken_s)} there only change the layout"


def _missed(steps: Steps) -> Finding | None:
    """Products that still run on float32 under a recipe of low precision."""
    if not steps.low:
        return None
    products = [op for op in steps.present.ops if op.kind == "product"]
    missed = [op for op in products if op.dtype == "float32"]
    missed_s = math.fsum(op.device_s for op in missed)
    if missed_s <= MISSED_SHARE * steps.present.product_s:
        return None
    why = (
        f"products that {steps.recipe} leaves in float32 take "
        f"{_of(missed_s, steps.present.product_s)} of all products: {_layers(missed)}"
    )
    fix = "call them under autocast, with no .float() or autocast(enabled=False) before them"
    return missed_s, Cause("products still in float32", why, _worth(fix, missed_s, steps))


def _misaligned(steps: Steps) -> Finding | None:
    """Products whose sizes keep them off the fast kernels, as the caller found."""
    ops = [op for op in steps.present.ops if op.misaligned]
    taken_s = math.fsum(op.device_s for op in ops)
    if taken_s <= MISALIGNED_SHARE * steps.step_s:
        return None
    why = (
        f"products of sizes that are not aligned ({_named([op.misaligned for op in ops])}) take "
        f"{_of(taken_s, steps.step_s)}: {_layers(ops)}"
    )
    fix = "pad these sizes to a multiple of 8 (of 4 in TF32)"
    return taken_s, Cause("sizes that are not aligned", why, _worth(fix, taken_s, steps))


def _tf32_baseline(steps: Steps) -> Finding | None:
    """The baseline's products run on Tensor Cores already."""
    if steps.base is None or steps.base_recipe not in BASELINES["tf32"] or not steps.low:
        return None
    products_ms = [1e3 * step.product_s for step in (steps.base, steps.present)]
    if not products_ms[0]:
        return None
    why = (
        f"products take {_ms(products_ms[0])} ms in {steps.base_recipe}, on Tensor Cores already, "
        f"and {_ms(products_ms[1])} in {steps.recipe}: against fp32 the gain would be larger"
    )
    return 0.0, Cause("TF32 is already on in the baseline", why)


def _worth(fix: str, stake_s: float, steps: Steps) -> str:
    """The fix, where getting all of this time back would gain more than MIN_GAIN_PCT."""
    rest_s = steps.step_s - stake_s
    gain_pct = 100 * stake_s / rest_s if rest_s > 0 else math.inf
    return fix if gain_pct > MIN_GAIN_PCT else ""


def _layers(ops: Sequence[OpCost]) -> str:
    """The layers of these ops, those that take most first, with their ms."""
    taken_ms: dict[str, float] = defaultdict(float)
    for op in ops:
        taken_ms[_layer(op)] += 1e3 * op.device_s
    return _largest(taken_ms)


def _largest(taken_ms: Mapping[str, float]) -> str:
    """ "layer3 (4.00 ms), layer4 (2.00 ms) and 5 more"."""
    most = sorted(taken_ms, key=lambda name: -taken_ms[name])
    return _named([f"{_called(name)} ({_ms(taken_ms[name])} ms)" for name in most])


def _named(words: Iterable[str]) -> str:
    """The first ones, each once, and how many more there are."""
    once = list(dict.fromkeys(words))
    more = f" and {len(once) - NAMED} more" if len(once) > NAMED else ""
    return f"{', '.join(once[:NAMED])}{more}"


def _layer(op: OpCost) -> str:
    return op.layer or NO_LAYER


def _called(layer: str) -> str:
    """A layer that has a number for a name in a sentence."""
    return f"layer {layer}" if layer[:1].isdigit() else layer


def _of(part_s: float, whole_s: float) -> str:
    """ "3.1 of 16.0 ms (19 %)"."""
    return f"{_ms(1e3 * part_s)} of {_ms(1e3 * whole_s)} ms ({100 * part_s / whole_s:.0f} %)"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"


def _ms(ms: float) -> str:
    if abs(ms) >= 999.5:
        return f"{ms:,.0f}"
    return f"{ms:.1f}" if abs(ms) >= 9.95 else f"{ms:.2f}"


def _listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
