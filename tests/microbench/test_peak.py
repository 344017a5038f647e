"""The search for the highest rate: it finds it, ends, goes on, and is not fooled by luck."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.kernel_runs import measured, run_of

from kernels.case import Case
from microbench.__main__ import main
from microbench.conditions import Conditions
from microbench.errors import UserError
from microbench.peak import DIMENSIONS, LAST_S, Climb, peak_of, plan_peak, sides_of
from microbench.report.peak_table import peak_table, peak_verdict
from microbench.report.table import markdown
from microbench.results.types import Result, Run

SIDES = "1024,2048,4096,8192,16384"
Rate = Callable[[Case, bool], float]  # TFLOP/s of a case, in a long reading or a try


@dataclass
class Bench:
    """Follows the schedule to its end over a made-up landscape; each reading takes a second."""

    rate: Rate
    run: Run = field(default_factory=lambda: run_of([], command=("microbench", "peak")))
    now_s: float = 0.0
    seen: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def search(self, dtype: str = "fp16,fp8", budget_s: float = 1e6) -> Run:
        groups = plan_peak(Conditions(dtype=dtype, vs="none"), "cuda", SIDES)
        climb = Climb(groups, sides_of(SIDES), budget_s, lambda: self.now_s)
        while (following := climb.next(self.run)) is not None:
            group, seconds = following
            self.now_s += 1.0
            long = seconds >= LAST_S
            self.seen += [(case.key, seconds) for case in group.cases]
            found = [read(measured(case, self.rate(case, long)), long) for case in group.cases]
            self.run = self.run.with_results(found)
            assert climb.left_s() >= 0
            assert len(self.seen) < 500
        return self.run


def read(result: Result, long: bool) -> Result:
    """The result with as many rounds as a long reading has, or a try."""
    assert result.measurement
    rounds = 15 if long else 3
    times = (result.measurement.median_s,) * rounds
    blocks = (1,) * rounds
    return replace(result, measurement=replace(result.measurement, times_s=times, blocks=blocks))


def hill(m: int, n: int, k: int, layout: str, backend: str) -> Rate:
    """A landscape with one summit: a rate falls with each step away from it."""

    def rate(case: Case, long: bool) -> float:
        steps = sum(abs(math.log2(case.dim(d) / top))
                    for d, top in zip(DIMENSIONS, (m, n, k), strict=True))  # fmt: skip
        other = (case.layout != layout) + (case.backend != backend)
        return 800 - 20 * steps - 30 * other

    return rate


def best(run: Run, precision: str) -> Case:
    found = peak_of([r for r in run.results if r.case.precision_name == precision])
    assert found
    return found.case


side = st.sampled_from([1024, 2048, 4096, 8192, 16384])


@settings(max_examples=25)
@given(side, side, side, st.sampled_from(["nn", "nt", "tn", "tt"]),
       st.sampled_from(["cublaslt", "triton"]))  # fmt: skip
def test_the_only_summit_is_found_and_measured_for_long(
    m: int, n: int, k: int, layout: str, backend: str
) -> None:
    bench = Bench(hill(m, n, k, layout, backend))
    run = bench.search()
    for precision in ("fp16", "fp8-e4m3"):
        case = best(run, precision)
        assert [case.dim(one) for one in DIMENSIONS] == [m, n, k]
        assert (case.layout, case.backend) == (layout, backend)
        assert (case.key, LAST_S) in bench.seen


def test_a_lucky_try_is_measured_again_and_forgotten() -> None:
    truth = hill(4096, 8192, 4096, "nt", "cublaslt")
    lucky = "gemm/m=4096,n=4096,k=4096/tt/normal/fp16/triton"
    run = Bench(lambda case, long: 2000 if case.key == lucky and not long else truth(case, long))
    found = run.search("fp16")
    assert best(found, "fp16").key != lucky
    assert found.by_key[lucky].flop_per_s == pytest.approx(
        truth(found.by_key[lucky].case, True) * 1e12
    )


@pytest.mark.parametrize("seed", range(5))
def test_on_flat_ground_the_peak_is_a_long_reading(seed: int) -> None:
    draw = Random(seed)
    bench = Bench(lambda case, long: 700 * (1 + draw.gauss(0, 0.003 if long else 0.02)))
    case = best(bench.search("fp16"), "fp16")
    assert (case.key, LAST_S) in bench.seen


def test_results_of_other_sides_are_passed_by() -> None:
    bench = Bench(hill(4096, 4096, 4096, "nt", "cublaslt"))
    odd = Case("gemm", dict.fromkeys(DIMENSIONS, 77), "fp16", "triton")
    bench.run = bench.run.with_results([read(measured(odd, 999), False)])
    bench.search("fp16")
    assert not any("=77," in key for key, _ in bench.seen)


def test_a_finished_search_only_repeats_the_best() -> None:
    bench = Bench(hill(1024, 8192, 4096, "tn", "triton"))
    first = bench.search("fp16")
    again = Bench(bench.rate, run=first)
    assert best(again.search("fp16"), "fp16") == best(first, "fp16")
    assert {seconds for _, seconds in again.seen} == {LAST_S}


def test_when_time_is_short_every_precision_still_has_a_rate() -> None:
    bench = Bench(hill(16384, 16384, 16384, "nt", "cublaslt"))
    run = bench.search("fp16,bf16,fp8", budget_s=5)
    assert {r.case.precision_name for r in run.results} == {"fp16", "bf16", "fp8-e4m3"}
    assert bench.now_s < 20


def test_the_table_has_a_row_for_each_precision_that_was_measured() -> None:
    run = Bench(hill(4096, 2048, 4096, "nt", "cublaslt")).search("fp16,tf32,int8")
    lines = [line for line in markdown(peak_table(run)).splitlines() if "4096x2048x4096" in line]
    assert [name for line in lines for name in ("fp16", "tf32", "int8") if name in line] == [
        "fp16", "tf32", "int8",
    ]  # fmt: skip
    assert all("800" in line for line in lines)
    said = peak_verdict(run)
    assert [" TFLOP/s" in line for line in said] == [True, True, False]


@pytest.mark.parametrize("sizes", ["", "0", "8..4", "64x64x64"])
def test_sides_that_cannot_be_read_are_one_line(sizes: str) -> None:
    with pytest.raises(UserError):
        sides_of(sizes)


def test_the_command_measures_on_a_cpu_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "peak.json"
    words = ["peak", "--device", "cpu", "--dtype", "fp32", "--sizes", "32,64", "--budget", "1"]
    assert main([*words, "--json", str(file), "--quiet"]) == 0
    before = json.loads(file.read_text())
    assert before["results"]
    assert main([*words, "--resume", str(file), "--quiet"]) == 0
    after = json.loads(file.read_text())
    assert len(after["results"]) >= len(before["results"])
