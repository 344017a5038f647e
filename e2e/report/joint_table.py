"""The joint picture on the screen: a row a number of workers, and what it means in sentences."""

from __future__ import annotations

from rich.text import Text

from e2e.report.figures import limiter
from e2e.report.joint import IN_FULL, Gain, Joint, throughput
from e2e.results.types import Training
from microbench import fmt
from microbench.report.grid import Column, Grid, Row


def joint_table(joint: Joint, width: int) -> list[Text]:
    """Workers x recipes, in images a second; pairs are predicted / measured."""
    recipes = joint.recipes
    base, *others = recipes
    grid = Grid(
        [
            Column("workers", right=True),
            Column("loader\nalone", right=True, drop=2),
            *(Column(f"{fmt.clean(name)}\nimg/s", right=True) for name in recipes),
            *(Column(f"{fmt.clean(name)}\nlimited by", drop=1) for name in recipes),
            *(Column(f"{fmt.clean(name)}\nx {fmt.clean(base)}", right=True) for name in others),
        ]
    )
    for count in joint.workers:
        arms = [joint.at(name, count) for name in recipes]
        alone = joint.loading.get(count)
        ratios = (joint.speedup(name, base, count) for name in others)
        grid.rows.append(
            Row(
                [
                    str(count),
                    fmt.throughput(alone.per_s) if alone and alone.per_s else "",
                    *map(_rates, arms),
                    *map(_limit, arms),
                    *map(gain_cell, ratios),
                ]
            )
        )
    lines, _ = grid.lines(width)
    return [*lines, *(Text(line, "dim") for line in _notes(joint))]


def _rates(arm: Training | None) -> str:
    if arm is None:
        return ""
    if arm.status == "failed":
        return (
            f"{fmt.throughput(arm.predicted_per_s)} / failed" if arm.predicted_per_s else "failed"
        )
    pair = [fmt.throughput(value) if value else "-" for value in (arm.predicted_per_s, arm.per_s)]
    return " / ".join(pair) if arm.per_s else pair[0]


def gain_cell(gain: Gain | None) -> str:
    """ "2.00 ±0.03" where it was measured, "(2.00)" where it is foretold, "" where neither."""
    if gain is None:
        return ""
    return fmt.interval(gain.ratio) if gain.measured else f"({fmt.short_ratio(gain.ratio)})"


def _limit(arm: Training | None) -> str:
    limit = arm and (arm.limit or (arm.predicted.limit if arm.predicted else None))
    return limiter(limit) if limit else ""


def _notes(joint: Joint) -> list[str]:
    notes = ["two values: predicted / measured; one, or one in brackets: predicted"]
    failed: dict[str, list[str]] = {}
    for t in joint.trainings:
        if t.status == "failed":
            name = f"{fmt.clean(t.case.recipe)} with {fmt.count(t.case.workers, 'worker')}"
            failed.setdefault(fmt.clean(t.reason or ""), []).append(name)
    notes += [f"{fmt.listed(names)} failed: {reason}" for reason, names in failed.items()]
    errors = joint.errors_pct
    if errors:
        median_pct = joint.median_error_pct or 0.0
        worst = max(errors, key=abs)
        notes.append(
            f"error of the prediction: median {median_pct:.1f} %, largest {worst:+.1f} %, of "
            f"{fmt.count(len(errors), 'point')}"
        )
    return notes


def joint_sentences(joint: Joint) -> list[str]:
    """What the picture means."""
    base, *others = joint.recipes
    most = joint.workers[-1]
    said: list[str] = []
    for name in others:
        said += _pays(joint, name, base, most)
    for name in joint.recipes:
        said += _in_full(joint, name, most)
    return [*said, *_parts(joint, most)]


def _pays(joint: Joint, name: str, base: str, most: int) -> list[str]:
    low, high = fmt.clean(name), fmt.clean(base)
    start = joint.pays_from(name, base)
    if start is None:
        only = _times(joint.speedup(name, base, most), high, most)
        return [f"{low} never pays with this loader{only}."]
    there = _times(joint.speedup(name, base, start), high, start)
    if start == joint.workers[0]:
        return [f"{low} pays with every number of workers{there}."]
    return [f"{low} stops paying below {fmt.count(start, 'worker')}{there}."]


def _times(gain: Gain | None, base: str, workers: int) -> str:
    """ ": 2.00 ±0.03 times fp32 with 4 workers (measured)"; "" when not known."""
    if gain is None:
        return ""
    known = fmt.interval(gain.ratio) if gain.ratio.ci95 else fmt.short_ratio(gain.ratio)
    source = "measured" if gain.measured else "foretold"
    return f": {known} times {base} with {fmt.count(workers, 'worker')} ({source})"


def _in_full(joint: Joint, name: str, most: int) -> list[str]:
    alone, recipe = joint.alone.get(name), fmt.clean(name)
    if alone is None or not alone.per_s:
        return []
    start = joint.in_full_from(name)
    share = f"{IN_FULL:.0%}"
    if start is not None:
        return [
            f"{recipe} trains {fmt.throughput(alone.per_s)} img/s without a loader; "
            f"{fmt.count(start, 'worker')} leave {share} of it."
        ]
    left = throughput(joint.at(recipe, most))
    told = f": {most} leave {left / alone.per_s:.0%}" if left else ""
    return [
        f"{recipe} trains {fmt.throughput(alone.per_s)} img/s without a loader; no number of "
        f"workers leaves {share} of it{told}."
    ]


def _parts(joint: Joint, most: int) -> list[str]:
    """What each part costs, by difference."""
    said: list[str] = []
    for name in joint.recipes:
        pinned, synthetic = joint.alone.get(name), joint.synthetic.get(name)
        busy = joint.busy.get((name, most))
        if pinned is None or synthetic is None or pinned is synthetic:
            continue
        if not (pinned.step_s and synthetic.step_s):
            continue
        copy = 100 * (pinned.step_s / synthetic.step_s - 1)
        text = f"  {fmt.clean(name)}: copying and normalising a batch {copy:+.1f} % of a step"
        if busy and busy.step_s:
            slower = 100 * (busy.step_s / pinned.step_s - 1)
            text += f", {fmt.count(most, 'busy worker')} beside it {slower:+.1f} %"
        said.append(text + ".")
    return [*said, *_files(joint)]


def _files(joint: Joint) -> list[str]:
    rates = {(one.case.loader, one.case.cold): one.per_s for one in joint.others if one.per_s}
    said: list[str] = []
    for cold in (False, True):
        read = rates.get(("read", cold))
        if read:
            where = "from the disk" if cold else "from memory"
            said.append(f"  reading alone {where}: {fmt.throughput(read)} img/s.")
    loaded = rates.get((joint.loader, True))
    if loaded:
        said.append(
            f"  with files that are not in memory the loader gives {fmt.throughput(loaded)} img/s."
        )
    return said
