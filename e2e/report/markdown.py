"""Trainings as a Markdown table, for READMEs and issues."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.report.arms import (
    Group,
    View,
    is_generated,
    reason,
    view_of,
    was_run,
    what_was_trained,
)
from e2e.report.causes import (
    FINDINGS,
    FIXES,
    causes_title,
    explanation,
    findings,
    fix_words,
    fixes,
    gain_cells,
    title_words,
    verified,
    with_causes,
)
from e2e.report.errors import (
    ERRORS_HEADER,
    ERRORS_TITLE,
    error_rows,
    error_sentences,
)
from e2e.report.figures import spread
from e2e.report.ledger import account, ledger_title, waterfall, with_ledgers
from e2e.report.predictions import (
    ALONE_TITLE,
    BESIDE_TITLE,
    alone,
    beside,
    calls_named,
)
from e2e.report.table import busy_pct, ratio_cells
from e2e.results.types import Training
from microbench import fmt
from microbench.results.types import Run

LEFT = ("", "recipe", "rung", "limited by", "learnt", "term", "source", "detail",
        "fix", "finding", "why", "error of the", "target", "furthest off")  # fmt: skip


def training_table(run: Run) -> str:
    """One row an arm or a ladder's rung, in the order measured; what has no times says why.

    Columns that no arm fills are left out, and so is what all arms share: that is the caption's.
    Predictions, ledgers, fixes and findings follow, in tables of their own.
    """
    view = view_of(run)
    return "\n".join(
        [*_measured(run, view), *_predicted(view), *_errors(run), *_ledgers(view), *_causes(view)]
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table without its empty columns."""
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    rule = ["---" if header[i] in LEFT else "---:" for i in kept]
    lines = [[header[i] for i in kept], rule, *([row[i] for i in kept] for row in rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n"
                   for line in lines)  # fmt: skip


def _measured(run: Run, view: View) -> list[str]:
    compared, ran = view.compared, view.only(was_run)
    rows = [_cells(arm, group, view, compared) for group in ran.groups for arm in group.arms]
    return [_table(_header(run, view, compared), rows)] if rows else []


def _predicted(view: View) -> list[str]:
    found: list[str] = []
    for title, rows in ((BESIDE_TITLE, beside(view)), (ALONE_TITLE, alone(view))):
        header = ["", *(column.title.replace("\n", " ") for column in rows.columns)]
        cells = [
            [group.title, *rows.cells(arm, group)]
            for group in rows.view.groups
            for arm in group.arms
        ]
        lacking = "".join(f"\n{note}.\n" for note in calls_named(rows.view, details=True))
        pairs = "; two values: predicted / measured" * (title == BESIDE_TITLE)
        found += [f"{title}{pairs}:\n\n{_table(header, cells)}{lacking}"] if cells else []
    return found


def _errors(run: Run) -> list[str]:
    """How far predictions are from measurements, where there are several comparisons."""
    rows = error_rows(run)
    said = "".join(f"\n{sentence}\n" for sentence in error_sentences(run.of(Training)))
    return [f"{ERRORS_TITLE}:\n\n{_table(ERRORS_HEADER, rows)}{said}"] if rows else []


def _ledgers(view: View) -> list[str]:
    """Each ledger with all of its terms."""
    found: list[str] = []
    for group, arm in with_ledgers(view.groups):
        bars = waterfall(arm, fold=False).bars
        details = [fmt.clean(line.detail) for line in arm.ledger]
        details[-1:-1] = [""] * (len(bars) - len(details))
        rows = [
            [bar.term, bar.text, bar.source, detail]
            for bar, detail in zip(bars, details, strict=True)
        ]
        table = _table(["term", "ms", "source", "detail"], rows)
        said = "".join(f"\n{sentence}\n" for sentence in account(arm, view.label(arm)))
        found.append(f"{ledger_title(view, group, arm)}:\n\n{table}{said}")
    return found


def _causes(view: View) -> list[str]:
    """The fixes of each training, ranked, and its findings."""
    found: list[str] = []
    for group, arm in with_causes(view.groups):
        header = ["", "fix", "predicted gain", "measured gain", "difference in points", "why"]
        rows = [
            [str(place), fix_words(fix), *gain_cells(fix), explanation(fix)]
            for place, fix in enumerate(fixes(arm), 1)
        ]
        if rows:
            said = f"\n{verified(arm)}.\n" * bool(verified(arm))
            title = causes_title(FIXES, view, group, arm)
            found.append(f"{title}\n\n{_table(header, rows)}{said}")
        rows = [[title_words(cause), fmt.clean(cause.why)] for cause in findings(arm)]
        if rows:
            title = causes_title(FINDINGS, view, group, arm)
            found.append(f"{title}\n\n{_table(['finding', 'why'], rows)}")
    return found


def training_caption(run: Run) -> str:
    """A line on the device, what was trained, and on which data."""
    device = fmt.clean(run.device.get("name", "unknown device"))
    return f"{device}: {', '.join(what_was_trained(run))}."


def _header(run: Run, view: View, compared: Sequence[str]) -> list[str]:
    units = {arm.unit for arm in run.of(Training)}
    unit = fmt.clean(next(iter(units))) if len(units) == 1 else ""
    generated = any(is_generated(arm.case) for arm in run.of(Training))
    return [
        "",
        "rung" if any(group.is_ladder for group in view.groups) else "recipe",
        f"{unit}/s" if unit else "a second",
        "ms a step",
        *(f"x {view.title(name)}" for name in compared),
        "peak GB",
        "W",
        f"{unit}/J" if unit else "a joule",
        "GPU busy",
        "limited by",
        f"accuracy{' (generated data)' * generated}",
        f"held-out loss{' (generated data)' * generated}",
        "training s",
        "learnt",
    ]


def _cells(arm: Training, group: Group, view: View, compared: Sequence[str]) -> list[str]:
    name = [group.title, view.label(arm)]
    per_s = arm.per_s
    if per_s is None:
        said = arm.status if arm.status == "ok" else f"{arm.status}: {reason(arm)}"
        timed = [said, *[""] * (6 + len(compared))]
    else:
        several_units = len({other.unit for g in view.groups for other in g.arms}) > 1
        power_w = arm.state.power_w
        timed = [
            fmt.throughput(per_s) + f" {fmt.clean(arm.unit)}" * several_units,
            fmt.milliseconds(arm.step_s),
            *ratio_cells(arm, group, compared),
            fmt.gigabytes(arm.memory_peak_bytes),
            f"{power_w:.0f}" if power_w is not None else "",
            fmt.throughput(arm.per_j) if arm.per_j else "",
            fmt.per_cent(busy_pct(arm)),
            fmt.clean(arm.limit or ""),
        ]
    several = len(arm.repeats) > 1
    accuracy = spread(arm.accuracy, several, 100)
    why = f": {fmt.clean(arm.convergence)}" if arm.convergence else ""
    learnt = {True: "converged", False: f"not converged{why}", None: ""}[arm.converged]
    return [*name, *timed, f"{accuracy} %" if accuracy else "", spread(arm.loss, several),
            spread(arm.train_s, several), learnt]  # fmt: skip
