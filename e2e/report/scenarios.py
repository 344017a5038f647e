"""How often a diagnosis is right: scripts with one planted cause, and what was found in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rich.text import Text

from microbench import fmt
from microbench.report.documents import Sheet
from microbench.report.table import Column, Row, Table
from microbench.results.fields import decode
from microbench.results.values import Json

CLOSE_POINTS = 5.0  # of the step, between the gain that was given and the measured one


@dataclass(frozen=True)
class Cause:
    """A cause that was found: its title, and milliseconds a step that it costs at most."""

    title: str
    most_ms: float


@dataclass(frozen=True)
class Found:
    """The diagnosis of one run: `causes`, the costliest first, and whether its terms add up.

    `bare_s` is the median step without the profiler, `recorded_s` the step that was recorded.
    """

    bare_s: float
    recorded_s: float
    busy: float
    exact: bool
    causes: tuple[Cause, ...]

    @property
    def overhead_pct(self) -> float:
        """What the profiler adds to a step, in per cent of it."""
        return 100 * (self.recorded_s / self.bare_s - 1)

    def names(self, planted: str) -> bool:
        """Whether a cause with these words in its title was found."""
        return any(planted in cause.title for cause in self.causes)

    def is_first(self, planted: str) -> bool:
        """Whether the first cause has these words in its title."""
        return bool(self.causes) and planted in self.causes[0].title

    def most_pct(self, planted: str) -> float | None:
        """What a fix of this cause gains at most, in per cent of the step; None without it."""
        found = [cause.most_ms for cause in self.causes if planted in cause.title]
        return 100 * found[0] / (1e3 * self.bare_s) if found else None


@dataclass(frozen=True)
class Scenario:
    """A script with `planted` in the title of the finding that must come first, "" for none.

    `live` and `alone` are diagnoses of the run and of its kept trace, `fixed` and `fixed_alone` of
    the same script without the cause. `fix_saves`: both do the same work, so the steps show what
    the cause costs. `problem` says why something is None that should not be. `trace_bytes` is the
    size of the kept trace.
    """

    name: str
    planted: str
    command: tuple[str, ...]
    fix_saves: bool
    wall_s: float
    live: Found | None = None
    alone: Found | None = None
    fixed: Found | None = None
    fixed_alone: Found | None = None
    trace_bytes: int | None = None
    problem: str = ""

    @property
    def in_control(self) -> bool | None:
        """Whether the cause was named where it is not planted; None without that run."""
        controls = [found for found in (self.fixed, self.fixed_alone) if found]
        return any(found.names(self.planted) for found in controls) if controls else None

    @property
    def most_pct(self) -> float | None:
        """What the live diagnosis says that the fix gains at most, in per cent of the step."""
        return self.live.most_pct(self.planted) if self.live and self.planted else None

    @property
    def measured_pct(self) -> float | None:
        """What the fix gained, in per cent of the step with the cause, both without profiler."""
        if not (self.live and self.fixed and self.fix_saves):
            return None
        return 100 * (1 - self.fixed.bare_s / self.live.bare_s)


def sheet(data: Json) -> Sheet:
    """A row for each script. ValueError for an invalid field."""
    scenarios: tuple[Scenario, ...] = decode(
        tuple[Scenario, ...], data.get("scenarios"), "scenarios"
    )
    runs = [found for s in scenarios for found in (s.live, s.alone, s.fixed, s.fixed_alone)]
    if any(found.bare_s <= 0 or found.recorded_s <= 0 for found in runs if found):
        raise ValueError("bare_s or recorded_s is no time above zero")
    rows = [Row(s, "" if s.live else fmt.clean(s.problem or "did not run")) for s in scenarios]
    table = Table(_columns(), [*rows])
    return Sheet(table, table, " ".join(_summary(scenarios)), [*map(Text, _others(scenarios))])


def _columns() -> list[Column[Scenario]]:
    return [
        Column("script", lambda s: fmt.clean(s.name), key=True, csv={"script": lambda s: s.name}),
        Column("step (ms)", lambda s: _ms(s.live), True,
               csv={"step_s": lambda s: s.live and s.live.bare_s}),
        Column("fixed", lambda s: _ms(s.fixed), True,
               csv={"fixed_step_s": lambda s: s.fixed and s.fixed.bare_s}),
        Column("first\nlive", lambda s: _first(s, s.live),
               csv={"first_live": lambda s: s.live and s.live.is_first(s.planted)}),
        Column("from the\ntrace", lambda s: _first(s, s.alone),
               csv={"first_alone": lambda s: s.alone and s.alone.is_first(s.planted)}),
        Column("in the\ncontrol", lambda s: _word(s.in_control),
               csv={"in_control": lambda s: s.in_control}),
        Column("gain at\nmost", lambda s: _pct(s.most_pct), True,
               csv={"most_pct": lambda s: s.most_pct}),
        Column("measured", lambda s: _pct(s.measured_pct), True,
               csv={"measured_pct": lambda s: s.measured_pct}),
        Column("profiler", lambda s: f"{s.live.overhead_pct:+.0f} %" if s.live else "", True,
               csv={"overhead_pct": lambda s: s.live and s.live.overhead_pct}),
    ]  # fmt: skip


def _ms(found: Found | None) -> str:
    return f"{1e3 * found.bare_s:.3g}" if found else ""


def _pct(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


def _word(value: bool | None) -> str:
    return "" if value is None else "named" if value else "no"


def _first(scenario: Scenario, found: Found | None) -> str:
    if found is None:
        return ""
    if not scenario.planted:
        return "nothing" if not found.causes else "named"
    place = next(
        (n for n, cause in enumerate(found.causes, 1) if scenario.planted in cause.title), None
    )
    return {None: "no", 1: "yes"}.get(place, f"no. {place}")


def _summary(scenarios: Sequence[Scenario]) -> Iterator[str]:
    planted = [s for s in scenarios if s.planted]
    live = [s for s in planted if s.live]
    first = sum(s.live.is_first(s.planted) for s in live if s.live)
    alone = [s for s in planted if s.alone]
    again = sum(s.alone.is_first(s.planted) for s in alone if s.alone)
    controls = [s for s in planted if s.in_control is not None]
    yield (
        f"The planted cause came first in {first} of {len(live)} scripts, and in {again} of "
        f"{len(alone)} from the kept trace alone. It was named in "
        f"{sum(bool(s.in_control) for s in controls)} of {len(controls)} controls."
    )
    gains = [(s.most_pct, s.measured_pct) for s in planted]
    apart = [abs(a - b) for a, b in gains if a is not None and b is not None]
    if apart:
        close = sum(points <= CLOSE_POINTS for points in apart)
        yield (
            f"The gain at most was within {CLOSE_POINTS:.0f} points of the measured one in {close} "
            f"of {len(apart)}; the median difference is {median(apart):.1f} points."
        )
    runs = [found for s in scenarios for found in (s.live, s.fixed) if found]
    if runs:
        overheads = [found.overhead_pct for found in runs]
        inexact = sum(not found.exact for found in runs)
        yield (
            f"Under the profiler a step took {median(overheads):.0f} % longer in the median, "
            f"{max(overheads):.0f} % at most. The terms of {len(runs) - inexact} of {len(runs)} "
            "runs add up to the nanosecond."
        )


def _others(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """What came first where the planted cause did not, and what was found with none planted."""
    for scenario in scenarios:
        found = scenario.live
        if scenario.problem:
            yield f"{fmt.clean(scenario.name)}: {fmt.clean(scenario.problem)}."
        elif found and found.causes and not (scenario.planted and found.is_first(scenario.planted)):
            titles = (f"{fmt.clean(c.title)} {c.most_ms:.3g} ms" for c in found.causes[:3])
            yield f"{fmt.clean(scenario.name)}: {'; '.join(titles)}."
