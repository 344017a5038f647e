"""The selftest: plants that are what they say by arithmetic, and a diagnosis that can fail it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from kernels import OPS
from kernels.case import Case
from kernels.user import find
from microbench.__main__ import main
from microbench.device.device import target_of
from microbench.report.documents import print_sheet
from microbench.report.screen import make_console
from microbench.report.table import markdown
from microbench.results.types import Ceiling, Measurement, Result, Run
from microbench.selftest.judge import Judged, Runs, cache_effect, judge, passed, score
from microbench.selftest.plant import CONDITIONS, Plant, Tile, gemm
from microbench.selftest.planted import plan, triton_tile
from microbench.selftest.run import evidence, groups_of, take
from microbench.selftest.screen import PlantRow, confusion, sheet
from microbench.sweep import Group
from microbench.worker import OnStage

PUBLISHED = Path(__file__).parents[2] / "results" / "nvidia-h200" / "selftest.json"
H200: dict[str, Any] = {
    "name": "NVIDIA H200", "kind": "cuda", "capability": "9.0", "sm_count": 132,
    "memory_bytes": 150_000_000_000, "l2_bytes": 60 << 20, "power_limit_w": 700.0,
    "sm_clock_max_mhz": 1980.0,
}  # fmt: skip
CPU: dict[str, Any] = {
    "name": "a CPU", "kind": "cpu", "capability": None, "sm_count": 2, "memory_bytes": 1 << 34,
    "l2_bytes": 1 << 25, "power_limit_w": None, "sm_clock_max_mhz": None,
}  # fmt: skip
RATES = {"fp16": 650e12, "bf16": 690e12, "tf32": 355e12, "fp32": 50e12}
BYTES_PER_S, L2_BYTES_PER_S = 4.2e12, 8e12
FLOOR_S = 3e-6
WIDTHS = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}


def as_named(case: Case) -> Tile:
    return (128, 192) if case.backend.endswith(":narrow") else (128, 256)


@pytest.fixture(scope="module")
def every() -> list[Plant]:
    return plan(H200, triton_tile(target_of(H200)))[0]


@pytest.fixture(scope="module")
def plants(every: list[Plant]) -> list[Plant]:
    """Those that the diagnosis was developed on."""
    return [plant for plant in every if not plant.held_out]


@pytest.fixture(scope="module")
def independent(every: list[Plant]) -> list[Plant]:
    return [plant for plant in every if plant.held_out]


def of(plants: Sequence[Plant], condition: str, control: bool = False) -> list[Plant]:
    return [p for p in plants if p.condition == condition and p.control is control]


# ---------------------------------------------------------------- sound by arithmetic


def test_every_condition_is_planted_several_times_in_several_precisions(
    every: list[Plant],
) -> None:
    assert sum(not plant.control for plant in every) >= 30
    assert len({plant.name for plant in every}) == len(every)
    for condition in CONDITIONS:
        found = of(every, condition)
        assert len(found) >= 4, condition
        assert len({plant.subject.precision_name for plant in found}) >= 2, condition
        assert all(plant.because for plant in found)


def test_a_tiny_plant_has_nothing_to_do(plants: list[Plant]) -> None:
    for plant in of(plants, "launch"):
        dims, width = plant.subject.dims, WIDTHS[plant.subject.precision_name]
        if plant.subject.op == "gemm":
            m, n, k = (int(dims[d]) for d in "mnk")
            flops, moved = 2 * m * n * k, width * (m * k + k * n + m * n)
        else:
            pixels = int(dims["n"]) * int(dims["h"]) * int(dims["w"])
            c, k, taps = int(dims["c"]), int(dims["k"]), int(dims["r"]) * int(dims["s"])
            flops, moved = 2 * pixels * c * k * taps, width * (pixels * (c + k) + c * k * taps)
        rate = RATES[plant.subject.precision_name]
        assert flops / rate + moved / BYTES_PER_S < 0.05 * FLOOR_S, plant.name


def test_a_thin_plant_moves_more_than_it_multiplies(plants: list[Plant]) -> None:
    for plant in of(plants, "memory"):
        dims, width = plant.subject.dims, WIDTHS[plant.subject.precision_name]
        if plant.subject.op == "gemm":
            m, n, k = (int(dims[d]) for d in "mnk")
            flops, moved = 2 * m * n * k, width * (m * k + k * n + m * n)
        else:
            pixels = int(dims["n"]) * int(dims["h"]) * int(dims["w"])
            c, k = int(dims["c"]), int(dims["k"])
            assert (dims["r"], dims["s"], dims["padding"]) == (1, 1, 0)
            flops, moved = 2 * pixels * c * k, width * (pixels * (c + k) + c * k)
        balance = RATES[plant.subject.precision_name] / BYTES_PER_S
        assert flops / moved < 0.5 * balance, plant.name
        assert moved / BYTES_PER_S > 3 * FLOOR_S, plant.name


def test_a_misaligned_plant_is_off_16_bytes_and_its_twin_is_not(plants: list[Plant]) -> None:
    for plant in of(plants, "alignment"):
        (twin,) = plant.companions
        width = WIDTHS[plant.subject.precision_name]
        rows = ("k", "n") if plant.subject.op == "gemm" else ("c", "k")
        assert any(plant.subject.dim(d) * width % 16 for d in rows), plant.name
        assert not any(twin.dim(d) * width % 16 for d in rows), plant.name
        assert all(0 <= twin.dim(d) - plant.subject.dim(d) < 16 for d in rows)
        assert replace(twin, dims=plant.subject.dims) == plant.subject


def test_a_wave_plant_leaves_nearly_half_the_slots_idle_at_a_depth_that_counts(
    plants: list[Plant],
) -> None:
    found = of(plants, "waves")
    assert any("133 tiles" in plant.because for plant in found)
    for plant in [*found, *of(plants, "waves", control=True)]:
        assert plant.tile
        m, n, k = (plant.subject.dim(d) for d in "mnk")
        tiles = math.ceil(m / plant.tile[0]) * math.ceil(n / plant.tile[1])
        assert f"{tiles} tiles" in plant.because
        full = tiles / (math.ceil(tiles / 132) * 132)
        assert full >= 0.95 if plant.control else 0.5 <= full <= 0.56, plant.name
        assert (m % plant.tile[0], n % plant.tile[1]) == (0, 0)
        per_cycle = 2048 if plant.subject.precision_name == "tf32" else 4096
        tile_s = 2 * plant.tile[0] * plant.tile[1] * k / per_cycle / 1.98e9
        assert tile_s > 2 * FLOOR_S, plant.name
        # At the highest clock the SMs that have tiles cannot reach what is called near the ceiling.
        if not plant.control:
            peak = per_cycle * 132 * 1.98e9
            assert full * peak < 0.9 * RATES[plant.subject.precision_name], plant.name


def test_a_layout_plant_differs_from_its_twin_in_the_layout_alone(plants: list[Plant]) -> None:
    for plant in of(plants, "layout"):
        (twin,) = plant.companions
        assert (plant.subject.layout, twin.layout) == ("nchw", "nhwc")
        assert replace(twin, layout="nchw") == plant.subject
        assert any(other.subject == twin for other in of(plants, "layout", control=True))


def test_a_power_plant_is_measured_beside_zeros(plants: list[Plant]) -> None:
    for plant in of(plants, "power"):
        normal, zeros = plant.apart
        assert normal == plant.subject
        assert zeros == replace(normal, data="zeros")


def test_a_cache_plant_fits_a_third_of_the_cache_and_its_controls_cannot_gain(
    plants: list[Plant],
) -> None:
    l2 = H200["l2_bytes"]
    for plant in of(plants, "cache"):
        m, n, k = (plant.subject.dim(d) for d in "mnk")
        moved = WIDTHS[plant.subject.precision_name] * (m * k + k * n + m * n)
        assert l2 / 5 < moved < l2 / 3, plant.name
        assert not k % 64
        assert plant.apart == (plant.subject,)
    streams, heavy = of(plants, "cache", control=True)
    assert OPS["gemm"].min_bytes(streams.subject) > 3.9 * l2
    assert OPS["gemm"].min_bytes(heavy.subject) < l2
    intensity = OPS["gemm"].flops(heavy.subject) / OPS["gemm"].min_bytes(heavy.subject)
    assert intensity > 3 * RATES["bf16"] / BYTES_PER_S


def test_what_a_device_lacks_is_absent_and_said() -> None:
    plants, absent = plan(CPU, lambda _: None)
    assert {plant.condition for plant in plants} == {"launch", "memory"}
    assert {a.condition for a in absent} == set(CONDITIONS) - {"launch", "memory"}
    small = H200 | {"memory_bytes": 1 << 30, "power_limit_w": None}
    plants, absent = plan(small, lambda _: None)
    assert all(OPS[p.subject.op].min_bytes(p.subject) < 1 << 28 for p in plants)
    assert {"power", "waves", "memory"} <= {a.condition for a in absent}


def test_plants_follow_the_device() -> None:
    def tiles_of(sms: int) -> list[Plant]:
        return of(plan(H200 | {"sm_count": sms, "name": "?"}, as_named)[0], "waves")

    assert any("109 tiles" in p.because or "110 tiles" in p.because for p in tiles_of(108))
    half = plan(H200 | {"l2_bytes": 30 << 20}, as_named)[0]
    assert all(OPS["gemm"].min_bytes(p.subject) < 10 << 20 for p in of(half, "cache"))


# ---------------------------------------------------------------- a made-up H200


@dataclass
class MadeUp:
    """A device on which every planted condition costs what it should; `spoil` changes results."""

    warm: bool = False
    spoil: Callable[[Result], Result] = lambda result: result
    closed: bool = False

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
            tile = (*as_named(case), 64) if case.dim("m") > 1000 else (64, 32, 64)
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
        self.closed = True


def measured(
    plants: Sequence[Plant], spoil: Callable[[Result], Result] = lambda result: result
) -> list[Judged]:
    """The verdicts on plants measured on the made-up device."""
    runs = runs_of(plants, spoil)
    return [judge(plant, runs) for plant in plants]


def runs_of(
    plants: Sequence[Plant], spoil: Callable[[Result], Result] = lambda result: result
) -> Runs:
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
    return Runs(cold, warm)


def spoiled(judged: Sequence[Judged]) -> dict[str, set[str]]:
    """Verdicts other than right, by condition."""
    found: dict[str, set[str]] = {}
    for item in judged:
        if item.verdict != "right":
            found.setdefault(item.plant.condition, set()).add(item.verdict)
    return found


def test_on_a_device_where_every_plant_took_all_is_right(plants: list[Plant]) -> None:
    judged = measured(plants)
    assert spoiled(judged) == {}, [
        (j.plant.name, j.verdict, j.named, j.why) for j in judged if j.verdict != "right"
    ]
    assert passed(judged)
    assert score(judged) == (len(plants), len(plants))


def test_a_diagnosis_that_names_something_else_is_wrong(plants: list[Plant]) -> None:
    """Kernels under names that say nothing of layouts: the cause is not found, and that counts."""

    def nameless(result: Result) -> Result:
        return replace(result, kernels=("a", "b")[: len(result.kernels)])

    judged = measured(plants, nameless)
    assert spoiled(judged) == {"layout": {"wrong"}}
    assert not passed(judged)
    assert all(j.named == "mixed" for j in judged if j.verdict == "wrong")


def test_a_control_that_is_called_bound_is_wrong(plants: list[Plant]) -> None:
    def transposing(result: Result) -> Result:
        return replace(result, kernels=("main", "nchwToNhwc"), kernels_s=(1e-6, 1e-6))

    wrong = [j for j in measured(plants, transposing) if j.verdict == "wrong"]
    assert any(j.plant.control and j.named == "layout" for j in wrong)


def test_a_failed_subject_is_wrong_and_a_skipped_one_not_applicable(plants: list[Plant]) -> None:
    def broken(status: str) -> Callable[[Result], Result]:
        def spoil(result: Result) -> Result:
            if result.case.precision_name != "tf32":
                return result
            return replace(result, status=status, reason="no tf32", measurement=None)

        return spoil

    failed, skipped = (measured(plants, broken(status)) for status in ("failed", "skipped"))
    of_tf32 = [j for j in failed if j.plant.subject.precision_name == "tf32"]
    assert {j.verdict for j in of_tf32} == {"wrong"}
    assert all("no tf32" in j.why for j in of_tf32)
    of_tf32 = [j for j in skipped if j.plant.subject.precision_name == "tf32"]
    assert {j.verdict for j in of_tf32} == {"not applicable"}
    assert passed(skipped)
    assert score(skipped)[1] == len(plants) - len(of_tf32)


def test_power_is_planted_only_where_the_card_says_so_and_zeros_are_faster(
    plants: list[Plant],
) -> None:
    def cool(result: Result) -> Result:
        assert result.measurement
        return replace(result, measurement=replace(result.measurement, throttle=()))

    hot = of(plants, "power")
    assert spoiled(measured(hot, cool)) == {"power": {"not applicable"}}

    def indifferent(result: Result) -> Result:
        if result.case.data != "zeros":
            return result
        return replace(MadeUp(True).result(replace(result.case, data="normal")), case=result.case)

    assert spoiled(measured(hot, indifferent)) == {"power": {"not applicable"}}


def test_another_tile_than_planned_and_a_layout_that_costs_nothing_are_not_applicable(
    plants: list[Plant],
) -> None:
    def otherwise(result: Result) -> Result:
        cheap = MadeUp().result(replace(result.case, layout="nhwc"))
        if result.case.op == "conv" and result.case.layout == "nchw":
            result = replace(result, measurement=cheap.measurement)
        return replace(result, tile=(64, 64, 64) if result.tile else None)

    found = spoiled(measured([*of(plants, "waves"), *of(plants, "layout")], otherwise))
    assert found == {"waves": {"not applicable"}, "layout": {"not applicable"}}


def test_nothing_counted_is_no_pass_and_the_bar_is_95_per_cent() -> None:
    plant = Plant("x", "launch", "because", gemm(16, 16, 16, "fp16"))
    right, wrong, left = (
        Judged(plant, verdict, "launch", "") for verdict in ("right", "wrong", "not applicable")
    )
    assert not passed([left])
    assert passed([right] * 19 + [wrong, left])
    assert not passed([right] * 18 + [wrong, left])
    assert score([right, wrong, left]) == (1, 2)

    def summary(judged: list[Judged]) -> str:
        run = Run(("x",), "now", H200, {}, settings={"l2": "cold"})
        return sheet(json.loads(json.dumps(evidence(judged, [], Runs(run))))).summary

    assert "19 of 20 diagnosed correctly (95.0 %" in summary([right] * 19 + [wrong])
    assert "No case could be planted" in summary([left])


def test_the_evidence_has_every_plant_and_its_numbers(plants: list[Plant]) -> None:
    runs = runs_of(plants)
    judged = [judge(plant, runs) for plant in plants]
    document = json.loads(json.dumps(evidence(judged, [], runs), allow_nan=False))
    assert document["right"] == document["counted"] == len(plants)
    assert len(document["rows"]) == len(plants)
    for row in document["rows"]:
        assert {"expected", "named", "why", "because", "verdict"} <= row.keys()
        assert row["subject"]["median_s"] > 0
    power = next(row for row in document["rows"] if row["condition"] == "power")
    assert [case["case"].count("zeros") for case in power["warm"]] == [0, 1]
    assert {c["l2"] for c in document["ceilings"]} == {"cold", "warm"}


def test_the_screen_says_what_was_wrong_and_what_could_not_be_tried(
    plants: list[Plant], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = runs_of(plants, lambda r: replace(r, kernels=("a", "b")[: len(r.kernels)]))
    judged = [judge(plant, runs) for plant in plants]
    document = json.loads(json.dumps(evidence(judged, plan(CPU, lambda _: None)[1], runs)))
    print_sheet(sheet(document), make_console())
    said = capsys.readouterr().out
    assert "wrong layout: fp16 conv fprop nchw 64" in said
    assert "expected layout, diagnosed mixed" in said
    assert "not applicable: waves: a CPU has no SMs" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 100


def test_a_defect_is_measured_beside_the_same_gemm_without_it(independent: list[Plant]) -> None:
    planted = [plant for plant in independent if not plant.control]
    assert len({plant.subject.backend for plant in planted}) >= 4
    for plant in planted:
        (twin,) = plant.companions
        assert replace(plant.subject, backend=twin.backend) == twin
        assert not OPS["gemm"].misaligned(plant.subject)
        for case in (plant.subject, twin):
            if ":" in case.backend:
                assert hasattr(find(case.backend), "candidates")
    assert [plant for plant in independent if plant.control]


def test_a_defect_that_costs_nothing_was_not_planted(independent: list[Plant]) -> None:
    free = {j.plant.name for j in measured(independent, same_time) if j.verdict == "not applicable"}
    assert free == {plant.name for plant in independent if not plant.control}


def same_time(result: Result) -> Result:
    assert result.measurement
    return replace(result, measurement=replace(result.measurement, median_s=1e-4))


def test_held_out_plants_count_apart_and_can_be_wrong(
    every: list[Plant], plants: list[Plant]
) -> None:
    runs = runs_of(every)
    judged = [judge(plant, runs) for plant in every]
    # Where tensors begin is in no case: the diagnosis cannot see it, and says so by being wrong.
    wrong = [j for j in judged if j.verdict == "wrong"]
    assert {j.plant.subject.backend.rpartition(":")[2] for j in wrong} == {"off_two_bytes"}
    document = json.loads(json.dumps(evidence(judged, [], runs), allow_nan=False))
    assert document["right"] == document["counted"] == len(plants)
    assert document["passed"]
    held = [row for row in document["rows"] if row["held_out"]]
    assert len(held) == len(every) - len(plants)
    said = sheet(document).summary
    assert f"{len(held) - len(wrong)} of {len(held)}" in said
    assert f"{len(plants)} of {len(plants)}" in said


def row(condition: str, named: str | None, verdict: str, control: bool = False) -> PlantRow:
    return PlantRow("a plant", condition, control, "", "", named, "", verdict)


def test_the_confusion_matrix_counts_each_diagnosis_of_each_planted_condition() -> None:
    rows = [
        row("launch", "launch", "right"), row("launch", "launch", "right"),
        row("launch", "memory", "wrong"), row("launch", None, "wrong"),
        row("launch", "launch", "not applicable"),
        row("launch", "mixed", "right", control=True),
        row("waves", None, "not applicable"),
    ]  # fmt: skip
    assert confusion(rows) == {
        "launch": {"launch": 2, "memory": 1, "nothing": 1},
        "not launch": {"mixed": 1},
    }


def test_the_matrix_of_the_published_file_has_all_that_was_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = json.loads(PUBLISHED.read_text())
    title, _, *lines = markdown(sheet(document).brief).splitlines()
    titles = [word.strip() for word in title.strip("|").split("|")]
    rows = [[word.strip() for word in line.strip("|").split("|")] for line in lines if line]
    assert len({row[0] for row in rows}) == len(rows)
    diagnoses = range(1, titles.index("correct"))
    held_out = sum(row["held_out"] for row in document["rows"])
    shown = sum(int(row[at] or 0) for row in rows for at in diagnoses)
    assert shown == document["counted"] + held_out
    print_sheet(sheet(document), make_console())
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 100


# ---------------------------------------------------------------- hot against cold


def pair(cold_s: float, warm_s: float, case: Case, warm_floor_s: float) -> tuple[str, str]:
    """What is said of a case with these times, the shortest launch taking 3 us cold."""

    def result(seconds: float) -> Result:
        made = MadeUp().result(case)
        assert made.measurement
        return replace(made, measurement=replace(made.measurement, median_s=seconds))

    def run(floor_s: float) -> Run:
        floor = Ceiling("latency floor", "measured", "fp16", seconds=floor_s)
        return Run(("x",), "now", H200, {}, ceilings=(floor,))

    return cache_effect(result(cold_s), result(warm_s), run(FLOOR_S), run(warm_floor_s))


FITS = gemm(16, 8192, 1088, "fp16")


@pytest.mark.parametrize(
    ("cold_s", "warm_s", "case", "warm_floor_s", "bound", "said"),
    [
        (
            9e-6,
            4.5e-6,
            FITS,
            2e-6,
            "cache",
            "2.0 times faster when its 18 MB are in the L2",
        ),
        (3.4e-6, 2.4e-6, FITS, 2e-6, "none", ""),  # 1.4 times faster, as a tiny launch is
        (9e-6, 8.8e-6, FITS, 3e-6, "none", ""),
        (28e-6, 30e-6, gemm(2048, 2048, 2048, "fp16"), 2e-6, "none", ""),
        (60e-6, 50e-6, gemm(16, 16384, 8192, "fp16"), 2e-6, "none", "do not fit"),
    ],
)
def test_the_cache_holds_what_is_faster_warm_by_more_than_the_shortest_launch_saves(
    cold_s: float, warm_s: float, case: Case, warm_floor_s: float, bound: str, said: str
) -> None:
    named, why = pair(cold_s, warm_s, case, warm_floor_s)
    assert named == bound
    assert said in why


def test_another_kernel_or_nothing_to_compare_is_said() -> None:
    run = Run(("x",), "now", H200, {})
    result = MadeUp().result(FITS)
    other = replace(result, kernels=("b",))
    assert "a different kernel" in cache_effect(result, other, run, run)[1]
    assert "launch latency" in cache_effect(result, result, run, run)[1]
    assert "not measured" in cache_effect(result, replace(result, measurement=None), run, run)[1]


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize(
    "words", [["--budget", "0"], ["--budget", "nan"], ["--json", "."], ["--device", "tpu"]]
)
def test_bad_words_are_one_line_and_exit_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selftest", "--device", "cpu", *words]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.slow
def test_the_command_on_a_cpu(tmp_path: Path) -> None:
    path = tmp_path / "selftest.json"
    page = tmp_path / "selftest.html"
    words = [
        "selftest",
        "--device",
        "cpu",
        "--budget",
        "3",
        "--json",
        str(path),
        "--html",
        str(page),
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "microbench", *words],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    document = json.loads(path.read_text())
    assert f"{document['right']} of {document['counted']}" in page.read_text()
    # A busy machine may well mistime a plant; that the count and the exit code agree is certain.
    assert ran.returncode == (0 if document["passed"] else 1), ran.stderr
    assert document["counted"] >= 4
    assert f"{document['right']} of {document['counted']} diagnosed correctly" in ran.stdout
    assert {a["condition"] for a in document["absent"]} == {
        "alignment", "waves", "layout", "power", "cache", "mixed",
    }  # fmt: skip
    assert str(tmp_path) not in path.read_text()
