"""What goes on while a run is measured: one changing line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from microbench import fmt
from microbench.report.screen import is_live, prose_width
from microbench.results.types import Result
from microbench.streams import is_of_stream
from microbench.sweep import Group
from microbench.verdict import rate_unit

BAR_WIDTH = 20
REDRAWS_PER_S = 4


class LiveLine(ABC):
    """A line at the foot of a terminal that shows the progress; use as a context.

    `total` is how many things are to be done; 0 where a search decides that as it goes. Where the
    output is not a terminal, or with --quiet, nothing is redrawn.
    """

    def __init__(self, console: Console, total: int, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet or console.quiet
        self._total = total
        self._done: int = 0
        self._doing = "starting"
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self._quiet and is_live(self._console):
            live = Live(
                get_renderable=self._status,
                console=self._console,
                refresh_per_second=REDRAWS_PER_S,
                transient=True,
            )
            live.start()
            self._live = live
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    @abstractmethod
    def left_s(self) -> float | None:
        """Estimated seconds until the end; None when unknown."""

    def say(self, line: str) -> None:
        """Print a line that stays. A full disk loses the line, not what is being measured."""
        if not self._quiet:
            width = prose_width(self._console)
            try:
                self._console.print(Text(line), width=width, soft_wrap=False)
            except OSError as error:
                if not is_of_stream(error):
                    raise

    def _counted(self) -> str:
        """ "3/40", or "3" where the total is not known."""
        return f"{self._done}/{self._total}" if self._total else f"{self._done}"

    def _left(self) -> str:
        """ "about 40 s left"; "" where nothing was measured yet."""
        left_s = self.left_s()
        if left_s is None:
            return ""
        if left_s <= 0 and not self._done >= self._total > 0:
            return "longer than expected"
        return f"about {fmt.rough_duration(left_s)} left"

    def _status(self) -> RenderableType:
        filled = BAR_WIDTH * self._done // self._total if self._total else 0
        left = self._left()
        line = Text("━" * filled, "green").append("─" * (BAR_WIDTH - filled), "dim not green")
        line.append(f" {self._counted()} done{f', {left}' if left else ''}  ", "not green")
        line.append(self._doing, "bold not green")
        line.truncate(prose_width(self._console), overflow="ellipsis")
        return line


class LiveProgress(LiveLine):
    """Shows what is measured, the results so far and the time left.

    The time left is the remaining sampling plus what preparing, checking and compiling have cost
    per group so far.
    """

    def __init__(
        self,
        console: Console,
        groups: Sequence[Group],
        processes: int = 1,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, len(groups), quiet=quiet)
        self._later = processes - 1  # that measure all groups again
        self._clock = clock
        self._by_key = {case.key: group for group in groups for case in group.cases}
        self._left_s: float | None = None  # of sampling, after the groups that are done
        self._group_began_s: float | None = None
        self._process = ""  # which of several, in words
        self._spent_s: list[float] = []  # on each group that is done
        self._sampled_s: list[float] = []  # of that, sampling; from the second group on

    def stage(self, key: str, stage: str) -> None:
        """A case entered a stage."""
        group = self._by_key.get(key)
        if group is None:
            self._group_began_s = None  # what the ceilings cost is no group's
        elif self._group_began_s is None:
            self._group_began_s = self._clock()
        self._doing = describe(key, stage, group)

    def done(
        self, group: Group, results: Sequence[Result], left_s: float, sampled_s: float
    ) -> None:
        """A group is in the run file, sampled for `sampled_s`; about `left_s` of that are left."""
        now = self._clock()
        if self._group_began_s is not None:
            self._spent_s.append(now - self._group_began_s)
            if self._left_s is not None:  # not of the first, which waits for what is loaded
                self._sampled_s.append(sampled_s)
        self._group_began_s = now
        self._left_s = left_s
        self._done += 1
        self._doing = "next size"
        left = self._left() if self._done < self._total and not is_live(self._console) else ""
        more = f"; {left}" if left else ""
        self.say(f"{self._process}[{self._counted()}] {summary(results)}{more}")

    def next_process(self, number: int, of: int, groups: Sequence[Group]) -> None:
        """A fresh process measures these groups once more; the bar begins again."""
        self._by_key = {case.key: group for group in groups for case in group.cases}
        self._total, self._done = len(groups), 0
        self._later = of - number
        self._process = f"process {number} of {of}: "
        self._doing = "starting"

    def left_s(self) -> float | None:
        """Estimated seconds until the end; None before the first group and after the last one."""
        groups_left = max(0, self._total - self._done) + self._later * self._total
        if self._left_s is None or not self._spent_s or not groups_left:  # ceilings may follow
            return None
        overhead_s = 0.0
        if self._sampled_s:
            spent, sampled = self._spent_s[-len(self._sampled_s) :], self._sampled_s
            overhead_s = max(0.0, sum(spent) - sum(sampled)) / len(sampled)
        began_s = self._group_began_s if self._group_began_s is not None else self._clock()
        return max(0.0, self._left_s + overhead_s * groups_left - (self._clock() - began_s))


def describe(key: str, stage: str, group: Group | None) -> str:
    """What happens now, in words: "fp16 4096 triton: checking"."""
    if group is None:
        return f"device ceilings: {fmt.clean(stage)}"
    if stage.startswith("timing"):  # all variants are interleaved; the key is only one of them
        precisions = dict.fromkeys(case.precision_name for case in group.cases)
        return fmt.clean(f"{fmt.problem(group.cases[0])} in {', '.join(precisions)}: {stage}")
    case = next(case for case in group.cases if case.key == key)
    return f"{fmt.name(case)}: {fmt.clean(stage)}"


def summary(results: Sequence[Result]) -> str:
    """One line on a group: "4096: fp32 51.2, tf32 353, fp16 688, fp16 triton 669 TFLOP/s"."""
    if not results:
        return "nothing measured"
    unit = rate_unit(results)
    seen: set[str] = set()
    parts: list[str] = []
    for result in results:
        name = result.case.precision_name
        if name in seen:
            name = f"{name} {result.case.backend}"
        seen.add(result.case.precision_name)
        rate = result.flop_per_s
        parts.append(f"{name} {unit.text(rate) if rate else result.status}")
    measured = any(result.flop_per_s for result in results)
    return fmt.clean(
        f"{fmt.problem(results[0].case)}: {', '.join(parts)}{f' {unit.name}' if measured else ''}"
    )
