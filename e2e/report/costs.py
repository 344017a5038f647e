"""Where the time of a step goes, and what was spent outside the timed steps."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from e2e.report.arms import View
from e2e.results.types import Phase, Training
from microbench import fmt
from microbench.report.grid import DIM, Column, Grid, Row

STATES_TITLE = "The device meanwhile, utilisation as its driver counts it"
MOST_SETUPS = 6


def phases_title(view: View) -> str:
    """The heading, which says whose clocks there are."""
    phases = [phase for group in view.groups for arm in group.arms for phase in arm.phases]
    clocks = "host / GPU" if any(phase.gpu_s is not None for phase in phases) else "host"
    return f"Phases of a step, timed in a pass of their own (ms: {clocks})"


def phases_table(view: View, width: int) -> list[Text]:
    """A row an arm, a column a phase; empty when no phases were timed."""
    names = dict.fromkeys(
        phase.name for group in view.groups for arm in group.arms for phase in arm.phases
    )
    if not names:
        return []
    columns = [Column(fmt.clean(name), right=True, drop=1 + i) for i, name in enumerate(names)]
    grid = Grid([Column("recipe"), *columns])
    for group in view.groups:
        arms = [arm for arm in group.arms if arm.phases]
        if not arms:
            continue
        if group.title:
            grid.rows += [*[None] * bool(grid.rows), group.title]
        grid.rows += [_row(arm, view, list(names)) for arm in arms]
    lines, left_out = grid.lines(width)
    if left_out:
        lines.append(Text(f"left out to fit: {', '.join(left_out)}", "dim"))
    return lines


def _row(arm: Training, view: View, names: Sequence[str]) -> Row:
    by_name = {phase.name: phase for phase in arm.phases}
    cells = [_cell(by_name.get(name)) for name in names]
    return Row([view.label(arm), *cells], style=DIM if view.is_baseline(arm) else "")


def _cell(phase: Phase | None) -> str:
    if phase is None:
        return ""
    host = _ms(phase.host_s)
    return f"{host} / {_ms(phase.gpu_s)}" if phase.gpu_s is not None else host


def _ms(seconds: float) -> str:
    """To a hundredth where there are few."""
    return f"{1e3 * seconds:.2f}" if seconds < 1e-3 else fmt.milliseconds(seconds)


def setups(view: View) -> list[Text]:
    """What building and compiling took: "outside the numbers above: set-up fp32 3.1 s"."""
    arms = [arm for group in view.groups for arm in group.arms if arm.setup_s is not None]
    if not arms:
        return []
    if len(arms) > MOST_SETUPS:
        spent = sorted(arm.setup_s or 0.0 for arm in arms)
        ends = dict.fromkeys([fmt.duration(spent[0]), fmt.duration(spent[-1])])
        text = f"set-up of {len(arms)} arms, {' to '.join(ends)} each"
        text += f", {fmt.duration(sum(spent))} in all"
        compiled = [arm.compile_s for arm in arms if arm.compile_s]
        if compiled:
            text += f" ({fmt.duration(sum(compiled))} of it up to the first steps)"
    else:
        text = f"set-up {', '.join(_setup(arm, view) for arm in arms)}"
    return [Text(f"outside the numbers above: {text}", "dim")]


def _setup(arm: Training, view: View) -> str:
    text = f"{view.label(arm)} {fmt.duration(arm.setup_s or 0.0)}"
    if not arm.compile_s:
        return text
    what = "compiling" if arm.case.compile else "first step"
    return f"{text} ({what} {fmt.duration(arm.compile_s)})"


def states(view: View) -> list[Text]:
    """The device while each arm ran, for those who ask for details."""
    lines: list[Text] = []
    for group in view.groups:
        for arm in group.arms:
            parts = _state(arm)
            if parts:
                where = f" ({group.title})" if group.title else ""
                name = f"  {view.label(arm)}{where}: "
                lines.append(Text(name, "bold").append(", ".join(parts), "not bold"))
    return lines


def _state(arm: Training) -> list[str]:
    state, steps = arm.state, arm.steps
    util = state.gpu_util_pct
    parts = [
        f"utilisation {util.mean:.0f} % ({util.min:.0f} to {util.max:.0f})"
        if util else "",
        f"SM clock {state.sm_clock_mhz:.0f} MHz" if state.sm_clock_mhz else "",
        f"{state.temperature_c:.0f} °C" if state.temperature_c else "",
        fmt.clean(", ".join(state.throttle)),
        f"{steps.launches} launches a step" if steps and steps.launches else "",
        fmt.count(len(steps.times_s), "step") + " timed" if steps else "",
    ]  # fmt: skip
    return [part for part in parts if part]


def whys(view: View) -> list[Text]:
    """Why steps take what they take, each reason once."""
    seen: dict[str, list[str]] = {}
    for group in view.groups:
        for arm in group.arms:
            if arm.why:
                name = f"{view.label(arm)}, batch {arm.case.batch}"
                seen.setdefault(fmt.clean(arm.why), []).append(name)
    return [
        Text(f"  {fmt.listed(names)}: ", "bold").append(why, "not bold")
        for why, names in seen.items()
    ]
