"""Times one kernel as two variants: how often does the ratio's 95 % interval contain 1?

Light and heavy comparisons are counted apart: they are timed differently (`Turns.pace`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from kernels import OPS
from kernels.case import Case
from microbench import fmt
from microbench.device.device import DeviceInfo, open_telemetry
from microbench.report.documents import Sheet, ends
from microbench.report.table import Column, Row, Table, ends_of
from microbench.results.fields import decode
from microbench.results.types import TIME_DECIMALS
from microbench.results.values import Interval, Json
from microbench.timing import LARGE_FLOPS, SUSTAINED
from microbench.timing.interleave import HEAVY, Arm, Turns
from microbench.timing.stats import CONFIDENCE, excludes_one, median, ratio_interval, share_interval
from microbench.timing.timers import Timer, make_timer

SIZES = {"cuda": (256, 512, 1024, 2048, 4096, 8192), "cpu": (64, 128, 256)}
PRECISIONS = {"cuda": ("fp16", "tf32", "bf16"), "cpu": ("fp32",)}
BUDGET_S = 2.5
FIRST_TURNS = 6


@dataclass(frozen=True)
class Pair:
    """A kernel compared with itself, a row of the file; `ratio` is first over second time.

    `turns_s` has the median of every block in seconds, in the order in which they were taken, and
    `order` the variant of each, "a" or "b". `heavy` is None in files older than that.
    """

    case: str
    ratio: float
    ci95: Interval | None
    rounds: int
    holds_1: bool
    heavy: bool | None = None
    order: str = ""
    turns_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Figures:
    """All comparisons, and the number whose 95 % interval contains 1."""

    tries: int
    holding_1: int
    rows: tuple[Pair, ...]

    def of_class(self, heavy: bool) -> tuple[int, int]:
        """(comparisons whose interval contains 1, comparisons) among the heavy or the light."""
        held = [row.holds_1 for row in self.rows if row.heavy is heavy]
        return sum(held), len(held)


def same_kernel_twice(info: DeviceInfo, tries: int, budget_s: float = BUDGET_S) -> Figures:
    """Compare `tries` times a kernel with itself: GEMMs of SIZES in PRECISIONS, by the library.

    At most about `budget_s` seconds each. ArmFailed when a launch raises.
    """
    timer = make_timer("auto", "cold", info.kind, info.index, info.l2_bytes, info.sm_count)
    rows: list[Pair] = []
    session = OPS["gemm"].session(info.target(), seed=0)
    backend = OPS["gemm"].library_backend(info.kind)
    shapes = itertools.cycle(itertools.product(SIZES[info.kind], PRECISIONS[info.kind]))
    with open_telemetry(info):
        for (size, precision), _ in zip(shapes, range(tries), strict=False):
            case = Case("gemm", {"m": size, "n": size, "k": size}, precision, backend)
            launch = session.prepare(case).candidates[0].call
            heavy = OPS["gemm"].flops(case) >= LARGE_FLOPS  # as the runner decides it
            rows.append(compare_with_itself(case.key, launch, timer, heavy, budget_s))
    return Figures(tries, sum(row.holds_1 for row in rows), tuple(rows))


def sheet(data: Json) -> Sheet:
    """A table; in brief, the intervals without 1. ValueError for an invalid field."""
    found: Figures = decode(Figures, data, "")
    columns: list[Column[Pair]] = [
        Column("case", lambda row: fmt.clean(row.case), csv={"case": lambda row: row.case}),
        Column("ratio", lambda row: f"{row.ratio:.3f}", True, csv={"ratio": lambda row: row.ratio}),
        Column("interval", lambda row: ends(row.ci95), True,
               csv=ends_of("ci95{}", lambda row: row.ci95)),
        Column("rounds", lambda row: str(row.rounds), True, csv={"rounds": lambda row: row.rounds}),
        Column("holds 1", lambda row: "yes" if row.holds_1 else "no",
               csv={"holds_1": lambda row: row.holds_1}),
    ]  # fmt: skip
    return Sheet(
        Table(columns, [Row(row) for row in found.rows]),
        Table(columns, [Row(row) for row in found.rows if not row.holds_1]),
        " ".join(
            [
                "A kernel compared with itself: the 95 % interval of the ratio contains 1 in "
                f"{found.holding_1} of {found.tries} tries.",
                *_by_class(found),
            ]
        ),
        more=_first_turns(found),
    )


def _first_turns(found: Figures) -> list[str]:
    """Of each class, how far its first turns are from the median turn, on average."""
    said: list[str] = []
    for name, heavy in (("Light", False), ("Heavy", True)):
        rows = [row.turns_s for row in found.rows if row.heavy is heavy and row.turns_s]
        shown = min((FIRST_TURNS, *map(len, rows)))
        off = [
            fmean(100 * (turns[i] / median(turns) - 1) for turns in rows)
            for i in range(shown if rows else 0)
        ]
        if off:
            each = ", ".join(f"{pct:+.1f}" for pct in off)
            said.append(f"{name}: the first {shown} turns against the median turn, mean: {each} %.")
    return said


def _by_class(found: Figures) -> list[str]:
    """A sentence for each class, with the 95 % interval of its share."""
    said: list[str] = []
    for name, heavy in (("Light", False), ("Heavy", True)):
        held, tries = found.of_class(heavy)
        if tries:
            low, high = share_interval(held, tries)
            wrong = "" if low <= CONFIDENCE <= high else ", not 95 %"
            said.append(
                f"{name}: {held} of {tries}, {100 * held / tries:.1f} % "
                f"({100 * low:.1f} to {100 * high:.1f} %{wrong})."
            )
    return said


def compare_with_itself(
    name: str, launch: Any, timer: Timer, heavy: bool = False, budget_s: float = BUDGET_S
) -> Pair:
    """Two variants that are the same launch; `name` is its case's."""
    timer.run(launch, 1)  # the first launch loads modules, which would wait for the closed gate
    estimate = median(timer.block(launch, 3).times_s)
    arms = [Arm(key, launch, estimate) for key in "ab"]
    taken: list[str] = []

    def begin(key: str, number: int) -> None:
        if number > 0:
            taken.append(key)

    turns = Turns(timer, SUSTAINED, budget_s, heavy=heavy, begin=begin)
    rounds = turns.take(arms)
    blocks = [[block.times_s for block in arm.blocks] for arm in arms]
    ratio, interval = ratio_interval(blocks[0], blocks[1], timer.resolution_s)
    return Pair(
        case=name,
        ratio=ratio,
        ci95=interval,
        rounds=rounds,
        holds_1=interval is not None and not excludes_one(interval),
        heavy=turns.pace(arms) is HEAVY,
        order="".join(taken),
        turns_s=_in_turn(taken, blocks),
    )


def _in_turn(
    taken: Sequence[str], blocks: Sequence[Sequence[Sequence[float]]]
) -> tuple[float, ...]:
    """The medians of both variants' blocks, in the order in which they were taken."""
    left = {key: iter(of_arm) for key, of_arm in zip("ab", blocks, strict=True)}
    return tuple(round(median(next(left[key])), TIME_DECIMALS) for key in taken)
