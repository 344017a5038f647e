"""python -m tests.validation.plants FILE: is the bottleneck named that was planted?

Each plant has its bottleneck by construction, by sizes, strides, tiles and bytes: independent of
the diagnosis. A control is a case without it: to name it there is wrong. Half of the kinds are held
out: kernels with a defect that the diagnosis does not know, never used to choose a threshold.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernels.case import Case
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.gemm import Gemm
from microbench.command_line import Outputs
from microbench.device.device import DeviceInfo, describe
from microbench.requests import Conditions, Request
from microbench.results.types import Result, Run
from microbench.roofline.limits import Limits, limits_for
from microbench.run import group_weight, run_request
from microbench.sweep import Group
from tests.validation.evidence import measured_on, parser_of, says_mistakes, write

# Times the usual budget. A diagnosis needs no narrow interval, so a GPU gets a fifth of it. A CPU
# has few plants, and other processes that disturb them.
BUDGET_SHARE = {"cuda": 0.2, "cpu": 8.0}
TARGET_PCT = 95.0
MEMORY_SHARE = 0.25  # of the device's memory that the tensors of a plant may take
RIGHT, WRONG, NOT_APPLICABLE = "right", "wrong", "not applicable"
DEFECTS = "tests.validation.defects"
Present = Callable[["Result", "Result | None", Limits], str | None]


@dataclass(frozen=True)
class Plant:
    """A case and the bottleneck planted in it; a control is right when none of `never` is named.

    `twin` is the same without what was planted, measured beside it. `absent` says from the
    measured numbers why the condition did not come about, or None.
    """

    condition: str
    case: Case
    absent: Present = lambda result, twin, limits: None
    twin: Case | None = None
    never: tuple[str, ...] = ()
    held_out: bool = False

    @property
    def expected(self) -> str:
        """The diagnosis that counts as right, in words."""
        return f"not {' or '.join(self.never)}" if self.never else self.condition


def gemm(
    m: int, n: int, k: int, precision: str, backend: str = "cublas", *,
    layout: str = "nt", data: str = "normal",
) -> Case:  # fmt: skip
    """A GEMM C[M, N] = A[M, K] @ B[K, N] in the default layout."""
    return Case(Gemm(m, n, k, layout), precision, backend, data)


def conv(
    c: int, k: int, which: str, precision: str, layout: str = "nhwc", *,
    batch: int = 32, image: int = 28, taps: int = 3,
) -> Case:  # fmt: skip
    """A convolution by cuDNN: stride 1, `taps` x `taps`, output as large as its input."""
    shape = ConvShape(batch, c, image, image, k, taps, taps, padding=taps // 2)
    return Case(Conv(shape, which, layout), precision, "cudnn")


# ---------------------------------------------------------------- was it planted?


def tiny(result: Result, twin: Result | None, limits: Limits) -> str | None:
    """Its work takes more than 5 % of a launch."""
    if not limits.compute_s or not limits.memory_s or not limits.floor_s:
        return "the device's peaks and its launch latency were not measured"
    share = (limits.compute_s + limits.memory_s) / limits.floor_s
    return f"its work takes {100 * share:.0f} % of a launch" if share > 0.05 else None


def thin(result: Result, twin: Result | None, limits: Limits) -> str | None:
    """Its arithmetic takes more than half of the time for its bytes."""
    if not limits.compute_s or not limits.memory_s:
        return "the device's peaks were not measured"
    share = limits.compute_s / limits.memory_s
    return (
        f"arithmetic takes {100 * share:.0f} % of the time for its bytes" if share > 0.5 else None
    )


def costs(least: float) -> Present:
    """The twin is not this many times as fast: what was planted costs nothing."""

    def absent(result: Result, twin: Result | None, limits: Limits) -> str | None:
        if twin is None or not twin.median_s or not result.median_s:
            return "the same case without it was not measured"
        gain = result.median_s / twin.median_s
        return None if gain >= least else f"without it the case is {gain:.2f} times as fast"

    return absent


def capped(result: Result, twin: Result | None, limits: Limits) -> str | None:
    """The card did not report its power cap, or zeros are no faster."""
    if result.measurement is None or "power cap" not in result.measurement.throttle:
        return "the card did not report its power cap during the run"
    return costs(1.03)(result, twin, limits)


def has_tile(tile: tuple[int, int]) -> Present:
    """The kernel took another tile."""

    def absent(result: Result, twin: Result | None, limits: Limits) -> str | None:
        other = result.tile is None or tuple(result.tile[:2]) != tile
        return f"the kernel took tiles of {result.tile}, not {tile}" if other else None

    return absent


# ---------------------------------------------------------------- the plants


def plants_for(device: DeviceInfo) -> list[Plant]:
    """The plants whose tensors fit this device."""
    if device.kind == "cpu":
        found = [
            Plant("launch", gemm(1024, 1024, 1024, "fp32", "cpu"), never=("launch", "memory")),
            *(Plant("launch", gemm(n, n, n, "fp32", "cpu"), tiny) for n in (4, 8, 16, 24)),
            *(Plant("memory", gemm(1, n, 4096, "fp32", "cpu"), thin) for n in (4096, 8192)),
        ]
    else:
        found = [*_on_a_gpu(), *_waves(device.sm_count or 0), *_held_out()]
    room = MEMORY_SHARE * (device.memory_bytes or math.inf)
    return [plant for plant in found if plant.case.min_bytes <= room]


def _on_a_gpu() -> list[Plant]:
    """Those that are the same on every GPU."""
    launch = [  # so little work that a launch takes longer
        gemm(16, 16, 16, "fp16"), gemm(64, 64, 64, "bf16"), gemm(128, 128, 128, "fp16"),
        gemm(64, 64, 64, "tf32"), gemm(128, 128, 128, "tf32"),
        gemm(128, 128, 128, "fp16", "triton"), gemm(64, 64, 64, "tf32", "triton"),
        conv(16, 16, "fprop", "fp16", batch=1, image=8),
        conv(16, 16, "fprop", "bf16", batch=1, image=8),
    ]  # fmt: skip
    memory = [  # so much to move that it takes longest
        gemm(16, 16384, 8192, "fp16"), gemm(32, 16384, 8192, "bf16"), gemm(16, 16384, 8192, "tf32"),
        conv(64, 256, "fprop", "fp16", batch=256, taps=1),
        conv(256, 64, "fprop", "bf16", batch=256, taps=1),
        conv(64, 64, "fprop", "fp16", batch=256, taps=1),
        conv(64, 64, "fprop", "tf32", batch=256, taps=1),
    ]  # fmt: skip
    # Rows that are no whole 16-byte words; in the controls they are, and arithmetic dominates.
    off = [
        *(gemm(4096, 4096, 4095, p) for p in ("fp16", "bf16", "tf32")),
        gemm(1024, 1024, 1025, "fp16"), gemm(2049, 2049, 2049, "bf16"),
        gemm(4095, 4095, 4095, "fp16", "triton"),
        conv(60, 60, "fprop", "fp16", batch=64), conv(60, 60, "dgrad", "fp16", batch=64),
        conv(61, 61, "fprop", "tf32", batch=64),
    ]  # fmt: skip
    whole = [gemm(4096, 4096, 4096, p) for p in ("fp16", "bf16", "tf32")]
    other = ("alignment", "launch", "layout", "memory", "waves")
    converted = [  # a layout that must be; in nhwc, the control, only that differs
        (64, "fprop", "fp16"), (128, "fprop", "fp16"), (128, "fprop", "bf16"),
        (64, "fprop", "tf32"), (64, "dgrad", "fp16"), (128, "dgrad", "bf16"),
    ]  # fmt: skip
    nchw, nhwc = (
        [conv(c, c, which, precision, layout) for c, which, precision in converted]
        for layout in ("nchw", "nhwc")
    )
    hot = [  # the power cap is reported; on zeros, which switch fewer transistors, it is faster
        gemm(8192, 8192, 8192, "fp16"), gemm(8192, 8192, 8192, "bf16"),
        gemm(4096, 4096, 4096, "fp16"), gemm(4096, 4096, 4096, "tf32"),
        conv(512, 512, "fprop", "fp16"),
    ]  # fmt: skip
    return [
        *(Plant("launch", case, tiny) for case in launch),
        *(Plant("memory", case, thin) for case in memory),
        *(Plant("alignment", case, twin=case.aligned) for case in off),
        *(Plant("alignment", case, never=other) for case in whole),
        *(Plant("layout", case, costs(1.1), twin)
          for case, twin in zip(nchw, nhwc, strict=True)),
        *(Plant("layout", case, never=("layout",)) for case in nhwc),
        *(Plant("power", case, capped, replace(case, data="zeros")) for case in hot),
    ]  # fmt: skip


# A tile that leaves no room for a second on an SM, and how many tiles, in full waves: so few that
# no higher clock makes up for the idle SMs.
WIDE, TALL = ((128, 256), "wide"), ((256, 128), "tall")
IDLE = (
    ("fp16", WIDE, 1.0), ("fp16", WIDE, 1.05), ("fp16", TALL, 1.0), ("fp16", TALL, 0.5),
    ("bf16", WIDE, 1.0), ("bf16", WIDE, 1.05), ("tf32", TALL, 1.0), ("tf32", TALL, 0.5),
)  # fmt: skip
SQUARE = 3  # M and N differ by no more than this factor: a thin GEMM's bottleneck would be memory
DEPTH = 2048  # of K: a launch takes much less than a tile does


def _waves(sm_count: int) -> list[Plant]:
    """Tiles, one an SM, that leave SMs idle; in the controls they fill nearly all, once."""
    found: list[Plant] = []
    for precision, (tile, name), share in IDLE:
        above = int(share * sm_count) + 1
        if case := _of_tiles(range(above, above + sm_count // 20), precision, tile, name):
            found.append(Plant("waves", case, has_tile(tile)))
    for precision in ("fp16", "bf16"):
        counts = range(sm_count, int(0.95 * sm_count), -1)
        if case := _of_tiles(counts, precision, *WIDE):
            found.append(Plant("waves", case, has_tile(WIDE[0]), never=("waves",)))
    return found


def _of_tiles(
    counts: Iterable[int], precision: str, tile: tuple[int, int], name: str
) -> Case | None:
    """The first GEMM with one of these numbers of tiles that is about square."""
    for count in counts:
        for rows in (n for n in range(count, 0, -1) if count % n == 0):
            m, n = rows * tile[0], count // rows * tile[1]
            if max(m, n) <= SQUARE * min(m, n):
                return gemm(m, n, DEPTH, precision, f"{DEFECTS}:{name}")
    return None


def _held_out() -> list[Plant]:
    """Kernels of `defects` beside the same without the defect, and zeros, which need less power.

    All threads of a warp read one bank of shared memory; sums spill; each launch is followed by
    one that only waits; tensors begin 2 bytes past a multiple of 16, or, the control, 16.
    """

    def by(name: str, n: int, precision: str) -> Case:
        return gemm(n, n, n, precision, f"{DEFECTS}:{name}" if name else "cublas")

    sizes, defect = ((4096, "fp16"), (2048, "bf16")), costs(1.15)
    stalled = [
        (bad, n, "fp32", good)
        for bad, good in (("conflicts", "no_conflicts"), ("spills", "no_spills"))
        for n in (1024, 2048)
    ]
    asleep = [("sleepy", n, precision, "") for n, precision in (*sizes, (2048, "tf32"))]
    never = ("alignment", "launch", "layout", "memory")
    found = [
        *(Plant("mixed", by(bad, n, p), defect, by(good, n, p))
          for bad, n, p, good in (*stalled, *asleep)),
        *(Plant("alignment", by("off_two_bytes", n, p), defect, by("", n, p)) for n, p in sizes),
        Plant("alignment", by("off_sixteen_bytes", 4096, "fp16"), never=never),
        *(Plant("power", gemm(n, n, n, p, data="zeros"), never=("power",)) for n, p in sizes),
    ]  # fmt: skip
    return [replace(plant, held_out=True) for plant in found]


# ---------------------------------------------------------------- measuring and judging


@dataclass(frozen=True)
class Planted(Request):
    """All cases of the plants, those of one problem interleaved."""

    name = "plants"

    groups: list[Group] = field(default_factory=list[Group])

    def plan(self, kind: str) -> list[Group]:
        """The groups, as they are."""
        return self.groups


def groups_of(plants: Iterable[Plant]) -> list[Group]:
    """Their cases and twins, each once, grouped by problem."""
    found: dict[str, dict[str, Case]] = {}
    for plant in plants:
        for case in (plant.twin, plant.case):
            if case:
                found.setdefault(case.group, {})[case.key] = case
    return [Group(tuple(cases.values())) for cases in found.values()]


def verdict(plant: Plant, run: Run) -> tuple[str, str | None, str]:
    """(verdict, bottleneck named, why). A case that failed is wrong: nothing was named.

    NOT_APPLICABLE: the device cannot run it, or the numbers show that it was not planted.
    """
    result = run.by_key.get(plant.case.key)
    if result is None or result.status == "skipped":
        return NOT_APPLICABLE, None, (result.reason if result else None) or "not measured"
    if result.bound is None:
        return WRONG, None, f"no bottleneck: {result.reason or 'failed'}"
    twin = run.by_key.get(plant.twin.key) if plant.twin else None
    missing = plant.absent(result, twin, limits_for(result, run))
    if missing:
        return NOT_APPLICABLE, None, missing
    named = result.bound
    right = named not in plant.never if plant.never else named == plant.condition
    return RIGHT if right else WRONG, named, result.why or ""


def judged(plants: Sequence[Plant], run: Run) -> dict[str, Any]:
    """The plants with their verdicts; the held-out ones do not count."""
    rows: list[dict[str, Any]] = []
    for plant in plants:
        said, named, why = verdict(plant, run)
        result = run.by_key.get(plant.case.key)
        rows.append({
            "condition": plant.condition, "control": bool(plant.never), "case": plant.case.key,
            "expected": plant.expected, "named": named, "why": why, "verdict": said,
            "held_out": plant.held_out, "median_s": result and result.median_s,
        })  # fmt: skip
    counted = [r for r in rows if r["verdict"] != NOT_APPLICABLE and not r["held_out"]]
    right = sum(row["verdict"] == RIGHT for row in counted)
    passed = bool(counted) and 100 * right >= TARGET_PCT * len(counted)
    missing = [{"case": r["case"], "reason": r["why"]}
               for r in rows if r["verdict"] == NOT_APPLICABLE]  # fmt: skip
    return {"right": right, "counted": len(counted), "passed": passed, "absent": missing,
            "rows": rows}  # fmt: skip


@says_mistakes
def main(arguments: list[str] | None = None) -> int:
    """Measure, judge, print. 1 where under TARGET_PCT per cent are right."""
    parser = parser_of("plants", __doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=float, help="seconds of sampling in all")
    given = parser.parse_args(arguments)
    info = describe(given.device)
    plants = plants_for(info)
    groups = groups_of(plants)
    usual_s = BUDGET_SHARE[info.kind] * sum(map(group_weight, groups))
    conditions = Conditions(
        device=given.device, tune=0, budget=given.budget or usual_s, processes=1,
        outputs=Outputs(),
    )  # fmt: skip
    run = run_request(Planted(conditions, groups)).run
    found = judged(plants, run)
    held = [r["verdict"] for r in found["rows"] if r["held_out"]]
    print(f"{found['right']} of {found['counted']} recognised, target {TARGET_PCT:g} %; held out: "
          f"{held.count(RIGHT)} of {len(held) - held.count(NOT_APPLICABLE)}.")  # fmt: skip
    facts = {"started_at": run.started_at, **measured_on(info), "settings": run.settings, **found}
    write(given.file, "selftest", ["tests.validation.plants"], facts)
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
