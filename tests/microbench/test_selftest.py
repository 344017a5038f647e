"""The selftest's diagnosis on a made-up device: where plants take, and where they do not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from kernels import OPS
from kernels.case import Case
from microbench.device.device import target_of
from microbench.report.screen import make_console
from microbench.results.types import Ceiling, Measurement, Result, Run
from microbench.selftest.judge import Judged, Runs, judge, passed
from microbench.selftest.plant import CONDITIONS, Plant
from microbench.selftest.planted import plan, triton_tile
from microbench.selftest.run import evidence, groups_of, take
from microbench.sweep import Group
from microbench.worker import OnStage

H200: dict[str, Any] = {
    "name": "NVIDIA H200", "kind": "cuda", "capability": "9.0", "sm_count": 132,
    "memory_bytes": 150_000_000_000, "l2_bytes": 60 << 20, "power_limit_w": 700.0,
    "sm_clock_max_mhz": 1980.0,
}  # fmt: skip
RATES = {"fp16": 650e12, "bf16": 690e12, "tf32": 355e12, "fp32": 50e12}
BYTES_PER_S, L2_BYTES_PER_S = 4.2e12, 8e12
FLOOR_S = 3e-6
Spoil = Callable[[Result], Result]


@dataclass
class MadeUp:
    """A device on which every planted condition costs what it should; `spoil` changes results."""

    warm: bool
    spoil: Spoil

    def others(self) -> int:
        """No other process is on it."""
        return 0

    def calibrate(
        self,
        precisions: Sequence[str],
        large: Sequence[str],
        cases: Sequence[Case],
        on_stage: OnStage,
    ) -> list[Ceiling]:
        floor_s = FLOOR_S - 1e-6 * self.warm
        return [
            Ceiling("memory", "measured", byte_per_s=BYTES_PER_S),
            *(Ceiling("latency floor", "measured", p, seconds=floor_s) for p in precisions),
            *(Ceiling("large GEMM", "measured", p, flop_per_s=RATES[p]) for p in large),
        ]

    def measure(
        self, group: Group, budget_s: float, on_stage: OnStage, **_: object
    ) -> list[Result]:
        return [self.spoil(self.result(case)) for case in group.cases]

    def result(self, case: Case) -> Result:
        op = OPS[case.op]
        flops, moved = op.flops(case), op.min_bytes(case)
        busy_s, kernels, tile = flops / RATES[case.precision_name], ["main"], None
        variant = None
        if op.misaligned(case):
            busy_s *= 3
        if case.backend == "triton" or case.backend.endswith((":wide", ":narrow")):
            columns = 192 if case.backend.endswith(":narrow") else 256
            tile = (128, columns, 64) if case.dim("m") > 1000 else (64, 32, 64)
            tiles = math.ceil(case.dim("m") / tile[0]) * math.ceil(case.dim("n") / tile[1])
            variant = f"tma/{tile[0]}x{tile[1]}x64/s4/w8/g8"
            busy_s /= min(1.0, 1.2 * tiles / (math.ceil(tiles / 132) * 132))
        if case.backend.endswith((":conflicts", ":spills", ":sleepy", ":off_two_bytes")):
            busy_s *= 2
        if case.layout == "nchw":
            busy_s, kernels = 3 * busy_s, ["main", "nchwToNhwcKernel"]
        if case.data == "zeros":
            busy_s /= 1.2
        fits = self.warm and moved < H200["l2_bytes"]
        rate = L2_BYTES_PER_S if fits else BYTES_PER_S
        seconds = FLOOR_S - 1e-6 * self.warm + max(busy_s, moved / rate)
        hot = flops > 5e10 and case.data != "zeros"
        measurement = Measurement(
            (seconds,) * 3, (1, 1, 1), seconds, (seconds, seconds), "events", "cold", "sustained",
            sm_clock_mhz=1300.0 if hot else 1900.0, throttle=("power cap",) if hot else (),
        )  # fmt: skip
        return Result(
            case, "ok", measurement=measurement, flops=flops, min_bytes=moved, tile=tile,
            variant=variant, kernels=tuple(kernels), kernels_s=(1e-6,) * len(kernels),
        )  # fmt: skip

    def close(self) -> None:
        """Nothing runs."""


def judged(
    plants: Sequence[Plant], spoil: Spoil = lambda result: result
) -> tuple[list[Judged], Runs]:
    """The verdicts on plants measured on the made-up device, and its runs."""
    quiet = make_console(quiet=True)
    cold, warm = (
        take(
            groups_of(cases), 1.0, lambda warm=warm: cast(Any, MadeUp(warm, spoil)),
            Run(("x",), "now", H200, {}, settings={"l2": "warm" if warm else "cold"}), quiet,
        )
        for warm, cases in (
            (False, [c for p in plants for c in (*p.companions, p.subject)]),
            (True, [c for p in plants for c in p.apart]),
        )
    )  # fmt: skip
    runs = Runs(cold, warm)
    return [judge(plant, runs) for plant in plants], runs


def wrong_of(found: Sequence[Judged]) -> set[tuple[str, str]]:
    """(condition, verdict) of verdicts other than right."""
    return {(item.plant.condition, item.verdict) for item in found if item.verdict != "right"}


@pytest.fixture(scope="module")
def plants() -> list[Plant]:
    """Those that the diagnosis was developed on."""
    every = plan(H200, triton_tile(target_of(H200)))[0]
    return [plant for plant in every if not plant.held_out]


def test_where_every_plant_took_each_condition_is_diagnosed(plants: list[Plant]) -> None:
    assert {plant.condition for plant in plants if not plant.control} == {*CONDITIONS} - {"mixed"}
    found, runs = judged(plants)
    assert wrong_of(found) == set()
    document = json.loads(json.dumps(evidence(found, [], runs), allow_nan=False))
    assert document["right"] == document["counted"] == len(document["rows"]) == len(plants)


def test_a_cause_that_nothing_shows_and_a_plant_that_did_not_take_count_as_such(
    plants: list[Plant],
) -> None:
    def nameless(result: Result) -> Result:
        return replace(result, kernels=("a", "b")[: len(result.kernels)])

    def cool(result: Result) -> Result:
        assert result.measurement
        return replace(result, measurement=replace(result.measurement, throttle=()))

    found, _ = judged(plants, nameless)
    assert wrong_of(found) == {("layout", "wrong")}
    assert not passed(found)
    hot = [plant for plant in plants if plant.condition == "power" and not plant.control]
    assert wrong_of(judged(hot, cool)[0]) == {("power", "not applicable")}
