"""The result in sentences: how much faster each recipe is, whether it converges, its bottleneck.

A pure function of the run: every number is in the run file, or is the ratio of two that are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from e2e.report.arms import (
    SHORT_WORDS,
    Group,
    View,
    arms_of,
    grouped,
    in_words,
    is_generated,
    place,
    reason,
    reference,
    trains,
    view_of,
    was_run,
)
from e2e.report.figures import bottleneck, faster, noun, signed_pct, times
from e2e.report.learning import accuracy, loss
from e2e.report.ledger import is_sound, ledger_sentences
from e2e.report.predictions import is_predicted, prediction_sentences
from e2e.report.ranks import exchange_sentences
from e2e.report.table import busy_pct
from e2e.results.types import Cause, Training
from microbench import fmt
from microbench.report.table import Column, Part
from microbench.results.types import Run
from microbench.verdict import load_warnings, uncertain

MOST_SENTENCES = 4


def has_causes(view: View, arm: Training) -> bool:
    """Whether it has causes of figures that are good enough."""
    return bool(arm.causes) and is_sound(view, arm)


def gains(cause: Cause) -> str:
    """ "measured +49.0 %": what was gained or, in older files, predicted; "" if unknown."""
    named = (("predicted", cause.predicted_gain_pct), ("measured", cause.measured_gain_pct))
    return ", ".join(
        f"{how} {signed_pct(round(pct, 1) + 0.0)}"
        for how, pct in named
        if pct is not None and math.isfinite(pct)
    )


def title_words(cause: Cause) -> str:
    """The cause's title."""
    return fmt.clean(cause.title) or "-"


def causes_part(view: View, arm: Training) -> Part:
    """The causes of a training, in the order of the file."""
    lines = [f"{i}. {_sentence(one)}" for i, one in enumerate(arm.causes, 1)]
    return Part(f"What limits {view.full_label(arm)}", below=lines)


def _sentence(cause: Cause) -> str:
    """ "the host launches too slowly: ... Try: --graph (measured +49.0 %)." """
    why, fix, gain = fmt.clean(cause.why), fmt.clean(cause.fix), gains(cause)
    said = f"{title_words(cause)}{f': {why}' * bool(why)}."
    return said + f" Try: {fix}{f' ({gain})' * bool(gain)}." * bool(fix)


def raw_columns() -> list[Column[Training]]:
    """Fixes and findings in CSV: the causes with and without something to try."""

    def fixes(arm: Training) -> str:
        found = [cause for cause in arm.causes if fmt.clean(cause.fix)]
        found.sort(key=lambda one: -(_finite(one.predicted_gain_pct) or 0.0))
        found.sort(key=lambda one: _finite(one.predicted_gain_pct) is None)
        return "; ".join(
            f"{fmt.clean(one.fix)}: {gains(one) or 'gain not predicted'}" for one in found
        )

    def findings(arm: Training) -> str:
        return "; ".join(title_words(one) for one in arm.causes if not fmt.clean(one.fix))

    return [Column(csv={"fixes": fixes, "findings": findings})]


def _finite(value: float | None) -> float | None:
    return round(value, 1) + 0.0 if value is not None and math.isfinite(value) else None


# ---------------------------------------------------------------- sentences


def cause_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """For the end of the screen: what limits most, and the best gain measured."""
    arms = [arm for arm in arms_of(family) if has_causes(view, arm)]
    # Older files have predicted fixes too, before what limits the step.
    first = [(one, arm) for arm in arms for one in arm.causes if one.predicted_gain_pct is None]
    titles = {id(arm): title_words(one) for one, arm in reversed(first)}
    limits = grouped((titles[id(arm)], view.full_label(arm)) for arm in arms if id(arm) in titles)
    lines = [
        f"What limits {fmt.listed(labels, MOST_SENTENCES)} most: {title}."
        for title, labels in limits.items()
    ]
    for arm in arms:
        best = max(arm.causes, key=lambda one: one.measured_gain_pct or 0.0)
        if (best.measured_gain_pct or 0.0) > 0:
            label = view.full_label(arm)
            lines.append(f"Best measured for {label}: {fmt.clean(best.fix)} ({gains(best)}).")
    return lines


BUSY = (
    "The machine was busy: this prediction for a CPU may be many times too slow. Repeat it on an "
    "idle machine, or with OMP_NUM_THREADS=1."
)
SAME_SHARE = 0.005  # memory that differs by less is the same
MOST_NAMED = 4


