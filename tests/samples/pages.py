"""Pages of the documentation: which figures and tables they have.

    says("docs/method", "intervals contain", 282, 300)

A paragraph, a point of a list or a row of a table that has these words has these figures, in any
order: its sentences may change. A page may round a number to any digit. Pages are read without
marks and without what links lead to.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from e2e.results.types import Training
from microbench.results.runfile import read_run
from microbench.results.types import Run

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "results/README.md", *ROOT.glob("docs/**/*.md")])
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
Row = list[str]


@cache
def run(name: str, card: str = "nvidia-h200") -> Run:
    """A committed run file."""
    return read_run(ROOT / "results" / card / f"{name}.json")


def trainings(name: str, card: str = "nvidia-h200") -> tuple[Training, ...]:
    """The trainings of one."""
    return run(name, card).of(Training)


@cache
def document(name: str, card: str = "nvidia-h200") -> Any:
    """A committed JSON file of another kind."""
    return json.loads((ROOT / "results" / card / f"{name}.json").read_text(encoding="utf-8"))


@cache
def text(page: str) -> str:
    """A page as it is written."""
    return (ROOT / f"{page}.md").read_text(encoding="utf-8")


@cache
def blocks(page: str) -> list[str]:
    """Its paragraphs, points of lists and rows, each in a line."""
    plain = re.sub(r"[*`]", "", LINK.sub(r"\1", text(page)))
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-|#]|\d\.) )", plain)
    return [" ".join(part.split()) for part in parts]


def says(page: str, words: str, *figures: float | str) -> None:
    """A block of the page has these words and these figures, each for itself."""
    found = [block for block in blocks(page) if words in block]
    assert found, f"{page}.md has no {words!r}"
    missing = [lacking(block, figures) for block in found]
    assert [] in missing, f"{page}.md has not {missing[0]} beside {words!r}: {found[0]}"


def lacking(block: str, figures: tuple[float | str, ...]) -> list[float | str]:
    """The figures that a block has not."""
    numbers = NUMBER.findall(block)
    missing: list[float | str] = []
    for figure in figures:
        if isinstance(figure, str):
            missing += [] if figure in block else [figure]
        elif at := next((n for n in numbers if is_rounded(n, figure)), None):
            numbers.remove(at)
        else:
            missing.append(figure)
    return missing


def is_rounded(number: str, figure: float) -> bool:
    """Whether a printed number is this figure. One digit alone stands for whole figures only."""
    value, decimals = float(number.replace(",", "")), len(number.partition(".")[2])
    if isinstance(figure, int) or (not decimals and abs(value) < 10):
        return value == figure
    return abs(value - figure) <= 0.5000001 * 10**-decimals


def rows_in(markdown: str) -> list[list[Row]]:
    """The tables of a text: cells of each row, the header first."""
    tables: list[list[Row]] = [[]]
    for line in markdown.splitlines():
        if not line.startswith("|"):
            tables += [[]] if tables[-1] else []
        elif set(line) - set("|-: "):
            cells = LINK.sub(r"\1", line.strip()[1:-1]).split("|")
            tables[-1].append([cell.strip() for cell in cells])
    return [table for table in tables if table]


def shows(page: str, rows: list[Row]) -> None:
    """A table of the page has these rows and no others."""
    tables = [table[1:] for table in rows_in(text(page))]
    nearest = max(tables, key=lambda table: sum(row in table for row in rows))
    assert rows == nearest
    assert rows


def table(page: str, *head: str) -> list[Row]:
    """The rows of the page's table whose header begins so."""
    (found,) = (t[1:] for t in rows_in(text(page)) if t[0][: len(head)] == list(head))
    return found
