"""The table of what was found in scripts with planted causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from .run import Found, Scenario

CLOSE_POINTS = 5.0  # of the step, between the gain that was given and the measured one
LEAST_PCT = 3.0  # of the step: a fix that gains less shows that there was no cause
TITLES = ("script", "step (ms)", "fixed", "first live", "from the trace", "in the control",
          "gain at most", "measured", "profiler")  # fmt: skip


def table(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """A row for each script, in Markdown."""
    for cells in (TITLES, ["---"] * len(TITLES), *map(_cells, scenarios)):
        yield f"| {' | '.join(cells)} |"


def _cells(one: Scenario) -> list[str]:
    live, fixed = one.live, one.fixed
    slower = f"{100 * (live.recorded_s / live.bare_s - 1):+.0f} %" if live else ""
    controls = [found for found in (fixed, one.fixed_alone) if found]
    named = any(found.place(one.planted) for found in controls)
    return [
        one.name, _ms(live), _ms(fixed), _first(one, live), _first(one, one.alone),
        ("named" if named else "no") if controls else "", _pct(one.most_pct),
        _pct(one.measured_pct), slower,
    ]  # fmt: skip


def _ms(found: Found | None) -> str:
    return f"{1e3 * found.bare_s:.3g}" if found else ""


def _pct(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


def _first(scenario: Scenario, found: Found | None) -> str:
    if found is None:
        return "refused" if scenario.may_refuse and "exit code 1:" in scenario.problem else ""
    if found.refused:
        return "no verdict"
    if not scenario.planted:
        return "nothing" if scenario.is_right(found) else "named"
    place = found.place(scenario.planted)
    return "yes" if place == 1 else f"no. {place}" if place else "no"


def summary(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """What the rows add up to, and each that is wrong."""
    small = [
        one for one in scenarios
        if one.planted and one.measured_pct is not None and one.measured_pct < LEAST_PCT
    ]  # fmt: skip
    counted = [one for one in scenarios if one.planted and one not in small]
    for words, found in (("live", "live"), ("from the kept trace alone", "alone")):
        runs = [(one, diagnosis) for one in counted if (diagnosis := getattr(one, found))]
        right = sum(one.is_right(diagnosis) for one, diagnosis in runs)
        if runs:
            yield f"The planted cause came first in {right} of {len(runs)} scripts {words}."
    controls = [one for one in scenarios if one.fixed or not one.planted]
    wrong = [one for one in controls if one.wrong or (one.live and not one.planted
             and not one.is_right(one.live))]  # fmt: skip
    yield f"A cause that is not there was named in {len(wrong)} of {len(controls)} scripts."
    gains = [(one.most_pct, one.measured_pct) for one in counted]
    apart = [abs(a - b) for a, b in gains if a is not None and b is not None]
    if apart:
        close = sum(points <= CLOSE_POINTS for points in apart)
        yield (
            f"The gain at most was within {CLOSE_POINTS:.0f} points of the measured one in {close} "
            f"of {len(apart)}; the median difference is {median(apart):.1f} points."
        )
    found = [each for one in scenarios for each in (one.live, one.fixed) if each]
    yield f"The terms of {sum(each.exact for each in found)} of {len(found)} runs add up exactly."
    for one in small:
        yield f"{one.name}: its fix gains {one.measured_pct:.1f} %: no cause, so it is not counted."
    for one in scenarios:
        if one.problem:
            yield f"{one.name}: {one.problem}"
        if one.live and not one.is_right(one.live):
            named = "; ".join(f"{c.title} {c.most_ms:.3g} ms" for c in one.live.causes[:3])
            yield f"{one.name}: {named or 'nothing was named'}"
        if one.wrong:
            yield f"{one.name}: must not be named: {'; '.join(one.wrong)}"
