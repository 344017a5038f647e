"""The same kernel as two arms: how often does the ratio's interval hold 1, as it should?"""

from __future__ import annotations

import itertools
from typing import Any

from kernels import OPS
from kernels.case import Case
from microbench.device.device import DeviceInfo, open_telemetry
from microbench.timing.interleave import LARGE_FLOPS, Arm, Turns
from microbench.timing.stats import excludes_one, median, ratio_interval
from microbench.timing.timers import Timer, make_timer

SIZES = {"cuda": (256, 512, 1024, 2048, 4096, 8192), "cpu": (64, 128, 256)}
PRECISIONS = {"cuda": ("fp16", "tf32", "bf16"), "cpu": ("fp32",)}
BUDGET_S = 2.5
TARGET_PCT = 90


def same_kernel_twice(info: DeviceInfo, tries: int) -> tuple[dict[str, Any], str]:
    """(figures, summary) of `tries` comparisons of a kernel with itself."""
    timer = make_timer("auto", "cold", info.kind, info.index, info.l2_bytes, info.sm_count)
    rows: list[dict[str, Any]] = []
    session = OPS["gemm"].session(info.target(), seed=0)
    backend = OPS["gemm"].library_backend(info.kind)
    shapes = itertools.cycle(itertools.product(SIZES[info.kind], PRECISIONS[info.kind]))
    with open_telemetry(info):
        for (size, precision), _ in zip(shapes, range(tries), strict=False):
            case = Case("gemm", {"m": size, "n": size, "k": size}, precision, backend)
            launch = session.prepare(case).candidates[0].call
            heavy = OPS["gemm"].flops(case) >= LARGE_FLOPS  # as the runner decides it
            rows.append({"case": case.key, **compare_with_itself(launch, timer, heavy)})
    holding = sum(row["holds_1"] for row in rows)
    summary = (
        f"The same kernel as two arms: the 95 % interval of the ratio holds 1 in {holding} of "
        f"{tries} tries (target {TARGET_PCT} %)."
    )
    return {"tries": tries, "holding_1": holding, "rows": rows}, summary


def compare_with_itself(launch: Any, timer: Timer, heavy: bool = False) -> dict[str, Any]:
    """Ratio and interval of two arms that are one launch."""
    timer.run(launch, 1)  # the first launch loads modules, which no gate can hold
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
