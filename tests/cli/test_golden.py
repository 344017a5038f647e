"""What halfway prints of chosen run files is what it printed before.

A difference that is meant is kept by `python tests/samples/golden.py --write`, and its commit says
why. All files are compared by hand, by two dumps.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len
from samples import golden

from microbench.report.parts import DEFAULT, Report, value
from microbench.report.report import report_of_file

MOST_LINES, MOST_WORDS = 9, 230  # of an answer; of a screen
MOST_ROWS = 10  # of a screen before the first table
EMPTY = {"of_card_pct", "bytes_per_s", "unclear"}  # in the chosen files


@pytest.fixture(autouse=True)
def _nothing_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", golden.WIDTH)


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """The report of every chosen file."""
    return {golden.name_of(path): report_of_file(path) for path in golden.paths(golden.CHOSEN)}


@pytest.mark.parametrize("name", golden.SHEETS)
def test_what_is_printed_is_what_was_printed(name: str) -> None:
    if found := golden.difference(name):
        pytest.fail(found, pytrace=False)


@pytest.mark.parametrize("path", golden.paths(golden.CHOSEN), ids=golden.name_of)
def test_the_answer_comes_first_on_a_short_screen(path: Path, reports: dict[str, Report]) -> None:
    report = reports[golden.name_of(path)]
    text = golden.printed("microbench", "show", str(path))
    assert " ".join(text.split()).startswith(report.finding)
    assert len(report.answer) <= MOST_LINES
    assert text.splitlines().index("") <= MOST_ROWS
    assert sum(part.level == DEFAULT and len(part.rows) > 0 for part in report.parts) <= 1
    assert all(cell_len(line) <= int(golden.WIDTH) for line in text.splitlines())
    assert len(text.split()) <= MOST_WORDS


def test_every_column_has_a_value_in_some_file(reports: dict[str, Report]) -> None:
    """A path that leads nowhere is an empty column, which no screen shows."""
    parts = [part for report in reports.values() for part in report.parts if part.rows]
    columns = {(part.title, column.path) for part in parts for column in part.columns}
    filled = {
        (part.title, column.path)
        for part in parts
        for column in part.columns
        if any(value(row.item, column.path) is not None for row in part.rows)
    }
    assert {path for _, path in columns - filled} <= EMPTY, "a path that leads nowhere"
