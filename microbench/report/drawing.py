"""The chart of a run as a file, without a browser: the format is what the file's name ends in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from microbench.report.charts import check_chart_path as check_chart_path
from microbench.report.charts import layers_chart, line_chart, write_chart
from microbench.report.payoff_map import is_map, payoff_chart
from microbench.report.report import report_of
from microbench.results.kinds import reports
from microbench.results.types import Run


def draw(run: Run, path: Path) -> None:
    """Write the chart that suits the run, whole or not at all.

    UserError when there is nothing to draw or the file cannot be written.
    """
    write_chart(chart_of(run), path)


def chart_of(run: Run) -> Any:
    """The Altair chart that suits the run. UserError when there is nothing to draw.

    Trainings or loaders where it has some; else the map for `payoff`, the bars for `layers`, else
    FLOP/s against size.
    """
    if new := report_of(run):
        return new.chart()
    for report in reports(run):
        return report.chart(run)
    if run.network:
        return layers_chart(run)
    conv = any(r.case.op == "conv" and r.speedup for r in run.results)
    return payoff_chart(run) if conv and is_map(run) else line_chart(run)
