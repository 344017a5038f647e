"""The phases of a step, set-up times, and the state of the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from rich.text import Text

from e2e.report.arms import View
from e2e.report.table import arms_table, item
from e2e.results.types import Phase, Training
from microbench import fmt
from microbench.report.table import Column, Part, Row, Table, Value
from microbench.results.types import Run

STAGES = "stages_s"  # in settings
STATES_TITLE = "State of the device during timing (utilisation from the driver)"
MOST_SETUPS = 6
MOST_PHASES = 18  # arms in the table of phases, on the screen without --verbose
# Why phases do not add up to the CPU ms of a step: several steps are launched in a row there.
CPU_PHASES = (
    "CPU times of phases include waits while the GPU's launch queue is full; CPU ms in the table "
    "does not"
)
PHASES = ("data", "copy", "forward", "backward", "optimizer")  # always in CSV


def phases_part(view: View, *, details: bool = True) -> Part:
    """The arms whose phases were timed, one column per phase, in milliseconds.

    Without `details` many of them are only counted; a forward pass has one phase to speak of.
    """
    timed = view.only(lambda arm: bool(arm.phases))
    phases = [phase for arm in timed.arms for phase in arm.phases]
    clocks = "CPU / GPU" if any(phase.gpu_s is not None for phase in phases) else "CPU"
    title = f"Phases of a {view.step}, timed in a separate pass (ms: {clocks})"
    if view.evaluates and not details:
        return Part(title)
    if len(timed.arms) > MOST_PHASES and not details:
        return Part(title, notes=[f"timed for {len(timed.arms)} arms; --verbose shows all"])
    table = arms_table(view, timed, phase_columns(view))
    both = any(arm.phases and arm.steps and arm.steps.host_s is not None for arm in view.arms)
    return Part(title, table, notes=[CPU_PHASES] * both)


def phase_columns(view: View) -> list[Column[Training]]:
    """Times by the clocks of host and GPU; the usual phases are always in CSV, in seconds."""

    def seconds(name: str, clock: str, arm: Training) -> float | None:
        phase = _phase(arm, name)
        return getattr(phase, clock) if phase else None

    def cell(name: str, arm: Training) -> str:
        """ "0.20 / 12.0": the host's and the GPU's ms, to a hundredth where there are few."""
        return " / ".join(
            f"{1e3 * took_s:.2f}" if took_s < 1e-3 else fmt.milliseconds(took_s)
            for clock in ("host_s", "gpu_s")
            if (took_s := seconds(name, clock, arm)) is not None
        )

    def clocks(name: str) -> dict[str, Callable[[Training], Value]]:
        return {f"{name}_{clock}": partial(seconds, name, clock) for clock in ("host_s", "gpu_s")}

    timed = dict.fromkeys(phase.name for arm in view.arms for phase in arm.phases)
    return [
        *(Column(fmt.clean(name), partial(cell, name), right=True, drop=drop, csv=clocks(name))
          for drop, name in enumerate(timed, 1)),
        *(Column(csv=clocks(name)) for name in PHASES if name not in timed),
    ]  # fmt: skip


def _phase(arm: Training, name: str) -> Phase | None:
    """The last one of this name."""
    return {phase.name: phase for phase in arm.phases}.get(name)


def setups(view: View) -> list[Text]:
    """Time for building and compiling, such as "not included above: set-up fp32 3.1 s"."""
    arms = [arm for arm in view.arms if arm.setup_s is not None]
    if not arms:
        return []

    def setup(arm: Training) -> str:
        text = f"{view.label(arm)} {fmt.duration(arm.setup_s or 0.0)}"
        what = "compiling" if arm.case.compile else "first step"
        return f"{text} ({what} {fmt.duration(arm.compile_s)})" if arm.compile_s else text

    if len(arms) > MOST_SETUPS:
        spent = sorted(arm.setup_s or 0.0 for arm in arms)
        ends = dict.fromkeys([fmt.duration(spent[0]), fmt.duration(spent[-1])])
        text = f"set-up of {len(arms)} arms, {' to '.join(ends)} each"
        text += f", {fmt.duration(sum(spent))} in total"
        compiled = [arm.compile_s for arm in arms if arm.compile_s]
        if compiled:
            text += f" ({fmt.duration(sum(compiled))} of it before the first steps)"
    else:
        text = f"set-up {', '.join(setup(arm) for arm in arms)}"
    return [Text(f"not included above: {text}", "dim")]


def float8_layers(view: View) -> list[Text]:
    """How many linear layers multiply in FP8, a line a recipe: "fp8: 48 of 49 linear layers"."""
    found = dict.fromkeys(
        f"{view.label(arm)}: {arm.float8_layers} of {arm.linear_layers} linear layers "
        "multiply in FP8"
        for arm in view.arms
        if arm.float8_layers and arm.linear_layers
    )
    return [Text(line, "dim") for line in found]


def states(view: View) -> list[Text]:
    """The state of the device while each arm ran, for --verbose."""
    return [item(view.full_label(arm), state) for arm in view.arms if (state := _state(arm))]


def _state(arm: Training) -> str:
    state, steps = arm.state, arm.steps
    word, plural = ("batch", "batches") if arm.case.evaluation else ("step", "steps")
    util = state.gpu_util_pct
    parts = [
        f"utilisation {util.mean:.0f} % ({util.min:.0f} to {util.max:.0f})"
        if util else "",
        f"SM clock {state.sm_clock_mhz:.0f} MHz" if state.sm_clock_mhz else "",
        f"{state.temperature_c:.0f} °C" if state.temperature_c else "",
        fmt.clean(", ".join(state.throttle)),
        f"{steps.launches} launches per {word}" if steps and steps.launches else "",
        fmt.count(len(steps.times_s), word, plural) + " timed" if steps else "",
    ]  # fmt: skip
    return ", ".join(filter(None, parts))


def stages_part(run: Run) -> Part:
    """The seconds of each stage of the run, in the order in which they began, and in all."""
    known: object = run.settings.get(STAGES)
    items = cast(dict[object, object], known).items() if isinstance(known, dict) else ()
    took = [(str(name), float(one)) for name, one in items if isinstance(one, int | float)]
    columns: list[Column[tuple[str, float]]] = [
        Column("stage", lambda stage: fmt.clean(stage[0])),
        Column("seconds", lambda stage: f"{stage[1]:.1f}", right=True),
    ]
    rows = [*took, ("in all", sum(seconds for _, seconds in took))] if took else []
    title = "Where the time of this run went (wall clock)"
    return Part(title, Table(columns, [Row(row) for row in rows]))
