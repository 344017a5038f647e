"""The ceilings: what counts as best, what is skipped or failed, their file and screens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from samples.commands import run_here

from kernels.case import Target
from kernels.ceilings.plan import INSTRUCTIONS, Loaded, Probe, Variant, all_probes
from kernels.gpus import find_card
from kernels.precision import PRECISIONS
from microbench.__main__ import main
from microbench.ceilings import chosen
from microbench.device.telemetry import Telemetry
from microbench.errors import UserError
from microbench.results import read_run
from microbench.results.ceilings import CeilingResult, Tried, ceiling_of
from microbench.results.types import Ceiling, Measurement
from microbench.roofline.instructions import cycles_of, fastest, measure_probe, quick_ceilings
from microbench.roofline.rates import MEASURED, known_rates, rates_of, read_rates, text_of
from microbench.timing.interleave import Arm
from microbench.timing.timers import Block, Launch

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "nvidia-h200" / "ceilings.json"
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
        """Nothing warms up."""

    def forget(self) -> None:
        """Nothing is kept."""


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


def measure(loader: FakeLoader, target: Target = H200) -> CeilingResult:
    return measure_probe(
        FP16, cast(Any, loader), target, FakeTimer(), Telemetry(None), 0.01, lambda *_: None
    )


def test_the_fastest_variant_that_is_right_counts() -> None:
    result = measure(FakeLoader(["no such register", 3e-4, 1e-4, 2e-4], errors=[0.0, 0.9, 0.0]))
    assert result.status == "ok"
    assert result.timed
    assert result.timed.median_s == pytest.approx(2e-4)
    assert result.tried[0].reason == "no such register"
    assert result.tried[2].seconds is None
    assert result.tried[2].reason, "it is wrong"
    assert result.variant == result.tried[3].label


def test_what_fails_what_is_lacking_and_what_kills_the_device() -> None:
    failed = measure(FakeLoader(["no such register"] * 50))
    assert (failed.status, failed.reason) == ("failed", "no such register")
    assert failed.measurement is None
    older = measure(FakeLoader(["never loaded"]), replace(H200, capability=(8, 0)))
    assert (older.status, older.tried) == ("skipped", ())
    assert older.reason
    with pytest.raises(RuntimeError, match="device lost"):
        measure(FakeLoader(["illegal address"], dead=True))


@pytest.mark.parametrize(("probe", "best"), [(FP16, "slow clock"), (Probe("DRAM read"), "short")])
def test_instructions_are_compared_by_clocks_and_memory_by_time(probe: Probe, best: str) -> None:
    tried = [Tried("slow clock", 2.0, 100, 1000.0), Tried("short", 1.5, 100, 1900.0),
             Tried("half the work", 1.4, 50, 1000.0)]  # fmt: skip
    found = fastest(probe, tried)
    assert found
    assert found.label == best


def quick(loader: FakeLoader, l2: str, target: Target = H200) -> list[Ceiling]:
    precisions = ("fp16", "fp8-e4m3-precise", "fp32", "fp64")
    return quick_ceilings(
        cast(Any, loader), target, FakeTimer(l2=l2), precisions, lambda *_: None
    )  # fmt: skip


def test_a_run_measures_the_instruction_of_each_of_its_precisions() -> None:
    found = quick(FakeLoader([]), "cold")
    ways = [(c.precision, c.reference.partition(",")[0]) for c in found]
    assert ways == [
        ("fp16", "wgmma"), ("fp8-e4m3-precise", "wgmma"), ("fp32", "FFMA"), ("fp64", "mma.sync"),
    ]  # fmt: skip
    assert all(c.flop_per_clock == pytest.approx(1e9 / 1e-3 / 1.7e9 / 132) for c in found)
    # A faster instruction may exist, or the kernels fail: no roof.
    assert not quick(FakeLoader([]), "cold", replace(H200, capability=(10, 0)))
    assert not quick(FakeLoader(["no such register"] * 50), "cold")


def test_rates_are_of_the_clock_that_was_measured() -> None:
    flops = round(0.97 * 4096 * 132 * 1.7e9 * 4e-4)
    measured = Measurement((4e-4,) * 3, (1, 1, 1), 4e-4, None, "events", "warm", "sustained",
                           sm_clock_mhz=1700.0)  # fmt: skip
    result = CeilingResult(
        FP16, "ok", measurement=measured, flops=flops, sms=132, nominal=4096, cycles=4e-4 * 1.7e9
    )
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
    for probe in all_probes():
        assert (probe.precision is not None) == (probe.name in INSTRUCTIONS), probe.key
    with pytest.raises(UserError, match="nothing-such"):
        chosen("nothing-such")


def test_a_published_file_compares_with_itself_and_a_cpu_has_none() -> None:
    ran = run_here(main, "microbench", "compare", PUBLISHED, PUBLISHED)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.rstrip().endswith(" same.")
    ran = run_here(main, "microbench", "ceilings", "--device", "cpu", "--quiet")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)


# ---------------------------------------------------------------- rates of the package


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.json")), ids=lambda path: path.stem)
def test_a_gpu_s_rates_are_those_of_the_run_file_that_they_name(path: Path) -> None:
    source = json.loads(path.read_text())["source"]
    found = rates_of(read_run(ROOT / source), source)
    assert path.read_text() == text_of(found)
    assert known_rates(found.device) == found


def test_no_rate_is_beyond_the_datasheet_and_none_is_far_below() -> None:
    card, rates = find_card("NVIDIA H200"), known_rates("NVIDIA H200")
    assert card is not None
    assert rates is not None
    for name in ("fp16", "bf16", "tf32", "fp32", "fp8-e4m3-precise", "int8"):
        measured, peak = rates.peak(PRECISIONS[name]), card.peak(PRECISIONS[name])
        assert measured is not None
        assert peak is not None
        assert 0.8 * peak < measured < peak
    assert rates.byte_per_s is not None
    assert 0.9 * card.byte_per_s < rates.byte_per_s < card.byte_per_s
    assert rates.peak(PRECISIONS["fp64"]) is None


def test_what_was_not_measured_has_no_rates() -> None:
    assert known_rates("NVIDIA A100-SXM4-80GB") is None
    assert known_rates("../../etc/passwd") is None
    with pytest.raises(UserError, match="no measured rates"):
        read_rates(ROOT / "results" / "nvidia-h200" / "train-resnet50.json")
