"""python -m tests.validation.aa FILE: how often does the interval of a ratio of 1 contain 1?

One kernel is timed as two variants. Light and heavy comparisons are counted apart: they are timed
differently (`InterleavedSampler.plan`).
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import asdict, dataclass
from typing import Any

from kernels import OPS
from kernels.case import Case
from kernels.gemm import Gemm
from kernels.op import Session
from microbench.device.device import DeviceInfo, describe, open_telemetry
from microbench.results.types import TIME_DECIMALS, Interval
from microbench.timing import LARGE_FLOPS, SUSTAINED
from microbench.timing.interleave import HEAVY, InterleavedSampler, Variant
from microbench.timing.stats import CONFIDENCE, excludes_one, median, ratio_interval, t_quantile
from microbench.timing.timers import Timer, make_timer
from tests.validation.evidence import measured_on, parser_of, says_mistakes, write

SIZES = {"cuda": (256, 512, 1024, 2048, 4096, 8192), "cpu": (64, 128, 256)}
PRECISIONS = {"cuda": ("fp16", "tf32", "bf16"), "cpu": ("fp32",)}
TRIES, BUDGET_S = 300, 2.5


@dataclass(frozen=True)
class Pair:
    """A kernel compared with itself, a row of the file; `ratio` is first over second time.

    `turns_s` has the median of every block in seconds, in the order in which they were taken, and
    `order` the variant of each, "a" or "b".
    """

    case: str
    ratio: float
    ci95: Interval | None
    rounds: int
    holds_1: bool
    heavy: bool
    order: str
    turns_s: tuple[float, ...]


@says_mistakes
def main(arguments: list[str] | None = None) -> int:
    """Compare, print the share and write every comparison."""
    parser = parser_of("aa", __doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each")
    given = parser.parse_args(arguments)
    info = describe(given.device)
    pairs = same_kernel_twice(info, given.tries, given.budget)
    holding = sum(pair.holds_1 for pair in pairs)
    low, high = share_interval(holding, len(pairs))
    wrong = "" if low <= CONFIDENCE <= high else ", not 95 %"
    share = f"{100 * holding / len(pairs):.1f} % ({100 * low:.1f} to {100 * high:.1f} %{wrong})"
    print(f"{holding} of {len(pairs)} contain 1, {share}")
    words = ["tests.validation.aa", "--tries", str(given.tries), "--budget", f"{given.budget:g}"]
    figures = {"tries": len(pairs), "holding_1": holding, "rows": [asdict(pair) for pair in pairs]}
    write(given.file, "aa", words, {**measured_on(info), **figures})
    return 0


def share_interval(hits: int, tries: int) -> Interval:
    """95 % interval of a share, between 0 and 1 (E. B. Wilson, 1927); `tries` is above 0."""
    z = t_quantile(CONFIDENCE, math.inf)
    share = hits / tries
    middle = (share + z**2 / (2 * tries)) / (1 + z**2 / tries)
    spread = math.sqrt(share * (1 - share) / tries + z**2 / (4 * tries**2))
    half = z * spread / (1 + z**2 / tries)
    return max(0.0, middle - half), min(1.0, middle + half)


def same_kernel_twice(info: DeviceInfo, tries: int, budget_s: float) -> list[Pair]:
    """Compare `tries` times a kernel with itself: GEMMs of SIZES in PRECISIONS, by the library."""
    timer = make_timer("auto", "cold", info.kind, info.index, info.l2_bytes, info.sm_count)
    session = Session(info.target(), seed=0)
    backend = OPS["gemm"].library_backend(info.kind)
    shapes = itertools.cycle(itertools.product(SIZES[info.kind], PRECISIONS[info.kind]))
    found: list[Pair] = []
    with open_telemetry(info):
        for size, precision in itertools.islice(shapes, tries):
            case = Case(Gemm(size, size, size), precision, backend)
            launch = session.prepare(case).candidates[0].call
            heavy = case.problem.flops >= LARGE_FLOPS  # as the runner decides it
            found.append(compare_with_itself(case.key, launch, timer, heavy, budget_s))
    return found


def compare_with_itself(
    name: str, launch: Any, timer: Timer, heavy: bool = False, budget_s: float = BUDGET_S
) -> Pair:
    """Two variants that are the same launch; `name` is its case's."""
    timer.run(launch, 1)  # the first launch loads modules, which would wait for the closed gate
    estimate = median(timer.block(launch, 3).times_s)
    variants = [Variant(key, launch, estimate) for key in "ab"]
    taken: list[str] = []

    def begin(key: str, number: int) -> None:
        if number > 0:
            taken.append(key)

    sampler = InterleavedSampler(timer, SUSTAINED, budget_s, heavy=heavy, begin=begin)
    rounds = sampler.take(variants)
    blocks = [[block.times_s for block in variant.blocks] for variant in variants]
    ratio, interval = ratio_interval(blocks[0], blocks[1], timer.resolution_s)
    left = {key: iter(of_arm) for key, of_arm in zip("ab", blocks, strict=True)}
    return Pair(
        case=name,
        ratio=ratio,
        ci95=interval,
        rounds=rounds,
        holds_1=interval is not None and not excludes_one(interval),
        heavy=sampler.plan(variants) is HEAVY,
        order="".join(taken),
        turns_s=tuple(round(median(next(left[key])), TIME_DECIMALS) for key in taken),
    )


if __name__ == "__main__":
    sys.exit(main())
