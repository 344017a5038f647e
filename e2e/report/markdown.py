"""Trainings and loaders as Markdown tables, for READMEs and issues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from e2e.report import causes, predictions
from e2e.report.arms import View, view_of, what_was_trained
from e2e.report.costs import phases_table, phases_title
from e2e.report.errors import ERRORS_TITLE, error_sentences, errors_table
from e2e.report.joint import joint_table, joints
from e2e.report.learning import learning_columns
from e2e.report.ledger import account, has_ledger, ledger_title, waterfall
from e2e.report.loaders import loaders_table
from e2e.report.table import train_table
from e2e.report.waterfall import ledger_table
from e2e.results.types import Training
from microbench import fmt
from microbench.report.table import Table, markdown
from microbench.results.types import Run


def training_caption(run: Run) -> str:
    """A line on the device, what was trained, and on which data."""
    device = fmt.clean(run.device.get("name", "unknown device"))
    return f"{device}: {', '.join(what_was_trained(run))}."


def training_markdown(run: Run) -> str:
    """One row an arm or a ladder's rung, in the order measured; what has no times says why.

    What all arms share is the caption's. Phases, predictions, ledgers, fixes and findings follow,
    in tables of their own.
    """
    view = view_of(run)
    parts = [
        _part("", train_table(view, learning_columns(view))),
        _part(f"{phases_title(view)}:", phases_table(view)),
        *_predicted(view),
        _part(f"{ERRORS_TITLE}:", errors_table(run), error_sentences(run.of(Training))),
    ]
    parts += [_ledger(view, arm) for arm in view.arms if has_ledger(arm)]
    parts += [part for arm in view.arms for part in _causes(view, arm)]
    return "\n".join(part for part in parts if part)


def loading_markdown(run: Run) -> str:
    """A table of the loaders alone, and one for each picture of recipes and workers."""
    tables = [markdown(loaders_table(run)), *(markdown(joint_table(one)) for one in joints(run))]
    return "\n".join(tables)


def _part(title: str, table: Table[Any], below: Iterable[str] = ()) -> str:
    """A table between its title and what is said of it; "" for one without rows."""
    if not table.rows:
        return ""
    said = "".join(f"\n{sentence}\n" for sentence in below)
    return f"{title}\n\n{markdown(table)}{said}".lstrip("\n")


def _predicted(view: View) -> list[str]:
    beside, alone = view.only(predictions.is_beside), view.only(predictions.is_alone)
    title = f"{predictions.BESIDE_TITLE}; two values: predicted / measured:"
    return [
        _part(title, predictions.beside_table(view), _calls(beside)),
        _part(f"{predictions.ALONE_TITLE}:", predictions.alone_table(view), _calls(alone)),
    ]


def _calls(view: View) -> list[str]:
    return [f"{note}." for note in predictions.calls_named(view, details=True)]


def _ledger(view: View, arm: Training) -> str:
    """With all of its terms."""
    table = ledger_table(waterfall(arm, fold=False))
    return _part(f"{ledger_title(view, arm)}:", table, account(arm, view.label(arm)))


def _causes(view: View, arm: Training) -> list[str]:
    """The fixes, ranked, and the findings."""
    verified = causes.verified(arm)
    return [
        _part(causes.causes_title(causes.FIXES, view, arm), causes.fixes_table(arm),
              [f"{verified}."] * bool(verified)),
        _part(causes.causes_title(causes.FINDINGS, view, arm), causes.findings_table(arm)),
    ]  # fmt: skip
