"""A character canvas with two logarithmic axes, for any data.

Not by plotext (tried: 6.1), which cuts a chart to the size of the terminal, lays its legend over
the curves, colours lines even in its colourless theme and takes 0.3 s to import.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.text import Text

TRACE, RULE = "·", "─"


@dataclass
class Canvas:
    """`width` x `height` cells for `x` in [x_low, x_high] and `y` in [y_low, y_high], both > 0."""

    width: int
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    margin: int = 2  # cells kept free left and right of the outermost points
    label_width: int = 6  # of the numbers beside the vertical axis
    dodge: int = 0
    cells: dict[tuple[int, int], tuple[str, str]] = field(
        default_factory=dict[tuple[int, int], tuple[str, str]]
    )

    def column(self, x: float) -> int:
        """The column, in cells from the left, of an x above 0."""
        return self.margin + round(_share(x, self.x_range) * (self.width - 1 - 2 * self.margin))

    def row(self, y: float) -> int:
        """The row, in cells from the top, of a y above 0."""
        return round((1 - _share(y, self.y_range)) * (self.height - 1))

    def points(self, points: Sequence[tuple[float, float]], marker: str, style: str) -> int:
        """Draw markers; one whose cell is taken moves right, by at most `dodge`.

        Returns how many did not find a cell.
        """
        hidden = 0
        for x, y in points:
            column, row = self.column(x), self.row(y)
            places = [(column + shift, row) for shift in range(self.dodge + 1)]
            free = next((place for place in places if place not in self.cells), None)
            if free:
                self.cells[free] = (marker, style)
            else:
                hidden += 1
        return hidden

    def trace(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Dots between consecutive points, in cells that are still free."""
        for (x0, y0), (x1, y1) in pairwise(points):
            left, right = self.column(x0), self.column(x1)
            for column in range(left + 1, right):
                share = (column - left) / (right - left)
                row = self.row(math.exp(math.log(y0) + share * (math.log(y1) - math.log(y0))))
                self.cells.setdefault((column, row), (TRACE, style))

    def level(self, y: float, label: str, style: str) -> bool:
        """A labelled horizontal line in cells that are still free; False where there is no room."""
        row = self.row(y)
        start = next(self._free_runs(row, len(label) + 4), None)
        if start is None:
            return False
        for place, char in enumerate(f" {label} "):
            self.cells[start + 1 + place, row] = (char, style)
        for column in range(self.width):
            self.cells.setdefault((column, row), (RULE, style))
        return True

    def lines(self, ticks: Sequence[tuple[float, str]]) -> list[Text]:
        """The canvas from the top, with the ticks of its vertical axis."""
        labels: dict[int, str] = {}
        for y, label in ticks:
            labels.setdefault(self.row(y), label)
        return [self._text(row, labels.get(row)) for row in range(self.height)]

    def under(self, label: str, values: Sequence[tuple[float, str]]) -> Text:
        """A line under the canvas: values centred under their x, those that touch left out."""
        line = Text(f"{label:>{self.label_width}}  ", "bold")
        return line.append(
            _spaced([(self.column(x), v) for x, v in values], self.width), "not bold"
        )

    def _text(self, row: int, label: str | None) -> Text:
        line = Text(f"{label or '':>{self.label_width}} {'┤' if label else '│'}")
        for column in range(self.width):
            line.append(*self.cells.get((column, row), (" ", "")))
        line.rstrip()
        return line

    def _free_runs(self, row: int, length: int) -> Iterator[int]:
        for start in range(self.width - length):
            if all((column, row) not in self.cells for column in range(start, start + length)):
                yield start


def _share(value: float, limits: tuple[float, float]) -> float:
    low, high = limits
    if high <= low or low <= 0:
        return 0.5
    if value <= 0:
        return 0.0
    return min(1.0, max(0.0, math.log(value / low) / math.log(high / low)))


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, ... within the limits; only powers of ten over more than four decades."""
    digits = (1, 2, 5) if high / low < 10**4 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (digit * 10.0**exponent for exponent in exponents for digit in digits)
    return [tick for tick in ticks if low <= tick <= high]


def _spaced(labels: Sequence[tuple[int, str]], width: int) -> str:
    line, end = "", -1
    for column, label in labels:
        start = max(0, min(column - len(label) // 2, width - len(label)))
        if start > end:
            line = line.ljust(start) + label
            end = start + len(label)
    return line
