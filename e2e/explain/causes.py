"""What limits a step: findings, ranked by the time that they explain.

Pure functions of a step and of its baseline, both predicted or both recorded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.explain.fixes import MIN_GAIN_PCT, NAMED, called, largest, layer_of, named
from e2e.explain.ledger import TERMS, Step, bound, layer_table, op_terms_ms
from e2e.prediction.queue_model import OpCost
from e2e.results.baselines import BASELINES
from e2e.results.terms import TracedCost
from e2e.results.types import Cause
from microbench import fmt
from microbench.fmt import as_ms

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


def findings(
    present: Step,
    base: Step | None,
    recipe: str,
    base_recipe: str,
    costs: Sequence[TracedCost] = (),
    steps: int = 1,
) -> list[Cause]:
    """What limits a step, predicted or recorded: findings by the time that they explain.

    `base` is the same step under `base_recipe`, None if unknown. `costs` are what a trace of so
    many `steps` says beside.
    """
    both = _Steps(present, base, recipe, base_recipe)
    if both.step_s <= 0:
        return []
    finders = (_loading, _launching, _memory, _slower_layers, _missed, _misaligned, _tf32_baseline)
    found = [finding for find in finders if (finding := find(both))]
    found += [_of_trace(cost, steps, both) for cost in costs]
    found.sort(key=lambda finding: -finding[0])
    return [cause for _, cause in found]


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


def _of_trace(cost: TracedCost, steps: int, both: _Steps) -> _Finding:
    """What a trace says against a step, with its share; "" is no place."""
    cost_s = cost.ns / steps / 1e9
    where = f": {cost.where}" if cost.where else ""
    why = f"it takes up to {_share(cost_s, both.step_s)}{where}"
    return cost_s, Cause(cost.title, why, cost.remedy)


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
    known = steps.present.launches
    if known == 0 or all(op.waits for op in steps.present.ops):  # a CPU's
        why = (
            f"no operation runs for {_share(step.idle_s, step.step_s)}: Python, autograd and the "
            f"optimizer take that time around operations of {as_ms(1e3 * step.gpu_s)} ms"
        )
        return step.idle_s, Cause("framework overhead between operations", why)
    launches = sum(op.kind != "view" for op in steps.present.ops) if known is None else known
    what = "ops" if known is None else "kernels"
    waits = sum(op.waits for op in steps.present.ops)
    needs = f"the CPU needs {as_ms(1e3 * step.host_s)} ms to launch" if step.host_s else "it runs"
    which = " that run" if step.host_s else ""
    why = (
        f"the GPU is idle for {_share(step.idle_s, step.step_s)}: {needs} {launches:,} "
        f"{what}{which} for {as_ms(1e3 * step.gpu_s)} ms"
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
            f"{largest(memory)}; GEMMs and convolutions take {as_ms(1e3 * step.product_s)} ms: if "
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
        f"{called(row.layer)} ({as_ms(row.other_ms)} ms in {steps.recipe}, "
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
    ops = [op for op in steps.present.ops if op.kind == "product" and layer_of(op) in slow]
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
        f"({named([op.misaligned for op in ops])}) take "
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
        taken_ms[layer_of(op)] += 1e3 * op.device_s
    return largest(taken_ms)


def _share(part_s: float, whole_s: float) -> str:
    """ "3.1 of 16.0 ms (19 %)"."""
    return f"{as_ms(1e3 * part_s)} of {as_ms(1e3 * whole_s)} ms ({100 * part_s / whole_s:.0f} %)"
