"""The parts that all drawn charts share: library, colours, heading, the settings that vary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kernels.case import Case
from microbench import fmt
from microbench.errors import UserError
from microbench.report.arms import arms_of, states_of
from microbench.results.types import Result, Run, settings_of, varying

INK, FAINT, PALE = "#222222", "#6b6b6b", "#f3f3f3"
# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), greys for what is compared with: a
# precision has one colour in every chart.
COLOURS = {
    "fp64": "#a8a8a8",
    "fp32": "#555555",
    "tf32": "#8a8a8a",
    "fp16": "#0072b2",
    "fp16-acc16": "#56b4e9",
    "bf16": "#d55e00",
    "fp8-e4m3": "#009e73",
    "fp8-e4m3-precise": "#cc79a7",
    "fp8-e5m2": "#e69f00",
    "int8": "#000000",
}
# Darker, for trainings that are in a precision as a whole and not only in its multiplications.
WHOLLY = {"fp16": "#003a5c", "bf16": "#8c3d00"}
MIXED_COLOUR = "#7e63b8"  # no precision's
OTHER_COLOUR = "#b8860b"
MOST_PANELS = 24
SHOWN_BARE = ("pass", "layout")  # settings whose values speak for themselves


def library() -> Any:
    """Altair; UserError when it or the renderer is not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise UserError(
            f"charts need Altair and vl-convert ({error.name} is missing): "
            "pip install -e '.[charts]'"
        ) from None
    return altair


def scripts() -> str:
    """The JavaScript that draws a chart in a browser, for a page that loads nothing."""
    import vl_convert

    renderer: Any = vl_convert
    version = library().SCHEMA_VERSION.removeprefix("v")
    return renderer.javascript_bundle(vl_version=".".join(version.split(".")[:2]))


def in_words(case: Case, names: Sequence[str], bare: Sequence[str] = SHOWN_BARE) -> str:
    """These settings of a case: "fprop, nhwc, batch 32"; only the values of those in `bare`."""
    settings = {fmt.clean(name): fmt.clean(value) for name, value in settings_of(case).items()}
    return ", ".join(
        settings[name] if name in bare else f"{name} {settings[name]}"
        for name in names
        if name in settings
    )


def ordered(values: Iterable[str]) -> list[str]:
    """The distinct values; those that end in a number sorted by it, the others in their order."""
    found = list(dict.fromkeys(values))
    numbers = [value.split()[-1] if value else "" for value in found]
    if all(number.isdecimal() for number in numbers):
        return [v for _, v in sorted(zip(map(int, numbers), found, strict=True))]
    return found


def check_panels(what: str, count: int) -> None:
    """UserError for more panels than a chart has room for."""
    if count > MOST_PANELS:
        raise UserError(
            f"{what} is too large (at most {MOST_PANELS}); draw a run with fewer settings"
        )


def panel_title(alt: Any, text: str) -> Any:
    """The title of one of several panels, for Altair."""
    return alt.TitleParams(text, anchor="start", fontSize=14, color=INK, offset=6)


def main_title(title: str, below: Sequence[str]) -> Any:
    """The title of a whole chart and the lines under it, for Altair."""
    return library().TitleParams(
        title, subtitle=list(below), fontSize=18, subtitleFontSize=12, subtitleColor=FAINT,
        color=INK, anchor="start", offset=16, subtitlePadding=6,
    )  # fmt: skip


def heading(run: Run, results: Sequence[Result], reading: Sequence[str]) -> Any:
    """The title: what was measured, the device, the conditions; and how to read the chart."""
    case = results[0].case
    arms = arms_of(run)
    asked = [fmt.clean(p) for p in arms.asked]
    others = [b for b in arms.baselines if b not in arms.asked]
    against = f" against {' and '.join(others)}" if others else ""
    ops = " and ".join(dict.fromkeys(fmt.clean(r.case.op) for r in results))
    device = fmt.clean(run.device.get("name") or "unknown device")
    fixed = [name for name in settings_of(case) if name not in varying(results)]
    below = f"{', '.join(states_of(results))}; measured {fmt.clean(run.started_at[:10])}"
    return main_title(
        f"{ops} on {device}: {fmt.listed(asked, most=4)}{against}",
        [in_words(case, fixed, bare=()), below, *reading],
    )


def styled(chart: Any) -> Any:
    """The chart with the fonts and lines of all charts."""
    return (
        chart.configure(font="sans-serif", background="white", padding=16)
        .configure_axis(
            labelFontSize=12, titleFontSize=13, titleFontWeight="normal", titleColor=INK,
            labelColor=INK, gridColor="#e4e4e4", domainColor="#888888", tickColor="#888888",
        )
        .configure_view(stroke="#cccccc")
    )  # fmt: skip