def verdict(run: Run) -> list[str]:
    """Sentences for the end of the screen; details are indented."""
    view = view_of(run)
    lines: list[str] = []
    doubt: dict[str, float] = {}
    for whole in view.families:
        doubt |= {_title(view, group): group.ruined_pct for group in whole if group.ruined_pct}
        family = [group for group in whole if not group.ruined_pct]
        if any(group.is_ladder for group in family):
            lines += [line for group in family for line in _ladder(view, group)]
        else:
            lines += _gains(view, family)
        lines += [*_missing(view, whole), *_accuracies(view, whole)]
        if run.device.get("kind") == "cuda":
            lines += _waiting(view, family)
        for sentences in (prediction_sentences, ledger_sentences, cause_sentences):
            lines += sentences(view, family)
    lines += [*exchange_sentences(view.arms), *uncertain(doubt)]
    alone = any(is_predicted(arm) and not arm.steps for arm in view.arms)
    if alone and run.device.get("kind") == "cpu" and load_warnings(run.settings):
        lines.append(BUSY)
    return lines


def _title(view: View, group: Group) -> str:
    """ "fp32 and amp (resnet50, batch 16)"."""
    names = [view.label(arm) for arm in group.arms if arm.steps]
    return f"{fmt.listed(names, MOST_NAMED)} ({place(group.arms[0])})"


# ---------------------------------------------------------------- recipes


def _gains(view: View, family: Sequence[Group]) -> list[str]:
    """A sentence an arm that was asked for; the fastest arm's rate when nothing was compared."""
    lines: list[str] = []
    for arms in view.curves(family).values():
        timed = [arm for arm in arms if arm.steps]
        sound = [arm for arm in timed if arm.converged is not False]
        if sound and not view.is_baseline(sound[0]) and any(arm.speedup for arm in sound):
            present = dict.fromkeys(name for arm in sound for name in arm.speedup)
            compared = sorted(present, key=[*view.compared, *present].index)
            if len(sound) == 1:
                lines.append(_gain(view, sound[0], compared))
            else:
                lines.append(_gain_by_batch(view, sound, compared))
        lines += [_no_gain(view, arm) for arm in timed if arm.converged is False]
    timed = [arm for arm in arms_of(family) if arm.steps]
    if not lines and timed:
        best = max(timed, key=lambda arm: arm.per_s or 0.0)
        rate = f"{fmt.throughput(best.per_s or 0.0)} {fmt.clean(best.unit)}/s"
        lines = [f"{view.label(best)} {trains(best)} {rate} ({place(best)})."]
    return lines


def _gain(view: View, arm: Training, compared: Sequence[str]) -> str:
    """ "amp trains 5.8 ±0.1 times faster than fp32 (resnet50, batch 256), in 0.52 of ..." """
    known = [name for name in compared if name in arm.speedup]
    seen = [name for name in known if not arm.speedup[name].no_difference]
    same = [view.title(name) for name in known if name not in seen]
    alike = f"no difference measured against {fmt.joined(same)}" if same else ""
    where = f"({place(arm)}){_extras(view, arm, seen or known)}"
    if not seen:
        return f"{view.label(arm)}: {alike} {where}."
    gains = fmt.joined([f"{faster(arm.speedup[name])} than {view.title(name)}" for name in seen])
    return f"{view.label(arm)} {trains(arm)} {gains} {where}{f'; {alike}' * bool(alike)}."


def _extras(view: View, arm: Training, compared: Sequence[str]) -> str:
    """ ", in 0.52 of the memory and with 5.1 times the images per joule of fp32"."""
    base = reference(arm, compared[0], view.group_of(arm)) if compared else None
    if base is None or base is arm:
        return ""
    parts: list[str] = []
    share = (arm.memory_peak_bytes or 0) / (base.memory_peak_bytes or 1)
    if base.memory_peak_bytes and share and abs(share - 1) > SAME_SHARE:
        parts.append(f"in {share:.2f}{' times' if share > 1 else ' of'} the memory")
    if arm.per_j and base.per_j:
        parts.append(f"with {arm.per_j / base.per_j:.2g} times the {noun(arm.unit)} per joule")
    if not parts:
        return ""
    name = "the first rung" if compared[0] == "first" else fmt.clean(base.case.recipe)
    return f", {fmt.joined(parts)} of {name}"


