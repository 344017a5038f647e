"""What the charts of trainings share: recipes' colours and dashes, sizes, the title, panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from e2e.report.arms import grouped, what_was_trained
from e2e.results.types import Training
from microbench import fmt
from microbench.report.drawing_style import COLOURS, MIXED_COLOUR, OTHER_COLOUR, WHOLLY, main_title
from microbench.results.types import Json, Run

# A recipe has the colour of the precision that its arithmetic is in, and never another's.
RECIPE_COLOURS = {
    **COLOURS,
    **WHOLLY,
    "amp": COLOURS["fp16"],
    "amp-bf16": COLOURS["bf16"],
    "O0": COLOURS["fp32"],
    "O1": COLOURS["fp16"],  # apex's names: of amp, of fp16
    "O2": MIXED_COLOUR,
    "O3": WHOLLY["fp16"],
}
DASHES = ([1, 0], [7, 4], [2, 3], [9, 3, 2, 3])  # variants of one recipe that differ in options
BAR, BARS_WIDTH = 26, 520  # height of a bar, width of a panel of bars
NEUTRAL = "#bbbbbb"  # of lines between bars, and of what does not differ

Looks = Mapping[str, tuple[str, Sequence[int]]]  # arm -> colour, dashes
Values = Callable[[Training], Sequence[float | None]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes and its rows. In rows without a deviation it is 0."""

    title: str
    rows: list[Json]
    from_zero: bool


def heading(run: Run, reading: Sequence[str]) -> Any:
    """The title: what was trained, on what, with which data; how to read the chart."""
    title, *conditions = what_was_trained(run)[1:]
    device = fmt.clean(run.device.get("name") or "unknown device")
    torch = fmt.clean(run.software.get("torch", ""))
    ran = any(arm.steps for arm in run.of(Training))
    measured = f"{'measured' if ran else 'predicted'} {fmt.clean(run.started_at[:10])}"
    facts = [*conditions, *([f"torch {torch}"] if torch else []), measured]
    what = "training" if ran else "predicted training of"
    return main_title(f"{what} {title} on {device}", [", ".join(facts), *reading])


def recipe_colour(recipe: str) -> str:
    """The colour ("#rrggbb") of a recipe; one colour for all that RECIPE_COLOURS does not list."""
    return RECIPE_COLOURS.get(recipe, OTHER_COLOUR)


def looks_of(recipes: dict[str, str]) -> Looks:
    """Label -> colour and dashes: a colour a recipe, dashes by which of its variants it is."""
    arms = grouped((recipe, label) for label, recipe in recipes.items())
    return {
        label: (recipe_colour(recipe), DASHES[arms[recipe].index(label) % len(DASHES)])
        for label, recipe in recipes.items()
    }


def band(values: Sequence[float], name: str) -> dict[str, float]:
    """Their mean under this name, and the mean less and plus one standard deviation."""
    mean, deviation = fmean(values), stdev(values) if len(values) > 1 else 0.0
    return {name: mean, "low": mean - deviation, "high": mean + deviation}
