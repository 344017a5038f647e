"""A table of aligned columns whose rows can end in a sentence that runs over the rest of them.

It never grows past its width: first the gaps shrink, then columns go, least important first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

DIM = "dim"


@dataclass(frozen=True)
class Column:
    """`title` may have two lines. Columns of a higher `drop` go first; 0 never goes."""

    title: str
    right: bool = False
    drop: int = 0
    bold: bool = False


@dataclass(frozen=True)
class Row:
    """Cells from the left; `sentence`, when there is one, takes the place of the other columns."""

    cells: Sequence[str]
    sentence: str = ""
    style: str = ""


@dataclass
class Grid:
    """Columns and rows; None is a blank line, a plain string a heading."""

    columns: Sequence[Column]
    rows: list[Row | str | None] = field(default_factory=list[Row | str | None])

    def lines(self, width: int) -> tuple[list[Text], list[str]]:
        """The lines, and the titles of columns that were left out to fit."""
        kept = [i for i in range(len(self.columns)) if self._used(i)] or [0]
        while self._total(kept) > width:
            going = max(kept, key=lambda i: (self.columns[i].drop, i))
            if not self.columns[going].drop:
                break
            kept.remove(going)
        # Room that is left widens the gaps from one space to two, from the left.
        room = max(0, min(width - self._total(kept), len(kept) - 1))
        gaps = {i: " " * (2 if place < room else 1) for place, i in enumerate(kept)}
        gaps[kept[-1]] = ""
        lines = [*self._head(gaps), *(self._line(row, gaps) for row in self.rows)]
        for line in lines:
            line.rstrip()
            line.truncate(width, overflow="ellipsis")
        left_out = [
            column.title for i, column in enumerate(self.columns) if i not in kept and self._used(i)
        ]
        return lines, [title.replace("\n", " ") for title in left_out]

    def space_for_sentence(self, row: Row, width: int) -> int:
        """Columns of text that are left for a row's sentence."""
        return width - sum(self._width(i) + 2 for i in range(len(row.cells)))

    def _used(self, i: int) -> bool:
        return any(isinstance(row, Row) and any(row.cells[i : i + 1]) for row in self.rows)

    def _width(self, i: int) -> int:
        cells = [row.cells[i] for row in self.rows if isinstance(row, Row) and i < len(row.cells)]
        return max(cell_len(text) for text in (*self.columns[i].title.split("\n"), *cells))

    def _total(self, kept: Sequence[int]) -> int:
        return sum(self._width(i) for i in kept) + len(kept) - 1

    def _head(self, gaps: Mapping[int, str]) -> list[Text]:
        titles = {i: self.columns[i].title.split("\n") for i in gaps}
        deep = max(len(title) for title in titles.values())
        padded = {i: [""] * (deep - len(title)) + title for i, title in titles.items()}
        lines = [
            self._join({i: title[level] for i, title in padded.items()}, gaps, "bold")
            for level in range(deep)
        ]
        return [*lines, Text("─" * cell_len(lines[-1].plain), DIM)]

    def _line(self, row: Row | str | None, gaps: Mapping[int, str]) -> Text:
        if not isinstance(row, Row):
            return Text(row or "", "bold")
        cells = {i: row.cells[i] for i in gaps if i < len(row.cells)}
        line = self._join(cells, gaps, row.style)
        if row.sentence:
            line.append("" if gaps[max(cells)] else "  ").append(row.sentence, row.style)
        return line

    def _join(self, cells: Mapping[int, str], gaps: Mapping[int, str], style: str) -> Text:
        line = Text()
        for i, cell in cells.items():
            pad = " " * (self._width(i) - cell_len(cell))
            text = pad + cell if self.columns[i].right else cell + pad
            line.append(text, "bold" if self.columns[i].bold else style).append(gaps[i])
        return line
