"""The ceilings' command: what is chosen, what counts as best, its file and its screens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from samples import ceilings as samples
from samples.commands import run_here

from kernels.case import Target
from kernels.ceilings.plan import INSTRUCTIONS, Loaded, Probe, Variant, all_probes
from microbench import __main__ as line
from microbench.ceilings import chosen
from microbench.device.telemetry import Telemetry
from microbench.errors import UserError
from microbench.report import ceilings as report
from microbench.results.ceilings import CeilingResult, Tried, ceiling_of
from microbench.results.codec import run_from_json, run_to_json
from microbench.results.runfile import read_run, write_run
from microbench.results.types import Ceiling, Result
from microbench.roofline import ceilings as roofs
from microbench.roofline.instructions import (
    cycles_of,
    fastest,
    measure_probe,
    quick_ceilings,
)
from microbench.sweep import Group
from microbench.timing.interleave import Arm
from microbench.timing.timers import Block, Launch

H200 = Target("cuda", "NVIDIA H200", (9, 0), 132)
FP16 = Probe("wgmma", "fp16")


@dataclass
class FakeTimer:
    """Every launch says what it takes."""

    name: str = "events"
    l2: str = "warm"
    resolution_s: float = 1e-9
    flush_s: float = 0.0
    overhead_s: float = 0.0

    def block(self, launch: Launch, samples: int) -> Block:
        return Block((cast(float, launch()),) * samples, 1700.0)

    def run(self, launch: Launch, times: int) -> None:
        pass

    def forget(self) -> None:
        pass


@dataclass
class FakeLoader:
    """Variants that take as long as `seconds` says in turn; a text in place of it is an error."""

    seconds: list[float | str]
    errors: list[float] = field(default_factory=list)
    dead: bool = False

    def load(self, probe: Probe, variant: Variant) -> Loaded:
        took = self.seconds.pop(0) if self.seconds else 1e-3
        if isinstance(took, str):
            raise ValueError(took)
        error = self.errors.pop(0) if self.errors else 0.0
        return Loaded(lambda: took, 10**9, 0, lambda: error)

    def raise_if_dead(self, error: Exception) -> None:
        if self.dead:
            raise RuntimeError("device lost") from error


def measure(loader: FakeLoader, probe: Probe = FP16, target: Target = H200) -> CeilingResult:
    telemetry = Telemetry(None)
    return measure_probe(
        probe, cast(Any, loader), target, FakeTimer(), telemetry, 0.01, lambda _key, _stage: None
    )


def test_the_fastest_variant_that_is_right_counts() -> None:
    result = measure(FakeLoader([3e-4, 1e-4, 2e-4], errors=[0.0, 0.9, 0.0]))
    assert result.status == "ok"
    assert result.timed
    assert result.timed.median_s == pytest.approx(2e-4)
    wrong = result.tried[1]
    assert wrong.seconds is None
    assert wrong.reason
    assert result.variant == result.tried[2].label


def test_a_variant_that_does_not_compile_is_left_out_and_none_at_all_is_a_failure() -> None:
    assert measure(FakeLoader(["no such register", 1e-4])).tried[0].reason == "no such register"
    failed = measure(FakeLoader(["no such register"] * 50))
    assert (failed.status, failed.reason) == ("failed", "no such register")
    assert failed.measurement is None


def test_a_fault_that_leaves_the_device_dead_is_raised_to_the_parent() -> None:
    with pytest.raises(RuntimeError, match="device lost"):
        measure(FakeLoader(["illegal address"], dead=True))


def test_what_the_device_lacks_is_skipped_and_nothing_is_loaded() -> None:
    result = measure(FakeLoader(["never loaded"]), target=replace(H200, capability=(8, 0)))
    assert result.status == "skipped"
    assert result.reason
    assert not result.tried


@pytest.mark.parametrize(("probe", "best"), [(FP16, "slow clock"), (Probe("DRAM read"), "short")])
def test_instructions_are_compared_by_clocks_and_memory_by_time(probe: Probe, best: str) -> None:
    tried = [Tried("slow clock", 2.0, 100, 1000.0), Tried("short", 1.5, 100, 1900.0),
             Tried("half the work", 1.4, 50, 1000.0)]  # fmt: skip
    found = fastest(probe, tried)
    assert found
    assert found.label == best


def quick(loader: FakeLoader, l2: str, target: Target = H200) -> dict[tuple[object, ...], Ceiling]:
    found = quick_ceilings(
        cast(Any, loader), target, FakeTimer(l2=l2), ("fp16", "fp8-e4m3-precise", "fp32", "fp64"),
        lambda _key, _stage: None,
    )  # fmt: skip
    return {ceiling.key: ceiling for ceiling in found}


def test_a_run_measures_the_instruction_of_each_of_its_precisions() -> None:
    found = quick(FakeLoader([]), "cold")
    assert [str(c.precision) for c in found.values()] == [
        "fp16",
        "fp8-e4m3-precise",
        "fp32",
        "fp64",
    ]
    ways = [c.reference.partition(",")[0] for c in found.values()]
    assert ways == ["wgmma", "wgmma", "FFMA", "mma.sync"]
    assert all(c.flop_per_clock == pytest.approx(1e9 / 1e-3 / 1.7e9 / 132) for c in found.values())


def test_a_run_with_a_warm_cache_measures_the_l2_by_size() -> None:
    sizes = [c.working_set or 0 for c in quick(FakeLoader([]), "warm").values() if c.byte_per_s]
    assert sizes == sorted(sizes)
    assert len(sizes) > 3


@dataclass
class FakeMeasurer:
    """Says which GEMMs it was asked for, and measures none."""

    target: Target = H200
    timer: FakeTimer = field(default_factory=FakeTimer)
    asked: list[tuple[str, int]] = field(default_factory=list)

    def measure(self, group: Group, budget_s: float, announce: Any) -> list[Result]:
        self.asked += [(case.precision_name, case.dim("m")) for case in group.cases]
        return []


@pytest.mark.parametrize("kernels_run", [True, False])
def test_a_large_gemm_is_measured_only_where_no_instruction_was(
    kernels_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = FakeLoader([] if kernels_run else ["no such register"] * 50)
    monkeypatch.setattr(roofs, "loader_for", lambda _target: loader)
    monkeypatch.setattr(roofs, "copy", lambda _target: (lambda: 1e-3, 10**9))
    measurer = FakeMeasurer()
    roofs.calibrate(cast(Any, measurer), ("fp16",), ("fp16",), lambda _key, _stage: None)
    large = [("fp16", roofs.CALIBRATED_SIZE["cuda"])]
    assert measurer.asked == [("fp16", roofs.FLOOR_SIZE), *(large if not kernels_run else [])]


def test_no_roof_where_a_faster_instruction_may_exist_or_the_kernels_fail() -> None:
    assert not quick(FakeLoader([]), "cold", replace(H200, capability=(10, 0)))
    assert not quick(FakeLoader(["no such register"] * 50), "cold")


def test_rates_are_of_the_clock_that_was_measured() -> None:
    result = samples.wgmma(0.97)
    assert result.per_clock == pytest.approx(0.97 * 4096)
    assert result.nominal_pct == pytest.approx(97)
    ceiling = ceiling_of(result)
    assert ceiling
    assert ceiling.flop_per_clock == pytest.approx(0.97 * 4096)
    assert ceiling.flop_per_s == pytest.approx(0.97 * 4096 * 132 * 1.7e9)


def test_cycles_of_a_launch_do_not_depend_on_how_the_clock_changed() -> None:
    """A card under its power cap: each block has its own clock, and half of each is slower."""
    arm = Arm("wgmma", lambda: None, 1e-3)
    for clock_mhz in (1300.0, 1500.0, 1900.0):
        launches = [2e6 / (1e6 * clock_mhz * share) for share in (0.8, 0.8, 1.0, 1.0)]
        mean_mhz = 4 * 2.0 / sum(launches)
        arm.blocks.append(Block(tuple(launches), mean_mhz))
    assert cycles_of(arm) == pytest.approx(2e6)
    arm.blocks.append(Block((1e-3,), None))
    assert cycles_of(arm) is None


def test_only_chooses_by_name_and_by_precision() -> None:
    assert {probe.name for probe in chosen("DRAM")} == {"DRAM read", "DRAM write", "DRAM copy"}
    of_bf16 = chosen("bf16, FFMA")
    assert {(p.name, p.precision_name) for p in of_bf16} == {
        ("wgmma", "bf16"), ("mma.sync", "bf16"), ("FFMA", "fp32")
    }  # fmt: skip
    assert chosen(None) == all_probes()
    with pytest.raises(UserError, match="nothing-such"):
        chosen("nothing-such")


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ceilings.json"
    write_run(samples.run(), path)
    assert read_run(path) == samples.run()


@pytest.mark.parametrize(
    ("field_name", "value"),
    [("status", "fine"), ("status", "skipped"), ("flops", -1), ("sms", "many"), ("tried", 3),
     ("case", {"name": "wgmma", "precision_name": "fp3"}), ("measurement", {"times_s": []})],
)  # fmt: skip
def test_a_damaged_result_is_refused(field_name: str, value: object) -> None:
    data = json.loads(json.dumps(run_to_json(samples.run())))
    data["results"][0][field_name] = value
    with pytest.raises(ValueError, match="results"):
        run_from_json(data)


@pytest.mark.parametrize("form", ["", "--verbose", "--markdown", "--csv"])
def test_show_prints_every_ceiling_in_every_form(tmp_path: Path, form: str) -> None:
    path = tmp_path / "ceilings.json"
    write_run(samples.run(), path)
    ran = run_here(line.main, "microbench", "show", path, *form.split())
    assert ran.returncode == 0, ran.stderr
    for name in ("wgmma", "mma.sync", "DRAM read", "L2 read", "stream launch"):
        assert name in ran.stdout
    assert ("out of registers" in ran.stdout) == (form in ("--verbose", "--markdown"))


def test_the_chart_has_a_point_a_working_set_and_dram_as_a_roof() -> None:
    pytest.importorskip("altair")
    chart = report.chart(samples.run()).to_dict()
    line_layer, roof = chart["layer"]
    assert [row["size"] for row in line_layer["data"]["values"]] == [2, 64]
    assert roof["data"]["values"] == [{"rate": pytest.approx(4.4)}]
    nothing = replace(samples.run(), others=(samples.wgmma(),))
    with pytest.raises(UserError):
        report.chart(nothing)


def test_a_run_compares_with_another(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path in paths:
        write_run(samples.run(), path)
    ran = run_here(line.main, "microbench", "compare", *paths)
    assert ran.returncode == 0, ran.stderr
    assert "wgmma" in ran.stdout or "same" in ran.stdout


def test_a_cpu_is_one_clear_line_and_code_2() -> None:
    ran = run_here(line.main, "microbench", "ceilings", "--device", "cpu", "--quiet")
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1


def test_every_instruction_is_of_a_precision() -> None:
    for probe in all_probes():
        assert (probe.precision is not None) == (probe.name in INSTRUCTIONS), probe.key
