"""The chart of a run as a file, without a browser: the format is what the file's name ends in."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from kernels.files import write_atomically
from microbench.errors import UserError
from microbench.report.drawing_layers import layers_chart
from microbench.report.drawing_lines import line_chart
from microbench.report.drawing_map import payoff_map
from microbench.report.drawing_style import library
from microbench.report.map_table import is_map
from microbench.results.kinds import reports
from microbench.results.runfile import check_writable
from microbench.results.types import Run

SUFFIXES = (".png", ".svg", ".html")
PNG_SCALE = 2  # pixels a unit of length: sharp in a document


def check_chart_path(path: Path) -> None:
    """UserError for an unknown format, a missing library, or a file that cannot be written.

    Call it before measuring.
    """
    _suffix(path)
    library()
    check_writable(path, "--chart")


def draw(run: Run, path: Path) -> None:
    """Write the chart that suits the run, whole or not at all.

    UserError when there is nothing to draw or the file cannot be written.
    """
    suffix = _suffix(path)
    content = _render(chart_of(run), suffix)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"--chart {path}: cannot write the file ({error.strerror})") from None


def chart_of(run: Run) -> Any:
    """The Altair chart that suits the run. UserError when there is nothing to draw.

    Trainings or loaders where it has some; else the map for `payoff`, the bars for `layers`, else
    FLOP/s against size.
    """
    for report in reports(run):
        return report.chart(run)
    if run.network:
        return layers_chart(run)
    conv = any(r.case.op == "conv" and r.speedup for r in run.results)
    return payoff_map(run) if conv and is_map(run) else line_chart(run)


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"--chart {path}: the name must end in {', '.join(SUFFIXES)}")
    return suffix


def _render(chart: Any, suffix: str) -> bytes:
    if suffix == ".png":
        image = io.BytesIO()
        chart.save(image, format="png", scale_factor=PNG_SCALE)
        return image.getvalue()
    text = io.StringIO()
    if suffix == ".html":  # inline: the scripts too, so that it opens without a network
        chart.save(text, format="html", inline=True)
    else:
        chart.save(text, format="svg")
    return text.getvalue().encode()