def _gain_by_batch(view: View, timed: Sequence[Training], compared: Sequence[str]) -> str:
    """ "amp trains 2.1 ±0.1 (batch 128) to 5.8 ±0.1 (batch 2048) times as fast as fp32"."""
    label = view.label(timed[0])
    names = ["network", "evaluation", *["data"] * is_generated(timed[0].case)]
    where = ", ".join(in_words(timed[0].case, names))
    if all(ratio.no_difference for arm in timed for ratio in arm.speedup.values()):
        unseen = fmt.joined([view.title(name) for name in compared])
        return f"{label}: no difference measured against {unseen} at any batch ({where})."
    clauses: list[str] = []
    for name in compared:
        ratios = [(arm.speedup[name], arm.case.batch) for arm in timed if name in arm.speedup]
        low, high = (pick(ratios, key=lambda pair: pair[0].ratio) for pick in (min, max))
        ends = [f"{times(ratio)} (batch {batch})" for ratio, batch in (low, high)]
        clauses.append(f"{' to '.join(dict.fromkeys(ends))} times as fast as {view.title(name)}")
    return f"{label} {trains(timed[0])} {fmt.joined(clauses)} ({where})."


def _no_gain(view: View, arm: Training) -> str:
    """A recipe that does not converge, and its speed."""
    label, why = view.label(arm), fmt.clean(arm.convergence or "no reason given")
    lost = f"did not converge ({why}; {place(arm)})"
    name = next((name for name in ("tf32", "first", "fp32") if name in arm.speedup), None)
    if name is None or arm.speedup[name].no_difference or arm.speedup[name].ratio <= 1:
        return f"{label} {lost}."
    than = "the first rung" if name == "first" else view.title(name)
    than += SHORT_WORDS * (name == "first" and view.is_short(name))
    return f"{label} runs {faster(arm.speedup[name])} than {than} but {lost}: no gain."


# ---------------------------------------------------------------- a ladder


def _ladder(view: View, group: Group) -> list[str]:
    """From the first rung to the last, the largest step, and those that gave nothing."""
    timed = [arm for arm in group.arms if arm.steps]
    sound = [arm for arm in timed if arm.converged is not False]
    lines: list[str] = []
    last = next((arm for arm in reversed(sound) if "first" in arm.speedup), None)
    if last is not None:
        first = last.speedup["first"]
        gain = "no difference measured" if first.no_difference else faster(first)
        start = view.label(timed[0]) + SHORT_WORDS * view.is_short("first")
        lines.append(f"From {start} to {view.label(last)}: {gain} ({place(last)})"
                     f"{_extras(view, last, ['first'])}.")  # fmt: skip
    lost = [_no_gain(view, arm) for arm in timed if arm.converged is False]
    return [*lines, *_steps(view, sound), *lost]


def _steps(view: View, sound: Sequence[Training]) -> list[str]:
    climbed = [(arm, arm.speedup["previous"]) for arm in sound if "previous" in arm.speedup]
    steps = [(arm, ratio) for arm, ratio in climbed if ratio.ci95 and not ratio.no_difference]
    losses = [f"{view.label(arm)} ({faster(ratio)})" for arm, ratio in steps if ratio.ratio < 1]
    same = [view.label(arm) for arm, ratio in climbed if ratio.no_difference]
    lines: list[str] = []
    best, gain = max(steps, key=lambda step: step[1].ratio, default=(None, None))
    if best and gain and gain.ratio > 1:
        before = "the rung before" + f", fp32{SHORT_WORDS}" * view.follows_short(best)
        lines.append(f"  Largest gain: {view.label(best)}, {faster(gain)} than {before}.")
    if losses:
        lines.append(f"  Slower than the rung before: {fmt.listed(losses, MOST_NAMED)}.")
    if same:
        lines.append(f"  No difference measured for: {fmt.listed(same, MOST_NAMED)}.")
    return lines


# ---------------------------------------------------------------- beside the speed


def _missing(view: View, family: Sequence[Group]) -> list[str]:
    lost = [a for a in arms_of(family) if a.steps is None and a.status != "ok" and was_run(a)]
    return [
        f"  {label} was not measured at batch "
        f"{fmt.listed([str(arm.case.batch) for arm in arms], MOST_NAMED)}: {reason(arms[0])}."
        for label, arms in grouped((view.label(arm), arm) for arm in lost).items()
    ]


