"""Tables of the documentation that repeat a report's rows have them as the run file gives them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from samples.pages import PAGES, Row, rows_in

from microbench.errors import UserError
from microbench.report.export import to_markdown
from microbench.report.summary_table import rivals_table
from microbench.report.table import markdown
from microbench.results.runfile import read_run

FOUND = 15  # tables, at least


@cache
def reported(path: Path) -> list[list[Row]]:
    """The tables that halfway makes of a file."""
    try:
        found = read_run(path)
    except UserError:
        return []
    ours = any(r.case.backend == "triton" for r in found.results)
    return rows_in(to_markdown(found) + ("\n\n" + markdown(rivals_table(found)) if ours else ""))


def linked(page: Path) -> list[tuple[list[Path], list[Row]]]:
    """The page's tables, each with the run files that its section names, then all of the page's."""
    found: list[tuple[list[Path], list[Row]]] = []
    every: list[Path] = []
    for section in re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        links = re.findall(r"\]\(([^)#\s]*results/[^)#\s]*\.json)\)", section)
        paths = [(page.parent / link).resolve() for link in links]
        every += paths
        found += [(paths, table) for table in rows_in(section)]
    return [(paths + every, table) for paths, table in found]


def columns(head: Row, table: list[Row]) -> list[Row] | None:
    """The rows of a report's table, in these of its columns; None if it has not all of them."""
    own = [name.replace("(generated data)", "(generated)") for name in table[0]]
    if head == own:
        return table[1:]
    if not set(head) <= set(own) or len(set(own)) < len(own):
        return None
    return [[row[own.index(name)] for name in head] for row in table[1:]]


def test_rows_of_reports_are_those_of_the_run_files() -> None:
    checked = 0
    for page in PAGES:
        for paths, (head, *rows) in linked(page):
            reports = (table for path in dict.fromkeys(paths) for table in reported(path))
            tables = [own for one in reports if (own := columns(head, one)) is not None]
            if tables:
                wrong = min(([row for row in rows if row not in own] for own in tables), key=len)
                assert wrong == [], page
                checked += 1
    assert checked >= FOUND
