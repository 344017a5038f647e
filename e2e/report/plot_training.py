"""The chart of a run of trainings: bars or curves, then loss curves, then ledgers."""

from __future__ import annotations

from typing import Any

from e2e.report.arms import batches_of, view_of
from e2e.report.plot_bars import bars
from e2e.report.plot_curves import curves
from e2e.report.plot_loss import loss_panels
from e2e.report.plot_style import heading, looks_of
from e2e.report.plot_waterfall import waterfall_panels
from e2e.results.types import Training
from microbench.errors import UserError
from microbench.report.chart import FEWEST_SIZES
from microbench.report.drawing_style import library, styled
from microbench.results.types import Run


def training_chart(run: Run) -> Any:
    """An Altair chart: curves over several batch sizes, else bars; ledgers below.

    UserError when the run has neither times nor ledgers, or when Altair is not installed.
    """
    view = view_of(run)
    timed = [arm for arm in run.of(Training) if arm.per_s]
    falls = waterfall_panels(view)
    if not timed and not falls:
        raise UserError("nothing to draw: the run has no training with step times")
    family = max(view.families, key=batches_of)
    if not timed:
        found = library().vconcat(*falls, spacing=24).properties(title=heading(run, []))
        return styled(found)
    chart = curves(run, view, family) if batches_of(family) >= FEWEST_SIZES else bars(run, view)
    looks = looks_of({view.label(arm): arm.case.recipe for arm in view.arms})
    if losses := loss_panels(library(), view, looks):
        chart = (
            library()
            .vconcat(chart, *losses, spacing=36)
            .resolve_scale(color="independent", strokeDash="independent")
        )
    if falls:
        chart = library().vconcat(chart, *falls, spacing=36).resolve_scale(color="independent")
    return styled(chart)