def _accuracies(view: View, family: Sequence[Group]) -> list[str]:
    """Held-out accuracy (or loss) of the recipes side by side, at the ends of a sweep."""
    trained = [group for group in family if any(arm.repeats for arm in group.arms)]
    ends = trained if len(trained) <= 1 else [trained[0], trained[-1]]
    lines: list[str] = []
    for group in ends:
        arms = [arm for arm in group.arms if arm.converged is not False]
        by_accuracy = any(arm.accuracy for arm in arms)
        learnt = [(view.label(arm), accuracy(arm) if by_accuracy else loss(arm)) for arm in arms]
        parts = [f"{label} {text}{' %' * by_accuracy}" for label, text in learnt if text]
        if parts:
            what = "Mean accuracy" if by_accuracy else "Mean loss"
            lines.append(f"{what} on held-out data ({place(group.arms[0])}): "
                         f"{fmt.listed(parts, 8)}.")  # fmt: skip
    return [*lines, *_unjudged(view, family)]


def _unjudged(view: View, family: Sequence[Group]) -> list[str]:
    """Arms that did not converge and have no verdict, and those that could not be judged."""
    arms = [arm for arm in arms_of(family) if arm.convergence]
    untold = [arm for arm in arms if not arm.steps or view.group_of(arm).ruined_pct]
    lines: list[str] = []
    for title, found in (
        ("Did not converge", [arm for arm in untold if arm.converged is False]),
        ("Convergence not judged", [arm for arm in arms if arm.converged is None]),
    ):
        named = [f"{view.label(arm)} ({fmt.clean(arm.convergence)})" for arm in found]
        lines += [f"{title}: {fmt.listed(named, MOST_NAMED)}."] if named else []
    return lines


def _waiting(view: View, family: Sequence[Group]) -> list[str]:
    """The arms whose bottleneck is not the GPU, the share of the step, and a remedy."""
    found = grouped(
        ((arm.limit, _remedy(arm) * is_sound(view, arm)), arm)
        for arm in arms_of(family)
        if arm.limit in ("host", "data")
        and arm.steps
        and not _only_slowed(arm)
        and not has_causes(view, arm)
    )
    lines: list[str] = []
    for (limit, remedy), arms in found.items():
        known = sorted(pct for arm in arms if (pct := _waited_pct(arm)) is not None)
        ends = dict.fromkeys(f"{pct:.0f}" for pct in (*known[:1], *known[-1:]))
        names = fmt.listed(_named(view, arms, several=len(family) > 1), MOST_NAMED)
        idle = "the GPU is idle" if limit == "host" else "the CPU waits for data"
        much = f" ({idle} for {' to '.join(ends)} % of the {view.step})" if ends else ""
        lines.append(f"Bottleneck of {names}: {bottleneck(limit)}{much}"
                     f"{f'. Try {remedy}' * bool(remedy)}.")  # fmt: skip
    return lines


def _only_slowed(arm: Training) -> bool:
    """Whether less than half of what a loader makes the step longer is waiting for it."""
    waited_pct, unfed_s = _waited_pct(arm), arm.steps.unfed_s if arm.steps else None
    if arm.limit != "data" or waited_pct is None or not unfed_s or not arm.step_s:
        return False
    return waited_pct < 100 * (arm.step_s / unfed_s - 1) / 2


def _named(view: View, arms: Sequence[Training], several: bool) -> list[str]:
    """The arms by name, each with its batches: "amp (batch 128, 256)"."""
    batches = grouped((view.label(arm), str(arm.case.batch)) for arm in arms)
    return [
        f"{label} (batch {fmt.listed(found, MOST_NAMED)})" if several else label
        for label, found in batches.items()
    ]


def _waited_pct(arm: Training) -> float | None:
    """Per cent of the step in which no kernel ran, or in which the CPU waited for data."""
    if arm.limit == "host":
        busy = busy_pct(arm)
        return None if busy is None else 100 - busy
    if arm.data_wait_s is None or not arm.step_s:
        return None
    return 100 * min(1.0, arm.data_wait_s / arm.step_s)


def _remedy(arm: Training) -> str:
    """An option that is not in use yet; "" when none is known to help."""
    if arm.limit == "data":
        return "more --workers" if arm.case.fed else ""
    if arm.case.graph:
        return "a larger batch"
    return "CUDA graphs (--graph)" if arm.case.compile else "CUDA graphs (--graph) or --compile"
