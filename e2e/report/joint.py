"""Recipes x workers as a table and in sentences."""

from __future__ import annotations

from collections.abc import Callable

from e2e.input_stalls import IN_FULL, Gain, Joint, throughput, throughput_error_pct
from e2e.report.arms import grouped
from e2e.report.figures import bottleneck_of, signed_pct
from e2e.results.loader_types import Loading
from e2e.results.types import Training
from microbench import fmt
from microbench.report.table import Column, Part, Row, Table, blank


def joint_title(joint: Joint) -> str:
    """The network, batch size and loader of all its trainings."""
    case = joint.trainings[0].case
    return f"{fmt.clean(case.network)}, batch {case.batch}, loader {fmt.clean(joint.loader)}"


def joint_table(joint: Joint) -> Table[int]:
    """Workers x recipes, in images per second."""
    base, *others = joint.recipes
    return Table(
        [
            Column("workers", str, right=True, key=True),
            Column("loader\nalone", lambda count: _rate(joint.loading.get(count)), right=True,
                   drop=3),
            *(
                Column(f"{fmt.clean(name)}\nimg/s", _of(joint, name, _rates), right=True,
                       markdown=blank)
                for name in joint.recipes
            ),
            *(column for name in joint.recipes for column in _apart_columns(joint, name)),
            *(
                Column(f"{fmt.clean(name)}\nbottleneck", _of(joint, name, bottleneck_of), drop=2)
                for name in joint.recipes
            ),
            *(_gain_column(joint, name, base) for name in others),
        ],
        [Row(count) for count in joint.workers],
    )  # fmt: skip


def joint_part(joint: Joint) -> Part:
    """The table with its notes; pairs are predicted / measured."""
    return Part(f"Together: {joint_title(joint)}", joint_table(joint), notes=_notes(joint))


def joint_warnings(joint: Joint) -> list[str]:
    """The warnings of the measured points, each with its point, for below a Markdown table."""
    found = [
        (_point(training), fmt.clean(warning.symptom).removeprefix(f"{training.case.recipe}: "))
        for training in joint.trainings
        for warning in training.warnings
    ]
    by_symptom = "; ".join(f"{point}: {symptom}" for point, symptom in found)
    return [f"Warnings: {by_symptom}."] if found else []


def _point(training: Training) -> str:
    return f"{fmt.clean(training.case.recipe)} with {fmt.count(training.case.workers, 'worker')}"


def _of(joint: Joint, name: str, read: Callable[[Training], str]) -> Callable[[int], str]:
    """What a recipe's training with a number of workers says; "" where there is none."""

    def cell(count: int) -> str:
        arm = joint.at(name, count)
        return read(arm) if arm else ""

    return cell


def _apart_columns(joint: Joint, name: str) -> list[Column[int]]:
    """In Markdown: predicted, measured, and the error."""
    return [
        Column(f"{fmt.clean(name)}, predicted", markdown=_of(joint, name, _predicted), right=True),
        Column("measured", markdown=_of(joint, name, _rate), right=True),
        Column("error", markdown=_of(joint, name, _error), right=True),
    ]


def _predicted(arm: Training) -> str:
    return fmt.throughput(arm.predicted_per_s) if arm.predicted_per_s else ""


def _error(arm: Training) -> str:
    return signed_pct(throughput_error_pct(arm))


def _gain_column(joint: Joint, name: str, base: str) -> Column[int]:
    title = f"{fmt.clean(name)}\nx {fmt.clean(base)}"
    return Column(title, lambda count: _gain(joint.speedup(name, base, count)), right=True, drop=1)


def _rate(measured: Training | Loading | None) -> str:
    return fmt.throughput(measured.per_s) if measured and measured.per_s else ""


def _rates(arm: Training) -> str:
    """ "2,000 / 1,960": predicted / measured."""
    predicted = _predicted(arm)
    if arm.status == "failed":
        return f"{predicted} / failed" if predicted else "failed"
    return f"{predicted or '-'} / {_rate(arm)}" if arm.per_s else predicted or "-"


def _gain(gain: Gain | None) -> str:
    """ "2.00 ±0.03" where it was measured, "(2.00)" where it is predicted, "" where neither."""
    if gain is None:
        return ""
    return fmt.interval(gain.ratio) if gain.measured else f"({fmt.short_ratio(gain.ratio)})"


