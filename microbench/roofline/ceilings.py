"""The peaks of a device: datasheet and measured FLOP/s, bandwidth, launch latency.

Measured ceilings come from a copy, from a 64 x 64 x 64 product (nothing a library launches is
faster: its launch latency) and from kernels that only multiply (`kernels.ceilings`); where those
cannot run, from the largest GEMMs of the run itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from statistics import fmean

from kernels import OPS
from kernels.case import Case, Target
from kernels.ceilings import PeakKernel, copy, load, peak_kernels
from kernels.gemm import Gemm
from kernels.gpus import find_card
from kernels.precision import precision
from microbench.device.device import raise_if_dead
from microbench.measure import Announce, Measurer
from microbench.results.types import Ceiling, Result
from microbench.roofline.limits import INSTRUCTION
from microbench.sweep import Group
from microbench.timing.stats import median
from microbench.timing.timers import Timer

FLOOR_SIZE = 64
LARGE_SIZE = {"cuda": 4096, "cpu": 512}  # from here on a GEMM's FLOP/s can be a peak
CALIBRATED_SIZE = {"cuda": 4096, "cpu": 1024}  # of the GEMM measured where a run has no large one
ALIGNED = 64  # elements: other sizes run slower kernels, which show no peak
COPY_SAMPLES = 7
FLOOR_BUDGET_S = 0.3
LARGE_BUDGET_S = 1.0
WARM_LAUNCHES, TRY_SAMPLES = 20, 5  # of a kernel that only multiplies


def datasheet_ceilings(device_name: str, precisions: Sequence[str]) -> list[Ceiling]:
    """The datasheet's dense FLOP/s of these precisions, and its bytes/s; [] for an unknown GPU.

    Values and their sources are those of `kernels.gpus`.
    """
    card = find_card(device_name)
    if card is None:
        return []
    peaks = [("dense peak", p, card.peak(precision(p))) for p in precisions]
    peaks += [("without Tensor Cores", p, rate) for p, rate in card.simt_flop_per_s.items()]
    return [
        *(Ceiling(name, "datasheet", p, rate, reference=card.reference)
          for name, p, rate in peaks if rate is not None),
        Ceiling("memory", "datasheet", byte_per_s=card.byte_per_s, reference=card.reference),
    ]  # fmt: skip


def is_large(case: Case, kind: str) -> bool:
    """Whether a case's FLOP/s may be a measured peak: a GEMM with large, aligned M, N and K."""
    if case.op != "gemm":
        return False
    mnk = case.problem.mnk
    return min(mnk) >= LARGE_SIZE[kind] and not any(n % ALIGNED for n in mnk)


def is_reference(case: Case, kind: str) -> bool:
    """Whether the case is a large GEMM by the library, so no other need be measured for a peak."""
    return is_large(case, kind) and case.backend == OPS[case.op].library_backend(kind)


def library_group(precisions: Sequence[str], kind: str, size: int) -> Group:
    """A GEMM of M = N = K = `size` in each precision by the library, to measure peaks with."""
    backend = OPS["gemm"].library_backend(kind)
    problem = Gemm(size, size, size)
    return Group(tuple(Case(problem, p, backend) for p in precisions))


def calibrate(
    measurer: Measurer, precisions: Sequence[str], large: Sequence[str], announce: Announce
) -> list[Ceiling]:
    """Measured bandwidth, launch latencies and instructions.

    A GEMM's peak for those precisions in `large` of which no instruction was measured.
    """
    kind = measurer.target.kind
    announce("copy", "measuring memory bandwidth")
    launch, moved = copy(measurer.target)
    reading = median(measurer.timer.block(launch, COPY_SAMPLES).times_s)
    ceilings = [Ceiling("memory", "measured", byte_per_s=moved / reading, reference="copy")]
    floors = library_group(precisions, kind, FLOOR_SIZE)
    ceilings += [
        Ceiling("latency floor", "measured", result.case.precision_name, seconds=result.median_s,
                reference=result.case.key)
        for result in measurer.measure(floors, FLOOR_BUDGET_S, announce)
        if result.median_s and not result.ruined_pct
    ]  # fmt: skip
    ceilings += instruction_ceilings(measurer.target, measurer.timer, precisions, announce)
    known = {ceiling.precision for ceiling in ceilings if ceiling.name == INSTRUCTION}
    if large := [name for name in large if name not in known]:
        group = library_group(large, kind, CALIBRATED_SIZE[kind])
        budget_s = LARGE_BUDGET_S * len(large)
        ceilings += large_ceilings(measurer.measure(group, budget_s, announce), kind)
    return ceilings


def instruction_ceilings(
    target: Target, timer: Timer, precisions: Sequence[str], announce: Announce
) -> list[Ceiling]:
    """What the fastest instruction of each precision reaches: of its variants the fewest clocks.

    Good to a per cent, in tens of milliseconds each; without what is not known of the device, and
    what does not run. RuntimeError: the device is unusable.
    """
    ceilings: list[Ceiling] = []
    for name in precisions:
        tried: list[Ceiling] = []
        for variant in peak_kernels(name, target):
            announce(name, f"trying {variant.instruction} {variant.label}")
            tried += _tried(variant, name, target, timer)
        rate = "flop_per_clock" if all(c.flop_per_clock for c in tried) else "flop_per_s"
        ceilings += sorted(tried, key=attrgetter(rate))[-1:]
    return ceilings


def _tried(variant: PeakKernel, name: str, target: Target, timer: Timer) -> list[Ceiling]:
    """What a variant reaches; nothing where it fails or computes what it should not."""
    try:
        loaded = load(variant, name, target)
        if not loaded.rel_error() <= precision(name).rel_tolerance:
            return []
        timer.run(loaded.launch, WARM_LAUNCHES)
        block = timer.block(loaded.launch, TRY_SAMPLES)
    except Exception as failure:
        raise_if_dead(failure)
        return []
    rate = loaded.flops / (fmean(block.times_s) - timer.overhead_s)  # the clock is a mean too
    clocks_per_s = 1e6 * (block.sm_clock_mhz or 0.0) * target.sm_count
    per_clock = rate / clocks_per_s if clocks_per_s else None
    said = f"{variant.instruction}, {variant.label}"
    return [Ceiling(INSTRUCTION, "measured", name, rate, flop_per_clock=per_clock, reference=said)]


def large_ceilings(results: Sequence[Result], kind: str) -> list[Ceiling]:
    """The best FLOP/s of each precision among the large GEMMs in these results."""
    best: dict[str, Ceiling] = {}
    for result in results:
        rate, name = result.flop_per_s or 0.0, result.case.precision_name
        before = best[name].flop_per_s if name in best else 0.0
        sure = is_large(result.case, kind) and not result.ruined_pct
        if sure and rate > (before or 0.0):
            key = result.case.key
            best[name] = Ceiling("large GEMM", "measured", name, rate, reference=key)
    return list(best.values())
