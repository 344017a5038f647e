"""The chart of a run as a file, without a browser: the format is what the file's name ends in."""

from __future__ import annotations

import io
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from kernels.error_words import first_line
from kernels.files import write_atomically
from microbench.errors import UserError
from microbench.report.charts import layers_chart, library, line_chart, scripts
from microbench.report.payoff_map import is_map, payoff_chart
from microbench.report.report import report_of
from microbench.results.kinds import reports
from microbench.results.runfile import check_writable
from microbench.results.types import Run

SUFFIXES = (".png", ".svg", ".html")
PNG_SCALE = 2  # pixels a unit of length: sharp in a document
# `ast`: expressions are interpreted, so that the page may forbid text to become code.
START = """\
const drawing = JSON.parse(document.getElementById("drawing").textContent);
vegaEmbed("#chart", drawing, {
  mode: "vega-lite", ast: true,
  actions: {export: true, source: false, compiled: false, editor: false}
}).catch(console.error);
"""


def check_chart_path(path: Path, *, overwrite: bool | None = None) -> None:
    """UserError for an unknown format, a missing library, or a file that cannot be written.

    Call it before measuring.
    """
    _suffix(path)
    library()
    check_writable(path, "--chart", overwrite=overwrite)


def draw(run: Run, path: Path) -> None:
    """Write the chart that suits the run, whole or not at all.

    UserError when there is nothing to draw or the file cannot be written.
    """
    suffix = _suffix(path)
    content = rendered(chart_of(run), suffix.removeprefix("."))
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"--chart {path}: cannot write the file ({error.strerror})") from None


def chart_of(run: Run) -> Any:
    """The Altair chart that suits the run. UserError when there is nothing to draw.

    Trainings or loaders where it has some; else the map for `payoff`, the bars for `layers`, else
    FLOP/s against size.
    """
    if new := report_of(run):
        if new.chart is None:
            raise UserError("nothing to draw")
        return new.chart()
    for report in reports(run):
        return report.chart(run)
    if run.network:
        return layers_chart(run)
    conv = any(r.case.op == "conv" and r.speedup for r in run.results)
    return payoff_chart(run) if conv and is_map(run) else line_chart(run)


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"--chart {path}: the name must end in {', '.join(SUFFIXES)}")
    return suffix


def rendered(chart: Any, form: str) -> bytes:
    """An Altair chart as "svg", "png" or "html". UserError where the renderer fails.

    It runs JavaScript in threads of its own, and says only that they did not answer: with few open
    files or little memory, for instance.
    """
    if form == "html":
        return _page(chart).encode()
    image = io.BytesIO() if form == "png" else io.StringIO()
    try:
        chart.save(image, format=form, scale_factor=PNG_SCALE if form == "png" else 1)
    except ValueError as error:
        raise UserError(f"the chart cannot be drawn: {first_line(error)}") from None
    content = image.getvalue()
    return content if isinstance(content, bytes) else content.encode()


def _page(chart: Any) -> str:
    """A page with the chart that opens without a network. It runs its own two scripts only.

    Text of the run file is data in it: in a block of JSON, in which markup is escaped.
    """
    from markupsafe import Markup

    own = scripts()
    return template("chart.html").render(
        # What a content-security-policy calls the scripts that may run.
        allowed=Markup(
            " ".join(
                f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'"
                for one in (own, START)
            )
        ),
        title="Chart",
        library=Markup(own),
        start=Markup(START),
        drawing=chart.to_dict(),
    )


@cache
def template(name: str) -> Any:
    """A page of this folder, whose values are escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    source = files("microbench.report").joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(source)