def _notes(joint: Joint) -> list[str]:
    notes = [
        "two values: predicted / measured, by the wall clock; one value, or one in brackets: "
        "predicted"
    ]
    failed = grouped(
        (fmt.clean(t.reason or ""),
         _point(t))
        for t in joint.trainings
        if t.status == "failed"
    )  # fmt: skip
    notes += [f"{fmt.listed(names)} failed: {reason}" for reason, names in failed.items()]
    errors = joint.errors_pct
    if errors:
        median_pct = joint.median_error_pct or 0.0
        worst = max(errors, key=abs)
        notes.append(
            f"prediction error: median {median_pct:.1f} %, largest {worst:+.1f} %, over "
            f"{fmt.count(len(errors), 'point')}"
        )
    return notes


def joint_sentences(joint: Joint) -> list[str]:
    """The results in sentences."""
    base, *others = joint.recipes
    most = joint.workers[-1]
    return [
        *(_pays(joint, name, base, most) for name in others),
        *(said for name in joint.recipes if (said := _in_full(joint, name, most))),
        *_parts(joint, most),
    ]


def _pays(joint: Joint, name: str, base: str, most: int) -> str:
    low, high = fmt.clean(name), fmt.clean(base)
    start = joint.pays_from(name, base)
    if start is None:
        only = _times(joint.speedup(name, base, most), high, most)
        return f"{low} is not faster at any number of workers tried{only}."
    there = _times(joint.speedup(name, base, start), high, start)
    if start == joint.workers[0]:
        return f"{low} is faster at every number of workers tried{there}."
    return f"{low} needs {fmt.count(start, 'worker')} to be faster{there}."


def _times(gain: Gain | None, base: str, workers: int) -> str:
    """ ": 2.00 ±0.03 times fp32 with 4 workers (measured)"; "" when not known."""
    if gain is None:
        return ""
    known = fmt.interval(gain.ratio) if gain.ratio.ci95 else fmt.short_ratio(gain.ratio)
    source = "measured" if gain.measured else "predicted"
    return f": {known} times {base} with {fmt.count(workers, 'worker')} ({source})"


def _in_full(joint: Joint, name: str, most: int) -> str:
    alone, recipe = joint.alone.get(name), fmt.clean(name)
    if alone is None or not alone.per_s:
        return ""
    start, share = joint.in_full_from(name), f"{IN_FULL:.0%}"
    text = f"{recipe} trains {fmt.throughput(alone.per_s)} img/s without a loader; "
    if start is not None:
        return f"{text}{fmt.count(start, 'worker')} reach {share} of it."
    left = throughput(joint.at(recipe, most))
    share_left = f": {most} reach {left / alone.per_s:.0%}" if left else ""
    return f"{text}no number of workers reaches {share} of it{share_left}."


def _parts(joint: Joint, most: int) -> list[str]:
    """What copying and busy workers cost, by difference."""
    said: list[str] = []
    for name in joint.recipes:
        pinned, synthetic = joint.alone.get(name), joint.synthetic.get(name)
        busy = joint.busy.get((name, most))
        if pinned is None or synthetic is None or pinned is synthetic:
            continue
        if not (pinned.measured_s and synthetic.measured_s):
            continue
        copy = 100 * (pinned.measured_s / synthetic.measured_s - 1)
        text = f"  {fmt.clean(name)}: copying and normalising a batch adds {copy:+.1f} % to a step"
        if busy and busy.measured_s:
            slower = 100 * (busy.measured_s / pinned.measured_s - 1)
            text += f", {fmt.count(most, 'busy worker')} {slower:+.1f} %"
        said.append(text + ".")
    return [*said, *_files(joint)]


def _files(joint: Joint) -> list[str]:
    rates = {(one.case.loader, one.case.cold): one.per_s for one in joint.others if one.per_s}
    said: list[str] = []
    for cold in (False, True):
        read = rates.get(("read", cold))
        if read:
            where = "from disk" if cold else "from the page cache"
            said.append(f"  Reading files {where}, without decoding: {fmt.throughput(read)} img/s.")
    loaded = rates.get((joint.loader, True))
    if loaded:
        said.append(
            f"  With files that are not in the page cache the loader delivers "
            f"{fmt.throughput(loaded)} img/s."
        )
    return said
