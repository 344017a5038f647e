"""The answer of a run of trainings: how much faster, why, what to do, and what to doubt.

A pure function of the run: every number is in the run file, or is the ratio of two that are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import geometric_mean
from textwrap import wrap

from e2e.report import ledger
from e2e.report.figures import BOTTLENECKS, bottleneck, is_clear, ratio, times
from e2e.report.trainings import exposed, fastest, is_bf16_again
from e2e.report.variants import (
    SHORT_WORDS,
    Group,
    View,
    grouped,
    in_words,
    is_generated,
    is_short,
    reference,
    step_word,
    trains,
)
from e2e.results.baselines import STRONG, scaling
from e2e.results.ledger import cpu_pace
from e2e.results.terms import RESIDUAL
from e2e.results.types import Cause, Training
from microbench import fmt
from microbench.report.parts import Line, doubts
from microbench.results.types import Ratio, Run, Warning
from microbench.verdict import load_warnings

MOST_ROWS, ROW = 8, 73  # of the answer without what says more; characters of a row
MOST_DOUBTS = 2
NO_VERDICT = "No verdict"
MOST_NAMED = 4
MOST_EXPLAINED = 2  # comparisons: of more there are no ledgers in the answer
MOST_TERMS = 3  # of a ledger in a sentence
NEAR_PACE = 1.2  # of recorded and timed steps of a CPU: more is said
SAME_SHARE = 0.005  # memory that differs by less is the same
WHERE = ("network", "batch", "gpus", "evaluation", "compile", "graph")


def answer(run: Run, view: View) -> list[Line]:
    """The finding first; at most MOST_ROWS rows on a screen."""
    device = run.device_name
    ruined = [group for group in view.groups if group.ruined_pct]
    sound = view.only(
        lambda t: not view.group_of(t).ruined_pct and not ledger.contradicted(view, t)
        and not is_bf16_again(view, t)
    )  # fmt: skip
    best = best_variants(sound)
    doubtful, scaling = [*_no_verdicts(view, ruined, "" if best else device)], [*_scaling(sound)]
    sentences = [
        *_lost(view),
        *(sentence for group in sound.groups for sentence in _ladder(sound, group, device)),
        *scaling[:2],
        *_speeds(sound, best, device, rate=not (scaling or doubtful)),
        *doubtful,
        *_failed(view),
    ]
    lines = [Line("", sentence) for sentence in sentences]
    if best and (best[-1].speedup or not doubtful):
        lines += _why(sound, best[-1], on_gpu=run.device.get("kind") == "cuda")
    elif doubtful:
        lines.append(
            Line("Why", "likely other work on the machine, or steps that differ by themselves")
        )
        lines.append(Line("Do", "repeat it on an idle machine, or longer (--budget 120)"))
    lines = lines or [Line("", "Nothing was measured")]
    taken_rows = (run.finished_at is None) + 2 * len(load_warnings(run.settings))  # by every report
    return _within([*lines, *_doubts(view, best)], MOST_ROWS - taken_rows)


def _within(lines: list[Line], most: int) -> list[Line]:
    """The lines that fit this many rows of a screen: later reasons go first, then later doubts,
    later findings, and the first reason, for which there is a row more. All that goes is in a part
    of --verbose.
    """
    reasons, doubts, findings = (
        [line for line in lines if line.label == label and NO_VERDICT not in line.text]
        for label in ("Why", "Doubt", "")
    )
    going = [*reasons[:0:-1], *doubts[:0:-1], *findings[:1:-1], *reasons[:1]]
    for line in going:
        room = most + any(line is first for first in reasons[:1])
        if sum(len(wrap(one.text, ROW)) for one in lines) <= room:
            break
        lines = [one for one in lines if one is not line]
    return lines


def best_variants(view: View) -> list[Training]:
    """The variants of the recipe that is fastest against its baseline, at every batch and network;
    the one with the highest throughput is last. Without baselines the fastest variant.
    """
    sound = [t for t in view.variants if t.steps and not view.is_lost(t)]
    timed = sorted(sound, key=lambda t: t.per_s or 0.0)
    rungs = [t for t in sound if t.rung is not None and "first" in t.speedup]
    by_label = grouped(
        (view.label(t), t)
        for t in timed
        if not view.is_baseline(t) and t.rung is None and t.speedup
    )

    def gain(variants: Sequence[Training]) -> float:
        """The geometric mean over the first baseline that each has."""
        names = (next(n for n in (*view.compared, *a.speedup) if n in a.speedup) for a in variants)
        return geometric_mean(a.speedup[n].ratio for a, n in zip(variants, names, strict=True))

    return max(by_label.values(), key=gain, default=rungs[-1:] or timed[-1:])


# ---------------------------------------------------------------- how much faster


def _speeds(view: View, best: Sequence[Training], device: str, *, rate: bool) -> Iterator[str]:
    """The fastest recipe against its baselines. Its `rate` where nothing was compared."""
    if not best or best[-1].rung is not None:
        return
    if best[-1].speedup and not view.is_baseline(best[-1]):
        yield f"{_speed(view, best)} ({where_of(view, best, device)})"
    elif rate:
        last = best[-1]
        text = (
            f"{view.label(last)} {trains(last)} {fmt.throughput(last.per_s or 0.0)} {last.unit}/s"
        )
        yield f"{text} ({where_of(view, [last], device)})"


def _speed(view: View, variants: Sequence[Training]) -> str:
    """ "amp trains 1.95 ±0.02 times as fast as tf32, 5.74 ±0.01 times as fast as fp32"."""
    present = dict.fromkeys(name for t in variants for name in t.speedup)
    compared = sorted(present, key=[*view.compared, *present].index)
    clauses, same = list[str](), list[str]()
    slower = True
    for name in compared:
        ratios = [(t.speedup[name], t) for t in variants if name in t.speedup]
        title = view.title(name)
        if all(ratio.no_difference for ratio, _ in ratios):
            same.append(f"{title} ({fmt.ratio(ratios[0][0])})")
            slower = False
            continue
        clear = [(ratio, t) for ratio, t in ratios if not ratio.no_difference]
        low, high = (pick(clear, key=lambda pair: pair[0].ratio) for pick in (min, max))
        slower = slower and high[0].ratio < 1
        ends = [times(low[0])]
        if len(ratios) > 1:
            ends = [f"{times(r)} ({view.where(t)})" for r, t in (low, high)]
        unclear = len(ratios) - len(clear)
        none = f" (no difference in {unclear} of {len(ratios)})" * bool(unclear)
        clauses.append(f"{' to '.join(dict.fromkeys(ends))} times as fast as {title}{none}")
    alike = f"no difference measured from {fmt.joined(same)}" if same else ""
    if not clauses:
        return f"{view.label(variants[0])}: {alike}"
    verb = f"{'is slower: it ' * slower}{trains(variants[0])}"
    clauses += [alike] * bool(same)
    return f"{view.label(variants[0])} {verb} {', '.join(clauses)}"


def where_of(view: View, variants: Sequence[Training], device: str) -> str:
    """What these variants share, and the device: "resnet50, batch 256, NVIDIA H200"; what their
    labels have is left out.
    """
    data = ["data"] * (is_generated(variants[0].case) and variants[0].case.data != "synthetic")
    parts: list[str] = []
    for name in (*(name for name in WHERE if name not in view.within), *data):
        texts = list(dict.fromkeys(text for t in variants for text in in_words(t.case, [name])))
        if name == "network" and len(texts) > 1:
            parts.append(fmt.count(len(texts), "network"))
        elif len(texts) == 1:
            parts += texts
    return ", ".join([*parts, *[device] * bool(device)])


def _lost(view: View) -> Iterator[str]:
    """Recipes that did not converge, whatever their speed."""
    untaught = [group for group in view.groups if group.taught_nothing]
    if untaught:
        titles = [group.title for group in untaught if len(untaught) < len(view.groups)]
        where = f" ({fmt.listed(titles, MOST_NAMED)})" * bool(titles)
        clearly = "clearly " * any(t.converged for group in untaught for t in group.variants)
        why = next(t.convergence for t in untaught[0].variants if t.converged is False)
        yield (
            f"No recipe {clearly}learned{where}, so no speed is a gain: "
            f"{why or 'no reason given'}; train longer"
        )
    lost = [t for t in view.variants
            if t.converged is False and not view.group_of(t).taught_nothing]  # fmt: skip
    if lost:
        named = fmt.listed([view.named(t) for t in lost], MOST_NAMED)
        why = lost[0].convergence or "no reason given"
        whose = "their" if len(lost) > 1 else "its"
        yield f"{named} DID NOT CONVERGE ({why}): {whose} speed is no gain"


def _no_verdicts(view: View, ruined: Sequence[Group], device: str) -> Iterator[str]:
    """Groups whose intervals are too wide, and variants whose rounds and steps disagree."""
    if ruined:
        widest = max(ruined, key=lambda group: group.ruined_pct)
        names = [view.label(t) for t in widest.variants if t.steps]
        named = fmt.joined(names) if len(names) <= MOST_NAMED else f"{len(names)} recipes"
        more = f", nor in {fmt.count(len(ruined) - 1, 'other comparison')}" * (len(ruined) > 1)
        where = where_of(view, widest.variants, device)
        yield f"{NO_VERDICT} on {named} ({where}){more}: {fmt.too_wide(widest.ruined_pct)}"
    apart = [(t, name) for t in view.variants if not view.group_of(t).ruined_pct
             and (name := ledger.contradicted(view, t))]  # fmt: skip
    for variant, name in apart[:1]:
        base = reference(variant, name, view.group_of(variant))
        assert base
        assert base.step_s
        assert variant.step_s
        more = f"; {len(apart) - 1} more" if len(apart) > 1 else ""
        yield (
            f"{NO_VERDICT} on {view.named(variant)} against {view.title(name)}: by their rounds it "
            f"is {times(variant.speedup[name])} times as fast, by their steps "
            f"{base.step_s / variant.step_s:.2f}{more}"
        )


def _ladder(view: View, group: Group, device: str) -> Iterator[str]:
    """From the first rung to the last."""
    rungs = [t for t in group.variants if "first" in t.speedup and not view.is_lost(t)]
    last = rungs[-1] if rungs else None
    base = reference(last, "first", group) if last else None
    if last and base:
        first = last.speedup["first"]
        start = view.label(base) + SHORT_WORDS * view.is_short("first")
        same = "no difference measured"
        gain = same if first.no_difference else f"{times(first)} times as fast"
        yield f"From {start} to {view.label(last)}: {gain} ({where_of(view, [last], device)})"


def _scaling(view: View) -> Iterator[str]:
    """ "amp: efficiency 0.95 ±0.01 on 2 GPUs, 0.94 ±0.01 on 4 (weak scaling)", a line a recipe."""
    by_recipe = grouped(
        ((" ".join(in_words(row.many.case, ("recipe", "compress"))), row.kind), row)
        for row in scaling(view.variants)
        if not view.is_lost(row.many)
    )
    for (name, kind), rows in by_recipe.items():
        each = [f"{ratio(row.efficiency)} on {row.many.case.gpus} GPUs" for row in rows]
        network, batch = rows[0].many.case.network, f"batch {rows[0].one.case.batch}"
        batch = f"global {batch}" if kind == STRONG else f"{batch} a GPU"
        each_of = fmt.listed(each, MOST_NAMED)
        yield f"{name}: efficiency {each_of} ({kind} scaling, {fmt.clean(network)}, {batch})"


def _exchanges(view: View) -> Iterator[str]:
    """What the exchange of gradients adds to the step of the most GPUs."""
    rows = [row.many for row in scaling(view.variants) if row.many.exchange]
    most = max(rows, key=lambda t: t.case.gpus, default=None)
    if most and most.exchange and most.step_s:
        adds = f"{exposed(most.exchange)} of {fmt.milliseconds(most.step_s)} ms"
        yield f"exchanging gradients adds {adds} to a step on {most.case.gpus} GPUs"


def _failed(view: View) -> Iterator[str]:
    """Recipes that failed, and why; each reason once."""
    failed = [(t.reason or "", view.named(t)) for t in view.variants if t.status == "failed"]
    for why, names in grouped(failed).items():
        yield f"{fmt.listed(names, MOST_NAMED)} FAILED: {why or 'no reason given'}"


# ---------------------------------------------------------------- why, and what to do


def _why(view: View, best: Training, *, on_gpu: bool) -> Iterator[Line]:
    """The largest terms or the bottleneck, the first cause, and one thing to do.

    Of many comparisons the bottlenecks: a ledger would explain one of them.
    """
    doubt, many = ledger.doubt_of(view, best), len(view.groups) > MOST_EXPLAINED
    explains = ledger.has_ledger(best) and not doubt and not many
    others = tuple(word for limit, word in BOTTLENECKS.items() if best.limit not in (limit, None))
    first = next(
        (cause for cause in best.causes if cause.predicted_gain_pct is None and not doubt
         and not cause.title.startswith(others)), None,
    )  # fmt: skip
    reasons = [*_largest(view, view.group_of(best))] if best.rung is not None else []
    if explains:
        reasons.append(_ledger(view, best))
    elif doubt and doubt != ledger.SAME and not many and (ledger.has_ledger(best) or best.causes):
        reasons.append(f"no explanation: {doubt}")
    named = first is not None and first.title.startswith(bottleneck(best.limit))
    if on_gpu and best.limit and not named and not (explains and best.limit == "gpu"):
        reasons.append(_bottlenecks(view, best, many=many))
    if first and not many and len(view.groups) == 1:
        figures, *_ = re.split(": |; ", fmt.clean(first.why))  # without its places
        figures = f": {figures}" * bool(figures)
        if explains:  # the ledger's ms are of another step in older files
            figures = " ".join(["", *re.findall(r"\(\d+ %\)", figures)])
        reasons.append(ledger.title_words(first) + figures)
    yield from (Line("Why", text) for text in (*reasons, *_exchanges(view)))
    if do := _do(view, best, first):
        yield Line("Do", do)


def _ledger(view: View, variant: Training) -> str:
    """ "of 241 ms a step in fp32 amp saves 199: convolutions -154, layout changes -24.3, ..." Where
    it takes longer, what grew is named first.
    """
    first, *between, last = variant.ledger
    label, saved_ms = view.named(variant), first.ms - last.ms
    terms = sorted((line for line in between if line.term != RESIDUAL), key=lambda x: -abs(x.ms))
    terms = terms[:MOST_TERMS]
    if saved_ms <= 0:
        terms.sort(key=lambda line: line.ms < 0)
    parts = [f"{ledger.term_words(line.term)} {line.ms:+.3g}" for line in terms if line.ms]
    rest_ms = round(sum(line.ms for line in between if line.term == RESIDUAL), 2) + 0.0  # no -0.00
    whole = f"{fmt.hundredths(first.ms)} ms a {step_word(variant)} in {ledger.base_words(variant)}"
    start = f"of {whole} {label} saves {fmt.hundredths(saved_ms)}"
    if saved_ms <= 0:
        start = f"{label} takes {fmt.hundredths(-saved_ms)} ms more than the {whole}"
    return f"{start}: {', '.join([*parts, f'unexplained {rest_ms:+.2f}'])}"


def _steps(view: View, group: Group) -> list[tuple[Ratio, Training, Training]]:
    """The rungs of a ladder, each with its speed-up over the one before, and that one."""
    timed = [t for t in group.variants if t.steps]
    return [
        (t.speedup["previous"], t, before)
        for before, t in pairwise(timed)
        if "previous" in t.speedup and not view.is_lost(t)
    ]


def _largest(view: View, group: Group) -> Iterator[str]:
    """The largest step of a ladder."""
    for gain, rung, before in sorted(_steps(view, group), key=lambda one: -one[0].ratio)[:1]:
        if gain.ratio > 1 and is_clear(gain):
            recipe = before.case.recipe
            short = f", {recipe}{SHORT_WORDS}" * is_short(recipe, [before])
            than = f"{times(gain)} times as fast as the rung before{short}"
            yield f"largest gain: {view.label(rung)}, {than}"


def _bottlenecks(view: View, best: Training, *, many: bool) -> str:
    """Of many comparisons how often each is the bottleneck; else that of the best."""
    timed = [t for t in view.variants if t.steps and t.limit]
    word = bottleneck(best.limit)
    if len({t.limit for t in timed}) == 1 and len(timed) > 1:
        return f"{'the ' * (best.limit == 'gpu')}{word} is the bottleneck of every recipe"
    if many:
        counts = Counter(bottleneck(t.limit) for t in timed if not view.is_baseline(t))
        times = (f"{name} {count}" for name, count in counts.most_common())
        return f"bottlenecks of the recipes asked for: {', '.join(times)}"
    return f"bottleneck of {view.named(best)}: {word}"


def _do(view: View, best: Training, first: Cause | None) -> str:
    """One thing to do: what was measured to help, else what is likely to."""
    tried = [
        (t is best, cause.measured_gain_pct or 0.0, cause, t)
        for t in view.variants
        if ledger.is_sound(view, t)
        for cause in t.causes
    ]
    helped = [one for one in tried if one[1] > 0]
    if helped:
        _, _, most, variant = max(helped, key=lambda one: one[:2])
        of = f" for {view.named(variant)}" * (variant is not best)
        return f"{most.fix}{of} ({ledger.gains(most)})"
    if len(view.groups) == 1 and _is_slower(view, best):
        return _use(view, best)
    if text := _layouts(view, best):
        return text
    if first and fmt.clean(first.fix):
        return f"{first.fix} ({ledger.gains(first) or 'not measured'})"
    called = not (best.case.graph or best.case.compile)  # kernels are launched call by call
    if best.limit == "host" and called and ledger.is_sound(view, best):
        return "CUDA graphs (--graph) or --compile (not measured)"
    return _use(view, best) if len(view.groups) == 1 else ""


def _is_slower(view: View, best: Training) -> bool:
    """Whether it is slower than all that it is compared with, and than one of those for sure."""
    ratios = [best.speedup[name] for name in view.compared if name in best.speedup]
    sure = not all(ratio.no_difference for ratio in ratios)
    return sure and all(ratio.ratio < 1 for ratio in ratios)


def _layouts(view: View, best: Training) -> str:
    """The layout, where the same variant in the other one was timed and is slower."""
    for other in view.group_of(best).variants:
        alike = replace(best.case, layout=other.case.layout) == other.case
        if other is not best and alike and other.per_s and (best.per_s or 0.0) > other.per_s:
            name = "channels_last (nhwc)" if best.case.layout == "nhwc" else best.case.layout
            fast, slow = (fmt.throughput(t.per_s or 0.0) for t in (best, other))
            unit, recipe = f"{best.unit}/s", best.case.recipe
            return f"use {name}: {fast} {unit} with {recipe}, {slow} in {other.case.layout}"
    return ""


def _use(view: View, best: Training) -> str:
    """The recipe that won, and what else it saves; or the baseline, where it is slower.

    Of a ladder it is the last rung that is clearly faster than the one before.
    """
    group, up_to = view.group_of(best), ""
    if best.rung is not None:
        clear = [t for gain, t, _ in _steps(view, group) if gain.ratio > 1 and is_clear(gain)]
        if not clear:
            return ""
        best, up_to = clear[-1], "all up to "
    names = [name for name in view.compared if name in best.speedup]
    if all(best.speedup[name].no_difference for name in names):
        return ""
    if _is_slower(view, best):
        winner = fastest(group)
        return f"{trains(best).removesuffix('s')} in {view.label(winner)}" if winner else ""
    base = reference(best, names[0], group)
    parts: list[str] = []
    if base is None or base is best:
        return f"use {up_to}{view.label(best).removeprefix('+ ')}"
    share = (best.memory_peak_bytes or 0) / (base.memory_peak_bytes or 1)
    if base.memory_peak_bytes and share and abs(share - 1) > SAME_SHARE:
        parts.append(f"{share:.2f}{' times' if share > 1 else ' of'} the memory")
    if best.per_j and base.per_j:
        parts.append(f"{best.per_j / base.per_j:.2g} times the {best.unit}/J")
    than = f": {fmt.joined(parts)} of {view.label(base)}" * bool(parts)
    return f"use {up_to}{view.label(best).removeprefix('+ ')}{than}"


# ---------------------------------------------------------------- doubt


def _doubts(view: View, best: Sequence[Training]) -> list[Line]:
    """Warnings, what is unexplained or not judged, and data that are not real."""
    warned = doubts(warnings_of(view), len(view.variants), most=1)
    sentences: list[str] = []
    last = best[-1] if best else None
    if last and ledger.has_ledger(last) and ledger.is_sound(view, last):
        share, _ = ledger.unexplained(last)
        if share > ledger.MOST_RESIDUAL:
            sentences.append(f"{100 * share:.0f} % of a step is unexplained: trust no term")
        elif abs(math.log(pace := cpu_pace(last))) > math.log(NEAR_PACE):
            sentences.append(
                f"recorded steps took {1 / pace:.2g} times as long as timed ones (other work on "
                "the CPU): terms are scaled"
            )
    unjudged = [t for t in view.variants
                if t.converged is None and t.convergence and not view.is_lost(t)]  # fmt: skip
    for why, variants in grouped((t.convergence or "", t) for t in unjudged).items():
        named = fmt.listed([view.named(t) for t in variants], 2)
        sentences.append(f"convergence of {named} not judged: {why}")
    if last and last.case.data == "synthetic" and not last.case.evaluation:
        names = {t.case.network for t in view.variants}
        word = f" {last.case.network}" if len(names) == 1 else ""
        sentences.append(f"synthetic data: a loader may be slower (halfway stalls{word})")
    return [*warned, *(Line("Doubt", sentence) for sentence in sentences)][:MOST_DOUBTS]


def warnings_of(view: View) -> list[tuple[Warning, str]]:
    """Every warning with its variant."""
    return [(warning, view.named(t)) for t in view.variants for warning in t.warnings]
