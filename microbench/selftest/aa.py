"""Times one kernel as two variants: how often does the ratio's 95 % interval contain 1?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from kernels import OPS
from kernels.case import Case
from microbench import fmt
from microbench.device.device import DeviceInfo, open_telemetry
from microbench.report.documents import Sheet, ends
from microbench.report.table import Column, Row, Table
from microbench.results.fields import decode
from microbench.results.values import Interval, Json
from microbench.timing.interleave import LARGE_FLOPS, Arm, Turns
from microbench.timing.stats import excludes_one, median, ratio_interval
from microbench.timing.timers import Timer, make_timer

SIZES = {"cuda": (256, 512, 1024, 2048, 4096, 8192), "cpu": (64, 128, 256)}
PRECISIONS = {"cuda": ("fp16", "tf32", "bf16"), "cpu": ("fp32",)}
BUDGET_S = 2.5
TARGET_PCT = 90


@dataclass(frozen=True)
class Pair:
    """A kernel compared with itself, a row of the file; `ratio` is first over second time."""

    case: str
    ratio: float
    ci95: Interval | None
    rounds: int
    holds_1: bool


@dataclass(frozen=True)
class Figures:
    """All comparisons, and the number whose 95 % interval contains 1."""

    tries: int
    holding_1: int
    rows: tuple[Pair, ...]


def same_kernel_twice(info: DeviceInfo, tries: int) -> Figures:
    """Compare `tries` times a kernel with itself: GEMMs of SIZES in PRECISIONS, by the library.

    About BUDGET_S seconds each. ArmFailed when a launch raises.
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
            rows.append(Pair(case.key, **compare_with_itself(launch, timer, heavy)))
    return Figures(tries, sum(row.holds_1 for row in rows), tuple(rows))


def sheet(data: Json) -> Sheet:
    """A table; in brief, the intervals without 1. ValueError for an invalid field."""
    found: Figures = decode(Figures, data, "")
    columns: list[Column[Pair]] = [
        Column("case", lambda row: fmt.clean(row.case), csv={"case": lambda row: row.case}),
        Column("ratio", lambda row: f"{row.ratio:.3f}", True, csv={"ratio": lambda row: row.ratio}),
        Column("interval", lambda row: ends(row.ci95), True,
               csv={"ci95_low": lambda row: row.ci95 and row.ci95[0],
                    "ci95_high": lambda row: row.ci95 and row.ci95[1]}),
        Column("rounds", lambda row: str(row.rounds), True, csv={"rounds": lambda row: row.rounds}),
        Column("holds 1", lambda row: "yes" if row.holds_1 else "no",
               csv={"holds_1": lambda row: row.holds_1}),
    ]  # fmt: skip
    return Sheet(
        Table(columns, [Row(row) for row in found.rows]),
        Table(columns, [Row(row) for row in found.rows if not row.holds_1]),
        "A kernel compared with itself: the 95 % interval of the ratio contains 1 in "
        f"{found.holding_1} of {found.tries} tries (target {TARGET_PCT} %).",
    )


def compare_with_itself(launch: Any, timer: Timer, heavy: bool = False) -> dict[str, Any]:
    """Ratio, 95 % interval and rounds of two variants that are the same launch."""
    timer.run(launch, 1)  # the first launch loads modules, which would wait for the closed gate
    estimate = median(timer.block(launch, 3).times_s)
    arms = [Arm(name, launch, estimate) for name in "ab"]
    rounds = Turns(timer, "sustained", BUDGET_S, heavy=heavy).take(arms)
    blocks = [[block.times_s for block in arm.blocks] for arm in arms]
    ratio, interval = ratio_interval(blocks[0], blocks[1], timer.resolution_s)
    return {
        "ratio": ratio,
        "ci95": interval,
        "rounds": rounds,
        "holds_1": interval is not None and not excludes_one(interval),
    }
